//! `attention_subgroup`: registers and shuffles, for a known subgroup size.

use super::Kernel;
use super::attention::{self, Problem, Tuning};
use crate::gpu::shader::Constants;
use crate::limits::Limits;
use crate::{Error, Result};

/// Family S.
#[derive(Debug)]
pub(crate) struct AttentionSubgroup;

impl Kernel for AttentionSubgroup {
    const NAME: &'static str = "attention_subgroup";
    type Problem = Problem;
    type Tuning = Tuning;

    fn tune(problem: &Problem, limits: &Limits) -> Result<Tuning> {
        let Some(lanes) = limits.subgroup else {
            return Err(Error::Unsupported {
                kernel: Self::NAME,
                needs: "subgroup operations and one subgroup size of 4, 8, 16, 32 or 64".into(),
                has: "none, or a range of sizes".into(),
            });
        };
        let quads_k = problem.dim_k.div_ceil(4) as u32;
        let quads_v = problem.dim_v.div_ceil(4) as u32;
        // numbers a row keeps in each lane's registers: its share of q and of the output
        let row_registers = 4 * (quads_k.div_ceil(lanes) + quads_v.div_ceil(lanes));
        // a processor spills to its first cache at little cost; a GPU loses occupancy long before
        // (SwiftShader's compiler, four wide, needs minutes and gigabytes for as many rows as lavapipe takes)
        let narrow = limits.software && lanes <= 4;
        let budget = if limits.software && !narrow { 512 } else { 128 };
        let fitting = (budget / row_registers).max(1);
        let wanted = problem.rows().max(1).next_power_of_two() as u32;
        let rows = 1 << fitting.min(wanted).min(if narrow { 4 } else { 16 }).ilog2();
        let keys = if lanes >= 64 { 1 } else { 2 };
        let mut tuning = Tuning {
            q_tile: rows,
            kv_tile: lanes * keys,
            splits: 1,
            split_tiles: 1,
            iterations: 0,
            workgroup_bytes: 0,
            lanes: [lanes, 1],
            block: [rows, keys],
            bounds: [quads_k, lanes, quads_k.div_ceil(lanes), 0, 0, 0, 0],
        };
        // stages with their groups of columns, keys, and the tile itself; each loop once more to leave it
        let stages = quads_k.div_ceil(lanes);
        let per_tile = (quads_k + stages) + (stages + 1) + (tuning.kv_tile + 1) + 1;
        attention::split(problem, limits, &mut tuning, per_tile)?;
        Ok(tuning)
    }

    fn constants(_: &Problem, tuning: &Tuning) -> Constants {
        Constants::default()
            .set("LANES", tuning.lanes[0])
            .set("LANES_LOG2", tuning.lanes[0].ilog2())
            .set("ROWS", tuning.block[0])
            .set("KEYS", tuning.block[1])
    }
}
