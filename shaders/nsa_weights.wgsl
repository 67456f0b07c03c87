// nsa_weights: how much the heads of a group look at each compressed block.
//
//   weight_i = sum over the group's heads of exp(scale * dot(q_h, k_i) - lse_h)        0 for blocks not yet complete
//
// Reference: reference::nsa.   Spec: sparse.md, B3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const DIM: u32 = 64u;
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
// end constants

struct Params {
    groups: u32,       // query heads to a key-value head
    heads: u32,        // key-value heads
    seq_kv: u32,       // compressed blocks
    query_base: u32,   // first query of this dispatch
    q_base: u32, q_batch: u32, q_head: u32, q_row: u32,
    k_base: u32, k_batch: u32, k_head: u32, k_row: u32,
    lse_base: u32, lse_batch: u32, lse_head: u32,
    o_head: u32, o_row: u32,
    scale: f32,
    quads: u32,        // loop bound equal to a constant
    q_start: i32, kv_len_at: u32, q_starts_at: u32, step: u32, reach: u32,
}

//!include "common/visible.wgsl"
//!include "common/online_softmax.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;         // [batch, heads_q, seq_q, dim]
@group(0) @binding(2) var<storage, read> k: array<k_item>;         // [batch, heads_kv, blocks, dim]
@group(0) @binding(3) var<storage, read> lse: array<f32>;          // [batch, heads_q, seq_q]
@group(0) @binding(4) var<storage, read> table: array<u32>;        // kv_len, q_starts
@group(0) @binding(5) var<storage, read_write> weights: array<f32>; // [batch * heads_kv, queries, blocks], packed

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let block = group.x * LANES + thread;
    let query = params.query_base + group.y;
    let b = group.z / params.heads;
    let head_kv = group.z % params.heads;
    let complete = visible_keys(b, query);
    let key = min(block, params.seq_kv - 1u);
    var weight = 0.0;
    // a workgroup whose blocks are all incomplete reads nothing
    let groups = select(params.groups, 0u, group.x * LANES >= complete);
    for (var g = 0u; g < groups; g++) {
        let head = head_kv * params.groups + g;
        var q_at = params.q_base + b * params.q_batch + head * params.q_head + query * params.q_row;
        var k_at = params.k_base + b * params.k_batch + head_kv * params.k_head + key * params.k_row;
        var score = 0.0;
        for (var i = 0u; i < params.quads; i++) {
            let n = min(4u, DIM - i * 4u);
            score += dot(q_load4(q_at, n), k_load4(k_at, n));
            q_at += 4u;
            k_at += 4u;
        }
        let sum = lse[params.lse_base + b * params.lse_batch + head * params.lse_head + query];
        weight += exp_down(min(score * params.scale - sum, 0.0));
    }
    if block < params.seq_kv {
        weights[group.z * params.o_head + group.y * params.o_row + block] =
            select(0.0, weight, block < complete);
    }
}
