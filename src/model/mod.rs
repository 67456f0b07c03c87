//! From a Hugging Face `config.json` to what each layer does and what its cache costs.
//!
//! [`ModelPlan::from_config`] reads the file: families, their old and new field names and their defaults are
//! listed in `docs/models.md`. [`ModelPlan::cache`] describes the cache, layer by layer and to the byte.
//! What is not known is refused by name, never guessed.

mod config;
mod families;
mod fit;
mod layers;
mod memory;
mod rope;
mod rope_config;
mod runtimes;
mod storage;

use std::path::Path;

use serde_json::{Map, Value};

pub use config::{ConfigJson, MAX_CONFIG_BYTES, MAX_LAYERS, MAX_POSITION, MAX_SIZE};
pub use fit::{AdapterFit, Fit, FitVerdict};
pub use layers::{
    Attention, Delta, Design, Indexer, Latent, LayerPlan, Lightning, SelectiveScan, SparseBlocks, Ssd,
    Temperature,
};
pub use memory::{Allocation, CacheSpec, Held, LayerCache, RowKind, Rows, State, StateKind};
pub use rope::{Rope, RopeLayout, RopeScaling};
pub use runtimes::{LlamaCpp, Reservation, ReservedPart, Vllm};
pub use storage::{CacheOptions, Storage};

use crate::{Error, Result};
use config::{Fields, Given};

/// What every layer of a model does, read from its configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelPlan {
    /// The family that the configuration was read as.
    pub family: String,
    /// The layers, in order.
    pub layers: Vec<LayerPlan>,
    /// Layers that only predict ahead, if the file has them; they are cached when asked for.
    pub prediction_layers: Vec<LayerPlan>,
    /// Storage of keys and values that the file asks for: an explicit cache format, else its number type,
    /// else f16. The type of quantised weights says nothing about the cache.
    pub kv: Storage,
    /// Context length the model was made for, if the file says.
    pub max_position: Option<u32>,
}

impl ModelPlan {
    /// Reads a configuration from its text or from parsed JSON.
    ///
    /// # Errors
    /// Refuses what is too large, malformed, out of bounds, or of a family or variant that is not known; the
    /// message names the field.
    ///
    /// ```
    /// use wgpu_attention::model::{CacheOptions, ModelPlan, Storage};
    ///
    /// let plan = ModelPlan::from_config(r#"{"model_type": "mistral", "sliding_window": null}"#)?;
    /// let cache = plan.cache(&CacheOptions::new(Storage::F16))?;
    /// assert_eq!(cache.bytes_per_token(), 131_072);
    /// assert_eq!(cache.bytes(32_768, 1)?, 4096 << 20);
    /// # Ok::<(), wgpu_attention::Error>(())
    /// ```
    pub fn from_config<'a>(config: impl Into<ConfigJson<'a>>) -> Result<Self> {
        match config.into() {
            ConfigJson::Value(value) => Self::from_value(value),
            ConfigJson::Text(text) => Self::from_value(&config::parse(text)?),
        }
    }

    /// Reads a configuration file, or the `config.json` of a folder.
    ///
    /// # Errors
    /// As [`ModelPlan::from_config`]; also if the file cannot be read or is larger than [`MAX_CONFIG_BYTES`].
    pub fn from_file(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let text = if path.is_dir() {
            config::read_file(&path.join("config.json"))?
        } else {
            config::read_file(path)?
        };
        Self::from_config(&text)
    }

    fn from_value(value: &Value) -> Result<Self> {
        let Value::Object(outer) = value else {
            return Err(Error::ConfigField {
                field: "the file".into(),
                value: config::show(value),
                bound: "a JSON object".into(),
                remedy: "pass a model's config.json".into(),
            });
        };
        let text_half = ["text_config", "llm_config", "language_config"]
            .into_iter()
            .find_map(|name| Some((name, outer.get(name)?.as_object()?)));
        let (map, prefix) = match text_half {
            Some((name, inner)) => (inner, format!("{name}.")),
            None => (outer, String::new()),
        };
        let family = family(map, outer)?;
        let fields = Fields::new(map, family, prefix);
        let families::Stack { layers, prediction_layers } = families::read(&fields)?;
        let kv = storage(&fields, &Fields::new(outer, family, String::new()))?;
        let length = fields.any(&["max_position_embeddings", "model_max_length"]);
        let max_position = fields.int(length, 1, MAX_POSITION)?.or(None);
        Ok(Self { family: family.to_owned(), layers, prediction_layers, kv, max_position })
    }

    /// Every `model_type` that is read, wrappers and other spellings included, sorted.
    #[must_use]
    pub fn known_families() -> Vec<&'static str> {
        families::known()
    }

    /// Describes the cache: what each layer holds, and how.
    ///
    /// # Errors
    /// [`Error::OutOfRange`] for options that make no cache.
    pub fn cache(&self, options: &CacheOptions) -> Result<CacheSpec> {
        let extra = if options.prediction_layers { self.prediction_layers.as_slice() } else { &[] };
        CacheSpec::new(self.layers.iter().chain(extra), options)
    }

    /// Bytes if every softmax layer held every token: no windows, no chunks, states as they are.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn all_full_bytes(&self, options: &CacheOptions, tokens: u64, batch: u64) -> Result<u64> {
        let mut cache = self.cache(options)?;
        for rows in cache.layers.iter_mut().flat_map(|layer| &mut layer.rows) {
            if let Held::Window { .. } = rows.held {
                rows.held = Held::All;
            }
        }
        cache.bytes(tokens, batch)
    }

    /// Bytes if every query head of every softmax layer stored a key and a value of its own for every token:
    /// no grouping, no latents, no windows, no sharing between layers.
    ///
    /// # Errors
    /// [`Error::MemoryOverflow`] if the number needs more than 64 bits.
    pub fn plain_bytes(&self, options: &CacheOptions, tokens: u64, batch: u64) -> Result<u64> {
        let row = |heads: u32, dim_k: u64, dim_v: u64| {
            let widths = [dim_k, dim_v].map(|dim| u32::try_from(dim).unwrap_or(u32::MAX));
            u128::from(heads) * widths.map(|dim| u128::from(options.kv.row_bytes(dim))).iter().sum::<u128>()
        };
        let layers =
            self.layers.iter().map(|layer| match (layer.design.attention(), layer.design.latent()) {
                (Some(a), _) => row(a.heads_q, a.dim_k.into(), a.dim_v.into()),
                (_, Some(l)) => row(l.heads_q, u64::from(l.dim_nope) + u64::from(l.dim_rope), l.dim_v.into()),
                _ => 0,
            });
        let token: u128 = layers.sum();
        let sum = token.checked_mul(u128::from(tokens)).and_then(|bytes| bytes.checked_mul(batch.into()));
        sum.and_then(|bytes| u64::try_from(bytes).ok()).ok_or(Error::MemoryOverflow { what: "plain storage" })
    }
}

/// The family of the text half: its own word, else the wrapper's.
fn family<'a>(map: &'a Map<String, Value>, outer: &'a Map<String, Value>) -> Result<&'a str> {
    let word = map.get("model_type").filter(|value| !value.is_null()).or(outer.get("model_type"));
    match word {
        Some(Value::String(name)) => Ok(families::canonical(name)),
        other => Err(Error::ConfigField {
            field: "model_type".into(),
            value: other.map_or_else(|| "absent".into(), config::show),
            bound: "the name of a family".into(),
            remedy: "add it as the publisher writes it".into(),
        }),
    }
}

/// Storage of keys and values: an explicit cache format, else the text half's number type, else the wrapper's.
fn storage(fields: &Fields, outer: &Fields) -> Result<Storage> {
    for place in [fields, outer] {
        for name in ["quantization_config", "quantization"] {
            if let Given::Is(Value::Object(_)) = place.get(name)
                && let Some(quantised) = place.object(name)?
                && let Some(storage) = cache_format(&quantised)?
            {
                return Ok(storage);
            }
        }
        if let Some(storage) = cache_format(place)? {
            return Ok(storage);
        }
    }
    for place in [fields, outer] {
        let name = place.text(place.any(&["dtype", "torch_dtype"]))?.unwrap_or("");
        match name.trim_start_matches("torch.") {
            "float32" | "float" => return Ok(Storage::F32),
            "float16" | "half" => return Ok(Storage::F16),
            "bfloat16" => return Ok(Storage::Bf16),
            _ => {}
        }
    }
    Ok(Storage::F16)
}

fn cache_format(fields: &Fields) -> Result<Option<Storage>> {
    const NAME: &str = "kv_cache_quant_algo";
    match fields.text(NAME)? {
        None => Ok(None),
        Some("FP8") => Ok(Some(Storage::Fp8Tensor)),
        Some("INT8") => Ok(Some(Storage::Int8)),
        Some(_) => Err(fields.bad(NAME, "FP8, INT8 or null", "choose the cache's storage yourself")),
    }
}
