// top_k_gather: writes the indices of one segment's chosen scores in ascending order: all above the threshold,
// and the first of those that equal it, so that the earlier token wins a tie.
// Reference: reference::top_k.   Spec: sparse.md, A3 and A4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const BINS: u32 = 2048u;        // values of a digit
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
// end constants

//!include "common/top_k.wgsl"
//!include "common/visible.wgsl"

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> scores: array<u32>;        // [batch, seq_q, seq_kv], f32 bits
@group(0) @binding(2) var<storage, read> table: array<u32>;         // kv_len, q_starts
@group(0) @binding(3) var<storage, read> work: array<u32>;          // see common/top_k.wgsl
@group(0) @binding(4) var<storage, read_write> indices: array<i32>; // [batch, seq_q, k]
@group(0) @binding(5) var<storage, read_write> counts: array<u32>;  // [batch, seq_q]

var<workgroup> tile_above: array<u32, LANES>;   // LANES * 4 bytes
var<workgroup> tile_within: array<u32, LANES>;  // LANES * 4 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let b = params.batch_base + group.z;
    let query = params.query_base + group.y;
    let row = group.z * params.queries + group.y;
    let n = visible_keys(b, query);
    let low = work[row * STATE];
    let high = work[row * STATE + 1u];
    let wanted = work[row * STATE + 2u];
    // neighbouring scores belong to one invocation, so that places follow from sums over invocations
    let start = min(group.x * params.segment + thread * params.lane_scores, n);
    let end = min(start + params.lane_scores, n);
    let at = scores_at(b, query);
    var above = 0u;
    var within = 0u;
    for (var i = start; i < end; i++) {
        let key = order_key(scores[at + i]);
        above += u32(key > high);
        within += u32(key >= low && key <= high);
    }
    tile_above[thread] = above;
    tile_within[thread] = within;
    workgroupBarrier();
    above = 0u;
    within = 0u;
    for (var s = 0u; s < group.x; s++) {
        above += work[tally_word(row, s)];
        within += work[tally_word(row, s) + 1u];
    }
    for (var i = 0u; i < thread; i++) {
        above += tile_above[i];
        within += tile_within[i];
    }
    let out = params.out_base + b * params.out_batch + query * params.out_row;
    var place = out + above + min(within, wanted);
    for (var i = start; i < end; i++) {
        let key = order_key(scores[at + i]);
        let equal = key >= low && key <= high;
        if key > high || (equal && within < wanted) {
            indices[place] = i32(i);
            place += 1u;
        }
        within += u32(equal);
    }
    let count = min(n, params.k);
    for (var i = count + group.x * LANES + thread; i < params.k; i += params.segments * LANES) {
        indices[out + i] = -1;
    }
    if group.x == 0u && thread == 0u {
        counts[params.counts_base + b * params.counts_batch + query * params.counts_row] = count;
    }
}
