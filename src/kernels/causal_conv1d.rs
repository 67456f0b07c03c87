//! `causal_conv1d`, `conv_tail`: the short convolution, and the inputs it leaves for the next call.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};

pub(crate) const NAME: &str = "causal_conv1d";
pub(crate) const TAIL: &str = "conv_tail";
const LANES: u32 = 64;

/// `Params` of `causal_conv1d`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) tokens: u32,
    pub(crate) channels: u32,
    pub(crate) taps: u32,
    pub(crate) fresh: u32,
    pub(crate) item_base: u32,
    pub(crate) width: u32,
    /// Starts, lengths.
    pub(crate) sequences_at: [u32; 2],
    /// Base, sequence, token, channel.
    pub(crate) x: [u32; 4],
    /// Base, channel, tap.
    pub(crate) w: [u32; 3],
    /// Base, channel.
    pub(crate) bias: [u32; 2],
    pub(crate) state_base: u32,
    /// Base, sequence.
    pub(crate) y: [u32; 2],
}

/// `Params` of `conv_tail`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct TailParams {
    pub(crate) tokens: u32,
    pub(crate) channels: u32,
    pub(crate) taps: u32,
    pub(crate) fresh: u32,
    pub(crate) slot_base: u32,
    pub(crate) sequences_at: [u32; 2],
    pub(crate) x: [u32; 4],
    pub(crate) state_base: u32,
    pub(crate) state_slot: u32,
}

/// What the texts depend on; loaders by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) x: &'static str,
    pub(crate) w: &'static str,
    pub(crate) bias: Option<&'static str>,
    pub(crate) silu: bool,
    pub(crate) ragged: bool,
    pub(crate) keep: bool,
}

pub(crate) fn constants(p: Problem) -> Constants {
    Constants::default()
        .set("LANES", LANES)
        .set("RAGGED", p.ragged)
        .set("BIAS", p.bias.is_some())
        .set("SILU", p.silu)
        .set("x", p.x)
        .set("w", p.w)
        .set("bias", p.bias.unwrap_or("load_f32_element"))
}

pub(crate) fn tail_constants(p: Problem) -> Constants {
    Constants::default().set("LANES", LANES).set("RAGGED", p.ragged).set("KEEP", p.keep).set("x", p.x)
}

/// Dispatches for all outputs of `sequences`. Bindings: x, w, bias, table, state, y.
pub(crate) fn steps(
    p: Problem,
    params: Params,
    bindings: &[Binding; 6],
    sequences: u32,
    limits: &crate::Limits,
) -> Vec<Step> {
    let items = params.tokens as usize * params.channels as usize;
    let item_flops = u64::from(2 * params.taps + 1) * u64::from(sequences);
    let width = (items as u32).min(limits.workgroups.min(1024) * LANES);
    let rows = (limits.dispatch_flops / item_flops / u64::from(width.max(1)))
        .clamp(1, u64::from(limits.workgroups)) as usize;
    let at_once = width as usize * rows;
    (0..items)
        .step_by(at_once.max(1))
        .map(|first| {
            let now = (items - first).min(at_once);
            let params = Params { item_base: first as u32, width, ..params };
            Step {
                kernel: NAME,
                constants: constants(p),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.to_vec(),
                groups: [width.div_ceil(LANES), now.div_ceil(width as usize) as u32, sequences],
                flops: now as u64 * item_flops,
            }
        })
        .collect()
}

/// Dispatches for `slots` states. Bindings: x, table, state.
pub(crate) fn tail_steps(
    p: Problem,
    params: TailParams,
    bindings: &[Binding; 3],
    [sequences, slots]: [u32; 2],
    max_groups: u32,
) -> Vec<Step> {
    let per_slot = u64::from(params.channels) * u64::from(params.taps) * u64::from(sequences);
    (0..slots)
        .step_by(max_groups as usize)
        .map(|slot_base| {
            let now = (slots - slot_base).min(max_groups);
            let params = TailParams { slot_base, ..params };
            Step {
                kernel: TAIL,
                constants: tail_constants(p),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.to_vec(),
                groups: [params.channels.div_ceil(LANES), now, sequences],
                flops: u64::from(now) * per_slot,
            }
        })
        .collect()
}
