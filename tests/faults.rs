//! Faults that other projects shipped, each with the smallest input that shows it, on every kernel.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{Call, close, gpu, noise, stored};
use wgpu_attention::{
    Attention, DType, Error, Gpu, LOOP_ITERATIONS, Limits, Mask, Partial, Tensor, merge_partials,
};

fn ones(n: usize) -> Vec<f32> {
    vec![1.0; n]
}

/// Values whose row j is the j-th unit vector: the output is the weights.
fn identity(n: usize) -> Vec<f32> {
    (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect()
}

#[test]
fn a_wholly_masked_first_tile_is_harmless() {
    let mut call = Call::new([1, 1, 1, 1, 128, 8, 8]);
    call.mask = Mask::bidirectional();
    for (dtype, hidden) in [(DType::F32, f32::NEG_INFINITY), (DType::F16, -1e9), (DType::F32, f32::MIN)] {
        let bias = (0..128).map(|j| if j < 64 { hidden } else { 0.0 }).collect();
        call.bias = Some((bias, [1, 1, 1, 128], dtype));
        call.check_all(gpu());
    }
}

#[test]
fn a_row_that_sees_nothing_is_zero_and_minus_infinity() {
    let mut call = Call::new([1, 2, 1, 3, 4, 8, 8]);
    call.mask = Mask { q_start: Some(-2), ..Mask::causal() };
    for kernel in common::kernels(gpu()) {
        call.kernel = Some(kernel);
        let (o, lse) = call.run(gpu());
        assert!(
            o[..16].iter().all(|&x| x == 0.0) && lse[0] == f32::NEG_INFINITY && lse[1] == f32::NEG_INFINITY
        );
        call.check(gpu());
    }
}

#[test]
fn an_empty_cache_gives_zero() {
    for mask in [Mask::causal(), Mask::bidirectional()] {
        let call = Call { mask, ..Call::new([1, 1, 1, 1, 0, 8, 8]) };
        let (o, lse) = call.run(gpu());
        assert_eq!((o, lse), (vec![0.0; 8], vec![f32::NEG_INFINITY]));
    }
    let none = Call::new([0, 2, 1, 3, 4, 8, 8]);
    assert_eq!(none.run(gpu()), (vec![], vec![]));
    let none = Call::new([1, 2, 1, 0, 4, 8, 8]);
    assert_eq!(none.run(gpu()), (vec![], vec![]));
}

#[test]
fn slots_past_the_valid_length_may_hold_nan() {
    let mut call = Call::new([2, 2, 1, 2, 40, 16, 16]);
    call.mask = Mask::bidirectional();
    call.kv_len = Some(vec![5, 21]);
    for (b, valid) in [5, 21].into_iter().enumerate() {
        for data in [&mut call.k, &mut call.v] {
            data[(b * 40 + valid) * 16..(b + 1) * 40 * 16].fill(f32::NAN);
        }
    }
    // the definition never looks at them either
    call.check_all(gpu());
    call.splits = Some(2);
    call.check_all(gpu());
}

#[test]
fn sixteen_bit_scores_and_sums_do_not_overflow() {
    let mut call = Call::new([1, 1, 1, 1, 3, 64, 8]);
    call.q = vec![40.0; 64];
    call.k = [40.0, 39.0, 0.0].iter().flat_map(|&x| vec![x; 64]).collect();
    call.dtypes = [DType::F16; 3];
    call.check_all(gpu());
    let mut call = Call::new([1, 1, 1, 1, 4096, 8, 8]);
    call.q = vec![0.0; 8];
    call.v = vec![32.0; 4096 * 8];
    call.dtypes = [DType::F16; 3];
    for kernel in common::kernels(gpu()) {
        call.kernel = Some(kernel);
        assert!(call.run(gpu()).0.iter().all(|&x| x == 32.0));
    }
}

#[test]
fn the_cap_is_finite_and_applied_before_the_mask_on_every_path() {
    let mut call = Call::new([1, 1, 1, 1, 3, 1, 3]);
    (call.q, call.k, call.v) = (vec![100.0], vec![100.0, -100.0, 0.0], identity(3));
    call.mask = Mask::bidirectional();
    call.scale = 1.0;
    call.softcap = Some(50.0);
    call.check_all(gpu());
    // score over cap from 5 to 400
    let mut sweep = Call::new([1, 1, 1, 1581, 1, 1, 1]);
    sweep.mask = Mask::bidirectional();
    sweep.q = (0..1581).map(|i| 5.0 + 0.25 * i as f32).collect();
    (sweep.k, sweep.scale, sweep.softcap) = (vec![1.0], 1.0, Some(1.0));
    for kernel in common::kernels(gpu()) {
        sweep.kernel = Some(kernel);
        let (_, lse) = sweep.run(gpu());
        assert!(lse.iter().all(|&s| s > 0.999 && s <= 1.0) && lse.windows(2).all(|w| w[0] <= w[1] + 1e-6));
    }
    // a hidden key stays hidden under a cap
    (call.q, call.k) = (vec![1.0], vec![10.0, -10.0, 3.0]);
    call.softcap = Some(5.0);
    call.bias = Some((vec![0.0, 0.0, f32::NEG_INFINITY], [1, 1, 1, 3], DType::F32));
    for kernel in common::kernels(gpu()) {
        call.kernel = Some(kernel);
        let (o, _) = call.run(gpu());
        assert!((o[0] - 0.999_935).abs() < 1e-5 && (o[1] - 6.505e-5).abs() < 1e-7 && o[2] == 0.0);
    }
}

#[test]
fn options_are_used_or_refused_never_dropped() {
    let call = Call::new([1, 2, 1, 4, 40, 8, 8]);
    for splits in [1, 3] {
        let with = |softcap| Call { softcap, splits: Some(splits), ..call.clone() };
        let results = [None, Some(5.0), Some(0.5)].map(|cap| {
            with(cap).check_all(gpu());
            with(cap).run(gpu()).0
        });
        assert!(results[0] != results[1] && results[1] != results[2]);
    }
    let [q, k, v] = call.tensors(gpu());
    let refused = |a: Attention| a.run(gpu(), &q, &k, &v).unwrap_err().to_string();
    for cap in [0.0, -5.0, f32::NAN, f32::INFINITY] {
        assert!(refused(Attention::causal().softcap(cap)).starts_with("softcap is "));
    }
    assert!(refused(Attention::causal().scale(f32::NAN)).starts_with("scale is NaN"));
    assert!(refused(Attention::causal().window(0)).starts_with("window is 0"));
    assert!(refused(Attention::causal().kernel("attention_fast")).contains("attention_tiled"));
    let sinks = Tensor::from_slice(gpu(), &[0.0_f32; 3], [3]).unwrap();
    assert!(refused(Attention::causal().sinks(&sinks)).starts_with("sinks has shape [3]"));
}

#[test]
fn every_width_equals_the_definition() {
    // one pipeline a width and kernel: no more widths than the loaders and chunks have cases
    for dim in [1, 40, 80, 136, 192] {
        Call::new([1, 2, 2, 3, 5, dim, dim]).check_all(gpu());
    }
    Call::new([1, 2, 1, 3, 5, 7, 5]).check_all(gpu());
    let error =
        Attention::causal().plan(&common::shape([1, 1, 1, 1, 1, 577, 8]), DType::F32, &Limits::webgpu());
    assert!(error.unwrap_err().to_string().starts_with("dim_k is 577"));
}

#[test]
fn lengths_off_tile_boundaries_count_each_key_once() {
    for seq_q in [1, 2, 17, 65] {
        for seq_kv in [1, 31, 33, 65, 129] {
            Call::new([1, 1, 1, seq_q, seq_kv, 32, 32]).check_all(gpu());
        }
    }
    for n in [17, 33, 64] {
        let mut call = Call::new([1, 1, 1, 1, n, 8, n]);
        (call.q, call.v) = (vec![0.0; 8], identity(n));
        for kernel in common::kernels(gpu()) {
            call.kernel = Some(kernel);
            assert!(call.run(gpu()).0.iter().all(|&p| (p - 1.0 / n as f32).abs() < 1e-7));
        }
    }
}

#[test]
fn query_heads_share_key_value_heads_in_groups() {
    for (heads_q, heads_kv) in [(48, 2), (20, 4), (12, 1), (71, 1), (6, 2)] {
        let mut call = Call::new([1, heads_q, heads_kv, 1, 5, 8, 8]);
        call.v = (0..heads_kv).flat_map(|h| vec![h as f32 + 1.0; 40]).collect();
        for kernel in common::kernels(gpu()) {
            call.kernel = Some(kernel);
            let (o, _) = call.run(gpu());
            for (at, &x) in o.iter().enumerate() {
                assert!((x - (at / 8 * heads_kv / heads_q) as f32 - 1.0).abs() < 1e-6);
            }
        }
    }
    for (heads_q, heads_kv) in [(33, 2), (3, 2), (4, 0)] {
        let shape = common::shape([1, heads_q, heads_kv, 1, 1, 8, 8]);
        let error = Attention::causal().plan(&shape, DType::F32, &Limits::webgpu()).unwrap_err();
        assert_eq!(error, Error::Heads { heads_q, heads_kv });
    }
}

#[test]
fn strided_views_are_read_as_they_are() {
    let call = Call::new([2, 2, 2, 3, 3, 8, 8]);
    call.check_all(gpu());
    Call { position_major: true, ..call.clone() }.check_all(gpu());
    // a slice of a wider buffer: q, k and v beside each other in each row
    let gpu = gpu();
    let wide = noise(9, 2 * 2 * 3 * 24);
    let all = stored(gpu, &wide, [2, 2, 3, 24], DType::F32);
    let part = |at: usize| all.narrow(3, at, 8).unwrap();
    let out = Attention::causal().run(gpu, &part(0), &part(8), &part(16)).unwrap();
    let pick = |at: usize| wide.chunks(24).flat_map(|row| row[at..at + 8].to_vec()).collect();
    let packed = Call { q: pick(0), k: pick(8), v: pick(16), ..call };
    close("narrow", &out.o.read::<f32>(gpu).unwrap(), &packed.reference().0, 2e-5, 0.0);
    // elements of a row that are no neighbours
    let turned = stored(gpu, &noise(1, 64), [1, 1, 8, 8], DType::F32).permute(&[0, 1, 3, 2]);
    let error = Attention::causal().run(gpu, &turned, &turned, &turned).unwrap_err().to_string();
    assert!(error.starts_with("q has strides"), "{error}");
}

#[test]
fn a_bias_is_broadcast_over_batch_and_heads() {
    let mut call = Call::new([2, 3, 3, 2, 5, 8, 8]);
    call.mask = Mask::bidirectional();
    for dtype in [DType::F32, DType::F16] {
        for (b, h) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
            call.bias = Some((noise(4, b * h * 10), [b, h, 2, 5], dtype));
            call.check_all(gpu());
        }
    }
}

#[test]
fn windows_chunks_and_sinks_show_the_keys_they_should() {
    let shape = [1, 1, 1, 9, 9, 8, 9];
    let mut call = Call::new(shape);
    (call.q, call.v) = (vec![0.0; 72], identity(9));
    let counted = |mask: Mask, want: &dyn Fn(usize) -> usize| {
        for kernel in common::kernels(gpu()) {
            let call = Call { mask, kernel: Some(kernel), ..call.clone() };
            let (o, _) = call.run(gpu());
            for (i, row) in o.chunks(9).enumerate() {
                assert_eq!(row.iter().filter(|&&p| p > 0.0).count(), want(i), "row {i} of {mask:?}");
            }
            call.check(gpu());
        }
    };
    counted(Mask { window: Some(3), ..Mask::causal() }, &|i| (i + 1).min(3));
    counted(Mask { chunk: Some(4), ..Mask::causal() }, &|i| i % 4 + 1);
    counted(Mask { window: Some(2), sink_tokens: 1, ..Mask::causal() }, &|i| (i + 1).min(3));
}

#[test]
fn learned_sinks_join_the_denominator_only() {
    for splits in [1, 3] {
        let mut call = Call::new([1, 1, 1, 1, 48, 8, 8]);
        (call.q, call.v, call.splits) = (vec![0.0; 8], ones(48 * 8), Some(splits));
        call.sinks = Some(vec![48f32.ln()]);
        for kernel in common::kernels(gpu()) {
            call.kernel = Some(kernel);
            assert!(call.run(gpu()).0.iter().all(|&x| (x - 0.5).abs() < 1e-5));
        }
        // far above, and far beyond, every score; neither scaled nor overflowing
        for sink in [80.0, 3e38] {
            call.sinks = Some(vec![sink]);
            let (o, lse) = call.run(gpu());
            assert!(
                o.iter().all(|x| x.abs() < 1e-30) && (lse[0] - sink).abs() <= sink * 1e-6,
                "{o:?} {lse:?}"
            );
        }
    }
    let mut scaled = Call::new([1, 1, 1, 1, 1, 1, 1]);
    (scaled.q, scaled.k, scaled.v) = (vec![4.0], vec![4.0], vec![1.0]);
    (scaled.scale, scaled.sinks) = (0.125, Some(vec![2.0]));
    assert!((scaled.run(gpu()).0[0] - 0.5).abs() < 1e-6);
}

#[test]
fn long_contexts_stay_below_the_loops_that_drivers_allow() {
    for (kernel, keys) in common::kernels(gpu()).into_iter().flat_map(|k| [(k, 70_000), (k, 200_000)]) {
        let mut call = Call::new([1, 1, 1, 1, keys, 8, 8]);
        call.kernel = Some(kernel);
        // the last keys decide: whoever stops early is far off
        for j in keys - 500..keys {
            call.v[j * 8..j * 8 + 8].fill(100.0);
        }
        let [q, k, v] = call.tensors(gpu());
        let plan = call.attention(gpu()).plan_for(gpu(), &q, &k, &v).unwrap();
        assert!(plan.iterations() < LOOP_ITERATIONS, "{}", plan.explain());
        call.check(gpu());
    }
}

#[test]
fn more_workgroups_than_a_dimension_holds() {
    let mut call = Call::new([70_000, 1, 1, 1, 1, 4, 4]);
    call.mask = Mask::bidirectional();
    let (o, _) = call.run(gpu());
    assert!(o == call.v);
}

#[test]
fn splits_of_any_number_give_the_same() {
    let mut call = Call::new([1, 2, 1, 2, 200, 16, 16]);
    for splits in [1, 2, 3, 7, 9, 33] {
        call.splits = Some(splits);
        call.check_all(gpu());
    }
}

#[test]
fn results_do_not_depend_on_what_was_in_a_buffer() {
    let gpu = gpu();
    let call = Call::new([1, 1, 1, 2, 3, 6, 6]);
    let [q, k, v] = call.tensors(gpu);
    let first = call.run(gpu);
    for round in 0..20 {
        let filled = |n: usize| vec![if round % 2 == 0 { f32::NAN } else { 7.0 }; n];
        let o = stored(gpu, &filled(12), [1, 1, 2, 6], DType::F32);
        let lse = Tensor::from_slice(gpu, &filled(2), [1, 1, 2]).unwrap();
        let out = wgpu_attention::AttentionOutput { o, lse: Some(lse) };
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        call.attention(gpu).record(gpu, &mut encoder, &q, &k, &v, &out).unwrap();
        gpu.submit(encoder).unwrap();
        let again = (out.o.read::<f32>(gpu).unwrap(), out.lse.unwrap().read::<f32>(gpu).unwrap());
        assert_eq!(again, first);
    }
}

#[test]
fn odd_sixteen_bit_outputs_keep_their_neighbours() {
    let gpu = gpu();
    let call = Call::new([1, 1, 1, 3, 3, 5, 5]);
    let [q, k, v] = call.tensors(gpu);
    for dtype in [DType::F16, DType::Bf16] {
        // 15 elements from the third on, in a buffer of 24 that holds a pattern
        let pattern = stored(gpu, &[1.5; 24], [1, 1, 1, 24], dtype);
        let o = pattern.view(2, &[1, 1, 3, 5], &[15, 15, 5, 1]).unwrap();
        let out = wgpu_attention::AttentionOutput { o, lse: None };
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        call.attention(gpu).record(gpu, &mut encoder, &q, &k, &v, &out).unwrap();
        gpu.submit(encoder).unwrap();
        let all = pattern.read_f32(gpu).unwrap();
        assert!(all[..2].iter().chain(&all[17..]).all(|&x| x == 1.5), "{all:?}");
        close("odd", &all[2..17], &call.reference().0, 2e-5, 0.01);
    }
}

#[test]
fn work_beyond_one_dispatch_is_cut_and_a_lost_device_says_so() {
    let call = Call::new([1, 2, 1, 300, 300, 16, 16]);
    let whole = call.run(gpu());
    let gpu = Gpu::builder().dispatch_flops(2_000_000).build().unwrap();
    let cut = call.run(&gpu);
    let same = |a: &[f32], b: &[f32]| a.iter().zip(b).all(|(x, y)| (x - y).abs() < 1e-5);
    assert!(same(&whole.0, &cut.0) && same(&whole.1, &cut.1));
    let [q, k, v] = call.tensors(&gpu);
    gpu.device().destroy();
    let error = Attention::causal().run(&gpu, &q, &k, &v).and_then(|out| out.o.read::<f32>(&gpu));
    assert!(matches!(error, Err(Error::DeviceLost { .. } | Error::Device { .. })), "{error:?}");
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_allocated() {
    // 1 GiB of keys behind one head cannot be bound: arithmetic only
    let limits = Limits::webgpu();
    let shape = common::shape([1, 1, 1, 1, 1 << 21, 128, 128]);
    let plan = Attention::causal().plan(&shape, DType::F32, &limits).unwrap();
    assert!(plan.iterations() < LOOP_ITERATIONS);
    let shape = common::shape([1 << 20, 1 << 10, 1, 1 << 10, 1, 128, 128]);
    let error = Attention::causal().plan(&shape, DType::F32, &limits).unwrap_err();
    assert!(error.to_string().starts_with("q is "), "{error}");
    let huge = Tensor::uninitialised(gpu(), DType::F32, [1, 1, 1 << 33, 128]).unwrap_err();
    assert!(huge.to_string().contains("max_buffer_size"), "{huge}");
}

#[test]
fn merging_nothing_seen_and_something_seen() {
    let gpu = gpu();
    let partial = |o: f32, lse: f32| Partial {
        o: stored(gpu, &[o; 4], [1, 1, 1, 4], DType::F32),
        lse: Tensor::from_slice(gpu, &[lse], [1, 1, 1]).unwrap(),
    };
    let merged = |parts: &[Partial]| {
        let out = merge_partials(gpu, parts).unwrap();
        (out.o.read::<f32>(gpu).unwrap()[3], out.lse.unwrap().read::<f32>(gpu).unwrap()[0])
    };
    let empty = || partial(f32::NAN, f32::NEG_INFINITY);
    assert_eq!(merged(&[empty(), empty()]), (0.0, f32::NEG_INFINITY));
    assert_eq!(merged(&[empty(), partial(2.5, 1.0)]).0, 2.5);
    assert_eq!(merged(&[empty()]), (0.0, f32::NEG_INFINITY));
    // natural logarithms: two halves of ln 2 make ln 4
    let ln2 = std::f32::consts::LN_2;
    let (o, lse) = merged(&[partial(1.0, ln2), partial(3.0, ln2)]);
    assert!((o - 2.0).abs() < 1e-6 && (lse - 4f32.ln()).abs() < 1e-6);
    for n in 1..6 {
        let parts: Vec<_> = (0..n).map(|i| partial(i as f32, 0.0)).collect();
        let (o, lse) = merged(&parts);
        assert!((o - (n - 1) as f32 / 2.0).abs() < 1e-5 && (lse - (n as f32).ln()).abs() < 1e-5, "{n} parts");
    }
    assert!(merge_partials(gpu, &[]).unwrap_err().to_string().starts_with("parts is empty"));
}
