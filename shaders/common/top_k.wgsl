// What the kernels of top-k share: parameters, the order of scores, the state of a row.
//
// A row's k best scores are those above a threshold and the first few equal to it.  The threshold is found
// digit by digit from the top of a 32-bit key whose order is the scores'; `low` and `high` hold the keys that
// agree with the digits found so far.

struct Params {
    batch_base: u32,   // first batch entry of this dispatch
    query_base: u32,   // first query
    queries: u32,      // queries of this dispatch
    seq_kv: u32,       // scores to a row
    k: u32,
    segment: u32,      // scores to a workgroup, a multiple of LANES
    segments: u32,     // workgroups to a row
    shift: u32,        // of this digit
    first: u32,        // 1 for the first digit
    scores_base: u32, scores_batch: u32, scores_row: u32,
    out_base: u32, out_batch: u32, out_row: u32,
    counts_base: u32, counts_batch: u32, counts_row: u32,
    tally_at: u32,     // first word of the tallies in `work`
    counters_at: u32,  // first word of the counters in `work`
    // loop bounds equal to constants
    bins: u32, lanes: u32, lane_bins: u32, lane_scores: u32,
    q_start: i32, kv_len_at: u32, q_starts_at: u32, step: u32, reach: u32,
}

// `work`, a row of it for each query of the dispatch: [rows, 4] low, high, scores still to be taken from within, whether that is all of them;
// [rows, segments, 2] scores above `high`, scores within;
// [rows, segments, BINS] counters of this digit.
const STATE: u32 = 4u;

// Unsigned keys in the order of floats: -0 equals 0, and NaN comes last of all, whatever its sign.
fn order_key(bits: u32) -> u32 {
    let magnitude = bits & 0x7fffffffu;
    let ordered = select(bits | 0x80000000u, ~bits, bits > 0x80000000u);
    return select(ordered, 0u, magnitude >= 0x7f800001u);
}

fn scores_at(b: u32, query: u32) -> u32 {
    return params.scores_base + b * params.scores_batch + query * params.scores_row;
}

fn tally_word(row: u32, segment: u32) -> u32 {
    return params.tally_at + (row * params.segments + segment) * 2u;
}

fn counters_word(row: u32, segment: u32) -> u32 {
    return params.counters_at + (row * params.segments + segment) * BINS;
}
