//! Native sparse attention: compressed, selected and window branch, added by their gates.

use super::indexed::IndexedAttention;
use super::{
    Prefix, Seen, TopK, TopKOutput, axes, bind, check_dtype, check_shape, check_shared, operand,
    parameter_scale, row_stride, strides, top_k,
};
use crate::attention::{Attention, AttentionOutput};
use crate::gpu::{Binding, Copy, DType, Gpu, Step, Tensor};
use crate::kernels::{indexed_attention, nsa as kernel};
use crate::limits::LOOP_ITERATIONS;
use crate::{Error, Result};

/// Three branches of attention over the same queries, each with its own softmax, added by gates (*Native Sparse
/// Attention*).
///
/// - compressed: keys that stand for blocks of [`length`](Self::length) tokens, one every
///   [`stride`](Self::stride); a query sees those whose last token is not later than itself;
/// - selected: the [`count`](Self::new) blocks of [`block`](Self::new) tokens that the compressed branch looks at
///   most, chosen per key-value head; the first, the current and the one before it are always among them;
/// - window: the last [`window`](Self::new) tokens, the query's own included.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | q | `[batch, heads_q, seq_q, dim_k]` | f32, f16, bf16 |
/// | keys of the selected and window branch | `[batch, heads_kv, seq_kv, dim_k]` | f32, f16, bf16 |
/// | compressed keys | `[batch, heads_kv, blocks, dim_k]`, learned or of [`compress_blocks`] | f32, f16, bf16 |
/// | values | as the keys, `dim_v` wide | f32, f16, bf16 |
/// | gates | `[batch, heads_q, seq_q, 3]`: compressed, selected, window | f32 |
/// | o, branches | `[batch, heads_q, seq_q, dim_v]`, packed | f32 |
/// | blocks | `[batch, heads_kv, seq_q, count]`, ascending, -1 pads | i32 |
///
/// A query that sees no complete block gets 0 from the compressed branch.
#[derive(Debug, Clone)]
pub struct NativeSparseAttention {
    length: u32,
    stride: u32,
    block: u32,
    count: usize,
    window: u32,
    scale: Option<f32>,
    q_start: Option<i64>,
    whole_blocks: bool,
    subgroups: Option<bool>,
}

/// Inputs of [`NativeSparseAttention`]; keys and values of the branches may be the same tensors.
#[derive(Debug, Clone)]
pub struct NsaInputs {
    /// Queries.
    pub q: Tensor,
    /// Keys and values of the compressed blocks.
    pub compressed: [Tensor; 2],
    /// Keys and values of the selected branch.
    pub selected: [Tensor; 2],
    /// Keys and values of the window branch.
    pub window: [Tensor; 2],
    /// Gates of the branches.
    pub gates: Tensor,
}

/// Where the results of [`NativeSparseAttention`] lie.
#[derive(Debug, Clone)]
pub struct NsaOutput {
    /// The gated sum.
    pub o: Tensor,
    /// Compressed, selected and window branch.
    pub branches: [Tensor; 3],
    /// The selected blocks.
    pub blocks: Tensor,
}

/// Weights of this many bytes exist at once.
const SLAB_BYTES: u64 = 32 << 20;

impl NativeSparseAttention {
    /// Selects `count` blocks of `block` tokens, beside a window of `window` tokens. Compressed blocks are as long
    /// as selected ones and do not overlap.
    #[must_use]
    pub fn new(block: u32, count: usize, window: u32) -> Self {
        Self {
            length: block,
            stride: block,
            block,
            count,
            window,
            scale: None,
            q_start: None,
            whole_blocks: false,
            subgroups: None,
        }
    }

    /// Tokens to a compressed block, a multiple of the stride.
    #[must_use]
    pub fn length(mut self, length: u32) -> Self {
        self.length = length;
        self
    }

    /// Tokens from one compressed block to the next; divides the length and the selected block.
    #[must_use]
    pub fn stride(mut self, stride: u32) -> Self {
        self.stride = stride;
        self
    }

    /// Factor of the scores in all branches, by default `dim_k^-0.5`.
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Position of query 0; by default the last query stands at the last key.
    #[must_use]
    pub fn q_start(mut self, position: i64) -> Self {
        self.q_start = Some(position);
        self
    }

    /// Selects among whole blocks of the given keys alone, as flash-linear-attention does: the last
    /// `seq_kv % block` tokens are then seen through the window only. By default the block that a query stands in
    /// is always selected, so that a prompt's row and the decode step at the same position agree.
    #[must_use]
    pub fn whole_blocks(mut self) -> Self {
        self.whole_blocks = true;
        self
    }

    /// Insists on kernels with (`true`) or without subgroups; for tests and measurements.
    #[must_use]
    pub fn subgroups(mut self, wanted: bool) -> Self {
        self.subgroups = Some(wanted);
        self
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, storage type, stride or limit, by name; or the device's own words.
    pub fn run(&self, gpu: &Gpu, inputs: &NsaInputs) -> Result<NsaOutput> {
        let four = "[batch, heads, seq, dim]";
        let [batch, heads_q, seq_q, _] = axes("q", &inputs.q, four)?;
        let [_, heads_kv, ..] = axes::<4>("selected k", &inputs.selected[0], four)?;
        let [.., dim_v] = axes::<4>("selected v", &inputs.selected[1], four)?;
        self.check()?;
        let o = || Tensor::uninitialised(gpu, DType::F32, [batch, heads_q, seq_q, dim_v]);
        let blocks = Tensor::uninitialised(gpu, DType::I32, [batch, heads_kv, seq_q, self.count])?;
        let out = NsaOutput { o: o()?, branches: [o()?, o()?, o()?], blocks };
        let (copies, steps) = self.launch(gpu, inputs, &out)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), outputs that are not packed, and outputs that share a buffer with another tensor.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        inputs: &NsaInputs,
        out: &NsaOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, inputs, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn check(&self) -> Result<()> {
        let wrong = |field, value: String, bound: String, remedy| {
            Err(Error::OutOfRange { field, value, bound, remedy })
        };
        for (field, value) in [("block", self.block), ("length", self.length), ("stride", self.stride)] {
            if value == 0 || value > 1 << 15 {
                return wrong(
                    field,
                    value.to_string(),
                    "between 1 and 32768".into(),
                    "give the blocks a size",
                );
            }
        }
        for (field, value) in [("length", self.length), ("block", self.block)] {
            if !value.is_multiple_of(self.stride) {
                let bound = format!("a multiple of stride = {}", self.stride);
                return wrong(field, value.to_string(), bound, "let the stride divide both lengths");
            }
        }
        if self.block / self.stride + self.length / self.stride > LOOP_ITERATIONS / 2 {
            let bound = "such that blocks overlap fewer than 32768 compressed ones".into();
            return wrong("stride", self.stride.to_string(), bound, "compress more coarsely");
        }
        if self.count == 0 || self.window == 0 {
            let field = if self.count == 0 { "count" } else { "window" };
            return wrong(field, "0".into(), "at least 1".into(), "leave no branch empty: gate it with 0");
        }
        Ok(())
    }

    fn launch(&self, gpu: &Gpu, inputs: &NsaInputs, out: &NsaOutput) -> Result<(Vec<Copy>, Vec<Step>)> {
        self.check()?;
        let four = "[batch, heads, seq, dim]";
        let [batch, heads_q, seq_q, dim_k] = axes("q", &inputs.q, four)?;
        let [_, heads_kv, seq_kv, _] = axes("selected k", &inputs.selected[0], four)?;
        let [_, _, compressed, _] = axes("compressed k", &inputs.compressed[0], four)?;
        let [.., dim_v] = axes::<4>("selected v", &inputs.selected[1], four)?;
        let complete = complete_blocks(seq_kv, self.length, self.stride);
        check_shape("compressed k", &inputs.compressed[0], &[batch, heads_kv, complete, dim_k])?;
        check_shape("compressed v", &inputs.compressed[1], &[batch, heads_kv, complete, dim_v])?;
        check_shape("window k", &inputs.window[0], &[batch, heads_kv, seq_kv, dim_k])?;
        check_shape("window v", &inputs.window[1], &[batch, heads_kv, seq_kv, dim_v])?;
        check_dtype("gates", &inputs.gates, DType::F32)?;
        check_shape("gates", &inputs.gates, &[batch, heads_q, seq_q, 3])?;
        row_stride("gates", &inputs.gates)?;
        self.check_outputs(inputs, out, [batch, heads_q, heads_kv, seq_q, dim_v])?;
        let scale = parameter_scale("scale", self.scale.unwrap_or((dim_k as f32).powf(-0.5)), false)?;
        let q_start = self.q_start.unwrap_or(seq_kv as i64 - seq_q as i64);
        let tokens = Prefix::causal().q_start(q_start);
        if out.o.is_empty() {
            return Ok((Vec::new(), Vec::new()));
        }

        // the compressed branch: every complete block, and how much each was looked at
        let lse = Tensor::uninitialised(gpu, DType::F32, [batch, heads_q, seq_q])?;
        let first = AttentionOutput { o: out.branches[0].clone(), lse: Some(lse.clone()) };
        let blocks_seen = Prefix::causal().q_start(q_start).blocks(self.stride, self.length);
        let attend = self.kernel(IndexedAttention::new(blocks_seen).scale(scale));
        let [k, v] = &inputs.compressed;
        let launch = attend.check(gpu, &inputs.q, k, v, None, &first)?;
        let resolved = launch.resolve(gpu, attend.visible())?;
        let mut copies = resolved.copies.clone();
        let mut steps = launch.steps(gpu, &resolved)?;
        let table = resolved.table;
        steps.extend(self.select(gpu, inputs, out, &lse, (scale, resolved.seen), &table, compressed)?);

        let second = AttentionOutput { o: out.branches[1].clone(), lse: None };
        let attend = self.kernel(IndexedAttention::new(tokens).scale(scale).block(self.block).compact());
        let [k, v] = &inputs.selected;
        let launch = attend.check(gpu, &inputs.q, k, v, Some(&out.blocks), &second)?;
        let resolved = launch.resolve(gpu, attend.visible())?;
        copies.extend(resolved.copies.iter().cloned());
        steps.extend(launch.steps(gpu, &resolved)?);

        let third = AttentionOutput { o: out.branches[2].clone(), lse: None };
        let mut attention = Attention::causal().window(self.window).q_start(q_start).scale(scale);
        if let Some(subgroups) = self.subgroups {
            attention = attention.kernel(if subgroups { "attention_subgroup" } else { "attention_tiled" });
        }
        let [k, v] = &inputs.window;
        let (more, near) = attention.launch(gpu, &inputs.q, &crate::attention::Kv::Tensors(k, v), &third)?;
        copies.extend(more);
        steps.extend(near);
        steps.extend(gate(gpu, &inputs.gates, out)?);
        Ok((copies, steps))
    }

    fn kernel(&self, op: IndexedAttention) -> IndexedAttention {
        match self.subgroups {
            Some(true) => op.kernel(indexed_attention::SUBGROUP),
            Some(false) => op.kernel(indexed_attention::NAME),
            None => op,
        }
    }

    fn check_outputs(
        &self,
        inputs: &NsaInputs,
        out: &NsaOutput,
        [batch, heads_q, heads_kv, seq_q, dim_v]: [usize; 5],
    ) -> Result<()> {
        let NsaInputs { q, compressed, selected, window, gates } = inputs;
        let read = [
            ("q", q),
            ("compressed k", &compressed[0]),
            ("compressed v", &compressed[1]),
            ("selected k", &selected[0]),
            ("selected v", &selected[1]),
            ("window k", &window[0]),
            ("window v", &window[1]),
            ("gates", gates),
        ];
        let [a, b, c] = &out.branches;
        let written = [("o", &out.o), ("compressed o", a), ("selected o", b), ("window o", c)];
        for (at, &(field, t)) in written.iter().enumerate() {
            check_dtype(field, t, DType::F32)?;
            check_shape(field, t, &[batch, heads_q, seq_q, dim_v])?;
            if !t.is_packed() || !t.offset_bytes().is_multiple_of(16) {
                return Err(Error::Strides {
                    field,
                    strides: t.strides().to_vec(),
                    bound: "outputs must be packed and start on a multiple of four elements",
                    remedy: "give each output a tensor of its own",
                });
            }
            check_shared(&[(field, t)], &read)?;
            check_shared(&[(field, t)], &written[..at])?;
            check_shared(&[("blocks", &out.blocks)], &[(field, t)])?;
        }
        check_dtype("blocks", &out.blocks, DType::I32)?;
        check_shape("blocks", &out.blocks, &[batch, heads_kv, seq_q, self.count])?;
        if !out.blocks.is_packed() {
            return Err(Error::Strides {
                field: "blocks",
                strides: out.blocks.strides().to_vec(),
                bound: "it must be packed",
                remedy: "give it a tensor of its own",
            });
        }
        check_shared(&[("blocks", &out.blocks)], &read)
    }

    /// From the compressed branch's log-sum-exps to the selected blocks.
    #[expect(clippy::too_many_arguments, reason = "one stage of `launch`, split off for length")]
    fn select(
        &self,
        gpu: &Gpu,
        inputs: &NsaInputs,
        out: &NsaOutput,
        lse: &Tensor,
        (scale, seen): (f32, Seen),
        table: &Binding,
        compressed: usize,
    ) -> Result<Vec<Step>> {
        let limits = gpu.limits();
        let (q, k) = (&inputs.q, &inputs.compressed[0]);
        let [batch, heads_q, seq_q, dim_k] = axes("q", q, "")?;
        let [_, heads_kv, seq_kv, _] = axes("selected k", &inputs.selected[0], "")?;
        let z = batch * heads_kv;
        let block = self.block as usize;
        let n_blocks = if self.whole_blocks { seq_kv / block } else { seq_kv.div_ceil(block) };
        let quads = dim_k.div_ceil(4) as u32;
        let groups = heads_q / heads_kv;
        if groups as u64 * u64::from(quads + 1) > u64::from(LOOP_ITERATIONS / 4 * 3) {
            return Err(Error::OutOfRange {
                field: "heads_q",
                value: heads_q.to_string(),
                bound: format!("at most {} times heads_kv", LOOP_ITERATIONS / 4 * 3 / (quads + 1)),
                remedy: "split the heads",
            });
        }
        if z > limits.workgroups as usize {
            return Err(Error::OutOfRange {
                field: "batch",
                value: z.to_string(),
                bound: format!("at most {} with its key-value heads", limits.workgroups),
                remedy: "split the batch",
            });
        }
        let row_bytes = 4 * z as u64 * compressed.max(n_blocks).max(1) as u64;
        let flops = (2 * heads_q * batch * dim_k * compressed).max(1) as u64 * 8;
        let rows = (SLAB_BYTES.min(limits.binding_bytes) / row_bytes).min(limits.dispatch_flops / flops);
        let rows = (rows.max(1) as usize).min(seq_q).min(limits.workgroups as usize);
        let weights = Tensor::uninitialised(gpu, DType::F32, [z, rows, compressed.max(1)])?;
        let scores = Tensor::uninitialised(gpu, DType::F32, [z * rows * n_blocks])?;
        let counts = Tensor::uninitialised(gpu, DType::U32, [z, seq_q])?;
        let flat = [z, seq_q, self.count];
        let chosen =
            TopKOutput { indices: out.blocks.view(0, &flat, &[seq_q * self.count, self.count, 1])?, counts };
        // block j is seen from its first token on
        let visible = Prefix::causal().q_start(i64::from(seen.q_start)).blocks(self.block, 1);
        let top = TopK::new(self.count).visible(visible);
        top.check(n_blocks)?;
        let resolved = top.visible.resolve(gpu, z, seq_q, n_blocks)?;
        let constants = kernel::weights_constants(
            dim_k,
            operand("q", q)?,
            operand("compressed k", k)?,
            Prefix::causal().constants(),
            limits,
        );
        let whole = |t: &Tensor| t.bind(gpu, 0, t.len()).0;
        let mut steps = Vec::new();
        for first in (0..seq_q).step_by(rows) {
            let queries = first..(first + rows).min(seq_q);
            let n = queries.len();
            if compressed > 0 {
                let (q_binding, q_base) = bind(gpu, "q", q, &[0..batch, 0..heads_q, queries.clone()])?;
                let (k_binding, k_base) = bind(gpu, "compressed k", k, &[])?;
                let [qb, qh, qr] = strides(q);
                let [kb, kh, kr] = strides(k);
                let params = kernel::Weights {
                    groups: groups as u32,
                    heads: heads_kv as u32,
                    seq_kv: compressed as u32,
                    query_base: first as u32,
                    q: [q_base, qb, qh, qr],
                    k: [k_base, kb, kh, kr],
                    lse: [0, (heads_q * seq_q) as u32, seq_q as u32],
                    o: [(n * compressed) as u32, compressed as u32],
                    scale,
                    quads,
                    seen,
                };
                let bindings = vec![q_binding, k_binding, whole(lse), table.clone(), whole(&weights)];
                let over = [compressed.div_ceil(kernel::LANES as usize) as u32, n as u32, z as u32];
                let work = flops * n as u64;
                steps.push(kernel::step(kernel::WEIGHTS, constants.clone(), &params, bindings, over, work));
            }
            let params = kernel::Blocks {
                queries: n as u32,
                query_base: first as u32,
                q_start: seen.q_start,
                compressed: compressed as u32,
                candidates: n_blocks as u32,
                block: self.block,
                across: self.block / self.stride,
                overlap: self.length / self.stride,
            };
            let over = [n_blocks.div_ceil(kernel::LANES as usize) as u32, n as u32, z as u32];
            let work = (z * n * n_blocks) as u64 * u64::from(params.across + params.overlap) * 16;
            let bindings = vec![whole(&weights), whole(&scores)];
            steps.push(kernel::step(
                kernel::BLOCKS,
                kernel::blocks_constants(),
                &params,
                bindings,
                over,
                work,
            ));
            // the kernels above pack the rows of this slab
            let packed = scores.view(0, &[z, n, n_blocks], &[n * n_blocks, n_blocks, 1])?;
            let slab = top_k::Slab { scores: &packed, batch: 0..z, queries };
            steps.extend(top.steps(gpu, &resolved, &slab, &chosen)?);
        }
        Ok(steps)
    }
}

/// Dispatches of the gated sum.
fn gate(gpu: &Gpu, gates: &Tensor, out: &NsaOutput) -> Result<Vec<Step>> {
    let [batch, heads, rows, dim_v] = axes("o", &out.o, "")?;
    let [a, b, c] = &out.branches;
    let mut bases = [0; 4];
    let mut bindings = Vec::new();
    for (base, t) in bases.iter_mut().zip([a, b, c, &out.o]) {
        let (binding, at) = bind(gpu, "o", t, &[])?;
        *base = at;
        bindings.push(binding);
    }
    let (gates_binding, gates_base) = bind(gpu, "gates", gates, &[])?;
    let [gb, gh, gr] = strides(gates);
    let params = kernel::Gate {
        heads: heads as u32,
        rows: rows as u32,
        gates: [gates_base, gb, gh, gr],
        bases,
        ..kernel::Gate::default()
    };
    let [a, b, c, o] = [0, 1, 2, 3].map(|at: usize| bindings[at].clone());
    Ok(kernel::gate(dim_v, batch * heads * rows, params, &[a, b, c, gates_binding, o], gpu.limits()))
}

/// Blocks of `length` tokens, one every `stride`, that `seq` tokens complete.
fn complete_blocks(seq: usize, length: u32, stride: u32) -> usize {
    seq.checked_sub(length as usize).map_or(0, |rest| rest / stride as usize + 1)
}

/// Compresses keys or values to the means of their blocks, f32: the plainest compression of
/// [`NativeSparseAttention`].
///
/// `out[.., i, :]` is the mean of rows `i * stride .. i * stride + length` of `source`; only complete blocks
/// count: `[batch, heads, seq, dim]` gives `[batch, heads, (seq - length) / stride + 1, dim]`.
///
/// # Errors
/// A length or stride of 0 or above 32,768, another shape, a refused limit, or the device's own words.
pub fn compress_blocks(gpu: &Gpu, source: &Tensor, length: u32, stride: u32) -> Result<Tensor> {
    let [batch, heads, seq, dim] = axes("source", source, "[batch, heads, seq, dim]")?;
    for (field, value) in [("length", length), ("stride", stride)] {
        if value == 0 || value > 1 << 15 {
            return Err(Error::OutOfRange {
                field,
                value: value.to_string(),
                bound: "between 1 and 32768".into(),
                remedy: "give the blocks a size",
            });
        }
    }
    let layout = operand("source", source)?;
    let blocks = complete_blocks(seq, length, stride);
    let out = Tensor::uninitialised(gpu, DType::F32, [batch, heads, blocks, dim])?;
    if out.is_empty() {
        return Ok(out);
    }
    let (x, base) = bind(gpu, "source", source, &[])?;
    let (o, _) = bind(gpu, "o", &out, &[])?;
    let [b, h, r] = strides(source);
    let params = kernel::Mean {
        heads: heads as u32,
        blocks: blocks as u32,
        step: stride,
        reach: length,
        x: [base, b, h, r],
        ..kernel::Mean::default()
    };
    let steps = kernel::mean(dim, layout, batch * heads * blocks, params, &[x, o], gpu.limits());
    gpu.run_steps(&[], &steps)?;
    Ok(out)
}
