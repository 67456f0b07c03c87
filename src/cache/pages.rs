//! The pool of pages: who holds which, and what an append needs.

use crate::{Error, Result};

/// Fewest and most slots of a page.
pub(crate) const PAGE_SLOTS: std::ops::RangeInclusive<u32> = 16..=256;

/// Pages of all full layers at once: page p of one layer is page p of every other.
#[derive(Debug, Clone)]
pub(crate) struct Pages {
    /// Slots of a page, a power of two.
    pub(crate) page: u32,
    refs: Vec<u32>,
    free: Vec<u32>,
    /// Pages of each sequence, in order.
    pub(crate) tables: Vec<Vec<u32>>,
}

/// What an append changes, not yet applied.
#[derive(Debug, Clone, Default)]
pub(crate) struct Change {
    /// Tables after the append.
    pub(crate) tables: Vec<Vec<u32>>,
    /// Pages to copy before the first write: shared ones that the append would write into.
    pub(crate) copies: Vec<[u32; 2]>,
    fresh: Vec<u32>,
    dropped: Vec<u32>,
}

impl Pages {
    pub(crate) fn new(page: u32, count: u32, sequences: usize) -> Result<Self> {
        if !PAGE_SLOTS.contains(&page) || !page.is_power_of_two() {
            return Err(Error::OutOfRange {
                field: "page",
                value: page.to_string(),
                bound: "16, 32, 64, 128 or 256".into(),
                remedy: "choose a power of two in between",
            });
        }
        let (refs, free) = (vec![0; count as usize], (0..count).rev().collect());
        Ok(Self { page, refs, free, tables: vec![Vec::new(); sequences] })
    }

    pub(crate) fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that several sequences hold.
    pub(crate) fn shared(&self) -> usize {
        self.refs.iter().filter(|&&refs| refs > 1).count()
    }

    fn count_for(&self, tokens: u64) -> usize {
        tokens.div_ceil(u64::from(self.page)) as usize
    }

    /// What taking each sequence from `seen` to `seen + counts` tokens needs; nothing changes yet.
    pub(crate) fn prepare(&self, seen: &[u64], counts: &[u64]) -> Result<Change> {
        let mut change = Change { tables: self.tables.clone(), ..Change::default() };
        let mut free = self.free.iter().rev().copied();
        let mut needed = 0;
        for (sequence, (&seen, &count)) in seen.iter().zip(counts).enumerate() {
            if count == 0 {
                continue;
            }
            let table = &mut change.tables[sequence];
            let at = (seen / u64::from(self.page)) as usize;
            if let Some(last) = table.get_mut(at)
                && self.refs[*last as usize] > 1
            {
                needed += 1;
                if let Some(fresh) = free.next() {
                    change.copies.push([*last, fresh]);
                    change.dropped.push(*last);
                    change.fresh.push(fresh);
                    *last = fresh;
                }
            }
            while table.len() < self.count_for(seen + count) {
                needed += 1;
                // without a page the table still grows, so that the loop counts what is needed
                let fresh = free.next();
                change.fresh.extend(fresh);
                table.push(fresh.unwrap_or(u32::MAX));
            }
        }
        if needed > self.free.len() {
            return Err(Error::OutOfRange {
                field: "counts",
                value: format!("{counts:?}, which takes {needed} more pages"),
                bound: format!("within the {} free ones of {}", self.free.len(), self.refs.len()),
                remedy: "append less, reset a sequence that has ended, or build the cache with more pages",
            });
        }
        Ok(change)
    }

    /// Takes the pages of a change.
    pub(crate) fn reserve(&mut self, change: &Change) {
        self.free.truncate(self.free.len() - change.fresh.len());
        for &page in &change.fresh {
            self.refs[page as usize] = 1;
        }
    }

    pub(crate) fn commit(&mut self, change: Change) {
        self.tables = change.tables;
        self.release(&change.dropped);
    }

    pub(crate) fn abandon(&mut self, change: &Change) {
        self.release(&change.fresh);
    }

    fn release(&mut self, pages: &[u32]) {
        for &page in pages.iter().rev() {
            let refs = &mut self.refs[page as usize];
            *refs -= 1;
            if *refs == 0 {
                self.free.push(page);
            }
        }
    }

    /// Gives back what lies beyond `tokens`.
    pub(crate) fn truncate(&mut self, sequence: usize, tokens: u64) {
        let keep = self.count_for(tokens).min(self.tables[sequence].len());
        let gone = self.tables[sequence].split_off(keep);
        self.release(&gone);
    }

    /// Lets `to` hold the pages of `from`.
    pub(crate) fn share(&mut self, from: usize, to: usize) {
        self.truncate(to, 0);
        let table = self.tables[from].clone();
        for &page in &table {
            self.refs[page as usize] += 1;
        }
        self.tables[to] = table;
    }
}
