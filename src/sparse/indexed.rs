//! Attention over a list of keys for each query.

use std::ops::Range;

use super::{
    Prefix, Resolved, axes, bind, check_dtype, check_shape, check_shared, operand, parameter_scale,
    row_stride, stand_in, strides, wrong_shape,
};
use crate::attention::{AttentionOutput, MAX_DIM};
use crate::gpu::{Binding, DType, Gpu, Step, Tensor};
use crate::kernels::attention::Operand;
use crate::kernels::indexed_attention::{self as kernel, Params, Problem, Tuning};
use crate::kernels::merge_partials;
use crate::mask::MAX_POSITION;
use crate::{Error, Result};

/// Softmax attention in which each query sees the keys of its list and nothing else is read.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | q | `[batch, heads_q, seq_q, dim_k]` | f32, f16, bf16 |
/// | k | `[batch, heads_kv, seq_kv, dim_k]` | f32, f16, bf16 |
/// | v | `[batch, heads_kv, seq_kv, dim_v]`; for latents a view of k | f32, f16, bf16 |
/// | indices | `[batch, seq_q, entries]`, or `[batch, heads_kv, seq_q, entries]` | i32 |
/// | o | `[batch, heads_q, seq_q, dim_v]` | f32, or any with `dim_v` a multiple of 4 |
/// | lse | `[batch, heads_q, seq_q]` | f32, natural logarithm |
///
/// Entries come in any order. One that is negative, at or past `seq_kv`, or of a key that the query does not see
/// (see [`Prefix`]) is a hole: nothing is read for it. An entry that repeats the one before it counts once, so
/// that duplicates are harmless in sorted lists; elsewhere a key that is listed twice weighs twice. A row that
/// sees no key gives 0 and minus infinity. With [`block`](Self::block) an entry stands for that many
/// neighbouring keys.
///
/// `lse` makes the result mergeable, see [`merge_partials`](crate::merge_partials).
#[derive(Debug, Clone)]
pub struct IndexedAttention {
    visible: Prefix,
    scale: Option<f32>,
    block: u32,
    compact: bool,
    output: Option<DType>,
    kernel: Option<String>,
    splits: Option<u32>,
}

/// A checked call.
pub(super) struct Launch<'a> {
    inputs: [&'a Tensor; 3],
    indices: Option<&'a Tensor>,
    out: &'a AttentionOutput,
    problem: Problem,
    seq_kv: usize,
    block: u32,
    scale: f32,
    tuning: Tuning,
    /// Keys of each part that a binding holds.
    windows: Vec<Range<usize>>,
    dummies: [Binding; 2],
}

impl IndexedAttention {
    /// Each query sees the keys of its list that lie at or before its position.
    #[must_use]
    pub fn causal() -> Self {
        Self::new(Prefix::causal())
    }

    /// Which keys of its list each query sees.
    #[must_use]
    pub fn new(visible: Prefix) -> Self {
        Self { visible, scale: None, block: 1, compact: false, output: None, kernel: None, splits: None }
    }

    /// Factor of the scores, by default `dim_k^-0.5`.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Keys to an entry: entry `e` stands for keys `e * block .. (e + 1) * block`.
    #[must_use]
    pub fn block(mut self, block: u32) -> Self {
        self.block = block;
        self
    }

    /// Storage type of `o` in [`run`](Self::run), by default f32.
    #[must_use]
    pub fn output(mut self, dtype: DType) -> Self {
        self.output = Some(dtype);
        self
    }

    /// Insists on one kernel by its name in `shaders/`; for tests and measurements.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// Insists on a number of splits of the lists; for tests and measurements.
    #[must_use]
    pub fn splits(mut self, splits: u32) -> Self {
        self.splits = Some(splits);
        self
    }

    /// Lists hold as many entries as the query sees keys (or blocks), then holes: what top-k writes. The rest is
    /// not walked.
    pub(super) fn compact(mut self) -> Self {
        self.compact = true;
        self
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, storage type, stride or limit, by name; or the device's own words.
    pub fn run(
        &self,
        gpu: &Gpu,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        indices: &Tensor,
    ) -> Result<AttentionOutput> {
        let out = self.allocate(gpu, q, k, v)?;
        let launch = self.check(gpu, q, k, v, Some(indices), &out)?;
        let resolved = launch.resolve(gpu, &self.visible)?;
        gpu.run_steps(&resolved.copies, &launch.steps(gpu, &resolved)?)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs that share a buffer with an input.
    #[expect(
        clippy::too_many_arguments,
        reason = "four inputs and an output, as `Attention::record` plus the list"
    )]
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
        indices: &Tensor,
        out: &AttentionOutput,
    ) -> Result<()> {
        let launch = self.check(gpu, q, k, v, Some(indices), out)?;
        let resolved = launch.resolve(gpu, &self.visible)?;
        gpu.record(encoder, &resolved.copies, &launch.steps(gpu, &resolved)?)
    }

    /// Outputs of a call on these inputs.
    pub(super) fn allocate(&self, gpu: &Gpu, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<AttentionOutput> {
        let ([batch, heads_q, seq_q, _], [.., dim_v]) = sizes(q, k, v)?;
        let dtype = self.output.unwrap_or(DType::F32);
        Ok(AttentionOutput {
            o: Tensor::uninitialised(gpu, dtype, [batch, heads_q, seq_q, dim_v])?,
            lse: Some(Tensor::uninitialised(gpu, DType::F32, [batch, heads_q, seq_q])?),
        })
    }

    /// Refuses what cannot run. Without `indices` every key that a query sees is in its list.
    pub(super) fn check<'a>(
        &self,
        gpu: &Gpu,
        q: &'a Tensor,
        k: &'a Tensor,
        v: &'a Tensor,
        indices: Option<&'a Tensor>,
        out: &'a AttentionOutput,
    ) -> Result<Launch<'a>> {
        let ([batch, heads_q, seq_q, dim_k], [heads_kv, seq_kv, dim_v]) = sizes(q, k, v)?;
        if self.block == 0 || self.block > MAX_POSITION {
            return Err(Error::OutOfRange {
                field: "block",
                value: self.block.to_string(),
                bound: format!("between 1 and {MAX_POSITION}"),
                remedy: "give the number of keys to an entry",
            });
        }
        let mut slots = seq_kv;
        if let Some(indices) = indices {
            check_dtype("indices", indices, DType::I32)?;
            let entries = *indices.shape().last().unwrap_or(&0);
            let fits = match *indices.shape() {
                [b, q, _] => b == batch && q == seq_q,
                [b, h, q, _] => b == batch && h == heads_kv && q == seq_q,
                _ => false,
            };
            if !fits {
                let expected =
                    format!("[{batch}, {seq_q}, entries] or [{batch}, {heads_kv}, {seq_q}, entries]");
                return Err(wrong_shape("indices", indices, expected, "give each query a list"));
            }
            row_stride("indices", indices)?;
            slots = entries.saturating_mul(self.block as usize);
        }
        if slots > 1 << 29 {
            return Err(Error::OutOfRange {
                field: "indices",
                value: slots.to_string(),
                bound: "at most 2^29 keys to a list".into(),
                remedy: "attend to parts of the list and merge the partial results",
            });
        }
        check_shape("o", &out.o, &[batch, heads_q, seq_q, dim_v])?;
        let o = operand("o", &out.o)?;
        if o.dtype != DType::F32 && !o.quads {
            return Err(Error::Strides {
                field: "o",
                strides: out.o.strides().to_vec(),
                bound: "16-bit rows must be whole groups of four that start on multiples of four",
                remedy: "write f32",
            });
        }
        let mut outputs = vec![("o", &out.o)];
        if let Some(lse) = &out.lse {
            check_dtype("lse", lse, DType::F32)?;
            check_shape("lse", lse, &[batch, heads_q, seq_q])?;
            row_stride("lse", lse)?;
            check_shared(&[("lse", lse)], &[("o", &out.o)])?;
            outputs.push(("lse", lse));
        }
        check_shared(&outputs, &[("q", q), ("k", k), ("v", v)])?;
        if let Some(indices) = indices {
            check_shared(&outputs, &[("indices", indices)])?;
        }
        let scale = parameter_scale("scale", self.scale.unwrap_or((dim_k as f32).powf(-0.5)), false)?;
        let windows = windows(gpu, k, v)?;
        let problem = Problem {
            batch,
            heads_q,
            heads_kv,
            seq_q,
            dim_k,
            dim_v,
            slots,
            q: operand("q", q)?,
            k: operand("k", k)?,
            v: operand("v", v)?,
            o,
            list: indices.is_some(),
            compact: self.compact || indices.is_none(),
            lse: out.lse.is_some(),
            seen: self.visible.constants(),
            windows: windows.len(),
            splits: self.splits,
        };
        let tuning = kernel::tune(&problem, gpu.limits(), self.kernel.as_deref())?;
        let dummies = [stand_in(gpu, "absent input")?, stand_in(gpu, "absent output")?];
        let inputs = [q, k, v];
        Ok(Launch {
            inputs,
            indices,
            out,
            problem,
            seq_kv,
            block: self.block,
            scale,
            tuning,
            windows,
            dummies,
        })
    }

    /// Which keys the lists may name.
    pub(super) fn visible(&self) -> &Prefix {
        &self.visible
    }
}

/// Sizes of a call: `[batch, heads_q, seq_q, dim_k]` and `[heads_kv, seq_kv, dim_v]`.
fn sizes(q: &Tensor, k: &Tensor, v: &Tensor) -> Result<([usize; 4], [usize; 3])> {
    let four = "[batch, heads, seq, dim]";
    let [batch, heads_q, seq_q, dim_k] = axes("q", q, four)?;
    let [_, heads_kv, seq_kv, _] = axes("k", k, four)?;
    let [.., dim_v] = axes::<4>("v", v, four)?;
    if heads_kv == 0 || heads_q == 0 || heads_q % heads_kv != 0 {
        return Err(Error::Heads { heads_q, heads_kv });
    }
    check_shape("k", k, &[batch, heads_kv, seq_kv, dim_k])?;
    check_shape("v", v, &[batch, heads_kv, seq_kv, dim_v])?;
    for (field, dim) in [("dim_k", dim_k), ("dim_v", dim_v)] {
        if dim == 0 || dim > MAX_DIM {
            return Err(Error::OutOfRange {
                field,
                value: dim.to_string(),
                bound: format!("between 1 and {MAX_DIM}"),
                remedy: "split wider heads",
            });
        }
    }
    Ok(([batch, heads_q, seq_q, dim_k], [heads_kv, seq_kv, dim_v]))
}

/// Ranges of keys whose k and v a binding holds, over all heads of a batch entry.
fn windows(gpu: &Gpu, k: &Tensor, v: &Tensor) -> Result<Vec<Range<usize>>> {
    let seq_kv = k.shape()[2];
    let mut most = seq_kv.max(1);
    for (field, t) in [("k", k), ("v", v)] {
        let bytes = t.dtype().bytes();
        let heads = t.shape()[1].saturating_sub(1) * t.strides()[1] * bytes;
        let key = t.strides()[2].max(t.shape()[3]) * bytes;
        let room = gpu.limits().binding_bytes as usize - gpu.limits().offset_alignment as usize;
        let keys = room.saturating_sub(heads) / key;
        if keys == 0 {
            return Err(Error::Binding {
                field,
                needed: (heads + key) as u64,
                limit: "max_storage_buffer_binding_size",
                allowed: gpu.limits().binding_bytes,
                split: "heads, or lay keys out by position: [batch, seq, heads, dim]",
            });
        }
        most = most.min(keys);
    }
    let count = seq_kv.div_ceil(most).max(1);
    let each = seq_kv.div_ceil(count);
    Ok((0..count).map(|w| w * each..((w + 1) * each).min(seq_kv)).collect())
}

/// Batch entries and queries that one series of dispatches covers.
struct Slab {
    batch: Range<usize>,
    queries: Range<usize>,
}

impl Launch<'_> {
    pub(super) fn resolve(&self, gpu: &Gpu, visible: &Prefix) -> Result<Resolved> {
        visible.resolve(gpu, self.problem.batch, self.problem.seq_q, self.seq_kv)
    }

    /// Partial results of a query: splits of its list in each window of the keys.
    fn parts(&self) -> usize {
        self.tuning.splits as usize * self.windows.len()
    }

    pub(super) fn steps(&self, gpu: &Gpu, resolved: &Resolved) -> Result<Vec<Step>> {
        let p = &self.problem;
        if self.out.o.is_empty() {
            return Ok(Vec::new());
        }
        let limits = gpu.limits();
        let room = (limits.binding_bytes / 2) as usize;
        let held = |t: &Tensor, axis: usize| (t.strides()[axis].max(1) * t.dtype().bytes()).min(room);
        let [q, k, v] = self.inputs;
        let entry = held(q, 0).max(held(k, 0)).max(held(v, 0)).max(held(&self.out.o, 0));
        let entry = self.indices.map_or(entry, |list| entry.max(held(list, 0)));
        let row = held(q, 2).max(held(&self.out.o, 2));
        let list_row = self.indices.map_or(1, |list| held(list, list.shape().len() - 2));
        // what one query needs: time, memory for partial results, workgroups
        let parts = self.parts();
        let query_flops = (2 * p.heads_q * (p.dim_k + p.dim_v) * p.slots.max(1)) as u64;
        let partial = if parts > 1 { parts * p.heads_q * (p.dim_v + 1) * 4 } else { 1 };
        let row_tiles = p.groups().div_ceil(self.tuning.rows as usize);
        let most = (limits.dispatch_flops / query_flops).max(1) as usize;
        let most = most.min((room / partial).max(1));
        let whole_batch = (room / entry).max(1).min(limits.workgroups as usize / p.heads_kv);
        let entries = (most / p.seq_q.max(1)).clamp(1, p.batch).min(whole_batch.max(1));
        let queries = most.clamp(1, p.seq_q).min((room / row).max(1)).min((room / list_row).max(1));
        let queries = queries.min((limits.workgroups as usize / row_tiles).max(1));
        let partials = if parts > 1 {
            let rows = parts * entries * queries * p.heads_q;
            Some([
                Tensor::uninitialised(gpu, DType::F32, [rows * p.dim_v])?,
                Tensor::uninitialised(gpu, DType::F32, [rows])?,
            ])
        } else {
            None
        };
        let mut steps = Vec::new();
        for b in (0..p.batch).step_by(entries) {
            for i in (0..p.seq_q).step_by(queries) {
                let slab =
                    Slab { batch: b..(b + entries).min(p.batch), queries: i..(i + queries).min(p.seq_q) };
                for window in 0..self.windows.len() {
                    steps.push(self.attend(gpu, resolved, &slab, window, partials.as_ref())?);
                }
                if let Some(partials) = &partials {
                    steps.extend(self.merge(gpu, resolved, &slab, partials)?);
                }
            }
        }
        Ok(steps)
    }

    fn attend(
        &self,
        gpu: &Gpu,
        resolved: &Resolved,
        slab: &Slab,
        window: usize,
        partials: Option<&[Tensor; 2]>,
    ) -> Result<Step> {
        let (p, tuning) = (&self.problem, &self.tuning);
        let (batch, queries) = (&slab.batch, &slab.queries);
        let keys = self.windows[window].clone();
        // kernels count batch entries and queries from the slab's first, keys from the window's first
        let bound = |field, t: &Tensor, rows: &Range<usize>| -> Result<(Binding, [u32; 4])> {
            if t.is_empty() {
                return Ok((self.dummies[0].clone(), [0; 4]));
            }
            let (binding, base) = bind(gpu, field, t, &[batch.clone(), 0..t.shape()[1], rows.clone()])?;
            let [b, h, r] = strides(t);
            let skipped =
                (batch.start as u32).wrapping_mul(b).wrapping_add((rows.start as u32).wrapping_mul(r));
            Ok((binding, [base.wrapping_add(skipped), b, h, r]))
        };
        let [q, k, v] = self.inputs;
        let (q_binding, q) = bound("q", q, queries)?;
        let (k_binding, k) = bound("k", k, &keys)?;
        let (v_binding, v) = bound("v", v, &keys)?;
        let (list_binding, list) = match self.indices {
            Some(t) if t.shape().len() == 3 => {
                let shared = t.view(
                    0,
                    &[t.shape()[0], 1, t.shape()[1], t.shape()[2]],
                    &[t.strides()[0], 0, t.strides()[1], 1],
                )?;
                bound("indices", &shared, queries)?
            }
            Some(t) => bound("indices", t, queries)?,
            None => (self.dummies[0].clone(), [0; 4]),
        };
        let rows = batch.len() * p.heads_q * queries.len();
        let packed = [p.heads_q * queries.len(), queries.len(), 1].map(|n| n as u32);
        let first = window * tuning.splits as usize * rows;
        let (o_binding, o, lse_binding, lse) = if let Some([o, lse]) = partials {
            let (o_binding, o_base) = o.bind(gpu, 0, o.len());
            let (lse_binding, lse_base) = lse.bind(gpu, 0, lse.len());
            let dim_v = p.dim_v as u32;
            let [b, h, r] = packed;
            (
                o_binding,
                [o_base + first as u32 * dim_v, b * dim_v, h * dim_v, r * dim_v, rows as u32 * dim_v],
                lse_binding,
                [lse_base + first as u32, b, h, r, rows as u32],
            )
        } else {
            let (o_binding, [o, b, h, r]) = bound("o", &self.out.o, queries)?;
            let (lse_binding, lse) = self.lse(gpu, slab)?;
            (o_binding, [o, b, h, r, 0], lse_binding, [lse[0], lse[1], lse[2], 1, 0])
        };
        let row_tiles = p.groups().div_ceil(tuning.rows as usize);
        let params = Params {
            rows: p.groups() as u32,
            heads: p.heads_kv as u32,
            seq_kv: self.seq_kv as u32,
            slots: p.slots as u32,
            block: self.block,
            batch_base: batch.start as u32,
            query_base: queries.start as u32,
            row_tiles: row_tiles as u32,
            split_base: 0,
            split_slots: tuning.split_slots,
            key_first: keys.start as u32,
            key_end: keys.end as u32,
            q,
            k,
            v,
            list,
            o,
            lse,
            scale: self.scale * std::f32::consts::LOG2_E,
            bounds: tuning.bounds,
            seen: resolved.seen,
        };
        let flops = 2 * rows * (p.dim_k + p.dim_v) * p.slots;
        Ok(Step {
            kernel: tuning.kernel,
            constants: tuning.constants.clone(),
            params: bytemuck::bytes_of(&params).to_vec(),
            bindings: vec![
                q_binding,
                k_binding,
                v_binding,
                list_binding,
                resolved.table.clone(),
                o_binding,
                lse_binding,
            ],
            groups: [(queries.len() * row_tiles) as u32, tuning.splits, (batch.len() * p.heads_kv) as u32],
            flops: flops as u64,
        })
    }

    /// Binding of the slab's log-sum-exps, and base (of the slab's first), batch and head strides.
    fn lse(&self, gpu: &Gpu, slab: &Slab) -> Result<(Binding, [u32; 3])> {
        let Some(t) = &self.out.lse else { return Ok((self.dummies[1].clone(), [0; 3])) };
        let heads = 0..t.shape()[1];
        let (binding, base) = bind(gpu, "lse", t, &[slab.batch.clone(), heads, slab.queries.clone()])?;
        let [b, h] = strides(t);
        let skipped = (slab.batch.start as u32).wrapping_mul(b).wrapping_add(slab.queries.start as u32);
        Ok((binding, [base.wrapping_add(skipped), b, h]))
    }

    fn merge(
        &self,
        gpu: &Gpu,
        resolved: &Resolved,
        slab: &Slab,
        [part_o, part_lse]: &[Tensor; 2],
    ) -> Result<Vec<Step>> {
        let p = &self.problem;
        let (batch, queries) = (slab.batch.len(), slab.queries.len());
        let rows = (batch * p.heads_q * queries) as u32;
        let (a, a_base) = part_o.bind(gpu, 0, part_o.len());
        let (a_lse, a_lse_base) = part_lse.bind(gpu, 0, part_lse.len());
        let heads = 0..p.heads_q;
        let (o, o_base) = bind(gpu, "o", &self.out.o, &[slab.batch.clone(), heads, slab.queries.clone()])?;
        let [ob, oh, or] = strides(&self.out.o);
        let skipped = (slab.batch.start as u32)
            .wrapping_mul(ob)
            .wrapping_add((slab.queries.start as u32).wrapping_mul(or));
        let (lse, lse_at) = self.lse(gpu, slab)?;
        let operand: Operand = p.o;
        let problem =
            merge_partials::Problem { dim_v: p.dim_v, o: operand, sinks: false, lse: self.out.lse.is_some() };
        let params = merge_partials::Params {
            rows: queries as u32,
            groups: 1,
            heads: p.heads_q as u32,
            total: rows,
            parts: [self.parts() as u32, 0],
            a: [a_base, a_lse_base, rows * p.dim_v as u32, rows],
            o: [o_base.wrapping_add(skipped), ob, oh, or],
            lse: lse_at,
            ..merge_partials::Params::default()
        };
        let none = self.dummies[0].clone();
        let bindings = [a, a_lse, none.clone(), none, resolved.table.clone(), o, lse];
        Ok(merge_partials::steps(problem, params, &bindings, gpu.limits().workgroups))
    }
}
