//! Computes a case on a device, or by definition.

use std::collections::BTreeMap;

use half::{bf16, f16};
use serde_json::Value;

use super::{Case, HostData, HostTensor};
use crate::reference::{AttentionCase, Rounding, attention};
use crate::{Attention, AttentionShape, DType, Error, Gpu, Mask, Result, Tensor};

/// What a case gave.
#[derive(Debug, Clone)]
pub struct Outcome {
    /// Kernel that computed it.
    pub kernel: String,
    /// Outputs by name.
    pub tensors: BTreeMap<String, HostTensor>,
}

impl Case {
    pub(super) fn fault(&self, field: &str, message: impl std::fmt::Display) -> Error {
        Error::CaseFile { path: self.name.clone(), field: field.into(), message: message.to_string() }
    }

    fn input(&self, name: &str) -> Result<&HostTensor> {
        self.inputs.get(name).ok_or_else(|| self.fault(&format!("in.{name}"), "is missing; add the tensor"))
    }

    fn floats(&self, name: &str) -> Result<(&[f32], &[usize])> {
        let tensor = self.input(name)?;
        let data = tensor.floats().ok_or_else(|| self.fault(&format!("in.{name}"), "must hold floats"))?;
        Ok((data, &tensor.shape))
    }

    fn four(&self, name: &str) -> Result<[usize; 4]> {
        let shape = &self.input(name)?.shape;
        <[usize; 4]>::try_from(shape.as_slice())
            .map_err(|_| self.fault(&format!("in.{name}"), format!("has shape {shape:?}, not four axes")))
    }

    fn number(&self, object: &Value, key: &str) -> Result<Option<f64>> {
        match &object[key] {
            Value::Null => Ok(None),
            value => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.fault(key, format!("is {value}, not a number"))),
            },
        }
    }

    fn count(&self, object: &Value, key: &str) -> Result<Option<u32>> {
        let Some(number) = self.number(object, key)? else { return Ok(None) };
        if number < 0.0 || number > f64::from(u32::MAX) || number.fract() != 0.0 {
            return Err(self.fault(key, format!("is {number}, not a count")));
        }
        Ok(Some(number as u32))
    }

    /// Every key of `object` must be known: an option that is not understood is never dropped.
    fn only(&self, object: &Value, known: &[&str]) -> Result<()> {
        let Some(keys) = object.as_object() else {
            return Err(
                self.fault("params", format!("must be an object with {}, not {object}", known.join(", ")))
            );
        };
        match keys.keys().find(|k| !known.contains(&k.as_str())) {
            Some(key) => Err(self.fault(key, format!("is not understood; known are {}", known.join(", ")))),
            None => Ok(()),
        }
    }

    fn mask(&self) -> Result<Mask> {
        let mask = &self.params["mask"];
        self.only(mask, &["causal", "q_offset", "window", "sink_tokens", "chunk"])?;
        let causal = match &mask["causal"] {
            Value::Null => false,
            Value::Bool(causal) => *causal,
            other => return Err(self.fault("causal", format!("is {other}, not true or false"))),
        };
        let q_start = match &mask["q_offset"] {
            Value::Null => None,
            offset => Some(
                offset
                    .as_i64()
                    .ok_or_else(|| self.fault("q_offset", format!("is {offset}, not an integer")))?,
            ),
        };
        Ok(Mask {
            causal,
            q_start,
            k_start: 0,
            window: self.count(mask, "window")?,
            sink_tokens: self.count(mask, "sink_tokens")?.unwrap_or(0),
            chunk: self.count(mask, "chunk")?,
        })
    }

    fn check_attention(&self) -> Result<AttentionShape> {
        self.only(&self.params, &["scale", "softcap", "mask"])?;
        let known = ["q", "k", "v", "sinks", "kv_len"];
        if let Some(name) = self.inputs.keys().find(|n| !known.contains(&n.as_str())) {
            let message = format!("is not understood; known are {}", known.join(", "));
            return Err(self.fault(&format!("in.{name}"), message));
        }
        let [batch, heads_q, seq_q, dim_k] = self.four("q")?;
        let [_, heads_kv, seq_kv, _] = self.four("k")?;
        let [.., dim_v] = self.four("v")?;
        if heads_kv == 0 || heads_q % heads_kv != 0 {
            return Err(Error::Heads { heads_q, heads_kv });
        }
        for (name, wanted) in [
            ("k", vec![batch, heads_kv, seq_kv, dim_k]),
            ("v", vec![batch, heads_kv, seq_kv, dim_v]),
            ("sinks", vec![heads_q]),
            ("kv_len", vec![batch]),
        ] {
            let Some(tensor) = self.inputs.get(name) else { continue };
            if tensor.shape != wanted {
                let message = format!("has shape {:?}, but {wanted:?} is needed", tensor.shape);
                return Err(self.fault(&format!("in.{name}"), message));
            }
            if tensor.integers().is_some() != (name == "kv_len") {
                let wanted = if name == "kv_len" { "integers" } else { "floats" };
                return Err(self.fault(&format!("in.{name}"), format!("must hold {wanted}")));
            }
        }
        Ok(AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v })
    }

    fn scale(&self, shape: &AttentionShape) -> Result<f64> {
        Ok(self.number(&self.params, "scale")?.unwrap_or_else(|| (shape.dim_k as f64).powf(-0.5)))
    }

    /// The outputs by definition, from inputs rounded to `dtype`.
    ///
    /// # Errors
    /// The operator has no definition here, or the case is refused.
    pub fn reference(&self, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
        if self.op != "attention" {
            return Err(self.fault("op", format!("{:?} is not known; known is attention", self.op)));
        }
        let shape = self.check_attention()?;
        let rounded = |name: &str| Ok::<_, Error>(round(self.floats(name)?.0, dtype));
        let (q, k, v) = (rounded("q")?, rounded("k")?, rounded("v")?);
        let case = AttentionCase {
            shape,
            mask: self.mask()?,
            q: &q,
            k: &k,
            v: &v,
            scale: self.scale(&shape)?,
            softcap: self.number(&self.params, "softcap")?,
            sinks: self.inputs.get("sinks").and_then(HostTensor::floats),
            alibi: None,
            kv_len: self.inputs.get("kv_len").and_then(HostTensor::integers),
            q_starts: None,
            bias: None,
            bias_hidden: -1e30,
        };
        let (o, lse) = attention(&case, rounding)?;
        let AttentionShape { batch, heads_q, seq_q, dim_v, .. } = shape;
        let host = |shape: Vec<usize>, data: Vec<f64>| HostTensor {
            shape,
            data: HostData::F32(data.into_iter().map(|x| x as f32).collect()),
        };
        Ok(BTreeMap::from([
            ("o".to_owned(), host(vec![batch, heads_q, seq_q, dim_v], o)),
            ("lse".to_owned(), host(vec![batch, heads_q, seq_q], lse)),
        ]))
    }
}

/// What is left of numbers once they are stored.
pub(crate) fn round(data: &[f32], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F16 => data.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        DType::Bf16 => data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
        _ => data.to_vec(),
    }
}

/// A packed tensor of a storage type.
pub(crate) fn upload(gpu: &Gpu, data: &[f32], shape: &[usize], dtype: DType) -> Result<Tensor> {
    match dtype {
        DType::F16 => {
            let data: Vec<_> = data.iter().map(|&x| f16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape)
        }
        DType::Bf16 => {
            let data: Vec<_> = data.iter().map(|&x| bf16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape)
        }
        _ => Tensor::from_slice(gpu, data, shape),
    }
}

/// Computes a case with queries, keys, values and the output stored as `dtype`, with one kernel or the plan's.
///
/// # Errors
/// An unknown operator, option or tensor, by name; or what the operator itself refuses.
pub fn run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    if case.op != "attention" {
        return Err(case.fault("op", format!("{:?} is not known; known is attention", case.op)));
    }
    let shape = case.check_attention()?;
    let tensor = |name: &str| {
        let (data, shape) = case.floats(name)?;
        upload(gpu, data, shape, dtype)
    };
    let mut attention = Attention::bidirectional().mask(case.mask()?).scale(case.scale(&shape)? as f32);
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
    let mut tensors = BTreeMap::new();
    for (name, tensor) in [("o", Some(out.o)), ("lse", out.lse)] {
        if let Some(tensor) = tensor {
            let data = HostData::F32(tensor.read_f32(gpu)?);
            tensors.insert(name.to_owned(), HostTensor { shape: tensor.shape().to_vec(), data });
        }
    }
    Ok(Outcome { kernel, tensors })
}
