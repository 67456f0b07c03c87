//! The configurations of the reference checkpoints: every one is read, with the layers its file lists.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::path::PathBuf;

use wgpu_attention::model::{CacheOptions, Design, ModelPlan, RopeScaling, Storage};

fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/models").join(name)
}

fn plan(name: &str) -> ModelPlan {
    ModelPlan::from_file(folder(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Name, designs in order, bytes of 100 tokens at 16 bits with f32 states.
const ROWS: [(&str, &[&str], u64); 17] = [
    ("deepseek_v2_lite", &["latent"; 4], 100 * 4 * (32 + 8) * 2),
    ("deepseek_v3", &["latent"; 4], 100 * 4 * (32 + 8) * 2),
    ("deepseek_v32", &["latent indexed"; 4], 100 * 4 * (32 + 8 + 16) * 2),
    ("falcon_mqa", &["full"; 4], 100 * 4 * 2 * 8 * 2),
    ("gemma2", &["window", "full", "window", "full"], (100 + 16) * 2 * 2 * 2 * 16 * 2),
    (
        "gemma3",
        &["window", "window", "window", "window", "window", "full", "window"],
        (100 + 6 * 16) * 2 * 16 * 2,
    ),
    ("gpt_oss", &["window", "full", "window", "full"], (100 + 16) * 2 * 2 * 2 * 16 * 2),
    (
        "jamba",
        &["selective scan", "selective scan", "full", "selective scan"],
        100 * 2 * 16 * 2 + 3 * 128 * (8 + 3) * 4,
    ),
    (
        "kimi_linear",
        &["kimi delta", "kimi delta", "kimi delta", "kimi delta", "latent"],
        100 * 40 * 2 + 4 * (4 * 16 * 16 + 3 * 192) * 4,
    ),
    ("llama2_mha", &["full"; 4], 100 * 4 * 2 * 4 * 16 * 2),
    ("llama31_gqa", &["full"; 4], 100 * 4 * 2 * 2 * 16 * 2),
    ("llama4", &["chunked", "chunked", "chunked", "full"], (100 + 3 * 32) * 2 * 16 * 2),
    ("minimax", &["lightning", "full", "lightning", "full"], 100 * 2 * 2 * 2 * 16 * 2 + 2 * 4 * 16 * 16 * 4),
    ("mistral_swa", &["window"; 4], 4 * 16 * 2 * 2 * 16 * 2),
    ("qwen3", &["full"; 4], 100 * 4 * 2 * 2 * 16 * 2),
    (
        "qwen35",
        &["gated delta", "gated delta", "gated delta", "full"],
        100 * 2 * 2 * 32 * 2 + 3 * (4 * 16 * 16 + 3 * 128) * 4,
    ),
    (
        "qwen3_next",
        &["gated delta", "gated delta", "gated delta", "full"],
        100 * 2 * 2 * 16 * 2 + 3 * (4 * 16 * 16 + 3 * 128) * 4,
    ),
];

#[test]
fn every_reference_checkpoint() {
    let folders = std::fs::read_dir(folder("")).unwrap().count();
    assert_eq!(folders, ROWS.len(), "a folder without a row");
    for (name, designs, bytes) in ROWS {
        let plan = plan(name);
        let found: Vec<&str> = plan.layers.iter().map(|layer| layer.design.name()).collect();
        assert_eq!(found, designs, "{name}");
        assert_eq!(plan.kv, Storage::Bf16, "{name}");
        let cache = plan.cache(&CacheOptions::new(plan.kv)).unwrap();
        assert_eq!(cache.bytes(100, 1).unwrap(), bytes, "{name}");
    }
}

#[test]
fn scales_and_rotations() {
    let gemma = plan("gemma2");
    let attention = gemma.layers[0].design.attention().unwrap();
    assert!((attention.scale - 24f64.powf(-0.5)).abs() < 1e-15);
    assert_eq!(attention.softcap, Some(5.0));

    let gemma = plan("gemma3");
    let theta = |i: usize| gemma.layers[i].design.rope().unwrap().theta;
    assert_eq!((theta(0), theta(5), theta(6)), (1e4, 1e6, 1e4));

    let llama = plan("llama31_gqa");
    let scaling = &llama.layers[0].design.rope().unwrap().scaling;
    assert!(matches!(scaling, RopeScaling::Llama3 { original: 64, .. }), "{scaling:?}");

    for (name, mscale) in [("deepseek_v2_lite", 0.707), ("deepseek_v3", 1.0), ("deepseek_v32", 1.0)] {
        let plan = plan(name);
        let latent = plan.layers[0].design.latent().unwrap();
        let expected = (0.1 * mscale * 40f64.ln() + 1.0).powi(2) / 24f64.sqrt();
        assert!((latent.scale - expected).abs() < 1e-15, "{name}");
        assert_eq!(latent.rope.as_ref().unwrap().rotary_dim, 8, "{name}");
    }
    let kimi = plan("kimi_linear");
    assert!(kimi.layers[4].design.rope().is_none());

    for (name, dim) in [("qwen35", 8), ("qwen3_next", 4), ("minimax", 16)] {
        let plan = plan(name);
        let rope = plan.layers.iter().find_map(|layer| layer.design.rope()).unwrap();
        assert_eq!(rope.rotary_dim, dim, "{name}");
    }
    let llama = plan("llama4");
    for (i, layer) in llama.layers.iter().enumerate() {
        let attention = layer.design.attention().unwrap();
        assert_eq!(attention.rope.is_some(), i < 3);
        assert_eq!(attention.temperature.map(|t| (t.floor, t.offset)), (i == 3).then_some((16, 1)));
    }
    let Design::LatentIndexed { indexer, .. } = &plan("deepseek_v32").layers[0].design else { panic!() };
    assert_eq!((indexer.heads, indexer.dim, indexer.topk), (16, 16, 12));
}
