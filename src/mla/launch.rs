//! From tensors to dispatches: slabs of queries, segments of tokens, and the merge of their results.

use std::ops::Range;

use super::{Mla, MlaOutput, MlaPath, MlaShape, MlaTensors};
use crate::attention::Kv;
use crate::gpu::{Copy, DType, Gpu, Step, Tensor};
use crate::kernels::project_heads;
use crate::mask::{Mask, Positions};
use crate::rope::copy_steps;
use crate::{Attention, AttentionOutput, Error, Partial, Result, attention};

/// Memory that one kind of intermediate may take.
const SCRATCH_BYTES: u64 = 64 << 20;

/// Places of the intermediates among the device's scratch buffers.
#[derive(Clone, Copy)]
enum Slot {
    Queries = 2,
    Keys,
    Values,
    Latent,
    Part,
    PartLse,
    Merged,
    MergedLse,
}
const SLOTS: usize = Slot::MergedLse as usize + 1;

struct Launch<'a> {
    gpu: &'a Gpu,
    mla: &'a Mla,
    shape: MlaShape,
    positions: Positions,
    tensors: &'a MlaTensors<'a>,
    /// Whether one submission holds the call, so that memory may be shared with other calls.
    shared: bool,
    /// Intermediates of a call that has memory of its own.
    own: [Option<wgpu::Buffer>; SLOTS],
    /// What `Slot::Queries` holds: of which rows, absorbed or not.
    queries: Option<(Range<usize>, bool)>,
    copies: Vec<Copy>,
    steps: Vec<Step>,
}

impl Mla {
    /// Copies and dispatches of a call; everything is refused here or not at all.
    pub(super) fn launch(
        &self,
        gpu: &Gpu,
        tensors: &MlaTensors<'_>,
        out: &MlaOutput,
    ) -> Result<(Vec<Copy>, Vec<Step>)> {
        let shape = tensors.shape()?;
        let plan = self.plan(&shape)?;
        let MlaShape { batch, heads, seq_q, seq_kv, dim_v, .. } = shape;
        attention::check_output("o", &out.o, &[batch, heads, seq_q, dim_v])?;
        if let Some(lse) = &out.lse {
            attention::check_output("lse", lse, &[batch, heads, seq_q])?;
        }
        let inputs = [
            ("q_nope", tensors.q_nope),
            ("q_rope", tensors.q_rope),
            ("latents", tensors.latents),
            ("w_uk", tensors.w_uk),
            ("w_uv", tensors.w_uv),
        ];
        for (other, input) in inputs {
            if !input.dtype().is_float() {
                let dtype = input.dtype().name();
                return Err(Error::DType { field: other, dtype, allowed: "f32, f16 or bf16" });
            }
            attention::row_stride(other, input)?;
            for (field, output) in [("o", Some(&out.o)), ("lse", out.lse.as_ref())] {
                if output.is_some_and(|o| o.buffer() == input.buffer()) {
                    return Err(Error::SharedBuffer { field, other });
                }
            }
        }
        let mut launch = Launch {
            gpu,
            mla: self,
            shape,
            positions: self.mask.resolve(seq_q, seq_kv)?,
            tensors,
            shared: 2 * plan.flops() < gpu.limits().dispatch_flops,
            own: Default::default(),
            queries: None,
            copies: Vec::new(),
            steps: Vec::new(),
        };
        if !out.o.is_empty() {
            launch.all(plan.path, out)?;
        }
        Ok((launch.copies, launch.steps))
    }
}

impl Launch<'_> {
    fn all(&mut self, path: MlaPath, out: &MlaOutput) -> Result<()> {
        let MlaShape { batch, heads, seq_q, nope, rope, rank, dim_v, .. } = self.shape;
        let width = if path == MlaPath::Expanded { nope + rope } else { rank + rope }.max(dim_v);
        let at_once = self.fitting("queries", batch * heads * width * 4, seq_q)?;
        let segments = self.segments(path)?;
        for first in (0..seq_q).step_by(at_once) {
            let rows = first..(first + at_once).min(seq_q);
            let slab = AttentionOutput {
                o: out.o.narrow(2, rows.start, rows.len())?,
                lse: out.lse.as_ref().map(|l| l.narrow(2, rows.start, rows.len())).transpose()?,
            };
            self.slab(&rows, &segments, &slab)?;
        }
        Ok(())
    }

    /// How many of `count` rows of `bytes` each fit scratch memory.
    fn fitting(&self, field: &'static str, bytes: usize, count: usize) -> Result<usize> {
        let allowed = self.gpu.limits().binding_bytes.min(SCRATCH_BYTES);
        let rows = usize::try_from(allowed / (bytes as u64).max(1)).unwrap_or(usize::MAX);
        if rows == 0 {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::Binding { field, needed: bytes as u64, limit, allowed, split: "batch" });
        }
        Ok(rows.min(count).max(1))
    }

    /// Runs of tokens that are attended to at once, and whether each is expanded.
    fn segments(&self, path: MlaPath) -> Result<Vec<(Range<usize>, bool)>> {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = self.shape;
        let expanded = self.fitting("expanded keys", batch * heads * (nope + rope).max(dim_v) * 4, seq_kv)?;
        // a binding must hold a segment of one entry's latents
        let limits = self.gpu.limits();
        let row = (self.tensors.latents.strides()[1].max(rank + rope) * self.tensors.latents.dtype().bytes())
            .max(1) as u64;
        let room = limits.binding_bytes.saturating_sub(2 * u64::from(limits.offset_alignment));
        let absorbed = usize::try_from(room / row).unwrap_or(usize::MAX).clamp(1, seq_kv.max(1));
        let most = self.mla.segment.unwrap_or(usize::MAX);
        let cut = |range: Range<usize>, expand: bool| {
            let step = most.min(if expand { expanded } else { absorbed });
            let end = range.end;
            range.step_by(step).map(move |first| (first..(first + step).min(end), expand))
        };
        let cached = match path {
            MlaPath::Absorbed => seq_kv,
            MlaPath::Expanded => 0,
            MlaPath::Mixed => seq_kv - seq_q.min(seq_kv),
        };
        let all: Vec<_> = cut(0..cached, false).chain(cut(cached..seq_kv, true)).collect();
        // without a token, the results still have to be written
        Ok(if all.is_empty() { vec![(0..0, false)] } else { all })
    }

    /// One slab of queries against every segment.
    fn slab(
        &mut self,
        rows: &Range<usize>,
        segments: &[(Range<usize>, bool)],
        out: &AttentionOutput,
    ) -> Result<()> {
        let seen: Vec<_> = segments
            .iter()
            .filter(|(keys, _)| {
                let over = self.positions.over(keys.start, keys.len());
                let [sinks, rest] = over.key_ranges(rows.clone());
                !sinks.is_empty() || !rest.is_empty()
            })
            .collect();
        let segments = if seen.is_empty() { vec![&segments[0]] } else { seen };
        if let [(keys, expand)] = segments[..] {
            return self.segment(rows, keys, *expand, out);
        }
        let MlaShape { batch, heads, dim_v, .. } = self.shape;
        let shape = [batch, heads, rows.len(), dim_v];
        let part = |launch: &mut Self, o: Slot, lse: Slot| -> Result<Partial> {
            Ok(Partial { o: launch.scratch(o, &shape)?, lse: launch.scratch(lse, &shape[..3])? })
        };
        let new = part(self, Slot::Part, Slot::PartLse)?;
        let so_far = part(self, Slot::Merged, Slot::MergedLse)?;
        let third = Partial {
            o: Tensor::uninitialised(self.gpu, DType::F32, shape)?,
            lse: Tensor::uninitialised(self.gpu, DType::F32, &shape[..3])?,
        };
        let mut held = [so_far, third];
        for (ix, (keys, expand)) in segments.iter().enumerate() {
            let target = if ix == 0 { &held[0] } else { &new };
            let target = AttentionOutput { o: target.o.clone(), lse: Some(target.lse.clone()) };
            self.segment(rows, keys, *expand, &target)?;
            if ix > 0 {
                let merged = AttentionOutput { o: held[1].o.clone(), lse: Some(held[1].lse.clone()) };
                self.steps.extend(attention::merge_steps(
                    self.gpu,
                    &[held[0].clone(), new.clone()],
                    &merged,
                )?);
                held.swap(0, 1);
            }
        }
        let [result, _] = held;
        self.steps.extend(copy_steps(self.gpu, &result.o, &out.o)?);
        if let Some(lse) = &out.lse {
            // a row of log-sum-exps to a head
            let row = |t: &Tensor| {
                let [b, h, l] = [t.shape()[0], t.shape()[1], t.shape()[2]];
                let s = t.strides();
                t.view(0, &[b, h, 1, l], &[s[0], s[1], 0, s[2]])
            };
            self.steps.extend(copy_steps(self.gpu, &row(&result.lse)?, &row(lse)?)?);
        }
        Ok(())
    }

    /// Queries `rows` against tokens `keys`.
    fn segment(
        &mut self,
        rows: &Range<usize>,
        keys: &Range<usize>,
        expand: bool,
        out: &AttentionOutput,
    ) -> Result<()> {
        let MlaShape { batch, heads, nope, rope, rank, dim_v, .. } = self.shape;
        let MlaTensors { latents, w_uk, w_uv, .. } = *self.tensors;
        let s = latents.strides().to_vec();
        // latents as rows of `heads` heads: with a stride of 0, all heads share them
        let view = |heads: usize, first: usize, width: usize| {
            let start = if keys.is_empty() { 0 } else { keys.start * s[1] + first };
            latents.view(start, &[batch, heads, keys.len(), width], &[s[0], 0, s[1], 1])
        };
        let attention = self.attention(rows, keys)?;
        if expand {
            let q = self.queries(rows, nope, false)?;
            let k = self.scratch(Slot::Keys, &[batch, heads, keys.len(), nope + rope])?;
            let v = self.scratch(Slot::Values, &[batch, heads, keys.len(), dim_v])?;
            let c = view(heads, 0, rank)?;
            let k_nope = k.narrow(3, 0, nope)?;
            self.steps.extend(project_heads::steps(self.gpu, &c, "w_uk", w_uk, &k_nope)?);
            let k_rope = k.narrow(3, nope, rope)?;
            self.steps.extend(copy_steps(self.gpu, &view(heads, rank, rope)?, &k_rope)?);
            self.steps.extend(project_heads::steps(self.gpu, &c, "w_uv", w_uv, &v)?);
            return self.attend(&attention, [&q, &k, &v], out);
        }
        let q = self.queries(rows, rank, true)?;
        let weighted = self.scratch(Slot::Latent, &[batch, heads, rows.len(), rank])?;
        let inner = AttentionOutput { o: weighted.clone(), lse: out.lse.clone() };
        self.attend(&attention, [&q, &view(1, 0, rank + rope)?, &view(1, 0, rank)?], &inner)?;
        self.steps.extend(project_heads::steps(self.gpu, &weighted, "w_uv", w_uv, &out.o)?);
        Ok(())
    }

    fn attend(&mut self, attention: &Attention, qkv: [&Tensor; 3], out: &AttentionOutput) -> Result<()> {
        let (copies, steps) = attention.launch(self.gpu, qkv[0], &Kv::Tensors(qkv[1], qkv[2]), out)?;
        self.copies.extend(copies);
        self.steps.extend(steps);
        Ok(())
    }

    fn attention(&self, rows: &Range<usize>, keys: &Range<usize>) -> Result<Attention> {
        let start = |n: i64, field| {
            u32::try_from(n).map_err(|_| Error::OutOfRange {
                field,
                value: n.to_string(),
                bound: "a position from 0 on".into(),
                remedy: "count positions from the first token",
            })
        };
        let mask = Mask {
            q_start: Some(self.positions.q_start() + rows.start as i64),
            k_start: start(self.positions.k_start() + keys.start as i64, "k_start")?,
            ..self.mla.mask
        };
        let mut attention = Attention::bidirectional().mask(mask).scale(self.mla.factor(&self.shape));
        if let Some(lengths) = &self.mla.kv_len {
            let within = |&n: &u32| (n as usize).saturating_sub(keys.start).min(keys.len()) as u32;
            let lengths: Vec<_> = lengths.iter().map(within).collect();
            attention = attention.kv_len(&Tensor::from_slice(self.gpu, &lengths, [lengths.len()])?);
        }
        if let Some(kernel) = &self.mla.kernel {
            attention = attention.kernel(kernel.clone());
        }
        Ok(attention)
    }

    /// Queries of `first` elements, then the rotated part: absorbed through `w_uk`, or as they are.
    fn queries(&mut self, rows: &Range<usize>, first: usize, absorbed: bool) -> Result<Tensor> {
        let MlaShape { batch, heads, rope, .. } = self.shape;
        let q = self.scratch(Slot::Queries, &[batch, heads, rows.len(), first + rope])?;
        let wanted = Some((rows.clone(), absorbed));
        if self.queries == wanted {
            return Ok(q);
        }
        self.queries = wanted;
        let narrow = |t: &Tensor| t.narrow(2, rows.start, rows.len());
        let (q_nope, q_rope) = (narrow(self.tensors.q_nope)?, narrow(self.tensors.q_rope)?);
        let head = q.narrow(3, 0, first)?;
        self.steps.extend(if absorbed {
            let w = self.tensors.w_uk;
            let (n, s) = (w.shape(), w.strides());
            let across = w.view(0, &[n[0], n[2], n[1]], &[s[0], s[2], s[1]])?;
            project_heads::steps(self.gpu, &q_nope, "w_uk", &across, &head)?
        } else {
            copy_steps(self.gpu, &q_nope, &head)?
        });
        let tail = q.narrow(3, first, rope)?;
        self.steps.extend(match &self.mla.rotary {
            Some(table) => table.narrow(rows.start, rows.len())?.steps(self.gpu, &q_rope, &tail)?,
            None => copy_steps(self.gpu, &q_rope, &tail)?,
        });
        Ok(q)
    }

    /// An f32 intermediate.
    fn scratch(&mut self, slot: Slot, shape: &[usize]) -> Result<Tensor> {
        let bytes = shape.iter().product::<usize>() as u64 * 4;
        let own = &mut self.own[slot as usize];
        let buffer = match own {
            Some(buffer) if buffer.size() >= bytes => buffer.clone(),
            _ if self.shared => self.gpu.scratch(slot as usize, bytes)?,
            _ => own.insert(self.gpu.buffer("scratch", bytes)?).clone(),
        };
        Tensor::from_buffer(&buffer, 0, bytes, DType::F32, shape)
    }
}
