//! The text of each refusal, reviewed like an interface.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

use std::fmt::Write;

use wgpu_attention::Error;

#[test]
fn messages_are_pinned() {
    let errors = [
        Error::OutOfRange {
            field: "softcap",
            value: "-5".into(),
            bound: "finite and above 0".into(),
            remedy: "leave it out for no cap",
        },
        Error::Shape {
            field: "k",
            shape: vec![1, 2, 3],
            expected: "[batch, heads, seq, dim]".into(),
            remedy: "give four axes",
        },
        Error::Heads { heads_q: 33, heads_kv: 2 },
        Error::Strides { field: "q", strides: vec![8, 1, 8], bound: "the last must be 1", remedy: "copy it" },
        Error::DType { field: "sinks", dtype: "f16", allowed: "f32" },
        Error::Options {
            field: "sink_tokens",
            value: "4".into(),
            conflict: "has no meaning without a window",
            remedy: "set window",
        },
        Error::SharedBuffer { field: "o", other: "q" },
        Error::Binding {
            field: "k",
            needed: 1 << 30,
            limit: "max_storage_buffer_binding_size",
            allowed: 128 << 20,
            split: "sequence",
        },
        Error::WorkgroupMemory {
            kernel: "attention_tiled",
            field: "kv_tile",
            value: 32,
            needed: 13_440,
            allowed: 4096,
        },
        Error::Unsupported { kernel: "attention_subgroup", needs: "subgroups".into(), has: "none".into() },
        Error::NoKernel { operator: "attention", declined: vec!["a: why".into(), "b: why not".into()] },
        Error::NoAdapter {
            wanted: "software only".into(),
            present: "none".into(),
            field: "Gpu::builder().software",
        },
        Error::DeviceRequest { adapter: "llvmpipe".into(), message: "no".into() },
        Error::Device { what: "submit".into(), message: "Validation Error".into() },
        Error::OutOfMemory { what: "tensor".into(), message: "Out of Memory".into() },
        Error::DeviceLost { message: "Destroyed".into() },
        Error::Shader {
            file: "attention_tiled.wgsl".into(),
            line: 7,
            message: "has no constant named X".into(),
        },
        Error::CaseFile { path: "a.safetensors".into(), field: "op".into(), message: "is missing".into() },
    ];
    let mut text = String::new();
    for error in errors {
        let message = error.to_string();
        assert!(!message.ends_with('.') && !message.contains("  "), "{message}");
        writeln!(text, "{message}").unwrap();
    }
    // every refusal of a call, a device, a shader or a file is among them; configurations have a file of their own
    let (source, _) = include_str!("../src/error.rs").split_once("// --- model configurations").unwrap();
    assert_eq!(source.matches("#[error(").count(), text.lines().count(), "a message is not pinned");
    insta::assert_snapshot!("messages", text);
}
