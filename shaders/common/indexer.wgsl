// What the indexer's kernels share: parameters and places.  Offsets and strides count elements.

struct Params {
    heads: u32,
    seq_kv: u32,
    batch_base: u32,   // first batch entry of this dispatch
    query_base: u32,   // first query
    block_base: u32,   // first block of keys
    block: u32,        // keys to a workgroup
    q_base: u32, q_batch: u32, q_row: u32, q_head: u32,
    k_base: u32, k_batch: u32, k_row: u32,
    w_base: u32, w_batch: u32, w_row: u32,
    scale_base: u32, scale_batch: u32,
    scores_base: u32, scores_batch: u32, scores_row: u32,
    scale: f32,
    // loop bounds equal to constants
    quads: u32, chunks: u32, lanes: u32, rows: u32, stage_q: u32, stage_k: u32, stage_quads: u32,
    q_start: i32, kv_len_at: u32, q_starts_at: u32, step: u32, reach: u32,
}

fn q_at(b: u32, query: u32, head: u32) -> u32 {
    return params.q_base + b * params.q_batch + query * params.q_row + head * params.q_head;
}

fn k_at(b: u32, key: u32) -> u32 {
    return params.k_base + b * params.k_batch + key * params.k_row;
}

fn scores_at(b: u32, query: u32) -> u32 {
    return params.scores_base + b * params.scores_batch + query * params.scores_row;
}

// A head's weight, 0 past the last head.
fn weight_of(b: u32, query: u32, head: u32) -> f32 {
    let at = params.w_base + b * params.w_batch + query * params.w_row + min(head, params.heads - 1u);
    return select(0.0, w[at] * params.scale, head < params.heads);
}

// Factor of all of a key's scores.
fn key_factor(b: u32, key: u32) -> f32 {
    if KEY_SCALE {
        return key_scale[params.scale_base + b * params.scale_batch + key];
    }
    return 1.0;
}
