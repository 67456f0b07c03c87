//! `check`: cases against their expected results.

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use comfy_table::{Cell as TableCell, Color, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;
use wgpu_attention::cases::{self, Case, Cell, Verdict};
use wgpu_attention::{DType, Gpu};

use super::Outcome;
use super::device::{DeviceArgs, Storage, describe, known_kernel, quoted};

/// Arguments of `check`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  wgpu-attention check\n  wgpu-attention check cases/ --dtype f16 --json")]
pub(crate) struct Args {
    /// Case files, or folders of them [default: the built-in cases]
    #[arg(value_name = "PATH")]
    paths: Vec<PathBuf>,
    /// Storage of queries, keys, values and results on the device
    #[arg(long, value_enum, default_value = "f32")]
    dtype: Storage,
    /// Insist on one kernel (`shader --list` names them)
    #[arg(long, value_name = "NAME")]
    kernel: Option<String>,
    /// Print a JSON array, one object a case
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    device: DeviceArgs,
}

impl Args {
    /// The built-in cases on the best adapter.
    pub(crate) fn builtin() -> Self {
        Self {
            paths: Vec::new(),
            dtype: Storage::F32,
            kernel: None,
            json: false,
            device: DeviceArgs::default(),
        }
    }
}

/// A case and how it went.
struct Row {
    name: String,
    /// What reruns it.
    path: Option<PathBuf>,
    op: String,
    kernel: String,
    result: Result<Verdict, String>,
}

impl Row {
    fn passed(&self) -> bool {
        self.result.as_ref().is_ok_and(|v| v.passed)
    }
}

type Loaded = (Option<PathBuf>, wgpu_attention::Result<Case>);

pub(crate) fn run(args: &Args) -> Outcome {
    known_kernel(args.kernel.as_deref())?;
    let loaded = load(&args.paths)?;
    let gpu = args.device.open()?;
    let bar = progress(loaded.len());
    let mut rows = Vec::new();
    for (path, case) in loaded {
        let row = match case {
            Ok(case) => {
                bar.set_message(case.name.clone());
                check(&gpu, path, &case, args)
            }
            Err(error) => {
                let name = path.as_deref().map_or_else(String::new, |p| p.display().to_string());
                Row { name, path, op: String::new(), kernel: String::new(), result: Err(error.to_string()) }
            }
        };
        rows.push(row);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let mut out = std::io::stdout().lock();
    if args.json {
        let list: Vec<_> = rows.iter().map(object).collect();
        writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
    } else {
        show(&mut out, &rows, &gpu, args)?;
    }
    let right = rows.iter().all(Row::passed);
    Ok(if right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A bar on the terminal; nothing elsewhere.
pub(crate) fn progress(total: usize) -> ProgressBar {
    let bar =
        if std::io::stderr().is_terminal() { ProgressBar::new(total as u64) } else { ProgressBar::hidden() };
    if let Ok(style) = ProgressStyle::with_template("{bar:24} {pos}/{len} {elapsed} {wide_msg}") {
        bar.set_style(style);
    }
    bar.enable_steady_tick(std::time::Duration::from_millis(200));
    bar
}

fn load(paths: &[PathBuf]) -> Result<Vec<Loaded>, Box<dyn std::error::Error>> {
    if paths.is_empty() {
        return Ok(Case::builtin()?.into_iter().map(|case| (None, Ok(case))).collect());
    }
    let mut files = Vec::new();
    for path in paths {
        if path.is_dir() {
            let mut inside: Vec<_> = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
            inside.sort_by_key(std::fs::DirEntry::path);
            let is_case = |p: &Path| p.extension().is_some_and(|e| e == "safetensors");
            let before = files.len();
            files.extend(inside.iter().map(std::fs::DirEntry::path).filter(|p| is_case(p)));
            if files.len() == before {
                let folders = inside.iter().map(std::fs::DirEntry::path).filter(|p| p.is_dir());
                let folders: Vec<_> = folders.map(|p| p.display().to_string()).collect();
                let instead = match folders.as_slice() {
                    [] => "name a folder of cases".into(),
                    _ => format!("perhaps {} do", folders.join(", ")),
                };
                return Err(format!("{} holds no .safetensors file: {instead}", path.display()).into());
            }
        } else {
            files.push(path.clone());
        }
    }
    Ok(files
        .into_iter()
        .map(|path| {
            let case = Case::load(&path);
            (Some(path), case)
        })
        .collect())
}

fn check(gpu: &Gpu, path: Option<PathBuf>, case: &Case, args: &Args) -> Row {
    let dtype = DType::from(args.dtype);
    let (name, op) = (case.name.clone(), case.op.clone());
    match cases::run(gpu, case, dtype, args.kernel.as_deref()) {
        Ok(outcome) => {
            let result = cases::judge(case, &outcome, dtype).map_err(|e| e.to_string());
            Row { name, path, op, kernel: outcome.kernel, result }
        }
        Err(error) => Row { name, path, op, kernel: String::new(), result: Err(error.to_string()) },
    }
}

fn object(row: &Row) -> serde_json::Value {
    let mut object = json!({
        "case": row.name, "op": row.op, "kernel": row.kernel, "passed": row.passed(),
        "rel_l2": null, "max_abs": null,
    });
    match &row.result {
        Ok(verdict) => {
            object["rel_l2"] = json!(verdict.rel_l2);
            object["max_abs"] = json!(verdict.max_abs);
            object["wrong"] = json!(verdict.wrong);
        }
        Err(error) => object["error"] = json!(error),
    }
    object
}

fn place(cell: &Cell) -> String {
    format!("{} {:?}", cell.tensor, cell.index)
}

fn show(out: &mut impl Write, rows: &[Row], gpu: &Gpu, args: &Args) -> std::io::Result<()> {
    let mut table = Table::new();
    table.load_style(presets::UTF8_BORDERS_ONLY);
    table.set_content_arrangement(ContentArrangement::Dynamic);
    table.set_header(["case", "op", "kernel", "rel. L2", "max abs", "at", ""]);
    for row in rows {
        let (l2, max, at) = match &row.result {
            Ok(v) => (
                format!("{:.1e}", v.rel_l2),
                format!("{:.1e}", v.max_abs),
                v.worst.first().map(place).unwrap_or_default(),
            ),
            Err(_) => ("-".into(), "-".into(), String::new()),
        };
        let verdict = if row.passed() {
            TableCell::new("right").fg(Color::Green)
        } else {
            TableCell::new(if row.result.is_ok() { "WRONG" } else { "REFUSED" }).fg(Color::Red)
        };
        table.add_row(
            [&row.name, &row.op, &row.kernel, &l2, &max, &at]
                .map(TableCell::new)
                .into_iter()
                .chain([verdict]),
        );
    }
    writeln!(out, "{table}")?;
    for row in rows.iter().filter(|r| !r.passed()) {
        explain(out, row, args)?;
    }
    if args.paths.is_empty() {
        writeln!(
            out,
            "gemma3_270m_*: two layers of Gemma 3 270M over 700 tokens of text; the others: one option each"
        )?;
    }
    if let Some(Ok(verdict)) = rows.iter().map(|r| &r.result).find(|r| r.is_ok()) {
        writeln!(out, "bound: {}", verdict.bound)?;
    }
    let right = rows.iter().filter(|r| r.passed()).count();
    writeln!(out, "{right} of {} cases right on {}", rows.len(), describe(gpu))
}

fn explain(out: &mut impl Write, row: &Row, args: &Args) -> std::io::Result<()> {
    match &row.result {
        Err(error) if error.starts_with(&row.name) => writeln!(out, "\n{error}")?,
        Err(error) => writeln!(out, "\n{}: {error}", row.name)?,
        Ok(verdict) => {
            let elements = if verdict.wrong == 1 { "element" } else { "elements" };
            writeln!(out, "\n{}: {} {elements} beyond the bound; got / want:", row.name, verdict.wrong)?;
            // where only the sum of errors is beyond it, all of the worst matter
            let shown = if verdict.wrong == 0 { verdict.worst.len() } else { verdict.wrong };
            for cell in verdict.worst.iter().take(shown) {
                writeln!(out, "  {} {} / {}", place(cell), cell.got as f32, cell.want as f32)?;
            }
        }
    }
    let path =
        row.path.as_ref().map(|p| format!(" {}", quoted(&p.display().to_string()))).unwrap_or_default();
    let kernel = args.kernel.as_ref().map(|k| format!(" --kernel {k}")).unwrap_or_default();
    let (dtype, device) = (DType::from(args.dtype).name(), args.device.again());
    writeln!(out, "  again: wgpu-attention check{path} --dtype {dtype}{kernel}{device}\n")
}
