//! Wrong on purpose: each fault must be caught by the comparison that passes the kernels.

use wgpu_attention::shaders;

use crate::call::{Call, Kind};
use crate::common::gpu;

/// A way, a kernel of it, its text and the fault.
const FAULTS: &[(&str, &str, &str, &str)] = &[
    // decay after the write
    (
        "delta_step",
        "delta_step",
        "u = about.x * about.z * (value - about.x * predicted)",
        "u = about.x * about.z * (value - about.x * predicted / about.w)",
    ),
    ("delta_step_subgroup", "delta_step_subgroup", "s[i] *= factor;", "s[i] *= 1.0 + 0.0 * factor;"),
    // transposed state
    (
        "delta_step",
        "delta_step",
        "let held = state[state_at + min(row, DIM_K - 1u) * DIM_V + column_in];",
        "let held = state[state_at + min(row, DIM_K - 1u) + DIM_K * column_in];",
    ),
    (
        "delta_step_subgroup",
        "delta_step_subgroup",
        "let held = state[state_at + min(row, DIM_K - 1u) * DIM_V + min(column, DIM_V - 1u)];",
        "let held = state[state_at + min(row, DIM_K - 1u) + DIM_K * min(column, DIM_V - 1u)];",
    ),
    (
        "delta_chunk",
        "delta_chunk_state",
        "let held = state[state_at + min(row0 + i, DIM_K - 1u) * DIM_V + column_in];",
        "let held = state[state_at + min(row0 + i, DIM_K - 1u) + DIM_K * column_in];",
    ),
    // the last chunk one token short or long
    (
        "delta_chunk",
        "delta_chunk_gather",
        "let n = min(max(live, chunk * CHUNK) - chunk * CHUNK, CHUNK);",
        "let n = min(max(live, chunk * CHUNK + 1u) - chunk * CHUNK - 1u, CHUNK);",
    ),
    ("delta_chunk", "delta_chunk_output", "if token < live {", "if token + 1u < live {"),
    // the map of heads tiled
    (
        "delta_step",
        "delta_step",
        "select(head / params.groups, head % params.heads_k, params.tiled == 1u)",
        "head % params.heads_k",
    ),
    (
        "delta_step_subgroup",
        "delta_step_subgroup",
        "select(head / params.groups, head % params.heads_k, params.tiled == 1u)",
        "head % params.heads_k",
    ),
    (
        "delta_chunk",
        "delta_chunk_gather",
        "select(head / params.groups, head % params.heads_k, params.tiled == 1u)",
        "head % params.heads_k",
    ),
    // the diagonal left out of what a token reads, and put into what it predicts
    ("delta_chunk", "delta_chunk_scores", "if i >= lane {", "if i > lane {"),
    ("delta_chunk", "delta_chunk_scores", "0.0, i == lane);", "0.0, false);"),
    // the first decay of a key's way counted twice
    ("delta_chunk", "delta_chunk_scores", "carried[m], i == lane);", "carried[m], false);"),
    // the state not decayed over a chunk
    ("delta_chunk", "delta_chunk_state", "s[i] *= scratch[", "s[i] *= 1.0 + 0.0 * scratch["),
    // the norm over the mean
    ("delta_step", "delta_step", "inverseSqrt(sums + params.eps)", "inverseSqrt(sums / 8.0 + params.eps)"),
];

#[test]
fn planted_faults_are_caught() {
    for &(way, kernel, from, to) in FAULTS {
        if way == "delta_step_subgroup" && gpu().limits().subgroup.is_none() {
            continue;
        }
        assert_eq!(shaders::occurrences(kernel, from).unwrap(), 1, "{kernel}: {from}");
        let call = Call { way: Some(way), ..Call::new(Kind::Gated, [1, 70, 2, 4, 12, 12]) };
        call.check(gpu());
        let wrong = gpu().with_edit(from, to);
        assert!(call.judged(&wrong).is_err(), "{kernel}: {to:?} was not caught");
    }
}
