//! `attention`: softmax attention.

use std::collections::BTreeMap;

use super::Operator;
use crate::cases::{Case, HostTensor, Outcome, round, upload};
use crate::reference::{AttentionCase, Rounding, attention};
use crate::{Attention, AttentionShape, DType, Error, Gpu, Result, Tensor};

pub(super) const ATTENTION: Operator = Operator {
    name: "attention",
    paths: &["attention_subgroup", "attention_tiled"],
    dtypes: &[DType::F32, DType::F16, DType::Bf16],
    reference,
    run,
};

fn check(case: &Case) -> Result<AttentionShape> {
    case.only(&case.params, &["scale", "softcap", "mask"])?;
    case.only_inputs(&["q", "k", "v", "sinks", "kv_len"])?;
    let [batch, heads_q, seq_q, dim_k] = case.four("q")?;
    let [_, heads_kv, seq_kv, _] = case.four("k")?;
    let [.., dim_v] = case.four("v")?;
    if heads_kv == 0 || heads_q % heads_kv != 0 {
        return Err(Error::Heads { heads_q, heads_kv });
    }
    case.shaped("k", &[batch, heads_kv, seq_kv, dim_k], false)?;
    case.shaped("v", &[batch, heads_kv, seq_kv, dim_v], false)?;
    case.shaped("sinks", &[heads_q], false)?;
    case.shaped("kv_len", &[batch], true)?;
    Ok(AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v })
}

fn scale(case: &Case, shape: &AttentionShape) -> Result<f64> {
    Ok(case.number(&case.params, "scale")?.unwrap_or_else(|| (shape.dim_k as f64).powf(-0.5)))
}

fn reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let shape = check(case)?;
    let rounded = |name: &str| Ok::<_, Error>(round(case.floats(name)?.0, dtype));
    let (q, k, v) = (rounded("q")?, rounded("k")?, rounded("v")?);
    let call = AttentionCase {
        shape,
        mask: case.mask()?,
        q: &q,
        k: &k,
        v: &v,
        scale: scale(case, &shape)?,
        softcap: case.number(&case.params, "softcap")?,
        sinks: case.inputs.get("sinks").and_then(HostTensor::floats),
        alibi: None,
        kv_len: case.inputs.get("kv_len").and_then(HostTensor::integers),
        q_starts: None,
        bias: None,
        bias_hidden: -1e30,
    };
    let (o, lse) = attention(&call, rounding)?;
    let AttentionShape { batch, heads_q, seq_q, dim_v, .. } = shape;
    Ok(BTreeMap::from([
        ("o".to_owned(), HostTensor::of([batch, heads_q, seq_q, dim_v], o)),
        ("lse".to_owned(), HostTensor::of([batch, heads_q, seq_q], lse)),
    ]))
}

fn run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    let shape = check(case)?;
    let tensor = |name: &str| {
        let (data, shape) = case.floats(name)?;
        upload(gpu, data, shape, dtype)
    };
    let mut attention = Attention::bidirectional().mask(case.mask()?).scale(scale(case, &shape)? as f32);
    attention = attention.output(dtype);
    if let Some(cap) = case.number(&case.params, "softcap")? {
        attention = attention.softcap(cap as f32);
    }
    if case.inputs.contains_key("sinks") {
        let (sinks, shape) = case.floats("sinks")?;
        attention = attention.sinks(&Tensor::from_slice(gpu, sinks, shape)?);
    }
    if let Some(lengths) = case.inputs.get("kv_len") {
        let data = lengths.integers().ok_or_else(|| case.fault("in.kv_len", "must hold integers"))?;
        attention = attention.kv_len(&Tensor::from_slice(gpu, data, lengths.shape.as_slice())?);
    }
    if let Some(name) = kernel {
        attention = attention.kernel(name);
    }
    let (q, k, v) = (tensor("q")?, tensor("k")?, tensor("v")?);
    let kernel = attention.plan_for(gpu, &q, &k, &v)?.kernel().to_owned();
    let out = attention.run(gpu, &q, &k, &v)?;
    let mut tensors = BTreeMap::from([("o".to_owned(), HostTensor::download(gpu, &out.o)?)]);
    if let Some(lse) = out.lse {
        tensors.insert("lse".to_owned(), HostTensor::download(gpu, &lse)?);
    }
    Ok(Outcome { kernel, tensors })
}
