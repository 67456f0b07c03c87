//! The program's `plan` command, run as a user does.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::process::{Command, Output};

use serde_json::Value;

fn run(args: &[&str]) -> Output {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/configs");
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention"))
        .arg("plan")
        .args(args)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&text(args)).unwrap()
}

fn refused(args: &[&str], words: &[&str]) {
    let output = run(args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && output.stdout.is_empty(), "{args:?}");
    for word in words {
        assert!(message.contains(word), "{word} is not in {message}");
    }
}

#[test]
fn json_has_the_exact_numbers() {
    let plan = json(&["qwen3.5-9b.json", "--json"]);
    assert_eq!(plan["tokens"], 32_768);
    assert_eq!(plan["batch"], 1);
    assert_eq!(plan["total_bytes"], (1024u64 << 20) + 52_690_944);
    assert_eq!(plan["bytes_per_token"], 32_768);
    assert_eq!(plan["fixed_bytes"], 52_690_944);
    let layers = plan["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 32);
    assert_eq!(layers[3]["index"], 3);
    assert_eq!(layers[3]["design"], "full");
    assert_eq!(layers[0]["design"], "gated delta");
    let sum: u64 = layers.iter().map(|layer| layer["bytes"].as_u64().unwrap()).sum();
    assert_eq!(plan["total_bytes"], sum);
}

#[test]
fn options_reach_the_plan() {
    let total = |args: &[&str]| json(args)["total_bytes"].as_u64().unwrap();
    let llama = "llama-3.1-8b.json";
    assert_eq!(total(&[llama, "--json", "--kv", "q8_0"]), 2_176 << 20);
    assert_eq!(total(&[llama, "--json", "--batch", "3"]), 3 * (4_096 << 20));
    assert_eq!(total(&[llama, "--json", "--tokens", "1m"]), 32 * (4_096 << 20));
    assert_eq!(total(&[llama, "--json", "--tokens", "1000"]), 131_072_000);
    // 29 layers hold 511 tokens more
    let gemma = "gemma-3-4b.json";
    assert_eq!(total(&[gemma, "--json", "--chunk", "512"]), (756 << 20) + 29 * 511 * 4_096);
    // weights published in f32 are not cached so
    assert_eq!(total(&["gemma-2-9b.json", "--json"]), 6_048 << 20);
    assert_eq!(total(&["deepseek-v3.2.json", "--json", "--index", "fp8", "--tokens", "1"]), 78_324);
    let predicted = ["deepseek-v3.json", "--json", "--tokens", "1000", "--prediction-layers"];
    assert_eq!(total(&predicted), 71_424_000);
}

#[test]
fn tables_say_what_matters() {
    let plan = text(&["gemma-3-4b.json", "--runtime", "llama.cpp"]);
    for word in [
        "gemma3_text",
        "34 layers",
        "window 1024, 8/4 heads x 256",
        "5, 11, 17, 23, 29",
        "756 MiB",
        "20,480",
        "139,264 until the windows fill",
        "4,352 MiB",
        "llama.cpp reserves",
        "814 MiB",
        "4K",
        "1M",
    ] {
        assert!(plan.contains(word), "{word} is not in {plan}");
    }
    let full = text(&["gemma-3-4b.json", "--runtime", "llama.cpp", "--swa-full"]);
    assert!(full.lines().any(|line| line.starts_with("reserved") && line.contains("4,352 MiB")), "{full}");
    let vllm = text(&["gemma-3-4b.json", "--runtime", "vllm"]);
    assert!(vllm.contains("2,812,149,760") && vllm.contains("17,424"), "{vllm}");
    assert!(text(&["llama-2-7b.json"]).contains("note: the model was made for 4,096 tokens"));
}

#[test]
fn comparison_and_charts() {
    let models = ["gemma-3-4b.json", "deepseek-v2-lite.json", "qwen3.5-9b.json"];
    let path = std::env::temp_dir().join(format!("wgpu-attention-plan-{}.svg", std::process::id()));
    let svg = path.to_str().unwrap();
    let shown = text(&["--compare", models[0], models[1], models[2], "--svg", svg]);
    for word in ["gemma-3-4b", "deepseek-v2-lite", "qwen3.5-9b", "756 MiB", "972 MiB", "1,074.25 MiB", "█"]
    {
        assert!(shown.contains(word), "{word} is not in {shown}");
    }
    let drawn = std::fs::read_to_string(&path).unwrap();
    assert!(drawn.starts_with("<svg") && drawn.trim_end().ends_with("</svg>"));
    for word in ["gemma-3-4b", "deepseek-v2-lite", "qwen3.5-9b", "window", "latent", "gated delta", "1M"] {
        assert!(drawn.contains(word), "{word} is not in the chart");
    }
    text(&[models[0], "--svg", svg]);
    let alone = std::fs::read_to_string(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    assert!(alone.contains("every head plainly") && alone != drawn);
    let list = json(&["--compare", models[0], models[1], "--json"]);
    assert_eq!(list.as_array().map(Vec::len), Some(2));
    assert_eq!(list[1]["total_bytes"], 972u64 << 20);
}

#[test]
fn refusals() {
    refused(&["nowhere.json"], &["nowhere.json"]);
    refused(&["llama-2-7b.json", "--kv", "q9"], &["q9", "q8_0"]);
    refused(&["llama-2-7b.json", "--tokens", "0"], &["tokens", "0"]);
    refused(&["llama-2-7b.json", "--tokens", "many"], &["many", "32k"]);
    refused(&["llama-2-7b.json", "--batch", "0"], &["batch"]);
    refused(&["llama-2-7b.json", "--prediction-layers"], &["prediction-layers"]);
    refused(&["qwen3.5-9b.json", "--runtime", "vllm"], &["vllm", "gated delta"]);
    refused(&["llama-2-7b.json", "--tokens", "1048576m", "--batch", "18446744073709551615"], &["2^64"]);
    refused(&[], &["PATH"]);
}
