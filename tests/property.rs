//! Random calls: the kernel equals the definition, whatever the shape, mask, storage, layout and split.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{BOUND, Call, Layout, compare, gpu, kernels, noise};
use proptest::prelude::*;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};
use wgpu_attention::{DType, Mask, Partial, merge_partials};

const SEED: u8 = 7;

/// The same cases everywhere, every time.
fn check<S: Strategy>(cases: u32, strategy: &S, test: impl Fn(S::Value) -> Result<(), String>) {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 64, ..Config::default() };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &[SEED; 32]);
    let result =
        TestRunner::new_with_rng(config, rng).run(strategy, |value| test(value).map_err(TestCaseError::fail));
    result.unwrap_or_else(|e| panic!("seed {SEED}: {e}"));
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
        kind([12, 12], true, true, true, true, [Bf16, Bf16, Bf16]),
        kind([5, 3], true, false, false, false, [F32, F16, F16]),
        kind([33, 7], false, false, true, false, [Bf16, F32, Bf16]),
    ]
}

fn layouts() -> impl Strategy<Value = Layout> {
    prop::sample::select(vec![Layout::Packed, Layout::PositionMajor, Layout::Wide(4), Layout::Wide(3)])
}

/// Batch, key-value heads, groups, queries, keys: on, next to and off the boundaries of tiles.
fn sizes() -> impl Strategy<Value = (usize, usize, usize, usize, usize)> {
    let seq_q = prop_oneof![1..6usize, 1..70usize, prop::sample::select(vec![15, 16, 17, 31, 32, 33])];
    let seq_kv = prop_oneof![0..40usize, 0..200usize, prop::sample::select(vec![31, 32, 33, 64, 65, 128])];
    (1..3usize, 1..3usize, 1..5usize, seq_q, seq_kv)
}

fn calls() -> impl Strategy<Value = Call> {
    let positions = (-5..60i64, 1..40u32, 0..6u32, 1..50u32);
    let splits = prop::sample::select(vec![None, Some(1), Some(2), Some(3), Some(7), Some(33)]);
    let more = (splits, layouts(), any::<bool>(), any::<u32>());
    (prop::sample::select(kinds()), sizes(), positions, more).prop_map(
        |(
            kind,
            (batch, heads_kv, groups, seq_q, seq_kv),
            (start, w, sinks, c),
            (splits, layout, flag, seed),
        )| {
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
            (call.dtypes, call.splits, call.layout) = (kind.dtypes, splits, layout);
            if kind.extras {
                call.softcap = Some(5.0);
                call.sinks = Some(noise(seed, heads_q));
                call.alibi = Some(noise(seed ^ 1, heads_q).into_iter().map(f32::abs).collect());
                call.q_starts = Some((0..batch).map(|b| seq_kv as i32 - 3 * b as i32).collect());
                let bias = noise(seed ^ 2, heads_q * seq_q * seq_kv);
                call.bias = Some((bias, [1, heads_q, seq_q, seq_kv], DType::F32));
                with_valid_lengths(&mut call, seed);
            }
            call
        },
    )
}

/// Valid lengths below 0, within and beyond the keys there are; what lies past them is NaN.
fn with_valid_lengths(call: &mut Call, seed: u32) {
    let s = call.shape;
    let lengths: Vec<i32> =
        (0..s.batch).map(|b| (seed.rotate_left(8 * b as u32) % (s.seq_kv as u32 + 4)) as i32 - 2).collect();
    for (b, &length) in lengths.iter().enumerate() {
        let valid = (length.max(0) as usize).min(s.seq_kv);
        for h in 0..s.heads_kv {
            for (data, dim) in [(&mut call.k, s.dim_k), (&mut call.v, s.dim_v)] {
                let head = (b * s.heads_kv + h) * s.seq_kv;
                data[(head + valid) * dim..(head + s.seq_kv) * dim].fill(f32::NAN);
            }
        }
    }
    call.kv_len = Some(lengths);
}

#[test]
fn kernels_equal_the_definition() {
    let gpu = gpu();
    check(40, &calls(), |call| {
        kernels(gpu).into_iter().try_for_each(|k| Call { kernel: Some(k), ..call.clone() }.judged(gpu))
    });
}

#[test]
fn kernels_and_splits_agree_with_each_other() {
    let gpu = gpu();
    check(6, &calls(), |call| {
        let whole = Call { splits: Some(1), kernel: Some("attention_tiled"), ..call.clone() }.run(gpu);
        for kernel in kernels(gpu) {
            for splits in [Some(2), Some(9), None] {
                let other = Call { splits, kernel: Some(kernel), ..call.clone() };
                let wide = |data: &[f32]| data.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
                // 16-bit results may round to either neighbour
                let step = if call.dtypes[2] == DType::F32 { 0.0 } else { 2f64.powi(-7) };
                let (o, lse) = other.run(gpu);
                compare("o", &o, &wide(&whole.0), BOUND, step)?;
                compare("lse", &lse, &wide(&whole.1), BOUND, 0.0)?;
            }
        }
        Ok(())
    });
}

#[test]
fn a_step_after_a_prefill_equals_one_prefill() {
    let gpu = gpu();
    let masks = [
        Mask::causal(),
        Mask { window: Some(5), ..Mask::causal() },
        Mask { window: Some(4), sink_tokens: 2, ..Mask::causal() },
        Mask { chunk: Some(8), ..Mask::causal() },
    ];
    check(12, &(prop::sample::select(masks.to_vec()), 1..70usize, 1..4usize), |(mask, n, groups)| {
        // n positions at once, then one more query that sees n + 1 keys
        let all = Call { mask, ..Call::new([1, groups, 1, n + 1, n + 1, 16, 16]) };
        let (whole, whole_lse) = all.run(gpu);
        let [q, k, v] = all.tensors(gpu);
        let part = |first: usize, count: usize, keys: usize| {
            let cut = |t: &wgpu_attention::Tensor, first, count| t.narrow(2, first, count).unwrap();
            let out = all.attention(gpu);
            let out = out.run(gpu, &cut(&q, first, count), &cut(&k, 0, keys), &cut(&v, 0, keys)).unwrap();
            (out.o.read_f32(gpu).unwrap(), out.lse.unwrap().read::<f32>(gpu).unwrap())
        };
        let parts = [(0, n, part(0, n, n)), (n, 1, part(n, 1, n + 1))];
        for (first, count, (o, lse)) in parts {
            for h in 0..groups {
                let rows = |data: &[f32], d: usize| {
                    let from = (h * (n + 1) + first) * d;
                    data[from..from + count * d].iter().map(|&x| f64::from(x)).collect::<Vec<_>>()
                };
                compare("o", &o[h * count * 16..(h + 1) * count * 16], &rows(&whole, 16), BOUND, 0.0)?;
                compare("lse", &lse[h * count..(h + 1) * count], &rows(&whole_lse, 1), BOUND, 0.0)?;
            }
        }
        Ok(())
    });
}

#[test]
fn merged_parts_equal_the_whole() {
    let gpu = gpu();
    check(16, &(prop::collection::vec(0..60usize, 1..6), 1..9usize, 1..3usize), |(lengths, seq_q, batch)| {
        let keys: usize = lengths.iter().sum();
        let mut call = Call::new([batch, 2, 2, seq_q, keys, 16, 16]);
        // late enough that the whole and the last part cover the same causal triangle
        call.mask = Mask { q_start: Some(keys as i64 - seq_q as i64), ..Mask::causal() };
        let (want, want_lse) = call.reference();
        let [q, k, v] = call.tensors(gpu);
        let mut from = 0;
        let mut parts = Vec::new();
        for count in lengths {
            let mask = Mask { k_start: from as u32, ..call.mask };
            let (k, v) = (k.narrow(2, from, count).unwrap(), v.narrow(2, from, count).unwrap());
            let out = call.attention(gpu).mask(mask).run(gpu, &q, &k, &v).unwrap();
            parts.push(Partial { o: out.o, lse: out.lse.unwrap() });
            from += count;
        }
        let merged = merge_partials(gpu, &parts).unwrap();
        compare("o", &merged.o.read::<f32>(gpu).unwrap(), &want, BOUND, 0.0)?;
        compare("lse", &merged.lse.unwrap().read::<f32>(gpu).unwrap(), &want_lse, BOUND, 0.0)
    });
}
