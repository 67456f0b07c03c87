//! Kernel texts without a device: valid, complete, translatable, and as large as the host counts on.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::collections::BTreeSet;

use naga::valid::{Capabilities, ValidationFlags, Validator};
use naga::{AddressSpace, Module, TypeInner, back};
use wgpu_attention::shaders::{self, Variant};

fn capabilities(variant: &Variant) -> Capabilities {
    // unpack2x16float belongs to WebGPU, but to no default of naga
    let mut wanted = Capabilities::default() | Capabilities::SHADER_FLOAT16_IN_FLOAT32;
    if variant.family == 'S' {
        wanted |= Capabilities::SUBGROUP;
    }
    if variant.text.contains("enable f16") {
        wanted |= Capabilities::SHADER_FLOAT16;
    }
    wanted
}

fn parsed(variant: &Variant) -> (Module, naga::valid::ModuleInfo) {
    let module = naga::front::wgsl::parse_str(&variant.text)
        .unwrap_or_else(|e| panic!("{}: {}", variant.label, e.emit_to_string(&variant.text)));
    let mut validator = Validator::new(ValidationFlags::all(), capabilities(variant));
    let info = validator
        .validate(&module)
        .unwrap_or_else(|e| panic!("{}: {}", variant.label, e.emit_to_string(&variant.text)));
    (module, info)
}

#[test]
fn every_file_is_registered_and_every_kernel_has_variants() {
    let registered: BTreeSet<_> = shaders::kernels().iter().map(|k| k.0).collect();
    let files: BTreeSet<_> = shaders::files().into_iter().collect();
    assert_eq!(registered, files);
    let varied: BTreeSet<_> = shaders::variants().unwrap().iter().map(|v| v.kernel).collect();
    assert_eq!(registered, varied);
    // every file on disk is embedded, and the other way round
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders");
    let on_disk: BTreeSet<_> = std::fs::read_dir(folder)
        .unwrap()
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .filter_map(|name| name.strip_suffix(".wgsl").map(str::to_owned))
        .collect();
    assert_eq!(on_disk, files.iter().map(|f| (*f).to_owned()).collect());
}

#[test]
fn every_loader_and_option_is_used_by_a_variant() {
    let variants = shaders::variants().unwrap();
    let labels: String = variants.iter().map(|v| v.label.clone()).collect();
    for option in [
        "CAUSAL", "WINDOW", "CHUNK", "KV_LEN", "Q_STARTS", "SOFTCAP", "SINKS", "ALIBI", "BIAS", "LSE",
        "PARTIAL",
    ] {
        for value in ["true", "false"] {
            assert!(labels.contains(&format!("{option}={value}")), "{option}={value}");
        }
    }
    let common = concat!(env!("CARGO_MANIFEST_DIR"), "/shaders/common");
    for entry in std::fs::read_dir(common).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let stem = name.strip_suffix(".wgsl").unwrap();
        if stem.starts_with("load_") || stem.starts_with("store_") {
            assert!(labels.contains(&format!("={stem}")), "no variant uses {name}");
        }
    }
}

#[test]
fn variants_are_valid_and_use_no_more_than_they_say() {
    for variant in shaders::variants().unwrap() {
        let (module, _) = parsed(&variant);
        let mut layouter = naga::proc::Layouter::default();
        layouter.update(module.to_ctx()).unwrap();
        let mut workgroup = 0;
        let mut storage = 0;
        for (_, global) in module.global_variables.iter() {
            match global.space {
                AddressSpace::WorkGroup => workgroup += layouter[global.ty].size,
                AddressSpace::Storage { .. } => storage += 1,
                AddressSpace::Uniform => {
                    panic!("{}: uniform buffers rebuild kernels on old drivers", variant.label)
                }
                _ => {}
            }
        }
        assert_eq!(workgroup, variant.workgroup_bytes, "{}", variant.label);
        assert!(workgroup <= 16 << 10, "{}: {workgroup} bytes", variant.label);
        assert!(storage <= 8, "{}: {storage} storage buffers", variant.label);
        let size = module.entry_points[0].workgroup_size;
        assert!(size.iter().product::<u32>() <= 256, "{}", variant.label);
        // literals must be finite, and nothing may test for NaN
        let code = variant.text.lines().map(|l| l.split("//").next().unwrap_or_default());
        assert!(
            code.into_iter().all(|l| !l.contains("inf") && !l.contains("1e39")),
            "{}: an infinity",
            variant.label
        );
    }
}

#[test]
fn params_have_the_layout_that_the_host_writes() {
    let variants = shaders::variants().unwrap();
    for (kernel, bytes) in shaders::params_bytes() {
        let variant = variants.iter().find(|v| v.kernel == kernel).unwrap();
        let (module, _) = parsed(variant);
        let (_, params) = module.types.iter().find(|(_, t)| t.name.as_deref() == Some("Params")).unwrap();
        let TypeInner::Struct { span, members } = &params.inner else { panic!("Params is no struct") };
        assert_eq!(*span as usize, bytes, "{kernel}");
        // 32-bit words without gaps, as repr(C) lays them out
        for (ix, member) in members.iter().enumerate() {
            assert_eq!(member.offset as usize, ix * 4, "{kernel}: {:?}", member.name);
        }
    }
}

#[test]
fn variants_translate_to_every_language() {
    for variant in shaders::variants().unwrap() {
        let (module, info) = parsed(&variant);
        let words = back::spv::write_vec(&module, &info, &back::spv::Options::default(), None);
        assert!(words.is_ok(), "{}: SPIR-V {words:?}", variant.label);
        let options =
            back::msl::Options { lang_version: (3, 0), fake_missing_bindings: true, ..Default::default() };
        let msl = back::msl::write_string(&module, &info, &options, &back::msl::PipelineOptions::default());
        assert!(msl.is_ok(), "{}: MSL {:?}", variant.label, msl.err());
        let modern = variant.family == 'S' || variant.text.contains("enable f16");
        // the old compiler of Direct3D 12, and the one that knows subgroups and half floats
        let models = [back::hlsl::ShaderModel::V5_1, back::hlsl::ShaderModel::V6_2];
        for shader_model in models.into_iter().skip(usize::from(modern)) {
            let options =
                back::hlsl::Options { shader_model, fake_missing_bindings: true, ..Default::default() };
            let mut text = String::new();
            let pipeline = back::hlsl::PipelineOptions::default();
            let hlsl = back::hlsl::Writer::new(&mut text, &options, &pipeline).write(&module, &info, None);
            assert!(hlsl.is_ok(), "{}: HLSL {shader_model:?} {:?}", variant.label, hlsl.err());
        }
        // naga's GLSL has no 16-bit floats
        if !variant.text.contains("enable f16") {
            let options =
                back::glsl::Options { version: back::glsl::Version::Desktop(430), ..Default::default() };
            let pipeline = back::glsl::PipelineOptions {
                shader_stage: naga::ShaderStage::Compute,
                entry_point: "main".into(),
                multiview: None,
            };
            let policies = naga::proc::BoundsCheckPolicies::default();
            let mut text = String::new();
            let glsl = back::glsl::Writer::new(&mut text, &module, &info, &options, &pipeline, policies)
                .and_then(|mut writer| writer.write().map(|_| ()));
            assert!(glsl.is_ok(), "{}: GLSL {glsl:?}", variant.label);
        }
    }
}

#[test]
fn files_on_disk_are_valid_wgsl_with_their_own_constants() {
    for (kernel, _, family) in shaders::kernels() {
        let text = shaders::source(kernel, &[]).unwrap();
        let variant = Variant { kernel, family, label: kernel.into(), text, workgroup_bytes: 0 };
        parsed(&variant);
    }
}

#[test]
fn unknown_names_are_refused_with_their_file() {
    let set = |name: &str| vec![(name.to_owned(), "1".to_owned())];
    let error = shaders::source("attention_tiled", &set("DIM_KK")).unwrap_err().to_string();
    assert!(error.starts_with("shaders/attention_tiled.wgsl:1: ") && error.contains("DIM_KK"), "{error}");
    let error = shaders::source("attention", &[]).unwrap_err().to_string();
    assert!(error.contains("attention_tiled"), "{error}");
    let set = vec![("k".to_owned(), "load_f64".to_owned())];
    let error = shaders::source("attention_tiled", &set).unwrap_err().to_string();
    assert!(error.contains("shaders/common/load_f64.wgsl"), "{error}");
}
