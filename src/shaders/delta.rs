//! Variants of the delta rule's kernels.

use super::Variants;
use crate::kernels::attention::Operand;
use crate::kernels::delta_step::{Decay, DeltaStep, DeltaStepSubgroup, Params, Problem};
use crate::kernels::{Kernel, delta_chunk};
use crate::linear::DeltaPlan;
use crate::{DType, Limits, Result};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    let steps = [DeltaStepSubgroup::NAME, DeltaStep::NAME];
    steps.into_iter().chain(delta_chunk::KERNELS).map(|kernel| (kernel, size_of::<Params>())).collect()
}

/// Problems that use every option and storage type at least once.
fn problems() -> Vec<Problem> {
    let plain = Operand { dtype: DType::F32, quads: true };
    let gated = Problem {
        sequences: 1,
        tokens: 512,
        heads_k: 8,
        heads: 8,
        dim_k: 128,
        dim_v: 128,
        q: plain,
        k: plain,
        v: DType::F32,
        g: DType::F32,
        decay: Decay::Head,
        gate_logits: false,
        beta_logits: false,
        l2norm: false,
        ragged: false,
        keep: false,
    };
    let half = Operand { dtype: DType::F16, quads: true };
    let odd = Operand { dtype: DType::Bf16, quads: false };
    let kimi = Problem { decay: Decay::Channel, ..gated };
    let full = Problem { gate_logits: true, beta_logits: true, l2norm: true, ragged: true, ..gated };
    vec![
        gated,
        kimi,
        Problem { decay: Decay::None, dim_k: 64, dim_v: 64, ..gated },
        Problem { tokens: 1, l2norm: true, ..gated },
        Problem {
            q: half,
            k: half,
            v: DType::F16,
            g: DType::Bf16,
            dim_k: 256,
            tokens: 4,
            keep: true,
            ..full
        },
        Problem { q: odd, k: odd, v: DType::Bf16, g: DType::F16, dim_k: 5, dim_v: 7, ..full },
        Problem { decay: Decay::Channel, dim_k: 256, dim_v: 256, ..full },
    ]
}

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    for (device, (_, limits)) in super::invented_devices().into_iter().enumerate() {
        for (number, problem) in problems().into_iter().enumerate() {
            // texts are long: a device meets the first problem, and every third of the others
            if number > 0 && (number + device) % 3 != 0 {
                continue;
            }
            for kernel in [DeltaStepSubgroup::NAME, DeltaStep::NAME] {
                if kernel == DeltaStepSubgroup::NAME && limits.subgroup.is_none() {
                    continue;
                }
                let plan = DeltaPlan::choose(&problem, &limits, Some(kernel))?;
                found.add(kernel, &plan.constants(&limits), plan.workgroup_bytes())?;
            }
        }
    }
    for problem in problems() {
        let tuning = delta_chunk::tune(&Problem { keep: false, ..problem }, &Limits::webgpu())?;
        for kernel in delta_chunk::KERNELS {
            let bytes = delta_chunk::workgroup_bytes(kernel, &problem, &tuning);
            found.add(kernel, &delta_chunk::constants(kernel, &problem, &tuning), bytes)?;
        }
    }
    Ok(())
}
