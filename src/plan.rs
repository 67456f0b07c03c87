//! Which kernel runs, how it is tuned, and why the others do not.

use std::fmt;

use crate::gpu::shader::Constants;
use crate::kernels::attention::{self, Problem, Tuning};
use crate::kernels::{AttentionSubgroup, AttentionTiled, Kernel};
use crate::limits::{LOOP_ITERATIONS, Limits};
use crate::{Error, Result};

/// How an attention call will run: a pure function of the problem and the device's limits.
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionPlan {
    pub(crate) kernel: &'static str,
    pub(crate) tuning: Tuning,
    pub(crate) rows: usize,
    flops: u64,
    bytes: u64,
    declined: Vec<(&'static str, String)>,
}

impl AttentionPlan {
    /// Walks the kernels from fastest to plainest and takes the first that fits; `forced` leaves only one.
    pub(crate) fn choose(problem: &Problem, limits: &Limits, forced: Option<&str>) -> Result<Self> {
        type Tune = fn(&Problem, &Limits) -> Result<Tuning>;
        let kernels: [(&'static str, Tune); 2] = [
            (AttentionSubgroup::NAME, AttentionSubgroup::tune),
            (AttentionTiled::NAME, AttentionTiled::tune),
        ];
        let mut declined = Vec::new();
        for (kernel, tune) in kernels {
            if forced.is_some_and(|f| f != kernel) {
                declined.push((kernel, "another kernel was asked for".to_owned()));
                continue;
            }
            match tune(problem, limits) {
                Ok(tuning) => {
                    let (flops, bytes) = (problem.flops(), problem.bytes());
                    return Ok(Self { kernel, tuning, rows: problem.rows(), flops, bytes, declined });
                }
                Err(why) => declined.push((kernel, why.to_string())),
            }
        }
        let declined = declined.into_iter().map(|(k, why)| format!("{k}: {why}")).collect();
        Err(Error::NoKernel { operator: "attention", declined })
    }

    /// Constants of the kernel's text, which are also the key of its pipeline.
    pub(crate) fn constants(&self, problem: &Problem, limits: &Limits) -> Constants {
        let own = match self.kernel {
            AttentionSubgroup::NAME => AttentionSubgroup::constants(problem, &self.tuning),
            _ => AttentionTiled::constants(problem, &self.tuning),
        };
        attention::constants(problem, limits, self.tuning.splits > 1).with(own)
    }

    /// Kernel's name, as in `shaders/`.
    #[must_use]
    pub fn kernel(&self) -> &'static str {
        self.kernel
    }

    /// `decode` when one tile holds all rows that share a key-value head, `prefill` otherwise.
    #[must_use]
    pub fn path(&self) -> &'static str {
        if self.rows <= self.tuning.q_tile as usize { "decode" } else { "prefill" }
    }

    /// Parts into which the keys are cut; more than one are merged.
    #[must_use]
    pub fn splits(&self) -> u32 {
        self.tuning.splits
    }

    /// Loop iterations that an invocation runs at most, over all its loops.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.tuning.iterations
    }

    /// Workgroup memory in bytes.
    #[must_use]
    pub fn workgroup_bytes(&self) -> u32 {
        self.tuning.workgroup_bytes
    }

    /// Floating-point operations that the operator must do: visible pairs only.
    #[must_use]
    pub fn flops(&self) -> u64 {
        self.flops
    }

    /// Bytes that the operator must move: every visible row once, every result once.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// What was chosen, and why the others declined.
    #[must_use]
    pub fn explain(&self) -> String {
        self.to_string()
    }
}

impl fmt::Display for AttentionPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let t = &self.tuning;
        writeln!(
            f,
            "{} ({}): {} rows by {} keys a step, {} x {} lanes of {} x {}, {} split{} of {} steps",
            self.kernel,
            self.path(),
            t.q_tile,
            t.kv_tile,
            t.lanes[0],
            t.lanes[1],
            t.block[0],
            t.block[1],
            t.splits,
            if t.splits == 1 { "" } else { "s" },
            t.split_tiles,
        )?;
        write!(
            f,
            "  {} bytes of workgroup memory, at most {} of {LOOP_ITERATIONS} loop iterations an invocation",
            t.workgroup_bytes, t.iterations,
        )?;
        for (kernel, why) in &self.declined {
            write!(f, "\n  {kernel} declined: {why}")?;
        }
        Ok(())
    }
}
