//! What the attention kernels share: the problem, the bounds of its key ranges, splits, constants, parameters.

use bytemuck::{Pod, Zeroable};

use crate::gpu::DType;
use crate::gpu::shader::{Constants, Value};
use crate::limits::{LOOP_ITERATIONS, Limits};
use crate::mask::{Mask, Positions};
use crate::model::Storage;
use crate::{Error, Result};

/// How an operand lies in memory, as far as a kernel's text depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Operand {
    /// Storage type.
    pub(crate) dtype: DType,
    /// Every row starts on a multiple of four elements and holds whole groups of four.
    pub(crate) quads: bool,
}

impl Operand {
    /// File of `shaders/common/` that loads it.
    pub(crate) fn loader(self, limits: &Limits) -> &'static str {
        match (self.dtype, self.quads) {
            // processors that pretend to be GPUs are slower at native half floats
            (DType::F16, true) if limits.f16 && !limits.software => "load_f16_native",
            (DType::F16, true) => "load_f16",
            (DType::Bf16, true) => "load_bf16",
            (_, true) => "load_f32",
            (dtype, false) => element_loader(dtype),
        }
    }

    /// File of `shaders/common/` that stores it; 16-bit rows that are not whole words go through `pack_words`.
    pub(crate) fn storer(self) -> &'static str {
        match (self.dtype, self.quads) {
            (DType::F16, _) => "store_f16",
            (DType::Bf16, _) => "store_bf16",
            (_, true) => "store_f32",
            (_, false) => "store_f32_element",
        }
    }
}

impl Operand {
    /// File of `shaders/common/` that stores it from kernels that write whole words: 16-bit rows need only
    /// start on one.
    pub(crate) fn pair_storer(self) -> &'static str {
        match (self.dtype, self.quads) {
            (DType::F16, false) => "store_f16_pair",
            (DType::Bf16, false) => "store_bf16_pair",
            _ => self.storer(),
        }
    }
}

/// Where the keys and values of a cache lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum KeyPlace {
    /// At their positions.
    #[default]
    Linear,
    /// In a ring of this many slots.
    Ring(u32),
    /// In pages of two to the power of this many slots, which `table` lists.
    Paged(u32),
}

/// How keys and values lie if a cache holds them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Cached {
    pub(crate) place: KeyPlace,
    /// Storage of keys and of values where they are quantised.
    pub(crate) quantised: [Option<Storage>; 2],
}

impl Cached {
    /// File of `shaders/common/` that loads keys (0) or values (1).
    fn loader(self, which: usize, plain: Operand, limits: &Limits) -> &'static str {
        match self.quantised[which] {
            Some(Storage::Q8_0) => "load_q8_0",
            Some(Storage::Q4_0) => "load_q4_0",
            Some(Storage::Fp8) => "load_fp8",
            Some(Storage::Int8) => "load_int8",
            _ => plain.loader(limits),
        }
    }
}

/// File of `shaders/common/` that loads single elements, and groups of four at any place.
pub(crate) fn element_loader(dtype: DType) -> &'static str {
    match dtype {
        DType::F16 => "load_f16_element",
        DType::Bf16 => "load_bf16_element",
        _ => "load_f32_element",
    }
}

/// An attention problem: everything that a plan depends on.
#[derive(Debug, Clone, PartialEq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the kernel's text, and they combine freely"
)]
pub(crate) struct Problem {
    pub(crate) batch: usize,
    pub(crate) heads_q: usize,
    pub(crate) heads_kv: usize,
    pub(crate) seq_q: usize,
    pub(crate) seq_kv: usize,
    pub(crate) dim_k: usize,
    pub(crate) dim_v: usize,
    pub(crate) q: Operand,
    pub(crate) k: Operand,
    pub(crate) v: Operand,
    pub(crate) o: Operand,
    pub(crate) mask: Mask,
    pub(crate) positions: Positions,
    pub(crate) kv_len: bool,
    pub(crate) q_starts: bool,
    pub(crate) softcap: Option<f32>,
    pub(crate) sinks: bool,
    pub(crate) alibi: bool,
    pub(crate) bias: Option<DType>,
    pub(crate) lse: bool,
    pub(crate) scale: f32,
    /// Splits of the keys that the caller insists on.
    pub(crate) splits: Option<u32>,
    pub(crate) cached: Cached,
}

impl Problem {
    /// Query heads to a key-value head.
    pub(crate) fn groups(&self) -> usize {
        self.heads_q / self.heads_kv
    }

    /// Rows (pairs of query and head) that share a key-value head.
    pub(crate) fn rows(&self) -> usize {
        self.groups() * self.seq_q
    }

    /// The kernel writes elements that `o` cannot take word by word.
    pub(crate) fn packs_words(&self) -> bool {
        self.o.dtype != DType::F32 && !self.o.quads
    }

    /// Pairs of query and visible key for one head and batch entry, at most.
    pub(crate) fn pairs(&self) -> u64 {
        if !self.q_starts {
            return self.positions.visible_pairs();
        }
        // the host has not seen the positions: as many keys as a window or chunk shows
        let rule = self.mask.window.filter(|_| self.mask.sink_tokens == 0).or(self.mask.chunk);
        let sides = if self.mask.causal { 1 } else { 2 };
        let keys = rule.map_or(self.seq_kv, |keys| self.seq_kv.min(sides * keys as usize));
        self.seq_q as u64 * keys as u64
    }

    /// Floating-point operations that the operator must do.
    pub(crate) fn flops(&self) -> u64 {
        self.pairs() * (self.batch * self.heads_q * 2 * (self.dim_k + self.dim_v)) as u64
    }

    /// Bytes that the operator must move: each visible row once, each result once.
    pub(crate) fn bytes(&self) -> u64 {
        let [sinks, rest] = self.positions.key_ranges(0..self.seq_q);
        let keys = if self.q_starts { self.seq_kv } else { sinks.len() + rest.len() };
        let queries = self.batch * self.heads_q * self.seq_q;
        let row = |which: usize, dim: usize, dtype: DType| match self.cached.quantised[which] {
            Some(storage) => storage.row_bytes(dim as u32) as usize,
            None => dim * dtype.bytes(),
        };
        let kv = row(0, self.dim_k, self.k.dtype) + row(1, self.dim_v, self.v.dtype);
        let qo = self.dim_k * self.q.dtype.bytes() + self.dim_v * self.o.dtype.bytes();
        (queries * (qo + 4 * usize::from(self.lse)) + self.batch * self.heads_kv * keys * kv) as u64
    }

    /// Tiles of `kv_tile` keys that `q_tile` neighbouring rows can see, at most.
    pub(crate) fn tiles(&self, q_tile: u32, kv_tile: u32) -> u32 {
        // rows of a tile may straddle one query more than they fill
        let queries = (q_tile as usize).div_ceil(self.groups()) + 1;
        let queries = queries.min(self.seq_q.max(1));
        let mut keys = self.seq_kv;
        if let Some(w) = self.mask.window {
            let sides = if self.mask.causal { 1 } else { 2 };
            keys = keys.min(sides * (w as usize - 1) + queries);
        }
        if let Some(c) = self.mask.chunk {
            let sides = if self.mask.causal { 1 } else { 2 };
            keys = keys.min(sides * c as usize + queries);
        }
        let sinks = if self.mask.window.is_some() { self.mask.sink_tokens as usize } else { 0 };
        let tile = kv_tile as usize;
        (sinks.min(self.seq_kv).div_ceil(tile) + keys.div_ceil(tile)) as u32
    }
}

/// How a problem is cut for one kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tuning {
    /// Query rows to a workgroup.
    pub(crate) q_tile: u32,
    /// Keys to a step.
    pub(crate) kv_tile: u32,
    /// Parts into which the keys of a row tile are cut.
    pub(crate) splits: u32,
    /// Key tiles to a split.
    pub(crate) split_tiles: u32,
    /// Loop iterations that an invocation runs at most.
    pub(crate) iterations: u32,
    /// Workgroup memory in bytes.
    pub(crate) workgroup_bytes: u32,
    /// Invocations across keys (or the subgroup's size) and rows.
    pub(crate) lanes: [u32; 2],
    /// Rows and keys to an invocation.
    pub(crate) block: [u32; 2],
    /// Words that the loops of the kernel read as their bounds.
    pub(crate) bounds: [u32; 7],
}

/// Cuts the keys so that the device is busy and no invocation loops too long.
///
/// `per_tile` counts the iterations of all loops that one key tile costs; llvmpipe counts one more for each
/// loop, in which the condition fails.
pub(crate) fn split(problem: &Problem, limits: &Limits, tuning: &mut Tuning, per_tile: u32) -> Result<()> {
    let tiles = problem.tiles(tuning.q_tile, tuning.kv_tile).max(1);
    // a quarter in reserve: llvmpipe was seen to count up to a seventh more than the text shows
    let longest = LOOP_ITERATIONS / 4 * 3 / per_tile;
    let needed = tiles.div_ceil(longest.max(1));
    let row_tiles = (problem.rows() as u64).div_ceil(u64::from(tuning.q_tile));
    let groups = row_tiles * (problem.batch * problem.heads_kv) as u64;
    let (busy, fewest_keys) = if limits.software { (16, 256) } else { (1024, 128) };
    let wanted = if let Some(splits) = problem.splits {
        splits.min(tiles)
    } else {
        let useful = tiles.div_ceil(u32::div_ceil(fewest_keys, tuning.kv_tile));
        (busy / groups.max(1)).clamp(1, u64::from(useful)) as u32
    };
    let split_tiles = tiles.div_ceil(wanted.max(needed));
    tuning.splits = tiles.div_ceil(split_tiles);
    tuning.split_tiles = split_tiles;
    tuning.iterations = split_tiles * per_tile + 128;
    if tuning.splits > limits.workgroups {
        return Err(Error::OutOfRange {
            field: "seq_kv",
            value: problem.seq_kv.to_string(),
            bound: format!("cut into at most {} splits", limits.workgroups),
            remedy: "attend to parts of the keys and merge the partial results",
        });
    }
    Ok(())
}

/// Constants that every attention kernel has; `partial` when its results are to be merged.
pub(crate) fn constants(problem: &Problem, limits: &Limits, partial: bool) -> Constants {
    let f32_out = Operand { dtype: DType::F32, quads: problem.dim_v.is_multiple_of(4) };
    let o = if partial || problem.packs_words() { f32_out } else { problem.o };
    let bias = Operand { dtype: problem.bias.unwrap_or(DType::F32), quads: false };
    Constants::default()
        .set("DIM_K", problem.dim_k as u32)
        .set("DIM_V", problem.dim_v as u32)
        .set("CAUSAL", problem.mask.causal)
        .set("WINDOW", problem.mask.window.is_some())
        .set("CHUNK", problem.mask.chunk.is_some())
        .set("KV_LEN", problem.kv_len)
        .set("Q_STARTS", problem.q_starts)
        .set("SOFTCAP", problem.softcap.is_some())
        .set("SINKS", problem.sinks && !partial)
        .set("ALIBI", problem.alibi)
        .set("BIAS", problem.bias.is_some())
        .set("BIAS_HIDDEN", Value::Name(if bias.dtype == DType::F16 { "-65504.0" } else { "-1e30" }.into()))
        .set("LSE", problem.lse || partial)
        .set("PARTIAL", partial)
        .set("q", problem.q.loader(limits))
        .set("RING", matches!(problem.cached.place, KeyPlace::Ring(_)))
        .set("PAGED", matches!(problem.cached.place, KeyPlace::Paged(_)))
        .set("k", problem.cached.loader(0, problem.k, limits))
        .set("v", problem.cached.loader(1, problem.v, limits))
        .set("bias", bias.loader(limits))
        .set("o", o.storer())
}

/// `Params` of `shaders/common/attention.wgsl`.
#[derive(Debug, Clone, Copy, Default, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Params {
    pub(crate) rows: u32,
    pub(crate) groups: u32,
    pub(crate) heads: u32,
    pub(crate) seq_kv: u32,
    pub(crate) tile_base: u32,
    pub(crate) tile_count: u32,
    pub(crate) split_base: u32,
    pub(crate) split_tiles: u32,
    pub(crate) row_base: u32,
    pub(crate) row_count: u32,
    /// Base and batch, head and row strides.
    pub(crate) q: [u32; 4],
    pub(crate) k: [u32; 4],
    pub(crate) v: [u32; 4],
    pub(crate) bias: [u32; 4],
    /// Base, batch, head, row, split.
    pub(crate) o: [u32; 5],
    /// Base, batch, head, split.
    pub(crate) lse: [u32; 4],
    pub(crate) q_start: i32,
    pub(crate) k_start: i32,
    pub(crate) window: i32,
    pub(crate) sink_tokens: i32,
    pub(crate) chunk: i32,
    pub(crate) kv_len_at: u32,
    pub(crate) q_starts_at: u32,
    pub(crate) sinks_at: u32,
    pub(crate) slopes_at: u32,
    pub(crate) scale: f32,
    pub(crate) softcap: f32,
    /// `quads_k`, `lanes`, `stages`, `chunk_quads`, `stage_q`, `stage_k`, `stage_v`.
    pub(crate) bounds: [u32; 7],
    /// Slots of a ring, or the logarithm of a page.
    pub(crate) place: u32,
    pub(crate) pages_at: u32,
    pub(crate) pages_batch: u32,
    /// Words at which the scales of quantised keys and values start.
    pub(crate) scales: [u32; 2],
}

impl Params {
    /// What follows from the problem alone; offsets and slabs are the operator's.
    pub(crate) fn of(problem: &Problem, tuning: &Tuning) -> Self {
        let shaped = problem.softcap.is_some() || problem.bias.is_some() || problem.alibi;
        let rule = |value: Option<u32>| value.map_or(0, |v| v as i32);
        Self {
            rows: problem.rows() as u32,
            groups: problem.groups() as u32,
            seq_kv: problem.seq_kv as u32,
            split_tiles: tuning.split_tiles,
            q_start: problem.positions.q_start() as i32,
            k_start: problem.positions.k_start() as i32,
            window: rule(problem.mask.window),
            sink_tokens: problem.mask.sink_tokens as i32,
            chunk: rule(problem.mask.chunk),
            scale: if shaped { problem.scale } else { problem.scale * std::f32::consts::LOG2_E },
            softcap: problem.softcap.unwrap_or(1.0),
            bounds: tuning.bounds,
            place: match problem.cached.place {
                KeyPlace::Linear => 0,
                KeyPlace::Ring(slots) => slots,
                KeyPlace::Paged(log2) => log2,
            },
            ..Self::default()
        }
    }
}
