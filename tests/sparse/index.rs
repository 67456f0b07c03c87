//! The indexer against its definition.

use wgpu_attention::reference::{self, IndexCase};
use wgpu_attention::{DType, Error, Gpu, IndexKeys, Indexer, Prefix, Tensor};

use super::{causal, families, gpu, tensor};
use crate::common::{BOUND, compare, noise};

fn kernel(subgroups: bool) -> &'static str {
    if subgroups { "indexer_subgroup" } else { "indexer" }
}

/// `[batch, seq_q, heads, dim, seq_kv]` on one kernel, over NaN; keys that no query sees hold NaN.
pub(super) fn judged(
    gpu: &Gpu,
    subgroups: bool,
    shape: [usize; 5],
    dtype: DType,
    visible: &Prefix,
    seen: &[usize],
) -> Result<(), String> {
    let [batch, seq_q, heads, dim, seq_kv] = shape;
    let rounded = |data: Vec<f32>| crate::common::rounded(&data, dtype);
    let q = rounded(noise(1, batch * seq_q * heads * dim));
    let mut k = rounded(noise(2, batch * seq_kv * dim));
    let w = noise(3, batch * seq_q * heads);
    for b in 0..batch {
        let most = seen[b * seq_q..][..seq_q].iter().max().copied().unwrap_or(0);
        k[(b * seq_kv + most) * dim..(b + 1) * seq_kv * dim].fill(f32::NAN);
    }
    let case = IndexCase { shape, q: &q, k: &k, w: &w, scale: 0.25, seen };
    let want = reference::index_scores(&case);
    let on_device = [
        tensor(&q, &[batch, seq_q, heads, dim], dtype),
        tensor(&k, &[batch, seq_kv, dim], dtype),
        tensor(&w, &[batch, seq_q, heads], DType::F32),
    ];
    let [q, k, w] = &on_device;
    let scores = tensor(&vec![f32::NAN; want.len()], &[batch, seq_q, seq_kv], DType::F32);
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    let indexer = Indexer::new(visible.clone()).scale(0.25).kernel(kernel(subgroups));
    indexer.record(gpu, &mut encoder, q, k, w, &scores).unwrap();
    gpu.submit(encoder).unwrap();
    let got: Vec<f32> = scores.read(gpu).unwrap();
    compare("scores", &got, &want, BOUND, 0.0).map_err(|e| format!("{shape:?} {subgroups}: {e}"))
}

fn check(shape: [usize; 5], dtype: DType, visible: &Prefix, seen: &[usize]) {
    for subgroups in families() {
        judged(gpu(), subgroups, shape, dtype, visible, seen).unwrap();
    }
}

#[test]
fn any_heads_and_widths() {
    for shape in [
        [1, 1, 1, 4, 5],
        [1, 3, 2, 2, 70],
        [1, 2, 5, 7, 33],
        [2, 3, 64, 128, 130],
        [1, 2, 40, 32, 65],
        [1, 2, 65, 20, 100],
        [1, 1, 3, 576, 40],
    ] {
        let [batch, seq_q, .., seq_kv] = shape;
        check(shape, DType::F32, &Prefix::all(), &vec![seq_kv; batch * seq_q]);
    }
}

#[test]
fn sixteen_bit_storage() {
    for dtype in [DType::F16, DType::Bf16] {
        for shape in [[1, 2, 8, 128, 70], [1, 2, 3, 6, 70]] {
            check(shape, dtype, &Prefix::all(), &[70, 70]);
        }
    }
}

#[test]
fn hidden_keys_score_zero_and_are_not_read() {
    for (seq_q, seq_kv, q_start) in [(70, 70, 0), (9, 30, -4), (3, 1100, 1050), (4, 10, 50)] {
        let seen = causal(2, seq_q, seq_kv, q_start);
        check([2, seq_q, 4, 32, seq_kv], DType::F32, &Prefix::causal().q_start(q_start), &seen);
    }
    let lengths = Tensor::from_slice(gpu(), &[0_i32, 50], [2]).unwrap();
    check([2, 2, 4, 8, 70], DType::F32, &Prefix::all().kv_len(&lengths), &[0, 0, 50, 50]);
}

/// The index over 131,072 tokens, of which the last decide (G0).
#[test]
fn long_contexts() {
    let (heads, dim, seq_kv) = (4, 16, 131_072);
    check([1, 1, heads, dim, seq_kv], DType::F16, &Prefix::causal(), &[seq_kv]);
}

/// All 256 codes of the 8-bit float but the two NaNs, with factors.
#[test]
fn eight_bit_keys() {
    let decode = |code: u8| {
        let (exponent, mantissa) = (i32::from(code >> 3 & 15), f32::from(code & 7));
        let size =
            if exponent == 0 { mantissa / 512.0 } else { (1.0 + mantissa / 8.0) * 2f32.powi(exponent - 7) };
        if code < 128 { size } else { -size }
    };
    let codes: Vec<u8> = (0..=255).filter(|c| c & 127 != 127).chain([0, 0]).collect();
    let (dim, seq_kv) = (8, codes.len() / 8);
    let scale: Vec<f32> = noise(4, seq_kv).iter().map(|x| x.abs() + 0.1).collect();
    let k: Vec<f32> = codes.iter().enumerate().map(|(i, &c)| decode(c) * scale[i / dim]).collect();
    let (q, w) = (noise(1, 2 * 3 * dim), noise(2, 6));
    let case =
        IndexCase { shape: [1, 2, 3, dim, seq_kv], q: &q, k: &k, w: &w, scale: 1.0, seen: &[seq_kv; 2] };
    let want = reference::index_scores(&case);
    let words: Vec<u32> = codes.chunks(4).map(|c| u32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
    let keys = IndexKeys::E4m3 {
        words: Tensor::from_slice(gpu(), &words, [1, seq_kv, dim / 4]).unwrap(),
        scale: tensor(&scale, &[1, seq_kv], DType::F32),
    };
    for subgroups in families() {
        let indexer = Indexer::new(Prefix::all()).scale(1.0).kernel(kernel(subgroups));
        let q = tensor(&q, &[1, 2, 3, dim], DType::F32);
        let w = tensor(&w, &[1, 2, 3], DType::F32);
        let got: Vec<f32> = indexer.run(gpu(), &q, keys.clone(), &w).unwrap().read(gpu()).unwrap();
        compare("scores", &got, &want, BOUND, 0.0).unwrap();
    }
}

#[test]
fn refusals_name_the_field() {
    let q = tensor(&noise(1, 32), &[1, 1, 4, 8], DType::F32);
    let k = tensor(&noise(1, 80), &[1, 10, 8], DType::F32);
    let w = tensor(&noise(1, 4), &[1, 1, 4], DType::F32);
    let run = |indexer: Indexer, q: &Tensor, k: &Tensor, w: &Tensor| indexer.run(gpu(), q, k, w).unwrap_err();
    let causal = Indexer::causal;
    assert!(matches!(run(causal().scale(-1.0), &q, &k, &w), Error::OutOfRange { field: "scale", .. }));
    assert!(matches!(run(causal(), &k, &k, &w), Error::Shape { field: "q", .. }));
    assert!(matches!(run(causal(), &q, &w, &w), Error::Shape { field: "k", .. }));
    assert!(matches!(run(causal(), &q, &k, &k), Error::Shape { field: "w", .. }));
    let half = tensor(&noise(1, 4), &[1, 1, 4], DType::F16);
    assert!(matches!(run(causal(), &q, &k, &half), Error::DType { field: "w", .. }));
    assert!(matches!(run(causal().kernel("attention_tiled"), &q, &k, &w), Error::NoKernel { .. }));
}
