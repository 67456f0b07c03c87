//! Which path a latent attention call takes: by operations.

use std::fmt;

use super::MlaShape;
use crate::mask::Positions;
use crate::{Error, Result};

/// How a latent attention call is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MlaPath {
    /// Queries go through `W_UK`, all heads read the latents themselves.
    Absorbed,
    /// Latents become every head's keys and values.
    Expanded,
    /// Cached tokens absorbed, the queries' own expanded, merged by log-sum-exp.
    Mixed,
}

/// The path of a call, and the operations of each that the shape has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MlaPlan {
    /// The path that runs.
    pub path: MlaPath,
    /// Floating-point operations of the absorbed path.
    pub absorbed: u64,
    /// Of the expanded path.
    pub expanded: u64,
    /// Of the mixed path, where the queries stand behind cached tokens.
    pub mixed: Option<u64>,
}

impl MlaPlan {
    pub(super) fn choose(shape: &MlaShape, positions: Positions, forced: Option<MlaPath>) -> Result<Self> {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = *shape;
        let every = (batch * heads) as u64;
        let up = 2 * (rank * (nope + dim_v)) as u64;
        let (absorbed_pair, expanded_pair) = (2 * (2 * rank + rope) as u64, 2 * (nope + rope + dim_v) as u64);
        let pairs = positions.visible_pairs();
        let absorbed = every * (up * seq_q as u64 + absorbed_pair * pairs);
        let expanded = every * (up * seq_kv as u64 + expanded_pair * pairs);
        let cached = seq_kv.saturating_sub(seq_q);
        let mixed = (cached > 0 && seq_q > 0).then(|| {
            let own = positions.over(cached, seq_q).visible_pairs();
            every * (2 * up * seq_q as u64 + absorbed_pair * (pairs - own) + expanded_pair * own)
        });
        let path = match forced {
            Some(MlaPath::Mixed) if mixed.is_none() => {
                return Err(Error::Options {
                    field: "path",
                    value: "Mixed".into(),
                    conflict: "no token is cached before the queries' own",
                    remedy: "ask for Expanded, or leave it out",
                });
            }
            Some(path) => path,
            None => [(absorbed, MlaPath::Absorbed), (expanded, MlaPath::Expanded)]
                .into_iter()
                .chain(mixed.map(|m| (m, MlaPath::Mixed)))
                .min_by_key(|(flops, _)| *flops)
                .map_or(MlaPath::Absorbed, |(_, path)| path),
        };
        Ok(Self { path, absorbed, expanded, mixed })
    }

    /// Operations of the path that runs.
    #[must_use]
    pub fn flops(&self) -> u64 {
        match self.path {
            MlaPath::Absorbed => self.absorbed,
            MlaPath::Expanded => self.expanded,
            MlaPath::Mixed => self.mixed.unwrap_or(self.absorbed),
        }
    }
}

impl fmt::Display for MlaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let g = |flops: u64| flops as f64 / 1e9;
        write!(
            f,
            "{:?}: absorbed {:.3} GFLOP, expanded {:.3}",
            self.path,
            g(self.absorbed),
            g(self.expanded)
        )?;
        self.mixed.map_or(Ok(()), |mixed| write!(f, ", mixed {:.3}", g(mixed)))
    }
}
