//! `info`: adapters and what they get.

use std::io::Write;
use std::process::ExitCode;

use comfy_table::{Table, presets};
use serde_json::json;
use wgpu_attention::{AdapterSummary, Attention, AttentionShape, DType, adapters};

use super::Outcome;
use super::device::INSTALL;

/// Arguments of `info`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  wgpu-attention info --json")]
pub(crate) struct Args {
    /// Print a JSON array, one object an adapter
    #[arg(long)]
    json: bool,
}

/// Calls whose plans are shown.
const CALLS: [(&str, AttentionShape); 2] = [
    (
        "prefill 32/8 heads, 1024 x 1024 x 128",
        AttentionShape {
            batch: 1,
            heads_q: 32,
            heads_kv: 8,
            seq_q: 1024,
            seq_kv: 1024,
            dim_k: 128,
            dim_v: 128,
        },
    ),
    (
        "decode 32/8 heads, 1 x 4096 x 128",
        AttentionShape { batch: 1, heads_q: 32, heads_kv: 8, seq_q: 1, seq_kv: 4096, dim_k: 128, dim_v: 128 },
    ),
];

pub(crate) fn run(args: &Args) -> Outcome {
    let found = adapters();
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> = found.iter().map(object).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
    } else {
        for (index, adapter) in found.iter().enumerate() {
            show(&mut out, index, adapter)?;
        }
    }
    if found.is_empty() {
        eprintln!("error: no adapter found\n{INSTALL}");
        return Ok(ExitCode::FAILURE);
    }
    Ok(ExitCode::SUCCESS)
}

fn subgroups(a: &AdapterSummary) -> String {
    match a.subgroups {
        [0, _] => "none".into(),
        [min, max] if min == max => min.to_string(),
        [min, max] => format!("{min} to {max}"),
    }
}

fn show(out: &mut impl Write, index: usize, a: &AdapterSummary) -> std::io::Result<()> {
    let l = &a.limits;
    let yes = |b: bool| if b { "yes" } else { "no" }.to_owned();
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([format!("{index}"), a.name.clone()]);
    for (name, value) in [
        ("kind, backend", format!("{}, {}", a.kind, a.backend)),
        ("driver", a.driver.clone()),
        ("subgroup size", subgroups(a)),
        ("16-bit floats", yes(l.f16)),
        ("timestamps", yes(l.timestamps)),
        ("workgroup memory", format!("{} KiB", l.workgroup_memory >> 10)),
        ("invocations to a workgroup", l.invocations.to_string()),
        ("one binding", mib(l.binding_bytes)),
        ("one buffer", mib(l.buffer_bytes)),
    ] {
        table.add_row([name.to_owned(), value]);
    }
    writeln!(out, "{table}")?;
    for (call, shape) in CALLS {
        match Attention::causal().plan(&shape, DType::F32, l) {
            Ok(plan) => writeln!(out, "{call}:\n  {}", plan.explain().replace('\n', "\n  "))?,
            Err(error) => writeln!(out, "{call}: {error}")?,
        }
    }
    writeln!(out)
}

fn object(a: &AdapterSummary) -> serde_json::Value {
    let l = &a.limits;
    let plans = CALLS.map(|(call, shape)| match Attention::causal().plan(&shape, DType::F32, l) {
        Ok(plan) => json!({ "call": call, "kernel": plan.kernel(), "explain": plan.explain() }),
        Err(error) => json!({ "call": call, "error": error.to_string() }),
    });
    json!({
        "name": a.name, "kind": a.kind, "backend": a.backend, "driver": a.driver,
        "subgroup_min": a.subgroups[0], "subgroup_max": a.subgroups[1], "f16": l.f16, "timestamps": l.timestamps,
        "workgroup_memory": l.workgroup_memory, "invocations": l.invocations,
        "binding_bytes": l.binding_bytes, "buffer_bytes": l.buffer_bytes, "plans": plans,
    })
}
