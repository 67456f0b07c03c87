// cache_append: new rows of a ragged batch to where a cache keeps their positions, as floats.
//
// An invocation moves every row_items-th group of four columns of one head of one token.
// Reference: the rows themselves, rounded to the storage type.   Spec: cache-and-systems.md, 4.

// begin constants: valid as they stand; the dispatcher sets each by name
const LANES: u32 = 64u;
const RING: bool = false;
const PAGED: bool = false;
// end constants

//!include "common/cache_append.wgsl"
//!include "common/cache_slot.wgsl"
//!include "common/load_f32.wgsl" as source
//!include "common/store_f32.wgsl" as o

@group(0) @binding(0) var<storage, read> params: Params;
@group(0) @binding(1) var<storage, read> source: array<source_item>; // [sequences, heads, tokens, width]
@group(0) @binding(2) var<storage, read> table: array<u32>;          // positions of token 0, tokens, pages
@group(0) @binding(3) var<storage, read_write> o: array<o_item>;     // [sequences, slots, heads, width]

@compute @workgroup_size(LANES)
fn main(@builtin(global_invocation_id) id: vec3<u32>) {
    let token = params.first_token + id.y;
    let b = params.first_sequence + id.z;
    if id.x < params.token_items && token < table[params.counts_at + b] {
        let head = id.x / params.row_items;
        let source_at = source_offset(b, head, token);
        // read once: software adapters load parameters as they load anything else
        let width = params.width;
        let step = params.row_items * 4u;
        let at = (target_row(b, token) + head) * width;
        for (var column = id.x % params.row_items * 4u; column < width; column += step) {
            let n = min(4u, width - column);
            o_store4(at + column, n, source_load4(source_at + column, n));
        }
    }
}
