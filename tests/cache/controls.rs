//! Wrong on purpose: each fault planted in the cache's kernels must be caught by the comparisons of these tests.

use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};

use wgpu_attention::model::Storage;
use wgpu_attention::{Cache, Gpu};

use crate::common::kernels;
use crate::gpu;
use crate::toy::{Toy, softmax_only};

#[derive(Debug, Clone, Copy)]
struct Setting {
    storage: [Storage; 2],
    paged: bool,
}

/// Some steps of a ragged batch, every comparison included.
fn right(gpu: &Gpu, setting: Setting, kernel: &'static str) -> bool {
    let mut spec = softmax_only(setting.storage[0], 32, 7);
    for layer in &mut spec.layers {
        layer.rows[1].storage = setting.storage[1];
    }
    let builder = Cache::builder(&spec).tokens(60).sequences(2);
    let builder = if setting.paged { builder.pages(16, 6) } else { builder };
    let run = || {
        let mut toy = Toy::new(gpu, spec, builder.build(gpu).unwrap());
        toy.kernel = Some(kernel);
        for step in 0..4 {
            let new = |s: u32, n: u32| (0..n).map(|i| 1000 * s + 10 * step + i).collect();
            toy.feed(&[new(1, 7), new(2, step % 3)]).unwrap();
        }
        toy.check();
    };
    catch_unwind(AssertUnwindSafe(run)).is_ok()
}

#[test]
fn faults_are_caught() {
    use Storage::{F32, Fp8, Int8, Q4_0, Q8_0};
    let floats = Setting { storage: [F32; 2], paged: false };
    let pages = Setting { storage: [F32; 2], paged: true };
    let quantised = |keys, values| Setting { storage: [keys, values], paged: false };
    let faults = [
        ("a ring does not turn", "select(at, at - params.place, at >= params.place)", "at", floats),
        ("a key lies where its position says", "slot * params.k_row", "key * params.k_row", pages),
        ("sequences share one table", "b * params.pages_batch +", "0u +", pages),
        ("rows of a page keep their place in the sequence", "& ((1u << params.place) - 1u)", "& 7u", pages),
        ("sequences start alike", "table[params.starts_at + b]", "table[params.starts_at]", floats),
        (
            "sequences are equally long",
            "token < table[params.counts_at + b]",
            "token < table[params.counts_at + 1u]",
            floats,
        ),
        ("sequences share their slots", "b * params.slots +", "0u +", floats),
        ("every head writes the first", "target_row(b, token) + head", "target_row(b, token)", floats),
        ("blocks share one scale", "k[k_scales() + block / 2u]", "k[k_scales()]", quantised(Q8_0, F32)),
        ("odd blocks take the even one's scale", "(16u * (block % 2u))", "0u", quantised(Q4_0, F32)),
        ("high halves are not read", ">> ((ix / 4u) & 4u)", "", quantised(Q4_0, F32)),
        ("values are not centred", "- vec4<i32>(8)", "- vec4<i32>(7)", quantised(F32, Q4_0)),
        ("values are cut off, not rounded", "sign(value) * away", "value", quantised(Q8_0, F32)),
        (
            "a row takes its neighbour's scale",
            "ix / k_width()]",
            "ix / k_width() + 1u]",
            quantised(Int8, F32),
        ),
        ("codes lose their sign", "(codes & 0x80008000u) |", "", quantised(Fp8, F32)),
    ];
    // a panic is what is looked for: its text is not
    std::panic::set_hook(Box::new(|_| {}));
    let kernels = kernels(gpu());
    let (mut missed, mut sound) = (Vec::new(), BTreeSet::new());
    for (at, (fault, from, to, setting)) in faults.into_iter().enumerate() {
        let kernel = kernels[at % kernels.len()];
        if sound.insert((format!("{setting:?}"), kernel)) && !right(gpu(), setting, kernel) {
            missed.push(format!("wrong without a fault: {setting:?} on {kernel}"));
        }
        if right(&gpu().with_edit(from, to), setting, kernel) {
            missed.push(format!("not caught on {kernel}: {fault}"));
        }
    }
    let _ = std::panic::take_hook();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// An edit that no longer matches the text would plant nothing.
#[cfg(feature = "cli")]
#[test]
fn shared_texts_stand_once_in_every_kernel_of_the_cache() {
    for kernel in ["cache_append", "cache_quantise", "attention_tiled", "attention_subgroup"] {
        for text in ["select(at, at - params.place, at >= params.place)", "b * params.pages_batch +"] {
            assert_eq!(wgpu_attention::shaders::occurrences(kernel, text).unwrap(), 1, "{kernel}: {text}");
        }
    }
}
