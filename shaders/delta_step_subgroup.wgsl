// delta_step_subgroup: a token after another, CELLS columns of a head's state in a subgroup's registers.
//
//   S <- diag(decay) S      u = beta (v - S^T k)      S <- S + k u^T      o = scale S^T q
//
// ROW_SPLIT lanes share a column and join their sums by shuffles; k, q and decays are spread over the lanes that
// hold the same rows, and broadcast.  No workgroup memory, no barriers.
// Reference: reference::delta.   Spec: linear.md, 2 and 3.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 8u;            // subgroup size
const ROW_SPLIT: u32 = 1u;        // lanes that share a column
const ROW_SPLIT_LOG2: u32 = 0u;
const LANES_LOG2: u32 = 3u;
const COLUMNS: u32 = 2u;          // columns to a lane
const DIM_K: u32 = 64u;
const DIM_V: u32 = 64u;
const DECAY: bool = true;
const CHANNELS: bool = false;     // one decay a row of the state, not a head
const GATE_LOGITS: bool = false;  // decays from a_log and dt_bias
const BETA_LOGITS: bool = false;  // strengths from logits
const L2NORM: bool = false;
const RAGGED: bool = false;       // table holds starts and lengths
const KEEP: bool = false;         // the state after each token is kept
// end constants
const QUADS_K: u32 = (DIM_K + 3u) / 4u;
const QUADS: u32 = (QUADS_K + ROW_SPLIT - 1u) / ROW_SPLIT; // groups of four rows to a lane
const ROWS: u32 = QUADS * 4u;
const SPREAD: u32 = LANES / ROW_SPLIT;                     // lanes that hold the same rows
const CHUNKS: u32 = (QUADS + SPREAD - 1u) / SPREAD;        // groups of four of a token's k to a lane
const CELLS: u32 = SPREAD * COLUMNS;
const BLOCK: u32 = 16u;                                    // rows that are loaded and stored at a time
const BLOCKS: u32 = (ROWS + BLOCK - 1u) / BLOCK;
const HELD: u32 = BLOCKS * BLOCK;
const WHOLE: bool = ROWS * ROW_SPLIT == DIM_K && ROWS == HELD;

//!include "common/delta.wgsl"
//!include "common/load_f32.wgsl" as q
//!include "common/load_f32.wgsl" as k
//!include "common/load_f32_element.wgsl" as v
//!include "common/load_f32_element.wgsl" as g

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> q: array<q_item>;         // [batch, tokens, heads_k, dim_k]
@group(0) @binding(2) var<storage, read> k: array<k_item>;         // [batch, tokens, heads_k, dim_k]
@group(0) @binding(3) var<storage, read> v: array<v_item>;         // [batch, tokens, heads, dim_v]
@group(0) @binding(4) var<storage, read> g: array<g_item>;         // [batch, tokens, heads] or [.., dim_k]
@group(0) @binding(5) var<storage, read> table: array<u32>;        // beta, starts, lengths, a_log, dt_bias
@group(0) @binding(6) var<storage, read_write> state: array<f32>;  // [slots, sequences, heads, dim_k, dim_v]
@group(0) @binding(7) var<storage, read_write> o: array<f32>;      // [batch, tokens, heads, dim_v]

// Sum over the lanes that share a column.
fn rows_add(value: f32) -> f32 {
    var x = value;
    for (var step = 0u; step < ROW_SPLIT_LOG2; step++) { //!unroll
        x += subgroupShuffleXor(x, 1u << step);
    }
    return x;
}

fn lanes_add(value: f32) -> f32 {
    var x = value;
    for (var step = 0u; step < LANES_LOG2; step++) { //!unroll
        x += subgroupShuffleXor(x, 1u << step);
    }
    return x;
}

@compute @workgroup_size(LANES)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(subgroup_invocation_id) lane: u32) {
    let head = group.y;
    let sequence = params.sequence_base + group.z;
    let start = sequence_start(sequence);
    let live = live_tokens(sequence_length(sequence, start));
    let row_part = select(lane % ROW_SPLIT, 0u, ROW_SPLIT == 1u);
    let spread = lane / ROW_SPLIT;
    let quad0 = row_part * QUADS;
    let column0 = group.x * CELLS + spread;
    let q_at = params.q_base + sequence * params.q_batch + key_head(head) * params.q_head;
    let k_at = params.k_base + sequence * params.k_batch + key_head(head) * params.k_head;
    let v_at = params.v_base + sequence * params.v_batch + head * params.v_head;
    let g_at = params.g_base + sequence * params.g_batch + head * params.g_head;
    let o_at = params.o_base + sequence * params.o_batch + head * params.o_head;
    let state_at = params.state_base + params.token_base * params.state_slot
        + (sequence * params.heads + head) * DIM_K * DIM_V;

    // Rows and columns past the edge are loaded from inside, count as 0, and are not stored.  Loads and stores stay
    // in loops, and registers are picked by comparison: each in the text costs milliseconds to compile.
    var s: array<f32, HELD * COLUMNS>;
    for (var block = 0u; block < params.row_blocks; block++) {
        for (var x = 0u; x < COLUMNS; x++) { //!unroll
            let column = column0 + x * SPREAD;
            for (var i = 0u; i < BLOCK; i++) { //!unroll
                let row = quad0 * 4u + block * BLOCK + i;
                let inside = params.fresh == 0u && row < DIM_K && column < DIM_V
                    && (WHOLE || block * BLOCK + i < ROWS);
                let held = state[state_at + min(row, DIM_K - 1u) * DIM_V + min(column, DIM_V - 1u)];
                let value = select(0.0, held, inside);
                for (var b = 0u; b < BLOCKS; b++) { //!unroll
                    s[x * HELD + b * BLOCK + i] = select(s[x * HELD + b * BLOCK + i], value, b == block);
                }
            }
        }
    }
    // One stage, or one a token where each state is kept: stores in the loop over tokens would cost every token,
    // for processors that pretend to be GPUs run what is masked off.
    var t = 0u;
    for (var stage = 0u; stage < params.stages; stage++) {
        let until = select(live, min(stage, live), KEEP);
        for (; t < until; t++) {
            let token = start + params.token_base + t;
            var kq: array<vec4<f32>, CHUNKS>;
            var qq: array<vec4<f32>, CHUNKS>;
            var decay: array<vec4<f32>, CHUNKS>;
            var sums = vec2<f32>();
            for (var m = 0u; m < CHUNKS; m++) { //!unroll
                let mine = m * SPREAD + spread;
                let inside = mine < QUADS && quad0 + mine < QUADS_K;
                let d = min(quad0 + mine, QUADS_K - 1u) * 4u;
                let n = min(4u, DIM_K - d);
                kq[m] = select(vec4<f32>(), k_load4(k_at + token * params.k_token + d, n), inside);
                qq[m] = select(vec4<f32>(), q_load4(q_at + token * params.q_token + d, n), inside);
                if L2NORM {
                    sums += vec2<f32>(dot(kq[m], kq[m]), dot(qq[m], qq[m]));
                }
                if DECAY && CHANNELS {
                    let gates = g_load4(g_at + token * params.g_token + d, n);
                    for (var e = 0u; e < 4u; e++) { //!unroll
                        let channel = min(d + e, DIM_K - 1u);
                        decay[m][e] = decay_of(gates[e], head, head * DIM_K + channel);
                    }
                }
            }
            var q_factor = params.scale;
            if L2NORM {
                let k_factor = inverseSqrt(lanes_add(sums.x) + params.eps);
                q_factor *= inverseSqrt(lanes_add(sums.y) + params.eps);
                for (var m = 0u; m < CHUNKS; m++) { //!unroll
                    kq[m] *= k_factor;
                }
            }
            if DECAY && !CHANNELS {
                let factor = decay_of(g_load1(g_at + token * params.g_token), head, head);
                for (var i = 0u; i < HELD * COLUMNS; i++) { //!unroll
                    s[i] *= factor;
                }
            }
            var u: array<f32, COLUMNS>;
            for (var i = 0u; i < QUADS; i++) { //!unroll
                for (var e = 0u; e < 4u; e++) { //!unroll
                    let source = row_part + ROW_SPLIT * (i % SPREAD);
                    let kx = subgroupShuffle(kq[i / SPREAD][e], source);
                    if DECAY && CHANNELS {
                        let factor = subgroupShuffle(decay[i / SPREAD][e], source);
                        for (var x = 0u; x < COLUMNS; x++) { //!unroll
                            s[x * HELD + i * 4u + e] *= factor;
                        }
                    }
                    for (var x = 0u; x < COLUMNS; x++) { //!unroll
                        u[x] = fma(s[x * HELD + i * 4u + e], kx, u[x]);
                    }
                }
            }
            let beta = beta_of(sequence, token, head);
            var r: array<f32, COLUMNS>;
            for (var x = 0u; x < COLUMNS; x++) { //!unroll
                let column = min(column0 + x * SPREAD, DIM_V - 1u);
                let value = v_load1(v_at + token * params.v_token + column);
                u[x] = beta * (value - rows_add(u[x]));
            }
            for (var i = 0u; i < QUADS; i++) { //!unroll
                for (var e = 0u; e < 4u; e++) { //!unroll
                    let source = row_part + ROW_SPLIT * (i % SPREAD);
                    let kx = subgroupShuffle(kq[i / SPREAD][e], source);
                    let qx = subgroupShuffle(qq[i / SPREAD][e], source);
                    for (var x = 0u; x < COLUMNS; x++) { //!unroll
                        s[x * HELD + i * 4u + e] = fma(kx, u[x], s[x * HELD + i * 4u + e]);
                        r[x] = fma(s[x * HELD + i * 4u + e], qx, r[x]);
                    }
                }
            }
            for (var x = 0u; x < COLUMNS; x++) { //!unroll
                let column = column0 + x * SPREAD;
                let read = rows_add(r[x]) * q_factor;
                if row_part == 0u && column < DIM_V {
                    o[o_at + token * params.o_token + column] = read;
                }
            }
        }
        for (var block = 0u; block < params.row_blocks; block++) {
            for (var x = 0u; x < COLUMNS; x++) { //!unroll
                let column = column0 + x * SPREAD;
                let row0 = quad0 * 4u + block * BLOCK;
                let at = state_at + stage * params.state_slot + row0 * DIM_V + column;
                if column < DIM_V {
                    for (var i = 0u; i < BLOCK; i++) { //!unroll
                        var value = s[x * HELD + i];
                        for (var b = 0u; b < BLOCKS; b++) { //!unroll
                            value = select(value, s[x * HELD + b * BLOCK + i], b == block);
                        }
                        if WHOLE || (block * BLOCK + i < ROWS && row0 + i < DIM_K) {
                            state[at + i * DIM_V] = value;
                        }
                    }
                }
            }
        }
    }
}
