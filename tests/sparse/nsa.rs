//! Native sparse attention against its definition.

use wgpu_attention::reference::{self, NsaCase};
use wgpu_attention::{DType, Error, Gpu, NativeSparseAttention, NsaInputs, compress_blocks};

use super::{families, gpu, tensor};
use crate::common::{BOUND, compare, noise};

const SHAPE: [usize; 6] = [2, 4, 2, 53, 8, 12];

struct Data {
    shape: [usize; 6],
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    near: [Vec<f32>; 2],
    compressed: [Vec<f32>; 2],
    gates: Vec<f32>,
}

impl Data {
    /// Sizes: length, stride, block, blocks, window.
    fn new(shape: [usize; 6], [length, stride, ..]: [usize; 5]) -> Self {
        let [batch, heads_q, heads_kv, seq, dim_k, dim_v] = shape;
        let blocks = if seq < length { 0 } else { (seq - length) / stride + 1 };
        let loud = |seed, count| noise(seed, count).iter().map(|x| 2.0 * x).collect::<Vec<_>>();
        Self {
            shape,
            q: loud(1, batch * heads_q * seq * dim_k),
            k: noise(2, batch * heads_kv * seq * dim_k),
            v: noise(3, batch * heads_kv * seq * dim_v),
            near: [noise(4, batch * heads_kv * seq * dim_k), noise(5, batch * heads_kv * seq * dim_v)],
            compressed: [
                loud(6, batch * heads_kv * blocks * dim_k),
                noise(7, batch * heads_kv * blocks * dim_v),
            ],
            gates: noise(8, batch * heads_q * seq * 3),
        }
    }

    fn reference(&self, sizes: [usize; 5]) -> reference::NsaResult {
        reference::nsa(&NsaCase {
            shape: self.shape,
            q: &self.q,
            selected: [&self.k, &self.v],
            window: [&self.near[0], &self.near[1]],
            compressed: [&self.compressed[0], &self.compressed[1]],
            gates: &self.gates,
            scale: (self.shape[4] as f64).powf(-0.5),
            sizes,
            whole_blocks: false,
        })
    }

    fn inputs(&self) -> NsaInputs {
        let [batch, heads_q, heads_kv, seq, dim_k, dim_v] = self.shape;
        let kv = |data: &[f32], dim: usize| {
            let n = data.len() / (batch * heads_kv * dim);
            tensor(data, &[batch, heads_kv, n, dim], DType::F32)
        };
        NsaInputs {
            q: tensor(&self.q, &[batch, heads_q, seq, dim_k], DType::F32),
            compressed: [kv(&self.compressed[0], dim_k), kv(&self.compressed[1], dim_v)],
            selected: [kv(&self.k, dim_k), kv(&self.v, dim_v)],
            window: [kv(&self.near[0], dim_k), kv(&self.near[1], dim_v)],
            gates: tensor(&self.gates, &[batch, heads_q, seq, 3], DType::F32),
        }
    }
}

fn operator([length, stride, block, count, window]: [usize; 5]) -> NativeSparseAttention {
    NativeSparseAttention::new(block as u32, count, window as u32).length(length as u32).stride(stride as u32)
}

/// Runs on one family and compares every result.
pub(super) fn judged(gpu: &Gpu, subgroups: bool, sizes: [usize; 5]) -> Result<(), String> {
    let data = Data::new(SHAPE, sizes);
    let out = operator(sizes).subgroups(subgroups).run(gpu, &data.inputs()).unwrap();
    let want = data.reference(sizes);
    let blocks: Vec<i32> = out.blocks.read(gpu).unwrap();
    if let Some(at) = blocks.iter().zip(&want.blocks).position(|(g, w)| g != w) {
        return Err(format!("{sizes:?}: block {at} is {}, not {}", blocks[at], want.blocks[at]));
    }
    for (what, got, want) in [
        ("compressed", &out.branches[0], &want.branches[0]),
        ("selected", &out.branches[1], &want.branches[1]),
        ("window", &out.branches[2], &want.branches[2]),
        ("o", &out.o, &want.o),
    ] {
        let got: Vec<f32> = got.read(gpu).unwrap();
        compare(what, &got, want, BOUND, 0.0).map_err(|e| format!("{sizes:?}: {e}"))?;
    }
    Ok(())
}

#[test]
fn sizes_of_blocks_are_free() {
    for family in families() {
        for sizes in [
            [8, 8, 8, 3, 9],
            [8, 4, 16, 4, 7],
            [6, 3, 3, 9, 1],
            [32, 16, 64, 2, 64],
            [64, 8, 8, 4, 5],
            [1, 1, 1, 4, 3],
        ] {
            judged(gpu(), family, sizes).unwrap();
        }
    }
}

/// Enough blocks, and a window as long as the sequence, both make dense attention.
#[test]
fn enough_blocks_or_window_make_dense_attention() {
    let sizes = [8, 8, 8, 7, 53];
    let data =
        Data { near: [noise(2, 2 * 2 * 53 * 8), noise(3, 2 * 2 * 53 * 12)], ..Data::new(SHAPE, sizes) };
    for family in families() {
        let out = operator(sizes).subgroups(family).run(gpu(), &data.inputs()).unwrap();
        let [_, selected, window] = out.branches.map(|t| t.read::<f32>(gpu()).unwrap());
        let dense: Vec<f64> = window.iter().map(|&x| f64::from(x)).collect();
        compare("selected", &selected, &dense, BOUND, 0.0).unwrap();
    }
}

#[test]
fn a_prompts_row_equals_the_decode_step() {
    let sizes = [8, 4, 8, 3, 9];
    let data = Data::new([1, 4, 2, 53, 8, 12], sizes);
    let inputs = data.inputs();
    let whole = operator(sizes).run(gpu(), &inputs).unwrap();
    let o: Vec<f32> = whole.o.read(gpu()).unwrap();
    let last = NsaInputs {
        q: inputs.q.narrow(2, 52, 1).unwrap(),
        gates: inputs.gates.narrow(2, 52, 1).unwrap(),
        ..inputs
    };
    let step: Vec<f32> = operator(sizes).run(gpu(), &last).unwrap().o.read(gpu()).unwrap();
    let wanted: Vec<f64> =
        (0..4).flat_map(|h| o[(h * 53 + 52) * 12..][..12].iter().map(|&x| f64::from(x))).collect();
    compare("o", &step, &wanted, BOUND, 0.0).unwrap();
}

#[test]
fn blocks_are_compressed_to_their_means() {
    for (seq, dim, length, stride) in [(53, 8, 8, 4), (20, 7, 5, 5), (9, 4, 9, 1), (5, 4, 9, 2)] {
        let data = noise(1, 2 * 3 * seq * dim);
        let source = tensor(&data, &[2, 3, seq, dim], DType::F32);
        let means = compress_blocks(gpu(), &source, length as u32, stride as u32).unwrap();
        let blocks = if seq < length { 0 } else { (seq - length) / stride + 1 };
        assert_eq!(means.shape(), [2, 3, blocks, dim]);
        let want: Vec<f64> = (0..2 * 3 * blocks * dim)
            .map(|flat| {
                let (z, i, d) = (flat / dim / blocks, flat / dim % blocks, flat % dim);
                let rows = (0..length).map(|r| f64::from(data[(z * seq + i * stride + r) * dim + d]));
                rows.sum::<f64>() / length as f64
            })
            .collect();
        compare("means", &means.read::<f32>(gpu()).unwrap(), &want, BOUND, 0.0).unwrap();
    }
}

#[test]
fn refusals_name_the_field() {
    let sizes = [8, 8, 8, 3, 9];
    let inputs = Data::new(SHAPE, sizes).inputs();
    let refused = |op: NativeSparseAttention| op.run(gpu(), &inputs).unwrap_err();
    assert!(matches!(refused(operator(sizes).stride(3)), Error::OutOfRange { field: "length", .. }));
    assert!(matches!(refused(NativeSparseAttention::new(8, 0, 9)), Error::OutOfRange { field: "count", .. }));
    assert!(matches!(
        refused(NativeSparseAttention::new(8, 3, 0)),
        Error::OutOfRange { field: "window", .. }
    ));
    assert!(matches!(refused(operator(sizes).stride(4)), Error::Shape { field: "compressed k", .. }));
}
