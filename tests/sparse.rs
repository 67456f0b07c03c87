//! Sparse attention against its definitions: top-k on adversarial rows, the indexer, attention over lists, the
//! pipeline.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;
#[path = "sparse/faults.rs"]
mod faults;
#[path = "sparse/index.rs"]
mod index;
#[path = "sparse/indexed.rs"]
mod indexed;
#[path = "sparse/nsa.rs"]
mod nsa;
#[path = "sparse/top_k.rs"]
mod top_k;

use common::gpu;
use wgpu_attention::{DType, Tensor};

/// Families that fit the device: with subgroups, and without.
fn families() -> Vec<bool> {
    if gpu().limits().subgroup.is_some() { vec![true, false] } else { vec![false] }
}

/// A packed tensor of any number of axes, stored as `dtype`.
fn tensor(data: &[f32], shape: &[usize], dtype: DType) -> Tensor {
    let flat = common::stored(gpu(), data, [1, 1, 1, data.len()], dtype);
    let mut strides = vec![1; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis] * shape[axis];
    }
    flat.view(0, shape, &strides).unwrap()
}

/// Keys that each query sees: `[batch, seq_q]`.
fn causal(batch: usize, seq_q: usize, seq_kv: usize, q_start: i64) -> Vec<usize> {
    (0..batch * seq_q)
        .map(|row| (q_start + (row % seq_q) as i64 + 1).clamp(0, seq_kv as i64) as usize)
        .collect()
}

/// Kernels that a call of a family goes through.
fn kernels(subgroups: bool) -> Vec<&'static str> {
    let mut kernels = vec![
        "top_k_count",
        "top_k_pick",
        "top_k_gather",
        "nsa_weights",
        "nsa_blocks",
        "nsa_gate",
        "block_mean",
    ];
    kernels.extend(if subgroups {
        ["indexer_subgroup", "indexed_attention_subgroup"]
    } else {
        ["indexer", "indexed_attention"]
    });
    kernels
}
