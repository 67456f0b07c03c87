// top_k_pick: one row's counters to the next digit of its threshold, and to what each segment holds above and
// within it.
// Reference: reference::top_k.   Spec: sparse.md, A4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const BINS: u32 = 2048u;        // values of a digit
const CAUSAL: bool = true;
const KV_LEN: bool = false;     // table holds valid lengths
const Q_STARTS: bool = false;   // table holds positions of query 0
// end constants
const LANE_BINS: u32 = BINS / LANES;

//!include "common/top_k.wgsl"
//!include "common/visible.wgsl"

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> table: array<u32>;       // kv_len, q_starts
@group(0) @binding(2) var<storage, read_write> work: array<u32>;  // see common/top_k.wgsl

var<workgroup> tile_counts: array<u32, BINS>;  // over all segments: BINS * 4 bytes
var<workgroup> tile_lanes: array<u32, LANES>;  // each invocation's sum: LANES * 4 bytes
var<workgroup> tile_found: array<u32, 3>;      // digit, scores above it, scores that have it: 12 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let row = group.y * params.queries + group.x;
    let n = visible_keys(params.batch_base + group.y, params.query_base + group.x);
    var low = 0u;
    var high = 0xffffffffu;
    var wanted = min(params.k, n);
    var done = n <= params.k;
    if params.first == 0u {
        low = work[row * STATE];
        high = work[row * STATE + 1u];
        wanted = work[row * STATE + 2u];
        done = work[row * STATE + 3u] != 0u;
    }
    // a row that is done has no counters: it walks the loops with barriers around them, and reads nothing
    let segments = select(params.segments, 0u, done);
    for (var bin = thread; bin < params.bins; bin += LANES) {
        var sum = 0u;
        for (var s = 0u; s < segments; s++) {
            sum += work[counters_word(row, s) + bin];
        }
        tile_counts[bin] = sum;
    }
    if thread == 0u {
        tile_found[0] = 0u;
        tile_found[1] = 0u;
        tile_found[2] = 0u;
    }
    workgroupBarrier();
    // the first invocation owns the highest digits
    let top_bin = BINS - 1u - thread * LANE_BINS;
    var own = 0u;
    for (var i = 0u; i < params.lane_bins; i++) {
        own += tile_counts[top_bin - i];
    }
    tile_lanes[thread] = own;
    workgroupBarrier();
    var above = 0u;
    for (var i = 0u; i < thread; i++) {
        above += tile_lanes[i];
    }
    for (var i = 0u; i < params.lane_bins; i++) {
        let count = tile_counts[top_bin - i];
        if above < wanted && wanted <= above + count {
            tile_found[0] = top_bin - i;
            tile_found[1] = above;
            tile_found[2] = count;
        }
        above += count;
    }
    storageBarrier();
    workgroupBarrier();
    let digit = tile_found[0];
    for (var s = thread; s < params.segments; s += LANES) {
        let tally = tally_word(row, s);
        if !done {
            let counters = counters_word(row, s);
            var higher = 0u;
            for (var bin = digit + 1u; bin < params.bins; bin++) {
                higher += work[counters + bin];
            }
            work[tally] = select(work[tally], 0u, params.first == 1u) + higher;
            work[tally + 1u] = work[counters + digit];
        } else if params.first == 1u {
            let start = s * params.segment;
            work[tally] = 0u;
            work[tally + 1u] = min(max(n, start) - start, params.segment);
        }
    }
    if thread == 0u {
        if !done {
            low |= digit << params.shift;
            high = low | ((1u << params.shift) - 1u);
            wanted -= tile_found[1];
            done = wanted == tile_found[2];
        }
        work[row * STATE] = low;
        work[row * STATE + 1u] = high;
        work[row * STATE + 2u] = wanted;
        work[row * STATE + 3u] = u32(done);
    }
}
