// First token of a sequence and its length, both cut at the token axis.

fn sequence_start(sequence: u32) -> u32 {
    if RAGGED {
        return u32(clamp(bitcast<i32>(table[params.starts_at + sequence]), 0, i32(params.tokens)));
    }
    return 0u;
}

fn sequence_length(sequence: u32, start: u32) -> u32 {
    if RAGGED {
        return u32(clamp(bitcast<i32>(table[params.lengths_at + sequence]), 0, i32(params.tokens - start)));
    }
    return params.tokens;
}
