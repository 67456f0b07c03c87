//! Latent attention: both paths against the definition and against each other, decode against prefill, layers
//! of whole models.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod common;

use std::path::PathBuf;

use common::{BOUND, close, compare, gpu, noise};
use half::bf16;
use safetensors::SafeTensors;
use wgpu_attention::model::{ModelPlan, Rope, RopeLayout};
use wgpu_attention::reference::{self, MlaCase};
use wgpu_attention::{Angles, DType, Error, Gpu, Mask, Mla, MlaPath, MlaShape, MlaTensors, Rotary, Tensor};

/// A call and its numbers; latents are `[c | k_rope]`.
#[derive(Clone)]
struct Call {
    shape: MlaShape,
    mla: Mla,
    mask: Mask,
    kv_len: Option<Vec<i32>>,
    data: [Vec<f32>; 6],
}

/// `[batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v]`
fn call(n: [usize; 8]) -> Call {
    let [batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v] = n;
    let shape = MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v };
    let data = [
        noise(1, batch * heads * seq_q * nope),
        noise(2, batch * heads * seq_q * rope),
        noise(3, batch * seq_kv * rank),
        noise(4, batch * seq_kv * rope),
        noise(5, heads * nope * rank),
        noise(6, heads * dim_v * rank),
    ];
    Call { shape, mla: Mla::causal(), mask: Mask::causal(), kv_len: None, data }
}

impl Call {
    fn latents(&self) -> Vec<f32> {
        let tokens = self.data[2].chunks(self.shape.rank).zip(self.data[3].chunks(self.shape.rope));
        tokens.flat_map(|(c, k)| [c, k].concat()).collect()
    }

    fn run(&self, gpu: &Gpu) -> (Vec<f32>, Vec<f32>) {
        let MlaShape { batch, heads, seq_q, seq_kv, nope, rope, rank, dim_v } = self.shape;
        let up = |data: &[f32], shape: &[usize]| Tensor::from_slice(gpu, data, shape).unwrap();
        let out = self
            .mla
            .run(
                gpu,
                &MlaTensors {
                    q_nope: &up(&self.data[0], &[batch, heads, seq_q, nope]),
                    q_rope: &up(&self.data[1], &[batch, heads, seq_q, rope]),
                    latents: &up(&self.latents(), &[batch, seq_kv, rank + rope]),
                    w_uk: &up(&self.data[4], &[heads, nope, rank]),
                    w_uv: &up(&self.data[5], &[heads, dim_v, rank]),
                },
            )
            .unwrap();
        (out.o.read(gpu).unwrap(), out.lse.unwrap().read(gpu).unwrap())
    }

    fn want(&self) -> (Vec<f64>, Vec<f64>) {
        let [q_nope, q_rope, c_kv, k_rope, w_uk, w_uv] = &self.data;
        let scale = ((self.shape.nope + self.shape.rope) as f64).powf(-0.5);
        let kv_len = self.kv_len.as_deref();
        let case = MlaCase {
            shape: self.shape,
            mask: self.mask,
            q_nope,
            q_rope,
            c_kv,
            k_rope,
            w_uk,
            w_uv,
            scale,
            kv_len,
        };
        reference::mla(&case).unwrap()
    }

    fn judged(&self, gpu: &Gpu) -> Result<(), String> {
        let ((o, lse), (want_o, want_lse)) = (self.run(gpu), self.want());
        compare("o", &o, &want_o, BOUND, 0.0)?;
        compare("lse", &lse, &want_lse, BOUND, 1e-5)
    }

    fn with(&self, change: impl FnOnce(Mla) -> Mla) -> Self {
        Self { mla: change(self.mla.clone()), ..self.clone() }
    }
}

const PATHS: [MlaPath; 3] = [MlaPath::Absorbed, MlaPath::Expanded, MlaPath::Mixed];

#[test]
fn every_path_equals_the_definition() {
    for n in [
        [2, 5, 7, 33, 24, 10, 36, 20],
        [1, 3, 1, 65, 8, 4, 16, 8],
        [1, 2, 20, 64, 6, 2, 100, 30],
        [1, 1, 3, 5, 7, 5, 9, 3],
    ] {
        let call = call(n);
        for path in PATHS {
            for kernel in common::kernels(gpu()) {
                let call = call.with(|mla| mla.path(path).kernel(kernel));
                call.judged(gpu()).unwrap_or_else(|e| panic!("{n:?} {path:?} {kernel}: {e}"));
            }
            for segment in [7, 40] {
                let call = call.with(|mla| mla.path(path).segment(segment));
                call.judged(gpu()).unwrap_or_else(|e| panic!("{n:?} {path:?} segment {segment}: {e}"));
            }
        }
    }
}

#[test]
fn every_head_count_equals_its_heads_alone() {
    for heads in [1, 4, 6, 12, 20, 24, 96, 128] {
        let call = call([1, heads, 1, 5, 8, 4, 16, 8]);
        call.judged(gpu()).unwrap_or_else(|e| panic!("{heads} heads: {e}"));
    }
}

#[test]
fn nothing_to_do_and_nothing_to_see() {
    // no token at all: zeros and minus infinity
    let (o, lse) = call([1, 2, 3, 0, 8, 4, 16, 8]).run(gpu());
    assert!(o.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY));
    let (o, lse) = call([1, 2, 0, 3, 8, 4, 16, 8]).run(gpu());
    assert!(o.is_empty() && lse.is_empty());
    // queries before every token
    let blind = call([1, 2, 3, 6, 8, 4, 16, 8]);
    for path in PATHS {
        let (o, lse) = blind.with(|mla| mla.path(path).q_start(-9).segment(2)).run(gpu());
        assert!(o.iter().all(|&x| x == 0.0) && lse.iter().all(|&x| x == f32::NEG_INFINITY), "{path:?}");
    }
}

#[test]
fn lengths_of_entries_hide_what_lies_beyond() {
    let mut call = call([3, 2, 2, 20, 8, 4, 16, 8]);
    call.mask = Mask::bidirectional();
    call.kv_len = Some(vec![20, 7, 0]);
    let limits = [20, 7, 0];
    for (b, limit) in limits.into_iter().enumerate() {
        call.data[2][(b * 20 + limit) * 16..(b + 1) * 20 * 16].fill(f32::NAN);
        call.data[3][(b * 20 + limit) * 4..(b + 1) * 20 * 4].fill(f32::NAN);
    }
    for path in PATHS {
        for segment in [6, 100] {
            let mla = Mla::default().kv_len(&[20, 7, 0]).path(path).segment(segment);
            let call = Call { mla, ..call.clone() };
            call.judged(gpu()).unwrap_or_else(|e| panic!("{path:?} {segment}: {e}"));
        }
    }
}

/// Rows `first ..` of the queries against the tokens that were there by then.
fn chunk(whole: &Call, first: usize, count: usize) -> Call {
    let MlaShape { heads, seq_q, nope, rope, rank, .. } = whole.shape;
    let rows = |data: &[f32], width: usize| {
        (0..heads).flat_map(|h| data[(h * seq_q + first) * width..][..count * width].to_vec()).collect()
    };
    let end = first + count;
    let [q_nope, q_rope, c, k, w_uk, w_uv] = &whole.data;
    let data = [
        rows(q_nope, nope),
        rows(q_rope, rope),
        c[..end * rank].to_vec(),
        k[..end * rope].to_vec(),
        w_uk.clone(),
        w_uv.clone(),
    ];
    Call { shape: MlaShape { seq_q: count, seq_kv: end, ..whole.shape }, data, ..whole.clone() }
}

#[test]
fn chunks_and_steps_equal_one_prefill() {
    let (tokens, heads, dim_v) = (70, 3, 8);
    let whole = call([1, heads, tokens, tokens, 8, 4, 16, dim_v]);
    whole.judged(gpu()).unwrap();
    let (o, _) = whole.run(gpu());
    for size in [1, 7, 64] {
        for first in (0..tokens).step_by(size) {
            // all steps would take long: some at the start, at the seams, at the end
            if size == 1 && (3..63).contains(&first) {
                continue;
            }
            let count = size.min(tokens - first);
            let (part, _) = chunk(&whole, first, count).run(gpu());
            for h in 0..heads {
                let got = &part[h * count * dim_v..][..count * dim_v];
                let want: Vec<_> = o[(h * tokens + first) * dim_v..][..count * dim_v]
                    .iter()
                    .map(|&x| f64::from(x))
                    .collect();
                close(&format!("chunk of {size} at {first}"), got, &want, BOUND, 0.0);
            }
        }
    }
}

#[test]
fn queries_are_rotated_on_the_way_in() {
    let mut plain = call([2, 3, 4, 9, 8, 6, 16, 8]);
    let rope = Rope::new(1e4, 6, RopeLayout::Interleaved);
    let positions: Vec<i64> = (5..9).collect();
    let table = Rotary::new(&rope).angles(Angles::Exact).table(gpu(), &positions).unwrap();
    let turning = plain.with(|mla| mla.rotary(&table));
    let inverse = rope.inverse_frequencies(0);
    let rows = plain.data[1].chunks(6).enumerate();
    plain.data[1] = rows
        .flat_map(|(row, x)| reference::rope(x, positions[row % 4], &inverse, 1.0, true))
        .map(|x| x as f32)
        .collect();
    let (want, _) = plain.want();
    for path in PATHS {
        let (o, _) = turning.with(|mla| mla.path(path)).run(gpu());
        close(&format!("{path:?}"), &o, &want, BOUND, 0.0);
    }
}

/// Orders and scales that look right: the comparison tells each from the truth.
#[test]
fn traps_are_told_apart() {
    let right = call([1, 3, 4, 20, 8, 8, 16, 16]);
    right.judged(gpu()).unwrap();
    let caught = |what: &str, wrong: &Call| {
        let (o, _) = wrong.run(gpu());
        assert!(compare("o", &o, &right.want().0, BOUND, 0.0).is_err(), "not caught: {what}");
    };
    let mut wrong = right.clone();
    wrong.data.swap(0, 1);
    caught("queries as [rope | nope]", &wrong);
    let mut wrong = right.clone();
    wrong.data[4] = right.data[5][..3 * 8 * 16].to_vec();
    caught("value rows for key rows", &wrong);
    caught("the scale of the absorbed width", &right.with(|mla| mla.scale(24f32.powf(-0.5))));
    let mut wrong = right.clone();
    wrong.data[3].iter_mut().for_each(|k| *k *= 0.7);
    caught("the norm of the latent over the rotated key too", &wrong);
}

#[test]
fn planted_faults_are_caught() {
    let call = call([1, 5, 6, 33, 24, 10, 36, 20]);
    for (fault, from, to, path) in [
        ("an input group is dropped", "in0 < params.n_in;", "in0 + 16u < params.n_in;", MlaPath::Expanded),
        ("outputs in the wrong order", "slot % LANES_X * 4u + slot / LANES_X", "slot", MlaPath::Expanded),
        (
            "one matrix for all heads",
            "params.w_base + head * params.w_head",
            "params.w_base",
            MlaPath::Absorbed,
        ),
        ("inputs past the width are read", "at < params.n_in);", "true);", MlaPath::Expanded),
        ("heads share a row", "head * params.y_head", "0u", MlaPath::Absorbed),
        ("the rotated key is not copied whole", "element + 1u)", "element)", MlaPath::Expanded),
    ] {
        let call = call.with(|mla| mla.path(path));
        call.judged(gpu()).unwrap();
        assert!(call.judged(&gpu().with_edit(from, to)).is_err(), "not caught: {fault}");
    }
}

#[test]
fn plans_pick_the_fewer_operations() {
    let v2_lite = |seq_q, seq_kv| {
        let shape =
            MlaShape { batch: 1, heads: 16, seq_q, seq_kv, nope: 128, rope: 64, rank: 512, dim_v: 128 };
        Mla::causal().plan(&shape).unwrap()
    };
    let decode = v2_lite(1, 32_768);
    assert_eq!(decode.path, MlaPath::Absorbed);
    // mla.md: 1.15 GFLOP a layer, where expanding every head takes 137.8
    assert!((decode.absorbed as f64 / 1.15e9 - 1.0).abs() < 0.01, "{decode}");
    assert!((decode.expanded as f64 / 137.8e9 - 1.0).abs() < 0.01, "{decode}");
    assert_eq!(v2_lite(4096, 4096).path, MlaPath::Expanded);
    // the crossing at long contexts: about 171 queries
    let crossing = (1..400).find(|&n| v2_lite(n, 100_000).path == MlaPath::Expanded).unwrap();
    assert!((165..=180).contains(&crossing), "{crossing}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let t = |shape: &[usize]| Tensor::uninitialised(gpu(), DType::F32, shape).unwrap();
    let (q_nope, q_rope) = (t(&[1, 2, 3, 8]), t(&[1, 2, 3, 4]));
    let (latents, w_uk, w_uv) = (t(&[1, 5, 20]), t(&[2, 8, 16]), t(&[2, 6, 16]));
    let right = MlaTensors { q_nope: &q_nope, q_rope: &q_rope, latents: &latents, w_uk: &w_uk, w_uv: &w_uv };
    Mla::causal().run(gpu(), &right).unwrap();
    let refused = |tensors: MlaTensors<'_>, mla: Mla, words: &[&str]| {
        let text = mla.run(gpu(), &tensors).unwrap_err().to_string();
        assert!(words.iter().all(|w| text.contains(w)), "{text}");
    };
    let causal = Mla::causal;
    let other = t(&[1, 2, 4, 4]);
    refused(MlaTensors { q_rope: &other, ..right }, causal(), &["q_rope", "[1, 2, 3, 4]"]);
    let other = t(&[1, 5, 16]);
    refused(MlaTensors { latents: &other, ..right }, causal(), &["latents", "rank 16 + rope 4"]);
    let other = t(&[3, 8, 16]);
    refused(MlaTensors { w_uk: &other, ..right }, causal(), &["w_uk", "[2, 8, 16]"]);
    let other = t(&[2, 6, 15]);
    refused(MlaTensors { w_uv: &other, ..right }, causal(), &["w_uv", "[2, 6, 16]"]);
    refused(right, causal().kv_len(&[1, 2]), &["kv_len", "2 lengths"]);
    refused(right, causal().segment(0), &["segment is 0"]);
    let table = Rotary::none().table(gpu(), &[0, 1, 2]).unwrap();
    refused(right, causal().rotary(&table), &["rotary", "turns 4"]);
    let shape = MlaShape { batch: 1, heads: 1, seq_q: 4, seq_kv: 4, nope: 8, rope: 64, rank: 520, dim_v: 8 };
    let text = causal().plan(&shape).unwrap_err().to_string();
    assert!(text.contains("rank is 520") && text.contains("512"), "{text}");
    let shape = MlaShape { rank: 16, ..shape };
    let error = causal().path(MlaPath::Mixed).plan(&shape).unwrap_err();
    assert!(matches!(error, Error::Options { field: "path", .. }), "{error}");
}

/// A matrix of a block file, widened to f64.
fn matrix(file: &SafeTensors<'_>, name: &str) -> Option<(Vec<usize>, Vec<f64>)> {
    let view = file.tensor(name).ok()?;
    let data = match view.dtype() {
        safetensors::Dtype::BF16 => {
            view.data().chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f64()).collect()
        }
        _ => view
            .data()
            .chunks_exact(4)
            .map(|b| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect(),
    };
    Some((view.shape().to_vec(), data))
}

/// `x w^T`, rows of `x` through a `[out, in]` matrix.
fn linear(x: &[f64], w: &(Vec<usize>, Vec<f64>)) -> Vec<f64> {
    let (out, input) = (w.0[0], w.0[1]);
    let row = |x: &[f64]| -> Vec<f64> {
        (0..out).map(|o| x.iter().zip(&w.1[o * input..][..input]).map(|(a, b)| a * b).sum()).collect()
    };
    x.chunks(input).flat_map(row).collect()
}

/// Root mean square norm of rows.
fn norm(x: &[f64], w: &[f64]) -> Vec<f64> {
    let row = |x: &[f64]| -> Vec<f64> {
        let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + 1e-6).sqrt();
        x.iter().zip(w).map(|(x, w)| x / scale * w).collect()
    };
    x.chunks(w.len()).flat_map(row).collect()
}

fn narrowed(data: &[f64]) -> Vec<f32> {
    data.iter().map(|&x| x as f32).collect()
}

/// Whole attention blocks of three models as transformers computes them: what the configuration says of scale
/// and rotation, the order of the latent's parts, and both paths, from the block's input to its output.
#[test]
fn blocks_of_models_equal_transformers() {
    let golden = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    for (model, layer) in [("deepseek_v2_lite", 0), ("deepseek_v3", 1), ("kimi_linear", 4)] {
        let plan = ModelPlan::from_file(golden.join("models").join(model)).unwrap();
        let latent = plan.layers[layer].design.latent().unwrap();
        let bytes = std::fs::read(golden.join("blocks").join(model).with_extension("safetensors")).unwrap();
        let file = SafeTensors::deserialize(&bytes).unwrap();
        let weight = |name: &str| matrix(&file, &format!("{name}.weight"));
        let (shape, x) = matrix(&file, "attn_in").unwrap();
        let tokens = shape[0];
        let [heads, nope, rope, rank, dim_v] =
            [latent.heads_q, latent.dim_nope, latent.dim_rope, latent.kv_rank, latent.dim_v]
                .map(|n| n as usize);
        let q = if let Some(w) = weight("q_proj") {
            linear(&x, &w)
        } else {
            let low = linear(&x, &weight("q_a_proj").unwrap());
            linear(&norm(&low, &weight("q_a_layernorm").unwrap().1), &weight("q_b_proj").unwrap())
        };
        let both = linear(&x, &weight("kv_a_proj_with_mqa").unwrap());
        let c: Vec<_> = both.chunks(rank + rope).flat_map(|row| row[..rank].to_vec()).collect();
        let c = norm(&c, &weight("kv_a_layernorm").unwrap().1);
        let k: Vec<_> = both.chunks(rank + rope).flat_map(|row| row[rank..].to_vec()).collect();
        // the cache as it is written: the latent, then the rotated key
        let latents = Tensor::uninitialised(gpu(), DType::F32, [1, 1, tokens, rank + rope]).unwrap();
        let upload =
            |data: &[f64], shape: &[usize]| Tensor::from_slice(gpu(), &narrowed(data), shape).unwrap();
        let positions: Vec<_> = (0..tokens as i64).collect();
        let rotary = latent.rope.as_ref().map(|r| Rotary::new(r).table(gpu(), &positions).unwrap());
        let none = Rotary::none().table(gpu(), &positions).unwrap();
        let mut encoder = gpu().device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let head = latents.narrow(3, 0, rank).unwrap();
        none.record(gpu(), &mut encoder, &upload(&c, &[1, 1, tokens, rank]), &head).unwrap();
        let tail = latents.narrow(3, rank, rope).unwrap();
        let turn = rotary.as_ref().unwrap_or(&none);
        turn.record(gpu(), &mut encoder, &upload(&k, &[1, 1, tokens, rope]), &tail).unwrap();
        gpu().submit(encoder).unwrap();
        let q = upload(&q, &[1, tokens, heads, nope + rope]).permute(&[0, 2, 1, 3]);
        let (shape, kv_b) = weight("kv_b_proj").unwrap();
        let [w_uk, w_uv] = MlaTensors::split_kv_b(&upload(&kv_b, &shape), heads, nope, dim_v).unwrap();
        let tensors = MlaTensors {
            q_nope: &q.narrow(3, 0, nope).unwrap(),
            q_rope: &q.narrow(3, nope, rope).unwrap(),
            latents: &latents.view(0, &[1, tokens, rank + rope], &[0, rank + rope, 1]).unwrap(),
            w_uk: &w_uk,
            w_uv: &w_uv,
        };
        for path in [MlaPath::Absorbed, MlaPath::Expanded] {
            let mut mla = Mla::causal().scale(latent.scale as f32).path(path);
            if let Some(table) = &rotary {
                mla = mla.rotary(table);
            }
            let o: Vec<f32> = mla.run(gpu(), &tensors).unwrap().o.read(gpu()).unwrap();
            let mut by_token = Vec::new();
            for t in 0..tokens {
                for h in 0..heads {
                    let row = &o[(h * tokens + t) * dim_v..][..dim_v];
                    by_token.extend(row.iter().map(|&x| f64::from(x)));
                }
            }
            let y = linear(&by_token, &weight("o_proj").unwrap());
            let (_, want) = matrix(&file, "attn_out").unwrap();
            close(&format!("{model} {path:?}"), &narrowed(&y), &want, BOUND, 0.0);
        }
    }
}
