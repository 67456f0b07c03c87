//! `topk`, `indexed_attention`, `nsa`: choosing keys, and attending to the chosen.

use std::collections::BTreeMap;

use super::Operator;
use crate::cases::{Case, HostData, HostTensor, Outcome, round, upload};
use crate::reference::{self, IndexCase, IndexedCase, NsaCase, Rounding};
use crate::{
    DType, Error, Gpu, IndexInputs, Indexer, NativeSparseAttention, NsaInputs, Prefix, Result,
    SparseAttention, Tensor, TopK,
};

pub(super) const TOP_K: Operator = Operator {
    name: "topk",
    paths: &["top_k"],
    dtypes: &[DType::F32],
    reference: top_k_reference,
    run: top_k_run,
};

pub(super) const INDEXED_ATTENTION: Operator = Operator {
    name: "indexed_attention",
    paths: &["indexed_attention_subgroup", "indexed_attention"],
    dtypes: &[DType::F32, DType::F16, DType::Bf16],
    reference: indexed_reference,
    run: indexed_run,
};

pub(super) const NSA: Operator = Operator {
    name: "nsa",
    paths: &["nsa_subgroup", "nsa"],
    dtypes: &[DType::F32],
    reference: nsa_reference,
    run: nsa_run,
};

fn whole(shape: impl Into<Vec<usize>>, data: Vec<i32>) -> HostTensor {
    HostTensor { shape: shape.into(), data: HostData::I32(data) }
}

fn named<const N: usize>(tensors: [(&str, HostTensor); N]) -> BTreeMap<String, HostTensor> {
    tensors.into_iter().map(|(name, tensor)| (name.to_owned(), tensor)).collect()
}

fn axes<const N: usize>(case: &Case, name: &str) -> Result<[usize; N]> {
    let shape = &case.input(name)?.shape;
    <[usize; N]>::try_from(shape.as_slice())
        .map_err(|_| case.fault(&format!("in.{name}"), format!("has shape {shape:?}, not {N} axes")))
}

fn required(case: &Case, key: &str) -> Result<usize> {
    match case.count(&case.params, key)? {
        Some(count) if count > 0 => Ok(count as usize),
        _ => Err(case.fault(key, "must be a count above 0")),
    }
}

fn scale(case: &Case, key: &str, dim: usize) -> Result<f64> {
    Ok(case.number(&case.params, key)?.unwrap_or_else(|| (dim as f64).powf(-0.5)))
}

fn known_path(case: &Case, path: Option<&str>, paths: &[&str]) -> Result<Option<bool>> {
    match path {
        None => Ok(None),
        Some(path) if paths.contains(&path) => Ok(Some(path.ends_with("_subgroup"))),
        Some(path) => Err(case.fault("kernel", format!("{path:?} is not one of {}", paths.join(", ")))),
    }
}

fn family(subgroups: Option<bool>, name: &str) -> String {
    match subgroups {
        Some(true) => format!("{name}_subgroup"),
        _ => name.to_owned(),
    }
}

fn top_k_shape(case: &Case) -> Result<([usize; 3], usize)> {
    case.only(&case.params, &["topk"])?;
    case.only_inputs(&["scores"])?;
    Ok((axes(case, "scores")?, required(case, "topk")?))
}

fn top_k_reference(case: &Case, dtype: DType, _: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let ([batch, seq_q, seq_kv], k) = top_k_shape(case)?;
    let scores = round(case.floats("scores")?.0, dtype);
    let indices = reference::top_k(&scores, seq_kv, k, &vec![seq_kv; batch * seq_q]);
    Ok(named([("indices", whole([batch, seq_q, k], indices))]))
}

fn top_k_run(gpu: &Gpu, case: &Case, dtype: DType, path: Option<&str>) -> Result<Outcome> {
    let (shape, k) = top_k_shape(case)?;
    known_path(case, path, TOP_K.paths)?;
    let scores = upload(gpu, case.floats("scores")?.0, &shape, dtype)?;
    let out = TopK::new(k).run(gpu, &scores)?;
    let tensors = named([("indices", HostTensor::download(gpu, &out.indices)?)]);
    Ok(Outcome { kernel: "top_k".into(), tensors })
}

/// Sizes of an `indexed_attention` case.
struct Indexed {
    /// Batch, heads, queries, width of keys.
    q: [usize; 4],
    seq_kv: usize,
    dim_v: usize,
    /// Heads and width of the index.
    index: [usize; 2],
    k: usize,
    causal: bool,
    q_start: i64,
}

fn indexed_shape(case: &Case) -> Result<Indexed> {
    case.only(&case.params, &["scale", "index_scale", "topk", "value_dim", "mask"])?;
    case.only_inputs(&["q", "kv", "index_q", "index_k", "index_w"])?;
    let q @ [batch, _, seq_q, dim_k] = case.four("q")?;
    let [_, _, seq_kv, _] = case.four("kv")?;
    let [_, _, heads, dim] = case.four("index_q")?;
    case.shaped("kv", &[batch, 1, seq_kv, dim_k], false)?;
    case.shaped("index_q", &[batch, seq_q, heads, dim], false)?;
    case.shaped("index_k", &[batch, seq_kv, dim], false)?;
    case.shaped("index_w", &[batch, seq_q, heads], false)?;
    let dim_v = required(case, "value_dim")?;
    if dim_v > dim_k {
        return Err(case.fault("value_dim", format!("is {dim_v}, more than the {dim_k} columns of kv")));
    }
    let mask = case.mask()?;
    if mask.window.is_some() || mask.chunk.is_some() || mask.sink_tokens > 0 {
        return Err(case.fault("mask", "may only be causal, with a q_offset"));
    }
    let q_start = mask.resolve(seq_q, seq_kv)?.q_start();
    let k = required(case, "topk")?;
    Ok(Indexed { q, seq_kv, dim_v, index: [heads, dim], k, causal: mask.causal, q_start })
}

impl Indexed {
    fn seen(&self) -> Vec<usize> {
        let [batch, _, seq_q, _] = self.q;
        let of = |row: usize| {
            let position = self.q_start + (row % seq_q) as i64;
            if self.causal { (position + 1).clamp(0, self.seq_kv as i64) as usize } else { self.seq_kv }
        };
        (0..batch * seq_q).map(of).collect()
    }

    fn prefix(&self) -> Prefix {
        if self.causal { Prefix::causal().q_start(self.q_start) } else { Prefix::all() }
    }
}

fn indexed_reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let sizes = indexed_shape(case)?;
    let ([batch, heads_q, seq_q, dim_k], [heads, dim], seq_kv) = (sizes.q, sizes.index, sizes.seq_kv);
    let seen = sizes.seen();
    let rounded = |name: &str| Ok::<_, Error>(round(case.floats(name)?.0, dtype));
    let (q, kv) = (rounded("q")?, rounded("kv")?);
    let (index_q, index_k) = (rounded("index_q")?, rounded("index_k")?);
    let call = IndexCase {
        shape: [batch, seq_q, heads, dim, seq_kv],
        q: &index_q,
        k: &index_k,
        w: case.floats("index_w")?.0,
        scale: scale(case, "index_scale", dim)?,
        seen: &seen,
    };
    let scores = reference::index_scores(&call);
    let exact: Vec<f32> = scores.iter().map(|&x| x as f32).collect();
    let indices = reference::top_k(&exact, seq_kv, sizes.k, &seen);
    let v: Vec<f32> = kv.chunks(dim_k).flat_map(|row| row[..sizes.dim_v].to_vec()).collect();
    let call = IndexedCase {
        shape: [batch, heads_q, 1, seq_q, seq_kv, dim_k, sizes.dim_v],
        q: &q,
        k: &kv,
        v: &v,
        scale: scale(case, "scale", dim_k)?,
        indices: &indices,
        block: 1,
        seen: &seen,
    };
    let (o, lse) = reference::indexed_attention(&call, rounding);
    Ok(named([
        ("scores", HostTensor::of([batch, seq_q, seq_kv], scores)),
        ("indices", whole([batch, seq_q, sizes.k], indices)),
        ("o", HostTensor::of([batch, heads_q, seq_q, sizes.dim_v], o)),
        ("lse", HostTensor::of([batch, heads_q, seq_q], lse)),
    ]))
}

fn indexed_run(gpu: &Gpu, case: &Case, dtype: DType, path: Option<&str>) -> Result<Outcome> {
    let sizes = indexed_shape(case)?;
    let subgroups = known_path(case, path, INDEXED_ATTENTION.paths)?;
    let tensor = |name: &str, dtype| {
        let (data, shape) = case.floats(name)?;
        upload(gpu, data, shape, dtype)
    };
    let index_scale = scale(case, "index_scale", sizes.index[1])? as f32;
    let index = IndexInputs {
        q: tensor("index_q", dtype)?,
        k: (&tensor("index_k", dtype)?).into(),
        w: tensor("index_w", DType::F32)?,
    };
    let (q, k) = (tensor("q", dtype)?, tensor("kv", dtype)?);
    let v = k.narrow(3, 0, sizes.dim_v)?;
    let mut indexer = Indexer::new(sizes.prefix()).scale(index_scale);
    let mut sparse = SparseAttention::new(sizes.k, &sizes.prefix()).index_scale(index_scale).output(dtype);
    sparse = sparse.scale(scale(case, "scale", sizes.q[3])? as f32);
    if let Some(wanted) = subgroups {
        indexer = indexer.kernel(if wanted { "indexer_subgroup" } else { "indexer" });
        sparse = sparse.subgroups(wanted);
    }
    let scores = indexer.run(gpu, &index.q, index.k.clone(), &index.w)?;
    let out = sparse.run(gpu, &q, &k, &v, &index)?;
    let mut tensors = named([
        ("scores", HostTensor::download(gpu, &scores)?),
        ("indices", HostTensor::download(gpu, &out.chosen.indices)?),
        ("o", HostTensor::download(gpu, &out.attention.o)?),
    ]);
    if let Some(lse) = &out.attention.lse {
        tensors.insert("lse".into(), HostTensor::download(gpu, lse)?);
    }
    Ok(Outcome { kernel: family(subgroups, "indexed_attention"), tensors })
}

/// Batch, query heads, key-value heads, tokens and widths of an `nsa` case; block, blocks, window.
fn nsa_shape(case: &Case) -> Result<([usize; 6], [usize; 3])> {
    case.only(&case.params, &["scale", "block_size", "blocks", "window"])?;
    case.only_inputs(&["q", "k", "v", "k_cmp", "v_cmp", "gates"])?;
    let [batch, seq, heads_q, dim_k] = case.four("q")?;
    let [_, _, heads_kv, _] = case.four("k")?;
    let [.., dim_v] = case.four("v")?;
    if heads_kv == 0 || heads_q % heads_kv != 0 {
        return Err(Error::Heads { heads_q, heads_kv });
    }
    let sizes @ [block, ..] =
        [required(case, "block_size")?, required(case, "blocks")?, required(case, "window")?];
    case.shaped("k", &[batch, seq, heads_kv, dim_k], false)?;
    case.shaped("v", &[batch, seq, heads_kv, dim_v], false)?;
    case.shaped("k_cmp", &[batch, seq / block, heads_kv, dim_k], false)?;
    case.shaped("v_cmp", &[batch, seq / block, heads_kv, dim_v], false)?;
    case.shaped("gates", &[batch, seq, heads_q, 3], false)?;
    Ok(([batch, heads_q, heads_kv, seq, dim_k, dim_v], sizes))
}

/// `[a, b, c, d]` to `[a, c, b, d]`.
fn swapped<T: Copy>(data: &[T], [a, b, c, d]: [usize; 4]) -> Vec<T> {
    let place = |flat: usize| {
        let (row, x) = (flat / d, flat % d);
        let (z, i, j) = (row / b / c, row % b, row / b % c);
        ((z * b + i) * c + j) * d + x
    };
    (0..a * b * c * d).map(|flat| data[place(flat)]).collect()
}

fn nsa_reference(case: &Case, dtype: DType, _: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let (shape @ [batch, heads_q, heads_kv, seq, _, dim_v], [block, count, window]) = nsa_shape(case)?;
    let heads_first = |name: &str| {
        let shape = case.four(name)?;
        Ok::<_, Error>(swapped(&round(case.floats(name)?.0, dtype), shape))
    };
    let [q, k, v] = [heads_first("q")?, heads_first("k")?, heads_first("v")?];
    let [k_cmp, v_cmp] = [heads_first("k_cmp")?, heads_first("v_cmp")?];
    let gates = swapped(case.floats("gates")?.0, case.four("gates")?);
    let call = NsaCase {
        shape,
        q: &q,
        selected: [&k, &v],
        window: [&k, &v],
        compressed: [&k_cmp, &v_cmp],
        gates: &gates,
        scale: scale(case, "scale", shape[4])?,
        sizes: [block, block, block, count, window],
        // the cases come from flash-linear-attention
        whole_blocks: true,
    };
    let result = reference::nsa(&call);
    let rows = |data: &[f64]| {
        HostTensor::of([batch, seq, heads_q, dim_v], swapped(data, [batch, heads_q, seq, dim_v]))
    };
    let blocks = swapped(&result.blocks, [batch, heads_kv, seq, count]);
    let [compressed, selected, window] = &result.branches;
    Ok(named([
        ("block_indices", whole([batch, seq, heads_kv, count], blocks)),
        ("o_compressed", rows(compressed)),
        ("o_selected", rows(selected)),
        ("o_window", rows(window)),
        ("o", rows(&result.o)),
    ]))
}

fn nsa_run(gpu: &Gpu, case: &Case, dtype: DType, path: Option<&str>) -> Result<Outcome> {
    let (shape, [block, count, window]) = nsa_shape(case)?;
    let subgroups = known_path(case, path, NSA.paths)?;
    let view = |name: &str, dtype| {
        let (data, shape) = case.floats(name)?;
        Ok::<Tensor, Error>(upload(gpu, data, shape, dtype)?.permute(&[0, 2, 1, 3]))
    };
    let tokens = [view("k", dtype)?, view("v", dtype)?];
    let inputs = NsaInputs {
        q: view("q", dtype)?,
        compressed: [view("k_cmp", dtype)?, view("v_cmp", dtype)?],
        selected: tokens.clone(),
        window: tokens,
        gates: view("gates", DType::F32)?,
    };
    let mut nsa = NativeSparseAttention::new(block as u32, count, window as u32).whole_blocks();
    nsa = nsa.scale(scale(case, "scale", shape[4])? as f32);
    if let Some(wanted) = subgroups {
        nsa = nsa.subgroups(wanted);
    }
    let out = nsa.run(gpu, &inputs)?;
    let read = |t: &Tensor| HostTensor::download(gpu, &t.permute(&[0, 2, 1, 3]));
    let [compressed, selected, window] = &out.branches;
    let tensors = named([
        ("block_indices", read(&out.blocks)?),
        ("o_compressed", read(compressed)?),
        ("o_selected", read(selected)?),
        ("o_window", read(window)?),
        ("o", read(&out.o)?),
    ]);
    Ok(Outcome { kernel: family(subgroups, "nsa"), tensors })
}
