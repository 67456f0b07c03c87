//! Variants of the attention kernels, and of those that go with them.

use super::Variants;
use crate::gpu::shader::Constants;
use crate::kernels::attention::{self, Problem};
use crate::kernels::{AttentionSubgroup, AttentionTiled, Kernel, ceiling, merge_partials, pack_words};
use crate::{Attention, AttentionPlan, AttentionShape, DType, Mask, Result};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![
        (AttentionSubgroup::NAME, size_of::<attention::Params>()),
        (AttentionTiled::NAME, size_of::<attention::Params>()),
        (merge_partials::NAME, size_of::<merge_partials::Params>()),
        (pack_words::NAME, size_of::<pack_words::Params>()),
    ]
}

/// Problems that use every option and storage type at least once.
fn problems() -> Result<Vec<Problem>> {
    let shape =
        AttentionShape { batch: 2, heads_q: 8, heads_kv: 2, seq_q: 128, seq_kv: 512, dim_k: 64, dim_v: 64 };
    let decode = AttentionShape { seq_q: 1, seq_kv: 8192, dim_k: 128, dim_v: 128, ..shape };
    let wide = AttentionShape { dim_k: 576, dim_v: 512, heads_kv: 1, ..shape };
    let odd = AttentionShape { dim_k: 5, dim_v: 7, ..shape };
    let causal = Attention::causal;
    let mut problems = vec![
        causal().problem_of(&shape, DType::F32)?,
        causal().problem_of(&AttentionShape { dim_k: 128, dim_v: 128, ..shape }, DType::F16)?,
        causal().without_lse().output(DType::Bf16).problem_of(&shape, DType::Bf16)?,
        causal().output(DType::F16).problem_of(&decode, DType::F16)?,
        causal().problem_of(&decode, DType::F32)?,
        causal().problem_of(&decode, DType::Bf16)?,
        causal().problem_of(&wide, DType::F32)?,
        causal().problem_of(&odd, DType::F32)?,
        causal().output(DType::F16).problem_of(&odd, DType::F16)?,
        causal().output(DType::Bf16).problem_of(&odd, DType::Bf16)?,
        causal().window(16).sink_tokens(4).softcap(50.0).problem_of(&shape, DType::F32)?,
        Attention::bidirectional().window(16).problem_of(&shape, DType::F32)?,
        causal().chunk(32).problem_of(&shape, DType::F32)?,
    ];
    let plain = Attention::bidirectional().problem_of(&shape, DType::F32)?;
    let full = Problem { kv_len: true, q_starts: true, sinks: true, alibi: true, ..plain };
    for bias in [DType::F32, DType::F16, DType::Bf16] {
        problems.push(Problem { bias: Some(bias), ..full.clone() });
    }
    let everything = Mask { window: Some(9), sink_tokens: 2, chunk: Some(64), ..Mask::causal() };
    let everything = Attention::bidirectional().mask(everything).softcap(30.0);
    let everything = everything.problem_of(&decode, DType::F32)?;
    problems.push(Problem { kv_len: true, sinks: true, ..everything });
    Ok(problems)
}

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    for (_, limits) in super::invented_devices() {
        for problem in problems()? {
            let plan = AttentionPlan::choose(&problem, &limits, None)?;
            let constants = plan.constants(&problem, &limits);
            found.add(plan.kernel, &constants, plan.tuning.workgroup_bytes)?;
        }
    }
    for problem in problems()? {
        let o = if problem.packs_words() { merge_partials::f32_operand(problem.dim_v) } else { problem.o };
        let merge =
            merge_partials::Problem { dim_v: problem.dim_v, o, sinks: problem.sinks, lse: problem.lse };
        found.add(merge_partials::NAME, &merge_partials::constants(merge), 0)?;
    }
    for dtype in [DType::F16, DType::Bf16] {
        found.add(pack_words::NAME, &pack_words::constants(dtype), 0)?;
    }
    for kernel in [ceiling::COPY, ceiling::READ, ceiling::MULTIPLY_ADD] {
        found.add(kernel, &Constants::default(), 0)?;
    }
    Ok(())
}
