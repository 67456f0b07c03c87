//! Workloads of the layers that keep a state.

use super::workload::{Call, Check, Comparison, Prepared, Work, Workload, numbers};
use crate::cases::{round, upload};
use crate::kernels::{causal_conv1d, linear_step, selective_scan};
use crate::limits::Limits;
use crate::linear::{
    CausalConv1d, ConvOutput, LightningAttention, LightningOutput, ScanInputs, ScanOutput, SelectiveScan,
};
use crate::reference;
use crate::{DType, Gpu, Result, Tensor};

/// A call on one sequence.
#[derive(Debug, Clone, Copy)]
enum Recurrent {
    Lightning { heads: usize, tokens: usize, dim: usize },
    Scan { channels: usize, tokens: usize, dim: usize },
    Conv { channels: usize, tokens: usize, taps: usize },
}

pub(super) fn workloads() -> Vec<Workload> {
    use Recurrent::{Conv, Lightning, Scan};
    [
        ("lightning_prefill_8x512x128", Lightning { heads: 8, tokens: 512, dim: 128 }),
        ("lightning_decode_64x128", Lightning { heads: 64, tokens: 1, dim: 128 }),
        ("selective_scan_512x5120x16", Scan { channels: 5120, tokens: 512, dim: 16 }),
        ("selective_scan_1x5120x16", Scan { channels: 5120, tokens: 1, dim: 16 }),
        ("causal_conv1d_512x8192x4", Conv { channels: 8192, tokens: 512, taps: 4 }),
    ]
    .map(|(name, work)| Workload::new(name, work))
    .into()
}

impl Recurrent {
    /// Activations in and out, and elements of the state.
    fn elements(self) -> [usize; 2] {
        match self {
            Self::Lightning { heads, tokens, dim } => [4 * heads * tokens * dim, heads * dim * dim],
            Self::Scan { channels, tokens, dim } => [tokens * (3 * channels + 2 * dim), channels * dim],
            Self::Conv { channels, tokens, taps } => [2 * tokens * channels, channels * (taps - 1)],
        }
    }

    fn flops(self) -> usize {
        match self {
            // decay, write, read
            Self::Lightning { heads, tokens, dim } => 5 * heads * tokens * dim * dim,
            // the same, and a product and an exponential to each decay
            Self::Scan { channels, tokens, dim } => 7 * tokens * channels * dim,
            Self::Conv { channels, tokens, taps } => 2 * tokens * channels * taps,
        }
    }
}

impl Work for Recurrent {
    fn kernel(&self, _: DType, _: &Limits) -> Result<&'static str> {
        Ok(match self {
            Self::Lightning { .. } => linear_step::NAME,
            Self::Scan { .. } => selective_scan::NAME,
            Self::Conv { .. } => causal_conv1d::NAME,
        })
    }

    /// The state counts once read and once written.
    fn work(&self, dtype: DType, _: &Limits) -> Result<[u64; 2]> {
        let [moved, state] = self.elements();
        Ok([(moved * dtype.bytes() + 8 * state) as u64, self.flops() as u64])
    }

    fn prepare(&self, gpu: &Gpu, dtype: DType) -> Result<Prepared> {
        let poison = |shape: &[usize]| {
            let data = vec![f32::NAN; shape.iter().product()];
            Tensor::from_slice(gpu, &data, shape)
        };
        let mut data = Vec::new();
        let mut tensors = Vec::new();
        let mut add = |shape: &[usize], dtype, change: &dyn Fn(f32) -> f32| {
            let seed = data.len() as u32 + 1;
            let x: Vec<f32> = numbers(seed, shape.iter().product()).into_iter().map(change).collect();
            tensors.push(upload(gpu, &x, shape, dtype)?);
            data.push(round(&x, dtype));
            Ok::<_, crate::Error>(())
        };
        let same = |x: f32| x;
        let (output, state) = match *self {
            Self::Lightning { heads, tokens, dim } => {
                let shape = [1, heads, tokens, dim];
                for _ in 0..3 {
                    add(&shape, dtype, &same)?;
                }
                add(&[heads], DType::F32, &|x| 0.1 + x.abs() / 10.0)?;
                add(&[1, heads, dim, dim], DType::F32, &same)?;
                (poison(&shape)?, poison(&[1, heads, dim, dim])?)
            }
            Self::Scan { channels, tokens, dim } => {
                let shape = [1, tokens, channels];
                add(&shape, dtype, &same)?;
                add(&shape, DType::F32, &|x| 0.1 + x.abs() / 10.0)?;
                add(&[1, tokens, dim], dtype, &same)?;
                add(&[1, tokens, dim], dtype, &same)?;
                add(&[channels, dim], DType::F32, &|x| -0.5 - x.abs())?;
                add(&[channels], DType::F32, &same)?;
                add(&[1, channels, dim], DType::F32, &same)?;
                (poison(&shape)?, poison(&[1, channels, dim])?)
            }
            Self::Conv { channels, tokens, taps } => {
                let shape = [1, tokens, channels];
                add(&shape, dtype, &same)?;
                add(&[channels, taps], dtype, &same)?;
                add(&[1, channels, taps - 1], DType::F32, &same)?;
                (poison(&shape)?, poison(&[1, channels, taps - 1])?)
            }
        };
        let [bytes, flops] = self.work(dtype, gpu.limits())?;
        Ok(Prepared {
            kernel: self.kernel(dtype, gpu.limits())?,
            tuning: "a token after another".into(),
            flops,
            bytes,
            call: Box::new(Running { work: *self, tensors, data, output, state }),
        })
    }
}

/// A call, and its inputs as the device holds them, for the definition.
#[derive(Debug)]
struct Running {
    work: Recurrent,
    tensors: Vec<Tensor>,
    data: Vec<Vec<f32>>,
    output: Tensor,
    state: Tensor,
}

impl Call for Running {
    fn record(&self, gpu: &Gpu, encoder: &mut wgpu::CommandEncoder) -> Result<()> {
        let (t, state) = (&self.tensors, self.state.clone());
        match self.work {
            Recurrent::Lightning { .. } => {
                let out = LightningOutput { o: self.output.clone(), state };
                let call = LightningAttention::new(&t[3]).initial_state(&t[4]).kernel(linear_step::NAME);
                call.record(gpu, encoder, [&t[0], &t[1], &t[2]], &out)
            }
            Recurrent::Scan { .. } => {
                let out = ScanOutput { y: self.output.clone(), state };
                let call = SelectiveScan::new(&t[4], &t[5]).initial_state(&t[6]).kernel(selective_scan::NAME);
                call.record(gpu, encoder, &ScanInputs { x: &t[0], dt: &t[1], b: &t[2], c: &t[3] }, &out)
            }
            Recurrent::Conv { .. } => {
                let out = ConvOutput { y: self.output.clone(), state };
                CausalConv1d::silu().initial_state(&t[2]).record(gpu, encoder, &t[0], &t[1], &out)
            }
        }
    }

    fn check(&self, gpu: &Gpu) -> Result<Check> {
        let d = &self.data;
        let (want, want_state) = match self.work {
            Recurrent::Lightning { heads, tokens, dim } => {
                reference::lightning_attention(&reference::LightningCase {
                    sizes: [1, heads, tokens, dim, dim],
                    q: &d[0],
                    k: &d[1],
                    v: &d[2],
                    slope: &d[3],
                    initial: Some(&d[4]),
                    sequences: None,
                })
            }
            Recurrent::Scan { channels, tokens, dim } => reference::selective_scan(&reference::ScanCase {
                sizes: [1, tokens, channels, dim],
                x: &d[0],
                dt: &d[1],
                b: &d[2],
                c: &d[3],
                a: &d[4],
                skip: &d[5],
                dt_bias: None,
                initial: Some(&d[6]),
                sequences: None,
            }),
            Recurrent::Conv { channels, tokens, .. } => reference::causal_conv1d(&reference::ConvCase {
                tokens,
                channels,
                x: &d[0],
                w: &d[1],
                bias: None,
                silu: true,
                initial: Some(&d[2]),
                sequences: None,
            }),
        };
        let mut comparison = Comparison::default();
        comparison.add(&self.output.read::<f32>(gpu)?, &want);
        comparison.add(&self.state.read::<f32>(gpu)?, &want_state);
        Ok(comparison.check())
    }
}
