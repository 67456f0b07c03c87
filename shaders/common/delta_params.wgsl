// Parameters of the delta rule's kernels; bounds of loops that the text knows are here too, so that no driver
// unrolls them.

struct Params {
    tokens: u32,        // on the token axis
    token_base: u32,    // first token of this dispatch, from each sequence's start
    token_count: u32,   // of them, at most
    sequence_base: u32, // first sequence of this dispatch
    fresh: u32,         // 1: states start at 0
    heads: u32,         // value heads
    heads_k: u32,
    groups: u32,        // value heads to a key head
    tiled: u32,         // 1: value heads h, h + heads_k, ... share a key head
    q_base: u32, q_batch: u32, q_token: u32, q_head: u32,
    k_base: u32, k_batch: u32, k_token: u32, k_head: u32,
    v_base: u32, v_batch: u32, v_token: u32, v_head: u32,
    g_base: u32, g_batch: u32, g_token: u32, g_head: u32,
    o_base: u32, o_batch: u32, o_token: u32, o_head: u32,
    state_base: u32,
    state_slot: u32,    // elements between kept states; 0 where only the last is
    beta_at: u32, beta_batch: u32,
    starts_at: u32, lengths_at: u32, a_log_at: u32, dt_bias_at: u32,
    scale: f32,
    eps: f32,           // of the l2 norm
    beta_factor: f32,   // of beta's sigmoid
    rows: u32,          // lanes that share a column
    stages: u32,        // of the tokens, with the state stored after each
    row_blocks: u32,    // of 16 rows to a lane
    chunks: u32,        // of this dispatch, to a sequence and head
    stride: u32,        // elements of scratch between chunks
    width: u32,         // of a key, padded
    chunk: u32,         // tokens to a chunk
    block: u32,         // of them solved at a time
    staged: u32,        // of them in workgroup memory at a time
    dim_k: u32,
}
