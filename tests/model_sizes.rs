//! Exact cache sizes of published models, of storages, and of what runtimes reserve.

use wgpu_attention::Error;
use wgpu_attention::model::{AdapterFit, CacheOptions, FitVerdict, LlamaCpp, ModelPlan, Storage, Vllm};

const T: u64 = 32_768;
const MIB: u64 = 1 << 20;

fn plan(name: &str) -> ModelPlan {
    let path = format!("{}/tests/configs/{name}.json", env!("CARGO_MANIFEST_DIR"));
    ModelPlan::from_file(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn json(text: &str) -> ModelPlan {
    ModelPlan::from_config(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn count(plan: &ModelPlan, design: &str) -> usize {
    plan.layers.iter().filter(|layer| layer.design.name() == design).count()
}

fn f16() -> CacheOptions {
    CacheOptions::new(Storage::F16)
}

/// Name, layers by design, bytes per token that grow for ever, bytes that grow not, bytes at 32,768 tokens.
type Row = (&'static str, &'static [(&'static str, usize)], u64, u64, u64);

/// Whole MiB and quarters of KiB as bytes: the table gives sums of both.
const ROWS: [Row; 27] = [
    ("llama-2-7b", &[("full", 32)], 524_288, 0, 16_384 * MIB),
    ("gemma-7b", &[("full", 28)], 458_752, 0, 14_336 * MIB),
    ("falcon-7b", &[("full", 32)], 8_192, 0, 256 * MIB),
    ("llama-3.1-8b", &[("full", 32)], 131_072, 0, 4_096 * MIB),
    ("llama-3.3-70b", &[("full", 80)], 327_680, 0, 10_240 * MIB),
    ("qwen3-32b", &[("full", 64)], 262_144, 0, 8_192 * MIB),
    ("qwen3-235b-a22b", &[("full", 94)], 192_512, 0, 6_016 * MIB),
    ("mistral-7b-v0.1", &[("window", 32)], 0, 0, 512 * MIB),
    ("mistral-7b-v0.3", &[("full", 32)], 131_072, 0, 4_096 * MIB),
    ("gemma-2-9b", &[("window", 21), ("full", 21)], 172_032, 0, 6_048 * MIB),
    ("gemma-3-1b", &[("window", 22), ("full", 4)], 4_096, 0, 139 * MIB),
    ("gemma-3-4b", &[("window", 29), ("full", 5)], 20_480, 0, 756 * MIB),
    ("gemma-3-27b", &[("window", 52), ("full", 10)], 81_920, 0, 2_976 * MIB),
    ("gpt-oss-20b", &[("window", 12), ("full", 12)], 24_576, 0, 771 * MIB),
    ("gpt-oss-120b", &[("window", 18), ("full", 18)], 36_864, 0, 1_156 * MIB + MIB / 2),
    ("llama-4-scout", &[("chunked", 36), ("full", 12)], 49_152, 0, 2_688 * MIB),
    ("deepseek-v2-lite", &[("latent", 27)], 31_104, 0, 972 * MIB),
    ("deepseek-v2", &[("latent", 60)], 69_120, 0, 2_160 * MIB),
    ("deepseek-v3", &[("latent", 61)], 70_272, 0, 2_196 * MIB),
    ("kimi-k2", &[("latent", 61)], 70_272, 0, 2_196 * MIB),
    ("deepseek-v3.2", &[("latent indexed", 61)], 85_888, 0, 2_684 * MIB),
    // state 40 MiB, convolution tails 2.8125 MiB
    ("kimi-linear-48b-a3b", &[("latent", 7), ("kimi delta", 20)], 8_064, 44_892_160, 252 * MIB + 44_892_160),
    // state 72 MiB, tails 3.375 MiB
    ("qwen3-next-80b-a3b", &[("full", 12), ("gated delta", 36)], 24_576, 79_036_416, 768 * MIB + 79_036_416),
    // state 48 MiB, tails 2.25 MiB
    ("qwen3.5-9b", &[("full", 8), ("gated delta", 24)], 32_768, 52_690_944, 1_024 * MIB + 52_690_944),
    ("minimax-text-01", &[("full", 10), ("lightning", 70)], 40_960, 280 * MIB, 1_560 * MIB),
    ("minimax-m1-80k", &[("full", 10), ("lightning", 70)], 40_960, 280 * MIB, 1_560 * MIB),
    // state 8.125 MiB, tails 1,597,440 bytes (1.52 MiB)
    ("jamba-reasoning-3b", &[("full", 2), ("selective scan", 26)], 1_024, 10_117_120, 32 * MIB + 10_117_120),
];

#[test]
fn published_models_to_the_byte() {
    for (name, designs, per_token, fixed, total) in ROWS {
        let plan = plan(name);
        for (design, layers) in designs {
            assert_eq!(count(&plan, design), *layers, "{name}: layers of design {design}");
        }
        assert_eq!(plan.layers.len(), designs.iter().map(|(_, n)| n).sum::<usize>(), "{name}: layers");
        let cache = plan.cache(&f16()).unwrap();
        assert_eq!(cache.bytes_per_token(), per_token, "{name}: bytes per token");
        assert_eq!(cache.fixed_bytes().unwrap(), fixed, "{name}: fixed bytes");
        assert_eq!(cache.bytes(T, 1).unwrap(), total, "{name}: bytes at 32,768 tokens");
        assert_eq!(cache.bytes(T, 3).unwrap(), 3 * total, "{name}: a batch of three");
        let layers: u64 = cache.layers.iter().map(|layer| layer.bytes(T, 1).unwrap()).sum();
        assert_eq!(layers, total, "{name}: the sum over layers");
    }
}

#[test]
fn full_layers_stand_where_the_family_puts_them() {
    let places = |name: &str, design: &str| -> Vec<u32> {
        let layers = plan(name).layers;
        layers.iter().filter(|layer| layer.design.name() == design).map(|layer| layer.index).collect()
    };
    assert_eq!(places("gemma-3-4b", "full"), [5, 11, 17, 23, 29]);
    assert_eq!(places("llama-4-scout", "full"), (0..12).map(|i| 4 * i + 3).collect::<Vec<_>>());
    assert_eq!(places("kimi-linear-48b-a3b", "latent"), [3, 7, 11, 15, 19, 23, 26]);
    assert_eq!(places("qwen3.5-9b", "full"), [3, 7, 11, 15, 19, 23, 27, 31]);
    assert_eq!(places("qwen3-next-80b-a3b", "full"), (0..12).map(|i| 4 * i + 3).collect::<Vec<_>>());
    assert_eq!(places("minimax-text-01", "full"), (0..10).map(|i| 8 * i + 7).collect::<Vec<_>>());
    assert_eq!(places("jamba-reasoning-3b", "full"), [7, 21]);
    assert_eq!(places("gemma-2-9b", "window"), (0..21).map(|i| 2 * i).collect::<Vec<_>>());
    assert_eq!(places("gpt-oss-20b", "window"), (0..12).map(|i| 2 * i).collect::<Vec<_>>());
}

#[test]
fn what_would_be_without_windows_and_latents() {
    let all_full = [
        ("gemma-2-9b", 10_752),
        ("gemma-3-4b", 4_352),
        ("gemma-3-27b", 15_872),
        ("gpt-oss-20b", 1_536),
        ("gpt-oss-120b", 2_304),
        ("llama-4-scout", 6_144),
    ];
    for (name, mib) in all_full {
        assert_eq!(plan(name).all_full_bytes(&f16(), T, 1).unwrap(), mib * MIB, "{name}");
    }
    let plain = [
        ("deepseek-v2-lite", 8_640),
        ("deepseek-v2", 153_600),
        ("deepseek-v3", 156_160),
        ("kimi-k2", 78_080),
        ("gemma-3-4b", 2 * 4_352),
    ];
    for (name, mib) in plain {
        assert_eq!(plan(name).plain_bytes(&f16(), T, 1).unwrap(), mib * MIB, "{name}");
    }
    assert_eq!(plan("llama-3.3-70b").cache(&f16()).unwrap().bytes(128_000, 1).unwrap(), 40_000 * MIB);
}

#[test]
fn quantised_storages() {
    let bytes = |name: &str, options: CacheOptions| {
        let cache = plan(name).cache(&options).unwrap();
        (cache.bytes_per_token(), cache.bytes(T, 1).unwrap())
    };
    let kv = CacheOptions::new;
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::Q8_0)), (69_632, 2_176 * MIB));
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::Q4_0)), (36_864, 1_152 * MIB));
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::F32)).0, 262_144);
    // one scale a token and head: 4 bytes beside 128 values
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::Fp8)).0, 32 * 2 * 8 * 132);
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::Int8)).0, 32 * 2 * 8 * 132);
    assert_eq!(bytes("llama-3.1-8b", kv(Storage::Fp8Tensor)).0, 65_536);
    // the 656-byte latent form, and a 132-byte indexer key
    assert_eq!(bytes("deepseek-v3", kv(Storage::Fp8)).0, 61 * 656);
    assert_eq!(bytes("deepseek-v3.2", kv(Storage::Fp8)).0, 48_068);
    assert_eq!(bytes("deepseek-v3.2", kv(Storage::Bf16).index(Storage::Fp8)).0, 78_324);
    // with 16-bit convolution tails
    let tails = plan("qwen3.5-9b").cache(&f16().conv(Storage::Bf16)).unwrap();
    assert_eq!(tails.fixed_bytes().unwrap(), 49 * MIB + MIB / 8);
    // rows are padded to whole blocks
    assert_eq!(Storage::Q8_0.row_bytes(80), 3 * 34);
    assert_eq!(Storage::Q4_0.row_bytes(33), 2 * 18);
    assert_eq!(Storage::Fp8Groups.row_bytes(512), 528);
    for storage in Storage::ALL {
        assert_eq!(storage.name().parse::<Storage>().unwrap(), storage);
    }
    let error = "q9".parse::<Storage>().unwrap_err().to_string();
    assert!(error.contains("kv") && error.contains("q8_0"), "{error}");
    let error = plan("qwen3.5-9b").cache(&f16().state(Storage::Q8_0)).unwrap_err().to_string();
    assert!(error.contains("state") && error.contains("q8_0"), "{error}");
}

#[test]
fn e1_window_layers_fill_and_stop() {
    let cache = plan("gpt-oss-120b").cache(&CacheOptions::new(Storage::Bf16)).unwrap();
    assert_eq!(cache.bytes_per_token_at(0).unwrap(), 73_728);
    assert_eq!(cache.bytes_per_token_at(127).unwrap(), 73_728);
    assert_eq!(cache.bytes_per_token_at(128).unwrap(), 36_864);
    assert_eq!(cache.bytes(8_192, 1).unwrap(), 306_708_480);
}

#[test]
fn e2_latent_layers_only() {
    assert_eq!(plan("deepseek-v3").cache(&f16()).unwrap().bytes_per_token(), 70_272);
    // 24 of 93 layers are latent
    let full: Vec<u32> = (1..=23).map(|i| 4 * i).chain([93]).collect();
    let delta: Vec<u32> = (1..=93).filter(|i| !full.contains(i)).collect();
    let text = format!(
        r#"{{"model_type": "kimi_linear", "num_hidden_layers": 93,
            "linear_attn_config": {{"full_attn_layers": {full:?}, "kda_layers": {delta:?}}}}}"#
    );
    assert_eq!(json(&text).cache(&f16()).unwrap().bytes_per_token(), 27_648);
}

#[test]
fn e3_hybrid_counts_its_full_layers() {
    let text = r#"{"model_type": "qwen3_next", "num_hidden_layers": 64, "num_key_value_heads": 4}"#;
    assert_eq!(json(text).cache(&f16()).unwrap().bytes_per_token(), 65_536);
}

#[test]
fn e4_window_model() {
    let cache = plan("gemma-3-1b").cache(&CacheOptions::new(Storage::Bf16)).unwrap();
    assert_eq!(cache.bytes(T, 1).unwrap(), 145_752_064);
}

#[test]
fn e5_shared_layers_hold_nothing() {
    let plan = json(r#"{"model_type": "gemma3n", "text_config": {}}"#);
    assert_eq!(plan.layers.len(), 35);
    let cache = plan.cache(&f16()).unwrap();
    let owners = cache.layers.iter().filter(|layer| !layer.rows.is_empty()).count();
    assert_eq!(owners, 20);
    // full layers 4, 9, .., 34; the last owners of either kind are 18 and 19
    let of: Vec<Option<u32>> = cache.layers.iter().map(|layer| layer.shares_cache_of).collect();
    assert_eq!(of[19], None);
    assert_eq!(of[20], Some(18));
    assert_eq!(of[24], Some(19));
    for shared in ["35", "36"] {
        let text = format!(r#"{{"model_type": "gemma3n_text", "num_kv_shared_layers": {shared}}}"#);
        let error = ModelPlan::from_config(&text).unwrap_err().to_string();
        assert!(error.contains("num_kv_shared_layers") && error.contains("35"), "{error}");
    }
}

#[test]
fn e6_windows_hold_a_call_beside_them() {
    let text = r#"{"model_type": "gemma3_text", "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 1, "head_dim": 256, "sliding_window": 512,
        "layer_types": ["sliding_attention", "full_attention"]}"#;
    let plan = json(text);
    let row = 2 * 256 * 2;
    for (call, held) in [(1, 512), (512, 1_023), (4_096, 4_607), (1 << 20, 32_768)] {
        let cache = plan.cache(&f16().call_tokens(call)).unwrap();
        assert_eq!(cache.bytes(T, 1).unwrap(), (held + T) * row, "{call} tokens a call");
    }
    let short = plan.cache(&f16().call_tokens(512)).unwrap();
    assert_eq!(short.bytes(100, 1).unwrap(), 200 * row);
}

#[test]
fn e7_longest_context_of_a_budget() {
    let text = r#"{"model_type": "gpt_oss", "num_hidden_layers": 2, "num_attention_heads": 8,
        "num_key_value_heads": 1, "head_dim": 64}"#;
    let cache = json(text).cache(&f16()).unwrap();
    let c = 256;
    assert_eq!(cache.bytes_per_token(), c);
    assert_eq!(cache.max_tokens(1_000 * c, 1, 1 << 40), Some(872));
    assert_eq!(cache.max_tokens(0, 1, 1 << 40), Some(0));
    let states = plan("qwen3.5-9b").cache(&f16()).unwrap();
    assert_eq!(states.max_tokens(1, 1, 1 << 40), None);
}

#[test]
fn e8_prediction_layers_at_the_same_context() {
    let plan = plan("deepseek-v3");
    assert_eq!(plan.cache(&f16()).unwrap().bytes(1_000, 1).unwrap(), 70_272_000);
    let with = plan.cache(&f16().prediction_layers(true)).unwrap();
    assert_eq!(with.bytes(1_000, 1).unwrap(), 71_424_000);
}

#[test]
fn e9_few_key_value_heads() {
    assert_eq!(plan("falcon-7b").cache(&f16()).unwrap().bytes_per_token(), 8_192);
    assert_eq!(plan("falcon-40b").cache(&f16()).unwrap().bytes_per_token(), 122_880);
}

#[test]
fn natively_sparse_blocks() {
    let plan = json(r#"{"model_type": "nsa", "num_hidden_layers": 1}"#);
    let cache = plan.cache(&f16()).unwrap();
    let row = 2 * 4 * 32 * 2;
    // one compressed row a whole block of 64
    assert_eq!(cache.bytes(63, 1).unwrap(), 63 * row);
    assert_eq!(cache.bytes(64, 1).unwrap(), 65 * row);
    assert_eq!(cache.bytes(6_400, 1).unwrap(), 6_500 * row);
}

#[test]
fn llama_cpp_reserves_a_prompt_batch() {
    let gemma = plan("gemma-3-4b");
    let rule = LlamaCpp::new(T);
    assert_eq!(rule.reserve(&gemma).unwrap().total_bytes, 814 * MIB);
    let full = LlamaCpp { swa_full: true, ..rule };
    assert_eq!(full.reserve(&gemma).unwrap().total_bytes, 4_352 * MIB);
    let states = rule.reserve(&plan("qwen3.5-9b")).unwrap();
    assert_eq!(states.total_bytes, 1_024 * MIB + 52_690_944);
    // rounded up to 256 cells
    assert_eq!(LlamaCpp::new(1).reserve(&plan("mistral-7b-v0.3")).unwrap().total_bytes, 256 * 131_072);
    assert_eq!(rule.reserve(&plan("deepseek-v3")).unwrap().total_bytes, 2_196 * MIB);
    let error = rule.reserve(&plan("deepseek-v3.2")).unwrap_err();
    assert!(matches!(error, Error::NoRuntimeRule { .. }), "{error}");
}

#[test]
fn vllm_pads_groups() {
    let gemma = Vllm::new(T).reserve(&plan("gemma-3-4b")).unwrap();
    // 30 layers of 1,089 blocks of 16 tokens, 4 KiB a token, beside 640 MiB: 2,682 MiB rounded
    assert_eq!(gemma.total_bytes, 640 * MIB + 30 * 17_424 * 4_096);
    assert_eq!(gemma.total_bytes.div_ceil(MIB), 2_682);
    let window = gemma.parts.iter().find(|part| part.design == "window").unwrap();
    assert_eq!((window.layers, window.tokens), (30, 17_424));
    // one kind only: no padding
    assert_eq!(Vllm::new(T).reserve(&plan("llama-3.1-8b")).unwrap().total_bytes, 4_096 * MIB);
    // chunk layers: chunk + scheduled tokens
    let scout = Vllm::new(T).reserve(&plan("llama-4-scout")).unwrap();
    assert_eq!(scout.total_bytes, 1_536 * MIB + 36 * (8_192 + 16_384) * 4_096);
    // 12 + 12 layers: one group each
    let oss = Vllm::new(T).reserve(&plan("gpt-oss-20b")).unwrap();
    assert_eq!(oss.total_bytes, 768 * MIB + 12 * 1_033 * 16 * 2_048);
    let error = Vllm::new(T).reserve(&plan("qwen3.5-9b")).unwrap_err().to_string();
    assert!(error.contains("vllm") && error.contains("gated delta"), "{error}");
}

#[test]
fn fits_adapters() {
    let cache = plan("llama-2-7b").cache(&f16()).unwrap();
    let adapter = |binding: u64, buffer: u64, memory: Option<u64>| AdapterFit {
        name: "a".into(),
        max_binding_bytes: binding,
        max_buffer_bytes: buffer,
        memory_bytes: memory,
    };
    let adapters = [
        adapter(128 * MIB, 256 * MIB, None),
        adapter(4_096 * MIB, 4_096 * MIB, None),
        adapter(4_096 * MIB, 4_096 * MIB, Some(8_192 * MIB)),
    ];
    let fits = cache.fit(&adapters, T, 1).unwrap();
    // keys of one layer: 256 MiB
    assert_eq!((fits[0].largest_bytes, fits[0].largest_layer), (256 * MIB, 0));
    assert_eq!(fits[0].verdict, FitVerdict::FitsSplit { parts: 2 });
    assert_eq!(fits[1].verdict, FitVerdict::Fits);
    assert_eq!(fits[2].verdict, FitVerdict::TooLarge { over_bytes: 8_192 * MIB });
    assert_eq!(fits[2].max_tokens, Some(16_384));
    assert!(cache.fit(&[adapter(0, 1, None)], T, 1).is_err());
}

#[test]
fn sums_that_leave_64_bits_are_refused() {
    let cache = plan("llama-2-7b").cache(&f16()).unwrap();
    assert!(matches!(cache.bytes(u64::MAX, 1), Err(Error::MemoryOverflow { .. })));
    assert!(matches!(cache.bytes(1 << 50, 1 << 50), Err(Error::MemoryOverflow { .. })));
    assert!(matches!(cache.bytes_per_token_at(u64::MAX), Err(Error::MemoryOverflow { .. })));
    assert!(matches!(plan("llama-2-7b").plain_bytes(&f16(), u64::MAX, 2), Err(Error::MemoryOverflow { .. })));
    assert!(matches!(
        LlamaCpp::new(u64::MAX).reserve(&plan("gemma-3-4b")),
        Err(Error::MemoryOverflow { .. })
    ));
    assert!(matches!(Vllm::new(u64::MAX).reserve(&plan("gemma-3-4b")), Err(Error::MemoryOverflow { .. })));
}
