//! Calls that do not fit one dispatch or one binding.

use half::f16;
use wgpu_attention::reference::{self, IndexedCase, Rounding};
use wgpu_attention::{DType, IndexedAttention, Prefix, Tensor};

use super::indexed::{Call, pipeline};
use super::top_k::bits;
use super::{CUT, causal, families, gpu, index, nsa, tensor, top_k};
use crate::common::{BOUND, compare, noise};

#[test]
fn many_small_dispatches_give_the_same() {
    CUT.set(true);
    let seen = causal(3, 5, 200, 190);
    let scores = bits(&noise(1, 3 * 5 * 200));
    top_k::judged(gpu(), &scores, [3, 5, 200], 20, Prefix::causal().q_start(190), &seen).unwrap();
    for family in families() {
        for shape in [[3, 5, 4, 16, 200], [1, 2, 3, 8, 2500]] {
            let seen = vec![shape[4]; shape[0] * shape[1]];
            index::judged(gpu(), family, shape, DType::F32, &Prefix::all(), &seen).unwrap();
        }
        let indices: Vec<i32> = (0..3 * 7 * 40).map(|i| i * 13 % 90 - 3).collect();
        for splits in [None, Some(3)] {
            let call = Call::new([3, 4, 2, 7, 90, 16, 12], indices.clone());
            Call { splits, ..call }.judged(gpu(), family).unwrap();
        }
        nsa::judged(gpu(), family, [8, 4, 8, 3, 9]).unwrap();
    }
    pipeline([2, 3, 9, 300, 2, 8], &families());
}

/// Scores of all queries together would take 33 MiB: the pipeline goes slab by slab. One family is enough, since
/// both get the same slabs.
#[test]
fn long_contexts_are_indexed_a_slab_of_queries_at_a_time() {
    pipeline([1, 1, 9, 1_000_000, 1, 4], &families()[..1]);
}

/// 120,000 latents of 576 16-bit numbers have more than WebGPU's 128 MiB: two parts, merged. Only what the list
/// names is a number.
#[test]
fn keys_beyond_one_binding_are_attended_to_in_parts() {
    let (seq_kv, dim_k, dim_v, heads) = (120_000, 576, 512, 3);
    let list: Vec<i32> = (0..40).map(|i| if i % 9 == 4 { -1 } else { i * 3037 }).collect();
    let rows: Vec<usize> = list.iter().filter(|&&j| j >= 0).map(|&j| j as usize).collect();
    let few: Vec<f32> = noise(2, rows.len() * dim_k).iter().map(|&x| f16::from_f32(x).to_f32()).collect();
    let mut k = vec![f16::NAN; seq_kv * dim_k];
    for (row, data) in rows.iter().zip(few.chunks(dim_k)) {
        for (to, &x) in k[row * dim_k..].iter_mut().zip(data) {
            *to = f16::from_f32(x);
        }
    }
    let q = noise(1, heads * dim_k);
    let v: Vec<f32> = few.chunks(dim_k).flat_map(|row| row[..dim_v].to_vec()).collect();
    let all: Vec<i32> = (0..rows.len() as i32).collect();
    let case = IndexedCase {
        shape: [1, heads, 1, 1, rows.len(), dim_k, dim_v],
        q: &q,
        k: &few,
        v: &v,
        scale: (dim_k as f64).powf(-0.5),
        indices: &all,
        block: 1,
        seen: &[rows.len()],
    };
    let (want_o, want_lse) = reference::indexed_attention(&case, Rounding::None);
    let k = Tensor::from_slice(gpu(), &k, [1, 1, seq_kv, dim_k]).unwrap();
    let v = k.narrow(3, 0, dim_v).unwrap();
    let q = tensor(&q, &[1, heads, 1, dim_k], DType::F32);
    let list = Tensor::from_slice(gpu(), &list, [1, 1, list.len()]).unwrap();
    let out = IndexedAttention::causal().run(gpu(), &q, &k, &v, &list).unwrap();
    compare("o", &out.o.read::<f32>(gpu()).unwrap(), &want_o, BOUND, 0.0).unwrap();
    compare("lse", &out.lse.unwrap().read::<f32>(gpu()).unwrap(), &want_lse, BOUND, 0.0).unwrap();
}
