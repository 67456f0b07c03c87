//! Rotary position embedding: tables of angles on the host, rotation on the device.

use crate::attention::{operand, row_stride};
use crate::gpu::{Binding, DType, Gpu, Step, Tensor};
use crate::kernels::rope as kernel;
use crate::model::{Rope, RopeLayout, Temperature};
use crate::{Error, Result};

/// How angles are rounded before their cosine and sine are taken.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Angles {
    /// As Hugging Face's code does: frequency, position and their product each rounded to f32. What models
    /// were trained and are compared with; positions beyond 2^24 are refused, since f32 skips some of them.
    #[default]
    HuggingFace,
    /// The exact product, in f64. Differs from the other by up to 4e-3 at position 131,071.
    Exact,
}

/// A rotation and how its angles are made: what [`RotaryTable`]s of any positions come from.
#[derive(Debug, Clone)]
pub struct Rotary {
    frequencies: Frequencies,
    layout: RopeLayout,
    angles: Angles,
    temperature: Option<Temperature>,
    length: u64,
    batch: usize,
}

#[derive(Debug, Clone)]
enum Frequencies {
    Rope(Rope),
    Given { inverse: Vec<f64>, factor: f64 },
}

/// Cosines and sines of a list of positions, on the device; all layers with the same rotation share it.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | table | `[1 or batch, rows, 2 * pairs + 1]` | f32 |
#[derive(Debug, Clone)]
pub struct RotaryTable {
    table: Tensor,
    pairs: usize,
    layout: RopeLayout,
}

fn out_of_range(field: &'static str, value: &dyn ToString, bound: &str, remedy: &'static str) -> Error {
    Error::OutOfRange { field, value: value.to_string(), bound: bound.into(), remedy }
}

impl Rotary {
    /// The rotation of a model's layer. Source: *`RoFormer`*; scalings as Hugging Face's `rope_type`s.
    #[must_use]
    pub fn new(rope: &Rope) -> Self {
        Self::of(Frequencies::Rope(rope.clone()), rope.layout)
    }

    /// A rotation by the given frequencies, radians a position of each pair, as a checkpoint or another
    /// program has them; `factor` multiplies cosine and sine.
    #[must_use]
    pub fn from_frequencies(inverse: &[f64], factor: f64, layout: RopeLayout) -> Self {
        Self::of(Frequencies::Given { inverse: inverse.to_vec(), factor }, layout)
    }

    /// Nothing turns: rows are copied, or scaled by a [`temperature`](Self::temperature).
    #[must_use]
    pub fn none() -> Self {
        Self::from_frequencies(&[], 1.0, RopeLayout::Half)
    }

    fn of(frequencies: Frequencies, layout: RopeLayout) -> Self {
        Self { frequencies, layout, angles: Angles::default(), temperature: None, length: 0, batch: 1 }
    }

    /// How angles are rounded, by default as Hugging Face's code does.
    #[must_use]
    pub fn angles(mut self, angles: Angles) -> Self {
        self.angles = angles;
        self
    }

    /// A factor of the whole row by its position (queries of Llama 4's layers without rotation).
    #[must_use]
    pub fn temperature(mut self, temperature: Temperature) -> Self {
        self.temperature = Some(temperature);
        self
    }

    /// Length of the sequence in tokens, on which dynamic scaling and `longrope` depend. Keys that were
    /// cached under the frequencies of another length do not mix with these.
    #[must_use]
    pub fn length(mut self, tokens: u64) -> Self {
        self.length = tokens;
        self
    }

    /// The positions are `batch` runs, one after another; by default one run that every entry shares.
    #[must_use]
    pub fn batch(mut self, batch: usize) -> Self {
        self.batch = batch;
        self
    }

    /// Uploads the cosines and sines of these positions.
    ///
    /// # Errors
    /// An odd `rotary_dim`, numbers that are not finite, positions that do not fill the runs or that f32
    /// cannot hold, or no memory.
    pub fn table(&self, gpu: &Gpu, positions: &[i64]) -> Result<RotaryTable> {
        let (inverse, factor) = match &self.frequencies {
            Frequencies::Rope(rope) => {
                check_rope(rope)?;
                (rope.inverse_frequencies(self.length), rope.scaling.attention_factor())
            }
            Frequencies::Given { inverse, factor } => (inverse.clone(), *factor),
        };
        if let Some(bad) = inverse.iter().chain([&factor]).find(|x| !x.is_finite()) {
            return Err(out_of_range("scaling", bad, "finite", "check theta and the scaling's numbers"));
        }
        if self.batch == 0 || !positions.len().is_multiple_of(self.batch) {
            let bound = format!("a whole number for each of {} runs", self.batch);
            return Err(out_of_range("positions", &positions.len(), &bound, "give every run as many"));
        }
        if self.angles == Angles::HuggingFace && !inverse.is_empty() {
            if let Some(far) = positions.iter().find(|p| p.unsigned_abs() > 1 << 24) {
                let remedy = "ask for Angles::Exact";
                return Err(out_of_range("positions", far, "within 2^24, where f32 is exact", remedy));
            }
        }
        let mut table = Vec::with_capacity(positions.len() * (2 * inverse.len() + 1));
        for &position in positions {
            let warmth = self.temperature.map_or(1.0, |t| t.factor(position));
            for &inverse in &inverse {
                let angle = match self.angles {
                    Angles::Exact => position as f64 * inverse,
                    Angles::HuggingFace => f64::from(position as f32 * inverse as f32),
                };
                let (sin, cos) = angle.sin_cos();
                table.extend([(warmth * factor * cos) as f32, (warmth * factor * sin) as f32]);
            }
            table.push(warmth as f32);
        }
        if let Some(bad) = table.iter().find(|x| !x.is_finite()) {
            return Err(out_of_range("temperature", bad, "finite at every position", "check its numbers"));
        }
        let shape = [self.batch, positions.len() / self.batch, 2 * inverse.len() + 1];
        let table = Tensor::from_slice(gpu, &table, shape)?;
        Ok(RotaryTable { table, pairs: inverse.len(), layout: self.layout })
    }
}

impl RotaryTable {
    /// Positions of a run.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.table.shape()[1]
    }

    /// Elements at the start of a row that turn.
    #[must_use]
    pub fn rotary_dim(&self) -> usize {
        2 * self.pairs
    }

    /// Rotates rows into a tensor of storage type `dtype`.
    ///
    /// `x`: `[batch, heads, rows, dim]`, any strides; the first [`rotary_dim`](Self::rotary_dim) elements of
    /// a row turn, the others are copied. Where only the last elements turn (latent attention), pass
    /// [`Tensor::narrow`] of them.
    ///
    /// # Errors
    /// Tensors that do not fit the table, or limits, by name; or the device's own words.
    pub fn run(&self, gpu: &Gpu, x: &Tensor, dtype: DType) -> Result<Tensor> {
        self.check(gpu, "x", x)?;
        let y = Tensor::uninitialised(gpu, dtype, x.shape())?;
        gpu.run_steps(&[], &self.steps(gpu, x, &y)?)?;
        Ok(y)
    }

    /// Records the rotation into the caller's own encoder, writing to any view of the same shape: a slice of
    /// a cache, say, in the cache's storage type. Submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), outputs in the input's buffer, and 16-bit rows that do not start on whole words.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        x: &Tensor,
        y: &Tensor,
    ) -> Result<()> {
        gpu.record(encoder, &[], &self.steps(gpu, x, y)?)
    }

    fn check(&self, gpu: &Gpu, field: &'static str, t: &Tensor) -> Result<()> {
        let [batch, rows] = [self.table.shape()[0], self.table.shape()[1]];
        let fits = match *t.shape() {
            [b, _, l, d] => (batch == 1 || b == batch) && l == rows && d >= self.rotary_dim().max(1),
            _ => false,
        };
        if !fits {
            let b = if batch == 1 { "batch".to_owned() } else { batch.to_string() };
            let expected = format!("[{b}, heads, {rows}, at least {}]", self.rotary_dim().max(1));
            let remedy = "make the table for the tensor's positions, and rows as wide as they turn";
            return Err(Error::Shape { field, shape: t.shape().to_vec(), expected, remedy });
        }
        operand(field, t)?;
        let (needed, allowed) = (t.span_bytes(), gpu.limits().binding_bytes);
        if needed > allowed {
            let limit = "max_storage_buffer_binding_size";
            return Err(Error::Binding { field, needed, limit, allowed, split: "rows" });
        }
        Ok(())
    }

    /// The dispatches that turn `x` into `y`.
    pub(crate) fn steps(&self, gpu: &Gpu, x: &Tensor, y: &Tensor) -> Result<Vec<Step>> {
        self.check(gpu, "x", x)?;
        self.check(gpu, "y", y)?;
        if x.shape() != y.shape() {
            let expected = format!("{:?}, as x has", x.shape());
            let remedy = "give the result x's shape";
            return Err(Error::Shape { field: "y", shape: y.shape().to_vec(), expected, remedy });
        }
        row_stride("y", y)?;
        check_words("y", y)?;
        if x.buffer() == y.buffer() {
            return Err(Error::SharedBuffer { field: "y", other: "x" });
        }
        if x.is_empty() {
            return Ok(Vec::new());
        }
        let strides = self.table.strides();
        let shared = self.table.shape()[0] == 1;
        let (table, base) = self.table.bind(gpu, 0, self.table.span());
        let at = [base, if shared { 0 } else { strides[0] as u32 }, strides[1] as u32];
        turn(gpu, x, y, (table, at), self.pairs, self.layout)
    }

    /// The same table for positions `first .. first + count` of each run.
    pub(crate) fn narrow(&self, first: usize, count: usize) -> Result<Self> {
        Ok(Self { table: self.table.narrow(1, first, count)?, ..self.clone() })
    }
}

/// The dispatches that copy rows into a view of another layout or storage type.
pub(crate) fn copy_steps(gpu: &Gpu, x: &Tensor, y: &Tensor) -> Result<Vec<Step>> {
    check_words("y", y)?;
    if x.is_empty() {
        return Ok(Vec::new());
    }
    let one = Tensor::from_slice(gpu, &[1.0_f32], [1])?;
    let (table, base) = one.bind(gpu, 0, 1);
    turn(gpu, x, y, (table, [base, 0, 0]), 0, RopeLayout::Half)
}

fn turn(
    gpu: &Gpu,
    x: &Tensor,
    y: &Tensor,
    table: (Binding, [u32; 3]),
    pairs: usize,
    layout: RopeLayout,
) -> Result<Vec<Step>> {
    let limits = gpu.limits();
    let interleaved = layout == RopeLayout::Interleaved;
    let constants = kernel::constants(interleaved, operand("x", x)?, operand("y", y)?, limits);
    let (x_binding, x_base) = x.bind(gpu, 0, x.span());
    let (y_binding, y_base) = y.bind(gpu, 0, y.span());
    let params = kernel::Params {
        dim: x.shape()[3] as u32,
        pairs: pairs as u32,
        heads: x.shape()[1] as u32,
        rows: x.shape()[2] as u32,
        x: x.place(x_base),
        y: y.place(y_base),
        table: table.1,
        ..kernel::Params::default()
    };
    let bindings = [x_binding, table.0, y_binding];
    Ok(kernel::steps(&constants, x.shape()[0], params, &bindings, limits.workgroups))
}

/// Rows of 16-bit elements must start on whole words and fill them: two rows must not share one.
pub(crate) fn check_words(field: &'static str, t: &Tensor) -> Result<()> {
    let even = |n: usize| n.is_multiple_of(2);
    let last = t.shape().len() - 1;
    let rows = t.shape().iter().zip(t.strides()).take(last).all(|(&n, &s)| n <= 1 || even(s));
    if t.dtype() == DType::F32 || (rows && even(t.shape()[last]) && t.offset_bytes().is_multiple_of(4)) {
        return Ok(());
    }
    Err(Error::Strides {
        field,
        strides: t.strides().to_vec(),
        bound: "16-bit rows must be of even width and start on whole words",
        remedy: "pad the rows to an even width, or store f32",
    })
}

fn check_rope(rope: &Rope) -> Result<()> {
    if !rope.rotary_dim.is_multiple_of(2) || rope.rotary_dim == 0 {
        return Err(out_of_range(
            "rotary_dim",
            &rope.rotary_dim,
            "even and above 0",
            "round it down to pairs",
        ));
    }
    if !(rope.theta.is_finite() && rope.theta > 0.0) {
        return Err(out_of_range("theta", &rope.theta, "finite and above 0", "read rope_theta of the model"));
    }
    Ok(())
}
