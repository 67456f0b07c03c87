//! Variants of the kernels that keep a state.

use super::Variants;
use crate::Result;
use crate::kernels::{causal_conv1d, chunk_states, gated_norm, linear_step, selective_scan};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![
        (causal_conv1d::NAME, size_of::<causal_conv1d::Params>()),
        (causal_conv1d::TAIL, size_of::<causal_conv1d::TailParams>()),
        (linear_step::NAME, size_of::<linear_step::Params>()),
        (selective_scan::NAME, size_of::<selective_scan::Params>()),
        (gated_norm::NAME, size_of::<gated_norm::Params>()),
        (chunk_states::NAME, size_of::<chunk_states::Params>()),
    ]
}

const LOADERS: [&str; 3] = ["load_f32_element", "load_f16_element", "load_bf16_element"];

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    for loader in LOADERS {
        for on in [false, true] {
            let bias = on.then_some(loader);
            let conv = causal_conv1d::Problem { x: loader, w: loader, bias, silu: on, ragged: on, keep: on };
            found.add(causal_conv1d::NAME, &causal_conv1d::constants(conv), 0)?;
            found.add(causal_conv1d::TAIL, &causal_conv1d::tail_constants(conv), 0)?;
        }
    }
    for (dim_k, dim_v) in [(64, 128), (128, 64), (256, 33), (5, 7)] {
        for (loader, on) in LOADERS.into_iter().zip([false, true, false]) {
            let linear = linear_step::Problem {
                dim_k,
                dim_v,
                q: loader,
                k: loader,
                v: loader,
                dt: on,
                dt_bias: on,
                skip: on,
                ragged: on,
                keep: on,
            };
            for (output, store) in [(true, true), (false, true), (true, false)] {
                found.add(linear_step::NAME, &linear.constants(output, store), linear.workgroup_bytes())?;
            }
        }
    }
    for dim in [16, 5, 64] {
        for (loader, on) in LOADERS.into_iter().zip([false, true, false]) {
            let scan = selective_scan::Problem {
                dim,
                x: loader,
                b: loader,
                c: loader,
                dt_bias: on,
                ragged: on,
                keep: on,
            };
            for (output, store) in [(true, true), (false, true), (true, false)] {
                found.add(selective_scan::NAME, &scan.constants(output, store), scan.workgroup_bytes())?;
            }
        }
    }
    for (loader, before) in LOADERS.into_iter().zip([false, true, false]) {
        for silu in [false, true] {
            let norm = gated_norm::Problem { before, silu, x: loader, z: loader, w: loader };
            found.add(gated_norm::NAME, &gated_norm::constants(norm), gated_norm::WORKGROUP_BYTES)?;
        }
    }
    for rates in [false, true] {
        found.add(chunk_states::NAME, &chunk_states::constants(rates), 0)?;
    }
    Ok(())
}
