//! `plan`: a model's layers, what their cache costs, how it grows.

mod chart;
mod tables;

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use wgpu_attention::model::{
    AdapterFit, CacheOptions, CacheSpec, LlamaCpp, ModelPlan, Reservation, Storage, Vllm,
};

/// Arguments of `plan`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  wgpu-attention plan config.json --tokens 128k --kv q8_0\n  \
                  wgpu-attention plan --compare llama/ gemma/ --svg growth.svg")]
pub(crate) struct Args {
    /// A config.json, or the folder it lies in
    #[arg(required_unless_present = "compare")]
    path: Option<PathBuf>,
    /// Tokens of each sequence: 32768, 32k or 1m (k is 1024)
    #[arg(long, default_value = "32k", value_parser = tokens)]
    tokens: u64,
    /// Sequences
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    batch: u64,
    /// Storage of keys and values: f32, f16, bf16, `q8_0`, `q4_0`, fp8, fp8-tensor or int8
    /// [default: what the file says, 16 bits for f32]
    #[arg(long)]
    kv: Option<Storage>,
    /// Storage of indexer keys [default: as --kv]
    #[arg(long)]
    index: Option<Storage>,
    /// Most tokens one call appends: window layers keep room for them
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..))]
    chunk: u32,
    /// Count the layers that only predict ahead
    #[arg(long)]
    prediction_layers: bool,
    /// Print one JSON object (with --compare, a list)
    #[arg(long)]
    json: bool,
    /// Draw the growth, and with --compare the parts, into an SVG file
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,
    /// Set models side by side
    #[arg(long, num_args = 1.., value_name = "PATH")]
    compare: Vec<PathBuf>,
    /// What a runtime reserves by its published rule
    #[arg(long, value_enum)]
    runtime: Option<Runtime>,
    /// llama.cpp's option of that name
    #[arg(long, requires = "runtime")]
    swa_full: bool,
    /// llama.cpp's prompt batch
    #[arg(long, default_value_t = 512)]
    ubatch: u64,
    /// vLLM's `max_num_batched_tokens`
    #[arg(long, default_value_t = 16_384)]
    batched_tokens: u64,
}

/// Runtimes with a published rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Runtime {
    #[value(name = "llama.cpp")]
    LlamaCpp,
    #[value(name = "vllm")]
    Vllm,
}

/// A token count with an optional k or m.
fn tokens(text: &str) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    let (digits, unit) = match lower.as_bytes().last() {
        Some(b'k') => (&lower[..lower.len() - 1], 1 << 10),
        Some(b'm') => (&lower[..lower.len() - 1], 1 << 20),
        _ => (lower.as_str(), 1),
    };
    let number: Option<u64> = digits.replace('_', "").parse().ok();
    number
        .and_then(|number| number.checked_mul(unit))
        .filter(|tokens| (1..=1 << 40).contains(tokens))
        .ok_or_else(|| format!("tokens is {text:?}, but must be from 1 to 2^40: write 32768, 32k or 1m"))
}

/// One model, read and sized.
#[derive(Debug)]
struct Model {
    name: String,
    plan: ModelPlan,
    options: CacheOptions,
    cache: CacheSpec,
    tokens: u64,
    batch: u64,
    reservation: Option<(Runtime, Reservation)>,
}

impl Model {
    fn read(path: &Path, args: &Args) -> Result<Self, Box<dyn Error>> {
        let plan = ModelPlan::from_file(path).map_err(|error| format!("{}: {error}", path.display()))?;
        // f32 is how some weights are published, not how they are run
        let kv = args.kv.unwrap_or(if plan.kv == Storage::F32 { Storage::F16 } else { plan.kv });
        if args.prediction_layers && plan.prediction_layers.is_empty() {
            return Err(format!(
                "{}: prediction-layers is set, but the file names none: leave the option out",
                path.display()
            )
            .into());
        }
        let mut options =
            CacheOptions::new(kv).call_tokens(args.chunk).prediction_layers(args.prediction_layers);
        options.index = args.index;
        let cache = plan.cache(&options)?;
        let reservation = match args.runtime {
            None => None,
            Some(Runtime::LlamaCpp) => {
                let mut rule = LlamaCpp::new(args.tokens);
                (rule.sequences, rule.kv) = (args.batch, kv);
                (rule.ubatch, rule.swa_full) = (args.ubatch, args.swa_full);
                Some((Runtime::LlamaCpp, rule.reserve(&plan)?))
            }
            Some(Runtime::Vllm) => {
                let mut rule = Vllm::new(args.tokens);
                (rule.sequences, rule.kv, rule.batched_tokens) = (args.batch, kv, args.batched_tokens);
                Some((Runtime::Vllm, rule.reserve(&plan)?))
            }
        };
        let name = title(path);
        Ok(Self { name, plan, options, cache, tokens: args.tokens, batch: args.batch, reservation })
    }

    fn bytes_at(&self, tokens: u64) -> Result<u64, Box<dyn Error>> {
        Ok(self.cache.bytes(tokens, self.batch)?)
    }

    fn json(&self) -> Result<Value, Box<dyn Error>> {
        let layer = |layer: &wgpu_attention::model::LayerCache| {
            let bytes = layer.bytes(self.tokens, self.batch)?;
            Ok(json!({"index": layer.index, "design": layer.design, "bytes": bytes}))
        };
        let layers =
            self.cache.layers.iter().map(layer).collect::<Result<Vec<_>, wgpu_attention::Error>>()?;
        let mut object = json!({
            "model": self.name,
            "family": self.plan.family,
            "kv": self.options.kv.name(),
            "tokens": self.tokens,
            "batch": self.batch,
            "total_bytes": self.bytes_at(self.tokens)?,
            "bytes_per_token": self.cache.bytes_per_token(),
            "fixed_bytes": self.cache.fixed_bytes()?,
            "all_full_bytes": self.plan.all_full_bytes(&self.options, self.tokens, self.batch)?,
            "plain_bytes": self.plan.plain_bytes(&self.options, self.tokens, self.batch)?,
            "layers": layers,
        });
        if let Some((runtime, reservation)) = &self.reservation {
            object["runtime"] = json!({"name": runtime.name(), "total_bytes": reservation.total_bytes});
        }
        Ok(object)
    }
}

impl Runtime {
    fn name(self) -> &'static str {
        match self {
            Self::LlamaCpp => "llama.cpp",
            Self::Vllm => "vLLM",
        }
    }
}

/// A model's name in tables: its folder's for a config.json, else the file's.
fn title(path: &Path) -> String {
    let is_config = path.file_name().is_some_and(|name| name == "config.json");
    let named = if is_config { path.parent().map(PathBuf::from) } else { None };
    let named = named.filter(|parent| parent.file_name().is_some()).unwrap_or_else(|| path.to_owned());
    let stem =
        if named.extension().is_some_and(|e| e == "json") { named.file_stem() } else { named.file_name() };
    stem.map_or_else(|| path.display().to_string(), |name| name.to_string_lossy().into_owned())
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let paths = args.path.iter().chain(&args.compare);
    let models = paths.map(|path| Model::read(path, args)).collect::<Result<Vec<_>, _>>()?;
    if let Some(file) = &args.svg {
        let svg = chart::svg(&models)?;
        std::fs::write(file, svg)
            .map_err(|error| format!("svg: {} cannot be written ({error})", file.display()))?;
    }
    let text = if args.json {
        let objects = models.iter().map(Model::json).collect::<Result<Vec<_>, _>>()?;
        let value = match objects.as_slice() {
            [one] if args.compare.is_empty() => one.clone(),
            _ => Value::from(objects),
        };
        serde_json::to_string_pretty(&value)? + "\n"
    } else {
        match models.as_slice() {
            [one] => tables::one(one, &adapters())?,
            many => tables::compared(many)?,
        }
    };
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(()),
    }
}

/// The adapters present, as far as a fit asks. How much memory they have is not known.
fn adapters() -> Vec<AdapterFit> {
    let fit = |adapter: wgpu_attention::AdapterSummary| AdapterFit {
        name: format!("{} ({})", adapter.name, adapter.backend),
        max_buffer_bytes: adapter.limits.buffer_bytes,
        max_binding_bytes: adapter.limits.binding_bytes,
        memory_bytes: None,
    };
    wgpu_attention::adapters().into_iter().map(fit).collect()
}
