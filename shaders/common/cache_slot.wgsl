// Where a cache keeps the row of a position: at the position, in a ring of params.place slots, or in pages of
// 2^params.place slots that `table` lists for each sequence.

// Start of the turn of the ring in which `position` lies.
fn turn_of(position: u32) -> u32 {
    if RING {
        return position / params.place * params.place;
    }
    return 0u;
}

// Slot of a position less than two turns after `turn`.
fn slot_of(b: u32, position: u32, turn: u32) -> u32 {
    if RING {
        let at = position - turn;
        return select(at, at - params.place, at >= params.place);
    }
    if PAGED {
        let page = table[params.pages_at + b * params.pages_batch + (position >> params.place)];
        return (page << params.place) + (position & ((1u << params.place) - 1u));
    }
    return position;
}
