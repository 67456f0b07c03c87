//! `project_heads`: rows of each head through the head's own matrix.

use bytemuck::{Pod, Zeroable};

use super::attention::Operand;
use crate::attention::{operand, row_stride};
use crate::gpu::shader::Constants;
use crate::gpu::{Gpu, Step, Tensor};
use crate::limits::Limits;
use crate::rope::check_words;
use crate::{Error, Result};

pub(crate) const NAME: &str = "project_heads";
/// Groups of four inputs to a stage.
const CHUNK: u32 = 4;

/// `Params` of the shader.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    rows: u32,
    seq: u32,
    n_in: u32,
    n_out: u32,
    tile_base: u32,
    head_base: u32,
    x: [u32; 4],
    /// Base, head, output, input.
    w: [u32; 4],
    y: [u32; 4],
    /// `chunk`, `stage_x`, `stage_w`.
    bounds: [u32; 3],
}

/// What the text depends on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Problem {
    pub(crate) rows: usize,
    pub(crate) out_contiguous: bool,
    pub(crate) x: Operand,
    pub(crate) w: Operand,
    pub(crate) y: Operand,
}

/// Lanes across outputs, lanes across rows, rows to a lane.
fn tiles(rows: usize) -> [u32; 3] {
    match rows {
        0..=1 => [32, 1, 1],
        2..=4 => [16, 4, 1],
        _ => [16, 4, 4],
    }
}

impl Problem {
    pub(crate) fn constants(&self, limits: &Limits) -> Constants {
        let [x, y, rows] = tiles(self.rows);
        Constants::default()
            .set("LANES_X", x)
            .set("LANES_Y", y)
            .set("ROWS", rows)
            .set("OUT_CONTIGUOUS", self.out_contiguous)
            .set("x", self.x.loader(limits))
            .set("w", self.w.loader(limits))
            .set("y", self.y.pair_storer())
    }

    /// Workgroup memory in bytes.
    pub(crate) fn workgroup_bytes(&self) -> u32 {
        let [x, y, rows] = tiles(self.rows);
        16 * (CHUNK + 1) * (y * rows + 4 * x)
    }
}

/// How a matrix lies: with neighbouring outputs, or neighbouring inputs (the usual `[out, in]`).
fn matrix(field: &'static str, w: &Tensor) -> Result<(bool, Operand)> {
    let [heads, out, input] = [w.shape()[0], w.shape()[1], w.shape()[2]];
    let s = w.strides();
    let out_contiguous = s[2] != 1 && input > 1;
    let as_rows = if out_contiguous {
        w.view(0, &[1, heads, input, out], &[0, s[0], s[2], s[1]])?
    } else {
        w.view(0, &[1, heads, out, input], &[0, s[0], s[1], s[2]])?
    };
    Ok((out_contiguous, operand(field, &as_rows)?))
}

/// The dispatches of `y = w x`: `x` `[batch, heads, seq, in]`, `w` `[heads, out, in]`, `y`
/// `[batch, heads, seq, out]`. The caller has checked the shapes.
pub(crate) fn steps(gpu: &Gpu, x: &Tensor, field: &'static str, w: &Tensor, y: &Tensor) -> Result<Vec<Step>> {
    let limits = gpu.limits();
    let [batch, heads, seq, n_in] = [x.shape()[0], x.shape()[1], x.shape()[2], x.shape()[3]];
    let n_out = w.shape()[1];
    row_stride("y", y)?;
    check_words("o", y)?;
    for (field, t) in [("x", x), (field, w), ("y", y)] {
        let (needed, allowed) = (t.span_bytes(), limits.binding_bytes);
        if needed > allowed {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::Binding { field, needed, limit, allowed, split: "heads" });
        }
    }
    if y.is_empty() {
        return Ok(Vec::new());
    }
    let (out_contiguous, w_operand) = matrix(field, w)?;
    let rows = batch * seq;
    let problem = Problem { rows, out_contiguous, x: operand("x", x)?, w: w_operand, y: operand("y", y)? };
    let [lanes_x, lanes_y, block] = tiles(rows);
    let row_tile = lanes_y * block;
    let (x_binding, x_base) = x.bind(gpu, 0, x.span());
    let (w_binding, w_base) = w.bind(gpu, 0, w.span());
    let (y_binding, y_base) = y.bind(gpu, 0, y.span());
    let s = w.strides();
    let stage_w = if out_contiguous { 4 * CHUNK * lanes_x } else { 4 * lanes_x * CHUNK };
    let params = Params {
        rows: rows as u32,
        seq: seq as u32,
        n_in: n_in as u32,
        n_out: n_out as u32,
        x: x.place(x_base),
        w: [w_base, s[0] as u32, s[1] as u32, s[2] as u32],
        y: y.place(y_base),
        bounds: [CHUNK, row_tile * CHUNK, stage_w],
        ..Params::default()
    };
    let constants = problem.constants(limits);
    let bindings = vec![x_binding, w_binding, y_binding];
    let row_tiles = rows.div_ceil(row_tile as usize);
    // a dispatch holds some tiles of rows of some heads, so that none runs for long
    let tile_flops = 2 * u64::from(row_tile) * (n_in * n_out) as u64;
    let most = usize::try_from(limits.dispatch_flops / tile_flops.max(1)).unwrap_or(usize::MAX).max(1);
    let tiles_at_once = row_tiles.min(most).min(limits.workgroups as usize);
    let heads_at_once = heads.min(most / tiles_at_once).clamp(1, limits.workgroups as usize);
    let mut steps = Vec::new();
    for head in (0..heads).step_by(heads_at_once) {
        for tile in (0..row_tiles).step_by(tiles_at_once) {
            let (heads, tiles) = (heads_at_once.min(heads - head), tiles_at_once.min(row_tiles - tile));
            let params = Params { head_base: head as u32, tile_base: tile as u32, ..params };
            steps.push(Step {
                kernel: NAME,
                constants: constants.clone(),
                params: bytemuck::bytes_of(&params).to_vec(),
                bindings: bindings.clone(),
                groups: [(n_out as u32).div_ceil(4 * lanes_x), tiles as u32, heads as u32],
                flops: tile_flops * (heads * tiles) as u64,
            });
        }
    }
    Ok(steps)
}
