//! Top-k against a sort.

use wgpu_attention::{DType, Error, Gpu, Prefix, Tensor, TopK, TopKOutput, reference};

use super::{causal, gpu, tensor};
use crate::common::noise;

/// Chooses on the device, written over rubbish, and compares with the definition; bits, so that NaN survives.
pub(super) fn judged(
    gpu: &Gpu,
    bits: &[u32],
    [batch, seq_q, seq_kv]: [usize; 3],
    k: usize,
    visible: Prefix,
    seen: &[usize],
) -> Result<(), String> {
    let scores: Vec<f32> = bits.iter().map(|&b| f32::from_bits(b)).collect();
    let on_device = Tensor::from_slice(gpu, &scores, [batch, seq_q, seq_kv]).unwrap();
    let out = TopKOutput {
        indices: Tensor::from_slice(gpu, &vec![-7; batch * seq_q * k], [batch, seq_q, k]).unwrap(),
        counts: Tensor::from_slice(gpu, &vec![77_u32; batch * seq_q], [batch, seq_q]).unwrap(),
    };
    let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    TopK::new(k).visible(visible).record(gpu, &mut encoder, &on_device, &out).unwrap();
    gpu.submit(encoder).unwrap();
    let want = reference::top_k(&scores, seq_kv, k, seen);
    let got: Vec<i32> = out.indices.read(gpu).unwrap();
    if let Some(at) = got.iter().zip(&want).position(|(g, w)| g != w) {
        let sizes = format!("{batch} x {seq_q} x {seq_kv}, k = {k}");
        return Err(format!("{sizes}: index {at} is {}, not {}", got[at], want[at]));
    }
    let counts: Vec<u32> = out.counts.read(gpu).unwrap();
    let wanted: Vec<u32> = seen.iter().map(|&n| n.min(k) as u32).collect();
    if counts == wanted { Ok(()) } else { Err(format!("counts {counts:?}, not {wanted:?}")) }
}

fn check(bits: &[u32], shape: [usize; 3], k: usize, visible: Prefix, seen: &[usize]) {
    judged(gpu(), bits, shape, k, visible, seen).unwrap();
}

pub(super) fn bits(scores: &[f32]) -> Vec<u32> {
    scores.iter().map(|x| x.to_bits()).collect()
}

fn row(scores: &[f32], k: usize) {
    check(&bits(scores), [1, 1, scores.len()], k, Prefix::all(), &[scores.len()]);
}

#[test]
fn random_rows_of_every_size() {
    for n in [1_usize, 2, 63, 64, 65, 1000, 4095, 4096, 4097, 9001] {
        for k in [1, 2, n.div_ceil(3), n, n + 5] {
            row(&noise(n as u32, n), k);
        }
    }
}

#[test]
fn adversarial_rows() {
    let n = 5000;
    for k in [1, 7, 2048, 4999] {
        row(&vec![1.5; n], k);
        row(&vec![0.0; n], k);
        row(&vec![-0.0; n], k);
        row(&vec![f32::NAN; n], k);
        row(&vec![f32::NEG_INFINITY; n], k);
        // zeros of both signs are equal: the earlier wins
        row(&(0..n).map(|i| if i % 3 == 0 { -0.0 } else { 0.0 }).collect::<Vec<_>>(), k);
        // neighbours that differ in the last bit alone, up and down, of both signs
        let near =
            |base: u32, i: usize| f32::from_bits(base + (i as u32).wrapping_mul(2_654_435_761) / 7 % 2);
        row(&(0..n).map(|i| near(0x3f80_0000, i)).collect::<Vec<_>>(), k);
        row(&(0..n).map(|i| near(0xbf80_0000, i)).collect::<Vec<_>>(), k);
        row(&(0..n).map(|i| near(0x7f7f_fffe, i)).collect::<Vec<_>>(), k);
        // subnormal numbers are numbers
        row(&(0..n).map(|i| f32::from_bits(i as u32 * 48_271 % 4096)).collect::<Vec<_>>(), k);
        // one digit differs: each of the three
        for shift in [21, 10, 0] {
            row(
                &(0..n)
                    .map(|i| f32::from_bits(0x3000_0000 + ((i as u32 * 7919 % 512) << shift)))
                    .collect::<Vec<_>>(),
                k,
            );
        }
        row(&(0..n).map(|i| i as f32).collect::<Vec<_>>(), k);
        row(&(0..n).map(|i| -(i as f32)).collect::<Vec<_>>(), k);
    }
}

#[test]
fn nan_comes_last_whatever_its_sign() {
    let mut scores = bits(&noise(3, 300));
    for (at, nan) in [(0, 0x7fc0_0000), (7, 0xffc0_0001), (150, 0x7f80_0001), (299, 0xffff_ffff)] {
        scores[at] = nan;
    }
    scores[20] = f32::NEG_INFINITY.to_bits();
    scores[21] = f32::INFINITY.to_bits();
    for k in [1, 10, 295, 296, 297, 298, 300] {
        check(&scores, [1, 1, 300], k, Prefix::all(), &[300]);
    }
}

/// P1 and P3 of the cases: too many ties at the threshold, alone and among other rows.
#[test]
fn ties_do_not_depend_on_the_rows_around() {
    let mut relu = vec![0.0; 40];
    (relu[5], relu[17], relu[39]) = (1.0, 0.25, 3.0);
    row(&relu, 16);
    for rows in [1, 2, 63, 64, 65, 130] {
        check(&bits(&vec![0.5; 20 * rows]), [1, rows, 20], 8, Prefix::all(), &vec![20; rows]);
        let turned: Vec<f32> =
            (0..rows).flat_map(|r| (0..40).map(move |i| f32::from((i * 7 + r) % 5 == 0))).collect();
        check(&bits(&turned), [rows, 1, 40], 16, Prefix::all(), &vec![40; rows]);
    }
}

/// P2: causal rows with fewer keys than k; hidden scores hold NaN and larger numbers, and are not chosen.
#[test]
fn causal_and_ragged_rows() {
    for (batch, seq_q, seq_kv, k, q_start) in
        [(1, 5, 5, 16, 0), (2, 70, 70, 16, 0), (1, 3, 200, 16, 197), (2, 9, 30, 8, -4), (1, 4, 10, 4, 50)]
    {
        let seen = causal(batch, seq_q, seq_kv, q_start);
        let mut scores = noise(9, batch * seq_q * seq_kv);
        for (r, &n) in seen.iter().enumerate() {
            for j in n..seq_kv {
                scores[r * seq_kv + j] = if j % 2 == 0 { f32::INFINITY } else { f32::NAN };
            }
        }
        check(&bits(&scores), [batch, seq_q, seq_kv], k, Prefix::causal().q_start(q_start), &seen);
    }
    let lengths = Tensor::from_slice(gpu(), &[5_i32, -3, 40, 17], [4]).unwrap();
    let seen: Vec<usize> = [5, 5, 5, 0, 0, 0, 40, 40, 40, 17, 17, 17].to_vec();
    check(&bits(&noise(2, 480)), [4, 3, 40], 8, Prefix::all().kv_len(&lengths), &seen);
    let starts = Tensor::from_slice(gpu(), &[10_i32, -1, 100, 3], [4]).unwrap();
    let seen: Vec<usize> = [11, 12, 13, 0, 1, 2, 40, 40, 40, 4, 5, 6].to_vec();
    check(&bits(&noise(2, 480)), [4, 3, 40], 8, Prefix::causal().q_starts(&starts), &seen);
}

/// Rows as long as contexts are, and a million: what an invocation may loop is bounded (G0).
#[test]
fn long_rows() {
    row(&noise(1, 131_072), 2048);
    let mut million = noise(4, 1_000_003);
    million[1_000_002] = 5.0;
    row(&million, 2048);
    row(&vec![0.0; 1_000_003], 2048);
    let mut last = vec![0.0; 1_000_003];
    last[1_000_000..].fill(1.0);
    row(&last, 2);
}

#[test]
fn strided_rows_and_many_of_them() {
    // a slab of rows that are wider: the rest is NaN and must not be read
    let (rows, n, wide) = (6, 100, 131);
    let mut data = vec![f32::NAN; rows * wide];
    let inner = noise(8, rows * n);
    for r in 0..rows {
        data[r * wide..r * wide + n].copy_from_slice(&inner[r * n..][..n]);
    }
    let scores = tensor(&data, &[1, rows, wide], DType::F32).narrow(2, 0, n).unwrap();
    let out = TopK::new(9).run(gpu(), &scores).unwrap();
    let want = reference::top_k(&inner, n, 9, &vec![n; rows]);
    assert_eq!(out.indices.read::<i32>(gpu()).unwrap(), want);
    // more rows than one series of dispatches covers
    let (batch, seq_q, n) = (3, 3000, 70);
    let scores = noise(5, batch * seq_q * n);
    check(&bits(&scores), [batch, seq_q, n], 5, Prefix::all(), &vec![n; batch * seq_q]);
}

#[test]
fn refusals_name_the_field() {
    let scores = tensor(&noise(1, 40), &[1, 1, 40], DType::F32);
    let half = tensor(&noise(1, 40), &[1, 1, 40], DType::F16);
    let flat = tensor(&noise(1, 40), &[40], DType::F32);
    assert!(matches!(TopK::new(0).run(gpu(), &scores), Err(Error::OutOfRange { field: "k", .. })));
    assert!(matches!(TopK::new(1 << 21).run(gpu(), &scores), Err(Error::OutOfRange { field: "k", .. })));
    assert!(matches!(TopK::new(4).run(gpu(), &half), Err(Error::DType { field: "scores", .. })));
    assert!(matches!(TopK::new(4).run(gpu(), &flat), Err(Error::Shape { field: "scores", .. })));
    let bad = Prefix::causal().blocks(16, 32);
    assert!(matches!(
        TopK::new(4).visible(bad).run(gpu(), &scores),
        Err(Error::Options { field: "blocks", .. })
    ));
    let lengths = Tensor::from_slice(gpu(), &[1_u32, 2], [2]).unwrap();
    assert!(matches!(
        TopK::new(4).visible(Prefix::all().kv_len(&lengths)).run(gpu(), &scores),
        Err(Error::Shape { field: "kv_len", .. })
    ));
}
