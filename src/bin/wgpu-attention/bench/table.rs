//! The command's table, and the ratios that say what a window and 16-bit storage gain.

use std::fmt::Write;

use comfy_table::{Cell, CellAlignment, Table, presets};
use wgpu_attention::Gpu;
use wgpu_attention::measure::{Ceilings, Rate};

use super::Measured;
use crate::device::describe;

/// Pairs of cases whose times are compared: slower, faster, and what the ratio says.
const RATIOS: &[(&str, &str, &str)] = &[
    ("decode_full_8192", "decode_window_128_of_8192", "decode: a window of 128 at 8192 keys costs 1/"),
    (
        "prefill_64_full_8192",
        "prefill_64_window_128_of_8192",
        "64 queries: a window of 128 at 8192 keys costs 1/",
    ),
    (
        "decode_32_8_4096x128",
        "decode_32_8_4096x128_f16",
        "decode: f16 keys and values are faster than f32 by ",
    ),
    (
        "decode_32_8_4096x128",
        "decode_32_8_4096x128_bf16",
        "decode: bf16 keys and values are faster than f32 by ",
    ),
    (
        "prefill_8x512x512x64_causal_strided",
        "prefill_8x512x512x64_causal",
        "prefill: strided views take, of packed tensors' time, ",
    ),
];

/// Seconds with a unit.
fn duration(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s => format!("{:.1} µs", s * 1e6),
    }
}

fn rate(label: &str, rate: &Rate, unit: &str) -> String {
    format!("  {label:<22} {:>9.2} {unit:<8} ({})\n", rate.per_second / 1e9, rate.variant)
}

/// Adapter, ceilings, table, ratios.
pub(super) fn text(gpu: &Gpu, ceilings: &Ceilings, cases: &[Measured]) -> String {
    let mut text = format!("{}; times by {}\n\nCeilings\n", describe(gpu), ceilings.clock.name());
    text += &rate("copy, read + written", &ceilings.copy, "GB/s");
    text += &rate("streaming read", &ceilings.read, "GB/s");
    text += &rate("read from a cache", &ceilings.cached_read, "GB/s");
    text += &rate("f32 multiply-add", &ceilings.multiply_add, "GFLOP/s");
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_header([
        "case", "kernel", "tuning", "first", "median", "best", "call", "MB", "MFLOP", "GB/s", "GFLOP/s",
        "share", "bound",
    ]);
    for case in cases {
        let right = |text: String| Cell::new(text).set_alignment(CellAlignment::Right);
        table.add_row([
            Cell::new(&case.name),
            Cell::new(case.kernel),
            Cell::new(&case.tuning),
            right(duration(case.first)),
            right(duration(case.median)),
            right(duration(case.best)),
            right(duration(case.call)),
            right(format!("{:.2}", case.bytes as f64 / 1e6)),
            right(format!("{:.1}", case.flops as f64 / 1e6)),
            right(format!("{:.2}", case.bytes_per_second() / 1e9)),
            right(format!("{:.2}", case.flops_per_second() / 1e9)),
            right(format!("{:.1} %", case.share * 1e2)),
            Cell::new(case.bound()),
        ]);
    }
    // writing to a string cannot fail
    let _ = writeln!(text, "\n{table}");
    text += "first: compilation included. best: the least. call: recording and waiting included. share: of the least time that\n\
             the streaming read and the multiply-add rate allow for the bytes and operations of the case.\n";
    for line in ratios(cases) {
        text += &line;
        text.push('\n');
    }
    text
}

/// One line for each pair of which both were measured.
fn ratios(cases: &[Measured]) -> Vec<String> {
    let find = |name: &str| cases.iter().find(|case| case.name == name);
    let mut lines = Vec::new();
    for (slow, fast, says) in RATIOS {
        if let (Some(slow), Some(fast)) = (find(slow), find(fast)) {
            let mut line = String::new();
            // writing to a string cannot fail
            let _ = write!(
                line,
                "{says}{:.2} ({} against {})",
                slow.median / fast.median,
                duration(fast.median),
                duration(slow.median)
            );
            lines.push(line);
        }
    }
    lines
}
