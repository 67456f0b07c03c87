//! Attention over lists, and the pipeline, against their definitions.

use wgpu_attention::reference::{self, AttentionCase, IndexCase, IndexedCase, Rounding};
use wgpu_attention::{
    AttentionOutput, AttentionShape, DType, Error, Gpu, IndexInputs, IndexedAttention, Mask, Prefix,
    SparseAttention, Tensor,
};

use super::{causal, families, gpu, tensor};
use crate::common::{BOUND, compare, noise};

fn kernel(subgroups: bool) -> &'static str {
    if subgroups { "indexed_attention_subgroup" } else { "indexed_attention" }
}

/// A call with its data in main memory.
#[derive(Clone)]
pub(super) struct Call {
    /// `[batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v]`
    pub(super) shape: [usize; 7],
    /// `[batch, 1 or heads_kv, seq_q, entries]`
    pub(super) indices: Vec<i32>,
    pub(super) shared: bool,
    pub(super) block: usize,
    pub(super) visible: Prefix,
    pub(super) seen: Vec<usize>,
    pub(super) dtype: DType,
    pub(super) splits: Option<u32>,
    /// v is a view of k's first columns.
    pub(super) latent: bool,
}

impl Call {
    pub(super) fn new(shape: [usize; 7], indices: Vec<i32>) -> Self {
        let [batch, _, _, seq_q, seq_kv, ..] = shape;
        Self {
            shape,
            indices,
            shared: true,
            block: 1,
            visible: Prefix::all(),
            seen: vec![seq_kv; batch * seq_q],
            dtype: DType::F32,
            splits: None,
            latent: false,
        }
    }

    /// Runs on every kernel.
    fn check(&self) {
        for subgroups in families() {
            self.judged(gpu(), subgroups).unwrap();
        }
    }

    /// Runs over NaN and compares; keys that no list names hold NaN.
    pub(super) fn judged(&self, gpu: &Gpu, subgroups: bool) -> Result<(), String> {
        let [batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v] = self.shape;
        let heads_list = if self.shared { 1 } else { heads_kv };
        let entries = self.indices.len() / (batch * heads_list * seq_q);
        let per_head: Vec<i32> = (0..batch * heads_kv * seq_q * entries)
            .map(|flat| {
                let (row, at) = (flat / entries, flat % entries);
                let (b, h, i) = (row / seq_q / heads_kv, row / seq_q % heads_kv, row % seq_q);
                self.indices[((b * heads_list + h % heads_list) * seq_q + i) * entries + at]
            })
            .collect();
        let rounded = |data: Vec<f32>| crate::common::rounded(&data, self.dtype);
        let q = rounded(noise(1, batch * heads_q * seq_q * dim_k));
        let mut k = rounded(noise(2, batch * heads_kv * seq_kv * dim_k));
        let mut v = rounded(noise(3, batch * heads_kv * seq_kv * dim_v));
        // nothing but what the lists name may be read
        let mut named = vec![false; batch * heads_kv * seq_kv];
        for (flat, &entry) in per_head.iter().enumerate() {
            let head = flat / entries / seq_q;
            let seen = self.seen[head / heads_kv * seq_q + flat / entries % seq_q];
            for j in (0..self.block).map(|j| i64::from(entry) * self.block as i64 + j as i64) {
                if entry >= 0 && (j as usize) < seen {
                    named[head * seq_kv + j as usize] = true;
                }
            }
        }
        for (key, _) in named.iter().enumerate().filter(|(_, n)| !**n) {
            k[key * dim_k..][..dim_k].fill(f32::NAN);
            v[key * dim_v..][..dim_v].fill(f32::NAN);
        }
        if self.latent {
            v = k.chunks(dim_k).flat_map(|row| row[..dim_v].to_vec()).collect();
        }
        let case = IndexedCase {
            shape: self.shape,
            q: &q,
            k: &k,
            v: &v,
            scale: 0.2,
            indices: &per_head,
            block: self.block,
            seen: &self.seen,
        };
        let (want_o, want_lse) = reference::indexed_attention(&case, Rounding::None);
        let (q, k) = (
            tensor(&q, &[batch, heads_q, seq_q, dim_k], self.dtype),
            tensor(&k, &[batch, heads_kv, seq_kv, dim_k], self.dtype),
        );
        let v = if self.latent {
            k.narrow(3, 0, dim_v).unwrap()
        } else {
            tensor(&v, &[batch, heads_kv, seq_kv, dim_v], self.dtype)
        };
        let mut list = Tensor::from_slice(gpu, &self.indices, [batch, heads_list, seq_q, entries]).unwrap();
        if self.shared {
            list = list.view(0, &[batch, seq_q, entries], &[seq_q * entries, entries, 1]).unwrap();
        }
        let mut op = IndexedAttention::new(self.visible.clone()).scale(0.2).block(self.block as u32);
        op = op.kernel(kernel(subgroups));
        if let Some(splits) = self.splits {
            op = op.splits(splits);
        }
        let rows = batch * heads_q * seq_q;
        let out = AttentionOutput {
            o: tensor(&vec![f32::NAN; rows * dim_v], &[batch, heads_q, seq_q, dim_v], DType::F32),
            lse: Some(tensor(&vec![f32::NAN; rows], &[batch, heads_q, seq_q], DType::F32)),
        };
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        op.record(gpu, &mut encoder, &q, &k, &v, &list, &out).unwrap();
        gpu.submit(encoder).unwrap();
        let told = |e| format!("{:?} block {} {subgroups}: {e}", self.shape, self.block);
        let o: Vec<f32> = out.o.read(gpu).unwrap();
        compare("o", &o, &want_o, BOUND, 0.0).map_err(told)?;
        let lse: Vec<f32> = out.lse.unwrap().read(gpu).unwrap();
        compare("lse", &lse, &want_lse, BOUND, 0.0).map_err(told)
    }
}

/// Lists of `entries` different keys in no order, with a hole here and there.
fn lists(rows: usize, entries: usize, keys: usize) -> Vec<i32> {
    (0..rows * entries)
        .map(|flat| {
            let (row, at) = (flat / entries, flat % entries);
            if (row + at) % 11 == 3 { -1 - (at as i32 % 3) * 1000 } else { ((at * 7 + row) % keys) as i32 }
        })
        .collect()
}

#[test]
fn shapes_splits_and_storage() {
    for (shape, entries) in [
        ([2, 4, 2, 5, 100, 64, 64], 33),
        ([1, 7, 1, 2, 90, 20, 12], 64),
        ([1, 3, 3, 4, 40, 5, 7], 17),
        ([1, 16, 1, 2, 120, 576, 512], 70),
        ([1, 33, 1, 1, 60, 32, 40], 40),
    ] {
        let [batch, _, heads_kv, seq_q, seq_kv, ..] = shape;
        let call = Call::new(shape, lists(batch * seq_q, entries, seq_kv));
        for splits in [None, Some(2), Some(7)] {
            Call { splits, ..call.clone() }.check();
        }
        let each = lists(batch * heads_kv * seq_q, entries, seq_kv);
        Call { shared: false, indices: each, ..call.clone() }.check();
        // each storage type compiles anew: three shapes are enough
        let dtypes = match shape[5] {
            5 | 64 => &[DType::F16, DType::Bf16][..],
            576 => &[DType::F16],
            _ => &[],
        };
        for &dtype in dtypes {
            Call { dtype, ..call.clone() }.check();
        }
    }
}

/// P4 and P5 of the cases: a leading run of holes, entries past the end, a list of nothing but holes.
#[test]
fn holes() {
    let mut list = vec![-1; 16];
    list.extend([3, 1]);
    Call::new([1, 4, 1, 1, 6, 8, 8], list).check();
    Call::new([1, 4, 1, 2, 4, 8, 8], vec![2, -1, 7, 0, -1, -1, -1, -1]).check();
    let extremes = vec![i32::MAX, i32::MIN, 4, 3, 1 << 30, -1, 0, 5];
    Call::new([1, 2, 1, 1, 4, 8, 8], extremes.clone()).check();
    Call { block: 2, ..Call::new([1, 2, 1, 1, 4, 8, 8], extremes) }.check();
    let lengths = Tensor::from_slice(gpu(), &[2_i32, 0], [2]).unwrap();
    let visible = Prefix::all().kv_len(&lengths);
    let call = Call::new([2, 2, 1, 1, 6, 8, 8], vec![5, 1, 0, 2, 0, 1, 2, 3]);
    Call { visible, seen: vec![2, 0], ..call }.check();
}

#[test]
fn repeated_entries_count_once() {
    let sorted = vec![0, 0, 1, 1, 1, 4, 7, 7, -1, -1];
    Call::new([1, 4, 1, 1, 9, 8, 8], sorted.clone()).check();
    Call { block: 3, ..Call::new([1, 4, 1, 1, 27, 8, 8], sorted) }.check();
}

#[test]
fn later_keys_stay_hidden() {
    let (seq_q, seq_kv) = (9, 30);
    for q_start in [0, -4, 21, 100] {
        let indices = (0..seq_q).flat_map(|_| (0..seq_kv as i32).rev()).collect();
        let call = Call::new([1, 4, 2, seq_q, seq_kv, 8, 8], indices);
        let visible = Prefix::causal().q_start(q_start);
        Call { visible, seen: causal(1, seq_q, seq_kv, q_start), ..call }.check();
    }
}

#[test]
fn blocks_of_keys() {
    for (block, seq_kv) in [(8, 100), (16, 64), (5, 33), (64, 200)] {
        let n = usize::div_ceil(seq_kv, block);
        let call = Call::new([1, 8, 2, 4, seq_kv, 16, 16], lists(8, n.min(5), n));
        let visible = Prefix::causal().q_start(seq_kv as i64 - 4);
        let seen = causal(1, 4, seq_kv, seq_kv as i64 - 4);
        Call { block, shared: false, visible, seen, ..call }.check();
    }
}

/// Values that are a view of the keys, as latents are.
#[test]
fn latents() {
    let call = Call::new([2, 16, 1, 1, 80, 576, 512], lists(2, 50, 80));
    Call { latent: true, ..call }.check();
}

/// More slots than an invocation may walk (G0), the last of which decides.
#[test]
fn long_lists() {
    let seq_kv = 70_000;
    let mut indices: Vec<i32> = (0..seq_kv as i32).collect();
    indices[69_990..].fill(-1);
    Call { splits: Some(1), ..Call::new([1, 2, 1, 1, seq_kv, 8, 8], indices) }.check();
}

/// Inputs of the pipeline.
struct Inputs {
    /// Batch, heads, queries, keys, index heads, index width.
    sizes: [usize; 6],
    tensors: [Vec<f32>; 5],
}

impl Inputs {
    fn new(sizes: [usize; 6], dim_k: usize) -> Self {
        let [b, h, q, kv, ih, id] = sizes;
        let tensors = [
            noise(1, b * h * q * dim_k),
            noise(2, b * kv * dim_k),
            noise(3, b * q * ih * id),
            noise(4, b * kv * id),
            noise(5, b * q * ih),
        ];
        Self { sizes, tensors }
    }

    fn run(&self, op: &SparseAttention, dim_k: usize, dim_v: usize) -> (Vec<i32>, Vec<f32>) {
        let [b, h, q, kv, ih, id] = self.sizes;
        let [tq, tk, iq, ik, iw] = &self.tensors;
        let k = tensor(tk, &[b, 1, kv, dim_k], DType::F32);
        let index = IndexInputs {
            q: tensor(iq, &[b, q, ih, id], DType::F32),
            k: (&tensor(ik, &[b, kv, id], DType::F32)).into(),
            w: tensor(iw, &[b, q, ih], DType::F32),
        };
        let v = k.narrow(3, 0, dim_v).unwrap();
        let out = op.run(gpu(), &tensor(tq, &[b, h, q, dim_k], DType::F32), &k, &v, &index).unwrap();
        (out.chosen.indices.read(gpu()).unwrap(), out.attention.o.read(gpu()).unwrap())
    }
}

/// Batch, heads, queries, keys, index heads and width. Chosen keys are those of exact scores wherever the k-th is
/// clearly ahead of the next; the output is that of the keys that were chosen.
pub(super) fn pipeline(sizes: [usize; 6], families: &[bool]) {
    let (dim_k, dim_v, top) = (24, 16, 8);
    let [batch, heads, seq_q, seq_kv, ih, id] = sizes;
    let inputs = Inputs::new(sizes, dim_k);
    let [q, k, iq, ik, iw] = &inputs.tensors;
    let seen = causal(batch, seq_q, seq_kv, seq_kv as i64 - seq_q as i64);
    let shape = [batch, seq_q, ih, id, seq_kv];
    let scale = (id as f64).powf(-0.5);
    let scores = reference::index_scores(&IndexCase { shape, q: iq, k: ik, w: iw, scale, seen: &seen });
    let exact: Vec<f32> = scores.iter().map(|&x| x as f32).collect();
    let wanted = reference::top_k(&exact, seq_kv, top, &seen);
    for &subgroups in families {
        let op = SparseAttention::causal(top).subgroups(subgroups);
        let (indices, o) = inputs.run(&op, dim_k, dim_v);
        for row in 0..batch * seq_q {
            let mut sorted = scores[row * seq_kv..][..seen[row]].to_vec();
            sorted.sort_by(|a, b| b.total_cmp(a));
            if sorted.len() <= top || sorted[top - 1] - sorted[top] > 1e-4 {
                assert_eq!(indices[row * top..][..top], wanted[row * top..][..top], "row {row}");
            }
        }
        let v: Vec<f32> = k.chunks(dim_k).flat_map(|row| row[..dim_v].to_vec()).collect();
        let case = IndexedCase {
            shape: [batch, heads, 1, seq_q, seq_kv, dim_k, dim_v],
            q,
            k,
            v: &v,
            scale: (dim_k as f64).powf(-0.5),
            indices: &indices,
            block: 1,
            seen: &seen,
        };
        let (want, _) = reference::indexed_attention(&case, Rounding::None);
        compare("o", &o, &want, BOUND, 0.0).unwrap();
    }
}

#[test]
fn the_pipeline_chooses_and_attends() {
    pipeline([1, 4, 70, 70, 4, 32], &families());
    pipeline([2, 3, 1, 300, 8, 16], &families());
}

/// Where at most k keys are visible, sparse is dense.
#[test]
fn few_keys_make_dense_attention() {
    let (dim_k, dim_v, n) = (24, 16, 37);
    let inputs = Inputs::new([1, 4, n, n, 2, 8], dim_k);
    let (_, o) = inputs.run(&SparseAttention::causal(64), dim_k, dim_v);
    let [q, k, ..] = &inputs.tensors;
    let v: Vec<f32> = k.chunks(dim_k).flat_map(|row| row[..dim_v].to_vec()).collect();
    let shape = AttentionShape { batch: 1, heads_q: 4, heads_kv: 1, seq_q: n, seq_kv: n, dim_k, dim_v };
    let case = AttentionCase {
        shape,
        mask: Mask::causal(),
        q,
        k,
        v: &v,
        scale: (dim_k as f64).powf(-0.5),
        softcap: None,
        sinks: None,
        alibi: None,
        kv_len: None,
        q_starts: None,
        bias: None,
        bias_hidden: -1e30,
    };
    let (want, _) = reference::attention(&case, Rounding::None).unwrap();
    compare("o", &o, &want, BOUND, 0.0).unwrap();
}

#[test]
fn refusals_name_the_field() {
    let q = tensor(&noise(1, 32), &[1, 4, 1, 8], DType::F32);
    let k = tensor(&noise(1, 80), &[1, 1, 10, 8], DType::F32);
    let list = Tensor::from_slice(gpu(), &[0_i32, 1], [1, 1, 2]).unwrap();
    let op = || IndexedAttention::causal();
    let words = Tensor::from_slice(gpu(), &[0_u32, 1], [1, 1, 2]).unwrap();
    assert!(matches!(op().run(gpu(), &q, &k, &k, &words), Err(Error::DType { field: "indices", .. })));
    let rows = Tensor::from_slice(gpu(), &[0_i32, 1], [1, 2, 1]).unwrap();
    assert!(matches!(op().run(gpu(), &q, &k, &k, &rows), Err(Error::Shape { field: "indices", .. })));
    assert!(matches!(
        op().block(0).run(gpu(), &q, &k, &k, &list),
        Err(Error::OutOfRange { field: "block", .. })
    ));
    assert!(matches!(
        op().scale(f32::NAN).run(gpu(), &q, &k, &k, &list),
        Err(Error::OutOfRange { field: "scale", .. })
    ));
    let out = AttentionOutput { o: q.clone(), lse: None };
    let mut encoder = gpu().device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    assert!(matches!(
        op().record(gpu(), &mut encoder, &q, &k, &k, &list, &out),
        Err(Error::SharedBuffer { field: "o", other: "q" })
    ));
}
