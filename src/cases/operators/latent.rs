//! `mla` and `rope`: latent attention and rotary embedding.

use std::collections::BTreeMap;

use super::Operator;
use crate::cases::{Case, HostTensor, Outcome, round, upload};
use crate::model::RopeLayout;
use crate::reference::{self, MlaCase, Rounding};
use crate::{Angles, DType, Gpu, Mla, MlaPath, MlaShape, MlaTensors, Result, Rotary};

pub(super) const MLA: Operator = Operator {
    name: "mla",
    paths: &[
        "mla_absorbed_attention_tiled",
        "mla_absorbed_attention_subgroup",
        "mla_expanded_attention_tiled",
        "mla_expanded_attention_subgroup",
        "mla_mixed",
        "mla_segments",
    ],
    dtypes: &[DType::F32, DType::F16, DType::Bf16],
    reference: mla_reference,
    run: mla_run,
};

pub(super) const ROPE: Operator = Operator {
    name: "rope",
    paths: &["rope"],
    dtypes: &[DType::F32, DType::F16, DType::Bf16],
    reference: rope_reference,
    run: rope_run,
};

fn mla_shape(case: &Case) -> Result<MlaShape> {
    case.only(&case.params, &["scale", "softcap", "mask"])?;
    if !case.params["softcap"].is_null() {
        return Err(case.fault("softcap", "is no option of latent attention; leave it null"));
    }
    case.only_inputs(&["q_nope", "q_rope", "c_kv", "k_rope", "w_uk", "w_uv", "kv_len"])?;
    let [batch, heads, seq_q, nope] = case.four("q_nope")?;
    let [_, seq_kv, rank] = case.axes("c_kv")?;
    let [_, _, rope] = case.axes("k_rope")?;
    let [_, dim_v, _] = case.axes("w_uv")?;
    case.shaped("q_rope", &[batch, heads, seq_q, rope], false)?;
    case.shaped("c_kv", &[batch, seq_kv, rank], false)?;
    case.shaped("k_rope", &[batch, seq_kv, rope], false)?;
    case.shaped("w_uk", &[heads, nope, rank], false)?;
    case.shaped("w_uv", &[heads, dim_v, rank], false)?;
    case.shaped("kv_len", &[batch], true)?;
    Ok(MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v })
}

fn mla_scale(case: &Case, shape: &MlaShape) -> Result<f64> {
    let own = || ((shape.nope + shape.rope) as f64).powf(-0.5);
    Ok(case.number(&case.params, "scale")?.unwrap_or_else(own))
}

fn mla_reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let shape = mla_shape(case)?;
    let rounded = |name: &str| Ok::<_, crate::Error>(round(case.floats(name)?.0, dtype));
    let [q_nope, q_rope] = [rounded("q_nope")?, rounded("q_rope")?];
    let [c_kv, k_rope, w_uk, w_uv] =
        [rounded("c_kv")?, rounded("k_rope")?, rounded("w_uk")?, rounded("w_uv")?];
    let (mut o, lse) = reference::mla(&MlaCase {
        shape,
        mask: case.mask()?,
        q_nope: &q_nope,
        q_rope: &q_rope,
        c_kv: &c_kv,
        k_rope: &k_rope,
        w_uk: &w_uk,
        w_uv: &w_uv,
        scale: mla_scale(case, &shape)?,
        kv_len: case.inputs.get("kv_len").and_then(HostTensor::integers),
    })?;
    if let Rounding::Output(to) = rounding {
        let stored: Vec<_> = o.iter().map(|&x| x as f32).collect();
        o = round(&stored, to).into_iter().map(f64::from).collect();
    }
    let MlaShape { batch, heads, seq_q, dim_v, .. } = shape;
    Ok(BTreeMap::from([
        ("o".to_owned(), HostTensor::of([batch, heads, seq_q, dim_v], o)),
        ("lse".to_owned(), HostTensor::of([batch, heads, seq_q], lse)),
    ]))
}

fn mla_run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    let shape = mla_shape(case)?;
    let tensor = |name: &str| {
        let (data, shape) = case.floats(name)?;
        upload(gpu, data, shape, dtype)
    };
    let (c_kv, k_rope) = (case.floats("c_kv")?.0, case.floats("k_rope")?.0);
    let tokens = c_kv.chunks_exact(shape.rank).zip(k_rope.chunks_exact(shape.rope));
    let latents: Vec<f32> = tokens.flat_map(|(c, k)| c.iter().chain(k)).copied().collect();
    let latents = upload(gpu, &latents, &[shape.batch, shape.seq_kv, shape.rank + shape.rope], dtype)?;
    let mut mla = Mla::causal().mask(case.mask()?).scale(mla_scale(case, &shape)? as f32).output(dtype);
    if let Some(lengths) = case.inputs.get("kv_len").and_then(HostTensor::integers) {
        let lengths: Vec<_> = lengths.iter().map(|&n| n.max(0) as u32).collect();
        mla = mla.kv_len(&lengths);
    }
    let cached = shape.seq_kv > shape.seq_q;
    match kernel.map(|k| k.trim_start_matches("mla_")) {
        None => {}
        // a case without cached tokens has no mixed path: its plan's own stands in, cut in two
        Some("mixed") if cached => mla = mla.path(MlaPath::Mixed),
        Some("mixed" | "segments") => mla = mla.segment(shape.seq_kv.div_ceil(3).max(1)),
        Some(name) => {
            let (path, kernel) = name.split_once('_').unwrap_or((name, ""));
            let path = if path == "absorbed" { MlaPath::Absorbed } else { MlaPath::Expanded };
            mla = mla.path(path).kernel(kernel);
        }
    }
    let (q_nope, q_rope) = (tensor("q_nope")?, tensor("q_rope")?);
    let (w_uk, w_uv) = (tensor("w_uk")?, tensor("w_uv")?);
    let tensors =
        MlaTensors { q_nope: &q_nope, q_rope: &q_rope, latents: &latents, w_uk: &w_uk, w_uv: &w_uv };
    let path = mla.plan(&shape)?.path;
    let out = mla.run(gpu, &tensors)?;
    let mut found = BTreeMap::from([("o".to_owned(), HostTensor::download(gpu, &out.o)?)]);
    if let Some(lse) = out.lse {
        found.insert("lse".to_owned(), HostTensor::download(gpu, &lse)?);
    }
    let kernel = kernel.map_or_else(|| format!("mla_{path:?}").to_lowercase(), str::to_owned);
    Ok(Outcome { kernel, tensors: found })
}

/// Frequencies, factor, and whether pairs are interleaved.
fn rotation(case: &Case) -> Result<(Vec<f64>, f64, bool)> {
    case.only(&case.params, &["rotary_dim", "layout", "theta", "attention_factor"])?;
    case.only_inputs(&["x", "positions", "inv_freq"])?;
    let [batch, _, seq, _] = case.four("x")?;
    case.shaped("positions", &[batch, seq], true)?;
    let factor = case.number(&case.params, "attention_factor")?.unwrap_or(1.0);
    let interleaved = match case.params["layout"].as_str() {
        Some("half") => false,
        Some("interleaved") => true,
        _ => return Err(case.fault("layout", "must be half or interleaved")),
    };
    let dim = case.count(&case.params, "rotary_dim")?;
    let dim = dim.ok_or_else(|| case.fault("rotary_dim", "is missing; say how many elements turn"))?;
    let theta = case.number(&case.params, "theta")?.unwrap_or(10_000.0);
    let inverse = match case.inputs.get("inv_freq").and_then(HostTensor::floats) {
        Some(given) => given.iter().map(|&x| f64::from(x)).collect(),
        None => crate::model::Rope::new(theta, dim, RopeLayout::Half).inverse_frequencies(0),
    };
    Ok((inverse, factor, interleaved))
}

fn rope_reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let (inverse, factor, interleaved) = rotation(case)?;
    let [batch, heads, seq, dim] = case.four("x")?;
    let x = round(case.floats("x")?.0, dtype);
    let positions = case.input("positions")?.integers().unwrap_or_default();
    let mut y = Vec::new();
    for (row, x) in x.chunks_exact(dim.max(1)).enumerate() {
        let position = positions[row / (heads * seq) * seq + row % seq];
        y.extend(reference::rope(x, position.into(), &inverse, factor, interleaved));
    }
    if let Rounding::Output(to) = rounding {
        let stored: Vec<_> = y.iter().map(|&x| x as f32).collect();
        y = round(&stored, to).into_iter().map(f64::from).collect();
    }
    Ok(BTreeMap::from([("y".to_owned(), HostTensor::of([batch, heads, seq, dim], y))]))
}

fn rope_run(gpu: &Gpu, case: &Case, dtype: DType, _: Option<&str>) -> Result<Outcome> {
    let (inverse, factor, interleaved) = rotation(case)?;
    let layout = if interleaved { RopeLayout::Interleaved } else { RopeLayout::Half };
    let positions = case.input("positions")?.integers().unwrap_or_default();
    let positions: Vec<i64> = positions.iter().map(|&p| p.into()).collect();
    let (x, shape) = case.floats("x")?;
    let batch = shape[0];
    let rotary = Rotary::from_frequencies(&inverse, factor, layout).angles(Angles::Exact).batch(batch);
    let table = rotary.table(gpu, &positions)?;
    let y = table.run(gpu, &upload(gpu, x, shape, dtype)?, dtype)?;
    let tensors = BTreeMap::from([("y".to_owned(), HostTensor::download(gpu, &y)?)]);
    Ok(Outcome { kernel: "rope".into(), tensors })
}
