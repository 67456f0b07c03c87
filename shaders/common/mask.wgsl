// Which query sees which key, by absolute position.  The same inequalities as src/mask.rs.

fn floor_block(position: i32, size: i32) -> i32 {
    // division of a negative number rounds towards 0
    return select(position / size, (position + 1) / size - 1, position < 0);
}

fn visible(q: i32, k: i32) -> bool {
    var yes = true;
    if CAUSAL {
        yes = k <= q;
    }
    if WINDOW {
        let near = k > q - params.window && (CAUSAL || k < q + params.window);
        yes = yes && (near || k < params.sink_tokens);
    }
    if CHUNK {
        yes = yes && floor_block(k, params.chunk) == floor_block(q, params.chunk);
    }
    return yes;
}
