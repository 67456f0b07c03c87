//! The delta rules against their definition: lengths, widths, heads, gates, ragged batches, states, faults.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod call;
#[path = "../common/mod.rs"]
mod common;
mod faults;
mod gates;
mod states;

use call::{Call, KINDS, Kind};
use common::gpu;
use wgpu_attention::linear::{DeltaInputs, DeltaRule};
use wgpu_attention::{DType, Tensor};

#[test]
#[ignore = "takes long: scripts/test.sh --thorough runs it"]
fn lengths_around_chunks() {
    for kind in KINDS {
        for tokens in [0, 1, 3, 63, 64, 65, 130] {
            Call::new(kind, [1, tokens, 1, 2, 24, 20]).check_all(gpu());
        }
        Call { initial: None, ..Call::new(kind, [2, 67, 2, 4, 24, 20]) }.check_all(gpu());
        Call { initial: None, ..Call::new(kind, [1, 0, 1, 2, 24, 20]) }.check_all(gpu());
    }
}

#[test]
fn widths_from_one_to_256() {
    for (kind, dim_k, dim_v) in
        [(Kind::Gated, 1, 1), (Kind::Kimi, 2, 67), (Kind::Gated, 256, 10), (Kind::Gated, 6, 256)]
    {
        Call::new(kind, [1, 70, 1, 1, dim_k, dim_v]).check_all(gpu());
    }
}

#[test]
fn heads_are_grouped_or_tiled() {
    for tiled in [false, true] {
        let call = Call { tiled, ..Call::new(Kind::Gated, [2, 66, 2, 6, 12, 9]) };
        call.check_all(gpu());
        let other = Call { tiled: !tiled, ..call.clone() };
        assert!(common::compare("o", &other.run(gpu()).0, &call.reference().o, call::BOUND, 0.0).is_err());
    }
}

#[test]
fn any_number_of_tokens() {
    let call = Call::new(Kind::Gated, [1, 70_000, 1, 1, 4, 3]);
    call.check_all(gpu());
    let call = Call::new(Kind::Kimi, [1, 200_000, 1, 1, 3, 4]);
    for way in call::ways(gpu()).into_iter().filter(|way| *way != "delta_step") {
        Call { way: Some(way), ..call.clone() }.check(gpu());
    }
}

#[test]
fn calls_are_cut_to_the_devices_limits() {
    let small = gpu_of(1 << 20);
    for kind in [Kind::Gated, Kind::Kimi] {
        Call::new(kind, [3, 150, 1, 2, 16, 24]).check_all(&small);
    }
}

fn gpu_of(dispatch_flops: u64) -> wgpu_attention::Gpu {
    wgpu_attention::Gpu::builder().dispatch_flops(dispatch_flops).build().unwrap()
}

#[test]
fn packed_sequences_do_not_leak() {
    for kind in KINDS {
        let starts = vec![0, 3, 10, 11, 75, 75];
        let lengths = vec![3, 7, 1, 64, 0, 5];
        let call = Call::new(kind, [1, 83, 1, 2, 12, 10]);
        let initial = Some(common::noise(9, 6 * 2 * 12 * 10));
        Call { sequences: Some((starts.clone(), lengths.clone())), initial, ..call.clone() }.check_all(gpu());
        Call { sequences: Some((starts, lengths)), initial: None, ..call }.check_all(gpu());
    }
}

#[test]
fn padding_leaves_the_state_alone() {
    for kind in KINDS {
        let mut call = Call::new(kind, [3, 70, 1, 2, 12, 10]);
        call.sequences = Some((vec![5, 0, 69], vec![65, 64, 40]));
        // what is padding holds NaN
        for (b, live) in [(0, 5..70), (1, 0..64), (2, 69..70)] {
            for t in (0..70).filter(|t| !live.contains(t)) {
                for data in [&mut call.q, &mut call.k, &mut call.v, &mut call.g, &mut call.beta] {
                    let width = data.len() / 210;
                    data[(b * 70 + t) * width..][..width].fill(f32::NAN);
                }
            }
        }
        call.check_all(gpu());
        // values beyond the token axis are cut there
        let sequences = Some((vec![-4, 90, 3], vec![99, 4, -1]));
        Call { sequences, ..Call::new(kind, [3, 70, 1, 2, 12, 10]) }.check_all(gpu());
    }
}

#[test]
fn storage_and_strides() {
    let call = Call::new(Kind::Kimi, [1, 66, 2, 2, 16, 12]);
    for (dtype, step) in [(DType::F16, 2f64.powi(-11)), (DType::Bf16, 2f64.powi(-8))] {
        for output in [DType::F32, dtype] {
            for way in call::ways(gpu()) {
                let stored = |data: &[f32], n| common::stored(gpu(), data, n, dtype);
                // heads before tokens in memory
                let moved = |data: &[f32], d: usize| {
                    let mut out = vec![0.0; data.len()];
                    for (flat, &x) in data.iter().enumerate() {
                        let (t, h, c) = (flat / (2 * d), flat / d % 2, flat % d);
                        out[(h * 66 + t) * d + c] = x;
                    }
                    stored(&out, [1, 2, 66, d]).permute(&[0, 2, 1, 3])
                };
                let (q, k, v) = (moved(&call.q, 16), moved(&call.k, 16), moved(&call.v, 12));
                let [.., beta, _] = call.tensors(gpu());
                let g = stored(&call.g, [1, 66, 2, 16]);
                let inputs = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, g: Some(&g) };
                let rule = call.rule(gpu()).output(output).kernel(way);
                let out = rule.run(gpu(), &inputs).unwrap();
                let round = |t: &Tensor| t.read_f32(gpu()).unwrap();
                let exact = Call { q: round(&q), k: round(&k), v: round(&v), g: round(&g), ..call.clone() };
                let want = exact.reference();
                let step = if output == DType::F32 { 0.0 } else { step };
                common::close("o", &round(&out.o), &want.o, call::BOUND, step);
                common::close("state", &round(&out.state), &want.state, call::BOUND, 0.0);
            }
        }
    }
}

#[test]
fn what_cannot_run_is_refused_by_name() {
    let call = Call::new(Kind::Gated, [1, 4, 1, 2, 8, 8]);
    let [q, k, v, beta, g] = call.tensors(gpu());
    let inputs = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, g: Some(&g) };
    let told = |rule: DeltaRule, inputs: &DeltaInputs<'_>, words: &[&str]| {
        let error = rule.run(gpu(), inputs).unwrap_err().to_string();
        assert!(words.iter().all(|w| error.contains(w)), "{error}");
    };
    told(DeltaRule::plain(), &inputs, &["g = given", "DeltaRule::gated()"]);
    told(DeltaRule::gated(), &DeltaInputs { g: None, ..inputs }, &["g = none", "DeltaRule::plain()"]);
    told(DeltaRule::kimi(), &inputs, &["g has shape [1, 4, 2]", "[1, 4, 2, 8]"]);
    told(DeltaRule::gated(), &DeltaInputs { k: &v, ..inputs }, &["k has shape [1, 4, 2, 8]"]);
    told(
        DeltaRule::gated(),
        &DeltaInputs { beta: &g.narrow(1, 0, 3).unwrap(), ..inputs },
        &["beta has shape"],
    );
    told(DeltaRule::gated().initial_state(&q), &inputs, &["initial_state has shape", "[1, 2, 8, 8]"]);
    told(DeltaRule::gated().scale(f32::NAN), &inputs, &["scale is NaN"]);
    told(DeltaRule::gated().keep_states().kernel("delta_chunk"), &inputs, &["delta_chunk", "each token"]);
    told(DeltaRule::gated().kernel("delta"), &inputs, &["no kernel for the delta rule"]);
    let wide = Tensor::from_slice(gpu(), &vec![0.0f32; 4 * 257], [1, 4, 1, 257]).unwrap();
    told(DeltaRule::gated(), &DeltaInputs { q: &wide, k: &wide, ..inputs }, &["dim_k is 257", "1 to 256"]);
    let three = Tensor::from_slice(gpu(), &vec![0.0f32; 4 * 24], [1, 4, 3, 8]).unwrap();
    told(DeltaRule::gated(), &DeltaInputs { q: &three, k: &three, ..inputs }, &["heads is 2", "heads_k = 3"]);
}
