//! Multi-head latent attention: one latent and one rotated key per token, absorbed or expanded.

mod launch;
mod plan;

pub use plan::{MlaPath, MlaPlan};

use crate::gpu::{DType, Gpu, Tensor};
use crate::mask::Mask;
use crate::rope::RotaryTable;
use crate::{AttentionOutput, Error, MAX_DIM, Result};

/// Sizes of a latent attention call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct MlaShape {
    /// Sequences.
    pub batch: usize,
    /// Heads.
    pub heads: usize,
    /// New queries.
    pub seq_q: usize,
    /// Tokens whose latents are there, the queries' own included.
    pub seq_kv: usize,
    /// Width of a key's part without rotation (`qk_nope_head_dim`).
    pub nope: usize,
    /// Width of the rotated part that all heads share (`qk_rope_head_dim`).
    pub rope: usize,
    /// Width of the latent (`kv_lora_rank`).
    pub rank: usize,
    /// Width of a value (`v_head_dim`).
    pub dim_v: usize,
}

/// Tensors of a latent attention call.
///
/// | tensor | shape | storage |
/// |---|---|---|
/// | `q_nope` | `[batch, heads, seq_q, nope]` | f32, f16, bf16 |
/// | `q_rope` | `[batch, heads, seq_q, rope]` | f32, f16, bf16 |
/// | latents | `[batch, seq_kv, rank + rope]`: normalised latent, then rotated key | f32, f16, bf16 |
/// | `w_uk` | `[heads, nope, rank]` | f32, f16, bf16 |
/// | `w_uv` | `[heads, dim_v, rank]` | f32, f16, bf16 |
///
/// Any strides, with neighbours on the last axis: `q_nope` and `q_rope` are [`Tensor::narrow`]s of a query
/// `[nope | rope]`, the matrices come from [`split_kv_b`](Self::split_kv_b).
#[derive(Debug, Clone, Copy)]
pub struct MlaTensors<'a> {
    /// Queries' part without rotation.
    pub q_nope: &'a Tensor,
    /// Queries' rotated part; rotated already unless [`Mla::rotary`] is given.
    pub q_rope: &'a Tensor,
    /// The cache: what [`RotaryTable::record`] and the latent's norm write.
    pub latents: &'a Tensor,
    /// Up-projection of keys.
    pub w_uk: &'a Tensor,
    /// Up-projection of values.
    pub w_uv: &'a Tensor,
}

/// Where the results of a call lie: `o` `[batch, heads, seq_q, dim_v]`, `lse` `[batch, heads, seq_q]`.
pub type MlaOutput = AttentionOutput;

/// Multi-head latent attention and its options.
///
/// `o_h = W_UV_h sum_j p_hj c_j` with `p = softmax(scale (W_UK_h^T q_nope_h . c_j + q_rope_h . k_rope_j))`.
/// The absorbed path computes just that, reading each cached token once for all heads; the expanded path
/// first turns latents into every head's keys and values, which costs fewer operations for long prompts. Both
/// give the same answer; [`plan`](Self::plan) says which runs, and why. Source: *`DeepSeek-V2`*.
#[derive(Debug, Clone, Default)]
pub struct Mla {
    mask: Mask,
    scale: Option<f32>,
    kv_len: Option<Vec<u32>>,
    rotary: Option<RotaryTable>,
    output: Option<DType>,
    path: Option<MlaPath>,
    segment: Option<usize>,
    kernel: Option<String>,
}

impl MlaTensors<'_> {
    /// The two up-projections as views of `kv_b_proj`'s weight `[heads * (nope + dim_v), rank]`, which holds
    /// each head's key rows, then its value rows.
    ///
    /// # Errors
    /// The weight's rows are not `heads * (nope + dim_v)`.
    pub fn split_kv_b(weight: &Tensor, heads: usize, nope: usize, dim_v: usize) -> Result<[Tensor; 2]> {
        let rank = match *weight.shape() {
            [rows, rank] if rows == heads * (nope + dim_v) => rank,
            _ => {
                return Err(Error::Shape {
                    field: "weight",
                    shape: weight.shape().to_vec(),
                    expected: format!("[{heads} * ({nope} + {dim_v}), rank]"),
                    remedy: "give kv_b_proj's weight and the config's head sizes",
                });
            }
        };
        let s = weight.strides();
        let head = (nope + dim_v) * s[0];
        Ok([
            weight.view(0, &[heads, nope, rank], &[head, s[0], s[1]])?,
            weight.view(nope * s[0], &[heads, dim_v, rank], &[head, s[0], s[1]])?,
        ])
    }

    fn shape(&self) -> Result<MlaShape> {
        let wrong = |field, t: &Tensor, expected: &str| Error::Shape {
            field,
            shape: t.shape().to_vec(),
            expected: expected.to_owned(),
            remedy: "see MlaTensors for the axes",
        };
        let [batch, heads, seq_q, nope] = <[usize; 4]>::try_from(self.q_nope.shape())
            .map_err(|_| wrong("q_nope", self.q_nope, "[batch, heads, seq_q, nope]"))?;
        let [.., rope] = <[usize; 4]>::try_from(self.q_rope.shape())
            .map_err(|_| wrong("q_rope", self.q_rope, "[batch, heads, seq_q, rope]"))?;
        let [_, seq_kv, width] = <[usize; 3]>::try_from(self.latents.shape())
            .map_err(|_| wrong("latents", self.latents, "[batch, seq_kv, rank + rope]"))?;
        let [_, _, rank] = <[usize; 3]>::try_from(self.w_uk.shape())
            .map_err(|_| wrong("w_uk", self.w_uk, "[heads, nope, rank]"))?;
        let [_, dim_v, _] = <[usize; 3]>::try_from(self.w_uv.shape())
            .map_err(|_| wrong("w_uv", self.w_uv, "[heads, dim_v, rank]"))?;
        let expected: [(&'static str, &Tensor, &[usize]); 4] = [
            ("q_rope", self.q_rope, &[batch, heads, seq_q, rope]),
            ("latents", self.latents, &[batch, seq_kv, rank + rope]),
            ("w_uk", self.w_uk, &[heads, nope, rank]),
            ("w_uv", self.w_uv, &[heads, dim_v, rank]),
        ];
        for (field, t, shape) in expected {
            if t.shape() != shape {
                let which = format!("{shape:?} (width of latents: {width} = rank {rank} + rope {rope})");
                return Err(wrong(field, t, &which));
            }
        }
        Ok(MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v })
    }
}

impl Mla {
    /// Each query sees the tokens at or before its position.
    #[must_use]
    pub fn causal() -> Self {
        Self { mask: Mask::causal(), ..Self::default() }
    }

    /// Visibility in all its options.
    #[must_use]
    pub fn mask(mut self, mask: Mask) -> Self {
        self.mask = mask;
        self
    }

    /// Position of query row 0; by default the last query stands at the last token.
    #[must_use]
    pub fn q_start(mut self, position: i64) -> Self {
        self.mask.q_start = Some(position);
        self
    }

    /// Factor of the scores, by default `(nope + rope)^-0.5`, never `(rank + rope)^-0.5`. Models whose `YaRN`
    /// corrects the softmax multiply by
    /// [`RopeScaling::softmax_correction`](crate::model::RopeScaling::softmax_correction).
    #[must_use]
    pub fn scale(mut self, scale: f32) -> Self {
        self.scale = Some(scale);
        self
    }

    /// Valid tokens of each batch entry: those from there on are hidden and never read.
    #[must_use]
    pub fn kv_len(mut self, lengths: &[u32]) -> Self {
        self.kv_len = Some(lengths.to_vec());
        self
    }

    /// Rotates `q_rope` on its way in; the table must turn its whole width.
    #[must_use]
    pub fn rotary(mut self, table: &RotaryTable) -> Self {
        self.rotary = Some(table.clone());
        self
    }

    /// Storage type of `o` in [`run`](Self::run), by default f32.
    #[must_use]
    pub fn output(mut self, dtype: DType) -> Self {
        self.output = Some(dtype);
        self
    }

    /// Insists on a path; by default the one with fewer operations.
    #[must_use]
    pub fn path(mut self, path: MlaPath) -> Self {
        self.path = Some(path);
        self
    }

    /// Tokens that are attended to at once before partial results are merged, at most; by default as many as
    /// memory allows.
    #[must_use]
    pub fn segment(mut self, tokens: usize) -> Self {
        self.segment = Some(tokens);
        self
    }

    /// Insists on an attention kernel by its name in `shaders/`; for tests and measurements.
    #[must_use]
    pub fn kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// How a call of this shape would run: the path, and the operations of each.
    ///
    /// # Errors
    /// Widths that no kernel takes, or a path that the shape does not have.
    pub fn plan(&self, shape: &MlaShape) -> Result<MlaPlan> {
        self.check(shape)?;
        MlaPlan::choose(shape, self.mask.resolve(shape.seq_q, shape.seq_kv)?, self.path)
    }

    /// Allocates the results, runs, and returns once the work is submitted; reading back waits.
    ///
    /// # Errors
    /// A refused option, shape, stride or limit, by name; or the device's own words.
    pub fn run(&self, gpu: &Gpu, tensors: &MlaTensors<'_>) -> Result<MlaOutput> {
        let shape = tensors.shape()?;
        self.check(&shape)?;
        let rows = [shape.batch, shape.heads, shape.seq_q];
        let dtype = self.output.unwrap_or(DType::F32);
        let o = Tensor::uninitialised(gpu, dtype, [rows[0], rows[1], rows[2], shape.dim_v])?;
        let lse = Some(Tensor::uninitialised(gpu, DType::F32, rows)?);
        let out = MlaOutput { o, lse };
        let (copies, steps) = self.launch(gpu, tensors, &out)?;
        gpu.run_steps(&copies, &steps)?;
        Ok(out)
    }

    /// Records the call into the caller's own encoder, writing to the caller's own tensors; submits nothing.
    ///
    /// # Errors
    /// As [`run`](Self::run), and outputs that share a buffer with an input.
    pub fn record(
        &self,
        gpu: &Gpu,
        encoder: &mut wgpu::CommandEncoder,
        tensors: &MlaTensors<'_>,
        out: &MlaOutput,
    ) -> Result<()> {
        let (copies, steps) = self.launch(gpu, tensors, out)?;
        gpu.record(encoder, &copies, &steps)
    }

    fn check(&self, shape: &MlaShape) -> Result<()> {
        let MlaShape { batch, heads, seq_q, nope, rope, rank, dim_v, .. } = *shape;
        for (field, value, most) in [
            ("heads", heads, 1 << 16),
            ("nope", nope, MAX_DIM),
            ("rope", rope, MAX_DIM),
            ("rank", rank, MAX_DIM - rope.min(MAX_DIM)),
            ("dim_v", dim_v, MAX_DIM),
            ("nope + rope", nope + rope, MAX_DIM),
        ] {
            if value == 0 || value > most {
                return Err(Error::OutOfRange {
                    field,
                    value: value.to_string(),
                    bound: format!("between 1 and {most}"),
                    remedy: "rank + rope and nope + rope may be 576 at most",
                });
            }
        }
        if let Some(lengths) = self.kv_len.as_ref().filter(|l| l.len() != batch) {
            return Err(Error::OutOfRange {
                field: "kv_len",
                value: format!("{} lengths", lengths.len()),
                bound: format!("one for each of {batch} batch entries"),
                remedy: "give every entry its length",
            });
        }
        if let Some(table) = &self.rotary
            && (table.rotary_dim() != rope || table.rows() != seq_q)
        {
            return Err(Error::OutOfRange {
                field: "rotary",
                value: format!("a table of {} rows that turns {}", table.rows(), table.rotary_dim()),
                bound: format!("of {seq_q} rows that turns {rope}"),
                remedy: "make the table for the queries' positions and q_rope's width",
            });
        }
        if self.segment == Some(0) {
            return Err(Error::OutOfRange {
                field: "segment",
                value: "0".into(),
                bound: "at least 1".into(),
                remedy: "leave it out for the plan's own choice",
            });
        }
        Ok(())
    }

    /// Factor of the scores.
    fn factor(&self, shape: &MlaShape) -> f32 {
        self.scale.unwrap_or_else(|| ((shape.nope + shape.rope) as f32).powf(-0.5))
    }
}
