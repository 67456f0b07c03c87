//! A model whose rows and states are functions of its tokens, and its cache in main memory.

use wgpu_attention::model::{CacheSpec, Held, LayerCache, RowKind, Rows, State, StateKind, Storage};
use wgpu_attention::reference::{self, AttentionCase, Rounding, quantised};
use wgpu_attention::{Attention, AttentionShape, Cache, Gpu, Mask, Result, Tensor};

use crate::common::compare;

/// Query heads to a key-value head.
const GROUPS: usize = 2;
/// Width of keys and values of the softmax layers.
const DIM: u32 = 8;

fn layer(index: u32, design: &'static str, rows: Vec<Rows>, states: Vec<State>) -> LayerCache {
    LayerCache { index, design, rows, states, shares_cache_of: None }
}

fn row(kind: RowKind, heads: u32, width: u32, storage: Storage, held: Held) -> Rows {
    Rows { kind, heads, width, storage, held }
}

fn kv(storage: Storage, width: u32, held: Held) -> Vec<Rows> {
    vec![row(RowKind::Key, 2, width, storage, held), row(RowKind::Value, 2, width, storage, held)]
}

/// Layers of softmax attention only: full, window 5, chunked 4.
pub(crate) fn softmax_only(storage: Storage, width: u32, call_tokens: u32) -> CacheSpec {
    let held = |window| Held::Window { window, call_tokens };
    CacheSpec {
        layers: vec![
            layer(0, "full", kv(storage, width, Held::All), vec![]),
            layer(1, "window", kv(storage, width, held(5)), vec![]),
            layer(2, "chunked", kv(storage, width, held(4)), vec![]),
        ],
    }
}

/// One layer of every design, and one that shares the first's cache.
pub(crate) fn every_design(storage: Storage, call_tokens: u32) -> CacheSpec {
    let mut spec = softmax_only(storage, DIM, call_tokens);
    let latent = |index_key: bool| {
        let mut rows = vec![
            row(RowKind::Latent, 1, 32, storage, Held::All),
            row(RowKind::RopeKey, 1, 4, storage, Held::All),
        ];
        if index_key {
            rows.push(row(RowKind::IndexKey, 1, 12, storage, Held::All));
        }
        rows
    };
    let blocks = Held::Blocks { block: 6, stride: 3 };
    let mut nsa = kv(storage, DIM, Held::All);
    nsa.push(row(RowKind::CompressedKey, 2, DIM, storage, blocks));
    nsa.push(row(RowKind::CompressedValue, 2, DIM, storage, blocks));
    let states = vec![
        State { kind: StateKind::Recurrent, shape: [2, 3, 4], storage: Storage::F32 },
        State { kind: StateKind::Conv, shape: [10, 3, 1], storage: Storage::F32 },
    ];
    spec.layers.extend([
        layer(3, "latent", latent(false), vec![]),
        layer(4, "latent indexed", latent(true), vec![]),
        layer(5, "natively sparse", nsa, vec![]),
        layer(6, "gated delta", vec![], states),
        LayerCache { shares_cache_of: Some(0), ..layer(7, "shared", vec![], vec![]) },
    ]);
    spec
}

/// A number that depends on all of its arguments, between -1 and 1.
fn value(token: u32, layer: u32, kind: u32, ix: usize) -> f32 {
    let mut h =
        token.wrapping_mul(0x9e37_79b9) ^ layer.wrapping_mul(0x85eb_ca6b) ^ kind.wrapping_mul(0xc2b2_ae35);
    h ^= (ix as u32).wrapping_mul(0x27d4_eb2f);
    for _ in 0..2 {
        h = (h ^ (h >> 15)).wrapping_mul(0x2c1b_3c6d);
        h = (h ^ (h >> 12)).wrapping_mul(0x297a_2d39);
    }
    ((h ^ (h >> 15)) >> 8) as f32 / 8_388_608.0 - 1.0
}

/// The row of a token, `[heads, width]`.
pub(crate) fn row_of(token: u32, layer: u32, rows: &Rows) -> Vec<f32> {
    (0..(rows.heads * rows.width) as usize).map(|ix| value(token, layer, rows.kind as u32, ix)).collect()
}

/// A state after some tokens: halves and takes the token in.
pub(crate) fn state_of(tokens: &[u32], layer: u32, state: &State) -> Vec<f32> {
    let count = state.shape.iter().product::<u32>() as usize;
    let mut now = vec![0f32; count];
    for &token in tokens {
        for (ix, x) in now.iter_mut().enumerate() {
            *x = 0.5 * *x + value(token, layer, 100 + state.kind as u32, ix);
        }
    }
    now
}

/// Rows of a kind that tokens `from..` of a history add.
fn added(history: &[u32], from: usize, layer: u32, rows: &Rows) -> Vec<Vec<f32>> {
    match rows.held {
        Held::Blocks { stride, .. } => {
            let (a, b) = (rows.held.rows(from as u64), rows.held.rows(history.len() as u64));
            // stands for the block's mean: any function of its tokens will do
            (a..b).map(|i| row_of(history[(i * u64::from(stride)) as usize], layer, rows)).collect()
        }
        _ => history[from..].iter().map(|&token| row_of(token, layer, rows)).collect(),
    }
}

/// The mask of a softmax layer.
fn mask(layer: &LayerCache) -> Option<Mask> {
    match (layer.design, layer.rows.first().map(|r| r.held)) {
        ("full" | "natively sparse", _) => Some(Mask::causal()),
        ("window", Some(Held::Window { window, .. })) => {
            Some(Mask { window: Some(window), ..Mask::causal() })
        }
        ("chunked", Some(Held::Window { window, .. })) => {
            Some(Mask { chunk: Some(window), ..Mask::causal() })
        }
        _ => None,
    }
}

/// `[sequences, heads, longest, width]` of rows `[sequence][token][heads * width]`, gaps NaN.
fn gathered(gpu: &Gpu, each: &[Vec<Vec<f32>>], heads: usize, width: usize) -> Tensor {
    let longest = each.iter().map(Vec::len).max().unwrap();
    let mut data = vec![f32::NAN; each.len() * heads * longest * width];
    for (s, rows) in each.iter().enumerate() {
        for (t, row) in rows.iter().enumerate() {
            for (ix, &x) in row.iter().enumerate() {
                let (h, d) = (ix / width, ix % width);
                data[((s * heads + h) * longest + t) * width + d] = x;
            }
        }
    }
    Tensor::from_slice(gpu, &data, [each.len(), heads, longest, width]).unwrap()
}

/// The cache under test and what its sequences have seen.
pub(crate) struct Toy {
    pub(crate) spec: CacheSpec,
    pub(crate) cache: Cache,
    pub(crate) seen: Vec<Vec<u32>>,
    pub(crate) gpu: Gpu,
    /// Kernel that attends; `None` leaves the choice.
    pub(crate) kernel: Option<&'static str>,
    pub(crate) bound: f64,
}

impl Toy {
    pub(crate) fn new(gpu: &Gpu, spec: CacheSpec, cache: Cache) -> Self {
        let seen = vec![Vec::new(); cache.sequences()];
        Self { spec, cache, seen, gpu: gpu.clone(), kernel: None, bound: crate::common::BOUND }
    }

    /// Begins a step of these tokens and writes every layer; attention is checked on every softmax layer.
    pub(crate) fn forward(&mut self, tokens: &[Vec<u32>]) -> Result<()> {
        let counts: Vec<_> = tokens.iter().map(Vec::len).collect();
        self.cache.begin(&counts)?;
        self.write(tokens)
    }

    /// Writes every layer of a step that has begun.
    pub(crate) fn write(&mut self, tokens: &[Vec<u32>]) -> Result<()> {
        let histories: Vec<Vec<u32>> =
            self.seen.iter().zip(tokens).map(|(a, b)| [a.as_slice(), b].concat()).collect();
        for layer in self.spec.layers.clone() {
            for rows in &layer.rows {
                let each: Vec<_> = histories
                    .iter()
                    .zip(&self.seen)
                    .map(|(all, before)| added(all, before.len(), layer.index, rows))
                    .collect();
                let data = gathered(&self.gpu, &each, rows.heads as usize, rows.width as usize);
                self.cache.write(layer.index, rows.kind, &data)?;
            }
            for state in &layer.states {
                let data: Vec<f32> =
                    histories.iter().flat_map(|all| state_of(all, layer.index, state)).collect();
                let [a, b, c] = state.shape.map(|n| n as usize);
                let data = Tensor::from_slice(&self.gpu, &data, [histories.len(), a, b, c])?;
                self.cache.write_state(layer.index, state.kind, &data)?;
            }
            if let Some(mask) = mask(&layer) {
                self.attend(&layer, mask, &histories, tokens)?;
            }
        }
        Ok(())
    }

    fn attend(
        &self,
        layer: &LayerCache,
        mask: Mask,
        histories: &[Vec<u32>],
        tokens: &[Vec<u32>],
    ) -> Result<()> {
        let keys = layer.rows[0];
        let (heads, width) = (keys.heads as usize, keys.width as usize);
        let queries: Vec<Vec<Vec<f32>>> = tokens
            .iter()
            .map(|new| {
                let each = new.iter();
                each.map(|&t| {
                    (0..GROUPS * heads * width).map(|ix| 3.0 * value(t, layer.index, 50, ix)).collect()
                })
                .collect()
            })
            .collect();
        let q = gathered(&self.gpu, &queries, GROUPS * heads, width);
        let longest = q.shape()[2];
        let mut attention = Attention::bidirectional().mask(mask);
        if let Some(kernel) = self.kernel {
            attention = attention.kernel(kernel);
        }
        let out = attention.run_cached(&self.gpu, &q, &self.cache.kv(layer.index)?)?.o.read_f32(&self.gpu)?;
        for (s, (history, new)) in histories.iter().zip(tokens).enumerate() {
            if new.is_empty() {
                continue;
            }
            let stored = |rows: &Rows| -> Vec<f32> {
                let mut all = vec![0.0; heads * history.len() * width];
                for (t, &token) in history.iter().enumerate() {
                    for (h, part) in row_of(token, layer.index, rows).chunks(width).enumerate() {
                        let part = quantised::round_trip(rows.storage, part).unwrap();
                        let at = (h * history.len() + t) * width;
                        all[at..at + width].copy_from_slice(&part);
                    }
                }
                all
            };
            let (k, v) = (stored(&layer.rows[0]), stored(&layer.rows[1]));
            let mut q = vec![0.0; GROUPS * heads * new.len() * width];
            for (t, row) in queries[s].iter().enumerate() {
                for (ix, &x) in row.iter().enumerate() {
                    q[(ix / width * new.len() + t) * width + ix % width] = x;
                }
            }
            let shape = AttentionShape {
                batch: 1,
                heads_q: GROUPS * heads,
                heads_kv: heads,
                seq_q: new.len(),
                seq_kv: history.len(),
                dim_k: width,
                dim_v: width,
            };
            let case = AttentionCase {
                shape,
                mask,
                q: &q,
                k: &k,
                v: &v,
                scale: (width as f64).powf(-0.5),
                softcap: None,
                sinks: None,
                alibi: None,
                kv_len: None,
                q_starts: None,
                bias: None,
                bias_hidden: -1e30,
            };
            let (want, _) = reference::attention(&case, Rounding::None).unwrap();
            let mut got = Vec::new();
            for h in 0..GROUPS * heads {
                let at = (s * GROUPS * heads + h) * longest * width;
                got.extend(&out[at..at + new.len() * width]);
            }
            let what =
                format!("layer {} ({}) of sequence {s} at {}", layer.index, layer.design, history.len());
            compare(&what, &got, &want, self.bound, 0.0).unwrap();
        }
        Ok(())
    }

    /// Feeds and commits.
    pub(crate) fn feed(&mut self, tokens: &[Vec<u32>]) -> Result<()> {
        self.forward(tokens)?;
        self.cache.commit()?;
        for (seen, new) in self.seen.iter_mut().zip(tokens) {
            seen.extend(new);
        }
        Ok(())
    }

    /// Compares every row and state that the cache holds with what it should hold.
    pub(crate) fn check(&self) {
        for (s, history) in self.seen.iter().enumerate() {
            assert_eq!(self.cache.seen(s).unwrap(), history.len() as u64);
            for layer in &self.spec.layers {
                for rows in &layer.rows {
                    let what = format!(
                        "{:?} of layer {} ({}) of sequence {s}",
                        rows.kind, layer.index, layer.design
                    );
                    let all = added(history, 0, layer.index, rows);
                    let (held, got) = self.cache.read_rows(s, layer.index, rows.kind).unwrap();
                    assert_eq!(held.end, all.len() as u64, "{what}");
                    if let Held::Window { window, .. } = rows.held {
                        let needed = match layer.design {
                            "chunked" => held.end - held.end % u64::from(window),
                            _ => (held.end + 1).saturating_sub(u64::from(window)),
                        };
                        assert!(held.start <= needed.min(held.end), "{what} lacks {needed}: {held:?}");
                    } else {
                        assert_eq!(held.start, 0, "{what}");
                    }
                    let want: Vec<f32> = all[held.start as usize..]
                        .iter()
                        .flat_map(|row| row.chunks(rows.width as usize))
                        .flat_map(|part| quantised::round_trip(rows.storage, part).unwrap())
                        .collect();
                    assert_eq!(got, want, "{what}");
                }
                for state in &layer.states {
                    let all = self.cache.state(layer.index, state.kind).unwrap();
                    let each = all.len() / self.seen.len();
                    let got = &all.read_f32(&self.gpu).unwrap()[s * each..(s + 1) * each];
                    let want = state_of(history, layer.index, state);
                    assert_eq!(got, want, "{:?} of layer {} of sequence {s}", state.kind, layer.index);
                }
            }
        }
    }
}
