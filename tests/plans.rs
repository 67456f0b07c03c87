//! Which kernel and tuning each problem gets on each kind of device: pinned, since nothing but the problem and
//! the limits may decide it.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write;

use wgpu_attention::{Attention, AttentionShape, DType, LOOP_ITERATIONS, Limits, shaders};

fn problems() -> Vec<(&'static str, Attention, AttentionShape, DType)> {
    let shape = |n: [usize; 7]| {
        let [batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v] = n;
        AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v }
    };
    vec![
        ("prefill", Attention::causal(), shape([1, 8, 8, 1024, 1024, 128, 128]), DType::F32),
        ("prefill grouped f16", Attention::causal(), shape([1, 32, 8, 512, 512, 64, 64]), DType::F16),
        ("decode", Attention::causal(), shape([1, 32, 8, 1, 4096, 128, 128]), DType::F32),
        ("decode one head", Attention::causal(), shape([1, 1, 1, 1, 200_000, 64, 64]), DType::Bf16),
        ("window", Attention::causal().window(128), shape([1, 32, 8, 1, 8192, 128, 128]), DType::F32),
        ("latent", Attention::causal(), shape([1, 16, 1, 1, 4096, 576, 512]), DType::F16),
        ("odd", Attention::causal(), shape([2, 3, 3, 9, 33, 5, 7]), DType::F32),
    ]
}

#[test]
fn plans_are_pinned() {
    let mut text = String::new();
    for (device, limits) in shaders::invented_devices() {
        for (name, attention, shape, dtype) in problems() {
            let plan = attention.plan(&shape, dtype, &limits).unwrap();
            assert!(plan.iterations() < LOOP_ITERATIONS && plan.workgroup_bytes() <= limits.workgroup_memory);
            writeln!(text, "{device}: {name}\n{}\n", plan.explain()).unwrap();
        }
    }
    insta::assert_snapshot!("plans", text);
}

#[test]
fn every_width_has_a_plan_within_the_default_limits() {
    for dim in (1..=576).step_by(23).chain([64, 80, 96, 112, 128, 192, 256, 512, 576]) {
        for dtype in [DType::F32, DType::F16] {
            for rows in [1, 5, 100] {
                let shape = AttentionShape {
                    batch: 1,
                    heads_q: 2,
                    heads_kv: 1,
                    seq_q: rows,
                    seq_kv: 1 << 20,
                    dim_k: dim,
                    dim_v: dim,
                };
                for (device, limits) in shaders::invented_devices() {
                    let plan = Attention::causal().plan(&shape, dtype, &limits).unwrap();
                    assert!(plan.iterations() < LOOP_ITERATIONS, "{device}, {dim}: {}", plan.explain());
                    assert!(plan.workgroup_bytes() <= 16 << 10, "{device}, {dim}: {}", plan.explain());
                }
            }
        }
    }
}

#[test]
fn a_device_that_fits_no_kernel_is_told_why() {
    let limits = Limits { workgroup_memory: 4096, ..Limits::webgpu() };
    let (_, attention, shape, dtype) = problems().swap_remove(0);
    let message = attention.plan(&shape, dtype, &limits).unwrap_err().to_string();
    assert!(message.contains("attention_subgroup") && message.contains("workgroup_memory("), "{message}");
}
