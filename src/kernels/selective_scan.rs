//! `selective_scan`: Mamba-1's recurrence, a token after another.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::limits::LOOP_ITERATIONS;

pub(crate) const NAME: &str = "selective_scan";
pub(crate) const LANES: u32 = 64;
const TOKENS: u32 = 16;
/// Rows of a channel's state that a lane can hold.
pub(crate) const MAX_DIM: usize = 64;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) tokens: u32,
    pub(crate) token_base: u32,
    pub(crate) token_count: u32,
    pub(crate) chunks: u32,
    pub(crate) fresh: u32,
    pub(crate) sequences: u32,
    pub(crate) channels: u32,
    pub(crate) slot_base: u32,
    /// Starts, lengths.
    pub(crate) sequences_at: [u32; 2],
    pub(crate) a_at: u32,
    pub(crate) skip_at: u32,
    pub(crate) dt_bias_at: u32,
    /// Base, sequence, token, channel.
    pub(crate) x: [u32; 4],
    pub(crate) dt: [u32; 4],
    /// Base, sequence, token.
    pub(crate) b: [u32; 3],
    pub(crate) c: [u32; 3],
    pub(crate) y: [u32; 3],
    pub(crate) state_base: u32,
    pub(crate) state_slot: u32,
}

/// What the text depends on; loaders by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) dim: u32,
    pub(crate) x: &'static str,
    pub(crate) b: &'static str,
    pub(crate) c: &'static str,
    pub(crate) dt_bias: bool,
    pub(crate) ragged: bool,
    pub(crate) keep: bool,
}

impl Problem {
    pub(crate) fn workgroup_bytes(&self) -> u32 {
        32 * TOKENS * self.dim.div_ceil(4)
    }

    /// Tokens that one invocation can take.
    pub(crate) fn most_tokens(&self) -> u32 {
        let a_stage = 2 + (TOKENS * self.dim.div_ceil(4)).div_ceil(LANES) + 2 * TOKENS;
        (LOOP_ITERATIONS / 4 * 3) / a_stage * TOKENS
    }

    /// Operations of one token of one channel; an exponential counts ten.
    pub(crate) fn token_flops(&self) -> u64 {
        17 * u64::from(self.dim)
    }

    /// `output`: y is written, else the sums of dt; `store`: the state is written.
    pub(crate) fn constants(&self, output: bool, store: bool) -> Constants {
        Constants::default()
            .set("LANES", LANES)
            .set("TOKENS", TOKENS)
            .set("DIM", self.dim)
            .set("DT_BIAS", self.dt_bias)
            .set("RAGGED", self.ragged)
            .set("KEEP", self.keep)
            .set("OUTPUT", output)
            .set("STORE", store)
            .set("x", self.x)
            .set("b", self.b)
            .set("c", self.c)
    }
}
