//! `attention_tiled`: workgroup memory and barriers, for every device.

use super::Kernel;
use super::attention::{self, Problem, Tuning};
use crate::gpu::shader::Constants;
use crate::limits::Limits;
use crate::{Error, Result};

/// Family W.
#[derive(Debug)]
pub(crate) struct AttentionTiled;

/// Groups of four columns of q and k to a stage.
const CHUNK_QUADS: u32 = 8;

impl Kernel for AttentionTiled {
    const NAME: &'static str = "attention_tiled";
    type Problem = Problem;
    type Tuning = Tuning;

    fn tune(problem: &Problem, limits: &Limits) -> Result<Tuning> {
        let quads_k = problem.dim_k.div_ceil(4) as u32;
        let quads_v = problem.dim_v.div_ceil(4) as u32;
        let rows = problem.rows();
        // lanes across keys and rows, rows and keys to a lane: few rows want many lanes across; wide values
        // would fill a lane's registers
        let ([x, y], [row_block, keys]) = match (rows, quads_v) {
            (0..=4, _) => ([16, 4], [1, 2]),
            (0..=8, _) => ([16, 4], [2, 2]),
            (_, 33..) => ([16, 4], [4, 2]),
            (0..=16, _) => ([8, 8], [2, 4]),
            _ => ([8, 8], [4, 4]),
        };
        let threads = x * y;
        if threads > limits.invocations {
            return Err(Error::Unsupported {
                kernel: Self::NAME,
                needs: format!("{threads} invocations to a workgroup"),
                has: limits.invocations.to_string(),
            });
        }
        let (q_tile, kv_tile) = (y * row_block, x * keys);
        let pitch = (CHUNK_QUADS + 1).max(x + 1);
        let workgroup_bytes =
            16 * (q_tile * (CHUNK_QUADS + 1) + kv_tile * pitch) + 4 * q_tile * (kv_tile + 1);
        if workgroup_bytes > limits.workgroup_memory {
            return Err(Error::WorkgroupMemory {
                kernel: Self::NAME,
                field: "kv_tile",
                value: kv_tile,
                needed: workgroup_bytes,
                allowed: limits.workgroup_memory,
            });
        }
        let bounds = [
            quads_k,
            x,
            quads_v.div_ceil(x),
            CHUNK_QUADS,
            q_tile * CHUNK_QUADS,
            kv_tile * CHUNK_QUADS,
            kv_tile * x,
        ];
        let staged = |words: u32| words.div_ceil(threads);
        // each loop once more to leave it
        let k_stage = staged(bounds[4]) + staged(bounds[5]) + CHUNK_QUADS + 4;
        let v_stage = staged(bounds[6]) + kv_tile + 3;
        let per_tile =
            quads_k.div_ceil(CHUNK_QUADS) * k_stage + quads_v.div_ceil(x) * v_stage + row_block * (x + 1) + 3;
        let mut tuning = Tuning {
            q_tile,
            kv_tile,
            splits: 1,
            split_tiles: 1,
            iterations: 0,
            workgroup_bytes,
            lanes: [x, y],
            block: [row_block, keys],
            bounds,
        };
        attention::split(problem, limits, &mut tuning, per_tile)?;
        Ok(tuning)
    }

    fn constants(_: &Problem, tuning: &Tuning) -> Constants {
        Constants::default()
            .set("LANES_X", tuning.lanes[0])
            .set("LANES_Y", tuning.lanes[1])
            .set("ROWS", tuning.block[0])
            .set("KEYS", tuning.block[1])
            .set("CHUNK_QUADS", CHUNK_QUADS)
    }
}
