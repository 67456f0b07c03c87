//! Faults that other projects shipped, each with the smallest input that shows it, on every kernel.
//!
//! A name starts with the row of the catalogue it stands for: S masks and softmax, T shapes and heads, W windows,
//! chunks and sinks, G limits of devices and of WGSL, J merging.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod device;
mod merging;
mod shapes;
mod softmax;
mod windows;

use common::{Call, gpu, kernels};

/// Values whose row j is the j-th unit vector: the output is the weights.
fn identity(n: usize) -> Vec<f32> {
    (0..n * n).map(|i| f32::from(u8::from(i / n == i % n))).collect()
}

/// `(o, lse)` of every kernel.
fn on_each_kernel(call: &Call, look: impl Fn(&[f32], &[f32])) {
    for kernel in kernels(gpu()) {
        let (o, lse) = Call { kernel: Some(kernel), ..call.clone() }.run(gpu());
        look(&o, &lse);
    }
}

fn near(a: f32, b: f32, bound: f32) -> bool {
    (a - b).abs() <= bound
}
