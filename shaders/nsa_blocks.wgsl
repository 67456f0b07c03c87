// nsa_blocks: scores of the blocks to be selected from the weights of compressed blocks.
//
//   score_j = sum over m < block / stride, n < length / stride of weight[j * block / stride + m - n]
//
// so a compressed block counts by its overlap.  The first, the current and the block before it are always
// chosen: their score is above all sums.
// Reference: reference::nsa.   Spec: sparse.md, B3 and B4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
// end constants
const FORCED: f32 = 3e38;

struct Params {
    queries: u32,      // of this dispatch
    query_base: u32,   // first query
    q_start: i32,      // position of query 0
    compressed: u32,   // compressed blocks
    blocks: u32,       // blocks to be selected from
    block: u32,        // tokens to one of them
    across: u32,       // block / stride
    overlap: u32,      // length / stride
}

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> weights: array<f32>;      // [batch * heads_kv, queries, compressed], packed
@group(0) @binding(2) var<storage, read_write> scores: array<f32>; // [batch * heads_kv, queries, blocks], packed

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let j = i32(group.x * LANES + thread);
    let row = group.z * params.queries + group.y;
    let position = max(params.q_start + i32(params.query_base + group.y), 0);
    let current = position / i32(params.block);
    let across = i32(params.across);
    let overlap = i32(params.overlap);
    var sum = 0.0;
    for (var d = 1 - overlap; d < across; d++) {
        // pairs m, n with m - n = d
        let times = min(across - 1, overlap - 1 + d) - max(0, d) + 1;
        let at = j * across + d;
        let inside = at >= 0 && at < i32(params.compressed);
        let weight = weights[row * params.compressed + u32(select(0, at, inside))];
        sum += select(0.0, weight * f32(times), inside);
    }
    let forced = j == 0 || j == current || j + 1 == current;
    if j < i32(params.blocks) {
        scores[row * params.blocks + u32(j)] = select(sum, FORCED, forced);
    }
}
