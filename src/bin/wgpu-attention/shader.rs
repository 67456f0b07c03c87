//! `shader`: kernel texts, as devices and other compilers get them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use naga::back;
use naga::valid::{Capabilities, ValidationFlags, Validator};
use wgpu_attention::shaders;

use super::Outcome;

/// Arguments of `shader`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  wgpu-attention shader attention_tiled --set DIM_K=128 --set k=load_f16 --to msl\n  \
                        wgpu-attention shader --all target/shaders --to spirv"
)]
pub(crate) struct Args {
    /// Kernel: a file's stem in shaders/
    #[arg(required_unless_present_any = ["list", "all"])]
    name: Option<String>,
    /// A constant of the kernel, by name
    #[arg(long, value_name = "NAME=VALUE", value_parser = pair)]
    set: Vec<(String, String)>,
    /// Language
    #[arg(long, value_name = "LANGUAGE", value_enum, default_value = "wgsl")]
    to: Language,
    /// Write here instead of to standard output
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// List the kernels
    #[arg(long)]
    list: bool,
    /// Write every variant that some device gets into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["name", "set", "output", "list"])]
    all: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Language {
    Wgsl,
    Spirv,
    Msl,
    Hlsl,
    Glsl,
}

impl Language {
    fn extension(self) -> &'static str {
        match self {
            Self::Wgsl => "wgsl",
            Self::Spirv => "spv",
            Self::Msl => "metal",
            Self::Hlsl => "hlsl",
            Self::Glsl => "comp",
        }
    }
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| format!("{text:?} is not NAME=VALUE"))?;
    Ok((name.to_owned(), value.to_owned()))
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut out = std::io::stdout().lock();
    if args.list {
        for (name, operator, family) in shaders::kernels() {
            writeln!(out, "{name:22} {operator:10} family {family}")?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(folder) = &args.all {
        return all(folder, args.to);
    }
    let Some(name) = &args.name else { return Err("name a kernel".into()) };
    let text = shaders::source(name, &args.set)?;
    let place = |line: usize| shaders::origin(name, &args.set, line).unwrap_or_default();
    let bytes = translate(&text, args.to, &place)?;
    match &args.output {
        Some(path) => std::fs::write(path, bytes).map_err(|e| format!("{}: {e}", path.display()))?,
        None if args.to == Language::Spirv && out.is_terminal() => {
            return Err("SPIR-V is binary: name a file with -o, or pipe it".into());
        }
        None => out.write_all(&bytes)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn all(folder: &Path, to: Language) -> Outcome {
    std::fs::create_dir_all(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let variants = shaders::variants()?;
    let (mut written, mut skipped) = (0, Vec::new());
    for (variant, name) in variants.iter().zip(names(&variants)) {
        let place = |line: usize| format!("{name}.wgsl:{line}");
        match translate(&variant.text, to, &place) {
            Ok(bytes) => {
                let path = folder.join(format!("{name}.{}", to.extension()));
                std::fs::write(&path, bytes).map_err(|e| format!("{}: {e}", path.display()))?;
                written += 1;
            }
            Err(error) => skipped.push(format!("{name}: {error}")),
        }
    }
    for reason in &skipped {
        eprintln!("skipped {reason}");
    }
    let not = if skipped.is_empty() { String::new() } else { format!(", {} skipped", skipped.len()) };
    eprintln!("{written} of {} variants written to {}{not}", variants.len(), folder.display());
    // naga's GLSL has neither subgroups nor 16-bit floats; elsewhere every variant must translate
    let sound = skipped.is_empty() || to == Language::Glsl;
    Ok(if sound { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// `f16` for `load_f16`
fn short(value: &str) -> &str {
    ["load_", "store_", "pack_"].iter().find_map(|p| value.strip_prefix(p)).unwrap_or(value)
}

/// File names for variants: the kernel and those of its constants that differ between its variants.
fn names(variants: &[shaders::Variant]) -> Vec<String> {
    let constants = |v: &shaders::Variant| -> Vec<(String, String)> {
        let inside = v.label.split_once('[').map_or("", |(_, rest)| rest.trim_end_matches(']'));
        inside.split(' ').filter_map(|c| pair(c).ok()).collect()
    };
    let mut values: BTreeMap<(&str, String), BTreeSet<String>> = BTreeMap::new();
    for variant in variants {
        for (name, value) in constants(variant) {
            values.entry((variant.kernel, name)).or_default().insert(value);
        }
    }
    let mut taken = BTreeSet::new();
    let mut names = Vec::new();
    for variant in variants {
        let mut stem = variant.kernel.to_owned();
        let constants = constants(variant);
        let has_bias = constants.iter().any(|(name, value)| name == "BIAS" && value == "true");
        for (name, value) in constants {
            let differs = values[&(variant.kernel, name.clone())].len() > 1;
            match value.as_str() {
                // the dummies of an absent bias
                _ if !differs || (!has_bias && name.to_ascii_lowercase().starts_with("bias")) => {}
                "false" => {}
                "true" => stem.extend(["-", &name]),
                _ => stem.extend(["-", &name, "=", short(&value)]),
            }
        }
        // a variant may leave out what another one sets
        let mut unique = stem.clone();
        let mut number = 2;
        while !taken.insert(unique.clone()) {
            unique = format!("{stem}-{number}");
            number += 1;
        }
        names.push(unique);
    }
    names
}

/// Translates as wgpu does for trusted kernels: no bounds checks, no loop counters, no zeroing.
fn translate(text: &str, to: Language, place: &dyn Fn(usize) -> String) -> Result<Vec<u8>, String> {
    if to == Language::Wgsl {
        return Ok(text.as_bytes().to_vec());
    }
    let module = naga::front::wgsl::parse_str(text).map_err(|e| {
        let at = e.location(text).map(|l| place(l.line_number as usize)).unwrap_or_default();
        format!("{at}: {}", e.message())
    })?;
    let mut validator = Validator::new(ValidationFlags::all(), Capabilities::all());
    let info = validator.validate(&module).map_err(|e| {
        let at = e.location(text).map(|l| place(l.line_number as usize)).unwrap_or_default();
        format!("{at}: {}", e.emit_to_string(text).split_whitespace().collect::<Vec<_>>().join(" "))
    })?;
    let unchecked = naga::proc::BoundsCheckPolicies {
        index: naga::proc::BoundsCheckPolicy::Unchecked,
        buffer: naga::proc::BoundsCheckPolicy::Unchecked,
        image_load: naga::proc::BoundsCheckPolicy::Unchecked,
        binding_array: naga::proc::BoundsCheckPolicy::Unchecked,
    };
    match to {
        Language::Wgsl => Ok(text.as_bytes().to_vec()),
        Language::Spirv => {
            let options = back::spv::Options {
                lang_version: (1, 3),
                bounds_check_policies: unchecked,
                force_loop_bounding: false,
                zero_initialize_workgroup_memory: back::spv::ZeroInitializeWorkgroupMemoryMode::None,
                ..Default::default()
            };
            let words = back::spv::write_vec(&module, &info, &options, None).map_err(|e| e.to_string())?;
            Ok(words.iter().flat_map(|w| w.to_le_bytes()).collect())
        }
        Language::Msl => {
            let options = back::msl::Options {
                lang_version: (3, 0),
                fake_missing_bindings: true,
                bounds_check_policies: unchecked,
                zero_initialize_workgroup_memory: false,
                force_loop_bounding: false,
                ..Default::default()
            };
            let (text, _) =
                back::msl::write_string(&module, &info, &options, &back::msl::PipelineOptions::default())
                    .map_err(|e| e.to_string())?;
            Ok(text.into_bytes())
        }
        Language::Hlsl => {
            // without subgroups and 16-bit floats the old compiler must do, too
            let code = |line: &str| line.split("//").next().unwrap_or_default().to_owned();
            let modern =
                text.lines().map(code).any(|l| l.contains("subgroup") || l.starts_with("enable f16"));
            let shader_model =
                if modern { back::hlsl::ShaderModel::V6_2 } else { back::hlsl::ShaderModel::V5_1 };
            let options = back::hlsl::Options {
                shader_model,
                fake_missing_bindings: true,
                zero_initialize_workgroup_memory: false,
                restrict_indexing: false,
                force_loop_bounding: false,
                ..Default::default()
            };
            let mut text = String::new();
            let pipeline = back::hlsl::PipelineOptions::default();
            back::hlsl::Writer::new(&mut text, &options, &pipeline)
                .write(&module, &info, None)
                .map_err(|e| e.to_string())?;
            Ok(text.into_bytes())
        }
        Language::Glsl => {
            let options =
                back::glsl::Options { version: back::glsl::Version::Desktop(430), ..Default::default() };
            let pipeline = back::glsl::PipelineOptions {
                shader_stage: naga::ShaderStage::Compute,
                entry_point: "main".into(),
                multiview: None,
            };
            let mut text = String::new();
            back::glsl::Writer::new(&mut text, &module, &info, &options, &pipeline, unchecked)
                .and_then(|mut writer| writer.write())
                .map_err(|e| e.to_string())?;
            Ok(text.into_bytes())
        }
    }
}
