//! From tensors to dispatches: slabs of batch entries, heads and rows that fit the device's limits.

use std::ops::Range;

use super::cached::{Input, Kv};
use super::{Attention, AttentionOutput, operand, row_stride};
use crate::gpu::{Binding, Copy, DType, Gpu, Step, Table, Tensor};
use crate::kernels::attention::{Params, Problem};
use crate::kernels::{merge_partials, pack_words};
use crate::plan::AttentionPlan;
use crate::{Error, Result};

/// Batch entries, key-value heads and rows that one series of dispatches covers.
#[derive(Debug, Clone)]
struct Slab {
    batch: Range<usize>,
    heads: Range<usize>,
    tiles: Range<usize>,
}

impl Slab {
    fn z(&self) -> usize {
        self.batch.len() * self.heads.len()
    }
}

/// Scratch memory may take this much.
const SCRATCH_BYTES: u64 = 256 << 20;

/// First words of the small tensors in the table.
#[derive(Debug, Default, Clone, Copy)]
struct TableAt {
    kv_len: u32,
    q_starts: u32,
    sinks: u32,
    slopes: u32,
    pages: u32,
}

struct Launch<'a> {
    gpu: &'a Gpu,
    problem: Problem,
    plan: AttentionPlan,
    inputs: [Input<'a>; 3],
    /// Pages listed for a batch entry.
    pages_batch: u32,
    bias: Option<&'a Tensor>,
    /// Where kernels write: the caller's tensor, or f32 scratch that `pack_words` then packs.
    o: Tensor,
    lse: Option<Tensor>,
    table: Binding,
    at: TableAt,
    /// Stand-ins for tensors that are absent, one to read and one to write.
    dummies: [Binding; 2],
    partials: Option<Tensor>,
}

impl Attention {
    /// Copies and dispatches of a call; everything is refused here or not at all.
    pub(crate) fn launch(
        &self,
        gpu: &Gpu,
        q: &Tensor,
        kv: &Kv<'_>,
        out: &AttentionOutput,
    ) -> Result<(Vec<Copy>, Vec<Step>)> {
        let shape = kv.shape(q)?;
        let rows = [shape.batch, shape.heads_q, shape.seq_q];
        check_output("o", &out.o, &[rows[0], rows[1], rows[2], shape.dim_v])?;
        if let Some(lse) = &out.lse {
            check_output("lse", lse, &rows)?;
            if lse.dtype() != DType::F32 {
                return Err(Error::DType { field: "lse", dtype: lse.dtype().name(), allowed: "f32" });
            }
        }
        let q_operand = operand("q", q)?;
        let [k_operand, v_operand] = kv.operands()?;
        let operands = [q_operand, k_operand, v_operand, operand("o", &out.o)?];
        let mut problem = self.problem(&shape, operands, out.lse.is_some())?;
        problem.cached = kv.cached();
        let [k, v] = kv.inputs();
        self.check_shared(&[("q", q.buffer()), ("k", k.buffer()), ("v", v.buffer())], out)?;
        let plan = AttentionPlan::choose(&problem, gpu.limits(), self.kernel.as_deref())?;
        if out.o.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }
        let (table, at, copies) = self.table(gpu, kv.pages())?;
        let dummy = |what| gpu.buffer(what, 16).map(|buffer| Binding { buffer, offset: 0, size: 16 });
        let mut launch = Launch {
            gpu,
            plan,
            inputs: [Input::Tensor(q), k, v],
            pages_batch: kv.pages().map_or(0, |pages| pages.shape()[1] as u32),
            bias: self.bias.as_ref(),
            o: out.o.clone(),
            lse: out.lse.clone(),
            table,
            at,
            dummies: [dummy("absent input")?, dummy("absent output")?],
            partials: None,
            problem,
        };
        let steps = launch.steps(&out.o)?;
        Ok((copies, steps))
    }

    fn check_shared(&self, inputs: &[(&'static str, &wgpu::Buffer); 3], out: &AttentionOutput) -> Result<()> {
        let bias = self.bias.as_ref().map(|b| ("bias", b.buffer()));
        for (other, input) in inputs.iter().copied().chain(bias) {
            for (field, output) in [("o", Some(&out.o)), ("lse", out.lse.as_ref())] {
                if output.is_some_and(|o| o.buffer() == input) {
                    return Err(Error::SharedBuffer { field, other });
                }
            }
        }
        Ok(())
    }

    fn table(&self, gpu: &Gpu, pages: Option<&Tensor>) -> Result<(Binding, TableAt, Vec<Copy>)> {
        let mut table = Table::default();
        let mut add = |field, tensor: Option<&Tensor>| match tensor {
            Some(t) => table.add(field, t),
            None => Ok(0),
        };
        let at = TableAt {
            kv_len: add("kv_len", self.kv_len.as_ref())?,
            q_starts: add("q_starts", self.q_starts.as_ref())?,
            sinks: add("sinks", self.sinks.as_ref())?,
            slopes: add("alibi", self.alibi.as_ref())?,
            pages: add("pages", pages)?,
        };
        let (binding, copies) = table.build(gpu)?;
        Ok((binding, at, copies))
    }
}

/// An output must not share a buffer with an input.
pub(crate) fn check_shared(
    outputs: &[(&'static str, &Tensor)],
    inputs: &[(&'static str, &Tensor)],
) -> Result<()> {
    for &(field, output) in outputs {
        for &(other, input) in inputs {
            if output.buffer() == input.buffer() {
                return Err(Error::SharedBuffer { field, other });
            }
        }
    }
    Ok(())
}

pub(crate) fn check_output(field: &'static str, t: &Tensor, shape: &[usize]) -> Result<()> {
    if t.shape() != shape {
        return Err(Error::Shape {
            field,
            shape: t.shape().to_vec(),
            expected: format!("{shape:?}"),
            remedy: "allocate the output for these inputs",
        });
    }
    row_stride(field, t)
}

impl Launch<'_> {
    fn splits(&self) -> u32 {
        self.plan.tuning.splits
    }

    fn steps(&mut self, target: &Tensor) -> Result<Vec<Step>> {
        let slabs = self.slabs(target)?;
        let packs = self.problem.packs_words();
        if packs && !target.is_packed() {
            return Err(Error::Strides {
                field: "o",
                strides: target.strides().to_vec(),
                bound: "16-bit rows that are not whole words must be packed",
                remedy: "write f32, or give o a packed tensor",
            });
        }
        if packs {
            let bytes = target.len() as u64 * 4;
            self.fits("o as f32", bytes)?;
            let scratch = self.scratch(0, bytes)?;
            self.o = Tensor::from_buffer(&scratch, 0, bytes, DType::F32, target.shape())?;
        }
        let largest = slabs.iter().map(|s| self.partial_bytes(s)).max().unwrap_or(0);
        if largest > 0 {
            let scratch = self.scratch(1, largest)?;
            let shape = [largest as usize / 4];
            self.partials = Some(Tensor::from_buffer(&scratch, 0, largest, DType::F32, shape)?);
        }
        let mut steps = Vec::new();
        for slab in &slabs {
            self.attend(slab, &mut steps);
            if self.splits() > 1 {
                self.merge(slab, &mut steps);
            }
        }
        if packs {
            let limit = self.gpu.limits().workgroups;
            let source = self.o.bind(self.gpu, 0, self.o.len());
            let packed = target.bind(self.gpu, 0, target.len());
            steps.push(pack_words::step(target.dtype(), source, packed, target.len(), limit));
        }
        Ok(steps)
    }

    /// Memory between the dispatches: shared where one submission holds the call, else of its own.
    fn scratch(&self, which: usize, bytes: u64) -> Result<wgpu::Buffer> {
        if 2 * self.plan.flops() < self.gpu.limits().dispatch_flops {
            self.gpu.scratch(which, bytes)
        } else {
            self.gpu.buffer("scratch", bytes)
        }
    }

    /// Whether one binding holds `bytes`.
    fn fits(&self, field: &'static str, bytes: u64) -> Result<()> {
        let allowed = self.gpu.limits().binding_bytes;
        if bytes <= allowed {
            return Ok(());
        }
        let limit = "max_storage_buffer_binding_size";
        Err(Error::Binding { field, needed: bytes, limit, allowed, split: "batch, heads or queries" })
    }

    fn rows(&self, slab: &Slab) -> Range<usize> {
        let tile = self.plan.tuning.q_tile as usize;
        slab.tiles.start * tile..(slab.tiles.end * tile).min(self.problem.rows())
    }

    /// Bytes of partial outputs of a slab, and where their log-sum-exps start.
    fn partial_layout(&self, slab: &Slab) -> (u64, u64) {
        let rows = u64::from(self.splits()) * slab.z() as u64 * self.rows(slab).len() as u64;
        let o = (rows * self.problem.dim_v as u64 * 4).next_multiple_of(256);
        (o, rows * 4)
    }

    fn partial_bytes(&self, slab: &Slab) -> u64 {
        let (o, lse) = self.partial_layout(slab);
        if self.splits() > 1 { (o + lse).next_multiple_of(256) } else { 0 }
    }

    /// Elements that a tensor's slab spans, from its first to its last.
    fn span(t: &Tensor, batch: &Range<usize>, heads: &Range<usize>) -> (usize, usize) {
        let (n, s) = (t.shape(), t.strides());
        let first = batch.start * s[0] + heads.start * s[1];
        let rows: usize = n.iter().zip(s).skip(2).map(|(&n, &s)| n.saturating_sub(1) * s).sum();
        let last = (batch.end - 1) * s[0] + (heads.end - 1) * s[1] + rows;
        (first, if t.is_empty() { 0 } else { last + 1 - first })
    }

    fn query_heads(&self, heads: &Range<usize>) -> Range<usize> {
        let groups = self.problem.groups();
        heads.start * groups..heads.end * groups
    }

    /// What of a slab does not fit, if anything.
    fn misfit(&self, slab: &Slab, target: &Tensor) -> Option<Error> {
        let limits = self.gpu.limits();
        let queries = self.query_heads(&slab.heads);
        let [q, k, v] = &self.inputs;
        let target = &Input::Tensor(target);
        for (field, t, heads) in
            [("q", q, &queries), ("k", k, &slab.heads), ("v", v, &slab.heads), ("o", target, &queries)]
        {
            let bytes = match t {
                Input::Tensor(t) => Self::span(t, &slab.batch, heads).1 as u64 * t.dtype().bytes() as u64,
                // caches are no larger than a binding
                Input::Whole(_) => 0,
            };
            if bytes + u64::from(limits.offset_alignment) > limits.binding_bytes.max(1 << 10) {
                return Some(Error::Binding {
                    field,
                    needed: bytes,
                    limit: "max_storage_buffer_binding_size",
                    allowed: limits.binding_bytes,
                    split: "sequence, merging partial results, or give each head memory of its own",
                });
            }
        }
        if let Some(bias) = self.bias {
            let (b, h) = self.bias_ranges(bias, slab);
            let bytes = Self::span(bias, &b, &h).1 as u64 * bias.dtype().bytes() as u64;
            if bytes + u64::from(limits.offset_alignment) > limits.binding_bytes {
                return Some(Error::Binding {
                    field: "bias",
                    needed: bytes,
                    limit: "max_storage_buffer_binding_size",
                    allowed: limits.binding_bytes,
                    split: "queries",
                });
            }
        }
        let scratch = self.partial_bytes(slab);
        let allowed = limits.binding_bytes.min(limits.buffer_bytes).min(SCRATCH_BYTES);
        if scratch > allowed {
            return Some(Error::Binding {
                field: "partial results",
                needed: scratch,
                limit: "max_storage_buffer_binding_size",
                allowed,
                split: "queries",
            });
        }
        (slab.z() > limits.workgroups as usize).then(|| Error::OutOfRange {
            field: "batch",
            value: slab.z().to_string(),
            bound: format!("at most {} workgroups", limits.workgroups),
            remedy: "split the batch",
        })
    }

    fn bias_ranges(&self, bias: &Tensor, slab: &Slab) -> (Range<usize>, Range<usize>) {
        let all = |n: usize, range: Range<usize>| if n == 1 { 0..1 } else { range };
        (all(bias.shape()[0], slab.batch.clone()), all(bias.shape()[1], self.query_heads(&slab.heads)))
    }

    /// Cuts the call by batch, then heads, then rows, until each piece fits.
    fn slabs(&self, target: &Tensor) -> Result<Vec<Slab>> {
        let p = &self.problem;
        let tiles = p.rows().div_ceil(self.plan.tuning.q_tile as usize);
        let (mut n_batch, mut n_heads, mut n_tiles) = (p.batch, p.heads_kv, tiles);
        loop {
            let first = Slab { batch: 0..n_batch, heads: 0..n_heads, tiles: 0..n_tiles };
            // one column of tiles over all of a slab's heads is the least that a dispatch can hold
            let column = self.flops(&Slab { tiles: 0..1, ..first.clone() });
            let heavy = column > self.gpu.limits().dispatch_flops && n_batch * n_heads > 1;
            match self.misfit(&first, target) {
                None if !heavy => break,
                _ if n_batch > 1 => n_batch = n_batch.div_ceil(2),
                _ if n_heads > 1 => n_heads = n_heads.div_ceil(2),
                Some(Error::Binding { field: "partial results", .. }) if n_tiles > 1 => {
                    n_tiles = n_tiles.div_ceil(2);
                }
                None => break,
                Some(error) => return Err(error),
            }
        }
        let cut = |n: usize, by: usize| (0..n).step_by(by).map(move |a| a..(a + by).min(n));
        let mut slabs = Vec::new();
        for batch in cut(p.batch, n_batch) {
            for heads in cut(p.heads_kv, n_heads) {
                for tiles in cut(tiles, n_tiles) {
                    slabs.push(Slab { batch: batch.clone(), heads: heads.clone(), tiles });
                }
            }
        }
        Ok(slabs)
    }

    /// Estimated work of a slab.
    fn flops(&self, slab: &Slab) -> u64 {
        let p = &self.problem;
        let all = p.flops() / (p.batch * p.heads_kv).max(1) as u64;
        let tiles = p.rows().div_ceil(self.plan.tuning.q_tile as usize).max(1);
        all / tiles as u64 * (slab.tiles.len() * slab.z()) as u64
    }

    /// Binding of a tensor's slab; its base, and its batch, head and row strides.
    fn read(&self, t: &Tensor, batch: &Range<usize>, heads: &Range<usize>) -> (Binding, [u32; 4]) {
        let (first, count) = Self::span(t, batch, heads);
        if count == 0 {
            return (self.dummies[0].clone(), [0; 4]);
        }
        let (binding, base) = t.bind(self.gpu, first, count);
        (binding, [base, t.strides()[0] as u32, t.strides()[1] as u32, t.strides()[2] as u32])
    }

    fn attend(&self, slab: &Slab, steps: &mut Vec<Step>) {
        let (gpu, p, tuning) = (self.gpu, &self.problem, &self.plan.tuning);
        let queries = self.query_heads(&slab.heads);
        let input = |input: &Input<'_>, heads: &Range<usize>| match input {
            Input::Tensor(t) => self.read(t, &slab.batch, heads),
            Input::Whole(rows) => rows.bind(slab.batch.start, heads.start),
        };
        let [(q_binding, q), (k_binding, k), (v_binding, v)] = [
            input(&self.inputs[0], &queries),
            input(&self.inputs[1], &slab.heads),
            input(&self.inputs[2], &slab.heads),
        ];
        let (bias_binding, bias) = match self.bias {
            Some(bias) => {
                let (batch, heads) = self.bias_ranges(bias, slab);
                let (binding, mut at) = self.read(bias, &batch, &heads);
                for axis in 0..2 {
                    if bias.shape()[axis] == 1 {
                        at[axis + 1] = 0;
                    }
                }
                (binding, at)
            }
            None => (self.dummies[0].clone(), [0; 4]),
        };
        let rows = self.rows(slab);
        let (o_binding, o, lse_binding, lse) = if let Some(scratch) = &self.partials {
            let (o_bytes, lse_bytes) = self.partial_layout(slab);
            let held = (slab.z() * rows.len()) as u32;
            let (o, o_base) = scratch.bind(gpu, 0, o_bytes as usize / 4);
            let (l, lse_base) = scratch.bind(gpu, o_bytes as usize / 4, lse_bytes as usize / 4);
            let stride = held * p.dim_v as u32;
            (o, [o_base, 0, 0, 0, stride], l, [lse_base, 0, 0, held])
        } else {
            let (o, at) = self.read(&self.o, &slab.batch, &queries);
            let (l, lse) = match &self.lse {
                Some(t) => {
                    let four = t.strides();
                    let first = slab.batch.start * four[0] + queries.start * four[1];
                    let (l, base) = t.bind(gpu, first, self.lse_count(t, slab));
                    (l, [base, four[0] as u32, four[1] as u32, 0])
                }
                None => (self.dummies[1].clone(), [0; 4]),
            };
            (o, [at[0], at[1], at[2], at[3], 0], l, lse)
        };
        let params = Params {
            heads: slab.heads.len() as u32,
            row_base: rows.start as u32,
            row_count: rows.len() as u32,
            q,
            k,
            v,
            bias,
            o,
            lse,
            kv_len_at: self.at.kv_len + slab.batch.start as u32,
            q_starts_at: self.at.q_starts + slab.batch.start as u32,
            sinks_at: self.at.sinks + queries.start as u32,
            slopes_at: self.at.slopes + queries.start as u32,
            pages_at: self.at.pages + slab.batch.start as u32 * self.pages_batch,
            pages_batch: self.pages_batch,
            scales: [self.inputs[1].scales(), self.inputs[2].scales()],
            ..Params::of(p, tuning)
        };
        let constants = self.plan.constants(p, gpu.limits());
        let bindings =
            vec![q_binding, k_binding, v_binding, bias_binding, self.table.clone(), o_binding, lse_binding];
        let limits = gpu.limits();
        let column = self.flops(&Slab { tiles: 0..1, ..slab.clone() }).max(1);
        let at_once = (limits.dispatch_flops / column).clamp(1, u64::from(limits.workgroups)) as usize;
        // a single column may still be too much: then its splits go one series after another
        let splits_at_once = (u64::from(self.splits()) * limits.dispatch_flops
            / column.max(limits.dispatch_flops))
        .clamp(1, u64::from(self.splits())) as usize;
        for first in slab.tiles.clone().step_by(at_once) {
            let tiles = at_once.min(slab.tiles.end - first);
            for split in (0..self.splits() as usize).step_by(splits_at_once) {
                let splits = splits_at_once.min(self.splits() as usize - split);
                let params = Params {
                    tile_base: first as u32,
                    tile_count: tiles as u32,
                    split_base: split as u32,
                    ..params
                };
                steps.push(Step {
                    kernel: self.plan.kernel,
                    constants: constants.clone(),
                    params: bytemuck::bytes_of(&params).to_vec(),
                    bindings: bindings.clone(),
                    groups: [tiles as u32, splits as u32, slab.z() as u32],
                    flops: column * tiles as u64 * splits as u64 / u64::from(self.splits()),
                });
            }
        }
    }

    fn lse_count(&self, t: &Tensor, slab: &Slab) -> usize {
        let s = t.strides();
        (slab.batch.len() - 1) * s[0]
            + (slab.heads.len() * self.problem.groups() - 1) * s[1]
            + (self.problem.seq_q - 1) * s[2]
            + 1
    }

    fn merge(&self, slab: &Slab, steps: &mut Vec<Step>) {
        let Some(scratch) = &self.partials else { return };
        let (gpu, p) = (self.gpu, &self.problem);
        let rows = self.rows(slab);
        let (o_bytes, lse_bytes) = self.partial_layout(slab);
        let held = (slab.z() * rows.len()) as u32;
        let (a, a_base) = scratch.bind(gpu, 0, o_bytes as usize / 4);
        let (a_lse, a_lse_base) = scratch.bind(gpu, o_bytes as usize / 4, lse_bytes as usize / 4);
        let queries = self.query_heads(&slab.heads);
        let (first, count) = Self::span(&self.o, &slab.batch, &queries);
        let (o, o_base) = self.o.bind(gpu, first, count);
        let s = self.o.strides();
        let (lse, lse_at) = match &self.lse {
            Some(t) => {
                let s = t.strides();
                let first = slab.batch.start * s[0] + queries.start * s[1];
                let (binding, base) = t.bind(gpu, first, self.lse_count(t, slab));
                (binding, [base, s[0] as u32, s[1] as u32])
            }
            None => (self.dummies[1].clone(), [0; 3]),
        };
        let operand = if p.packs_words() { merge_partials::f32_operand(p.dim_v) } else { p.o };
        let problem =
            merge_partials::Problem { dim_v: p.dim_v, o: operand, sinks: p.sinks, lse: self.lse.is_some() };
        let params = merge_partials::Params {
            rows: rows.len() as u32,
            groups: p.groups() as u32,
            heads: slab.heads.len() as u32,
            row_base: rows.start as u32,
            total: held,
            parts: [self.splits(), 0],
            a: [a_base, a_lse_base, held * p.dim_v as u32, held],
            o: [o_base, s[0] as u32, s[1] as u32, s[2] as u32],
            lse: lse_at,
            sinks_at: self.at.sinks + queries.start as u32,
            ..merge_partials::Params::default()
        };
        let [none, _] = self.dummies.clone();
        let bindings = [a, a_lse, none.clone(), none, self.table.clone(), o, lse];
        steps.extend(merge_partials::steps(problem, params, &bindings, gpu.limits().workgroups));
    }
}
