//! Case files: safetensors with `op`, `params` and `source` in the metadata, `in.*` and `out.*` tensors.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors, TensorView};

use super::{Case, HostData, HostTensor};
use crate::{Error, Result};

fn fault(path: &str, field: &str, message: impl std::fmt::Display) -> Error {
    Error::CaseFile { path: path.into(), field: field.into(), message: message.to_string() }
}

fn host(path: &str, name: &str, view: &TensorView<'_>) -> Result<HostTensor> {
    let words = |bytes: usize| view.data().chunks_exact(bytes);
    let data = match view.dtype() {
        Dtype::F32 => HostData::F32(words(4).map(bytemuck::pod_read_unaligned).collect()),
        Dtype::F16 => {
            HostData::F32(words(2).map(|b| bytemuck::pod_read_unaligned::<half::f16>(b).to_f32()).collect())
        }
        Dtype::BF16 => {
            HostData::F32(words(2).map(|b| bytemuck::pod_read_unaligned::<half::bf16>(b).to_f32()).collect())
        }
        Dtype::I32 => HostData::I32(words(4).map(bytemuck::pod_read_unaligned).collect()),
        other => {
            let message = format!("is stored as {other:?}; write it as F32, F16, BF16 or I32");
            return Err(fault(path, name, message));
        }
    };
    Ok(HostTensor { shape: view.shape().to_vec(), data })
}

impl Case {
    /// Reads a case file.
    ///
    /// # Errors
    /// The file cannot be read, or does not say what it must.
    pub fn load(path: &Path) -> Result<Self> {
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).map_err(|e| fault(&shown, "file", e))?;
        let stem = path.file_stem().map_or_else(|| shown.clone(), |s| s.to_string_lossy().into_owned());
        Self::parse(&shown, &stem, &bytes)
    }

    /// Reads a case from memory.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn from_bytes(name: &str, bytes: &[u8]) -> Result<Self> {
        Self::parse(name, name, bytes)
    }

    fn parse(path: &str, name: &str, bytes: &[u8]) -> Result<Self> {
        let (_, header) = SafeTensors::read_metadata(bytes).map_err(|e| fault(path, "file", e))?;
        let tensors = SafeTensors::deserialize(bytes).map_err(|e| fault(path, "file", e))?;
        let metadata = header.metadata().clone().unwrap_or_default();
        let text = |key: &str| {
            let missing = || fault(path, key, "is missing from the metadata; write op, params and source");
            metadata.get(key).cloned().ok_or_else(missing)
        };
        let params = text("params")?;
        let params = serde_json::from_str(&params).map_err(|e| fault(path, "params", e))?;
        let (mut inputs, mut expected) = (BTreeMap::new(), BTreeMap::new());
        for (tensor, view) in tensors.tensors() {
            let host = host(path, &tensor, &view)?;
            if let Some(input) = tensor.strip_prefix("in.") {
                inputs.insert(input.to_owned(), host);
            } else if let Some(output) = tensor.strip_prefix("out.") {
                expected.insert(output.to_owned(), host);
            } else {
                return Err(fault(path, &tensor, "is neither an in. nor an out. tensor; rename it"));
            }
        }
        let source = metadata.get("source").cloned().unwrap_or_default();
        Ok(Self { name: name.to_owned(), op: text("op")?, params, source, inputs, expected })
    }

    /// Writes a file with the case's metadata and `outputs` as `out.*` tensors.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn save(path: &Path, case: &Self, outputs: &BTreeMap<String, HostTensor>) -> Result<()> {
        let shown = path.display().to_string();
        let metadata = HashMap::from([
            ("op".to_owned(), case.op.clone()),
            ("params".to_owned(), case.params.to_string()),
            ("source".to_owned(), format!("wgpu-attention {}", env!("CARGO_PKG_VERSION"))),
        ]);
        let views = outputs
            .iter()
            .map(|(name, tensor)| {
                let (dtype, bytes): (_, &[u8]) = match &tensor.data {
                    HostData::F32(data) => (Dtype::F32, bytemuck::cast_slice(data)),
                    HostData::I32(data) => (Dtype::I32, bytemuck::cast_slice(data)),
                };
                let view = TensorView::new(dtype, tensor.shape.clone(), bytes);
                view.map(|v| (format!("out.{name}"), v)).map_err(|e| fault(&shown, name, e))
            })
            .collect::<Result<Vec<_>>>()?;
        safetensors::serialize_to_file(views, Some(metadata), path).map_err(|e| fault(&shown, "file", e))
    }
}
