// What the kernels that write rows into a cache share: parameters, and where an item of a token goes.

struct Params {
    heads: u32,
    width: u32,          // values of a row
    row_items: u32,      // invocations, or scales, of a row
    token_items: u32,    // items of a token
    first_token: u32,    // of this dispatch
    first_sequence: u32,
    source_base: u32, source_batch: u32, source_head: u32, source_row: u32,
    slots: u32,          // of a sequence; 0 in a pool
    place: u32,          // slots of a ring, or log2 of a page
    starts_at: u32,      // positions of token 0 in `table`
    counts_at: u32,      // tokens in `table`
    pages_at: u32, pages_batch: u32,
    scales: u32,         // word at which the scales start
    quads: u32,          // groups of four values that share a scale
}

// Row of the target in which token `token` of sequence b goes, for head 0.
fn target_row(b: u32, token: u32) -> u32 {
    let position = table[params.starts_at + b] + token;
    return (b * params.slots + slot_of(b, position, turn_of(position))) * params.heads;
}

fn source_offset(b: u32, head: u32, token: u32) -> u32 {
    return params.source_base + b * params.source_batch + head * params.source_head + token * params.source_row;
}
