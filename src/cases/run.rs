//! Computes a case on a device, or by definition; and what the operators' files share.

use std::collections::BTreeMap;

use half::{bf16, f16};
use serde_json::Value;

use super::operators::{self, Operator};
use super::{Case, HostData, HostTensor};
use crate::reference::Rounding;
use crate::{DType, Error, Gpu, Mask, Result, Tensor};

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

    pub(super) fn input(&self, name: &str) -> Result<&HostTensor> {
        self.inputs.get(name).ok_or_else(|| self.fault(&format!("in.{name}"), "is missing; add the tensor"))
    }

    pub(super) fn floats(&self, name: &str) -> Result<(&[f32], &[usize])> {
        let tensor = self.input(name)?;
        let data = tensor.floats().ok_or_else(|| self.fault(&format!("in.{name}"), "must hold floats"))?;
        Ok((data, &tensor.shape))
    }

    pub(super) fn four(&self, name: &str) -> Result<[usize; 4]> {
        self.axes(name)
    }

    pub(super) fn axes<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let shape = &self.input(name)?.shape;
        <[usize; N]>::try_from(shape.as_slice())
            .map_err(|_| self.fault(&format!("in.{name}"), format!("has shape {shape:?}, not {N} axes")))
    }

    pub(super) fn number(&self, object: &Value, key: &str) -> Result<Option<f64>> {
        match &object[key] {
            Value::Null => Ok(None),
            value => match value.as_f64() {
                Some(number) => Ok(Some(number)),
                None => Err(self.fault(key, format!("is {value}, not a number"))),
            },
        }
    }

    pub(super) fn count(&self, object: &Value, key: &str) -> Result<Option<u32>> {
        let Some(number) = self.number(object, key)? else { return Ok(None) };
        if number < 0.0 || number > f64::from(u32::MAX) || number.fract() != 0.0 {
            return Err(self.fault(key, format!("is {number}, not a count")));
        }
        Ok(Some(number as u32))
    }

    /// Every key of `object` must be known: an option that is not understood is never dropped.
    pub(super) fn only(&self, object: &Value, known: &[&str]) -> Result<()> {
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

    pub(super) fn mask(&self) -> Result<Mask> {
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

    /// Refuses inputs that the operator does not know, so that none is read past.
    pub(super) fn only_inputs(&self, known: &[&str]) -> Result<()> {
        match self.inputs.keys().find(|n| !known.contains(&n.as_str())) {
            Some(name) => {
                let message = format!("is not understood; known are {}", known.join(", "));
                Err(self.fault(&format!("in.{name}"), message))
            }
            None => Ok(()),
        }
    }

    /// Refuses an input of another shape, or integers where floats are due; absent ones pass.
    pub(super) fn shaped(&self, name: &str, wanted: &[usize], integers: bool) -> Result<()> {
        let Some(tensor) = self.inputs.get(name) else { return Ok(()) };
        if tensor.shape != wanted {
            let message = format!("has shape {:?}, but {wanted:?} is needed", tensor.shape);
            return Err(self.fault(&format!("in.{name}"), message));
        }
        if tensor.integers().is_some() != integers {
            let wanted = if integers { "integers" } else { "floats" };
            return Err(self.fault(&format!("in.{name}"), format!("must hold {wanted}")));
        }
        Ok(())
    }

    fn operator(&self) -> Result<&'static Operator> {
        operators::named(&self.op).ok_or_else(|| {
            let known: Vec<_> = operators::OPERATORS.iter().map(|o| o.name).collect();
            self.fault("op", format!("{:?} is not known; known are {}", self.op, known.join(", ")))
        })
    }

    /// Kernels, or ways of computing, that [`run`] takes for this case's operator.
    ///
    /// # Errors
    /// The operator is not known.
    pub fn paths(&self) -> Result<&'static [&'static str]> {
        Ok(self.operator()?.paths)
    }

    /// The outputs by definition, from inputs rounded to `dtype`.
    ///
    /// # Errors
    /// The operator has no definition here, or the case is refused.
    pub fn reference(&self, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
        (self.operator()?.reference)(self, dtype, rounding)
    }
}

impl HostTensor {
    /// Results of a definition, narrowed to f32.
    pub(super) fn of(shape: impl Into<Vec<usize>>, data: Vec<f64>) -> Self {
        let data = data.into_iter().map(|x| x as f32).collect();
        Self { shape: shape.into(), data: HostData::F32(data) }
    }

    /// A tensor on the device, widened to f32.
    pub(super) fn download(gpu: &Gpu, tensor: &Tensor) -> Result<Self> {
        let data = match tensor.dtype() {
            DType::I32 => HostData::I32(tensor.read(gpu)?),
            _ => HostData::F32(tensor.read_f32(gpu)?),
        };
        Ok(Self { shape: tensor.shape().to_vec(), data })
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

/// Every name that [`run`] takes as a kernel, of whatever operator.
#[must_use]
pub fn paths() -> Vec<&'static str> {
    let mut names: Vec<_> = operators::OPERATORS.iter().flat_map(|o| o.paths).copied().collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Computes a case with its tensors stored as `dtype`, with one kernel (or way of computing) or the plan's.
///
/// # Errors
/// An unknown operator, option or tensor, by name; or what the operator itself refuses.
pub fn run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    let operator = case.operator()?;
    if !operator.dtypes.contains(&dtype) {
        let known: Vec<_> = operator.dtypes.iter().map(|d| d.name()).collect();
        let message = format!("{} is not stored as {}; ask for {}", case.op, dtype.name(), known.join(", "));
        return Err(case.fault("dtype", message));
    }
    if let Some(name) = kernel.filter(|k| !operator.paths.contains(k)) {
        let message =
            format!("{name:?} does not compute {}; known are {}", case.op, operator.paths.join(", "));
        return Err(case.fault("kernel", message));
    }
    (operator.run)(gpu, case, dtype, kernel)
}
