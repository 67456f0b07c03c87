//! What is allocated equals what was planned, to the byte.

use std::path::{Path, PathBuf};

use wgpu_attention::Cache;
use wgpu_attention::model::{CacheOptions, ModelPlan, Storage};

use crate::gpu;
use crate::toy::every_design;

fn configs(folder: &str) -> Vec<(PathBuf, ModelPlan)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let mut files: Vec<_> = std::fs::read_dir(root).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    files.into_iter().map(|path| (path.clone(), ModelPlan::from_file(&path).unwrap())).collect()
}

#[test]
fn every_golden_model_allocates_its_plan() {
    let models = configs("tests/golden/models");
    assert!(models.len() >= 17);
    for (path, plan) in models {
        for storage in [Storage::F32, Storage::F16, Storage::Bf16, Storage::Int8, Storage::Fp8, Storage::Q8_0]
        {
            for (tokens, sequences, call) in [(1, 1, 1), (37, 2, 5), (70, 3, 1)] {
                let spec = plan.cache(&CacheOptions::new(storage).call_tokens(call)).unwrap();
                let builder = Cache::builder(&spec).tokens(tokens).sequences(sequences);
                let planned = spec.bytes(tokens, sequences as u64).unwrap();
                let cache = match builder.build(gpu()) {
                    Ok(cache) => cache,
                    // tiny heads that no block fills: refused by name
                    Err(error) => {
                        assert!(
                            !matches!(storage, Storage::F32 | Storage::F16 | Storage::Bf16),
                            "{path:?}: {error}"
                        );
                        assert!(error.to_string().starts_with("width is"), "{path:?}: {error}");
                        continue;
                    }
                };
                assert_eq!(cache.bytes(), planned, "{path:?} {storage}");
                assert_eq!(builder.bytes().unwrap(), planned);
                for layer in &spec.layers {
                    if layer.shares_cache_of.is_none() {
                        let bytes = layer.bytes(tokens, sequences as u64).unwrap();
                        assert_eq!(cache.layer_bytes(layer.index).unwrap(), bytes, "{path:?} {storage}");
                    }
                }
            }
        }
    }
}

#[test]
fn published_models_allocate_their_plan_where_they_fit() {
    let mut allocated = 0;
    for (path, plan) in configs("tests/configs") {
        for storage in [Storage::F16, Storage::Q8_0, Storage::Q4_0, Storage::Fp8, Storage::Int8] {
            let spec = plan.cache(&CacheOptions::new(storage)).unwrap();
            // the same function as for 32,768 tokens, where the table of sizes stands
            let builder = Cache::builder(&spec).tokens(32_768);
            assert_eq!(builder.bytes().unwrap(), spec.bytes(32_768, 1).unwrap(), "{path:?}");
            let planned = spec.bytes(18, 1).unwrap();
            if planned < 24 << 20 {
                let cache = Cache::builder(&spec).tokens(18).build(gpu()).unwrap();
                assert_eq!(cache.bytes(), planned, "{path:?} {storage}");
                allocated += 1;
            }
        }
    }
    assert!(allocated > 60, "{allocated}");
}

#[test]
fn every_design_allocates_its_plan() {
    let spec = every_design(Storage::F32, 6);
    let cache = Cache::builder(&spec).tokens(50).sequences(3).build(gpu()).unwrap();
    assert_eq!(cache.bytes(), spec.bytes(50, 3).unwrap());
    // pages: the rows of full layers are the pool's, all else is each sequence's
    let builder = Cache::builder(&spec).tokens(50).sequences(3).pages(16, 5);
    let cache = builder.build(gpu()).unwrap();
    assert_eq!(cache.bytes(), builder.bytes().unwrap());
    let all: u64 = spec.bytes(50, 3).unwrap();
    let full: u64 = spec
        .layers
        .iter()
        .flat_map(|l| &l.rows)
        .filter(|r| r.held == wgpu_attention::model::Held::All)
        .map(wgpu_attention::model::Rows::token_bytes)
        .sum();
    assert_eq!(cache.bytes(), all - full * 150 + full * 80);
}

#[test]
fn what_cannot_be_is_refused_before_memory() {
    let spec = every_design(Storage::F32, 6);
    let says = |error: wgpu_attention::Error, start: &str| {
        assert!(error.to_string().starts_with(start), "{error}");
    };
    says(Cache::builder(&spec).tokens(0).build(gpu()).unwrap_err(), "tokens is 0");
    says(Cache::builder(&spec).sequences(0).build(gpu()).unwrap_err(), "sequences is 0");
    says(Cache::builder(&spec).pages(8, 10).build(gpu()).unwrap_err(), "page is 8");
    says(Cache::builder(&spec).pages(24, 10).build(gpu()).unwrap_err(), "page is 24");
    says(Cache::builder(&spec).pages(16, 0).build(gpu()).unwrap_err(), "pages is 0");
    // G2: 512 MiB a tensor on a device with default limits
    let llama = ModelPlan::from_config(r#"{"model_type": "llama", "num_hidden_layers": 1}"#).unwrap();
    let spec = llama.cache(&CacheOptions::new(Storage::F16)).unwrap();
    let portable = wgpu_attention::Gpu::builder().portable().build().unwrap();
    says(
        Cache::builder(&spec).tokens(65_536).build(&portable).unwrap_err(),
        "tokens is so many that layer 0",
    );
}
