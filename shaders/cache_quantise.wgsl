// cache_quantise: new rows of a ragged batch to where a cache keeps their positions, as small numbers with scales.
//
// The target holds the values of all slots, then their scales.  An invocation makes one word of scales (two
// 16-bit ones, or one of 32 bits) and the values under them: no word is written by two.
// Reference: reference::quantised.   Spec: cache-and-systems.md, 8.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const RING: bool = false;
const PAGED: bool = false;
const HALVES: u32 = 2u;         // scales to a word
// end constants

//!include "common/cache_append.wgsl"
//!include "common/cache_slot.wgsl"
//!include "common/load_f32.wgsl" as source
//!include "common/quantise_q8_0.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<source_item>; // [sequences, heads, tokens, width]
@group(0) @binding(2) var<storage, read> table: array<u32>;          // positions of token 0, tokens, pages
@group(0) @binding(3) var<storage, read_write> o: array<u32>;        // values, then scales

// Four of the `count` source values from `at` on that share a scale; 0 beyond them.
fn quad_of(at: u32, i: u32, count: u32) -> vec4<f32> {
    let column = min(i * 4u, (count - 1u) / 4u * 4u);
    let value = source_load4(at + column, min(4u, count - column));
    return select(vec4<f32>(), value, vec4<u32>(0u, 1u, 2u, 3u) + i * 4u < vec4<u32>(count));
}

fn largest(at: u32, count: u32) -> f32 {
    var top = vec4<f32>();
    let quads = params.quads;
    for (var i = 0u; i < quads; i++) {
        top = max(top, abs(quad_of(at, i, count)));
    }
    return max(max(top.x, top.y), max(top.z, top.w));
}

// 1 / x, and 0 for 0.
fn reciprocal(x: f32) -> f32 {
    return select(1.0 / max(x, 1e-37), 0.0, x == 0.0);
}

// Four integers of -128 to 127 as the bytes of a word.
fn bytes_of(q: vec4<i32>) -> u32 {
    let b = bitcast<vec4<u32>>(q) & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let token = params.first_token + id.y;
    let b = params.first_sequence + id.z;
    if id.x < params.token_items && token < table[params.counts_at + b] {
        let first = id.x * HALVES;
        let row = target_row(b, token);
        var word = 0u;
        for (var half = 0u; half < HALVES; half++) {
            let head = (first + half) / params.row_items;
            let column = (first + half) % params.row_items * params.quads * 4u;
            let count = min(params.quads * 4u, params.width - column);
            let scale = row * params.row_items + first + half;
            word |= o_quantise(scale, source_offset(b, head, token) + column, count) << (16u * half);
        }
        o[params.scales + (row * params.row_items + first) / HALVES] = word;
    }
}
