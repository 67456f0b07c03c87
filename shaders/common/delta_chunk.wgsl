// Scratch memory of one chunk of one head, which the chunk-parallel delta rule hands from kernel to kernel.
//
// All f32.  Decays are products of factors of at most 1, never quotients and never exponents above 0.
//   G_i = product of the decays of tokens 0..=i of the chunk

const CHUNK: u32 = 64u;                                 // tokens to a chunk
const BLOCK: u32 = 16u;                                 // rows of a chunk that are solved at a time
const WIDTH: u32 = (DIM_K + 15u) / 16u * 16u;           // of keys, padded with zeros
const GATES: u32 = 1u + u32(CHANNELS) * (WIDTH - 1u); // decays of a token
const COLUMNS_X: u32 = DIM_V + WIDTH;
const Q_AT: u32 = 0u;                                   // [CHUNK, WIDTH] queries, normalised and scaled
const K_AT: u32 = Q_AT + CHUNK * WIDTH;                 // [CHUNK, WIDTH] keys, normalised
const D_AT: u32 = K_AT + CHUNK * WIDTH;                 // [CHUNK, GATES] decays
const QG_AT: u32 = D_AT + CHUNK * GATES;                // [WIDTH, CHUNK] G_i q_i
const KT_AT: u32 = QG_AT + CHUNK * WIDTH;               // [CHUNK, WIDTH] k_j with the decays after it
const TOTAL_AT: u32 = KT_AT + CHUNK * WIDTH;            // [WIDTH] decay of the whole chunk
const BETA_AT: u32 = TOTAL_AT + WIDTH;                  // [CHUNK]
const X_AT: u32 = BETA_AT + CHUNK;                      // [CHUNK, COLUMNS_X] beta v, beta G k; then U (later V'), W
const A_AT: u32 = X_AT + CHUNK * COLUMNS_X;             // [j, i] beta_i k_i . (decays) k_j of i > j, else 0
const P_AT: u32 = A_AT + CHUNK * CHUNK;                 // [j, i] q_i . (decays) k_j of i >= j, else 0
const S_AT: u32 = P_AT + CHUNK * CHUNK;                 // [DIM_K, DIM_V] state before the chunk

// Where the scratch of a chunk starts; `sequence` counts from the dispatch's first.
fn chunk_at(sequence: u32, head: u32, chunk: u32) -> u32 {
    return ((sequence * params.heads + head) * params.chunks + chunk) * params.stride;
}
