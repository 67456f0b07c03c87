//! `causal_conv1d`, `lightning_attention`, `selective_scan`: layers that keep a state.

use std::collections::BTreeMap;

use super::Operator;
use crate::cases::{Case, HostTensor, Outcome, round, upload};
use crate::linear::{CausalConv1d, LightningAttention, ScanInputs, SelectiveScan};
use crate::reference::{self, Rounding};
use crate::{DType, Error, Gpu, Result, Tensor};

const FLOATS: &[DType] = &[DType::F32, DType::F16, DType::Bf16];

pub(super) const CAUSAL_CONV1D: Operator = Operator {
    name: "causal_conv1d",
    paths: &["causal_conv1d"],
    dtypes: FLOATS,
    reference: conv_reference,
    run: conv_run,
};

/// Output by name and state, as a definition gives them; states stay f32.
fn given(
    name: &str,
    shape: &[usize],
    data: Vec<f64>,
    state: &[usize],
    held: Vec<f64>,
    rounding: Rounding,
) -> BTreeMap<String, HostTensor> {
    let data = match rounding {
        Rounding::None => data,
        Rounding::Output(dtype) => {
            let narrow: Vec<_> = data.into_iter().map(|x| x as f32).collect();
            round(&narrow, dtype).into_iter().map(f64::from).collect()
        }
    };
    BTreeMap::from([
        (name.to_owned(), HostTensor::of(shape, data)),
        ("final_state".to_owned(), HostTensor::of(state, held)),
    ])
}

fn downloaded(gpu: &Gpu, kernel: &str, name: &str, output: &Tensor, state: &Tensor) -> Result<Outcome> {
    let tensors = BTreeMap::from([
        (name.to_owned(), HostTensor::download(gpu, output)?),
        ("final_state".to_owned(), HostTensor::download(gpu, state)?),
    ]);
    Ok(Outcome { kernel: kernel.to_owned(), tensors })
}

fn axes<const N: usize>(case: &Case, name: &str) -> Result<[usize; N]> {
    let shape = &case.input(name)?.shape;
    <[usize; N]>::try_from(shape.as_slice())
        .map_err(|_| case.fault(&format!("in.{name}"), format!("has shape {shape:?}, not {N} axes")))
}

fn optional<'a>(case: &'a Case, name: &str) -> Option<&'a [f32]> {
    case.inputs.get(name).and_then(HostTensor::floats)
}

/// An input stored as `dtype`.
fn tensor(gpu: &Gpu, case: &Case, name: &str, dtype: DType) -> Result<Tensor> {
    let (data, shape) = case.floats(name)?;
    upload(gpu, data, shape, dtype)
}

fn conv_check(case: &Case) -> Result<([usize; 4], bool)> {
    case.only(&case.params, &["activation"])?;
    case.only_inputs(&["x", "w", "bias", "initial_state"])?;
    let [batch, tokens, channels] = axes(case, "x")?;
    let [_, taps] = axes(case, "w")?;
    case.shaped("w", &[channels, taps], false)?;
    case.shaped("bias", &[channels], false)?;
    case.shaped("initial_state", &[batch, channels, taps.saturating_sub(1)], false)?;
    let silu = match &case.params["activation"] {
        serde_json::Value::Null => false,
        serde_json::Value::String(name) if name == "silu" => true,
        other => return Err(case.fault("activation", format!("is {other}, not null or \"silu\""))),
    };
    Ok(([batch, tokens, channels, taps], silu))
}

fn conv_reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let ([batch, tokens, channels, taps], silu) = conv_check(case)?;
    let rounded = |name: &str| Ok::<_, Error>(round(case.floats(name)?.0, dtype));
    let (x, w) = (rounded("x")?, rounded("w")?);
    let bias = optional(case, "bias").map(|b| round(b, dtype));
    let (y, state) = reference::causal_conv1d(&reference::ConvCase {
        tokens,
        channels,
        x: &x,
        w: &w,
        bias: bias.as_deref(),
        silu,
        initial: optional(case, "initial_state"),
        sequences: None,
    });
    Ok(given("y", &[batch, tokens, channels], y, &[batch, channels, taps - 1], state, rounding))
}

fn conv_run(gpu: &Gpu, case: &Case, dtype: DType, _: Option<&str>) -> Result<Outcome> {
    let (_, silu) = conv_check(case)?;
    let mut conv = if silu { CausalConv1d::silu() } else { CausalConv1d::linear() }.output(dtype);
    if case.inputs.contains_key("bias") {
        conv = conv.bias(&tensor(gpu, case, "bias", dtype)?);
    }
    if case.inputs.contains_key("initial_state") {
        conv = conv.initial_state(&tensor(gpu, case, "initial_state", DType::F32)?);
    }
    let out = conv.run(gpu, &tensor(gpu, case, "x", dtype)?, &tensor(gpu, case, "w", dtype)?)?;
    downloaded(gpu, "causal_conv1d", "y", &out.y, &out.state)
}

pub(super) const LIGHTNING: Operator = Operator {
    name: "lightning_attention",
    paths: &["linear_step", "linear_chunk"],
    dtypes: FLOATS,
    reference: lightning_reference,
    run: lightning_run,
};

fn lightning_check(case: &Case) -> Result<[usize; 5]> {
    case.only(&case.params, &[])?;
    case.only_inputs(&["q", "k", "v", "slope", "initial_state"])?;
    let [batch, heads, tokens, dim_k] = case.four("q")?;
    let [.., dim_v] = case.four("v")?;
    case.shaped("k", &[batch, heads, tokens, dim_k], false)?;
    case.shaped("v", &[batch, heads, tokens, dim_v], false)?;
    case.shaped("slope", &[heads], false)?;
    case.shaped("initial_state", &[batch, heads, dim_k, dim_v], false)?;
    Ok([batch, heads, tokens, dim_k, dim_v])
}

fn lightning_reference(
    case: &Case,
    dtype: DType,
    rounding: Rounding,
) -> Result<BTreeMap<String, HostTensor>> {
    let sizes @ [batch, heads, tokens, dim_k, dim_v] = lightning_check(case)?;
    let rounded = |name: &str| Ok::<_, Error>(round(case.floats(name)?.0, dtype));
    let (q, k, v) = (rounded("q")?, rounded("k")?, rounded("v")?);
    let (o, state) = reference::lightning_attention(&reference::LightningCase {
        sizes,
        q: &q,
        k: &k,
        v: &v,
        slope: case.floats("slope")?.0,
        initial: optional(case, "initial_state"),
        sequences: None,
    });
    Ok(given("o", &[batch, heads, tokens, dim_v], o, &[batch, heads, dim_k, dim_v], state, rounding))
}

fn lightning_run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    lightning_check(case)?;
    let mut lightning = LightningAttention::new(&tensor(gpu, case, "slope", DType::F32)?).output(dtype);
    if case.inputs.contains_key("initial_state") {
        lightning = lightning.initial_state(&tensor(gpu, case, "initial_state", DType::F32)?);
    }
    if let Some(name) = kernel {
        lightning = lightning.kernel(name);
    }
    let read = |name| tensor(gpu, case, name, dtype);
    let out = lightning.run(gpu, &read("q")?, &read("k")?, &read("v")?)?;
    downloaded(gpu, kernel.unwrap_or("linear_step"), "o", &out.o, &out.state)
}

pub(super) const SELECTIVE_SCAN: Operator = Operator {
    name: "selective_scan",
    paths: &["selective_scan", "selective_scan_chunk"],
    dtypes: FLOATS,
    reference: scan_reference,
    run: scan_run,
};

fn scan_check(case: &Case) -> Result<[usize; 4]> {
    case.only(&case.params, &[])?;
    case.only_inputs(&["x", "dt", "A", "B", "C", "D", "initial_state"])?;
    let [batch, tokens, channels] = axes(case, "x")?;
    let [_, dim] = axes(case, "A")?;
    case.shaped("dt", &[batch, tokens, channels], false)?;
    case.shaped("A", &[channels, dim], false)?;
    case.shaped("B", &[batch, tokens, dim], false)?;
    case.shaped("C", &[batch, tokens, dim], false)?;
    case.shaped("D", &[channels], false)?;
    case.shaped("initial_state", &[batch, channels, dim], false)?;
    Ok([batch, tokens, channels, dim])
}

fn scan_reference(case: &Case, dtype: DType, rounding: Rounding) -> Result<BTreeMap<String, HostTensor>> {
    let sizes @ [batch, tokens, channels, dim] = scan_check(case)?;
    let rounded = |name: &str| Ok::<_, Error>(round(case.floats(name)?.0, dtype));
    let (x, b, c) = (rounded("x")?, rounded("B")?, rounded("C")?);
    let (y, state) = reference::selective_scan(&reference::ScanCase {
        sizes,
        x: &x,
        dt: case.floats("dt")?.0,
        a: case.floats("A")?.0,
        b: &b,
        c: &c,
        skip: case.floats("D")?.0,
        dt_bias: None,
        initial: optional(case, "initial_state"),
        sequences: None,
    });
    Ok(given("y", &[batch, tokens, channels], y, &[batch, channels, dim], state, rounding))
}

fn scan_run(gpu: &Gpu, case: &Case, dtype: DType, kernel: Option<&str>) -> Result<Outcome> {
    scan_check(case)?;
    let whole = |name| tensor(gpu, case, name, DType::F32);
    let mut scan = SelectiveScan::new(&whole("A")?, &whole("D")?).output(dtype);
    if case.inputs.contains_key("initial_state") {
        scan = scan.initial_state(&whole("initial_state")?);
    }
    if let Some(name) = kernel {
        scan = scan.kernel(name);
    }
    let read = |name| tensor(gpu, case, name, dtype);
    let (x, dt, b, c) = (read("x")?, whole("dt")?, read("B")?, read("C")?);
    let out = scan.run(gpu, &ScanInputs { x: &x, dt: &dt, b: &b, c: &c })?;
    downloaded(gpu, kernel.unwrap_or("selective_scan"), "y", &out.y, &out.state)
}
