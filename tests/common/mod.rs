//! What the tests share.
#![allow(dead_code, clippy::unwrap_used, reason = "each test file uses a part; helpers fail as tests do")]

use std::sync::OnceLock;

use half::{bf16, f16};
use wgpu_attention::reference::{self, AttentionCase, Rounding};
use wgpu_attention::{Attention, AttentionOutput, AttentionShape, DType, Gpu, Mask, Tensor};

/// The device of this process; `WGPU_ATTENTION_PORTABLE=1` leaves it nothing beyond WebGPU's defaults.
pub(crate) fn gpu() -> &'static Gpu {
    static GPU: OnceLock<Gpu> = OnceLock::new();
    GPU.get_or_init(|| {
        let portable = std::env::var_os("WGPU_ATTENTION_PORTABLE").is_some_and(|v| v == "1");
        if portable { Gpu::builder().portable().build().unwrap() } else { Gpu::new().unwrap() }
    })
}

/// Kernels of attention that fit the device.
pub(crate) fn kernels(gpu: &Gpu) -> Vec<&'static str> {
    let mut kernels = vec!["attention_tiled"];
    if gpu.limits().subgroup.is_some() {
        kernels.insert(0, "attention_subgroup");
    }
    kernels
}

/// Elements before and after each output that no kernel may touch: whole vectors of any storage type.
const GUARD: usize = 16;

/// Numbers between -1 and 1 that are the same everywhere.
pub(crate) fn noise(seed: u32, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    let next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        (state >> 8) as f32 / 8_388_608.0 - 1.0
    };
    std::iter::repeat_with(next).take(count).collect()
}

/// A call with its data in main memory: runs on a device and by definition.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pub(crate) shape: AttentionShape,
    pub(crate) mask: Mask,
    pub(crate) q: Vec<f32>,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) scale: f32,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: Option<Vec<f32>>,
    pub(crate) alibi: Option<Vec<f32>>,
    pub(crate) kv_len: Option<Vec<i32>>,
    pub(crate) q_starts: Option<Vec<i32>>,
    pub(crate) bias: Option<(Vec<f32>, [usize; 4], DType)>,
    /// Storage of q, of k and v, and of the output.
    pub(crate) dtypes: [DType; 3],
    pub(crate) kernel: Option<&'static str>,
    pub(crate) splits: Option<u32>,
    pub(crate) layout: Layout,
}

/// How q, k and v lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `[batch, heads, seq, dim]`
    Packed,
    /// `[batch, seq, heads, dim]`, seen through a permuted view.
    PositionMajor,
    /// A slice of rows that are wider by this many elements on either side, all of them NaN.
    Wide(usize),
}

/// `[batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v]`
pub(crate) fn shape(n: [usize; 7]) -> AttentionShape {
    let [batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v] = n;
    AttentionShape { batch, heads_q, heads_kv, seq_q, seq_kv, dim_k, dim_v }
}

impl Call {
    /// Noise of a shape, causal.
    pub(crate) fn new(n: [usize; 7]) -> Self {
        let [b, hq, hkv, lq, lk, dk, dv] = n;
        Self {
            shape: shape(n),
            mask: Mask::causal(),
            q: noise(1, b * hq * lq * dk),
            k: noise(2, b * hkv * lk * dk),
            v: noise(3, b * hkv * lk * dv),
            scale: (dk as f32).powf(-0.5),
            softcap: None,
            sinks: None,
            alibi: None,
            kv_len: None,
            q_starts: None,
            bias: None,
            dtypes: [DType::F32; 3],
            kernel: None,
            splits: None,
            layout: Layout::Packed,
        }
    }

    /// The operator with this call's options.
    pub(crate) fn attention(&self, gpu: &Gpu) -> Attention {
        let mut a = Attention::bidirectional().mask(self.mask).scale(self.scale).output(self.dtypes[2]);
        if let Some(cap) = self.softcap {
            a = a.softcap(cap);
        }
        if let Some(x) = &self.sinks {
            a = a.sinks(&Tensor::from_slice(gpu, x, [x.len()]).unwrap());
        }
        if let Some(x) = &self.alibi {
            a = a.alibi(&Tensor::from_slice(gpu, x, [x.len()]).unwrap());
        }
        if let Some(x) = &self.kv_len {
            a = a.kv_len(&Tensor::from_slice(gpu, x, [x.len()]).unwrap());
        }
        if let Some(x) = &self.q_starts {
            a = a.q_starts(&Tensor::from_slice(gpu, x, [x.len()]).unwrap());
        }
        if let Some((x, shape, dtype)) = &self.bias {
            a = a.bias(&stored(gpu, x, *shape, *dtype));
        }
        if let Some(kernel) = self.kernel {
            a = a.kernel(kernel);
        }
        if let Some(splits) = self.splits {
            a = a.splits(splits);
        }
        a
    }

    /// q, k and v on the device.
    pub(crate) fn tensors(&self, gpu: &Gpu) -> [Tensor; 3] {
        let s = &self.shape;
        let place = |data: &[f32], n: [usize; 4], dtype| {
            let [b, h, l, d] = n;
            match self.layout {
                Layout::Packed => stored(gpu, data, n, dtype),
                Layout::PositionMajor => {
                    let mut moved = vec![0.0; data.len()];
                    for (flat, &x) in data.iter().enumerate() {
                        let (ix, row) = (flat % d, flat / d);
                        let (i, j, z) = (row % l, row / l % h, row / l / h);
                        moved[((z * l + i) * h + j) * d + ix] = x;
                    }
                    stored(gpu, &moved, [b, l, h, d], dtype).permute(&[0, 2, 1, 3])
                }
                Layout::Wide(side) => {
                    let beside = vec![f32::NAN; side];
                    let wide: Vec<f32> =
                        data.chunks(d).flat_map(|row| [&beside, row, &beside].concat()).collect();
                    stored(gpu, &wide, [b, h, l, d + 2 * side], dtype).narrow(3, side, d).unwrap()
                }
            }
        };
        [
            place(&self.q, [s.batch, s.heads_q, s.seq_q, s.dim_k], self.dtypes[0]),
            place(&self.k, [s.batch, s.heads_kv, s.seq_kv, s.dim_k], self.dtypes[1]),
            place(&self.v, [s.batch, s.heads_kv, s.seq_kv, s.dim_v], self.dtypes[1]),
        ]
    }

    /// `(o, lse)` of the device, written over NaN; what lies around both must stay.
    pub(crate) fn run(&self, gpu: &Gpu) -> (Vec<f32>, Vec<f32>) {
        let [q, k, v] = self.tensors(gpu);
        let AttentionShape { batch, heads_q, seq_q, dim_v, .. } = self.shape;
        let rows = batch * heads_q * seq_q;
        let guarded = |count: usize, dtype| {
            let all = vec![f32::NAN; count + 2 * GUARD];
            stored(gpu, &all, [1, 1, 1, all.len()], dtype)
        };
        let (around_o, around_lse) = (guarded(rows * dim_v, self.dtypes[2]), guarded(rows, DType::F32));
        let strides = [heads_q * seq_q * dim_v, seq_q * dim_v, dim_v, 1];
        let out = AttentionOutput {
            o: around_o.view(GUARD, &[batch, heads_q, seq_q, dim_v], &strides).unwrap(),
            lse: Some(
                around_lse.view(GUARD, &[batch, heads_q, seq_q], &[heads_q * seq_q, seq_q, 1]).unwrap(),
            ),
        };
        let mut encoder = gpu.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        self.attention(gpu).record(gpu, &mut encoder, &q, &k, &v, &out).unwrap();
        gpu.submit(encoder).unwrap();
        let inner = |tensor: Tensor| {
            let all = tensor.read_f32(gpu).unwrap();
            let (before, rest) = all.split_at(GUARD);
            let (inner, after) = rest.split_at(rest.len() - GUARD);
            assert!(
                before.iter().chain(after).all(|x| x.is_nan()),
                "written around the output of {self:.0?}"
            );
            inner.to_vec()
        };
        (inner(around_o), inner(around_lse))
    }

    /// The same through the convenience on top, which allocates the outputs itself.
    pub(crate) fn run_plainly(&self, gpu: &Gpu) -> (Vec<f32>, Vec<f32>) {
        let [q, k, v] = self.tensors(gpu);
        let out = self.attention(gpu).run(gpu, &q, &k, &v).unwrap();
        (out.o.read_f32(gpu).unwrap(), out.lse.unwrap().read(gpu).unwrap())
    }

    /// `(o, lse)` by definition, from inputs rounded as they are stored.
    pub(crate) fn reference(&self) -> (Vec<f64>, Vec<f64>) {
        let [q, k, v] = [(&self.q, 0), (&self.k, 1), (&self.v, 1)].map(|(x, at)| rounded(x, self.dtypes[at]));
        let bias = self.bias.as_ref().map(|(x, shape, dtype)| (rounded(x, *dtype), *shape, *dtype));
        let hidden = if bias.as_ref().is_some_and(|b| b.2 == DType::F16) { -65504.0 } else { -1e30 };
        let case = AttentionCase {
            shape: self.shape,
            mask: self.mask,
            q: &q,
            k: &k,
            v: &v,
            scale: f64::from(self.scale),
            softcap: self.softcap.map(f64::from),
            sinks: self.sinks.as_deref(),
            alibi: self.alibi.as_deref(),
            kv_len: self.kv_len.as_deref(),
            q_starts: self.q_starts.as_deref(),
            bias: bias.as_ref().map(|(x, shape, _)| (x.as_slice(), *shape)),
            bias_hidden: hidden,
        };
        reference::attention(&case, Rounding::None).unwrap()
    }

    /// Runs on the device and compares with the definition; says what differs.
    pub(crate) fn judged(&self, gpu: &Gpu) -> Result<(), String> {
        let (o, lse) = self.run(gpu);
        let (want_o, want_lse) = self.reference();
        // half a unit in the last place: one rounding of the output to its storage type
        let step = match self.dtypes[2] {
            DType::F16 => 2f64.powi(-11),
            DType::Bf16 => 2f64.powi(-8),
            _ => 0.0,
        };
        compare("o", &o, &want_o, BOUND, step)
            .and_then(|()| compare("lse", &lse, &want_lse, BOUND, 0.0))
            .map_err(|why| format!("{why}; {}", format!("{self:.1?}").chars().take(900).collect::<String>()))
    }

    /// Runs on the device and compares with the definition.
    pub(crate) fn check(&self, gpu: &Gpu) {
        self.judged(gpu).unwrap();
    }

    /// Checks the call on every kernel that fits.
    pub(crate) fn check_all(&self, gpu: &Gpu) {
        for kernel in kernels(gpu) {
            Self { kernel: Some(kernel), ..self.clone() }.check(gpu);
        }
    }
}

/// Error of an element that f32 arithmetic may make, as a share of the larger of 1 and the largest element.
pub(crate) const BOUND: f64 = 2e-5;

/// Each element within `bound` of the larger of 1 and the largest, plus `step` of its own size; finite where
/// the definition is.
pub(crate) fn compare(what: &str, got: &[f32], want: &[f64], bound: f64, step: f64) -> Result<(), String> {
    if got.len() != want.len() {
        return Err(format!("{what} has {} elements, not {}", got.len(), want.len()));
    }
    let top = want.iter().filter(|x| x.is_finite()).fold(1.0, |m: f64, x| m.max(x.abs()));
    let wrong = |&(_, (&g, &w)): &(usize, (&f32, &f64))| {
        let g = f64::from(g);
        !(if w.is_finite() { (g - w).abs() <= bound * top + step * w.abs() } else { g == w })
    };
    let count = got.iter().zip(want).enumerate().filter(wrong).count();
    match got.iter().zip(want).enumerate().find(wrong) {
        Some((ix, (g, w))) => Err(format!("{what}: {count} wrong, the first is {ix}: got {g:e}, want {w:e}")),
        None => Ok(()),
    }
}

/// [`compare`], failing the test.
pub(crate) fn close(what: &str, got: &[f32], want: &[f64], bound: f64, step: f64) {
    compare(what, got, want, bound, step).unwrap();
}

pub(crate) fn rounded(data: &[f32], dtype: DType) -> Vec<f32> {
    match dtype {
        DType::F16 => data.iter().map(|&x| f16::from_f32(x).to_f32()).collect(),
        DType::Bf16 => data.iter().map(|&x| bf16::from_f32(x).to_f32()).collect(),
        _ => data.to_vec(),
    }
}

/// A tensor of a storage type.
pub(crate) fn stored(gpu: &Gpu, data: &[f32], shape: [usize; 4], dtype: DType) -> Tensor {
    match dtype {
        DType::F16 => {
            let data: Vec<_> = data.iter().map(|&x| f16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape).unwrap()
        }
        DType::Bf16 => {
            let data: Vec<_> = data.iter().map(|&x| bf16::from_f32(x)).collect();
            Tensor::from_slice(gpu, &data, shape).unwrap()
        }
        _ => Tensor::from_slice(gpu, data, shape).unwrap(),
    }
}
