//! Random calls: the kernel equals the definition, whatever the shape, mask, storage, layout and split.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{Call, close, gpu, noise};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use wgpu_attention::{DType, Mask, Partial, merge_partials};

/// The same cases everywhere, every time.
fn runner(cases: u32) -> TestRunner {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    TestRunner::new_with_rng(config, TestRng::from_seed(RngAlgorithm::ChaCha, &[7; 32]))
}

/// Options that compile to different texts: few, since each costs a compilation.
#[derive(Debug, Clone, Copy)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of the kernel's text")]
struct Kind {
    dims: [usize; 2],
    causal: bool,
    window: bool,
    chunk: bool,
    extras: bool,
    dtypes: [DType; 3],
}

fn kinds() -> Vec<Kind> {
    use DType::{Bf16, F16, F32};
    let kind =
        |dims, causal, window, chunk, extras, dtypes| Kind { dims, causal, window, chunk, extras, dtypes };
    vec![
        kind([16, 16], true, false, false, false, [F32, F32, F32]),
        kind([16, 24], true, true, false, false, [F32, F16, F16]),
        kind([8, 8], false, true, false, true, [F32, F32, F32]),
        kind([12, 12], true, false, true, true, [Bf16, Bf16, Bf16]),
        kind([5, 3], true, false, false, false, [F32, F16, F16]),
        kind([33, 7], false, false, false, false, [Bf16, F32, Bf16]),
    ]
}

fn calls() -> impl Strategy<Value = Call> {
    let sizes = (1..3usize, 1..3usize, 1..4usize, 1..40usize, 0..70usize);
    let positions = (-5..40i64, 1..20u32, 0..6u32, 1..30u32, 1..5u32);
    (prop::sample::select(kinds()), sizes, positions, any::<bool>(), any::<u32>()).prop_map(
        |(kind, (batch, heads_kv, groups, seq_q, seq_kv), (start, w, sinks, c, splits), flag, seed)| {
            let [dim_k, dim_v] = kind.dims;
            let heads_q = heads_kv * groups;
            let mut call = Call::new([batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v]);
            call.mask = Mask {
                causal: kind.causal,
                q_start: flag.then_some(start),
                k_start: if flag { sinks } else { 0 },
                window: kind.window.then_some(w),
                sink_tokens: if kind.window { sinks } else { 0 },
                chunk: kind.chunk.then_some(c),
            };
            call.dtypes = kind.dtypes;
            call.splits = Some(splits);
            call.position_major = flag;
            if kind.extras {
                call.softcap = Some(5.0);
                call.sinks = Some(noise(seed, heads_q));
                call.alibi = Some(noise(seed ^ 1, heads_q).into_iter().map(f32::abs).collect());
                call.kv_len = Some((0..batch).map(|b| (seq_kv / (b + 1)) as i32).collect());
                call.q_starts = Some((0..batch).map(|b| seq_kv as i32 - b as i32).collect());
                let bias = noise(seed ^ 2, heads_q * seq_q * seq_kv);
                call.bias = Some((bias, [1, heads_q, seq_q, seq_kv], DType::F32));
            }
            call
        },
    )
}

#[test]
fn kernels_equal_the_definition() {
    let gpu = gpu();
    runner(60)
        .run(&calls(), |call| {
            call.check_all(gpu);
            Ok(())
        })
        .unwrap();
}

#[test]
fn merged_parts_equal_the_whole() {
    let gpu = gpu();
    runner(12)
        .run(&(1..60usize, 0..60usize, 1..9usize), |(first, second, seq_q)| {
            let keys = first + second;
            let mut call = Call::new([1, 2, 2, seq_q, keys, 16, 16]);
            // late enough that the whole and the second part cover the same causal triangle
            call.mask = Mask { q_start: Some(keys as i64 - seq_q as i64), ..Mask::causal() };
            let (want, want_lse) = call.reference();
            let [q, k, v] = call.tensors(gpu);
            let part = |from: usize, count: usize| {
                let mask = Mask { k_start: from as u32, ..call.mask };
                let (k, v) = (k.narrow(2, from, count).unwrap(), v.narrow(2, from, count).unwrap());
                let out = call.attention(gpu).mask(mask).run(gpu, &q, &k, &v).unwrap();
                Partial { o: out.o, lse: out.lse.unwrap() }
            };
            let merged = merge_partials(gpu, &[part(0, first), part(first, second)]).unwrap();
            close("merged o", &merged.o.read::<f32>(gpu).unwrap(), &want, 2e-5, 0.0);
            close("merged lse", &merged.lse.unwrap().read::<f32>(gpu).unwrap(), &want_lse, 2e-5, 0.0);
            Ok(())
        })
        .unwrap();
}
