//! Every golden file, on the definition and on every kernel that computes its operator.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::path::{Path, PathBuf};

use libtest_mimic::{Arguments, Failed, Trial};
use wgpu_attention::cases::{self, Case, Outcome, Verdict};
use wgpu_attention::reference::Rounding;
use wgpu_attention::{DType, Gpu};

/// Cases that are also run with 16-bit storage: one of each shape of call.
const SIXTEEN_BIT: [&str; 7] = [
    "mla_prefill_small",
    "rope_partial_quarter",
    "attention_decode_gqa",
    "attention_mha_causal",
    "attention_head_dim_80",
    "attention_learned_sinks_window",
    "linear_gdn_three_chunks",
];

/// Cases of each operator and of each shape of call: with `WGPU_ATTENTION_SUBSET=1`, no others run.
const SUBSET: [&str; 14] = [
    "attention_decode_gqa",
    "attention_head_dim_80",
    "attention_kv_len_ragged",
    "attention_learned_sinks_window",
    "attention_mha_causal",
    "linear_conv1d",
    "linear_gdn_three_chunks",
    "linear_kda",
    "linear_lightning",
    "linear_selective_scan",
    "mla_chunk_after_cache",
    "rope_half",
    "sparse_dsa_prefill",
    "sparse_topk_ties",
];

fn files() -> Vec<PathBuf> {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    let mut files = Vec::new();
    for folder in ["ops", "real"] {
        for entry in std::fs::read_dir(golden.join(folder)).unwrap() {
            files.push(entry.unwrap().path());
        }
    }
    files.sort();
    files
}

fn told(case: &Case, verdict: &Verdict) -> Result<(), Failed> {
    if verdict.passed {
        return Ok(());
    }
    let cells: Vec<_> = verdict
        .worst
        .iter()
        .map(|c| format!("  {} {:?} got {:e}, want {:e}", c.tensor, c.index, c.got, c.want))
        .collect();
    Err(format!(
        "{}: {} elements beyond {}\n{}\nagain: cargo test --test golden -- {}",
        case.name,
        verdict.wrong,
        verdict.bound,
        cells.join("\n"),
        case.name
    )
    .into())
}

fn on_device(gpu: &Gpu, path: &Path, kernel: &str, dtype: DType) -> Result<(), Failed> {
    let case = Case::load(path)?;
    let outcome = cases::run(gpu, &case, dtype, Some(kernel))?;
    told(&case, &cases::judge(&case, &outcome, dtype)?)
}

fn by_definition(path: &Path) -> Result<(), Failed> {
    let case = Case::load(path)?;
    let tensors = case.reference(DType::F32, Rounding::None)?;
    let outcome = Outcome { kernel: "reference".into(), tensors };
    told(&case, &cases::judge(&case, &outcome, DType::F32)?)
}

fn main() {
    let args = Arguments::from_args();
    // listing must not depend on which kernels a device takes: those that do not fit pass as named skips
    let mut trials = Vec::new();
    let subset = std::env::var_os("WGPU_ATTENTION_SUBSET").is_some_and(|v| v == "1");
    for path in files() {
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if subset && !SUBSET.contains(&name.as_str()) {
            continue;
        }
        let by_path = path.clone();
        trials.push(Trial::test(format!("{name}::reference"), move || by_definition(&by_path)));
        let paths = Case::load(&path).and_then(|case| case.paths()).unwrap();
        for &kernel in paths {
            let dtypes = [DType::F32, DType::F16, DType::Bf16];
            let wanted = if !subset && SIXTEEN_BIT.contains(&name.as_str()) { 3 } else { 1 };
            for dtype in dtypes.into_iter().take(wanted) {
                let path = path.clone();
                trials.push(Trial::test(format!("{name}::{kernel}::{}", dtype.name()), move || {
                    let gpu = common::gpu();
                    if kernel.ends_with("_subgroup") && gpu.limits().subgroup.is_none() {
                        eprintln!("skipped: {kernel} does not fit {}", gpu.name());
                        return Ok(());
                    }
                    on_device(gpu, &path, kernel, dtype)
                }));
            }
        }
    }
    libtest_mimic::run(&args, trials).exit();
}
