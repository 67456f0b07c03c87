//! `cache_append` and `cache_quantise`: new rows of a ragged batch into a cache.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use crate::cache::{Format, Place};
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::Limits;
use crate::model::Storage;
use crate::{Error, Result};

/// Rows stored as floats.
pub(crate) const APPEND: &str = "cache_append";
/// Rows stored as small integers with scales.
pub(crate) const QUANTISE: &str = "cache_quantise";
const LANES: u32 = 64;
/// Groups of four values to an invocation on a software adapter.
const QUADS: u32 = 8;

/// `Params` of both shaders.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) heads: u32,
    pub(crate) width: u32,
    pub(crate) row_items: u32,
    pub(crate) token_items: u32,
    pub(crate) first_token: u32,
    pub(crate) first_sequence: u32,
    /// Base and batch, head and token strides of the source.
    pub(crate) source: [u32; 4],
    pub(crate) slots: u32,
    /// Slots of a ring, or the logarithm of a page.
    pub(crate) place: u32,
    pub(crate) starts_at: u32,
    pub(crate) counts_at: u32,
    pub(crate) pages_at: u32,
    pub(crate) pages_batch: u32,
    /// Word at which the scales start.
    pub(crate) scales: u32,
    /// Groups of four values that share a scale.
    pub(crate) quads: u32,
}

/// How a token is shared out.
struct Items {
    row: u32,
    token: u32,
    quads: u32,
}

/// What the text depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) source: Operand,
    pub(crate) format: Format,
    pub(crate) place: Place,
}

impl Problem {
    /// Kernel and constants, or why no kernel writes this storage.
    pub(crate) fn text(&self, limits: &Limits) -> Result<(&'static str, Constants)> {
        let (kernel, target) = match self.format.storage {
            Storage::F32 if self.format.width.is_multiple_of(4) => (APPEND, "store_f32"),
            Storage::F32 => (APPEND, "store_f32_element"),
            Storage::F16 => (APPEND, "store_f16"),
            Storage::Bf16 => (APPEND, "store_bf16"),
            Storage::Q8_0 => (QUANTISE, "quantise_q8_0"),
            Storage::Q4_0 => (QUANTISE, "quantise_q4_0"),
            Storage::Fp8 => (QUANTISE, "quantise_fp8"),
            Storage::Int8 => (QUANTISE, "quantise_int8"),
            other => {
                return Err(Error::Unsupported {
                    kernel: QUANTISE,
                    needs: "rows stored as f32, f16, bf16, q8_0, q4_0, fp8 or int8".into(),
                    has: other.name().into(),
                });
            }
        };
        let mut constants = Constants::default()
            .set("LANES", self.lanes(limits))
            .set("RING", self.place == Place::Ring)
            .set("PAGED", matches!(self.place, Place::Paged(_)))
            .set("source", self.source.loader(limits))
            .set("o", target);
        if kernel == QUANTISE {
            constants = constants.set("HALVES", self.halves());
        }
        Ok((kernel, constants))
    }

    /// Invocations of a row and of a token, and groups of four values that share a scale.
    fn items(&self, limits: &Limits) -> Items {
        let Format { heads, width, .. } = self.format;
        let scales = self.format.scales();
        if let Some(values) = self.format.padded().checked_div(scales) {
            return Items { row: scales, token: scales * heads / self.halves(), quads: values / 4 };
        }
        // a processor saves on finding the row; a GPU wants neighbours side by side, and many
        let quads = width.div_ceil(4);
        let row = if limits.software { quads.div_ceil(QUADS) } else { quads };
        Items { row, token: row * heads, quads: 1 }
    }

    /// Invocations of a workgroup: a processor runs idle ones too.
    fn lanes(&self, limits: &Limits) -> u32 {
        if limits.software { self.items(limits).token.next_power_of_two().clamp(8, LANES) } else { LANES }
    }

    /// Scales to a word.
    fn halves(&self) -> u32 {
        if self.format.scale_bytes() == 2 { 2 } else { 1 }
    }

    /// Dispatches for `tokens` tokens of `sequences` sequences. Bindings: source, table, target.
    pub(crate) fn steps(
        &self,
        params: Params,
        bindings: &[Binding; 3],
        [sequences, tokens]: [u32; 2],
        limits: &Limits,
    ) -> Result<Vec<Step>> {
        let (kernel, constants) = self.text(limits)?;
        let format = self.format;
        let Items { row: row_items, token: token_items, quads } = self.items(limits);
        let params =
            Params { heads: format.heads, width: format.width, row_items, token_items, quads, ..params };
        let most = limits.workgroups;
        let mut steps = Vec::new();
        for first_sequence in (0..sequences).step_by(most as usize) {
            for first_token in (0..tokens).step_by(most as usize) {
                let params = Params { first_token, first_sequence, ..params };
                let groups = [
                    token_items.div_ceil(self.lanes(limits)),
                    (tokens - first_token).min(most),
                    (sequences - first_sequence).min(most),
                ];
                let values = u64::from(format.heads) * u64::from(format.padded());
                steps.push(Step {
                    kernel,
                    constants: constants.clone(),
                    params: bytemuck::bytes_of(&params).to_vec(),
                    bindings: bindings.to_vec(),
                    groups,
                    flops: values * u64::from(groups[1]) * u64::from(groups[2]) * 10,
                });
            }
        }
        Ok(steps)
    }
}
