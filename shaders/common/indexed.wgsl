// What the kernels of indexed attention share: parameters and places.  Offsets and strides count elements.
//
// A row is one of the query heads that share a key-value head; all rows of a workgroup belong to one query, so
// they share its list.  A slot is a place in the list: with blocks, slot i is key i % block of entry i / block.

struct Params {
    rows: u32,         // query heads to a key-value head
    heads: u32,        // key-value heads in this dispatch
    seq_kv: u32,
    slots: u32,        // entries of a list times block
    block: u32,        // keys to an entry
    batch_base: u32,   // first batch entry of this dispatch
    query_base: u32,   // first query
    row_tiles: u32,    // tiles of rows to a query
    split_base: u32,   // first split
    split_slots: u32,  // slots to a split
    key_first: u32,    // keys outside key_first .. key_end are left to other dispatches
    key_end: u32,
    q_base: u32, q_batch: u32, q_head: u32, q_row: u32,
    k_base: u32, k_batch: u32, k_head: u32, k_row: u32,
    v_base: u32, v_batch: u32, v_head: u32, v_row: u32,
    list_base: u32, list_batch: u32, list_head: u32, list_row: u32,
    o_base: u32, o_batch: u32, o_head: u32, o_row: u32, o_split: u32,
    lse_base: u32, lse_batch: u32, lse_head: u32, lse_row: u32, lse_split: u32,
    scale: f32,        // includes log2(e)
    // loop bounds equal to constants
    quads_k: u32, lanes: u32, stages: u32, chunk_quads: u32, stage_q: u32, stage_k: u32, stage_v: u32, tile: u32,
    q_start: i32, kv_len_at: u32, q_starts_at: u32, step: u32, reach: u32,
}

const HOLE: u32 = 0xffffffffu;

// Where a workgroup works, counted from the dispatch's first batch entry and query.
struct Place {
    b: u32,
    head_kv: u32,
    query: u32,
    row0: u32,
    row_last: u32,
    seen: u32,   // keys that the query sees
    list: u32,   // first entry of its list
    first: u32,  // first slot, and the slot after the last
    end: u32,
}

fn place_of(group: vec3<u32>, row_tile: u32) -> Place {
    let b = group.z / params.heads;
    let head_kv = group.z % params.heads;
    let query = group.x / params.row_tiles;
    let row0 = group.x % params.row_tiles * row_tile;
    let seen = visible_keys(params.batch_base + b, params.query_base + query);
    let list = params.list_base + b * params.list_batch + head_kv * params.list_head + query * params.list_row;
    var slots = params.slots;
    if COMPACT {
        slots = min(slots, (seen + params.block - 1u) / params.block * params.block);
    }
    let first = min((params.split_base + group.y) * params.split_slots, slots);
    let end = min(first + params.split_slots, slots);
    return Place(b, head_kv, query, row0, min(row0 + row_tile, params.rows) - 1u, seen, list, first, end);
}

// Key of a slot; HOLE where there is none that the query sees, or where an entry repeats the one before it.
fn key_of(at: Place, slot: u32) -> u32 {
    let inside = min(slot, params.slots - 1u);
    var key = inside;
    var exists = slot < at.end;
    if LIST {
        let place = inside / params.block;
        let entry = list[at.list + place];
        let before = list[at.list + max(place, 1u) - 1u];
        // negative entries are large ones here; the product must not wrap
        exists = exists && (place == 0u || entry != before) && u32(entry) <= params.seq_kv / params.block;
        key = select(0u, u32(entry) * params.block + inside % params.block, exists);
    }
    exists = exists && key < at.seen && key >= params.key_first && key < params.key_end;
    return select(HOLE, key, exists);
}

// A key that can be read in place of a hole's.
fn readable(key: u32) -> u32 {
    return select(key, params.key_first, key == HOLE) - params.key_first;
}

fn q_offset(at: Place, row: u32) -> u32 {
    return params.q_base + at.b * params.q_batch + (at.head_kv * params.rows + row) * params.q_head
        + at.query * params.q_row;
}

fn k_offset(at: Place, key: u32) -> u32 {
    return params.k_base + at.b * params.k_batch + at.head_kv * params.k_head + readable(key) * params.k_row;
}

fn v_offset(at: Place, key: u32) -> u32 {
    return params.v_base + at.b * params.v_batch + at.head_kv * params.v_head + readable(key) * params.v_row;
}

fn o_offset(at: Place, row: u32, split: u32) -> u32 {
    return params.o_base + split * params.o_split + at.b * params.o_batch
        + (at.head_kv * params.rows + row) * params.o_head + at.query * params.o_row;
}

fn lse_offset(at: Place, row: u32, split: u32) -> u32 {
    return params.lse_base + split * params.lse_split + at.b * params.lse_batch
        + (at.head_kv * params.rows + row) * params.lse_head + at.query * params.lse_row;
}
