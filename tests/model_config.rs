//! What configurations mean: defaults, old and new spellings, absent and null, refusals.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use approx::assert_relative_eq;
use serde_json::{Value, json};
use wgpu_attention::Error;
use wgpu_attention::model::{
    Attention, CacheOptions, Design, MAX_CONFIG_BYTES, ModelPlan, Rope, RopeLayout, RopeScaling, Storage,
};

fn plan(config: &Value) -> ModelPlan {
    ModelPlan::from_config(config).unwrap_or_else(|error| panic!("{config}: {error}"))
}

fn file(name: &str) -> ModelPlan {
    ModelPlan::from_file(format!("{}/tests/configs/{name}.json", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// The message of a refusal, which must name every one of `words`.
fn refused(config: &Value, words: &[&str]) -> String {
    let message = match ModelPlan::from_config(config) {
        Ok(plan) => panic!("{config} was read as {plan:?}"),
        Err(error) => error.to_string(),
    };
    for word in words {
        assert!(message.contains(word), "{message:?} does not name {word}");
    }
    message
}

fn designs(plan: &ModelPlan) -> Vec<&'static str> {
    plan.layers.iter().map(|layer| layer.design.name()).collect()
}

fn windows(plan: &ModelPlan) -> Vec<Option<u32>> {
    let window = |design: &Design| match design {
        Design::Window { window, .. } => Some(*window),
        _ => None,
    };
    plan.layers.iter().map(|layer| window(&layer.design)).collect()
}

fn attention(plan: &ModelPlan, layer: usize) -> &Attention {
    plan.layers[layer].design.attention().expect("a layer with heads")
}

fn rope(plan: &ModelPlan, layer: usize) -> &Rope {
    plan.layers[layer].design.rope().expect("a rotated layer")
}

fn per_token(plan: &ModelPlan) -> u64 {
    plan.cache(&CacheOptions::new(Storage::F16)).unwrap().bytes_per_token()
}

#[test]
fn f1_mistral_window() {
    let null = plan(&json!({"model_type": "mistral", "sliding_window": null}));
    assert!(designs(&null).iter().all(|design| *design == "full"));
    // absent is the class default, not null
    let absent = plan(&json!({"model_type": "mistral"}));
    assert_eq!(windows(&absent), vec![Some(4096); 32]);
    for none in [json!(0), json!(-1)] {
        let off = plan(&json!({"model_type": "mistral", "sliding_window": none}));
        assert!(designs(&off).iter().all(|design| *design == "full"));
    }
    refused(&json!({"model_type": "mistral", "sliding_window": -5}), &["sliding_window", "-5"]);
    // window and heads come from the class when the file is silent
    assert_eq!(attention(&absent, 0).heads_kv, 8);
    let null_heads = plan(&json!({"model_type": "mistral", "num_key_value_heads": null}));
    assert_eq!(attention(&null_heads, 0).heads_kv, 32);
}

#[test]
fn f2_qwen_windows() {
    let qwen = file("qwen2-7b");
    assert_eq!(designs(&qwen), vec!["full"; 28]);
    let mut config = json!({"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": true,
        "sliding_window": 64, "max_window_layers": 2});
    assert_eq!(windows(&plan(&config)), [None, None, Some(64), Some(64)]);
    config["model_type"] = json!("qwen2_moe");
    assert_eq!(windows(&plan(&config)), [Some(64), None, None, None]);
    config["model_type"] = json!("qwen3_moe");
    assert_eq!(windows(&plan(&config)), [Some(64); 4]);
    config["use_sliding_window"] = json!(false);
    assert_eq!(windows(&plan(&config)), [None; 4]);
}

#[test]
fn f3_f4_head_width() {
    let base = json!({"model_type": "llama", "num_hidden_layers": 1});
    let with = |fields: &[(&str, Value)]| {
        let mut config = base.clone();
        for (name, value) in fields {
            config[*name] = value.clone();
        }
        config
    };
    let sizes = |hidden: u32, heads: u32, dim: Option<Value>| {
        let mut fields = vec![
            ("hidden_size", json!(hidden)),
            ("num_attention_heads", json!(heads)),
            ("num_key_value_heads", json!(heads.min(8))),
        ];
        fields.extend(dim.map(|dim| ("head_dim", dim)));
        with(&fields)
    };
    assert_eq!(attention(&plan(&sizes(5120, 64, Some(json!(128)))), 0).dim_k, 128);
    assert_eq!(attention(&plan(&sizes(640, 4, Some(json!(256)))), 0).dim_k, 256);
    assert_eq!(attention(&plan(&sizes(4096, 32, Some(Value::Null))), 0).dim_k, 128);
    assert_eq!(attention(&plan(&sizes(4096, 32, None)), 0).dim_k, 128);
    refused(&sizes(100, 3, None), &["hidden_size", "num_attention_heads", "100"]);
}

#[test]
fn f5_key_value_heads() {
    let with = |kv: Option<Value>| {
        let mut config = json!({"model_type": "llama", "num_attention_heads": 32});
        if let Some(kv) = kv {
            config["num_key_value_heads"] = kv;
        }
        config
    };
    assert_eq!(attention(&plan(&with(None)), 0).heads_kv, 32);
    assert_eq!(attention(&plan(&with(Some(Value::Null))), 0).heads_kv, 32);
    refused(&with(Some(json!(0))), &["num_key_value_heads", "0"]);
    refused(&with(Some(json!(5))), &["num_attention_heads", "32", "num_key_value_heads", "5"]);
    // class defaults where the field is absent
    for (family, kv) in [
        ("mistral", 8),
        ("jamba", 8),
        ("minimax", 8),
        ("llama4_text", 8),
        ("gpt_oss", 8),
        ("gemma", 16),
        ("gemma2", 4),
        ("gemma3_text", 4),
        ("qwen3", 32),
        ("qwen3_moe", 4),
        ("qwen3_next", 2),
        ("qwen3_5_text", 4),
    ] {
        let plan = plan(&json!({"model_type": family}));
        let layer = plan.layers.iter().find_map(|layer| layer.design.attention());
        assert_eq!(layer.map(|a| a.heads_kv), Some(kv), "{family}");
    }
}

#[test]
fn f6_falcon() {
    let falcon = file("falcon-7b");
    assert_eq!((attention(&falcon, 0).heads_kv, attention(&falcon, 0).dim_k), (1, 64));
    let all_heads = plan(&json!({"model_type": "falcon", "multi_query": false}));
    assert_eq!(attention(&all_heads, 0).heads_kv, 71);
    assert_eq!(attention(&file("falcon-40b"), 0).heads_kv, 8);
    refused(&json!({"model_type": "falcon", "alibi": true}), &["alibi", "falcon"]);
}

#[test]
fn f7_gemma_3_by_defaults() {
    let gemma = plan(&json!({"model_type": "gemma3", "text_config":
        {"hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}}));
    assert_eq!(gemma.family, "gemma3_text");
    let first = attention(&gemma, 0);
    assert_eq!((first.heads_q, first.heads_kv, first.dim_k), (8, 4, 256));
    let full = [5, 11, 17, 23, 29];
    for (i, window) in windows(&gemma).into_iter().enumerate() {
        assert_eq!(window, (!full.contains(&i)).then_some(1024), "layer {i}");
    }
    assert_relative_eq!(first.scale, 1.0 / 16.0);
    assert_eq!(first.softcap, None);
}

#[test]
fn f8_windows_as_a_list() {
    let config = json!({"model_type": "mistral3", "text_config": {"model_type": "mistral",
        "num_hidden_layers": 8, "sliding_window": [4096, null, null, null]}});
    let one = Some(4096);
    assert_eq!(windows(&plan(&config)), [one, None, None, None, one, None, None, None]);
}

#[test]
fn f9_rotation_by_layer_type() {
    let linear = json!({"rope_type": "linear", "factor": 8, "rope_theta": 1e6});
    let scaled = RopeScaling::Linear { factor: 8.0 };
    let nested = json!({"model_type": "gemma3_text", "rope_parameters":
        {"sliding_attention": {"rope_theta": 10000}, "full_attention": linear}});
    let flat = json!({"model_type": "gemma3_text", "rope_parameters": linear});
    let old = json!({"model_type": "gemma3_text", "rope_theta": 1e6, "rope_local_base_freq": 10000,
        "rope_scaling": {"type": "linear", "factor": 8}});
    for config in [nested, flat, old] {
        let plan = plan(&config);
        let (sliding, full) = (rope(&plan, 0), rope(&plan, 5));
        assert_eq!((sliding.theta, &sliding.scaling), (1e4, &RopeScaling::Default), "{config}");
        assert_eq!((full.theta, &full.scaling), (1e6, &scaled), "{config}");
    }
    let own = json!({"model_type": "gemma3_text", "rope_parameters":
        {"sliding_attention": {"rope_theta": 5000}, "full_attention": {"rope_theta": 2e6}}});
    assert_eq!((rope(&plan(&own), 0).theta, rope(&plan(&own), 5).theta), (5e3, 2e6));
    // a family without bases by layer type reads nested parameters too, but does not invent missing ones
    let cohere =
        json!({"model_type": "cohere2", "rope_parameters": {"sliding_attention": {"rope_theta": 5e4}}});
    assert_relative_eq!(rope(&plan(&cohere), 0).theta, 5e4);
    refused(
        &json!({"model_type": "llama", "rope_parameters": {"sliding_attention": {"rope_theta": 5e4}}}),
        &["rope_parameters.full_attention"],
    );
}

#[test]
fn f10_longrope_turns_after_the_original_length() {
    let config = json!({"model_type": "phi3", "hidden_size": 64, "num_attention_heads": 4,
        "num_hidden_layers": 1, "max_position_embeddings": 32, "original_max_position_embeddings": 8,
        "rope_scaling": {"type": "su", "short_factor": [1, 1, 1, 1, 1, 1, 1, 1.5],
            "long_factor": [1, 2, 3, 4, 5, 6, 7, 8]}});
    let plan = plan(&config);
    let scaling = &rope(&plan, 0).scaling;
    assert!(!scaling.uses_long(8) && scaling.uses_long(9));
    assert_relative_eq!(scaling.attention_factor(), (1.0 + 4f64.ln() / 8f64.ln()).sqrt());
    let mut short = config;
    short["rope_scaling"]["long_factor"] = json!([1, 2]);
    refused(&short, &["rope_scaling.long_factor", "8 positive numbers"]);
}

#[test]
fn f11_f13_f14_layer_lists() {
    let next = plan(&json!({"model_type": "qwen3_next", "full_attention_interval": 4}));
    let full: Vec<usize> = (0..48).filter(|i| designs(&next)[*i] == "full").collect();
    assert_eq!(full, (0..12).map(|i| 4 * i + 3).collect::<Vec<_>>());

    let elm = file("openelm-270m");
    assert_eq!((attention(&elm, 0).heads_q, attention(&elm, 0).heads_kv), (12, 3));
    assert_eq!((attention(&elm, 15).heads_q, attention(&elm, 15).heads_kv), (20, 5));
    assert_eq!(per_token(&elm), 16_128);

    let some =
        plan(&json!({"model_type": "llama", "num_hidden_layers": 4, "num_key_value_heads": [8, 0, 8, 0]}));
    assert_eq!(designs(&some), ["full", "none", "full", "none"]);
    assert_eq!(per_token(&some), 2 * 2 * 8 * 128 * 2);
    refused(
        &json!({"model_type": "llama", "num_hidden_layers": 3, "num_key_value_heads": [8, 0]}),
        &["num_key_value_heads", "list of 2", "3"],
    );
}

#[test]
fn f12_compressed_layers_are_refused_by_name() {
    let config =
        json!({"model_type": "deepseek_v4", "num_hidden_layers": 4, "compress_ratios": [0, 4, 128, 4, 0]});
    refused(&config, &["deepseek_v4", "compress_ratios", "deepseek_v32"]);
    // and not read as another family either
    refused(&json!({"model_type": "llama", "compress_ratios": [8]}), &["compress_ratios", "llama"]);
}

#[test]
fn f15_number_type_of_the_cache() {
    let kv = |config: Value| plan(&config).kv;
    assert_eq!(kv(json!({"model_type": "gemma3", "dtype": "bfloat16", "text_config": {}})), Storage::Bf16);
    assert_eq!(kv(json!({"model_type": "llama", "torch_dtype": "bfloat16"})), Storage::Bf16);
    assert_eq!(kv(json!({"model_type": "llama", "dtype": "float32"})), Storage::F32);
    // the inner word goes before the outer
    let both = json!({"model_type": "gemma3", "dtype": "float32", "text_config": {"dtype": "float16"}});
    assert_eq!(kv(both), Storage::F16);
    // quantised weights say nothing of the cache; an explicit field does
    let weights = json!({"quant_method": "fp8", "fmt": "e4m3"});
    let config = json!({"model_type": "llama", "dtype": "bfloat16", "quantization_config": weights});
    assert_eq!(kv(config), Storage::Bf16);
    let config = json!({"model_type": "llama", "dtype": "bfloat16", "kv_cache_quant_algo": "FP8"});
    assert_eq!(kv(config.clone()), Storage::Fp8Tensor);
    assert_eq!(plan(&config).kv.row_bytes(128), 128);
    let inner = json!({"model_type": "llama", "quantization_config": {"kv_cache_quant_algo": "FP8"}});
    assert_eq!(kv(inner), Storage::Fp8Tensor);
    assert_eq!(kv(json!({"model_type": "llama"})), Storage::F16);
}

#[test]
fn f16_scales() {
    let config = json!({"model_type": "gemma2", "head_dim": 128, "query_pre_attn_scalar": 144});
    assert_relative_eq!(attention(&plan(&config), 0).scale, 1.0 / 12.0);
    assert_eq!(attention(&plan(&config), 0).softcap, Some(50.0));
    for none in [Value::Null, json!(0.0)] {
        let config = json!({"model_type": "gemma2", "attn_logit_softcapping": none});
        assert_eq!(attention(&plan(&config), 0).softcap, None);
    }
    refused(&json!({"model_type": "gemma2", "attn_logit_softcapping": -5}), &["attn_logit_softcapping"]);
    assert_relative_eq!(attention(&file("gemma-3-27b"), 0).scale, 168f64.powf(-0.5));
    let granite = json!({"model_type": "granite", "attention_multiplier": 0.015_625});
    assert_relative_eq!(attention(&plan(&granite), 0).scale, 0.015_625);
    assert_relative_eq!(attention(&file("llama-2-7b"), 0).scale, 128f64.powf(-0.5));
}

#[test]
fn m1_yarn_has_two_factors() {
    let scale = |name: &str| {
        let latent = file(name).layers[0].design.latent().unwrap().clone();
        let rope = latent.rope.expect("rotated");
        assert_relative_eq!(rope.scaling.attention_factor(), 1.0);
        assert_eq!(rope.layout, RopeLayout::Interleaved);
        assert_eq!(rope.rotary_dim, 64);
        latent.scale
    };
    assert_relative_eq!(scale("deepseek-v3"), 0.135_233_778_9, max_relative = 1e-9);
    assert_relative_eq!(scale("deepseek-v2-lite"), 0.114_721_386_8, max_relative = 1e-9);
    assert_relative_eq!(scale("kimi-k2"), 0.144_679_625_6, max_relative = 1e-8);
    let kimi = file("kimi-linear-48b-a3b");
    let latent = kimi.layers[3].design.latent().unwrap();
    assert_relative_eq!(latent.scale, 192f64.powf(-0.5));
    assert_eq!((latent.rope.as_ref(), latent.q_rank), (None, None));
    // without mscale, cosine and sine carry it
    let oss = file("gpt-oss-20b");
    assert_relative_eq!(
        rope(&oss, 0).scaling.attention_factor(),
        1.346_573_590_279_972_7,
        max_relative = 1e-12
    );
    assert!(matches!(rope(&oss, 0).scaling, RopeScaling::Yarn { truncate: false, original: 4096, .. }));
    assert!(attention(&oss, 0).sinks && attention(&oss, 1).sinks);
    assert!(!attention(&file("llama-2-7b"), 0).sinks);
}

#[test]
fn p6_shared_indices() {
    let config = json!({"model_type": "glm_moe_dsa", "num_hidden_layers": 5,
        "indexer_types": ["full", "full", "shared", "shared", "full"]});
    let plan = plan(&config);
    let of: Vec<Option<u32>> = plan
        .layers
        .iter()
        .map(|layer| match &layer.design {
            Design::LatentIndexed { shares_indices_of, .. } => *shares_indices_of,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(of, [None, None, Some(1), Some(1), None]);
    let cache = plan.cache(&CacheOptions::new(Storage::F16)).unwrap();
    let owners: Vec<u32> = cache.layers.iter().filter(|l| l.rows.len() == 3).map(|l| l.index).collect();
    assert_eq!(owners, [0, 1, 4]);
    assert_eq!(cache.bytes_per_token(), 5 * 1_152 + 3 * 256);
    let first =
        json!({"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "indexer_types": ["shared", "full"]});
    refused(&first, &["indexer_types", "first"]);
    // a prediction layer has an indexer of its own, though the last layer shares
    let ahead = json!({"model_type": "glm_moe_dsa", "num_hidden_layers": 2, "num_nextn_predict_layers": 1,
        "indexer_types": ["full", "shared"]});
    let options = CacheOptions::new(Storage::F16).prediction_layers(true);
    assert_eq!(self::plan(&ahead).cache(&options).unwrap().bytes_per_token(), 3 * 1_152 + 2 * 256);
    // letters and a frequency say the same
    let letters = json!({"model_type": "glm_moe_dsa", "num_hidden_layers": 5, "index_topk_pattern": "FFSSF"});
    assert_eq!(self::plan(&letters).layers, plan.layers);
    let often = json!({"model_type": "glm_moe_dsa", "num_hidden_layers": 8, "index_topk_freq": 3});
    let own = |layer: &wgpu_attention::model::LayerPlan| {
        matches!(&layer.design, Design::LatentIndexed { shares_indices_of: None, .. })
    };
    let owners: Vec<bool> = self::plan(&often).layers.iter().map(own).collect();
    assert_eq!(owners, [true, true, false, false, true, false, false, true]);
    // layouts: the indexer's own
    for (config, layout) in [
        (json!({"model_type": "deepseek_v32"}), RopeLayout::Half),
        (json!({"model_type": "glm_moe_dsa"}), RopeLayout::Interleaved),
    ] {
        let Design::LatentIndexed { indexer, latent, .. } = &self::plan(&config).layers[0].design else {
            panic!("{config}")
        };
        assert_eq!(indexer.rope.layout, layout);
        assert_eq!(latent.rope.as_ref().unwrap().layout, RopeLayout::Interleaved);
    }
    refused(&json!({"model_type": "deepseek_v32", "q_lora_rank": null}), &["q_lora_rank"]);
}

#[test]
fn llama_4_rotation_and_temperature() {
    let scout = file("llama-4-scout");
    for (i, layer) in scout.layers.iter().enumerate() {
        let full = i % 4 == 3;
        let attention = layer.design.attention().unwrap();
        assert_eq!(attention.rope.is_none(), full, "layer {i}");
        assert_eq!(attention.temperature.is_some(), full, "layer {i}");
        if let Some(rope) = &attention.rope {
            assert_eq!(rope.layout, RopeLayout::Interleaved);
            assert!(matches!(rope.scaling, RopeScaling::Llama3 { factor: 16.0, original: 8192, .. }));
        }
    }
    let off = plan(&json!({"model_type": "llama4_text", "attention_chunk_size": null,
        "attn_temperature_tuning": false}));
    assert!(designs(&off).iter().all(|design| *design == "full"));
    assert!(attention(&off, 3).rope.is_none() && attention(&off, 3).temperature.is_none());
    let listed =
        plan(&json!({"model_type": "llama4_text", "num_hidden_layers": 2, "no_rope_layers": [0, 1]}));
    assert_eq!(designs(&listed), ["full", "chunked"]);
}

#[test]
fn layers_without_rotation() {
    let none = |plan: &ModelPlan| -> Vec<usize> {
        let bare = |i: &usize| plan.layers[*i].design.attention().is_some_and(|a| a.rope.is_none());
        (0..plan.layers.len()).filter(bare).collect()
    };
    let cohere = plan(&json!({"model_type": "cohere2", "num_hidden_layers": 8}));
    assert_eq!(none(&cohere), [3, 7]);
    let exaone = plan(&json!({"model_type": "exaone4", "num_hidden_layers": 8}));
    assert_eq!(none(&exaone), [3, 7]);
    let small = plan(&json!({"model_type": "exaone4", "num_hidden_layers": 8, "sliding_window": null,
        "sliding_window_pattern": null}));
    assert_eq!(none(&small), [] as [usize; 0]);
    let smol = plan(&json!({"model_type": "smollm3", "num_hidden_layers": 8}));
    assert_eq!((none(&smol), designs(&smol)), (vec![3, 7], vec!["full"; 8]));
    let windowed = plan(&json!({"model_type": "smollm3", "num_hidden_layers": 4, "use_sliding_window": true,
        "sliding_window": 16}));
    assert_eq!(windows(&windowed), [None, None, None, Some(16)]);
    assert_eq!(none(&file("jamba-reasoning-3b")), [7, 21]);
    let nemotron = plan(&json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-E"}));
    assert_eq!(none(&nemotron), [3]);
    let granite = json!({"model_type": "granitemoehybrid", "num_hidden_layers": 2,
        "layer_types": ["mamba", "attention"], "mamba_n_heads": 128, "mamba_d_head": 64});
    assert_eq!(none(&plan(&granite)), [1]);
    let mut rotated = granite;
    rotated["position_embedding_type"] = json!("rope");
    assert_eq!(none(&plan(&rotated)), [] as [usize; 0]);
}

#[test]
fn partial_rotation() {
    let dim = |config: Value| rope(&plan(&config), 0).rotary_dim;
    assert_eq!(rope(&file("qwen3.5-9b"), 3).rotary_dim, 64);
    assert_eq!(rope(&file("qwen3-next-80b-a3b"), 3).rotary_dim, 64);
    assert_eq!(rope(&file("minimax-text-01"), 7).rotary_dim, 64);
    assert_eq!(dim(json!({"model_type": "stablelm"})), 20);
    assert_eq!(dim(json!({"model_type": "glm4"})), 64);
    assert_eq!(dim(json!({"model_type": "minimax_m2", "rotary_dim": 64})), 64);
    assert_eq!(
        dim(json!({"model_type": "phi3", "hidden_size": 3072, "num_attention_heads": 24,
        "partial_rotary_factor": 0.75})),
        96
    );
    refused(&json!({"model_type": "llama", "partial_rotary_factor": 0.01}), &["partial_rotary_factor"]);
    refused(&json!({"model_type": "llama", "partial_rotary_factor": 2}), &["partial_rotary_factor", "2"]);
}

#[test]
fn newer_families() {
    // Gemma 4: full layers 512 wide, a quarter of them turning; the last layer is full whatever the pattern says
    let gemma = plan(&json!({"model_type": "gemma4", "text_config": {"num_hidden_layers": 8,
        "attention_k_eq_v": true, "num_global_key_value_heads": 1, "num_kv_shared_layers": 1}}));
    assert_eq!(
        windows(&gemma)[..7],
        [Some(512), Some(512), Some(512), Some(512), Some(512), None, Some(512)]
    );
    let (slid, full) = (attention(&gemma, 0), attention(&gemma, 5));
    assert_eq!((slid.heads_kv, slid.dim_k, full.heads_kv, full.dim_k), (4, 256, 1, 512));
    assert_eq!(rope(&gemma, 5).scaling, RopeScaling::Proportional { rotated: 128, factor: 1.0 });
    assert!(matches!(gemma.layers[7].design, Design::CrossShared { of: 5, window: None, .. }));
    assert_eq!((rope(&gemma, 0).theta, rope(&gemma, 5).theta), (1e4, 1e6));
    let unified = plan(&json!({"model_type": "gemma4_unified", "text_config": {}}));
    assert_eq!((windows(&unified)[0], windows(&unified)[5]), (Some(1024), None));
    let own = plan(&json!({"model_type": "gemma4_text", "num_hidden_layers": 6,
        "per_layer_config": {"5": {"head_dim": 128, "num_key_value_heads": 2}}}));
    assert_eq!((attention(&own, 5).heads_kv, attention(&own, 5).dim_k), (2, 128));
    assert_eq!(attention(&own, 0).dim_k, 256);
    refused(
        &json!({"model_type": "gemma4_text", "use_bidirectional_attention": "all"}),
        &["use_bidirectional_attention"],
    );

    // state space: 128 heads of 64 with 256 states, convolution over 8192 + 2 * 256 channels
    let bamba = plan(&json!({"model_type": "bamba", "num_hidden_layers": 3, "attn_layer_indices": [1]}));
    assert_eq!(designs(&bamba), ["state space dual", "full", "state space dual"]);
    assert_eq!(rope(&bamba, 1).rotary_dim, 64);
    let options = CacheOptions::new(Storage::F16);
    let fixed = bamba.cache(&options).unwrap().fixed_bytes().unwrap();
    assert_eq!(fixed, 2 * 4 * (128 * 64 * 256 + 3 * (8192 + 512)));
    let falcon = plan(&json!({"model_type": "falcon_h1", "num_hidden_layers": 2, "mamba_d_ssm": 4096,
        "mamba_n_heads": 64}));
    assert_eq!(designs(&falcon), ["full + state space dual"; 2]);
    let cache = falcon.cache(&options).unwrap();
    assert_eq!(cache.bytes_per_token(), 2 * 2 * 8 * 128 * 2);
    assert_eq!(cache.fixed_bytes().unwrap(), 2 * 4 * (64 * 64 * 256 + 3 * (4096 + 512)));
    let nemotron = plan(&json!({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*"}));
    assert_eq!(designs(&nemotron), ["state space dual", "none", "state space dual", "full"]);
    let fixed = nemotron.cache(&options).unwrap().fixed_bytes().unwrap();
    assert_eq!(fixed, 2 * 4 * (128 * 64 * 128 + 3 * (8192 + 2 * 8 * 128)));
    refused(&json!({"model_type": "nemotron_h"}), &["hybrid_override_pattern"]);
    refused(
        &json!({"model_type": "nemotron_h", "hybrid_override_pattern": "MX"}),
        &["hybrid_override_pattern"],
    );
    refused(&json!({"model_type": "bamba", "mamba_n_heads": 100}), &["mamba_n_heads", "8192"]);
    assert_eq!(designs(&plan(&json!({"model_type": "mamba"}))), ["selective scan"; 32]);
    assert_eq!(designs(&plan(&json!({"model_type": "mamba2"}))), ["state space dual"; 64]);

    // short convolutions: two earlier inputs of each channel
    let lfm = plan(&json!({"model_type": "lfm2", "num_hidden_layers": 3, "full_attn_idxs": [2]}));
    assert_eq!(designs(&lfm), ["short convolution", "short convolution", "full"]);
    assert_eq!(lfm.cache(&options).unwrap().fixed_bytes().unwrap(), 2 * 2 * 2560 * 4);
    refused(&json!({"model_type": "lfm2_moe"}), &["layer_types"]);

    // latent families
    let kimi = plan(&json!({"model_type": "kimi_k25", "text_config": {"model_type": "kimi_k2",
        "num_attention_heads": 64}}));
    assert_eq!(per_token(&kimi), 70_272);
    let mistral = plan(&json!({"model_type": "mistral4"}));
    let latent = mistral.layers[0].design.latent().unwrap();
    assert_eq!((latent.kv_rank, latent.dim_nope, latent.dim_rope, latent.dim_v), (256, 64, 64, 128));
    let temperature = latent.temperature.unwrap();
    assert_eq!((temperature.scale, temperature.floor, temperature.offset), (0.1, 8192, 0));
    assert_eq!(per_token(&plan(&json!({"model_type": "glm4_moe_lite"}))), 47 * 1_152);
    let ministral = plan(&json!({"model_type": "mistral3", "text_config": {"model_type": "ministral3"}}));
    assert_eq!(attention(&ministral, 0).temperature.map(|t| t.floor), Some(16_384));
    assert!(designs(&ministral).iter().all(|design| *design == "full"));

    // a list of softmax layers only, as the family's files have it
    let m2 = plan(&json!({"model_type": "minimax_m2", "num_hidden_layers": 2, "attn_type_list": [1, 1]}));
    assert_eq!(per_token(&m2), 2 * 2 * 8 * 128 * 2);
    refused(&json!({"model_type": "minimax_m2", "attn_type_list": [1, 0]}), &["attn_type_list"]);

    let olmo =
        plan(&json!({"model_type": "olmo3", "num_hidden_layers": 4, "max_position_embeddings": 65_536,
        "rope_scaling": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192}}));
    assert_eq!(windows(&olmo), [Some(4096), Some(4096), Some(4096), None]);
    assert_eq!(rope(&olmo, 0).scaling, RopeScaling::Default);
    assert!(matches!(rope(&olmo, 3).scaling, RopeScaling::Yarn { factor: 8.0, .. }));
    assert_eq!((rope(&olmo, 0).theta, rope(&olmo, 3).theta), (5e5, 5e5));
}

#[test]
fn every_known_name_is_read_or_says_what_it_lacks() {
    let known = ModelPlan::known_families();
    assert!(known.len() > 70, "{}", known.len());
    assert!(known.is_sorted());
    for family in &known {
        match ModelPlan::from_config(&json!({"model_type": family})) {
            Ok(plan) => {
                assert!(!plan.layers.is_empty(), "{family}");
                plan.cache(&CacheOptions::new(plan.kv)).unwrap().bytes(4096, 1).unwrap();
            }
            // the class's own sizes do not divide, so its files must give head_dim
            Err(Error::ConfigField { field, .. }) if *family == "glm4_moe" => {
                assert_eq!(field, "hidden_size");
            }
            // the few families without a default pattern
            Err(Error::ConfigField { field, value, .. }) => {
                let lists = ["attn_type_list", "layer_types", "hybrid_override_pattern", "num_query_heads"];
                assert!(lists.contains(&field.as_str()) && value == "absent", "{family}: {field} {value}");
            }
            Err(error) => panic!("{family}: {error}"),
        }
    }
}

#[test]
fn kimi_lists_count_from_one_and_cover_every_layer() {
    let with = |full: Value, delta: Value| {
        json!({"model_type": "kimi_linear", "num_hidden_layers": 3,
            "linear_attn_config": {"full_attn_layers": full, "kda_layers": delta}})
    };
    assert_eq!(designs(&plan(&with(json!([3]), json!([1, 2])))), ["kimi delta", "kimi delta", "latent"]);
    refused(&with(json!([3]), json!([1])), &["linear_attn_config", "no layer 2"]);
    refused(&with(json!([3]), json!([1, 2, 3])), &["linear_attn_config", "layer 3 twice"]);
    refused(&with(json!([0]), json!([1, 2])), &["full_attn_layers", "0"]);
    // the class's own rule, where there are no lists
    let rule = plan(&json!({"model_type": "kimi_linear", "num_hidden_layers": 9}));
    let latent: Vec<usize> = (0..9).filter(|i| designs(&rule)[*i] == "latent").collect();
    assert_eq!(latent, [4, 8]);
    refused(&json!({"model_type": "kimi_linear", "mla_use_nope": false}), &["mla_use_nope"]);
}

#[test]
fn unknown_families_and_values_are_refused_by_name() {
    refused(&json!({"model_type": "lama"}), &["lama", "nearest known family is llama"]);
    refused(&json!({"model_type": "qwen4"}), &["qwen4", "qwen"]);
    refused(&json!({"model_type": "gpt2"}), &["gpt2", "learned embeddings"]);
    refused(&json!({"model_type": "x".repeat(5_000)}), &["not known"]);
    refused(&json!({"hidden_size": 64}), &["model_type", "absent"]);
    refused(&json!({"model_type": 7}), &["model_type", "7"]);
    refused(&json!([1, 2]), &["a list of 2", "JSON object"]);
    refused(
        &json!({"model_type": "gemma2", "layer_types": ["linear_attention"], "num_hidden_layers": 1}),
        &["layer_types", "linear_attention", "gemma2"],
    );
    refused(&json!({"model_type": "gemma2", "layer_types": ["full_attention"]}), &["layer_types", "26"]);
    refused(
        &json!({"model_type": "llama", "rope_scaling": {"type": "spiral"}}),
        &["rope_scaling.type", "spiral"],
    );
    refused(&json!({"model_type": "llama", "rope_scaling": {"type": "linear"}}), &["rope_scaling.factor"]);
    refused(&json!({"model_type": "minimax_text_01"}), &["attn_type_list"]);
    refused(
        &json!({"model_type": "jamba", "attn_layer_offset": 8}),
        &["attn_layer_offset", "attn_layer_period"],
    );
    // fields that belong to another family are not passed over
    refused(&json!({"model_type": "llama", "kv_lora_rank": 512}), &["kv_lora_rank", "llama"]);
    refused(&json!({"model_type": "mixtral", "attn_type_list": [0, 1]}), &["attn_type_list", "mixtral"]);
    plan(&json!({"model_type": "llama", "kv_lora_rank": null, "num_kv_shared_layers": 0}));
}

#[test]
fn absurd_values_are_refused_at_once() {
    let start = Instant::now();
    let llama = |field: &str, value: Value| json!({"model_type": "llama", field: value});
    refused(&llama("num_attention_heads", json!(0)), &["num_attention_heads", "0"]);
    refused(&llama("num_hidden_layers", json!(1u64 << 40)), &["num_hidden_layers", "4096"]);
    refused(&llama("num_hidden_layers", json!(0)), &["num_hidden_layers"]);
    refused(&llama("num_hidden_layers", json!(2.5)), &["num_hidden_layers", "2.5"]);
    refused(&llama("num_hidden_layers", json!("32")), &["num_hidden_layers", "32"]);
    refused(&llama("num_hidden_layers", Value::Null), &["num_hidden_layers", "null"]);
    refused(&llama("head_dim", json!(1u64 << 33)), &["head_dim"]);
    refused(&llama("rope_theta", json!("NaN")), &["rope_theta", "NaN"]);
    refused(&llama("rope_theta", json!(-1)), &["rope_theta", "-1"]);
    refused(&llama("rope_theta", json!(0)), &["rope_theta"]);
    refused(&llama("rope_scaling", json!({"type": "linear", "factor": 1e300})), &["rope_scaling.factor"]);
    refused(&llama("rope_scaling", json!([])), &["rope_scaling", "a list of 0"]);
    for text in [r#"{"model_type": "llama", "rope_theta": NaN}"#, r#"{"rope_theta": 1e999}"#, "{", "", "[[[["]
    {
        let error = ModelPlan::from_config(text).unwrap_err();
        assert!(matches!(error, Error::ConfigSyntax { .. }), "{text}: {error}");
    }
    let deep = format!("{}{}", r#"{"a":"#.repeat(100_000), "1");
    assert!(matches!(ModelPlan::from_config(&deep), Err(Error::ConfigSyntax { .. })));
    let large = format!(r#"{{"model_type": "llama", "x": "{}"}}"#, "y".repeat(100 << 20));
    assert!(matches!(ModelPlan::from_config(&large), Err(Error::ConfigTooLarge { .. })));
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn large_files_are_refused_unread() {
    let path = std::env::temp_dir().join(format!("wgpu-attention-large-{}.json", std::process::id()));
    let file = std::fs::File::create(&path).unwrap();
    // a hole on disk: nothing is written
    file.set_len(100 << 30).unwrap();
    let start = Instant::now();
    let error = ModelPlan::from_file(&path).unwrap_err();
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error, Error::ConfigTooLarge { bytes: Some(100 << 30), bound: MAX_CONFIG_BYTES });
    assert!(start.elapsed() < Duration::from_secs(1));
    let error = ModelPlan::from_file("/nowhere/config.json").unwrap_err().to_string();
    assert!(error.contains("/nowhere/config.json"), "{error}");
}

#[test]
fn longest_lists_stay_small() {
    // 4096 layers that share one pair of lists of 4096 factors
    let factors: Vec<f64> = vec![2.0; 4096];
    let config = json!({"model_type": "llama", "num_hidden_layers": 4096, "head_dim": 8192,
        "max_position_embeddings": 4096,
        "rope_scaling": {"type": "longrope", "short_factor": factors, "long_factor": factors}});
    let start = Instant::now();
    let plan = plan(&config);
    assert_eq!(plan.layers.len(), 4096);
    let lists: Vec<_> = plan
        .layers
        .iter()
        .map(|layer| match &layer.design.rope().unwrap().scaling {
            RopeScaling::LongRope { short, .. } => short.as_ptr(),
            other => panic!("{other:?}"),
        })
        .collect();
    assert!(lists.iter().all(|list| *list == lists[0]), "the lists are shared");
    assert!(start.elapsed() < Duration::from_secs(5));
}
