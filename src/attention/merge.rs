//! Merging partial results over disjoint sets of keys.

use crate::gpu::{Binding, DType, Gpu, Step, Tensor};
use crate::kernels::merge_partials::{self as kernel, f32_operand};
use crate::{Error, Result};

use super::AttentionOutput;

/// Results of attention over a part of the keys: `o` normalised, `lse` natural.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | o | `[batch, heads, seq_q, dim_v]`, packed | f32 |
/// | lse | `[batch, heads, seq_q]`, packed | f32 |
///
/// A part that saw no key has an `lse` of minus infinity; its `o` is not read.
#[derive(Debug, Clone)]
pub struct Partial {
    /// Normalised output.
    pub o: Tensor,
    /// Natural log-sum-exp.
    pub lse: Tensor,
}

/// Merges partial results as if all their keys had been attended to at once (split-KV decode, ring
/// attention, chunked contexts).
///
/// `o = sum_p exp(lse_p - lse) o_p`, `lse = ln sum_p exp(lse_p)`.
///
/// # Errors
/// No parts, parts of different shapes, storage other than f32, or strided tensors.
pub fn merge_partials(gpu: &Gpu, parts: &[Partial]) -> Result<AttentionOutput> {
    let shape = check(parts)?;
    let o = Tensor::uninitialised(gpu, DType::F32, shape)?;
    let lse = Some(Tensor::uninitialised(gpu, DType::F32, [shape[0], shape[1], shape[2]])?);
    let out = AttentionOutput { o, lse };
    gpu.run_steps(&[], &merge_steps(gpu, parts, &out)?)?;
    Ok(out)
}

/// Records [`merge_partials`] into the caller's own encoder; submits nothing.
///
/// # Errors
/// As [`merge_partials`], and outputs that are strided, of another shape, or in a part's buffer.
pub fn record_merge(
    gpu: &Gpu,
    encoder: &mut wgpu::CommandEncoder,
    parts: &[Partial],
    out: &AttentionOutput,
) -> Result<()> {
    gpu.record(encoder, &[], &merge_steps(gpu, parts, out)?)
}

fn check(parts: &[Partial]) -> Result<[usize; 4]> {
    let Some(first) = parts.first() else {
        return Err(Error::OutOfRange {
            field: "parts",
            value: "empty".into(),
            bound: "at least one partial result".into(),
            remedy: "give the results to be merged",
        });
    };
    let Ok(shape) = <[usize; 4]>::try_from(first.o.shape()) else {
        return Err(Error::Shape {
            field: "o",
            shape: first.o.shape().to_vec(),
            expected: "[batch, heads, seq_q, dim_v]".into(),
            remedy: "give four axes",
        });
    };
    for part in parts {
        for (field, tensor, expected) in [("o", &part.o, &shape[..]), ("lse", &part.lse, &shape[..3])] {
            check_tensor(field, tensor, expected)?;
        }
    }
    Ok(shape)
}

fn check_tensor(field: &'static str, tensor: &Tensor, expected: &[usize]) -> Result<()> {
    if tensor.shape() != expected {
        return Err(Error::Shape {
            field,
            shape: tensor.shape().to_vec(),
            expected: format!("{expected:?}"),
            remedy: "give every part, and the result, the same shape",
        });
    }
    if tensor.dtype() != DType::F32 {
        return Err(Error::DType { field, dtype: tensor.dtype().name(), allowed: "f32" });
    }
    if !tensor.is_packed() {
        return Err(Error::Strides {
            field,
            strides: tensor.strides().to_vec(),
            bound: "partial results must be packed",
            remedy: "copy the tensor",
        });
    }
    Ok(())
}

/// Folds the parts into the result two stacks at a time: the result so far, and the next part.
pub(crate) fn merge_steps(gpu: &Gpu, parts: &[Partial], out: &AttentionOutput) -> Result<Vec<Step>> {
    let shape = check(parts)?;
    check_tensor("o", &out.o, &shape)?;
    if let Some(lse) = &out.lse {
        check_tensor("lse", lse, &shape[..3])?;
    }
    for part in parts {
        for (field, output) in [("o", Some(&out.o)), ("lse", out.lse.as_ref())] {
            for (other, input) in [("a partial o", &part.o), ("a partial lse", &part.lse)] {
                if output.is_some_and(|o| o.buffer() == input.buffer()) {
                    return Err(Error::SharedBuffer { field, other });
                }
            }
        }
    }
    if out.o.is_empty() {
        return Ok(Vec::new());
    }
    let (needed, allowed) = (out.o.len() as u64 * 4, gpu.limits().binding_bytes);
    if needed > allowed {
        let limit = "max_storage_buffer_binding_size";
        return Err(Error::Binding { field: "o", needed, limit, allowed, split: "batch or queries" });
    }
    let dummy = |what| gpu.buffer(what, 16).map(|buffer| Binding { buffer, offset: 0, size: 16 });
    let (absent, unwanted) = (dummy("absent input")?, dummy("absent output")?);
    // with more than two parts, results so far alternate between the output and a second tensor
    let spare = if parts.len() > 2 {
        let lse = Tensor::uninitialised(gpu, DType::F32, [shape[0], shape[1], shape[2]])?;
        let o = Tensor::uninitialised(gpu, DType::F32, shape)?;
        let second = Tensor::uninitialised(gpu, DType::F32, [shape[0], shape[1], shape[2]])?;
        Some([(o, lse), (out.o.clone(), out.lse.clone().unwrap_or(second))])
    } else {
        None
    };
    let mut so_far = parts[0].clone();
    let mut steps = Vec::new();
    let rounds = parts.len().max(2) - 1;
    for round in 0..rounds {
        let last = round + 1 == rounds;
        let (o, lse) = match &spare {
            Some(pair) if !last => {
                let (o, lse) = &pair[(rounds - round) % 2];
                (o.clone(), Some(lse.clone()))
            }
            _ => (out.o.clone(), out.lse.clone()),
        };
        let next = parts.get(round + 1);
        let whole = |t: &Tensor| t.bind(gpu, 0, t.len());
        let (a, a_base) = whole(&so_far.o);
        let (a_lse, a_lse_base) = whole(&so_far.lse);
        let (b, b_base) = next.map_or((absent.clone(), 0), |p| whole(&p.o));
        let (b_lse, b_lse_base) = next.map_or((absent.clone(), 0), |p| whole(&p.lse));
        let (o_binding, o_base) = whole(&o);
        let (lse_binding, lse_base) = lse.as_ref().map_or((unwanted.clone(), 0), &whole);
        let [batch, heads, rows, dim_v] = shape;
        let params = kernel::Params {
            rows: rows as u32,
            groups: 1,
            heads: heads as u32,
            total: (batch * heads * rows) as u32,
            parts: [1, u32::from(next.is_some())],
            a: [a_base, a_lse_base, 0, 0],
            b: [b_base, b_lse_base, 0, 0],
            o: [o_base, (heads * rows * dim_v) as u32, (rows * dim_v) as u32, dim_v as u32],
            lse: [lse_base, (heads * rows) as u32, rows as u32],
            ..kernel::Params::default()
        };
        let problem = kernel::Problem { dim_v, o: f32_operand(dim_v), sinks: false, lse: lse.is_some() };
        let bindings = [a, a_lse, b, b_lse, absent.clone(), o_binding, lse_binding];
        steps.extend(kernel::steps(problem, params, &bindings, gpu.limits().workgroups));
        so_far = Partial { lse: lse.unwrap_or(so_far.lse), o };
    }
    Ok(steps)
}
