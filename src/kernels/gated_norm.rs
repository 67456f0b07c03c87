//! `gated_norm`: RMS normalisation with a gate before or after it.

use bytemuck::{Pod, Zeroable};

use crate::Limits;
use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::LOOP_ITERATIONS;

pub(crate) const NAME: &str = "gated_norm";
const LANES: u32 = 64;
/// Widest group: two walks over it by 64 lanes stay within what an invocation may run.
pub(crate) const MAX_GROUP: usize = (LOOP_ITERATIONS as usize / 4 * 3 - 64) / 2 * LANES as usize;
/// Bytes of its workgroup memory.
pub(crate) const WORKGROUP_BYTES: u32 = LANES * 4;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) rows: u32,
    pub(crate) width: u32,
    pub(crate) row_base: u32,
    pub(crate) group: u32,
    pub(crate) groups: u32,
    /// x, z, w, y.
    pub(crate) bases: [u32; 4],
    pub(crate) eps: f32,
}

/// What the text depends on; loaders by name.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) before: bool,
    pub(crate) silu: bool,
    pub(crate) x: &'static str,
    pub(crate) z: &'static str,
    pub(crate) w: &'static str,
}

pub(crate) fn constants(p: Problem) -> Constants {
    Constants::default()
        .set("LANES", LANES)
        .set("BEFORE", p.before)
        .set("SILU", p.silu)
        .set("x", p.x)
        .set("z", p.z)
        .set("w", p.w)
}

/// Dispatches for all groups. Bindings: x, z, w, y.
pub(crate) fn steps(p: Problem, params: Params, bindings: &[Binding; 4], limits: &Limits) -> Vec<Step> {
    let group_flops = 20 * u64::from(params.group);
    let width = params.rows.min(limits.workgroups.min(1024));
    let lines = (limits.dispatch_flops / (group_flops * u64::from(width)).max(1))
        .clamp(1, u64::from(limits.workgroups));
    let at_once = width as usize * lines as usize;
    (0..params.rows as usize)
        .step_by(at_once.max(1))
        .map(|first| {
            let now = (params.rows as usize - first).min(at_once) as u32;
            let params = Params { width, row_base: first as u32, ..params };
            Step {
                kernel: NAME,
                constants: constants(p),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.to_vec(),
                groups: [width, now.div_ceil(width), 1],
                flops: group_flops * u64::from(now),
            }
        })
        .collect()
}
