//! `delta_rule`, `gated_delta_rule`, `kda`.

use std::collections::BTreeMap;

use super::Operator;
use crate::cases::{Case, HostTensor, Outcome, round, upload};
use crate::linear::{DeltaInputs, DeltaRule};
use crate::reference::{DeltaCase, DeltaDecay, Rounding, delta_rule};
use crate::{DType, Gpu, Result, Tensor};

const fn operator(name: &'static str) -> Operator {
    Operator {
        name,
        paths: &["delta_step_subgroup", "delta_step", "delta_chunk"],
        dtypes: &[DType::F32, DType::F16, DType::Bf16],
        reference,
        run,
    }
}

pub(super) const DELTA_RULE: Operator = operator("delta_rule");
pub(super) const GATED_DELTA_RULE: Operator = operator("gated_delta_rule");
pub(super) const KDA: Operator = operator("kda");

/// `batch, tokens, heads_k, heads, dim_k, dim_v`
fn check(case: &Case) -> Result<[usize; 6]> {
    case.only(&case.params, &["scale", "qk_l2norm", "l2norm_eps"])?;
    let gates: &[&str] = if case.op == "delta_rule" { &[] } else { &["g"] };
    case.only_inputs(&[&["q", "k", "v", "beta", "initial_state"], gates].concat())?;
    let [batch, tokens, heads_k, dim_k] = case.four("q")?;
    let [.., heads, dim_v] = case.four("v")?;
    case.shaped("k", &[batch, tokens, heads_k, dim_k], false)?;
    case.shaped("v", &[batch, tokens, heads, dim_v], false)?;
    case.shaped("beta", &[batch, tokens, heads], false)?;
    case.shaped("initial_state", &[batch, heads, dim_k, dim_v], false)?;
    let channels: &[usize] = if case.op == "kda" { &[dim_k] } else { &[] };
    case.shaped("g", &[&[batch, tokens, heads], channels].concat(), false)?;
    if heads_k == 0 || heads % heads_k != 0 {
        return Err(case.fault("in.v", format!("has {heads} heads, no multiple of q's {heads_k}")));
    }
    Ok([batch, tokens, heads_k, heads, dim_k, dim_v])
}

/// `eps` of the norm, where it is wanted.
fn l2norm(case: &Case) -> Result<Option<f64>> {
    match &case.params["qk_l2norm"] {
        serde_json::Value::Null | serde_json::Value::Bool(false) => Ok(None),
        serde_json::Value::Bool(true) => Ok(Some(case.number(&case.params, "l2norm_eps")?.unwrap_or(1e-6))),
        other => Err(case.fault("qk_l2norm", format!("is {other}, not true or false"))),
    }
}

fn scale(case: &Case, dim_k: usize) -> Result<f64> {
    Ok(case.number(&case.params, "scale")?.unwrap_or_else(|| (dim_k as f64).powf(-0.5)))
}

fn reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let [batch, tokens, heads_k, heads, dim_k, dim_v] = check(case)?;
    let rounded = |name: &str| Ok::<_, crate::Error>(round(case.floats(name)?.0, dtype));
    let (q, k, v) = (rounded("q")?, rounded("k")?, rounded("v")?);
    let decay = match case.op.as_str() {
        "kda" => DeltaDecay::Channel(case.floats("g")?.0),
        "gated_delta_rule" => DeltaDecay::Head(case.floats("g")?.0),
        _ => DeltaDecay::None,
    };
    let call = DeltaCase {
        batch,
        tokens,
        heads_k,
        heads,
        dim_k,
        dim_v,
        q: &q,
        k: &k,
        v: &v,
        decay,
        beta: case.floats("beta")?.0,
        initial: case.inputs.get("initial_state").and_then(HostTensor::floats),
        sequences: None,
        scale: scale(case, dim_k)?,
        l2norm: l2norm(case)?,
        gate: None,
        beta_sigmoid: None,
        tiled_heads: false,
        keep_states: false,
    };
    let result = delta_rule(&call, rounding);
    Ok(BTreeMap::from([
        ("o".to_owned(), HostTensor::of([batch, tokens, heads, dim_v], result.o)),
        ("final_state".to_owned(), HostTensor::of([batch, heads, dim_k, dim_v], result.state)),
    ]))
}

fn run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    let [.., dim_k, _] = check(case)?;
    let tensor = |name: &str, dtype| -> Result<Tensor> {
        let (data, shape) = case.floats(name)?;
        upload(gpu, data, shape, dtype)
    };
    let mut rule = match case.op.as_str() {
        "kda" => DeltaRule::kimi(),
        "gated_delta_rule" => DeltaRule::gated(),
        _ => DeltaRule::plain(),
    };
    rule = rule.scale(scale(case, dim_k)? as f32).output(dtype);
    if let Some(eps) = l2norm(case)? {
        rule = rule.l2norm(eps as f32);
    }
    if case.inputs.contains_key("initial_state") {
        rule = rule.initial_state(&tensor("initial_state", DType::F32)?);
    }
    if let Some(name) = kernel {
        rule = rule.kernel(name);
    }
    let (q, k, v) = (tensor("q", dtype)?, tensor("k", dtype)?, tensor("v", dtype)?);
    let beta = tensor("beta", DType::F32)?;
    let g = if case.op == "delta_rule" { None } else { Some(tensor("g", DType::F32)?) };
    let inputs = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, g: g.as_ref() };
    let kernel = rule.plan_for(gpu, &inputs)?.kernel().to_owned();
    let out = rule.run(gpu, &inputs)?;
    let tensors = BTreeMap::from([
        ("o".to_owned(), HostTensor::download(gpu, &out.o)?),
        ("final_state".to_owned(), HostTensor::download(gpu, &out.state)?),
    ]);
    Ok(Outcome { kernel, tensors })
}
