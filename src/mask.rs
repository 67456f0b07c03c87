//! Which query sees which key: one predicate by absolute position, shared by every kernel.
//!
//! `shaders/common/mask.wgsl` states the same inequalities; a change here is a change there.

use crate::{Error, Result};

/// Largest absolute position (and window, chunk, sink count): leaves room for sums in 32 bits.
pub const MAX_POSITION: u32 = 1 << 29;

/// Visibility of keys by absolute position.
///
/// Query row `i` stands at position `q_start + i`, key `j` at `k_start + j`. A key at `k` is visible
/// from `q` when every rule that is set holds:
///
/// | rule | visible |
/// |---|---|
/// | causal | `k <= q` |
/// | window `W` | `k > q - W` (`W` keys counting the query's own); bidirectional also `k < q + W` |
/// | sink tokens `n` | `k < n` is exempt from the window |
/// | chunk `C` | `floor(k / C) == floor(q / C)` |
///
/// Valid lengths per batch entry are a tensor of the call, not part of the mask.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Mask {
    /// Keys after the query are hidden.
    pub causal: bool,
    /// Position of query row 0; by default the last query stands at the last key.
    pub q_start: Option<i64>,
    /// Position of key 0.
    pub k_start: u32,
    /// Keys visible in steady state, the query's own included.
    pub window: Option<u32>,
    /// First keys that stay visible outside the window (`StreamingLLM`'s sink tokens).
    pub sink_tokens: u32,
    /// Length of the blocks within which attention stays (Llama 4).
    pub chunk: Option<u32>,
}

impl Mask {
    /// Keys at or before the query.
    #[must_use]
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }

    /// Every key.
    #[must_use]
    pub fn bidirectional() -> Self {
        Self::default()
    }

    /// Fixes the positions for `seq_q` queries and `seq_kv` keys.
    ///
    /// # Errors
    /// A window or chunk of 0, sink tokens without a window, or a position beyond [`MAX_POSITION`].
    pub fn resolve(&self, seq_q: usize, seq_kv: usize) -> Result<Positions> {
        let bound = || format!("between 1 and {MAX_POSITION}");
        let limited = |field: &'static str, value: Option<u32>| match value {
            Some(v) if v == 0 || v > MAX_POSITION => Err(Error::OutOfRange {
                field,
                value: v.to_string(),
                bound: bound(),
                remedy: "leave it out to switch the rule off",
            }),
            v => Ok(v),
        };
        let window = limited("window", self.window)?;
        let chunk = limited("chunk", self.chunk)?;
        if self.sink_tokens > 0 && window.is_none() {
            return Err(Error::Options {
                field: "sink_tokens",
                value: self.sink_tokens.to_string(),
                conflict: "has no meaning without a window, since all earlier keys are visible",
                remedy: "set window, or leave sink_tokens out",
            });
        }
        let far = i64::from(MAX_POSITION);
        let k_start = i64::from(self.k_start);
        let (n_q, n_k) = (seq_q as i64, seq_kv as i64);
        let q_start = self.q_start.unwrap_or(k_start + n_k - n_q);
        for (field, first, count) in [("q_start", q_start, n_q), ("k_start", k_start, n_k)] {
            if first < -far || first + count > far {
                return Err(Error::OutOfRange {
                    field,
                    value: first.to_string(),
                    bound: format!("such that all {count} positions lie within ±{MAX_POSITION}"),
                    remedy: "count positions from the start of the sequence",
                });
            }
        }
        if self.sink_tokens > MAX_POSITION {
            return Err(Error::OutOfRange {
                field: "sink_tokens",
                value: self.sink_tokens.to_string(),
                bound: format!("at most {MAX_POSITION}"),
                remedy: "a mask with that many sinks hides nothing: leave the window out",
            });
        }
        Ok(Positions { mask: Self { window, chunk, ..*self }, q_start, k_start, n_q, n_k })
    }
}

/// A mask with its positions fixed by the lengths of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Positions {
    mask: Mask,
    q_start: i64,
    k_start: i64,
    n_q: i64,
    n_k: i64,
}

impl Positions {
    /// Position of query row 0.
    #[must_use]
    pub fn q_start(&self) -> i64 {
        self.q_start
    }

    /// Position of key 0.
    #[must_use]
    pub fn k_start(&self) -> i64 {
        self.k_start
    }

    /// The same mask with query row 0 at another position.
    #[must_use]
    pub fn at(&self, q_start: i64) -> Self {
        Self { q_start, ..*self }
    }

    /// The same mask over keys `first .. first + count` alone.
    #[must_use]
    pub(crate) fn over(&self, first: usize, count: usize) -> Self {
        Self { k_start: self.k_start + first as i64, n_k: count as i64, ..*self }
    }

    /// Whether query row `i` sees key `j` (both counted from 0 in this call).
    #[must_use]
    pub fn visible(&self, i: usize, j: usize) -> bool {
        let (q, k) = (self.q_start + i as i64, self.k_start + j as i64);
        let causal = !self.mask.causal || k <= q;
        let in_window = self.mask.window.is_none_or(|w| {
            let w = i64::from(w);
            k > q - w && (self.mask.causal || k < q + w)
        });
        let sink = k < i64::from(self.mask.sink_tokens);
        let chunk = self.mask.chunk.is_none_or(|c| k.div_euclid(i64::from(c)) == q.div_euclid(i64::from(c)));
        causal && (in_window || sink) && chunk
    }

    /// Keys that query rows `rows` can see at most: the sink tokens before the rest, and the rest.
    ///
    /// Every visible key lies in one of the two ranges, and they do not overlap.
    #[must_use]
    pub fn key_ranges(&self, rows: std::ops::Range<usize>) -> [std::ops::Range<usize>; 2] {
        if rows.is_empty() {
            return [0..0, 0..0];
        }
        // positions counted from key 0
        let lo = self.q_start + rows.start as i64 - self.k_start;
        let hi = self.q_start + rows.end as i64 - 1 - self.k_start;
        let (mut first, mut end) = (0, self.n_k);
        if self.mask.causal {
            end = end.min(hi + 1);
        }
        let mut sink_end = 0;
        if let Some(w) = self.mask.window {
            let w = i64::from(w);
            first = first.max(lo - w + 1);
            if !self.mask.causal {
                end = end.min(hi + w);
            }
            sink_end = (i64::from(self.mask.sink_tokens) - self.k_start).min(self.n_k);
            if self.mask.causal {
                sink_end = sink_end.min(hi + 1);
            }
            sink_end = sink_end.max(0);
        }
        if let Some(c) = self.mask.chunk {
            let c = i64::from(c);
            let block = |relative: i64| (relative + self.k_start).div_euclid(c) * c - self.k_start;
            first = first.max(block(lo));
            end = end.min(block(hi) + c);
        }
        if first <= sink_end {
            // the two touch; with keys ahead of a query in sight, the window may even end before the sinks do
            (first, end, sink_end) = (0, end.max(sink_end), 0);
        }
        let range = |a: i64, b: i64| a.max(0) as usize..b.max(a.max(0)) as usize;
        [range(0, sink_end), range(first, end)]
    }

    /// Pairs of query and key that are visible: the work that a masked call must do.
    #[must_use]
    pub fn visible_pairs(&self) -> u64 {
        (0..self.n_q as usize)
            .map(|i| {
                let [sinks, rest] = self.key_ranges(i..i + 1);
                // one row's ranges hold visible keys only, unless a chunk cuts the sinks
                if self.mask.chunk.is_some() && self.mask.sink_tokens > 0 {
                    return sinks.chain(rest).filter(|&j| self.visible(i, j)).count() as u64;
                }
                (sinks.len() + rest.len()) as u64
            })
            .sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drawn(mask: Mask, n_q: usize, n_k: usize) -> Vec<String> {
        let p = mask.resolve(n_q, n_k).unwrap();
        (0..n_q).map(|i| (0..n_k).map(|j| if p.visible(i, j) { '1' } else { '.' }).collect()).collect()
    }

    #[test]
    fn window_counts_the_query_itself() {
        let mask = Mask { window: Some(3), ..Mask::causal() };
        assert_eq!(drawn(mask, 6, 6), ["1.....", "11....", "111...", ".111..", "..111.", "...111"]);
    }

    #[test]
    fn chunks_are_absolute_blocks() {
        let mask = Mask { chunk: Some(3), ..Mask::causal() };
        assert_eq!(drawn(mask, 6, 6), ["1.....", "11....", "111...", "...1..", "...11.", "...111"]);
    }

    #[test]
    fn causal_is_bottom_right_aligned() {
        assert_eq!(drawn(Mask::causal(), 2, 5), ["1111.", "11111"]);
        assert_eq!(drawn(Mask::causal(), 3, 2), ["..", "1.", "11"]);
    }

    #[test]
    fn sink_tokens_are_exempt_from_the_window() {
        let mask = Mask { window: Some(2), sink_tokens: 1, ..Mask::causal() };
        assert_eq!(drawn(mask, 5, 5), ["1....", "11...", "111..", "1.11.", "1..11"]);
    }

    #[test]
    fn key_ranges_hold_exactly_the_visible_keys_of_one_row() {
        for causal in [true, false] {
            for window in [None, Some(1), Some(3), Some(40)] {
                for sink_tokens in [0, 2, 7] {
                    for chunk in [None, Some(4)] {
                        for q_start in [-3, 0, 5, 30] {
                            for k_start in [0, 3] {
                                let mask = Mask {
                                    causal,
                                    q_start: Some(q_start),
                                    k_start,
                                    window,
                                    sink_tokens,
                                    chunk,
                                };
                                let Ok(p) = mask.resolve(9, 12) else { continue };
                                let mut pairs = 0;
                                for i in 0..9 {
                                    let ranges = p.key_ranges(i..i + 1);
                                    for j in 0..12 {
                                        let inside = ranges.iter().filter(|r| r.contains(&j)).count();
                                        assert!(inside <= 1, "{mask:?} row {i} key {j} counted twice");
                                        assert!(
                                            inside == 1 || !p.visible(i, j),
                                            "{mask:?} row {i} key {j} missed"
                                        );
                                        pairs += u64::from(p.visible(i, j));
                                    }
                                }
                                assert_eq!(p.visible_pairs(), pairs, "{mask:?}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn nonsense_is_refused_by_name() {
        for (mask, field) in [
            (Mask { window: Some(0), ..Mask::causal() }, "window"),
            (Mask { chunk: Some(0), ..Mask::causal() }, "chunk"),
            (Mask { sink_tokens: 4, ..Mask::causal() }, "sink_tokens"),
            (Mask { q_start: Some(1 << 40), ..Mask::causal() }, "q_start"),
        ] {
            assert!(mask.resolve(4, 4).unwrap_err().to_string().starts_with(field));
        }
    }
}
