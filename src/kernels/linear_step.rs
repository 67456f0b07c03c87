//! `linear_step`: lightning attention and SSD, a token after another.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::limits::LOOP_ITERATIONS;

pub(crate) const NAME: &str = "linear_step";
const LANES: u32 = 64;

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
    pub(crate) groups: u32,
    pub(crate) slot_base: u32,
    /// Starts, lengths.
    pub(crate) sequences_at: [u32; 2],
    pub(crate) decay_at: u32,
    pub(crate) skip_at: u32,
    pub(crate) dt_bias_at: u32,
    /// Base, sequence, token, head; the same for the others.
    pub(crate) q: [u32; 4],
    pub(crate) k: [u32; 4],
    pub(crate) v: [u32; 4],
    pub(crate) dt: [u32; 4],
    pub(crate) o: [u32; 4],
    pub(crate) state_base: u32,
    /// Slot, sequence, head, row, column.
    pub(crate) state: [u32; 5],
    pub(crate) dt_limit: [f32; 2],
}

/// What the text depends on; loaders by name.
#[derive(Debug, Clone, Copy)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the kernel's text, and they combine freely"
)]
pub(crate) struct Problem {
    pub(crate) dim_k: u32,
    pub(crate) dim_v: u32,
    pub(crate) q: &'static str,
    pub(crate) k: &'static str,
    pub(crate) v: &'static str,
    pub(crate) dt: bool,
    pub(crate) dt_bias: bool,
    pub(crate) skip: bool,
    pub(crate) ragged: bool,
    pub(crate) keep: bool,
}

impl Problem {
    /// Lanes that share a column, so that each holds at most 64 rows.
    fn row_split(&self) -> u32 {
        self.dim_k.div_ceil(64).next_power_of_two()
    }

    fn staged(&self) -> u32 {
        let split = self.row_split();
        self.dim_k.div_ceil(4).div_ceil(split) * split
    }

    /// Tokens staged at a time.
    fn staged_tokens(&self) -> u32 {
        if self.dim_k > 128 { 4 } else { 8 }
    }

    /// Columns of the state to a workgroup.
    pub(crate) fn columns(&self) -> u32 {
        LANES / self.row_split()
    }

    pub(crate) fn workgroup_bytes(&self) -> u32 {
        self.staged_tokens() * (32 * self.staged() + 16 + 4 * LANES)
    }

    /// Tokens that one invocation can take.
    pub(crate) fn most_tokens(&self) -> u32 {
        let tokens = self.staged_tokens();
        let a_stage = 3 + (tokens * self.staged()).div_ceil(LANES) + 3 * tokens;
        (LOOP_ITERATIONS / 4 * 3) / a_stage * tokens
    }

    /// Operations of one token of one head.
    pub(crate) fn token_flops(&self) -> u64 {
        7 * u64::from(self.dim_k) * u64::from(self.dim_v)
    }

    /// `output`: o is written, else the sums of g; `store`: the state is written.
    pub(crate) fn constants(&self, output: bool, store: bool) -> Constants {
        Constants::default()
            .set("LANES", LANES)
            .set("ROW_SPLIT", self.row_split())
            .set("TOKENS", self.staged_tokens())
            .set("DIM_K", self.dim_k)
            .set("DIM_V", self.dim_v)
            .set("DT", self.dt)
            .set("DT_BIAS", self.dt_bias)
            .set("SKIP", self.skip)
            .set("RAGGED", self.ragged)
            .set("KEEP", self.keep)
            .set("OUTPUT", output)
            .set("STORE", store)
            .set("q", self.q)
            .set("k", self.k)
            .set("v", self.v)
    }
}
