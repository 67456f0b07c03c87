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
    assert!(help.contains("Example") && help.contains("Exit status"));
    for command in ["info", "run", "check", "bench", "shader", "mask", "plan"] {
        assert!(help.contains(&format!("\n  {command} ")), "{help}");
        let help = text(&[command, "--help"]);
        let example = help.split("Example").nth(1).unwrap_or_default();
        assert!(example.contains(&format!("wgpu-attention {command}")), "{help}");
    }
}

#[test]
fn adapters_are_listed_with_what_they_get() {
    let list: Value = serde_json::from_str(&text(&["info", "--json"])).unwrap();
    for adapter in list.as_array().unwrap() {
        for key in ["name", "kind", "backend", "driver"] {
            assert!(adapter[key].is_string(), "{key} of {adapter}");
        }
        assert!(adapter["binding_bytes"].as_u64().unwrap() >= 128 << 20);
        for plan in adapter["plans"].as_array().unwrap() {
            assert!(plan["kernel"].as_str().unwrap().starts_with("attention_"), "{plan}");
        }
    }
    let table = text(&["info"]);
    assert!(table.contains(list[0]["driver"].as_str().unwrap()) && table.contains("(prefill)"), "{table}");
}

#[test]
fn a_machine_without_an_adapter_is_told_what_to_install() {
    // Metal is nowhere where Vulkan is wanted, and the other way round
    let absent = if cfg!(target_os = "macos") { "vulkan" } else { "metal" };
    for command in ["info", "check"] {
        let mut program = Command::new(env!("CARGO_BIN_EXE_wgpu-attention"));
        let output = program.arg(command).env("WGPU_BACKEND", absent).output().unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.starts_with("error: no adapter found\n"), "{message}");
        let words = if cfg!(target_os = "linux") { "apt-get install mesa-vulkan-drivers" } else { "GPU" };
        assert!(message.contains(words), "{message}");
    }
}

#[test]
#[cfg(unix)]
fn a_reader_that_leaves_is_no_error() {
    use std::process::Stdio;
    let mut program = Command::new(env!("CARGO_BIN_EXE_wgpu-attention"));
    // more than a pipe holds
    program.args(["mask", "--seq-q", "1000", "--seq-kv", "1000"]);
    let mut child = program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

#[test]
fn a_window_of_four_with_one_sink_token_is_drawn() {
    let drawn = text(&["mask", "--seq-q", "7", "--seq-kv", "7", "--window", "4", "--sink-tokens", "1"]);
    insta::assert_snapshot!(drawn, @r"
    query  0 1 2 3 4 5 6  keys
        0  ■ · · · · · ·  1
        1  ■ ■ · · · · ·  2
        2  ■ ■ ■ · · · ·  3
        3  ■ ■ ■ ■ · · ·  4
        4  ■ ■ ■ ■ ■ · ·  5
        5  ■ · ■ ■ ■ ■ ·  5
        6  ■ · · ■ ■ ■ ■  5
    25 of 49 pairs visible
    ");
    let readme = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md")).unwrap();
    assert!(readme.replace("\r\n", "\n").contains(&drawn), "the README shows another drawing");
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
        // a line at its left and above it
        assert_eq!((pixels[(i * 24 + 12) * width + j * 24], pixels[i * 24 * width + j * 24 + 12]), (2, 2));
    }
    assert_eq!((width, pixels.len()), (4 * 24 + 1, (4 * 24 + 1) * (4 * 24 + 1)));
    refused(&["mask", "--window", "0"], 1, &["window is 0"]);
    refused(&["mask", "--sink-tokens", "2"], 1, &["sink_tokens = 2", "without a window"]);
}

#[test]
fn a_case_is_computed_and_written() {
    let out = scratch("run").join("out.safetensors");
    text(&["run", SMALL, "-o", out.to_str().unwrap()]);
    let (got, want) = (Case::load(&out).unwrap(), Case::load(Path::new(SMALL)).unwrap());
    assert_eq!((got.op, got.params), (want.op, want.params));
    assert_eq!(got.expected.keys().collect::<Vec<_>>(), want.expected.keys().collect::<Vec<_>>());
    for (name, tensor) in &want.expected {
        let (a, b) = (got.expected[name].floats().unwrap(), tensor.floats().unwrap());
        assert_eq!(a.len(), b.len());
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
    let damaged = scratch("check").join("damaged case.safetensors");
    std::fs::write(&damaged, bytes).unwrap();
    let output = run(&["check", SMALL, damaged.to_str().unwrap(), "--portable"]);
    let table = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(table.contains("WRONG") && table.contains("1 element beyond the bound"), "{table}");
    let cell = table.lines().find(|l| l.starts_with("  o [0, 0, 0, 5] ")).unwrap();
    assert!(cell.ends_with(" / 9"), "{cell}");
    let again = format!("check '{}' --dtype f32 --portable", damaged.display());
    assert!(table.contains(&again) && table.contains("\n1 of 2 cases right on "), "{table}");
}

#[test]
fn what_is_not_understood_is_refused_by_name() {
    let output = run(&["check", "nowhere.safetensors", SMALL, "--json"]);
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((output.status.code(), &list[0]["passed"]), (Some(1), &false.into()));
    assert!(
        list[0]["error"].as_str().unwrap().starts_with("nowhere.safetensors") && list[0]["rel_l2"].is_null()
    );
    assert_eq!(list[1]["passed"], true);
    refused(&["check", "tests/golden"], 1, &["no .safetensors file", "golden/ops"]);
    refused(&["run", "nowhere.safetensors", "-o", "x"], 1, &["nowhere.safetensors: file"]);
    let unknown = ["\"attention_fast\"", "attention_tiled"];
    refused(&["run", SMALL, "-o", "x", "--kernel", "attention_fast"], 1, &unknown);
    refused(&["check", SMALL, "--kernel", "attention_fast"], 1, &unknown);
    refused(&["check", "--fast"], 2, &["--fast"]);
    refused(&["info", "--portable"], 2, &["--portable"]);
    refused(&["check", SMALL, "--adapter", "Voodoo 5"], 1, &["Voodoo 5", "present: ", "info"]);
    refused(&["mask", "--causal", "--bidirectional"], 2, &["--bidirectional"]);
    refused(&["shader", "attention_tiled", "--to", "cuda"], 2, &["cuda", "spirv"]);
    refused(&["shader", "attention_tiled", "--set", "DIM_K"], 2, &["NAME=VALUE"]);
    // metadata that names another operator, or an option nobody knows
    let folder = scratch("refused");
    for (from, to, word) in [("attention", "attentiom", "attentiom"), ("softcap", "softcup", "softcup")] {
        let mut bytes = std::fs::read(SMALL).unwrap();
        let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
        let path = folder.join(format!("{to}.safetensors"));
        std::fs::write(&path, bytes).unwrap();
        refused(&["run", path.to_str().unwrap(), "-o", "x"], 1, &["error: ", word, "known"]);
        let output = run(&["check", path.to_str().unwrap()]);
        let table = String::from_utf8(output.stdout).unwrap();
        assert!(
            output.status.code() == Some(1) && table.contains("REFUSED") && table.contains(word),
            "{table}"
        );
    }
    assert!(!Path::new(env!("CARGO_MANIFEST_DIR")).join("x").exists());
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
    // the old compiler of Direct3D must do for workgroup memory, and cannot for subgroups
    assert!(!text(&["shader", "attention_tiled", "--to", "hlsl"]).contains("Wave"));
    assert!(text(&["shader", "attention_subgroup", "--to", "hlsl"]).contains("Wave"));
    refused(
        &["shader", "attention_tiled", "--set", "DIM=1"],
        1,
        &["shaders/attention_tiled.wgsl:1: ", "named DIM;", "DIM_K, "],
    );
    let wrong = ["shader", "attention_tiled", "--set", "DIM_K=wide", "--to", "msl"];
    refused(&wrong, 1, &["shaders/attention_tiled.wgsl:", "wide"]);
    refused(&["shader", "attention"], 1, &["no such kernel", "attention_tiled"]);
    assert!(text(&["shader", "--list"]).contains("merge_partials"));
}

/// Code without comments, spaces, and the comma that formatters put before a parenthesis.
fn bare(code: &str) -> String {
    let lines = code.lines().map(|l| l.split("//").next().unwrap_or_default());
    lines.flat_map(str::split_whitespace).collect::<String>().replace(",)", ")")
}

#[test]
fn the_readme_shows_code_that_an_example_runs() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
    let example = std::fs::read_to_string(root.join("examples/own_device.rs")).unwrap();
    let code = readme.split("```rust\n").nth(1).unwrap().split("```").next().unwrap();
    let function = code.split_once("fn attend").unwrap().1;
    assert!(bare(&example).contains(&bare(function)), "examples/own_device.rs differs from the README");
}

#[test]
fn every_variant_becomes_a_file() {
    let variants = wgpu_attention::shaders::variants().unwrap().len();
    // tests/shaders.rs has the other languages
    for (language, ending) in [("wgsl", "wgsl"), ("glsl", "comp")] {
        let folder = scratch("variants").join(language);
        let _ = std::fs::remove_dir_all(&folder);
        let output = run(&["shader", "--all", folder.to_str().unwrap(), "--to", language]);
        let message = String::from_utf8(output.stderr).unwrap();
        assert!(output.status.success(), "{message}");
        let names: Vec<_> = std::fs::read_dir(&folder)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        let safe = |c: char| c.is_ascii_alphanumeric() || "-_=.".contains(c);
        let sound = |n: &String| n.ends_with(ending) && n.len() < 240 && n.chars().all(safe);
        assert_eq!(names.iter().find(|n| !sound(n)), None);
        // naga writes no 16-bit floats in GLSL; each such variant is named
        let skipped: Vec<_> = message.lines().filter_map(|l| l.strip_prefix("skipped ")).collect();
        assert!(skipped.is_empty() || language == "glsl", "{message}");
        assert!(skipped.iter().all(|l| l.contains("f16_native")), "{message}");
        let count = format!("{} of {variants} variants written", names.len());
        assert!(message.contains(&count), "{message}");
        assert_eq!(names.len() + skipped.len(), variants, "{message}");
    }
}

#[test]
fn the_map_of_the_architecture_names_what_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = std::fs::read_to_string(root.join("docs/architecture.md")).unwrap();
    let drawing = std::fs::read_to_string(root.join("docs/architecture.svg")).unwrap();
    let named: Vec<_> = page.split('`').skip(1).step_by(2).filter(|s| s.contains('/')).collect();
    // whatever stands in the drawing's texts with a slash is a path
    let drawn: Vec<_> = drawing
        .split("<text")
        .skip(1)
        .filter_map(|t| t.split_once('>')?.1.split('<').next())
        .flat_map(|t| t.split([',', ' ']))
        .filter(|s| s.contains('/'))
        .collect();
    assert!(named.len() > 10 && drawn.len() > 10, "{named:?} {drawn:?}");
    for path in named.into_iter().chain(drawn) {
        assert!(root.join(path).exists(), "{path} does not exist");
    }
}
