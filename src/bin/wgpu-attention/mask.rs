//! `mask`: which query sees which key, as text or a picture.

use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::json;
use wgpu_attention::{Mask, Positions};

use super::Outcome;

/// Arguments of `mask`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  wgpu-attention mask --seq-q 10 --seq-kv 10 --window 4 --sink-tokens 1 --png mask.png"
)]
pub(crate) struct Args {
    /// Queries
    #[arg(long, value_name = "N", default_value_t = 12)]
    seq_q: usize,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 12)]
    seq_kv: usize,
    /// A query sees keys at or before its position [default]
    #[arg(long, conflicts_with = "bidirectional")]
    causal: bool,
    /// A query sees keys on both sides
    #[arg(long)]
    bidirectional: bool,
    /// Sliding window: that many keys, the query's own included
    #[arg(long, value_name = "W")]
    window: Option<u32>,
    /// First keys that stay visible outside the window
    #[arg(long, value_name = "N", default_value_t = 0)]
    sink_tokens: u32,
    /// Length of the blocks of positions within which attention stays
    #[arg(long, value_name = "C")]
    chunk: Option<u32>,
    /// Position of query 0 [default: the last query stands at the last key]
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    q_start: Option<i64>,
    /// Position of key 0
    #[arg(long, value_name = "P", default_value_t = 0)]
    k_start: u32,
    /// Write a picture instead
    #[arg(long, value_name = "FILE")]
    png: Option<PathBuf>,
    /// Print JSON: positions and, a row a query, the visible keys
    #[arg(long, conflicts_with = "png")]
    json: bool,
}

/// Widest mask that is drawn.
const MOST: usize = 4096;

pub(crate) fn run(args: &Args) -> Outcome {
    for (field, count) in [("--seq-q", args.seq_q), ("--seq-kv", args.seq_kv)] {
        if count > MOST {
            return Err(format!("{field} is {count}, but at most {MOST} are drawn: draw a part").into());
        }
    }
    let mask = Mask {
        causal: args.causal || !args.bidirectional,
        q_start: args.q_start,
        k_start: args.k_start,
        window: args.window,
        sink_tokens: args.sink_tokens,
        chunk: args.chunk,
    };
    let positions = mask.resolve(args.seq_q, args.seq_kv)?;
    if let Some(path) = &args.png {
        draw(path, args, &positions)?;
        eprintln!(
            "{}: {} of {} pairs visible",
            path.display(),
            positions.visible_pairs(),
            args.seq_q * args.seq_kv
        );
        return Ok(ExitCode::SUCCESS);
    }
    let mut out = BufWriter::new(std::io::stdout().lock());
    if args.json {
        let row = |i| (0..args.seq_kv).filter(|&j| positions.visible(i, j)).collect::<Vec<_>>();
        let visible: Vec<_> = (0..args.seq_q).map(row).collect();
        let object = json!({
            "q_start": positions.q_start(), "k_start": positions.k_start(),
            "pairs": positions.visible_pairs(), "visible": visible,
        });
        writeln!(out, "{object}")?;
    } else {
        text(&mut out, args, &positions)?;
    }
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

fn text(out: &mut impl Write, args: &Args, p: &Positions) -> std::io::Result<()> {
    let last = (p.k_start() + args.seq_kv as i64 - 1).max(0).to_string();
    let label = |i: usize| p.q_start() + i as i64;
    let width =
        [label(0), label(args.seq_q.saturating_sub(1))].map(|n| n.to_string().len()).into_iter().max();
    let width = width.unwrap_or(1).max(5);
    // positions of keys, read downwards
    for digit in 0..last.len() {
        write!(out, "{:width$} ", if digit + 1 == last.len() { "query" } else { "" })?;
        for j in 0..args.seq_kv as i64 {
            let position = format!("{:>1$}", p.k_start() + j, last.len());
            write!(out, " {}", &position[digit..=digit])?;
        }
        writeln!(out, "{}", if digit + 1 == last.len() { "  keys" } else { "" })?;
    }
    for i in 0..args.seq_q {
        write!(out, "{:>width$} ", label(i))?;
        let mut seen = 0;
        for j in 0..args.seq_kv {
            let visible = p.visible(i, j);
            seen += usize::from(visible);
            write!(out, " {}", if visible { '■' } else { '·' })?;
        }
        writeln!(out, "  {seen}")?;
    }
    writeln!(out, "{} of {} pairs visible", p.visible_pairs(), args.seq_q * args.seq_kv)
}

/// One square a pair, with lines between; large masks get a pixel a pair.
fn draw(path: &Path, args: &Args, p: &Positions) -> Result<(), Box<dyn std::error::Error>> {
    if args.seq_q == 0 || args.seq_kv == 0 {
        return Err("a picture needs at least one query and one key".into());
    }
    let cell = (1024 / args.seq_q.max(args.seq_kv)).clamp(1, 24);
    let line = usize::from(cell > 3);
    let (width, height) = (args.seq_kv * cell + line, args.seq_q * cell + line);
    let mut pixels = vec![0u8; width * height];
    for (y, row) in pixels.chunks_exact_mut(width).enumerate() {
        for (x, pixel) in row.iter_mut().enumerate() {
            let on_line = line == 1 && (x % cell == 0 || y % cell == 0);
            *pixel = match (on_line, !on_line && p.visible(y / cell, x / cell)) {
                (true, _) => 2,
                (_, visible) => u8::from(visible),
            };
        }
    }
    let file = std::fs::File::create(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let mut encoder = png::Encoder::new(BufWriter::new(file), width as u32, height as u32);
    encoder.set_color(png::ColorType::Indexed);
    encoder.set_depth(png::BitDepth::Eight);
    // hidden, visible, line
    encoder.set_palette(vec![0xf4, 0xf4, 0xf2, 0x1f, 0x5f, 0xa8, 0xc8, 0xc8, 0xc4]);
    encoder.write_header()?.write_image_data(&pixels)?;
    Ok(())
}
