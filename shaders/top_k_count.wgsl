// top_k_count: counts, for one segment of a row of scores, how often each value of a digit occurs among the
// scores that may still hold the threshold.  top_k_pick then picks the threshold's digit.
//
// 16 KiB of workgroup memory hold 4096 counters at most, so a 32-bit threshold takes three digits, and a last
// reading writes the indices: four readings, of which a row decided earlier skips the rest.
// Reference: reference::top_k.   Spec: sparse.md, A4.

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
@group(0) @binding(1) var<storage, read> scores: array<u32>;      // [batch, seq_q, seq_kv], f32 bits
@group(0) @binding(2) var<storage, read> table: array<u32>;       // kv_len, q_starts
@group(0) @binding(3) var<storage, read_write> work: array<u32>;  // see common/top_k.wgsl

var<workgroup> tile_counters: array<atomic<u32>, BINS>;           // BINS * 4 bytes

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) thread: u32) {
    let b = params.batch_base + group.z;
    let query = params.query_base + group.y;
    let row = group.z * params.queries + group.y;
    let n = visible_keys(b, query);
    var low = 0u;
    var high = 0xffffffffu;
    var done = n <= params.k;
    if params.first == 0u {
        low = work[row * STATE];
        high = work[row * STATE + 1u];
        done = work[row * STATE + 3u] != 0u;
    }
    for (var i = thread; i < params.bins; i += LANES) {
        atomicStore(&tile_counters[i], 0u);
    }
    workgroupBarrier();
    let start = group.x * params.segment;
    let end = select(min(start + params.segment, n), start, done);
    let at = scores_at(b, query);
    for (var i = start + thread; i < end; i += LANES) {
        let key = order_key(scores[at + i]);
        if key >= low && key <= high {
            atomicAdd(&tile_counters[(key >> params.shift) % BINS], 1u);
        }
    }
    workgroupBarrier();
    let bins = select(params.bins, 0u, done);
    let counters = counters_word(row, group.x);
    for (var i = thread; i < bins; i += LANES) {
        work[counters + i] = atomicLoad(&tile_counters[i]);
    }
}
