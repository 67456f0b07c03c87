//! Draft some tokens, keep those that a model agrees with, go back over the others: on a hybrid of layers with keys and
//! values, with a sliding window, with a latent and with a recurrent state.
//!
//! `cargo run --example speculative`
//!
//! The "model" makes rows out of token numbers; a real one computes them. What the cache does is the same.
#![allow(clippy::print_stdout, reason = "an example shows its result")]

use wgpu_attention::model::{CacheSpec, Held, LayerCache, RowKind, Rows, State, StateKind, Storage};
use wgpu_attention::{Attention, Cache, Error, Gpu, Tensor};

const HEADS: usize = 2;
const DIM: usize = 32;
const WINDOW: u32 = 16;
const DRAFTS: usize = 4;

/// As `ModelPlan::cache` makes it from a config.json; written out here to have one layer of each kind.
fn spec() -> CacheSpec {
    let rows = |kind, storage, held| Rows { kind, heads: HEADS as u32, width: DIM as u32, storage, held };
    let layer =
        |index, design, rows, states| LayerCache { index, design, rows, states, shares_cache_of: None };
    let ring = Held::Window { window: WINDOW, call_tokens: DRAFTS as u32 + 1 };
    let kv = |storage, held| vec![rows(RowKind::Key, storage, held), rows(RowKind::Value, storage, held)];
    let latent = Rows { heads: 1, ..rows(RowKind::Latent, Storage::F16, Held::All) };
    let state = State { kind: StateKind::Recurrent, shape: [2, 8, 8], storage: Storage::F32 };
    CacheSpec {
        layers: vec![
            layer(0, "full", kv(Storage::Q8_0, Held::All), vec![]),
            layer(1, "window", kv(Storage::F16, ring), vec![]),
            layer(2, "latent", vec![latent], vec![]),
            layer(3, "gated delta", vec![], vec![state]),
        ],
    }
}

struct Model {
    gpu: Gpu,
    spec: CacheSpec,
    cache: Cache,
    /// What the recurrent layer's state holds, on the processor: a real layer computes it on the device.
    state: Vec<f32>,
}

impl Model {
    /// One step: every layer writes its rows, attends, and hands in its state.
    fn forward(&mut self, tokens: &[u32]) -> Result<(), Error> {
        self.cache.begin(&[tokens.len()])?;
        for layer in &self.spec.layers {
            for rows in &layer.rows {
                let (heads, width) = (rows.heads as usize, rows.width as usize);
                let data: Vec<f32> = (0..heads * tokens.len() * width)
                    .map(|ix| (tokens[ix / width % tokens.len()] as f32 + ix as f32).sin())
                    .collect();
                let data = Tensor::from_slice(&self.gpu, &data, [1, heads, tokens.len(), width])?;
                self.cache.write(layer.index, rows.kind, &data)?;
            }
            if layer.rows.len() == 2 {
                let q = vec![0.1_f32; 2 * HEADS * tokens.len() * DIM];
                let q = Tensor::from_slice(&self.gpu, &q, [1, 2 * HEADS, tokens.len(), DIM])?;
                let attention = Attention::causal();
                let attention = if layer.design == "window" { attention.window(WINDOW) } else { attention };
                attention.run_cached(&self.gpu, &q, &self.cache.kv(layer.index)?)?;
            }
            for state in &layer.states {
                for &token in tokens {
                    self.state.iter_mut().for_each(|x| *x = 0.5 * *x + token as f32);
                }
                let after = Tensor::from_slice(&self.gpu, &self.state, [1, 2, 8, 8])?;
                self.cache.write_state(layer.index, state.kind, &after)?;
            }
        }
        self.cache.commit()
    }

    /// Goes back; the state comes from the checkpoint there.
    fn back_to(&mut self, position: u64) -> Result<(), Error> {
        self.cache.truncate(0, position)?;
        self.state = self.cache.state(3, StateKind::Recurrent)?.read(&self.gpu)?;
        Ok(())
    }
}

fn main() -> Result<(), Error> {
    let gpu = Gpu::new()?;
    let cache = Cache::builder(&spec()).tokens(256).build(&gpu)?;
    println!("{} bytes for 256 tokens, as planned: {}", cache.bytes(), spec().bytes(256, 1)?);
    let mut model = Model { gpu, spec: spec(), cache, state: vec![0.0; 128] };
    model.forward(&[1, 2, 3])?;
    for round in 0..8_u32 {
        let start = model.cache.seen(0)?;
        // a recurrent state cannot be cut: keep the one from before the drafts
        model.cache.checkpoint(0)?;
        let drafts: Vec<u32> = (0..DRAFTS as u32).map(|i| 100 * round + i).collect();
        model.forward(&drafts)?;
        let accepted = (round * 3 + 1) as usize % (DRAFTS + 1);
        if accepted < DRAFTS {
            model.back_to(start)?;
            let mut kept = drafts[..accepted].to_vec();
            kept.push(7);
            model.forward(&kept)?;
        }
        println!("round {round}: {accepted} of {DRAFTS} accepted, {} tokens", model.cache.seen(0)?);
    }
    // what cannot be is refused by layer and position, and changes nothing
    if let Err(refused) = model.cache.truncate(0, 5) {
        println!("{refused}");
    }
    Ok(())
}
