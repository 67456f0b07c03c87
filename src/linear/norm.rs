//! The gated normalisation behind linear attention and state-space layers.

use super::common::{Target, check_float, check_packed, check_shape, check_shared, check_size, whole};
use crate::gpu::{DType, Gpu, Step, Tensor};
use crate::kernels::attention::element_loader;
use crate::kernels::gated_norm::{MAX_GROUP, Params, Problem, steps};
use crate::{Error, Result};

/// RMS normalisation with a gate.
///
/// | layer | order | gate | normalised at once |
/// |---|---|---|---|
/// | Gated `DeltaNet` | after | `SiLU` | a head: x `[…, dim_v]` |
/// | Kimi | after | sigmoid | a head: x `[…, dim_v]` |
/// | lightning | after | sigmoid | all heads: x `[…, heads * dim_v]` |
/// | Mamba-2 | before | `SiLU` | a group: x `[…, inner]` with [`groups`](Self::groups) |
///
/// ```no_run
/// # use wgpu_attention::{Gpu, Tensor, linear::GatedNorm};
/// # fn f(gpu: &Gpu, x: &Tensor, z: &Tensor, w: &Tensor) -> wgpu_attention::Result<()> {
/// let y = GatedNorm::after().silu().eps(1e-6).run(gpu, x, z, w)?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy)]
pub struct GatedNorm {
    before: bool,
    silu: bool,
    eps: f32,
    groups: usize,
    output: DType,
}

impl GatedNorm {
    fn new(before: bool) -> Self {
        Self { before, silu: true, eps: 1e-6, groups: 1, output: DType::F32 }
    }

    /// `y = x / sqrt(mean(x^2) + eps) * w * act(z)`.
    #[must_use]
    pub fn after() -> Self {
        Self::new(false)
    }

    /// `y = u / sqrt(mean(u^2) + eps) * w` with `u = x * act(z)` (Mamba-2).
    #[must_use]
    pub fn before() -> Self {
        Self::new(true)
    }

    /// `act` is `SiLU`, the default.
    #[must_use]
    pub fn silu(mut self) -> Self {
        self.silu = true;
        self
    }

    /// `act` is the sigmoid.
    #[must_use]
    pub fn sigmoid(mut self) -> Self {
        self.silu = false;
        self
    }

    /// Added to the mean of squares; 1e-6 by default.
    #[must_use]
    pub fn eps(mut self, eps: f32) -> Self {
        self.eps = eps;
        self
    }

    /// Groups of a row that are normalised each by itself; 1 by default.
    #[must_use]
    pub fn groups(mut self, groups: usize) -> Self {
        self.groups = groups;
        self
    }

    /// Storage of the result that [`run`](Self::run) allocates; f32 by default.
    #[must_use]
    pub fn output(mut self, dtype: DType) -> Self {
        self.output = dtype;
        self
    }

    /// Computes into a new tensor of `x`'s shape. `x` and `z` are `[…, width]`, `w` is `[width]`; f32, f16 or bf16,
    /// packed.
    ///
    /// # Errors
    /// Tensors of unfitting shapes, strides or storage, a width that is not whole groups, an eps that is negative or
    /// not finite, tensors beyond what the device binds at once, or what the device itself refuses.
    pub fn run(&self, gpu: &Gpu, x: &Tensor, z: &Tensor, w: &Tensor) -> Result<Tensor> {
        check_float("output", self.output)?;
        let y = Tensor::uninitialised(gpu, self.output, x.shape())?;
        gpu.run_steps(&[], &self.launch(gpu, [x, z, w], &y)?)?;
        Ok(y)
    }

    /// Records the call into the caller's own encoder; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and an output that is strided, of another shape, or in an input's buffer.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        [x, z, w]: [&Tensor; 3],
        y: &Tensor,
    ) -> Result<()> {
        gpu.record(encoder, &[], &self.launch(gpu, [x, z, w], y)?)
    }

    fn launch(&self, gpu: &Gpu, [x, z, w]: [&Tensor; 3], y: &Tensor) -> Result<Vec<Step>> {
        let Some(&width) = x.shape().last() else {
            return Err(Error::Shape {
                field: "x",
                shape: Vec::new(),
                expected: "[…, width]".into(),
                remedy: "give at least one axis",
            });
        };
        check_shape("z", z, x.shape())?;
        check_shape("w", w, &[width])?;
        for (field, t) in [("x", x), ("z", z), ("w", w)] {
            check_float(field, t.dtype())?;
            check_packed(field, t)?;
        }
        if self.groups == 0 || !width.is_multiple_of(self.groups) {
            return Err(Error::OutOfRange {
                field: "groups",
                value: self.groups.to_string(),
                bound: format!("a divisor of the width {width}"),
                remedy: "give the model's own number of groups",
            });
        }
        check_size("width", width / self.groups, MAX_GROUP)?;
        if !self.eps.is_finite() || self.eps < 0.0 {
            return Err(Error::OutOfRange {
                field: "eps",
                value: self.eps.to_string(),
                bound: "finite and not negative".into(),
                remedy: "give the model's own number",
            });
        }
        check_shared(&[("y", y)], &[("x", x), ("z", z), ("w", w)])?;
        let target = Target::new(gpu, "y", y, x.shape())?;
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let (x_binding, x_base) = whole(gpu, "x", x)?;
        let (z_binding, z_base) = whole(gpu, "z", z)?;
        let (w_binding, w_base) = whole(gpu, "w", w)?;
        let group = width / self.groups;
        let params = Params {
            rows: (x.len() / group) as u32,
            group: group as u32,
            groups: self.groups as u32,
            bases: [x_base, z_base, w_base, target.base],
            eps: self.eps,
            ..Params::default()
        };
        let problem = Problem {
            before: self.before,
            silu: self.silu,
            x: element_loader(x.dtype()),
            z: element_loader(z.dtype()),
            w: element_loader(w.dtype()),
        };
        let bindings = [x_binding, z_binding, w_binding, target.binding.clone()];
        let mut all = steps(problem, params, &bindings, gpu.limits());
        target.finish(gpu, &mut all);
        Ok(all)
    }
}
