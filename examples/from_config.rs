//! Reads a model's config.json and prints what a cache of it would hold.
//!
//! `cargo run --example from_config -- path/to/config.json`
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use wgpu_attention::model::{CacheOptions, ModelPlan, Storage};

/// A small hybrid: three recurrent layers, then one of full attention.
const SMALL: &str = r#"{
    "model_type": "qwen3_next",
    "num_hidden_layers": 4,
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "linear_num_key_heads": 4,
    "linear_num_value_heads": 8
}"#;

fn main() -> Result<(), wgpu_attention::Error> {
    let plan = match std::env::args().nth(1) {
        Some(path) => ModelPlan::from_file(path)?,
        None => ModelPlan::from_config(SMALL)?,
    };
    let cache = plan.cache(&CacheOptions::new(Storage::F16).call_tokens(512))?;
    for (layer, held) in plan.layers.iter().zip(&cache.layers) {
        println!("{:>3}  {:<48} {:>12}", layer.index, layer.design.describe(), held.bytes(8192, 1)?);
    }
    println!("{} bytes at 8,192 tokens", cache.bytes(8192, 1)?);
    println!("{} bytes per token, {} fixed", cache.bytes_per_token(), cache.fixed_bytes()?);
    Ok(())
}
