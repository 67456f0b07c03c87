//! Rotary embedding: frequencies against published values, layouts, positions, views, refusals.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{close, gpu, noise, stored};
use wgpu_attention::model::{Rope, RopeLayout, RopeScaling, Temperature};
use wgpu_attention::{Angles, DType, Error, Rotary, Tensor};

type Values = [(usize, f64)];

fn rope(theta: f64, rotary_dim: u32, scaling: RopeScaling) -> Rope {
    Rope { scaling, ..Rope::new(theta, rotary_dim, RopeLayout::Half) }
}

fn yarn(factor: f64, betas: [f64; 2], truncate: bool, mscale: Option<f64>) -> RopeScaling {
    RopeScaling::Yarn {
        factor,
        original: 4096,
        beta_fast: betas[0],
        beta_slow: betas[1],
        truncate,
        attention_factor: None,
        mscale,
        mscale_all_dim: mscale,
    }
}

/// Frequencies of published configurations, from their formulas in another language.
#[test]
fn frequencies_of_published_models() {
    let llama3 = |factor, high| RopeScaling::Llama3 {
        factor,
        low_freq_factor: 1.0,
        high_freq_factor: high,
        original: 8192,
    };
    let tables: [(&str, Rope, &Values); 4] = [
        (
            "gpt-oss",
            rope(150_000.0, 64, yarn(32.0, [32.0, 1.0], false, None)),
            &[
                (0, 1.0),
                (7, 0.073_744_568_21),
                (8, 0.050_813_274_82),
                (9, 0.031_705_696_18),
                (12, 0.006_794_959_49),
                (16, 4.564_839_192_2e-4),
                (17, 1.293_187_012_5e-4),
                (18, 3.830_881_237_4e-5),
                (31, 3.023_511_428_1e-7),
            ],
        ),
        (
            "DeepSeek",
            rope(1e4, 64, yarn(40.0, [32.0, 1.0], true, Some(1.0))),
            &[
                (10, 0.056_234_13),
                (11, 0.039_006_926_57),
                (15, 0.008_334_508_95),
                (22, 1.778_279_41e-4),
                (24, 2.5e-5),
                (31, 3.333_803_58e-6),
            ],
        ),
        (
            "Llama 3.1",
            rope(5e5, 128, llama3(8.0, 4.0)),
            &[
                (28, 0.003_211_445_99),
                (29, 0.002_166_570_76),
                (30, 0.001_371_893_57),
                (34, 1.785_078_1e-4),
                (35, 9.556_212e-5),
                (36, 7.784_655e-5),
                (63, 3.068_925_99e-7),
            ],
        ),
        (
            "Llama 4 Scout",
            rope(5e5, 128, llama3(16.0, 1.0)),
            &[(34, 9.384_738_7e-4), (35, 4.778_106_2e-5), (63, 1.534_463e-7)],
        ),
    ];
    for (name, rope, values) in tables {
        let inverse = rope.inverse_frequencies(0);
        for &(i, want) in values {
            assert!((inverse[i] / want - 1.0).abs() < 1e-6, "{name}[{i}]: {} is not {want}", inverse[i]);
        }
    }
    let oss = yarn(32.0, [32.0, 1.0], false, None);
    assert!((oss.attention_factor() - 1.346_573_590_279_972_7).abs() < 1e-12);
    // cosine and sine keep their size, the softmax takes the correction
    for (mscale, softmax) in [(1.0, 0.135_233_778_9), (0.707, 0.114_721_386_8)] {
        let scaling = yarn(40.0, [32.0, 1.0], true, Some(mscale));
        assert_eq!(scaling.attention_factor(), 1.0);
        assert!((scaling.softmax_correction() / 192f64.sqrt() - softmax).abs() < 1e-9);
    }
}

#[test]
fn lengths_move_dynamic_and_long_frequencies() {
    let dynamic = rope(1e4, 8, RopeScaling::Dynamic { factor: 2.0, max_position: 100 });
    assert_eq!(dynamic.inverse_frequencies(100), rope(1e4, 8, RopeScaling::Default).inverse_frequencies(0));
    let grown = 1e4 * 3f64.powf(8.0 / 6.0);
    assert!((dynamic.inverse_frequencies(200)[1] - grown.powf(-0.25)).abs() < 1e-15);
    let long = RopeScaling::LongRope {
        short: [1.0, 2.0].into(),
        long: [4.0, 8.0].into(),
        original: 8,
        attention_factor: 1.0,
    };
    let long = rope(1e4, 4, long);
    assert_eq!(long.inverse_frequencies(8), [1.0, 0.01 / 2.0]);
    assert_eq!(long.inverse_frequencies(9), [0.25, 0.01 / 8.0]);
    let linear = rope(1e4, 4, RopeScaling::Linear { factor: 8.0 });
    assert_eq!(linear.inverse_frequencies(0), [1.0 / 8.0, 0.01 / 8.0]);
    // the tail of a proportional rotation keeps its exponent and does not turn
    let part = rope(1e4, 8, RopeScaling::Proportional { rotated: 4, factor: 1.0 });
    assert_eq!(part.inverse_frequencies(0), [1.0, 0.1, 0.0, 0.0]);
}

#[test]
fn layouts_turn_their_own_pairs() {
    let turned = |layout, x: [f32; 4], position| {
        let x = Tensor::from_slice(gpu(), &x, [1, 1, 1, 4]).unwrap();
        let table = Rotary::new(&Rope::new(1e4, 4, layout)).table(gpu(), &[position]).unwrap();
        table.run(gpu(), &x, DType::F32).unwrap().read::<f32>(gpu()).unwrap()
    };
    let (half, interleaved) = (RopeLayout::Half, RopeLayout::Interleaved);
    let x = [1.0, 2.0, 3.0, 4.0];
    let want = [-1.413_352_520_8, 1.879_118_066_7, -2.828_857_481_7, 4.058_191_135_4];
    close("half", &turned(half, x, 3), &want, 1e-6, 0.0);
    let want = [-1.272_232_512_7, -1.838_864_985_1, 2.878_668_100_4, 4.088_186_635_6];
    close("interleaved", &turned(interleaved, x, 3), &want, 1e-6, 0.0);
    let unit = [1.0, 0.0, 0.0, 0.0];
    close("half", &turned(half, unit, 1), &[0.540_302_3, 0.0, 0.841_471, 0.0], 1e-6, 0.0);
    close("interleaved", &turned(interleaved, unit, 1), &[0.540_302_3, 0.841_471, 0.0, 0.0], 1e-6, 0.0);
}

#[test]
fn rotations_add_up_and_keep_lengths() {
    let (rows, dim) = (5, 12);
    let data = noise(1, 2 * rows * dim);
    let x = Tensor::from_slice(gpu(), &data, [1, 2, rows, dim]).unwrap();
    let rotary = Rotary::new(&Rope::new(1e4, 10, RopeLayout::Interleaved)).angles(Angles::Exact);
    let at = |p: i64| rotary.table(gpu(), &vec![p; rows]).unwrap();
    let once = at(12).run(gpu(), &x, DType::F32).unwrap().read::<f32>(gpu()).unwrap();
    let twice = at(5).run(gpu(), &at(7).run(gpu(), &x, DType::F32).unwrap(), DType::F32).unwrap();
    let want: Vec<_> = once.iter().map(|&x| f64::from(x)).collect();
    close("5 after 7", &twice.read::<f32>(gpu()).unwrap(), &want, 1e-6, 0.0);
    for (row, turned) in data.chunks(dim).zip(once.chunks(dim)) {
        let norm = |row: &[f32]| row.iter().map(|x| x * x).sum::<f32>();
        assert!((norm(row) - norm(turned)).abs() < 1e-5);
        assert_eq!(row[10..], turned[10..], "the tail is not touched");
    }
}

/// Far out, rounding angles to f32 moves them; both ways are on offer, and each is itself.
#[test]
fn angles_of_distant_positions() {
    let rope = Rope::new(1e4, 128, RopeLayout::Half);
    let x = Tensor::from_slice(gpu(), &[vec![1.0_f32; 64], vec![0.0; 64]].concat(), [1, 1, 1, 128]).unwrap();
    let cosines = |angles, p| {
        let table = Rotary::new(&rope).angles(angles).table(gpu(), &[p]).unwrap();
        table.run(gpu(), &x, DType::F32).unwrap().read::<f32>(gpu()).unwrap()[..64].to_vec()
    };
    for p in [131_071_i64, 1_000_000] {
        let inverse = rope.inverse_frequencies(0);
        let exact: Vec<_> = inverse.iter().map(|i| (p as f64 * i).cos()).collect();
        let rounded: Vec<_> = inverse.iter().map(|&i| f64::from(p as f32 * i as f32).cos()).collect();
        close("exact", &cosines(Angles::Exact, p), &exact, 1e-6, 0.0);
        close("rounded", &cosines(Angles::HuggingFace, p), &rounded, 1e-6, 0.0);
        let apart = exact.iter().zip(&rounded).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
        assert!(apart > 1e-3, "{apart}");
    }
    let far = Rotary::new(&rope).table(gpu(), &[1 << 25]).unwrap_err().to_string();
    assert!(far.contains("positions is 33554432") && far.contains("Angles::Exact"), "{far}");
    Rotary::new(&rope).angles(Angles::Exact).table(gpu(), &[1 << 40]).unwrap();
}

#[test]
fn temperatures_of_llama_4() {
    let llama4 = Temperature { scale: 0.1, floor: 8192, offset: 1 };
    let rows = [
        (0, 1.0),
        (8190, 1.0),
        (8191, 1.069_314_718_1),
        (16_382, 1.069_314_718_1),
        (16_383, 1.109_861_228_9),
        (32_767, 1.160_943_791_2),
        (131_071, 1.283_321_334_4),
    ];
    let positions: Vec<_> = rows.iter().map(|r| r.0).collect();
    let table = Rotary::none().temperature(llama4).table(gpu(), &positions).unwrap();
    let ones = Tensor::from_slice(gpu(), &[1.0_f32; 7 * 6], [1, 1, 7, 6]).unwrap();
    let y = table.run(gpu(), &ones, DType::F32).unwrap().read::<f32>(gpu()).unwrap();
    let want: Vec<_> = rows.iter().flat_map(|r| [r.1; 6]).collect();
    close("temperature", &y, &want, 1e-6, 0.0);
    // Ministral counts without the one
    let ministral = Temperature { offset: 0, ..llama4 };
    assert!(ministral.factor(8191) == 1.0 && ministral.factor(8192) > 1.0);
}

/// Rotation straight into a cache: other rows and columns of it stay as they were.
#[test]
fn rows_are_written_where_they_belong() {
    for (dtype, bound) in [(DType::F32, 1e-6), (DType::F16, 1e-3), (DType::Bf16, 8e-3)] {
        let (batch, heads, rows, dim) = (2, 3, 4, 10);
        let data = noise(3, batch * heads * rows * dim);
        // as projections give it: [B, L, H, D]
        let x = Tensor::from_slice(gpu(), &data, [batch, rows, heads, dim]).unwrap().permute(&[0, 2, 1, 3]);
        let (held, wide) = (9, 16);
        let cache = stored(gpu(), &vec![7.0; batch * heads * held * wide], [batch, heads, held, wide], dtype);
        let slice = cache.narrow(2, 3, rows).unwrap().narrow(3, 4, dim).unwrap();
        let positions: Vec<_> = (0..8).map(|i| if i < 4 { 100 + i } else { i }).collect();
        let rope = Rope::new(1e4, 6, RopeLayout::Half);
        let table = Rotary::new(&rope).batch(batch).table(gpu(), &positions).unwrap();
        let mut encoder = gpu().device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        table.record(gpu(), &mut encoder, &x, &slice).unwrap();
        gpu().submit(encoder).unwrap();
        let mut want = vec![7.0; batch * heads * held * wide];
        for b in 0..batch {
            for h in 0..heads {
                for l in 0..rows {
                    let row = &data[((b * rows + l) * heads + h) * dim..][..dim];
                    let inverse = rope.inverse_frequencies(0);
                    let turned =
                        wgpu_attention::reference::rope(row, positions[b * rows + l], &inverse, 1.0, false);
                    want[((b * heads + h) * held + 3 + l) * wide + 4..][..dim].copy_from_slice(&turned);
                }
            }
        }
        close(dtype.name(), &cache.read_f32(gpu()).unwrap(), &want, bound, 0.0);
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let refused = |error: Error, words: &[&str]| {
        let text = error.to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
    };
    let even = Rope::new(1e4, 4, RopeLayout::Half);
    let odd = Rope::new(1e4, 5, RopeLayout::Half);
    refused(Rotary::new(&odd).table(gpu(), &[0]).unwrap_err(), &["rotary_dim is 5", "even"]);
    refused(
        Rotary::new(&Rope { theta: f64::NAN, ..even.clone() }).table(gpu(), &[0]).unwrap_err(),
        &["theta is NaN"],
    );
    refused(Rotary::new(&even).batch(2).table(gpu(), &[0, 1, 2]).unwrap_err(), &["positions is 3", "2 runs"]);
    refused(
        Rotary::from_frequencies(&[f64::INFINITY], 1.0, RopeLayout::Half).table(gpu(), &[0]).unwrap_err(),
        &["scaling is inf"],
    );
    let table = Rotary::new(&even).table(gpu(), &[0, 1]).unwrap();
    let tensor = |shape: [usize; 4]| Tensor::uninitialised(gpu(), DType::F32, shape).unwrap();
    for shape in [[1, 1, 3, 4], [1, 1, 2, 2]] {
        let error = table.run(gpu(), &tensor(shape), DType::F32).unwrap_err();
        refused(error, &["x has shape", "at least 4"]);
    }
    let error = table.run(gpu(), &tensor([1, 1, 2, 5]), DType::F16).unwrap_err();
    refused(error, &["y has strides", "whole words", "even width"]);
    let mut encoder = gpu().device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let x = tensor([1, 1, 2, 4]);
    refused(table.record(gpu(), &mut encoder, &x, &x).unwrap_err(), &["y", "x"]);
    // nothing to turn is no error
    assert!(table.run(gpu(), &tensor([1, 0, 2, 4]), DType::F32).unwrap().is_empty());
}
