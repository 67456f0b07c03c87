//! Mutated configurations: any answer but a panic, and soon.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "helpers of tests fail as tests do")]

use std::time::{Duration, Instant};

use proptest::prelude::*;
use serde_json::{Map, Value, json};
use wgpu_attention::model::{CacheOptions, LlamaCpp, ModelPlan, Storage, Vllm};

/// Every configuration of the tests' folders, and every known name alone.
fn seeds() -> Vec<Value> {
    let root = env!("CARGO_MANIFEST_DIR");
    let mut paths: Vec<_> = std::fs::read_dir(format!("{root}/tests/configs")).unwrap().collect();
    paths.extend(std::fs::read_dir(format!("{root}/tests/golden/models")).unwrap());
    let mut paths: Vec<_> = paths.into_iter().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let file = |path: std::path::PathBuf| {
        let path = if path.is_dir() { path.join("config.json") } else { path };
        serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap()
    };
    let names = ModelPlan::known_families().into_iter().map(|family| json!({"model_type": family}));
    paths.into_iter().map(file).chain(names).collect()
}

/// Every field that any family reads, so that mutations reach all of them.
fn fields() -> Vec<String> {
    let mut names = Vec::new();
    let mut collect = |source: &str| {
        for word in source.split('"').filter(|word| !word.is_empty()) {
            if word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_') {
                names.push(word.to_owned());
            }
        }
    };
    let root = format!("{}/src/model", env!("CARGO_MANIFEST_DIR"));
    for folder in [root.clone(), format!("{root}/families")] {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            if entry.file_type().unwrap().is_file() {
                collect(&std::fs::read_to_string(entry.path()).unwrap());
            }
        }
    }
    names.sort();
    names.dedup();
    names
}

fn scalar() -> impl Strategy<Value = Value> {
    prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0u64..20).prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        any::<f64>().prop_map(|x| json!(x)),
        (0f64..2.0).prop_map(|x| json!(x)),
        Just(json!(1u32 << 24)),
        Just(json!(4096)),
        prop_oneof![
            Just("full_attention"),
            Just("sliding_attention"),
            Just("linear_attention"),
            Just("yarn"),
            Just("longrope"),
            Just("llama3"),
            Just("dynamic"),
            Just("shared"),
            Just("auto"),
            Just("NaN"),
            Just("M*-E"),
            Just("FS")
        ]
        .prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
    ]
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = scalar();
    leaf.prop_recursive(4, 48, 12, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..12).prop_map(Value::from),
            prop::collection::vec((prop::sample::select(fields()), inner), 0..6)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

/// Sets, in the object or its text half, some fields to something else.
fn mutated() -> impl Strategy<Value = Value> {
    let change = (prop::sample::select(fields()), prop::option::weighted(0.9, value()), any::<bool>());
    (prop::sample::select(seeds()), prop::collection::vec(change, 0..5)).prop_map(|(mut config, changes)| {
        for (name, value, inner) in changes {
            let target = match config.get_mut("text_config") {
                Some(Value::Object(_)) if inner => config.get_mut("text_config").unwrap(),
                _ => &mut config,
            };
            let Value::Object(map) = target else { continue };
            match value {
                Some(value) => drop(map.insert(name, value)),
                None => drop(map.remove(&name)),
            }
        }
        config
    })
}

fn exercise(config: &Value) -> Result<(), TestCaseError> {
    let start = Instant::now();
    match ModelPlan::from_config(config) {
        Ok(plan) => {
            prop_assert!(!plan.layers.is_empty() && plan.layers.len() <= 4096);
            for storage in [Storage::F16, Storage::Q8_0, Storage::Fp8] {
                let cache = plan.cache(&CacheOptions::new(storage).prediction_layers(true)).unwrap();
                for layer in &plan.layers {
                    prop_assert!(!layer.design.describe().is_empty());
                }
                if let (Ok(few), Ok(many)) = (cache.bytes(10, 1), cache.bytes(5000, 1)) {
                    prop_assert!(few <= many);
                    prop_assert!(cache.fixed_bytes().unwrap() <= few);
                    if let Some(most) = cache.max_tokens(many, 1, 1 << 30) {
                        prop_assert!(most >= 5000);
                    }
                }
                let _ = cache.bytes(u64::MAX, u64::MAX);
            }
            let _ = (LlamaCpp::new(4096).reserve(&plan), Vllm::new(4096).reserve(&plan));
            let _ = plan.plain_bytes(&CacheOptions::new(Storage::F32), u64::MAX, 1);
        }
        Err(error) => {
            let message = error.to_string();
            prop_assert!(message.len() < 1_000, "{message}");
            prop_assert!(!message.ends_with('.'), "{message}");
        }
    }
    prop_assert!(start.elapsed() < Duration::from_secs(5), "{:?}", start.elapsed());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2_000, failure_persistence: None, ..ProptestConfig::default()
    })]

    #[test]
    fn mutated_configurations_never_panic(config in mutated()) {
        exercise(&config)?;
    }

    #[test]
    fn torn_text_never_panics(which in any::<prop::sample::Index>(), cut in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let seeds = seeds();
        let mut text = serde_json::to_vec(which.get(&seeds)).unwrap();
        let place = cut.index(text.len());
        text[place] = byte;
        let text = String::from_utf8_lossy(&text);
        match serde_json::from_str(&text) {
            Ok(config) => exercise(&config)?,
            Err(_) => prop_assert!(ModelPlan::from_config(text.as_ref()).is_err()),
        }
        prop_assert!(ModelPlan::from_config(&text[..text.floor_char_boundary(place)]).is_err());
    }
}
