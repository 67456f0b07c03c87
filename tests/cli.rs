//! The program, run as a user does.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use wgpu_attention::cases::{Case, HostData};

fn run(args: &[&str]) -> Output {
    let root = env!("CARGO_MANIFEST_DIR");
    Command::new(env!("CARGO_BIN_EXE_wgpu-attention")).args(args).current_dir(root).output().unwrap()
}

fn text(args: &[&str]) -> String {
    let output = run(args);
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Refused with exit status 1 (or 2, by the option parser) and these words.
fn refused(args: &[&str], status: i32, words: &[&str]) {
    let output = run(args);
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{args:?}: {message}");
    for word in words {
        assert!(message.contains(word), "{word:?} is not in {message}");
    }
}

fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

const SMALL: &str = "tests/golden/ops/attention_mha_bidirectional.safetensors";

#[test]
fn every_command_has_help_with_an_example() {
    let help = text(&["--help"]);
    for command in ["info", "run", "check", "shader", "mask", "plan"] {
        assert!(help.contains(command));
        assert!(text(&[command, "--help"]).contains("--"), "{command}");
    }
}

#[test]
fn a_window_of_four_with_one_sink_token_is_drawn() {
    let drawn = text(&["mask", "--seq-q", "7", "--seq-kv", "7", "--window", "4", "--sink-tokens", "1"]);
    let rows: Vec<_> = drawn.lines().skip(1).take(7).map(|l| l.trim_end().to_owned()).collect();
    assert_eq!(rows[6], "    6  ■ · · ■ ■ ■ ■  5");
    assert!(drawn.ends_with("25 of 49 pairs visible\n"), "{drawn}");
    let json = text(&["mask", "--seq-q", "2", "--seq-kv", "3", "--json"]);
    let json: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["visible"], serde_json::json!([[0, 1], [0, 1, 2]]));
    let png = scratch("mask").join("mask.png");
    text(&["mask", "--seq-q", "4", "--seq-kv", "4", "--window", "2", "--png", png.to_str().unwrap()]);
    let mut reader = png::Decoder::new(std::io::BufReader::new(std::fs::File::open(&png).unwrap()));
    reader.set_transformations(png::Transformations::IDENTITY);
    let mut reader = reader.read_info().unwrap();
    let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
    let width = reader.next_frame(&mut pixels).unwrap().width as usize;
    // the middle of each cell
    let cell = |i: usize, j: usize| pixels[(i * 24 + 12) * width + j * 24 + 12];
    for (i, j) in (0..16).map(|n| (n / 4, n % 4)) {
        assert_eq!(cell(i, j) == 1, j <= i && j + 2 > i, "query {i}, key {j}");
    }
    refused(&["mask", "--window", "0"], 1, &["window is 0"]);
    refused(&["mask", "--sink-tokens", "2"], 1, &["sink_tokens = 2", "without a window"]);
}

#[test]
fn a_case_is_computed_and_written() {
    let out = scratch("run").join("out.safetensors");
    text(&["run", SMALL, "-o", out.to_str().unwrap()]);
    let (got, want) = (Case::load(&out).unwrap(), Case::load(Path::new(SMALL)).unwrap());
    assert_eq!((got.op, got.params), (want.op, want.params));
    for (name, tensor) in &want.expected {
        let (a, b) = (got.expected[name].floats().unwrap(), tensor.floats().unwrap());
        assert!(a.iter().zip(b).all(|(a, b)| (a - b).abs() < 1e-5), "{name}");
    }
}

#[test]
fn a_wrong_value_fails_and_is_named() {
    let checked = text(&["check", SMALL, "--json"]);
    let list: Value = serde_json::from_str(&checked).unwrap();
    let case = &list[0];
    assert_eq!((&case["case"], &case["passed"]), (&"attention_mha_bidirectional".into(), &true.into()));
    assert!(
        case["rel_l2"].as_f64().unwrap() < 1e-5 && case["max_abs"].is_number() && case["op"] == "attention"
    );
    assert!(case["kernel"].as_str().unwrap().starts_with("attention_"));
    // one changed element of the expected output
    let mut bytes = std::fs::read(SMALL).unwrap();
    let case = Case::load(Path::new(SMALL)).unwrap();
    let HostData::F32(o) = &case.expected["o"].data else { panic!("o holds floats") };
    let at = bytes.windows(4).rposition(|w| w == o[5].to_le_bytes()).unwrap();
    bytes[at..at + 4].copy_from_slice(&9.0_f32.to_le_bytes());
    let damaged = scratch("check").join("damaged.safetensors");
    std::fs::write(&damaged, bytes).unwrap();
    let output = run(&["check", damaged.to_str().unwrap()]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(table.contains("WRONG") && table.contains("want 9e0") && table.contains("again: "), "{table}");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    refused(&["check", "nowhere.safetensors", "--json"], 1, &[]);
    refused(&["run", "nowhere.safetensors", "-o", "x"], 1, &["nowhere.safetensors: file"]);
    refused(&["run", SMALL, "-o", "x", "--kernel", "attention_fast"], 1, &["attention_tiled"]);
    refused(&["check", "--fast"], 2, &["--fast"]);
    refused(&["info", "--portable"], 2, &["--portable"]);
    refused(&["check", SMALL, "--adapter", "Voodoo 5"], 1, &["Voodoo 5", "apt-get install"]);
    // metadata that names another operator, or an option nobody knows
    let folder = scratch("refused");
    for (from, to, word) in [("attention", "attentiom", "attentiom"), ("softcap", "softcup", "softcup")] {
        let mut bytes = std::fs::read(SMALL).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = folder.join(format!("{to}.safetensors"));
        std::fs::write(&path, bytes).unwrap();
        refused(&["run", path.to_str().unwrap(), "-o", "x"], 1, &[word, "known"]);
    }
}

#[test]
fn kernels_are_translated_to_each_language() {
    for (language, word) in
        [("wgsl", "@compute"), ("msl", "kernel"), ("hlsl", "numthreads"), ("glsl", "#version")]
    {
        let out = text(&["shader", "attention_tiled", "--set", "DIM_K=128", "--to", language]);
        assert!(out.contains(word), "{language}");
    }
    let file = scratch("shader").join("tiled.spv");
    text(&["shader", "attention_tiled", "--to", "spirv", "-o", file.to_str().unwrap()]);
    assert_eq!(std::fs::read(file).unwrap()[..4], 0x0723_0203_u32.to_le_bytes());
    refused(&["shader", "attention_tiled", "--set", "DIM=1"], 1, &["attention_tiled.wgsl:1", "DIM"]);
    refused(&["shader", "attention"], 1, &["no such kernel", "attention_tiled"]);
    assert!(text(&["shader", "--list"]).contains("merge_partials"));
}

#[test]
fn the_map_of_the_architecture_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let drawing = std::fs::read_to_string(root.join("docs/architecture.svg")).unwrap();
    let named = page.split('`').skip(1).step_by(2).filter(|s| s.contains('/'));
    let drawn =
        drawing.split(['>', '<', ',', ' ']).filter(|s| s.starts_with("src/") || s.starts_with("shaders/"));
    for path in named.chain(drawn) {
        assert!(root.join(path).exists(), "{path} does not exist");
    }
}
