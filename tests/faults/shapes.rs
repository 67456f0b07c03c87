//! Shapes, tiles and heads.

use super::common::{Call, Layout, close, gpu, noise, shape, stored};
use super::{identity, near, on_each_kernel};
use wgpu_attention::{Attention, DType, Error, Limits, Mask, Tensor, shaders};

#[test]
fn t1_every_width_equals_the_definition() {
    for dim in [1, 8, 40, 64, 72, 80, 96, 112, 128, 136, 192, 256] {
        Call::new([1, 2, 2, 3, 5, dim, dim]).check_all(gpu());
    }
    Call::new([1, 2, 1, 3, 5, 7, 5]).check_all(gpu());
    let beyond = Attention::causal().plan(&shape([1, 1, 1, 1, 1, 577, 8]), DType::F32, &Limits::webgpu());
    assert!(beyond.unwrap_err().to_string().starts_with("dim_k is 577"));
}

#[test]
fn t2_lengths_off_the_boundaries_of_tiles() {
    for seq_q in [1, 2, 17, 63, 64, 65] {
        for seq_kv in [1, 31, 33, 63, 65, 127, 129] {
            Call::new([1, 1, 1, seq_q, seq_kv, 32, 32]).check_all(gpu());
        }
    }
}

#[test]
fn t3_each_key_counts_once() {
    for n in [17, 33, 64] {
        let call = Call { q: vec![0.0; 8], v: identity(n), ..Call::new([1, 1, 1, 1, n, 8, n]) };
        on_each_kernel(&call, |o, _| assert!(o.iter().all(|&p| near(p, 1.0 / n as f32, 1e-7))));
    }
}

#[test]
fn t4_query_heads_share_key_value_heads_in_groups() {
    for (heads_q, heads_kv) in [(48, 2), (40, 2), (20, 4), (12, 1), (71, 1), (6, 2)] {
        let mut call = Call::new([1, heads_q, heads_kv, 1, 5, 8, 8]);
        call.v = (0..heads_kv).flat_map(|h| vec![h as f32 + 1.0; 40]).collect();
        on_each_kernel(&call, |o, _| {
            let head = |at: usize| (at / 8 * heads_kv / heads_q) as f32 + 1.0;
            assert!(o.iter().enumerate().all(|(at, &x)| near(x, head(at), 1e-5)));
        });
    }
}

#[test]
fn t5_heads_that_cannot_be_shared_are_refused() {
    for (heads_q, heads_kv) in [(33, 2), (3, 2), (4, 0)] {
        let shape = shape([1, heads_q, heads_kv, 1, 1, 8, 8]);
        let error = Attention::causal().plan(&shape, DType::F32, &Limits::webgpu()).unwrap_err();
        assert_eq!(error, Error::Heads { heads_q, heads_kv });
    }
}

#[test]
fn t6_every_batch_entry_and_head_is_written() {
    let call = Call::new([2, 4, 4, 16, 16, 32, 32]);
    call.check_all(gpu());
    on_each_kernel(&call, |o, _| assert!(o.chunks(16 * 32).all(|head| head.iter().any(|&x| x != 0.0))));
}

#[test]
fn t7_strided_views_are_read_as_they_are() {
    let call = Call::new([2, 2, 2, 3, 3, 8, 8]);
    for layout in [Layout::Packed, Layout::PositionMajor, Layout::Wide(4), Layout::Wide(1)] {
        Call { layout, ..call.clone() }.check_all(gpu());
        Call { layout, dtypes: [DType::F16; 3], ..call.clone() }.check_all(gpu());
    }
    // q, k and v beside each other in each row
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
    assert!(all.view(0, &[2, 2, 3, 25], &[144, 72, 24, 1]).is_err(), "a view past the end");
    assert!(all.view(1, &[2, usize::MAX], &[usize::MAX, 2]).is_err(), "a view whose size overflows");
    assert!(all.narrow(3, usize::MAX, 2).is_err());
}

#[test]
fn t8_a_bias_is_broadcast_over_batch_and_heads() {
    let mut call = Call { mask: Mask::bidirectional(), ..Call::new([2, 3, 3, 2, 5, 8, 8]) };
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        for (b, h) in [(1, 1), (2, 1), (1, 3), (2, 3)] {
            call.bias = Some((noise(4, b * h * 10), [b, h, 2, 5], dtype));
            call.check_all(gpu());
        }
    }
}

#[test]
fn t8_a_bias_is_read_through_its_view() {
    let gpu = gpu();
    let call = Call { mask: Mask::bidirectional(), ..Call::new([2, 3, 3, 2, 5, 8, 8]) };
    // heads before batches, six columns of which the last five are the bias
    let wide = noise(4, 3 * 2 * 2 * 6);
    let bias = stored(gpu, &wide, [3, 2, 2, 6], DType::F32).permute(&[1, 0, 2, 3]).narrow(3, 1, 5).unwrap();
    let at = |b: usize, h: usize, i: usize, j: usize| wide[((h * 2 + b) * 2 + i) * 6 + j + 1];
    let packed = (0..60).map(|n| at(n / 30, n / 10 % 3, n / 5 % 2, n % 5)).collect();
    let want = Call { bias: Some((packed, [2, 3, 2, 5], DType::F32)), ..call.clone() }.reference();
    let [q, k, v] = call.tensors(gpu);
    for kernel in super::common::kernels(gpu) {
        let out = call.attention(gpu).kernel(kernel).bias(&bias).run(gpu, &q, &k, &v).unwrap();
        close("o", &out.o.read::<f32>(gpu).unwrap(), &want.0, 2e-5, 0.0);
    }
}

#[test]
fn v8_sequences_of_different_length_each_equal_their_own_run() {
    let gpu = gpu();
    let mut call = Call::new([2, 2, 1, 1, 9, 8, 8]);
    let lengths = [5usize, 2];
    for (b, valid) in lengths.into_iter().enumerate() {
        for data in [&mut call.k, &mut call.v] {
            data[(b * 9 + valid) * 8..(b + 1) * 9 * 8].fill(f32::NAN);
        }
    }
    let [q, k, v] = call.tensors(gpu);
    // the lengths as unsigned numbers, as a cache may hold them; nobody wants the log-sum-exp
    let lengths_u32 = Tensor::from_slice(gpu, &lengths.map(|n| n as u32), [2]).unwrap();
    for kernel in super::common::kernels(gpu) {
        let attention = call.attention(gpu).kernel(kernel).kv_len(&lengths_u32).without_lse();
        let out = attention.run(gpu, &q, &k, &v).unwrap();
        assert!(out.lse.is_none());
        let both = out.o.read::<f32>(gpu).unwrap();
        for (b, valid) in lengths.into_iter().enumerate() {
            let mut own = Call::new([1, 2, 1, 1, valid, 8, 8]);
            own.q = call.q[b * 16..(b + 1) * 16].to_vec();
            own.k = call.k[b * 72..][..valid * 8].to_vec();
            own.v = call.v[b * 72..][..valid * 8].to_vec();
            close("own run", &both[b * 16..(b + 1) * 16], &own.reference().0, 2e-5, 0.0);
        }
    }
}

#[test]
fn slices_that_do_not_hold_their_tensor_are_refused() {
    let buffer = stored(gpu(), &[0.0; 32], [1, 1, 4, 8], DType::F32).buffer().clone();
    let refused = |offset, size, field| {
        let error = Tensor::from_buffer(&buffer, offset, size, DType::F32, [1, 1, 2, 8]).unwrap_err();
        assert!(error.to_string().starts_with(field), "{error}");
    };
    refused(0, 60, "size_bytes is 60");
    refused(96, 64, "size_bytes is 64");
    refused(2, 64, "offset_bytes is 2");
    assert!(Tensor::from_buffer(&buffer, 64, 64, DType::F32, [1, 1, 2, 8]).is_ok());
}

#[test]
fn t9_cold_prefill_decode_short_steps_and_batches() {
    for (seq_q, past) in [(16, 0), (1, 16), (1, 64), (4, 20)] {
        for (batch, heads_q) in [(1, 1), (1, 4), (2, 1), (2, 4)] {
            Call::new([batch, heads_q, 1, seq_q, past + seq_q, 16, 16]).check_all(gpu());
        }
    }
}

#[test]
fn t10_every_width_has_a_plan_on_every_device() {
    for (device, limits) in shaders::invented_devices() {
        for dim in (64..=576).step_by(16) {
            for dtype in [DType::F32, DType::F16, DType::Bf16] {
                let plan = Attention::causal().plan(&shape([1, 8, 2, 40, 999, dim, dim]), dtype, &limits);
                let plan = plan.unwrap_or_else(|e| panic!("{device}, {dim}: {e}"));
                let needs_subgroups = plan.kernel() == "attention_subgroup";
                assert!(!needs_subgroups || limits.subgroup.is_some(), "{device}, {dim}: {}", plan.explain());
                assert!(plan.workgroup_bytes() <= limits.workgroup_memory);
            }
        }
    }
}
