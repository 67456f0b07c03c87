//! Wrong on purpose: each planted fault must be caught by the comparison, and at the bound, that judges kernels.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::collections::BTreeSet;
use std::path::PathBuf;

use common::{Call, Layout, noise};
use wgpu_attention::cases::{self, Case, HostData, Outcome};
use wgpu_attention::reference::Rounding;
use wgpu_attention::shaders;
use wgpu_attention::{DType, Gpu, Mask};

fn case(name: &str) -> Case {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/ops").join(name);
    Case::load(&path.with_extension("safetensors")).unwrap()
}

fn right(gpu: &Gpu, case: &Case, kernel: &str) -> bool {
    let outcome = cases::run(gpu, case, DType::F32, Some(kernel)).unwrap();
    cases::judge(case, &outcome, DType::F32).unwrap().passed
}

/// Fault, text, replacement, the golden case that shows it.
const GOLDEN: [(&str, &str, &str, &str); 19] = [
    ("causal excludes the query's own key", "yes = k <= q;", "yes = k < q;", "attention_mha_causal"),
    ("window counts one key more", "k > q - params.window", "k >= q - params.window", "attention_window_16"),
    ("window starts one key late", "lo - params.window + 1", "lo - params.window + 2", "attention_window_16"),
    ("the far side of a window is inclusive", "k < q + params.window", "k <= q + params.window", BOTH_SIDES),
    ("the far side of a window ends early", "hi + params.window)", "hi + params.window - 1)", BOTH_SIDES),
    ("sink tokens are forgotten", "|| k < params.sink_tokens", "", "attention_window_and_sink_tokens"),
    (
        "a chunk loses its first key",
        "first = max(first, floor_block(q_lo, params.chunk) * params.chunk - params.k_start);",
        "first = max(first, floor_block(q_lo, params.chunk) * params.chunk - params.k_start + 1);",
        "attention_chunk_32",
    ),
    (
        "valid lengths are ignored",
        "limit = min(limit, u32(max(bitcast<i32>(table[params.kv_len_at + b]), 0)));",
        "",
        "attention_kv_len_ragged",
    ),
    (
        "the queries' offset is ignored",
        "return params.q_start;",
        "return 0;",
        "attention_more_queries_than_keys",
    ),
    ("scale is dropped", "* params.scale", "* LOG2E", "attention_mha_causal"),
    (
        "heads are tiled, not grouped",
        "head_kv * params.groups + row % params.groups",
        "head_kv + row % params.groups * params.heads",
        "attention_gqa_12_to_4",
    ),
    ("a key tile is skipped", "t < t_end; t++", "t + 1u < t_end; t++", "attention_mha_bidirectional"),
    (
        "a tile on the diagonal counts as full",
        "k_hi <= span.q_lo",
        "k_hi <= span.q_hi",
        "attention_mha_causal",
    ),
    (
        "late rows of a tile lose keys",
        "i32(query_of(row_last))",
        "i32(query_of(row_first))",
        "attention_mha_causal",
    ),
    ("the running sum is not rescaled", "l[r] *=", "l[r] += 0.0 *", "attention_mha_causal"),
    ("the output is not rescaled", "+ c] *=", "+ c] += 0.0 *", "attention_mha_causal"),
    ("the output is not normalised", "total.x / total.z", "total.x", "attention_mha_causal"),
    ("sinks are left out", "l * shrink + exp_down(sink - top)", "l * shrink", "attention_learned_sinks_full"),
    (
        "log-sum-exp in base 2",
        "top + LN2 * log2(max(l, 1e-37))",
        "top + log2(max(l, 1e-37))",
        "attention_mha_causal",
    ),
];
const BOTH_SIDES: &str = "attention_window_bidirectional";

/// Fault, text, replacement, the call that shows it: options that no golden case has.
fn calls(kernel: &str) -> Vec<(&'static str, &'static str, &'static str, Call)> {
    let call = Call { mask: Mask::bidirectional(), ..Call::new([2, 2, 2, 3, 70, 8, 8]) };
    vec![
        (
            "the cap is dropped",
            "s = params.softcap * tanh_safe(s / params.softcap);",
            "",
            Call { scale: 2.0, softcap: Some(1.0), ..call.clone() },
        ),
        ("slopes are ignored", "f32(distance)", "0.0", Call { alibi: Some(vec![0.1, 0.3]), ..call.clone() }),
        (
            "a bias has one head",
            "head * params.bias_head",
            "0u",
            Call { bias: Some((noise(5, 2 * 3 * 70), [1, 2, 3, 70], DType::F32)), ..call.clone() },
        ),
        (
            "positions of batch entries are ignored",
            "bitcast<i32>(table[params.q_starts_at + b])",
            "params.q_start",
            Call { mask: Mask::causal(), q_starts: Some(vec![20, 40]), ..call.clone() },
        ),
        ("keys past the end are counted", "key < key_end && visible", "visible", call.clone()),
        (
            "neighbouring splits overlap",
            "(split + 1u) * params.split_tiles",
            "(split + 2u) * params.split_tiles",
            Call { splits: Some(2), ..call.clone() },
        ),
        (
            "parts are merged without weights",
            "value += weight * a_load4(",
            "value += a_load4(",
            Call { splits: Some(2), ..call.clone() },
        ),
        (
            "a sink joins every split",
            "sum = exp_down(sink - top);",
            "sum = 2.0 * exp_down(sink - top);",
            Call { splits: Some(2), sinks: Some(vec![1.0, 2.0]), ..call.clone() },
        ),
        (
            "16-bit results are cut off, not rounded",
            "(bits + 0x7fffu + ((bits >> 16u) & 1u))",
            "bits",
            Call { dtypes: [DType::F32, DType::F32, DType::Bf16], ..call.clone() },
        ),
        (
            "columns past the width are read",
            if kernel == "attention_tiled" {
                "key) + at, min(4u, DIM_K - at)"
            } else {
                "+ d, min(4u, DIM_K - d)"
            },
            if kernel == "attention_tiled" { "key) + at, 4u" } else { "+ d, 4u" },
            Call { layout: Layout::Wide(3), ..Call::new([1, 1, 1, 3, 20, 6, 6]) },
        ),
    ]
}

/// Whether a text stands in a file that kernels paste.
fn is_shared(text: &str) -> bool {
    let common = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/common");
    let files = std::fs::read_dir(common).unwrap();
    files.into_iter().any(|f| std::fs::read_to_string(f.unwrap().path()).unwrap().contains(text))
}

#[test]
fn faults_are_caught_by_golden_cases() {
    let gpu = common::gpu();
    let mut sound = BTreeSet::new();
    let kernels = common::kernels(gpu);
    for (ix, &kernel) in kernels.iter().enumerate() {
        for (at, (fault, from, to, name)) in GOLDEN.into_iter().enumerate() {
            // text that all kernels share is tried on one of them, in turn
            if is_shared(from) && at % kernels.len() != ix {
                continue;
            }
            let case = case(name);
            if sound.insert((kernel, name)) {
                assert!(right(gpu, &case, kernel), "{name} is wrong on {kernel} without a fault");
            }
            assert!(!right(&gpu.with_edit(from, to), &case, kernel), "not caught on {kernel}: {fault}");
        }
    }
}

#[test]
fn faults_are_caught_by_calls() {
    let gpu = common::gpu();
    for kernel in common::kernels(gpu) {
        for (fault, from, to, call) in calls(kernel) {
            let call = Call { kernel: Some(kernel), ..call };
            call.check(gpu);
            assert!(call.judged(&gpu.with_edit(from, to)).is_err(), "not caught on {kernel}: {fault}");
        }
    }
}

/// An edit that no longer matches the text would plant nothing.
#[test]
fn every_fault_still_finds_its_text() {
    for kernel in ["attention_subgroup", "attention_tiled"] {
        for (fault, from, _, _) in GOLDEN {
            assert_eq!(shaders::occurrences(kernel, from).unwrap(), 1, "{kernel}: {fault}: {from:?}");
        }
    }
}

/// The comparison itself: what it must let pass, and what it must not.
#[test]
fn the_comparison_tells_right_from_wrong() {
    let case = case("attention_more_queries_than_keys");
    let exact = case.reference(DType::F32, Rounding::None).unwrap();
    let passes = |tensor: &str, at: usize, change: &dyn Fn(f32) -> f32| {
        let mut tensors = exact.clone();
        let HostData::F32(data) = &mut tensors.get_mut(tensor).unwrap().data else { panic!("floats") };
        data[at] = change(data[at]);
        let outcome = Outcome { kernel: String::new(), tensors };
        let verdict = cases::judge(&case, &outcome, DType::F32).unwrap();
        assert_eq!(verdict.passed, verdict.wrong == 0 && verdict.rel_l2 <= 1e-5);
        verdict.passed
    };
    // rows 0 to 4 see no key
    let (blind, seen) = (3, 8 * 32);
    assert!(passes("o", seen, &|x| x) && passes("o", seen, &|x| x + 1e-7));
    assert!(!passes("o", seen, &|x| x + 1e-3) && !passes("o", seen, &|_| f32::NAN));
    assert!(!passes("o", blind, &|_| 1e-20) && !passes("o", blind, &|_| f32::NAN));
    assert!(!passes("lse", 0, &|_| -1e30) && !passes("lse", 0, &|_| f32::INFINITY));
    assert!(!passes("lse", 8, &|_| f32::NEG_INFINITY));
    // nothing to compare with, and nothing to compare
    let outcome = Outcome { kernel: String::new(), tensors: exact.clone() };
    let bare = Case { expected: std::collections::BTreeMap::new(), ..case.clone() };
    assert!(cases::judge(&bare, &outcome, DType::F32).is_err());
    let nothing = Outcome { kernel: String::new(), tensors: std::collections::BTreeMap::new() };
    assert!(cases::judge(&case, &nothing, DType::F32).is_err());
}
