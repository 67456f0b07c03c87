//! Cutting a recurrence over dispatches: tokens one after another, or chunks of them side by side.

use crate::gpu::{Binding, DType, Gpu, Step, Tensor};
use crate::{Error, Result};

use super::common::whole;

/// Fewest tokens of a chunk.
const CHUNK: usize = 64;
/// Most chunks of a dispatch.
const CHUNKS: usize = 256;
/// States between the passes may take this much.
const SCRATCH_BYTES: u64 = 64 << 20;

/// How a call is cut.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cut {
    pub(super) tokens: usize,
    pub(super) sequences: usize,
    /// Elements of all sequences' states.
    pub(super) elements: usize,
    /// Sums that each chunk leaves.
    pub(super) sums: usize,
    /// Workgroups of one chunk.
    pub(super) groups: usize,
    /// Tokens that one invocation can take.
    pub(super) most_tokens: u32,
    /// Operations of one token of all sequences.
    pub(super) token_flops: u64,
}

/// Which tokens a dispatch takes, and what it writes.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    pub(super) token_base: u32,
    /// Of each chunk.
    pub(super) token_count: u32,
    pub(super) chunks: u32,
    pub(super) fresh: bool,
    pub(super) output: bool,
    pub(super) store: bool,
    /// States of the chunks and where their sums go, in place of the call's state and output.
    pub(super) scratch: Option<[(Binding, u32); 2]>,
}

/// A recurrence that can be cut.
pub(super) trait Recurrence {
    /// A dispatch over tokens.
    fn pass(&self, pass: &Pass) -> Step;
    /// The dispatch between the passes over chunks; scratch holds their states and sums.
    fn join(&self, chunks: u32, fresh: bool, scratch: &[(Binding, u32); 2]) -> Step;
}

impl Cut {
    /// Whether chunks run side by side: asked for by name, or chosen where heads and columns do not fill a device.
    pub(super) fn chunked(
        &self,
        gpu: &Gpu,
        names: [&'static str; 2],
        forced: Option<&str>,
        keep: bool,
    ) -> Result<bool> {
        let [step, chunk] = names;
        match forced {
            Some(name) if name == chunk && keep => Err(Error::Options {
                field: "kernel",
                value: name.to_owned(),
                conflict: "does not keep the state after each token",
                remedy: "leave out kernel or keep_states",
            }),
            Some(name) if name == chunk => Ok(true),
            Some(name) if name == step => Ok(false),
            Some(name) => Err(Error::OutOfRange {
                field: "kernel",
                value: name.to_owned(),
                bound: format!("{step} or {chunk}"),
                remedy: "leave it out, or name one of these",
            }),
            None => {
                let enough = if gpu.limits().software { 4 } else { 256 };
                Ok(!keep && self.tokens >= 4 * CHUNK && self.groups * self.sequences < enough)
            }
        }
    }

    /// Tokens of a chunk, and chunks of a dispatch.
    fn chunks(&self, gpu: &Gpu) -> (usize, usize) {
        let limits = gpu.limits();
        let length = self.tokens.div_ceil(CHUNKS).max(CHUNK).min(self.most_tokens as usize);
        let bytes = SCRATCH_BYTES.min(limits.binding_bytes / 2) / (4 * self.elements.max(1) as u64);
        let by_work = limits.dispatch_flops / (self.token_flops * length as u64).max(1);
        let by_grid = limits.workgroups as usize / self.sequences.max(1);
        let most = CHUNKS.min(bytes as usize).min(by_work as usize).min(by_grid).max(1);
        (length, self.tokens.div_ceil(length).min(most).max(1))
    }

    /// Dispatches of the whole call.
    pub(super) fn steps(
        &self,
        gpu: &Gpu,
        recurrence: &impl Recurrence,
        chunked: bool,
        fresh: bool,
    ) -> Result<Vec<Step>> {
        if chunked && self.tokens > 0 {
            self.side_by_side(gpu, recurrence, fresh)
        } else {
            Ok(self.in_turn(gpu, recurrence, fresh))
        }
    }

    fn in_turn(&self, gpu: &Gpu, recurrence: &impl Recurrence, fresh: bool) -> Vec<Step> {
        let by_work = gpu.limits().dispatch_flops / self.token_flops.max(1);
        let at_once = by_work.clamp(1, u64::from(self.most_tokens)) as usize;
        // without tokens there is still a state to write
        (0..self.tokens.max(1))
            .step_by(at_once)
            .map(|base| {
                recurrence.pass(&Pass {
                    token_base: base as u32,
                    token_count: at_once.min(self.tokens - base) as u32,
                    chunks: 1,
                    fresh: fresh && base == 0,
                    output: true,
                    store: true,
                    scratch: None,
                })
            })
            .collect()
    }

    fn side_by_side(&self, gpu: &Gpu, recurrence: &impl Recurrence, fresh: bool) -> Result<Vec<Step>> {
        let (length, at_once) = self.chunks(gpu);
        let states = Tensor::uninitialised(gpu, DType::F32, [at_once * self.elements])?;
        let sums = Tensor::uninitialised(gpu, DType::F32, [at_once * self.sums])?;
        let scratch =
            [whole(gpu, "states of the chunks", &states)?, whole(gpu, "sums of the chunks", &sums)?];
        let mut steps = Vec::new();
        for base in (0..self.tokens).step_by(length * at_once) {
            let chunks = (self.tokens - base).div_ceil(length).min(at_once) as u32;
            let added = Pass {
                token_base: base as u32,
                token_count: length as u32,
                chunks,
                fresh: true,
                output: false,
                store: true,
                scratch: Some(scratch.clone()),
            };
            steps.push(recurrence.pass(&added));
            steps.push(recurrence.join(chunks, fresh && base == 0, &scratch));
            steps.push(recurrence.pass(&Pass { fresh: false, output: true, store: false, ..added }));
        }
        Ok(steps)
    }
}
