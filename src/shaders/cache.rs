//! Variants of the kernels that write caches, and of attention on caches.

use super::Variants;
use crate::cache::{Format, Place};
use crate::kernels::attention::{Cached, KeyPlace, Operand, Problem};
use crate::kernels::cache_append::{self, APPEND, Params, QUANTISE};
use crate::model::Storage;
use crate::{Attention, AttentionPlan, AttentionShape, DType, Result};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![(APPEND, size_of::<Params>()), (QUANTISE, size_of::<Params>())]
}

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    use Storage::{Bf16, F16, F32, Fp8, Int8, Q4_0, Q8_0};
    let portable = crate::Limits::webgpu();
    let places = [Place::Linear, Place::Ring, Place::Paged(16)];
    for (at, storage) in [F32, F16, Bf16, Q8_0, Q4_0, Fp8, Int8].into_iter().enumerate() {
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let quads = dtype != DType::F16;
            let width = if storage == F32 && !quads { 6 } else { 64 };
            let problem = cache_append::Problem {
                source: Operand { dtype, quads },
                format: Format { storage, heads: 2, width },
                place: places[(at + usize::from(quads)) % 3],
            };
            let (kernel, constants) = problem.text(&portable)?;
            found.add(kernel, &constants, 0)?;
        }
    }
    let shape =
        AttentionShape { batch: 2, heads_q: 8, heads_kv: 2, seq_q: 1, seq_kv: 4096, dim_k: 128, dim_v: 128 };
    let plain = Attention::causal().problem_of(&shape, DType::F16)?;
    let window =
        Attention::causal().window(512).problem_of(&AttentionShape { seq_q: 64, ..shape }, DType::F16)?;
    let cached = |problem: &Problem, place, k, v| Problem {
        kv_len: true,
        q_starts: true,
        cached: Cached { place, quantised: [k, v] },
        ..problem.clone()
    };
    for (_, limits) in super::invented_devices() {
        for problem in [
            cached(&plain, KeyPlace::Paged(4), None, None),
            cached(&window, KeyPlace::Ring(575), None, None),
            cached(&plain, KeyPlace::Paged(8), Some(Q8_0), Some(Q4_0)),
            cached(&window, KeyPlace::Ring(575), Some(Q4_0), Some(Q8_0)),
            cached(&plain, KeyPlace::Linear, Some(Fp8), Some(Int8)),
            cached(&plain, KeyPlace::Linear, Some(Int8), Some(Fp8)),
        ] {
            let plan = AttentionPlan::choose(&problem, &limits, None)?;
            found.add(plan.kernel, &plan.constants(&problem, &limits), plan.tuning.workgroup_bytes)?;
        }
    }
    Ok(())
}
