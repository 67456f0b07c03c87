//! Variants of rotary embedding and of the projections of latent attention.

use super::Variants;
use crate::kernels::attention::Operand;
use crate::kernels::{project_heads, rope};
use crate::{DType, Result};

pub(super) fn params_bytes() -> Vec<(&'static str, usize)> {
    vec![(rope::NAME, size_of::<rope::Params>()), (project_heads::NAME, size_of::<project_heads::Params>())]
}

pub(super) fn variants(found: &mut Variants) -> Result<()> {
    let stored = [DType::F32, DType::F16, DType::Bf16];
    for (_, limits) in super::invented_devices() {
        for dtype in stored {
            for quads in [true, false] {
                let x = Operand { dtype, quads };
                found.add(rope::NAME, &rope::constants(quads, x, x, &limits), 0)?;
                for (rows, out_contiguous) in [(1, true), (3, false), (64, true), (65, false)] {
                    let f32 = Operand { dtype: DType::F32, quads };
                    let problem = project_heads::Problem { rows, out_contiguous, x: f32, w: x, y: x };
                    found.add(project_heads::NAME, &problem.constants(&limits), problem.workgroup_bytes())?;
                }
            }
        }
    }
    Ok(())
}
