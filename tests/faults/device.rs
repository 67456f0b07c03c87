//! Limits of devices and of WGSL.

use std::sync::OnceLock;

use super::common::{Call, close, gpu, kernels, noise, shape, stored};
use super::on_each_kernel;
use wgpu_attention::{
    Attention, AttentionOutput, DType, Error, Gpu, LOOP_ITERATIONS, Limits, Mask, Tensor, shaders,
};

/// A device without anything beyond WebGPU's defaults.
fn portable() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| Gpu::builder().portable().build().unwrap())
}

fn long(kernel: &'static str, keys: usize, dim: usize, splits: Option<u32>) {
    let mut call = Call { kernel: Some(kernel), splits, ..Call::new([1, 1, 1, 1, keys, dim, dim]) };
    // the last keys decide: whoever stops early is far off
    call.v[(keys - 500) * dim..].fill(100.0);
    let [q, k, v] = call.tensors(gpu());
    let plan = call.attention(gpu()).plan_for(gpu(), &q, &k, &v).unwrap();
    assert!(plan.iterations() < LOOP_ITERATIONS, "{}", plan.explain());
    call.judged(gpu()).unwrap_or_else(|why| panic!("{why}\n{}", plan.explain()));
}

#[test]
fn g0_decode_over_70_000_and_200_000_keys() {
    for kernel in kernels(gpu()) {
        for keys in [70_000, 200_000] {
            // as few splits as the driver's loops allow, too
            long(kernel, keys, 8, None);
            long(kernel, keys, 8, Some(1));
        }
        long(kernel, 70_000, 64, Some(1));
    }
}

#[test]
fn g0_prefill_of_eight_heads() {
    let call = Call::new([1, 8, 8, 256, 1024, 16, 16]);
    call.check_all(gpu());
}

#[test]
#[ignore = "takes long: scripts/test.sh --thorough runs it"]
fn g1_more_workgroups_than_a_dimension_holds() {
    let call = Call { mask: Mask::bidirectional(), ..Call::new([70_000, 1, 1, 1, 1, 4, 4]) };
    on_each_kernel(&call, |o, _| assert!(o == call.v));
    // with parts to merge, whose grid is as large
    let call = Call { splits: Some(2), ..Call::new([70_000, 1, 1, 1, 33, 4, 4]) };
    call.check(gpu());
}

#[test]
fn g2_what_does_not_fit_is_refused_with_its_limit() {
    let gpu = portable();
    let cache = Tensor::uninitialised(gpu, DType::F16, [1, 32, 65_536, 128]).unwrap_err().to_string();
    assert!(cache.contains("max_buffer_size allows 268435456"), "{cache}");
    // one head's keys over what a binding holds; no kernel runs
    let q = stored(gpu, &noise(1, 128), [1, 1, 1, 128], DType::F32);
    let (n, d) = (300_000, 128);
    let kv = Tensor::uninitialised(gpu, DType::F32, [1, 1, n, d]).unwrap();
    let error = Attention::causal().run(gpu, &q, &kv, &kv).unwrap_err();
    let Error::Binding { field: "k", limit, needed, allowed, .. } = error else { panic!("{error}") };
    assert_eq!((limit, needed, allowed), ("max_storage_buffer_binding_size", 153_600_000, 128 << 20));
    // two heads of half the size are bound one after the other
    let q = stored(gpu, &noise(1, 256), [1, 2, 1, 128], DType::F32);
    let kv = kv.view(0, &[1, 2, n / 2, d], &[n * d, n / 2 * d, d, 1]).unwrap();
    // all zero but the very last value
    gpu.queue().write_buffer(kv.buffer(), (n * d * 4 - 4) as u64, &(n as f32 / 2.0).to_le_bytes());
    let k = kv.narrow(2, 0, n / 2 - 1).unwrap();
    let v = kv.narrow(2, 1, n / 2 - 1).unwrap();
    let out = Attention::bidirectional().run(gpu, &q, &k, &v).unwrap();
    let o = out.o.read::<f32>(gpu).unwrap();
    assert!(o[..255].iter().all(|&x| x == 0.0) && (o[255] - 1.0).abs() < 1e-4, "{}", o[255]);
}

#[test]
fn g3_sizes_that_overflow_are_refused() {
    let gpu = portable();
    for axes in [vec![65_536, 65_537], vec![46_341, 46_341], vec![70_000, 16, 2, 8, 128]] {
        let error = Tensor::uninitialised(gpu, DType::F32, axes).unwrap_err().to_string();
        assert!(error.contains("max_buffer_size"), "{error}");
    }
    for axes in [vec![usize::MAX, 2], vec![1 << 40, 1 << 40], vec![1 << 62, 4]] {
        let error = Tensor::uninitialised(gpu, DType::F32, axes.clone()).unwrap_err().to_string();
        assert!(error.starts_with("shape is "), "{error}");
        assert!(Tensor::from_slice(gpu, &[0.0_f32], axes).is_err());
    }
    let limits = Limits::webgpu();
    let error =
        Attention::causal().plan(&shape([1 << 20, 1 << 10, 1, 1 << 10, 1, 128, 128]), DType::F32, &limits);
    assert!(error.unwrap_err().to_string().starts_with("q is "));
    let plan =
        Attention::causal().plan(&shape([1, 1, 1, 1, 1 << 21, 128, 128]), DType::F32, &limits).unwrap();
    assert!(plan.iterations() < LOOP_ITERATIONS);
}

#[test]
fn g4_any_number_of_splits_on_subgroups_and_without() {
    let call = Call::new([1, 2, 1, 1, 999, 16, 16]);
    let whole = Call { kernel: Some("attention_tiled"), ..call.clone() }.run(gpu());
    for splits in [2, 7, 9, 33] {
        on_each_kernel(&Call { splits: Some(splits), ..call.clone() }, |o, lse| {
            let wide = |data: &[f32]| data.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            close("o", o, &wide(&whole.0), 1e-6, 0.0);
            close("lse", lse, &wide(&whole.1), 1e-6, 0.0);
        });
    }
}

#[test]
fn g5_nothing_relies_on_a_subgroup_size_that_varies() {
    // which adapters count as fixed is tested where it is decided: src/gpu/builder.rs
    let limits = Limits { subgroup: None, f16: true, ..Limits::webgpu() };
    let plan = Attention::causal().plan(&shape([1, 8, 8, 64, 64, 64, 64]), DType::F16, &limits).unwrap();
    assert_eq!(plan.kernel(), "attention_tiled");
    let gpu = portable();
    assert_eq!((gpu.limits().subgroup, gpu.limits().f16), (None, false));
    let [q, k, v] = Call::new([1, 1, 1, 1, 4, 8, 8]).tensors(gpu);
    let error = Attention::causal().kernel("attention_subgroup").run(gpu, &q, &k, &v).unwrap_err();
    assert!(error.to_string().contains("subgroup operations"), "{error}");
}

#[test]
fn g6_half_floats_without_the_feature() {
    let gpu = portable();
    for dtype in [DType::F16, DType::Bf16] {
        for dims in [[16, 16], [5, 3]] {
            let call = Call { dtypes: [dtype; 3], ..Call::new([1, 2, 1, 3, 40, dims[0], dims[1]]) };
            call.check(gpu);
        }
    }
}

#[test]
fn g7_results_do_not_depend_on_what_was_in_a_buffer() {
    for dim in [5, 6, 7, 8] {
        let call = Call::new([1, 1, 1, 2, 3, dim, dim]);
        call.check_all(gpu());
        for kernel in kernels(gpu()) {
            let call = Call { kernel: Some(kernel), ..call.clone() };
            let first = call.run(gpu());
            for _ in 0..20 {
                // scratch and freed memory hold something else each time
                drop(stored(gpu(), &[f32::NAN; 64], [1, 1, 1, 64], DType::F32));
                assert_eq!(call.run(gpu()), first);
            }
            assert_eq!(call.run_plainly(gpu()), first);
        }
    }
}

#[test]
fn g8_one_row_beyond_a_tile() {
    let call = Call::new([1, 1, 1, 1, 1, 16, 16]);
    for kernel in kernels(gpu()) {
        for rows in [5, 9, 17, 33, 65] {
            let call = Call { kernel: Some(kernel), ..Call::new([1, 1, 1, rows, rows, 16, 16]) };
            call.check(gpu());
        }
        Call { kernel: Some(kernel), ..call.clone() }.check(gpu());
    }
}

#[test]
fn g10_odd_sixteen_bit_outputs_keep_their_neighbours() {
    let gpu = gpu();
    let call = Call::new([1, 1, 1, 3, 3, 5, 5]);
    let [q, k, v] = call.tensors(gpu);
    for dtype in [DType::F16, DType::Bf16] {
        // 15 elements (30 bytes) from an odd element on, in a buffer that holds a pattern
        for start in [1, 2, 3] {
            let pattern = stored(gpu, &[1.5; 24], [1, 1, 1, 24], dtype);
            let o = pattern.view(start, &[1, 1, 3, 5], &[15, 15, 5, 1]).unwrap();
            let out = AttentionOutput { o, lse: None };
            let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            call.attention(gpu).record(gpu, &mut encoder, &q, &k, &v, &out).unwrap();
            gpu.submit(encoder).unwrap();
            let all = pattern.read_f32(gpu).unwrap();
            let (before, rest) = all.split_at(start);
            assert!(before.iter().chain(&rest[15..]).all(|&x| x == 1.5), "{all:?}");
            close("odd", &rest[..15], &call.reference().0, 2e-5, 2f64.powi(-8));
        }
    }
}

#[test]
fn g11_wide_heads_stay_within_the_default_limits() {
    let limits = Limits::webgpu();
    for dim in (64..=576).step_by(8) {
        for dtype in [DType::F32, DType::F16] {
            for seq_q in [1, 100] {
                let plan = Attention::causal().plan(&shape([1, 2, 1, seq_q, 999, dim, dim]), dtype, &limits);
                let plan = plan.unwrap();
                assert!(plan.workgroup_bytes() <= limits.workgroup_memory, "{}", plan.explain());
            }
        }
    }
    // a device that allows less is told what is missing
    let small = Limits { workgroup_memory: 4096, ..limits.clone() };
    let error = Attention::causal().plan(&shape([1, 1, 1, 9, 9, 64, 64]), DType::F32, &small).unwrap_err();
    assert!(error.to_string().contains("bytes of workgroup memory"), "{error}");
    let narrow = Limits { invocations: 32, ..limits };
    let error = Attention::causal().plan(&shape([1, 1, 1, 9, 9, 64, 64]), DType::F32, &narrow).unwrap_err();
    assert!(error.to_string().contains("invocations"), "{error}");
}

#[test]
fn g12_what_the_device_refuses_arrives_in_its_own_words() {
    let call = Call::new([1, 1, 1, 2, 3, 8, 8]);
    let [q, k, v] = call.tensors(gpu());
    // a kernel that does not compile, with the place in the file it stems from
    let broken = gpu().with_edit("yes = k <= q;", "yes = nonsense;");
    let error = Attention::causal().run(&broken, &q, &k, &v).unwrap_err().to_string();
    assert!(error.contains("nonsense") && error.contains("shaders/common/mask.wgsl:"), "{error}");
    // a buffer that is gone
    v.buffer().destroy();
    let error = Attention::causal().run(gpu(), &q, &k, &v).and_then(|out| out.o.read::<f32>(gpu()));
    assert!(matches!(error, Err(Error::Device { .. })), "{error:?}");
    // and the device goes on
    call.check(gpu());
}

#[test]
fn g13_work_beyond_one_dispatch_is_cut_and_a_lost_device_says_so() {
    let call = Call::new([1, 2, 1, 300, 300, 16, 16]);
    let whole = call.run(gpu());
    let budget = 1_000_000;
    let gpu = Gpu::builder().dispatch_flops(budget).build().unwrap();
    let [q, k, v] = call.tensors(&gpu);
    let plan = call.attention(&gpu).plan_for(&gpu, &q, &k, &v).unwrap();
    assert!(plan.flops() > 3 * budget);
    for splits in [Some(1), Some(5), None] {
        let cut = Call { splits, ..call.clone() };
        for (o, lse) in [cut.run(&gpu), cut.run_plainly(&gpu)] {
            let wide = |data: &[f32]| data.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
            close("o", &o, &wide(&whole.0), 1e-5, 0.0);
            close("lse", &lse, &wide(&whole.1), 1e-5, 0.0);
        }
    }
    gpu.device().destroy();
    for _ in 0..2 {
        let error = Attention::causal().run(&gpu, &q, &k, &v).and_then(|out| out.o.read::<f32>(&gpu));
        assert!(matches!(error, Err(Error::DeviceLost { .. } | Error::Device { .. })), "{error:?}");
    }
    assert!(q.read::<f32>(&gpu).is_err());
}

#[test]
fn threads_share_a_device() {
    // cut into many submissions, with partial results between them
    let gpu = Gpu::builder().dispatch_flops(100_000).build().unwrap();
    let call = Call { splits: Some(4), ..Call::new([1, 2, 1, 40, 200, 16, 16]) };
    std::thread::scope(|threads| {
        for seed in 0..4 {
            let (gpu, call) = (&gpu, Call { q: noise(40 + seed, call.q.len()), ..call.clone() });
            threads.spawn(move || {
                let (want, _) = call.reference();
                for _ in 0..5 {
                    close("o", &call.run_plainly(gpu).0, &want, 2e-5, 0.0);
                }
            });
        }
    });
}

#[test]
fn g9_kernels_know_no_infinity() {
    for variant in shaders::variants().unwrap() {
        for (n, line) in variant.text.lines().enumerate() {
            let code = line.split("//").next().unwrap_or_default();
            for word in ["inf", "isNan", "1e39", "0x7f800000", "0.0 / 0.0"] {
                assert!(!code.contains(word), "{} line {n}: {line}", variant.label);
            }
        }
    }
}
