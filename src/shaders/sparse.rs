//! Variants of the kernels of sparse attention.

use super::Variants;
use crate::gpu::shader::Constants;
use crate::kernels::attention::Operand;
use crate::kernels::{indexed_attention, indexer, nsa, top_k};
use crate::{DType, Limits, Result};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![
        (indexer::SUBGROUP, size_of::<indexer::Params>()),
        (indexer::NAME, size_of::<indexer::Params>()),
        (indexed_attention::SUBGROUP, size_of::<indexed_attention::Params>()),
        (indexed_attention::NAME, size_of::<indexed_attention::Params>()),
        (top_k::COUNT, size_of::<top_k::Params>()),
        (top_k::PICK, size_of::<top_k::Params>()),
        (top_k::GATHER, size_of::<top_k::Params>()),
        (nsa::WEIGHTS, size_of::<nsa::Weights>()),
        (nsa::BLOCKS, size_of::<nsa::Blocks>()),
        (nsa::GATE, size_of::<nsa::Gate>()),
        (nsa::MEAN, size_of::<nsa::Mean>()),
    ]
}

fn seen(causal: bool, tables: bool) -> Constants {
    Constants::default().set("CAUSAL", causal).set("KV_LEN", tables).set("Q_STARTS", tables)
}

fn indexers(dtype: DType, odd: bool) -> indexer::Problem {
    let q = Operand { dtype, quads: !odd };
    indexer::Problem {
        heads: if odd { 5 } else { 64 },
        dim: if odd { 7 } else { 128 },
        q,
        k: (dtype != DType::F32 || odd).then_some(q),
        key_scale: dtype == DType::F32 && !odd,
        seen: seen(true, odd),
    }
}

fn indexed(dtype: DType, dims: [usize; 2], list: bool) -> indexed_attention::Problem {
    let quads = dims[0].is_multiple_of(4);
    let operand = Operand { dtype, quads };
    indexed_attention::Problem {
        batch: 2,
        heads_q: 16,
        heads_kv: if list { 1 } else { 4 },
        seq_q: 3,
        dim_k: dims[0],
        dim_v: dims[1],
        slots: 2048,
        q: operand,
        k: operand,
        v: operand,
        o: Operand { dtype: if quads { dtype } else { DType::F32 }, quads },
        list,
        compact: !list,
        lse: list,
        seen: seen(list, list),
        windows: 1,
        splits: Some(1),
    }
}

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    for (_, limits) in super::invented_devices() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            for odd in [false, true] {
                let tuning = indexer::tune(&indexers(dtype, odd), &limits, None)?;
                found.add(tuning.kernel, &tuning.constants, tuning.workgroup_bytes)?;
            }
            for (dims, list) in [([64, 64], true), ([128, 128], false), ([576, 512], true), ([5, 7], true)] {
                let tuning = indexed_attention::tune(&indexed(dtype, dims, list), &limits, None)?;
                found.add(tuning.kernel, &tuning.constants, tuning.workgroup_bytes)?;
            }
        }
        for tables in [false, true] {
            let tuning = top_k::tune(1, 131_072, 2048, &limits)?;
            for kernel in [top_k::COUNT, top_k::PICK, top_k::GATHER] {
                let constants = top_k::constants(&tuning, seen(true, tables));
                found.add(kernel, &constants, tuning.workgroup_bytes(kernel))?;
            }
        }
    }
    let limits = Limits::webgpu();
    for (dim, quads) in [(64, true), (7, false)] {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let operand = Operand { dtype, quads };
            let constants = nsa::weights_constants(dim, operand, operand, seen(true, false), &limits);
            found.add(nsa::WEIGHTS, &constants, 0)?;
            found.add(nsa::MEAN, &nsa::mean_constants(dim, operand, &limits), 0)?;
        }
        found.add(nsa::GATE, &nsa::gate_constants(dim, &limits), 0)?;
    }
    found.add(nsa::BLOCKS, &nsa::blocks_constants(), 0)
}
