// merge_partials: partial results over disjoint sets of keys to one result.
//
//   M = max lse_p     w_p = exp(lse_p - M)     o = sum (w_p / sum w) o_p     lse = M + ln sum w
//
// A partial whose lse is minus infinity saw no key and is skipped, whatever its o holds.  A learned sink joins
// the denominator here, once.  Partials come from two stacks; parts_b may be 0.
// Reference: reference::merge.   Spec: softmax-attention.md, 6 and 7.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const DIM_V: u32 = 64u;
const SINKS: bool = false;      // table holds learned sinks
const LSE: bool = true;         // lse is wanted
// end constants
const QUADS: u32 = (DIM_V + 3u) / 4u;

struct Params {
    rows: u32,       // held of each key-value head
    groups: u32,     // query heads to a key-value head
    heads: u32,      // key-value heads
    row_base: u32,   // first row held
    total: u32,      // batch * heads * rows
    items: u32,      // invocations with work in all dispatches: total * quads
    item_base: u32,  // first of this dispatch
    width: u32,      // of them in a row of the grid
    parts_a: u32, parts_b: u32,
    a_base: u32, a_lse_base: u32, a_part: u32, a_lse_part: u32,
    b_base: u32, b_lse_base: u32, b_part: u32, b_lse_part: u32,
    o_base: u32, o_batch: u32, o_head: u32, o_row: u32,
    lse_base: u32, lse_batch: u32, lse_head: u32,
    sinks_at: u32,
}

//!include "common/online_softmax.wgsl"
//!include "common/load_f32.wgsl" as a
//!include "common/load_f32.wgsl" as b
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> a: array<a_item>;       // [parts_a, total, dim_v]
@group(0) @binding(2) var<storage, read> a_lse: array<u32>;      // [parts_a, total], f32 bits
@group(0) @binding(3) var<storage, read> b: array<b_item>;       // [parts_b, total, dim_v]
@group(0) @binding(4) var<storage, read> b_lse: array<u32>;      // [parts_b, total], f32 bits
@group(0) @binding(5) var<storage, read> table: array<u32>;      // sinks
@group(0) @binding(6) var<storage, read_write> o: array<o_item>; // [batch, heads_q, seq_q, dim_v]
@group(0) @binding(7) var<storage, read_write> lse: array<u32>;  // [batch, heads_q, seq_q], f32 bits

// Natural log-sum-exp of a partial; NEG for one that saw no key.
fn part_lse(bits: u32) -> f32 {
    return select(bitcast<f32>(bits), NEG, bits == MINUS_INFINITY);
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    // one invocation for four columns of a row; the grid may be larger
    let item = params.item_base + id.y * params.width + id.x;
    let w = min(item / QUADS, params.total - 1u);
    let column = item % QUADS * 4u;
    let n = min(4u, DIM_V - column);
    let row = params.row_base + w % params.rows;
    let batch = w / params.rows / params.heads;
    let head = w / params.rows % params.heads * params.groups + row % params.groups;
    let query = row / params.groups;

    var top = M_START;
    var sink = NEG;
    if SINKS {
        sink = bitcast<f32>(table[params.sinks_at + head]);
        top = max(top, sink);
    }
    for (var p = 0u; p < params.parts_a; p++) {
        top = max(top, part_lse(a_lse[params.a_lse_base + p * params.a_lse_part + w]));
    }
    for (var p = 0u; p < params.parts_b; p++) {
        top = max(top, part_lse(b_lse[params.b_lse_base + p * params.b_lse_part + w]));
    }
    var sum = 0.0;
    if SINKS {
        sum = exp_down(sink - top);
    }
    var value = vec4<f32>();
    for (var p = 0u; p < params.parts_a; p++) {
        let part = part_lse(a_lse[params.a_lse_base + p * params.a_lse_part + w]);
        if part > NEG {
            let weight = exp_down(part - top);
            sum += weight;
            value += weight * a_load4(params.a_base + p * params.a_part + w * DIM_V + column, n);
        }
    }
    for (var p = 0u; p < params.parts_b; p++) {
        let part = part_lse(b_lse[params.b_lse_base + p * params.b_lse_part + w]);
        if part > NEG {
            let weight = exp_down(part - top);
            sum += weight;
            value += weight * b_load4(params.b_base + p * params.b_part + w * DIM_V + column, n);
        }
    }
    if id.x < params.width && item < params.items {
        let at = params.o_base + batch * params.o_batch + head * params.o_head + query * params.o_row + column;
        o_store4(at, n, select(value / sum, vec4<f32>(), sum == 0.0));
        if LSE && column == 0u {
            lse[params.lse_base + batch * params.lse_batch + head * params.lse_head + query] =
                lse_bits(top, sum);
        }
    }
}
