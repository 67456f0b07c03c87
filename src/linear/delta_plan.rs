//! Which way a delta rule is computed.

use std::fmt;

use crate::gpu::shader::Constants;
use crate::kernels::Kernel;
use crate::kernels::delta_chunk;
use crate::kernels::delta_step::{self, DeltaStep, DeltaStepSubgroup, Problem, Tuning};
use crate::limits::Limits;
use crate::{Error, Result};

/// How a delta rule's call will run: a pure function of the problem and the device's limits.
#[derive(Debug, Clone, PartialEq)]
pub struct DeltaPlan {
    pub(crate) kernel: &'static str,
    pub(crate) tuning: Tuning,
    problem: Problem,
    declined: Vec<(&'static str, String)>,
}

impl DeltaPlan {
    /// Walks the ways from fastest to plainest and takes the first that fits; `forced` leaves only one.
    pub(crate) fn choose(problem: &Problem, limits: &Limits, forced: Option<&str>) -> Result<Self> {
        type Tune = fn(&Problem, &Limits) -> Result<Tuning>;
        let ways: [(&'static str, Tune); 3] = [
            (delta_chunk::NAME, delta_chunk::tune),
            (DeltaStepSubgroup::NAME, DeltaStepSubgroup::tune),
            (DeltaStep::NAME, DeltaStep::tune),
        ];
        let mut declined = Vec::new();
        for (kernel, tune) in ways {
            if forced.is_some_and(|f| f != kernel) {
                declined.push((kernel, "another kernel was asked for".to_owned()));
                continue;
            }
            if forced.is_none() && kernel == delta_chunk::NAME {
                if let Some(why) = delta_chunk::not_worth_it(problem, limits) {
                    declined.push((kernel, why));
                    continue;
                }
            }
            match tune(problem, limits) {
                Ok(tuning) => return Ok(Self { kernel, tuning, problem: *problem, declined }),
                Err(why) => declined.push((kernel, why.to_string())),
            }
        }
        let declined = declined.into_iter().map(|(k, why)| format!("{k}: {why}")).collect();
        Err(Error::NoKernel { operator: "the delta rule", declined })
    }

    /// Constants of the kernel's text.
    pub(crate) fn constants(&self, limits: &Limits) -> Constants {
        let own = match self.kernel {
            DeltaStepSubgroup::NAME => DeltaStepSubgroup::constants(&self.problem, &self.tuning),
            _ => DeltaStep::constants(&self.problem, &self.tuning),
        };
        own.with(delta_step::operands(&self.problem, limits))
    }

    /// Way to compute: `delta_step_subgroup` or `delta_step` (a token after another), or `delta_chunk` (chunks in
    /// parallel).
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// Workgroup memory in bytes.
    #[must_use]
    pub fn workgroup_bytes(&self) -> u32 {
        self.tuning.workgroup_bytes
    }

    /// Floating-point operations of the way chosen.
    #[must_use]
    pub fn own_flops(&self) -> u64 {
        let p = &self.problem;
        if self.kernel == delta_chunk::NAME {
            let chunks = p.tokens.div_ceil(delta_chunk::CHUNK) as u64;
            (p.sequences * p.heads) as u64 * chunks * delta_chunk::flops(p).iter().sum::<u64>()
        } else {
            self.flops()
        }
    }

    /// Floating-point operations of the recurrence, by which all ways are measured: decay, prediction, write and read of each state element.
    #[must_use]
    pub fn flops(&self) -> u64 {
        let p = &self.problem;
        (p.sequences * p.heads * p.tokens) as u64 * p.token_flops()
    }

    /// Bytes that the operator must move: each input and output once, each state once in and once out.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let p = &self.problem;
        let g = match p.decay {
            delta_step::Decay::None => 0,
            delta_step::Decay::Head => p.g.bytes(),
            delta_step::Decay::Channel => p.g.bytes() * p.dim_k,
        };
        let keys = p.heads_k * p.dim_k * (p.q.dtype.bytes() + p.k.dtype.bytes());
        let token = keys + p.heads * (p.dim_v * (p.v.bytes() + 4) + g + 4);
        let state = p.heads * p.dim_k * p.dim_v * 4;
        let states = if p.keep { p.tokens + 1 } else { 2 };
        (p.sequences * (p.tokens * token + states * state)) as u64
    }

    /// Dependent steps from the first token to the last.
    #[must_use]
    pub fn critical_path(&self) -> u64 {
        let tokens = self.problem.tokens;
        (if self.kernel == delta_chunk::NAME { tokens.div_ceil(delta_chunk::CHUNK) } else { tokens }) as u64
    }

    /// What was chosen, and why the others declined.
    #[must_use]
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for DeltaPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tuning;
        write!(
            f,
            "{}: {} lanes, {} to a column, {} columns a workgroup, {} dependent steps, {} bytes of workgroup memory",
            self.kernel,
            t.lanes,
            t.row_split,
            t.columns,
            self.critical_path(),
            t.workgroup_bytes,
        )?;
        for (kernel, why) in &self.declined {
            write!(f, "\n  {kernel} declined: {why}")?;
        }
        Ok(())
    }
}
