//! Wrong on purpose: each planted fault must be caught by the comparison, and at the bound, that judges kernels.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::path::PathBuf;

use wgpu_attention::cases::{self, Case};
use wgpu_attention::shaders;
use wgpu_attention::{Attention, DType, Gpu, Tensor};

fn case(name: &str) -> Case {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ops").join(name);
    Case::load(&path.with_extension("safetensors")).unwrap()
}

fn right(gpu: &Gpu, case: &Case, kernel: &str) -> bool {
    let outcome = cases::run(gpu, case, DType::F32, Some(kernel)).unwrap();
    cases::judge(case, &outcome, DType::F32).unwrap().passed
}

/// Fault, text, replacement, the case that shows it.
const FAULTS: [(&str, &str, &str, &str); 14] = [
    ("causal excludes the query's own key", "yes = k <= q;", "yes = k < q;", "attention_mha_causal"),
    ("window counts one key more", "k > q - params.window", "k >= q - params.window", "attention_window_16"),
    ("window starts one key late", "lo - params.window + 1", "lo - params.window + 2", "attention_window_16"),
    ("sink tokens are forgotten", "|| k < params.sink_tokens", "", "attention_window_and_sink_tokens"),
    (
        "a chunk loses its first key",
        "* params.chunk - params.k_start);",
        "* params.chunk - params.k_start + 1);",
        "attention_chunk_32",
    ),
    (
        "valid lengths are ignored",
        "limit = min(limit, table[params.kv_len_at + b]);",
        "",
        "attention_kv_len_ragged",
    ),
    ("scale is dropped", "* params.scale", "* LOG2E", "attention_mha_causal"),
    (
        "heads are tiled, not grouped",
        "head_kv * params.groups + row % params.groups",
        "head_kv + row % params.groups * params.heads",
        "attention_gqa_12_to_4",
    ),
    ("a key tile is skipped", "t < t_end; t++", "t + 1u < t_end; t++", "attention_mha_bidirectional"),
    ("the running sum is not rescaled", "l[r] *=", "l[r] += 0.0 *", "attention_mha_causal"),
    ("the output is not rescaled", "+ c] *=", "+ c] += 0.0 *", "attention_mha_causal"),
    ("sinks are left out", "l * shrink + exp_down(sink - top)", "l * shrink", "attention_learned_sinks_full"),
    ("the cap is dropped", "s = params.softcap * tanh_safe(s / params.softcap);", "", "attention_softcap_50"),
    (
        "lse is in base 2",
        "top + LN2 * log2(max(l, 1e-37))",
        "top + log2(max(l, 1e-37))",
        "attention_mha_causal",
    ),
];

#[test]
fn planted_faults_are_caught() {
    let gpu = common::gpu();
    let kernel = common::kernels(gpu)[0];
    for (fault, from, to, name) in FAULTS {
        let case = case(name);
        assert!(right(gpu, &case, kernel), "{name} is wrong without a fault");
        assert!(!right(&gpu.with_edit(from, to), &case, kernel), "not caught: {fault}");
    }
}

/// An edit that no longer matches the text would plant nothing.
#[test]
fn every_fault_still_finds_its_text() {
    for kernel in ["attention_subgroup", "attention_tiled"] {
        for (fault, from, _, _) in FAULTS {
            assert!(shaders::is_in(kernel, from).unwrap(), "{kernel}: {fault}: {from:?} is gone");
        }
    }
}

/// A sink that joins every split, instead of the merge alone, is counted several times.
#[test]
fn a_sink_counted_per_split_is_caught() {
    let gpu = common::gpu();
    let (q, kv) = (common::noise(1, 8), common::noise(2, 96 * 8));
    let tensor = |data: &[f32], n| Tensor::from_slice(gpu, data, [1, 1, n, 8]).unwrap();
    let sinks = Tensor::from_slice(gpu, &[1.0_f32], [1]).unwrap();
    let attention = Attention::causal().sinks(&sinks);
    let run = |gpu: &Gpu, splits| {
        let out =
            attention.clone().splits(splits).run(gpu, &tensor(&q, 1), &tensor(&kv, 96), &tensor(&kv, 96));
        out.unwrap().o.read::<f32>(gpu).unwrap()
    };
    let whole = run(gpu, 1);
    let differs = |other: &[f32]| whole.iter().zip(other).any(|(a, b)| (a - b).abs() > 1e-5);
    assert!(!differs(&run(gpu, 3)));
    let merge = "sum = exp_down(sink - top);";
    assert!(differs(&run(&gpu.with_edit(merge, "sum = 3.0 * exp_down(sink - top);"), 3)));
}
