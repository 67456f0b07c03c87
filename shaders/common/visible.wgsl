// How many of the first keys a query sees: all sparse operators see a prefix.  The same rule as src/sparse.rs.
//
// Key j stands for the tokens j * step .. j * step + reach and is seen once the last of them is in the past:
// tokens have step = reach = 1, compressed blocks their stride and length.  The includer has constants CAUSAL,
// KV_LEN and Q_STARTS, a binding `table`, and in `params` seq_kv, q_start, kv_len_at, q_starts_at, step, reach.

fn visible_keys(b: u32, query: u32) -> u32 {
    var n = params.seq_kv;
    if KV_LEN {
        n = min(n, u32(max(bitcast<i32>(table[params.kv_len_at + b]), 0)));
    }
    if CAUSAL {
        var first = params.q_start;
        if Q_STARTS {
            first = clamp(bitcast<i32>(table[params.q_starts_at + b]), -536870912, 536870912);
        }
        let past = u32(max(first + i32(query) + 1, 0));
        n = min(n, select((past - params.reach) / params.step + 1u, 0u, past < params.reach));
    }
    return n;
}
