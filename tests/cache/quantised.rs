//! Quantised rows: encoded as defined, decoded inside attention, errors within their bounds.

use wgpu_attention::Cache;
use wgpu_attention::model::{Held, RowKind, Storage};
use wgpu_attention::reference::quantised;

use crate::common::{kernels, noise};
use crate::gpu;
use crate::toy::{Toy, softmax_only};

const QUANTISED: [Storage; 4] = [Storage::Q8_0, Storage::Q4_0, Storage::Fp8, Storage::Int8];

fn run(mut toy: Toy) {
    for (step, n) in [7, 1, 5, 2, 7, 1].into_iter().enumerate() {
        let new = |s: u32, n: u32| (0..n).map(|i| 1000 * s + 10 * step as u32 + i).collect();
        toy.feed(&[new(1, n), new(2, n / 2)]).unwrap();
    }
    // on the encoded numbers exactly, on attention at the bound of floats
    toy.check();
}

/// Rows as by definition to the last bit, attention over them at the bound of plain floats. V7: 80 is no multiple
/// of 32.
#[test]
#[ignore = "takes long: scripts/test.sh --thorough runs it"]
fn attention_reads_quantised_rows_linear_in_rings_and_in_pages() {
    let kernels = kernels(gpu());
    for (at, storage) in QUANTISED.into_iter().enumerate() {
        for (which, (width, paged)) in [(64, false), (80, true)].into_iter().enumerate() {
            let spec = softmax_only(storage, width, 7);
            let builder = Cache::builder(&spec).tokens(60).sequences(2);
            let builder = if paged { builder.pages(16, 6) } else { builder };
            let mut toy = Toy::new(gpu(), spec, builder.build(gpu()).unwrap());
            // each kernel meets each storage, linear or in pages
            toy.kernel = Some(kernels[(at + which) % kernels.len()]);
            run(toy);
        }
    }
}

#[test]
fn keys_and_values_choose_apart() {
    let pairs = [
        (Storage::Q8_0, Storage::Q4_0),
        (Storage::F16, Storage::Int8),
        (Storage::Fp8, Storage::F32),
        (Storage::Bf16, Storage::Q8_0),
    ];
    for (keys, values) in pairs {
        let mut spec = softmax_only(keys, 32, 7);
        for layer in &mut spec.layers {
            layer.rows[1].storage = values;
        }
        let cache = Cache::builder(&spec).tokens(60).sequences(2).build(gpu()).unwrap();
        run(Toy::new(gpu(), spec, cache));
    }
}

/// What storing costs: every value within the bound that docs state, zeros and outliers too.
#[test]
fn errors_stay_within_their_bounds() {
    for storage in [Storage::F16, Storage::Bf16, Storage::Q8_0, Storage::Q4_0, Storage::Fp8, Storage::Int8] {
        let mut worst = 0f32;
        for (seed, scale) in [(1, 1.0), (2, 100.0), (3, 1e-3), (4, 1.0), (5, 0.0)] {
            let mut row = noise(seed, 128);
            for x in &mut row {
                *x *= scale;
            }
            if seed == 4 {
                // an outlier channel
                row[5] = 40.0;
            }
            let back = quantised::round_trip(storage, &row).unwrap();
            let group = if matches!(storage, Storage::Q8_0 | Storage::Q4_0) { 32 } else { 128 };
            for (want, got) in row.chunks(group).zip(back.chunks(group)) {
                let top = want.iter().fold(0f32, |m, x| m.max(x.abs()));
                let bound = quantised::error_bound(storage, top);
                for (&want, &got) in want.iter().zip(got) {
                    assert!((want - got).abs() <= bound, "{storage}: {want} became {got}, bound {bound}");
                    // below, the scale is a half float with fewer digits
                    if top > 0.01 {
                        worst = worst.max((want - got).abs() / top);
                    }
                }
            }
        }
        println!("{storage}: worst error {worst:.5} of the largest value");
        if storage == Storage::Q8_0 {
            // V7's own number
            assert!(worst <= 1.0 / 220.0);
        }
    }
}

/// Values from 2^-40 to 2^12 in one row: the device's codes are the definition's, the smallest too.
#[test]
fn codes_of_every_size_are_the_definitions() {
    let row: Vec<f32> = (0..64u8)
        .map(|i| (f32::from(i) * 0.8125 - 40.0).exp2() * if i % 3 == 0 { -1.37 } else { 1.0 })
        .collect();
    let right = |gpu: &wgpu_attention::Gpu, storage: Storage| {
        let mut spec = softmax_only(storage, 64, 1);
        spec.layers.truncate(1);
        let mut cache = Cache::builder(&spec).tokens(3).build(gpu).unwrap();
        cache.begin(&[1]).unwrap();
        let (reversed, data) = (row.iter().rev(), row.iter());
        let data: Vec<f32> = data.chain(reversed).copied().collect();
        let rows = wgpu_attention::Tensor::from_slice(gpu, &data, [1, 2, 1, 64]).unwrap();
        cache.write(0, RowKind::Key, &rows).unwrap();
        cache.write(0, RowKind::Value, &rows).unwrap();
        cache.commit().unwrap();
        let want: Vec<f32> =
            data.chunks(64).flat_map(|r| quantised::round_trip(storage, r).unwrap()).collect();
        cache.read_rows(0, 0, RowKind::Key).unwrap().1 == want
    };
    for storage in QUANTISED {
        assert!(right(gpu(), storage), "{storage}");
    }
    let fault = gpu().with_edit("select(large, small, size < 0.015625)", "large");
    assert!(!right(&fault, Storage::Fp8), "subnormal codes are not looked at");
}

#[test]
fn rows_that_fill_no_words_are_refused() {
    for (storage, width) in [(Storage::Int8, 6), (Storage::F16, 6), (Storage::Fp8, 10)] {
        let error = Cache::builder(&softmax_only(storage, width, 1)).build(gpu()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("width is {width}")), "{error}");
    }
    // one head of one block: two bytes of scale
    let mut spec = softmax_only(Storage::Q8_0, 32, 1);
    spec.layers[0].rows[0].heads = 1;
    assert!(Cache::builder(&spec).build(gpu()).is_err());
}

/// Latents and indexer keys are rows like any other.
#[test]
fn latents_are_quantised_too() {
    for storage in [Storage::Q8_0, Storage::Int8, Storage::Q4_0] {
        let mut spec = softmax_only(storage, 32, 3);
        spec.layers[0].rows.truncate(1);
        spec.layers[0].design = "latent";
        spec.layers[0].rows[0].kind = RowKind::Latent;
        spec.layers[0].rows[0].heads = 1;
        spec.layers[0].rows[0].width = 512;
        assert_eq!(spec.layers[0].rows[0].held, Held::All);
        let cache = Cache::builder(&spec).tokens(60).sequences(2).build(gpu()).unwrap();
        run_small(Toy::new(gpu(), spec, cache));
    }
}

fn run_small(mut toy: Toy) {
    for step in 0..5 {
        toy.feed(&[vec![step, step + 100, step + 200], vec![step + 300]]).unwrap();
    }
    toy.check();
}
