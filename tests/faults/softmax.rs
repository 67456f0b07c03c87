//! Masks and softmax.

use super::common::{Call, gpu, kernels};
use super::{identity, near, on_each_kernel};
use wgpu_attention::{Attention, DType, Mask, Tensor};

#[test]
fn s1_a_wholly_masked_first_tile_is_harmless() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 1, 128, 8, 8]) };
    for (dtype, hidden) in [(DType::F32, f32::NEG_INFINITY), (DType::F32, f32::MIN), (DType::Bf16, f32::MIN)]
    {
        let bias = (0..128).map(|j| if j < 64 { hidden } else { 0.0 }).collect();
        call.bias = Some((bias, [1, 1, 1, 128], dtype));
        for splits in [1, 4] {
            Call { splits: Some(splits), ..call.clone() }.check_all(gpu());
        }
    }
}

#[test]
fn s2_a_row_that_sees_nothing_is_zero_and_minus_infinity() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 2, 4, 8, 8]) };
    call.v = (0..32).map(|i| 1.0 + (i / 8) as f32).collect();
    let hidden = (0..8).map(|i| if i < 4 { f32::NEG_INFINITY } else { 0.0 }).collect();
    call.bias = Some((hidden, [1, 1, 2, 4], DType::F32));
    call.check_all(gpu());
    on_each_kernel(&call, |o, lse| {
        assert!(o[..8].iter().all(|&x| x == 0.0) && lse[0] == f32::NEG_INFINITY && lse[1].is_finite());
    });
    // by position, too
    let mut call = Call::new([1, 2, 1, 3, 4, 8, 8]);
    call.mask.q_start = Some(-2);
    call.check_all(gpu());
    on_each_kernel(&call, |o, lse| {
        assert!(o[..16].iter().all(|&x| x == 0.0) && lse[..2] == [f32::NEG_INFINITY; 2]);
    });
}

#[test]
fn s3_a_sixteen_bit_mask_of_large_numbers_hides() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 1, 4, 8, 4]) };
    call.v = identity(4);
    // -1e9 becomes minus infinity as it is stored
    for hidden in [-1e9, f32::NEG_INFINITY, -65504.0] {
        call.bias = Some((vec![0.0, hidden, 0.0, hidden], [1, 1, 1, 4], DType::F16));
        call.check_all(gpu());
        on_each_kernel(&call, |o, _| assert!(o[1] == 0.0 && o[3] == 0.0 && o[0] > 0.0));
    }
}

#[test]
fn s4_causal_is_aligned_at_the_bottom_right() {
    let call = Call { q: vec![0.0; 16], v: identity(5), ..Call::new([1, 1, 1, 2, 5, 8, 5]) };
    call.check_all(gpu());
    on_each_kernel(&call, |o, _| {
        let want = [0.25, 0.25, 0.25, 0.25, 0.0, 0.2, 0.2, 0.2, 0.2, 0.2];
        assert!(o.iter().zip(want).all(|(&x, w)| near(x, w, 1e-6)), "{o:?}");
    });
}

#[test]
fn s5_an_empty_cache_gives_zero() {
    for mask in [Mask::causal(), Mask::bidirectional()] {
        let call = Call { mask, ..Call::new([1, 1, 1, 1, 0, 8, 8]) };
        on_each_kernel(&call, |o, lse| assert_eq!((o, lse), (&[0.0; 8][..], &[f32::NEG_INFINITY][..])));
        on_each_kernel(&Call { sinks: Some(vec![2.0]), ..call }, |o, lse| {
            assert!(o.iter().all(|&x| x == 0.0) && near(lse[0], 2.0, 1e-6));
        });
    }
    for shape in [[0, 2, 1, 3, 4, 8, 8], [1, 2, 1, 0, 4, 8, 8]] {
        assert_eq!(Call::new(shape).run_plainly(gpu()), (vec![], vec![]));
    }
}

#[test]
fn s6_slots_past_the_valid_length_may_hold_nan() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([2, 2, 1, 2, 40, 16, 16]) };
    call.kv_len = Some(vec![5, 21]);
    for (b, valid) in [5, 21].into_iter().enumerate() {
        for data in [&mut call.k, &mut call.v] {
            data[(b * 40 + valid) * 16..(b + 1) * 40 * 16].fill(f32::NAN);
        }
    }
    call.check_all(gpu());
    call.splits = Some(2);
    call.check_all(gpu());
    // no key is valid, even where a length is nonsense; one beyond the keys means all of them
    call.kv_len = Some(vec![0, -3]);
    on_each_kernel(&call, |o, lse| {
        assert!(o.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
    });
    let call = Call { kv_len: Some(vec![4000, 7]), ..Call::new([2, 2, 1, 2, 40, 16, 16]) };
    call.check_all(gpu());
}

#[test]
fn s7_sixteen_bit_scores_do_not_overflow() {
    let mut call = Call::new([1, 1, 1, 1, 3, 64, 8]);
    call.q = vec![40.0; 64];
    call.k = [40.0, 39.0, 0.0].iter().flat_map(|&x| vec![x; 64]).collect();
    (call.scale, call.dtypes) = (0.125, [DType::F16; 3]);
    call.check_all(gpu());
    let first: Vec<f32> = call.v[..8].iter().map(|&x| half::f16::from_f32(x).to_f32()).collect();
    on_each_kernel(&call, |o, _| assert_eq!(o, first));
}

#[test]
fn s8_sixteen_bit_sums_do_not_overflow() {
    let mut call = Call::new([1, 1, 1, 1, 4096, 8, 8]);
    (call.q, call.v, call.dtypes) = (vec![0.0; 8], vec![32.0; 4096 * 8], [DType::F16; 3]);
    for splits in [None, Some(1)] {
        let call = Call { splits, ..call.clone() };
        on_each_kernel(&call, |o, _| assert!(o.iter().all(|&x| x == 32.0)));
    }
}

#[test]
fn s9_the_cap_is_finite_and_monotone() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 1, 3, 1, 3]) };
    (call.q, call.k, call.v) = (vec![100.0], vec![100.0, -100.0, 0.0], identity(3));
    (call.scale, call.softcap) = (1.0, Some(50.0));
    call.check_all(gpu());
    on_each_kernel(&call, |o, _| assert!(near(o[0], 1.0, 1e-6)));
    // score over cap from -400 to 400
    let mut sweep = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 3201, 1, 1, 1]) };
    sweep.q = (-1600..=1600).map(|i| 0.25 * i as f32).collect();
    (sweep.k, sweep.scale, sweep.softcap) = (vec![1.0], 1.0, Some(1.0));
    on_each_kernel(&sweep, |_, lse| {
        assert!(lse.iter().all(|s| (-1.0..=1.0).contains(s)) && lse.windows(2).all(|w| w[0] <= w[1] + 1e-6));
        assert!(lse.iter().rev().take(1580).all(|&s| s > 0.999) && lse[1600] == 0.0);
    });
    sweep.check_all(gpu());
}

#[test]
fn s10_the_cap_comes_before_the_mask() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([1, 1, 1, 1, 3, 1, 3]) };
    (call.q, call.k, call.v) = (vec![1.0], vec![10.0, -10.0, 3.0], identity(3));
    (call.scale, call.softcap) = (1.0, Some(5.0));
    call.bias = Some((vec![0.0, 0.0, f32::NEG_INFINITY], [1, 1, 1, 3], DType::F32));
    on_each_kernel(&call, |o, _| {
        assert!(near(o[0], 0.999_935, 1e-6) && near(o[1], 6.505e-5, 1e-8) && o[2] == 0.0, "{o:?}");
    });
}

#[test]
fn s11_options_are_used_on_every_path() {
    // decode, tiled prefill, split keys
    for (seq_q, splits) in [(1, 1), (40, 1), (4, 3)] {
        let call = Call { scale: 2.0, splits: Some(splits), ..Call::new([1, 2, 1, seq_q, 40, 8, 8]) };
        let results = [None, Some(5.0), Some(0.5)].map(|softcap| {
            let call = Call { softcap, ..call.clone() };
            call.check_all(gpu());
            call.run(gpu()).0
        });
        assert!(results[0] != results[1] && results[1] != results[2]);
    }
}

#[test]
fn s12_nonsense_is_refused_by_name() {
    let [q, k, v] = Call::new([1, 2, 1, 4, 40, 8, 8]).tensors(gpu());
    let refused = |a: Attention| a.run(gpu(), &q, &k, &v).unwrap_err().to_string();
    for kernel in kernels(gpu()) {
        for cap in [0.0, -5.0, f32::NAN, f32::INFINITY] {
            let message = refused(Attention::causal().softcap(cap).kernel(kernel));
            assert!(message.starts_with("softcap is "), "{message}");
        }
    }
    assert!(refused(Attention::causal().scale(f32::NAN)).starts_with("scale is NaN"));
    assert!(refused(Attention::causal().window(0)).starts_with("window is 0"));
    assert!(refused(Attention::causal().chunk(0)).starts_with("chunk is 0"));
    assert!(refused(Attention::causal().sink_tokens(3)).starts_with("sink_tokens = 3"));
    assert!(refused(Attention::causal().splits(0)).starts_with("splits is 0"));
    assert!(refused(Attention::causal().q_start(1 << 40)).starts_with("q_start is "));
    assert!(refused(Attention::causal().kernel("attention_fast")).contains("attention_tiled"));
    let three = Tensor::from_slice(gpu(), &[0.0_f32; 3], [3]).unwrap();
    assert!(refused(Attention::causal().sinks(&three)).starts_with("sinks has shape [3]"));
    assert!(refused(Attention::causal().alibi(&three)).starts_with("alibi has shape [3]"));
    assert!(refused(Attention::causal().kv_len(&three)).starts_with("kv_len is stored as f32"));
    assert!(refused(Attention::causal().bias(&three)).starts_with("bias has shape [3]"));
}
