//! Layers that keep a state, against their definitions: any length, any split, ragged batches, planted faults.
#![cfg(feature = "cli")]
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use common::{BOUND, close, compare, gpu, noise};
use wgpu_attention::linear::{
    CausalConv1d, ConvOutput, GatedNorm, LightningAttention, LightningOutput, ScanInputs, ScanOutput,
    SelectiveScan, Ssd, SsdInputs, SsdOutput,
};
use wgpu_attention::reference::{
    self, ConvCase, LightningCase, NormCase, ScanCase, SsdCase, causal_conv1d, lightning_attention,
    selective_scan, ssd,
};
use wgpu_attention::{DType, Error, Gpu, Tensor, shaders};

fn up(data: &[f32], shape: &[usize]) -> Tensor {
    Tensor::from_slice(gpu(), data, shape).unwrap()
}

fn poison(shape: &[usize]) -> Tensor {
    up(&vec![f32::NAN; shape.iter().product()], shape)
}

fn recorded(gpu: &Gpu, record: impl FnOnce(&mut wgpu::CommandEncoder) -> wgpu_attention::Result<()>) {
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    record(&mut encoder).unwrap();
    gpu.submit(encoder).unwrap();
}

/// Numbers in `low..high`.
fn between(seed: u32, count: usize, low: f32, high: f32) -> Vec<f32> {
    noise(seed, count).into_iter().map(|x| low + (high - low) * (x + 1.0) / 2.0).collect()
}

/// Compares where the definition says something: tokens of no sequence are NaN there.
fn agree(what: &str, got: &[f32], want: &[f64]) -> Result<(), String> {
    assert_eq!(got.len(), want.len(), "{what}");
    let live: Vec<_> = got.iter().zip(want).filter(|(_, w)| !w.is_nan()).map(|(&g, &w)| (g, w)).collect();
    let (got, want): (Vec<_>, Vec<_>) = live.into_iter().unzip();
    compare(what, &got, &want, BOUND, 0.0)
}

/// A lightning call with its data in main memory.
struct Lightning {
    sizes: [usize; 5],
    slope: Vec<f32>,
    initial: Option<Vec<f32>>,
    sequences: Option<(Vec<i32>, Vec<i32>)>,
}

impl Lightning {
    fn new(sizes: [usize; 5]) -> Self {
        let [batch, heads, _, dim_k, dim_v] = sizes;
        let slope = between(9, heads, 0.01, 0.9);
        Self { sizes, slope, initial: Some(noise(4, batch * heads * dim_k * dim_v)), sequences: None }
    }

    fn data(&self) -> [Vec<f32>; 3] {
        let [batch, heads, tokens, dim_k, dim_v] = self.sizes;
        let rows = batch * heads * tokens;
        [noise(1, rows * dim_k), noise(2, rows * dim_k), noise(3, rows * dim_v)]
    }

    fn state_shape(&self) -> Vec<usize> {
        let [batch, heads, _, dim_k, dim_v] = self.sizes;
        vec![self.sequences.as_ref().map_or(batch, |s| s.0.len()), heads, dim_k, dim_v]
    }

    fn run(&self, gpu: &Gpu, path: &str) -> (Vec<f32>, Vec<f32>) {
        let [batch, heads, tokens, dim_k, dim_v] = self.sizes;
        let [q, k, v] = self.data();
        let (q, k) = (up(&q, &[batch, heads, tokens, dim_k]), up(&k, &[batch, heads, tokens, dim_k]));
        let v = up(&v, &[batch, heads, tokens, dim_v]);
        let out =
            LightningOutput { o: poison(&[batch, heads, tokens, dim_v]), state: poison(&self.state_shape()) };
        let mut call = LightningAttention::new(&up(&self.slope, &[heads])).kernel(path);
        if let Some(initial) = &self.initial {
            call = call.initial_state(&up(initial, &self.state_shape()));
        }
        if let Some((starts, lengths)) = &self.sequences {
            let n = [starts.len()];
            call = call.sequences(
                &Tensor::from_slice(gpu, starts, n).unwrap(),
                &Tensor::from_slice(gpu, lengths, n).unwrap(),
            );
        }
        recorded(gpu, |encoder| call.record(gpu, encoder, [&q, &k, &v], &out));
        (out.o.read(gpu).unwrap(), out.state.read(gpu).unwrap())
    }

    fn judged(&self, gpu: &Gpu, path: &str) -> Result<(), String> {
        let [q, k, v] = self.data();
        let (o, state) = self.run(gpu, path);
        let (want, want_state) = lightning_attention(&LightningCase {
            sizes: self.sizes,
            q: &q,
            k: &k,
            v: &v,
            slope: &self.slope,
            initial: self.initial.as_deref(),
            sequences: self.sequences.as_ref().map(|(s, l)| (s.as_slice(), l.as_slice())),
        });
        agree("o", &o, &want).and_then(|()| agree("state", &state, &want_state))
    }
}

const LINEAR_PATHS: [&str; 2] = ["linear_step", "linear_chunk"];
const SCAN_PATHS: [&str; 2] = ["selective_scan", "selective_scan_chunk"];

#[test]
fn lightning_takes_any_length_and_width() {
    for sizes in [
        [2, 3, 0, 8, 8],
        [1, 2, 1, 7, 5],
        [2, 1, 3, 16, 65],
        [1, 2, 65, 65, 3],
        [1, 1, 200, 64, 64],
        [1, 1, 20, 256, 9],
    ] {
        for path in LINEAR_PATHS {
            Lightning::new(sizes).judged(gpu(), path).unwrap_or_else(|why| panic!("{sizes:?} {path}: {why}"));
            if sizes[2] != 65 {
                continue; // each size compiles anew without a state
            }
            let fresh = Lightning { initial: None, ..Lightning::new(sizes) };
            fresh.judged(gpu(), path).unwrap_or_else(|why| panic!("{sizes:?} {path} fresh: {why}"));
        }
    }
}

#[test]
fn strong_and_weak_decays_are_right() {
    for slope in [30.0, 200.0, 2661.0, 0.0, 9.17e-6] {
        for path in LINEAR_PATHS {
            let call = Lightning { slope: vec![slope; 2], ..Lightning::new([1, 2, 150, 8, 8]) };
            call.judged(gpu(), path).unwrap_or_else(|why| panic!("{slope} {path}: {why}"));
        }
    }
}

#[test]
fn ragged_sequences_are_each_their_own_run() {
    for path in LINEAR_PATHS {
        let packed = Lightning {
            initial: Some(noise(4, 4 * 2 * 8 * 6)),
            sequences: Some((vec![0, 3, 10, 11], vec![3, 7, 1, 64])),
            ..Lightning::new([1, 2, 80, 8, 6])
        };
        packed.judged(gpu(), path).unwrap();
        let padded = Lightning {
            sequences: Some((vec![5, 0, 70], vec![66, 0, 900])),
            ..Lightning::new([3, 2, 71, 8, 6])
        };
        padded.judged(gpu(), path).unwrap();
    }
}

#[test]
fn lightning_of_very_many_tokens() {
    for tokens in [70_000, 200_000] {
        for path in LINEAR_PATHS {
            let call = Lightning { slope: vec![0.05], ..Lightning::new([1, 1, tokens, 4, 4]) };
            call.judged(gpu(), path).unwrap_or_else(|why| panic!("{tokens} {path}: {why}"));
        }
    }
}

#[test]
fn every_split_of_lightning_equals_the_whole() {
    let gpu = gpu();
    let [tokens, dim] = [130, 8];
    let [q, k, v] = [1, 2, 3].map(|seed| up(&noise(seed, tokens * dim), &[1, 1, tokens, dim]));
    let call = LightningAttention::new(&up(&[0.1], &[1]));
    let whole = call.clone().kernel("linear_step").run(gpu, &q, &k, &v).unwrap();
    let (o, state): (Vec<f32>, Vec<f32>) = (whole.o.read(gpu).unwrap(), whole.state.read(gpu).unwrap());
    let wide = |x: &[f32]| x.iter().map(|&x| f64::from(x)).collect::<Vec<_>>();
    for split in 0..=tokens {
        let part = |t: &Tensor, first, count| t.narrow(2, first, count).unwrap();
        let a = call.run(gpu, &part(&q, 0, split), &part(&k, 0, split), &part(&v, 0, split)).unwrap();
        let rest = tokens - split;
        let next = call.clone().initial_state(&a.state).kernel(LINEAR_PATHS[split % 2]);
        let b =
            next.run(gpu, &part(&q, split, rest), &part(&k, split, rest), &part(&v, split, rest)).unwrap();
        let got: Vec<f32> = [a.o.read::<f32>(gpu).unwrap(), b.o.read(gpu).unwrap()].concat();
        close("o", &got, &wide(&o), BOUND, 0.0);
        close("state", &b.state.read::<f32>(gpu).unwrap(), &wide(&state), BOUND, 0.0);
    }
}

#[test]
fn going_back_to_a_kept_state_is_exact() {
    let gpu = gpu();
    let (tokens, dim) = (9, 8);
    let [q, k, v] = [1, 2, 3].map(|seed| up(&noise(seed, tokens * dim), &[1, 1, tokens, dim]));
    let call = LightningAttention::new(&up(&[0.1], &[1]))
        .initial_state(&up(&noise(4, dim * dim), &[1, 1, dim, dim]));
    let kept = call.clone().keep_states().run(gpu, &q, &k, &v).unwrap();
    let slots: Vec<f32> = kept.state.read(gpu).unwrap();
    for j in 0..=tokens {
        let part = |t: &Tensor| t.narrow(2, 0, j).unwrap();
        let some = call.clone().kernel("linear_step").run(gpu, &part(&q), &part(&k), &part(&v)).unwrap();
        let state: Vec<f32> = some.state.read(gpu).unwrap();
        assert_eq!(slots[j * dim * dim..][..dim * dim], state, "after {j}");
    }
    // in place: the state given is the state written
    let held = up(&noise(4, dim * dim), &[1, 1, dim, dim]);
    let out = LightningOutput { o: poison(&[1, 1, tokens, dim]), state: held.clone() };
    recorded(gpu, |e| {
        call.clone().initial_state(&held).kernel("linear_step").record(gpu, e, [&q, &k, &v], &out)
    });
    assert_eq!(held.read::<f32>(gpu).unwrap(), slots[tokens * dim * dim..]);
}

/// SSD with every option, `[batch, tokens, heads, groups, dim, dim_state]`.
fn ssd_judged(gpu: &Gpu, sizes: [usize; 6], path: &str, ragged: bool) -> Result<(), String> {
    let [batch, tokens, heads, groups, dim, dim_state] = sizes;
    let (x, b) = (noise(1, batch * tokens * heads * dim), noise(2, batch * tokens * groups * dim_state));
    let (c, dt) = (noise(3, b.len()), between(4, batch * tokens * heads, -2.0, 1.0));
    let (a, skip, bias) = (between(5, heads, -2.0, -0.1), noise(6, heads), noise(7, heads));
    let sequences = ragged.then(|| (vec![2; batch], vec![tokens as i32 - 3; batch]));
    let state_shape = [batch, heads, dim, dim_state];
    let initial = noise(8, state_shape.iter().product());
    let (y, state) = ssd(&SsdCase {
        sizes,
        x: &x,
        dt: &dt,
        a: &a,
        b: &b,
        c: &c,
        skip: Some(&skip),
        dt_bias: Some(&bias),
        dt_limit: [0.05, 1.0],
        initial: Some(&initial),
        sequences: sequences.as_ref().map(|(s, l): &(Vec<i32>, Vec<i32>)| (s.as_slice(), l.as_slice())),
    });
    let mut call = Ssd::new(&up(&a, &[heads]))
        .skip(&up(&skip, &[heads]))
        .dt_bias(&up(&bias, &[heads]))
        .dt_limit(0.05, 1.0)
        .initial_state(&up(&initial, &state_shape))
        .kernel(path);
    if let Some((starts, lengths)) = &sequences {
        call = call.sequences(
            &Tensor::from_slice(gpu, starts, [batch]).unwrap(),
            &Tensor::from_slice(gpu, lengths, [batch]).unwrap(),
        );
    }
    let out = SsdOutput { y: poison(&[batch, tokens, heads, dim]), state: poison(&state_shape) };
    let (x, dt) = (up(&x, &[batch, tokens, heads, dim]), up(&dt, &[batch, tokens, heads]));
    let (b, c) = (up(&b, &[batch, tokens, groups, dim_state]), up(&c, &[batch, tokens, groups, dim_state]));
    recorded(gpu, |e| call.record(gpu, e, &SsdInputs { x: &x, dt: &dt, b: &b, c: &c }, &out));
    agree("y", &out.y.read::<f32>(gpu).unwrap(), &y)?;
    agree("state", &out.state.read::<f32>(gpu).unwrap(), &state)
}

#[test]
fn ssd_takes_any_length_and_width() {
    for sizes in [[2, 0, 2, 1, 4, 4], [2, 1, 4, 2, 7, 5], [1, 65, 4, 2, 9, 16], [1, 131, 2, 1, 64, 33]] {
        for path in LINEAR_PATHS {
            for ragged in [false, sizes[1] > 3] {
                ssd_judged(gpu(), sizes, path, ragged)
                    .unwrap_or_else(|why| panic!("{sizes:?} {path}: {why}"));
            }
        }
    }
}

/// `[batch, tokens, channels, dim]`
fn scan_judged(gpu: &Gpu, sizes: [usize; 4], path: &str, bias: bool, ragged: bool) -> Result<(), String> {
    let [batch, tokens, channels, dim] = sizes;
    let (x, b) = (noise(1, batch * tokens * channels), noise(2, batch * tokens * dim));
    let (c, dt) = (noise(3, b.len()), between(4, x.len(), 0.01, 1.0));
    let (a, skip, dt_bias) =
        (between(5, channels * dim, -3.0, -0.05), noise(6, channels), noise(7, channels));
    let initial = noise(8, batch * channels * dim);
    let sequences = ragged.then(|| (vec![1; batch], vec![tokens as i32 - 2; batch]));
    let (y, state) = selective_scan(&ScanCase {
        sizes,
        x: &x,
        dt: &dt,
        a: &a,
        b: &b,
        c: &c,
        skip: &skip,
        dt_bias: bias.then_some(&dt_bias),
        initial: Some(&initial),
        sequences: sequences.as_ref().map(|(s, l): &(Vec<i32>, Vec<i32>)| (s.as_slice(), l.as_slice())),
    });
    let mut call = SelectiveScan::new(&up(&a, &[channels, dim]), &up(&skip, &[channels]))
        .initial_state(&up(&initial, &[batch, channels, dim]))
        .kernel(path);
    if bias {
        call = call.dt_bias(&up(&dt_bias, &[channels]));
    }
    if let Some((starts, lengths)) = &sequences {
        call = call.sequences(
            &Tensor::from_slice(gpu, starts, [batch]).unwrap(),
            &Tensor::from_slice(gpu, lengths, [batch]).unwrap(),
        );
    }
    let out = ScanOutput { y: poison(&[batch, tokens, channels]), state: poison(&[batch, channels, dim]) };
    let (x, dt) = (up(&x, &[batch, tokens, channels]), up(&dt, &[batch, tokens, channels]));
    let (b, c) = (up(&b, &[batch, tokens, dim]), up(&c, &[batch, tokens, dim]));
    recorded(gpu, |e| call.record(gpu, e, &ScanInputs { x: &x, dt: &dt, b: &b, c: &c }, &out));
    agree("y", &out.y.read::<f32>(gpu).unwrap(), &y)?;
    agree("state", &out.state.read::<f32>(gpu).unwrap(), &state)
}

#[test]
fn selective_scan_takes_any_length_and_width() {
    for sizes in [[2, 0, 5, 4], [2, 1, 70, 5], [1, 131, 33, 16], [2, 67, 3, 64]] {
        for path in SCAN_PATHS {
            for on in [false, sizes[1] > 2] {
                scan_judged(gpu(), sizes, path, on, on)
                    .unwrap_or_else(|why| panic!("{sizes:?} {path}: {why}"));
            }
        }
    }
}

#[test]
fn selective_scan_of_very_many_tokens() {
    for tokens in [70_000, 200_000] {
        for path in SCAN_PATHS {
            scan_judged(gpu(), [1, tokens, 2, 4], path, false, false)
                .unwrap_or_else(|why| panic!("{tokens} {path}: {why}"));
        }
    }
}

fn conv_judged(gpu: &Gpu, sizes: [usize; 4], sequences: Option<&(Vec<i32>, Vec<i32>)>) -> Result<(), String> {
    let [batch, tokens, channels, taps] = sizes;
    let (x, w, bias) = (noise(1, batch * tokens * channels), noise(2, channels * taps), noise(3, channels));
    let count = sequences.map_or(batch, |s| s.0.len());
    let initial = noise(4, count * channels * (taps - 1));
    let (y, state) = causal_conv1d(&ConvCase {
        tokens,
        channels,
        x: &x,
        w: &w,
        bias: Some(&bias),
        silu: true,
        initial: Some(&initial),
        sequences: sequences.map(|(s, l)| (s.as_slice(), l.as_slice())),
    });
    let mut call = CausalConv1d::silu()
        .bias(&up(&bias, &[channels]))
        .initial_state(&up(&initial, &[count, channels, taps - 1]));
    if let Some((starts, lengths)) = sequences {
        call = call.sequences(
            &Tensor::from_slice(gpu, starts, [count]).unwrap(),
            &Tensor::from_slice(gpu, lengths, [count]).unwrap(),
        );
    }
    let out =
        ConvOutput { y: poison(&[batch, tokens, channels]), state: poison(&[count, channels, taps - 1]) };
    let (x, w) = (up(&x, &[batch, tokens, channels]), up(&w, &[channels, taps]));
    recorded(gpu, |e| call.record(gpu, e, &x, &w, &out));
    agree("y", &out.y.read::<f32>(gpu).unwrap(), &y)?;
    agree("state", &out.state.read::<f32>(gpu).unwrap(), &state)
}

#[test]
fn convolutions_take_any_length() {
    for sizes in [[2, 1, 5, 4], [1, 2, 70, 4], [3, 65, 7, 2], [1, 9, 3, 1], [1, 5, 3, 9]] {
        conv_judged(gpu(), sizes, None).unwrap_or_else(|why| panic!("{sizes:?}: {why}"));
    }
    conv_judged(gpu(), [1, 80, 5, 4], Some(&(vec![0, 3, 10, 11], vec![3, 7, 1, 64]))).unwrap();
    conv_judged(gpu(), [3, 20, 5, 4], Some(&(vec![5, 0, 19], vec![8, 0, 900]))).unwrap();
    conv_judged(gpu(), [1, 200_000, 3, 4], None).unwrap();
}

/// Chunks 1+1+1+5, 2+6 and 8: the same outputs and states, to the bit; and a kept state is the state of a shorter call.
#[test]
fn every_split_of_a_convolution_equals_the_whole() {
    let gpu = gpu();
    let (tokens, channels, taps) = (8, 5, 4);
    let (x, w) =
        (up(&noise(1, tokens * channels), &[1, tokens, channels]), up(&noise(2, 20), &[channels, taps]));
    let whole = CausalConv1d::silu().run(gpu, &x, &w).unwrap();
    let kept = CausalConv1d::silu().keep_states().run(gpu, &x, &w).unwrap();
    let slots: Vec<f32> = kept.state.read(gpu).unwrap();
    for chunks in [vec![1, 1, 1, 5], vec![2, 6], vec![8], vec![0, 3, 5]] {
        let (mut at, mut state, mut y) = (0, up(&[0.0; 15], &[1, channels, taps - 1]), Vec::new());
        for n in chunks {
            let part = x.narrow(1, at, n).unwrap();
            let out = CausalConv1d::silu().initial_state(&state).run(gpu, &part, &w).unwrap();
            y.extend(out.y.read::<f32>(gpu).unwrap());
            (at, state) = (at + n, out.state);
            assert_eq!(state.read::<f32>(gpu).unwrap(), slots[at * 15..][..15], "after {at}");
        }
        assert_eq!(y, whole.y.read::<f32>(gpu).unwrap());
    }
}

#[test]
fn gated_norms_in_both_orders() {
    let gpu = gpu();
    for (rows, width, groups) in [(3, 5, 1), (7, 128, 2), (2, 300, 3), (1030, 4, 1)] {
        let (x, z, w) = (noise(1, rows * width), between(2, rows * width, -90.0, 90.0), noise(3, width));
        for (before, silu) in [(false, false), (false, true), (true, false), (true, true)] {
            let want =
                reference::gated_norm(&NormCase { x: &x, z: &z, w: &w, groups, eps: 1e-5, before, silu });
            let norm = if before { GatedNorm::before() } else { GatedNorm::after() }.eps(1e-5).groups(groups);
            let norm = if silu { norm.silu() } else { norm.sigmoid() };
            let (x, z, w) = (up(&x, &[rows, width]), up(&z, &[rows, width]), up(&w, &[width]));
            let y = poison(&[rows, width]);
            recorded(gpu, |e| norm.record(gpu, e, [&x, &z, &w], &y));
            close("y", &y.read::<f32>(gpu).unwrap(), &want, BOUND, 0.0);
        }
    }
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let gpu = gpu();
    let (q, slope) = (up(&noise(1, 24), &[1, 2, 3, 4]), up(&[0.1, 0.2], &[2]));
    let call = LightningAttention::new(&slope);
    let refused = |result: Result<LightningOutput, Error>| result.unwrap_err().to_string();
    let short = q.narrow(2, 0, 2).unwrap();
    assert!(refused(call.run(gpu, &q, &short, &q)).starts_with("k has shape"));
    assert!(refused(call.clone().kernel("linear").run(gpu, &q, &q, &q)).starts_with("kernel is linear"));
    let both = call.clone().keep_states().kernel("linear_chunk").run(gpu, &q, &q, &q);
    assert!(refused(both).starts_with("kernel = linear_chunk"));
    assert!(
        refused(call.clone().output(DType::I32).run(gpu, &q, &q, &q)).starts_with("output is stored as i32")
    );
    let state = up(&noise(2, 16), &[1, 1, 4, 4]);
    assert!(
        refused(call.clone().initial_state(&state).run(gpu, &q, &q, &q))
            .starts_with("initial_state has shape")
    );
    let wide = up(&noise(3, 2 * 257), &[1, 2, 1, 257]);
    assert!(refused(call.run(gpu, &wide, &wide, &wide)).starts_with("dim_k is 257"));
    let x = up(&noise(4, 24), &[2, 3, 4]);
    let taps = up(&noise(5, 4 * 65), &[4, 65]);
    assert!(CausalConv1d::silu().run(gpu, &x, &taps).unwrap_err().to_string().starts_with("taps is 65"));
    let w = up(&noise(5, 4), &[4]);
    let uneven = GatedNorm::before().groups(3).run(gpu, &x, &x, &w).unwrap_err().to_string();
    assert!(uneven.starts_with("groups is 3"), "{uneven}");
    let out = LightningOutput { o: q.clone(), state: poison(&[1, 2, 4, 4]) };
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let shared = call.record(gpu, &mut encoder, [&q, &q, &q], &out).unwrap_err();
    assert!(matches!(shared, Error::SharedBuffer { field: "o", .. }));
}

/// Kernel, fault, text, replacement.
const FAULTS: [(&str, &str, &str, &str); 12] = [
    (
        "linear_step",
        "decay after the write",
        "fma(kq[e], value, fma(old, about.x, old * about.y))",
        "fma(old + kq[e] * value, about.x, (old + kq[e] * value) * about.y)",
    ),
    (
        "linear_step",
        "the state is transposed",
        "min(row, DIM_K - 1u) * params.state_row",
        "min(row, DIM_K - 1u) * params.state_column",
    ),
    (
        "linear_step",
        "a tail is one token short",
        "let live = min(params.token_count, length - first);",
        "let live = min(params.token_count, max(length - first, 1u) - 1u);",
    ),
    (
        "linear_step",
        "heads are tiled, not grouped",
        "head / params.groups * params.k_head",
        "head % 2u * params.k_head",
    ),
    ("linear_step", "writes are not weighted by dt", "about.z * v_load1", "v_load1"),
    (
        "linear_step",
        "lengths are ignored",
        "return u32(clamp(bitcast<i32>(table[params.lengths_at + sequence]), 0, i32(params.tokens - start)));",
        "return params.tokens - start;",
    ),
    (
        "chunk_states",
        "a chunk's decay is dropped",
        "s = added + fma(s, decay.x, s * decay.y);",
        "s = added + s;",
    ),
    (
        "chunk_states",
        "a chunk starts from its own end",
        "chunk_state[at] = s;",
        "chunk_state[at] = s + added;",
    ),
    ("selective_scan", "the decay's rate is dropped", "decay_of(step * a[i * 4u + e])", "decay_of(-step)"),
    ("causal_conv1d", "taps run backwards", "j * params.w_tap", "back * params.w_tap"),
    (
        "conv_tail",
        "the tail is one token late",
        "start + n + j + 1u - params.taps",
        "start + n + j - min(params.taps, n + j)",
    ),
    ("gated_norm", "the gate is dropped", "value *= gate(at);", ""),
];

#[test]
fn faults_are_caught() {
    for (kernel, fault, from, to) in FAULTS {
        assert_eq!(shaders::occurrences(kernel, from).unwrap(), 1, "{kernel}: {fault}: {from:?}");
        let judged = |gpu: &Gpu| -> Result<(), String> {
            match kernel {
                "linear_step" | "chunk_states" => ssd_judged(gpu, [1, 131, 4, 2, 9, 8], "linear_chunk", true),
                "selective_scan" => scan_judged(gpu, [1, 131, 5, 4], "selective_scan_chunk", false, true),
                "gated_norm" => {
                    let (x, z, w) = (noise(1, 20), noise(2, 20), noise(3, 5));
                    let want = reference::gated_norm(&NormCase {
                        x: &x,
                        z: &z,
                        w: &w,
                        groups: 1,
                        eps: 1e-6,
                        before: true,
                        silu: true,
                    });
                    let (x, z, w) = (up(&x, &[4, 5]), up(&z, &[4, 5]), up(&w, &[5]));
                    let y = GatedNorm::before().run(gpu, &x, &z, &w).unwrap();
                    agree("y", &y.read::<f32>(gpu).unwrap(), &want)
                }
                _ => conv_judged(gpu, [2, 9, 5, 4], None),
            }
        };
        judged(gpu()).unwrap_or_else(|why| panic!("wrong without a fault: {kernel}: {why}"));
        assert!(judged(&gpu().with_edit(from, to)).is_err(), "not caught on {kernel}: {fault}");
    }
}
