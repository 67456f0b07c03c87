//! Decays and strengths at their extremes, and made from logits.

use crate::call::{Call, KINDS, Kind};
use crate::common::{gpu, noise};

#[test]
fn strong_decays_stay_finite() {
    for kind in [Kind::Gated, Kind::Kimi] {
        for strong in [-5.0, -30.0, -200.0, -2661.0, f32::NEG_INFINITY] {
            let mut call = Call::new(kind, [1, 70, 1, 1, 10, 9]);
            call.g.fill(strong);
            call.check_all(gpu());
            // now and then among weak ones
            let mut call = Call::new(kind, [1, 140, 1, 1, 10, 9]);
            let width = call.g.len() / 140;
            for (i, g) in call.g.iter_mut().enumerate() {
                *g = if i / width % 37 == 3 { strong } else { -0.001 };
            }
            call.check_all(gpu());
        }
    }
}

#[test]
fn strengths_from_zero_to_two() {
    for kind in KINDS {
        let mut call = Call::new(kind, [1, 130, 1, 2, 8, 8]);
        call.beta.fill(0.0);
        call.check_all(gpu());
        call.beta = noise(7, 260).into_iter().map(|x| 1.0 + x).collect();
        call.check_all(gpu());
        call.beta.fill(2.0);
        call.g.fill(0.0);
        call.check_all(gpu());
    }
}

#[test]
fn equal_keys_overwrite_each_other() {
    for kind in KINDS {
        for beta in [0.5, 1.0, 2.0] {
            let mut call = Call::new(kind, [1, 64, 1, 1, 16, 8]);
            let key = noise(8, 16);
            call.k = key.repeat(64);
            call.beta.fill(beta);
            call.g.fill(0.0);
            call.check_all(gpu());
        }
    }
    // a second write of a unit key leaves its own value
    let mut call = Call { l2norm: None, ..Call::new(Kind::Gated, [1, 2, 1, 1, 4, 3]) };
    call.k = [0.5f32; 8].to_vec();
    call.g.fill(0.0);
    call.beta.fill(1.0);
    let (_, state) = call.run(gpu());
    for c in 0..3 {
        let read: f32 = (0..4).map(|i| 0.5 * state[i * 3 + c]).sum();
        assert!((read - call.v[3 + c]).abs() < 1e-6);
    }
}

#[test]
fn keys_that_are_not_normalised() {
    for kind in KINDS {
        let mut call = Call { l2norm: None, ..Call::new(kind, [1, 130, 1, 2, 6, 8]) };
        for b in &mut call.beta {
            *b *= 0.5;
        }
        call.check_all(gpu());
    }
}

#[test]
fn no_decay_is_as_accurate_as_the_plain_rule() {
    let mut call = Call::new(Kind::Gated, [1, 256, 1, 1, 16, 16]);
    call.g.fill(0.0);
    call.beta.fill(1.0);
    call.check_all(gpu());
}

#[test]
fn gates_from_logits() {
    for kind in [Kind::Gated, Kind::Kimi] {
        for factor in [1.0, 2.0] {
            let mut call = Call::new(kind, [2, 66, 1, 2, 10, 9]);
            for g in &mut call.g {
                *g *= 5.0;
            }
            call.beta = noise(7, call.beta.len()).into_iter().map(|x| 30.0 * x).collect();
            let biases = if kind == Kind::Kimi { 20 } else { 2 };
            call.gate = Some((vec![2f32.ln(), -1.0], noise(11, biases)));
            call.beta_factor = Some(factor);
            call.check_all(gpu());
        }
    }
}
