//! Splitting, keeping and restoring states.

use wgpu_attention::Tensor;
use wgpu_attention::linear::{DeltaInputs, DeltaOutput};

use crate::call::{BOUND, Call, KINDS, Kind, ways};
use crate::common::{close, gpu};

#[test]
fn split_anywhere_equals_the_whole() {
    for kind in [Kind::Gated, Kind::Kimi] {
        let whole = Call::new(kind, [1, 130, 1, 1, 6, 5]);
        let want = whole.reference();
        for way in ways(gpu()) {
            for at in 0..=130 {
                let way = Some(way);
                let first = Call { way, ..whole.part(0..at, whole.initial.clone()) };
                let (mut o, state) = first.run(gpu());
                let second = Call { way, ..whole.part(at..130, Some(state)) };
                let (rest, state) = second.run(gpu());
                o.extend(rest);
                close("o", &o, &want.o, BOUND, 0.0);
                close("state", &state, &want.state, BOUND, 0.0);
            }
        }
    }
}

#[test]
fn kept_states_equal_single_steps_and_going_back_is_exact() {
    for kind in KINDS {
        let call = Call { keep: true, ..Call::new(kind, [1, 7, 1, 2, 20, 12]) };
        call.check_all(gpu());
        for way in ways(gpu()).into_iter().filter(|w| *w != "delta_chunk") {
            let call = Call { way: Some(way), ..call.clone() };
            let (o, states) = call.run(gpu());
            let size = states.len() / 8;
            for j in 0..7 {
                // from the state after j tokens, the next token gives bit for bit what it gave
                let back =
                    Call { keep: false, ..call.part(j..j + 1, Some(states[j * size..][..size].to_vec())) };
                let (next, state) = back.run(gpu());
                assert_eq!(next, o[j * 24..][..24], "{kind:?} {way} {j}");
                assert_eq!(state, states[(j + 1) * size..][..size], "{kind:?} {way} {j}");
            }
        }
        let ragged = Call { sequences: Some((vec![0, 2, 2], vec![2, 0, 5])), initial: None, ..call };
        ragged.check_all(gpu());
    }
}

#[test]
fn a_state_may_be_updated_in_place() {
    let call = Call::new(Kind::Gated, [2, 3, 1, 2, 16, 16]);
    let [q, k, v, beta, g] = call.tensors(gpu());
    let inputs = DeltaInputs { q: &q, k: &k, v: &v, beta: &beta, g: Some(&g) };
    let state = Tensor::from_slice(gpu(), call.initial.as_deref().unwrap(), [2, 2, 16, 16]).unwrap();
    let o = Tensor::from_slice(gpu(), &[f32::NAN; 192], [2, 3, 2, 16]).unwrap();
    let out = DeltaOutput { o, state: state.clone() };
    let rule = call.rule(gpu()).initial_state(&state);
    let mut encoder = gpu().device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    rule.record(gpu(), &mut encoder, &inputs, &out).unwrap();
    gpu().submit(encoder).unwrap();
    let want = call.reference();
    close("o", &out.o.read::<f32>(gpu()).unwrap(), &want.o, BOUND, 0.0);
    close("state", &state.read::<f32>(gpu()).unwrap(), &want.state, BOUND, 0.0);
}

#[test]
fn a_prompt_then_steps_equal_one_run() {
    for kind in KINDS {
        let whole = Call::new(kind, [1, 75, 2, 2, 9, 7]);
        let want = whole.reference();
        for way in ways(gpu()) {
            let mut call = Call { way: Some(way), ..whole.part(0..70, whole.initial.clone()) };
            let (mut o, mut state) = call.run(gpu());
            for t in 70..75 {
                call = whole.part(t..t + 1, Some(state));
                let (next, after) = call.run(gpu());
                o.extend(next);
                state = after;
            }
            close("o", &o, &want.o, BOUND, 0.0);
            close("state", &state, &want.state, BOUND, 0.0);
        }
    }
}
