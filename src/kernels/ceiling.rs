//! What the adapter can do at best: copy, stream, multiply and add. Benches state shares of these.

use bytemuck::{Pod, Zeroable};

use crate::gpu::shader::Constants;
use crate::gpu::{Binding, Step};
use crate::limits::Limits;

pub(crate) const COPY: &str = "ceiling_copy";
pub(crate) const READ: &str = "ceiling_read";
pub(crate) const MULTIPLY_ADD: &str = "ceiling_multiply_add";

/// How memory is walked.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Walk {
    pub(crate) lanes: u32,
    /// A run to an invocation, or a run to a workgroup.
    pub(crate) contiguous: bool,
    /// Independent sums of the read.
    pub(crate) unroll: u32,
}

impl Walk {
    /// Every walk that `limits` allow.
    pub(crate) fn all(limits: &Limits, unrolls: &[u32]) -> Vec<Self> {
        let mut walks = Vec::new();
        for lanes in lanes(limits) {
            for contiguous in [false, true] {
                walks.extend(unrolls.iter().map(|&unroll| Self { lanes, contiguous, unroll }));
            }
        }
        walks
    }

    /// Vectors to an invocation, a power of two; `vectors` is one too, of at least 65,536.
    fn run(self, vectors: u32, limits: &Limits) -> u32 {
        // a processor wants few long runs, a GPU many invocations
        let run = if limits.software { 256 } else { 8 };
        let groups = limits.workgroups.min(1 << 15);
        run.max(vectors / self.lanes / groups).min(vectors / self.lanes).next_power_of_two()
    }

    fn step(
        self,
        kernel: &'static str,
        constants: Constants,
        vectors: u32,
        limits: &Limits,
        on: Vec<Binding>,
    ) -> Step {
        let run = self.run(vectors, limits);
        Step {
            kernel,
            constants,
            params: bytemuck::bytes_of(&run).to_vec(),
            bindings: on,
            groups: [vectors / self.lanes / run, 1, 1],
            flops: u64::from(vectors),
        }
    }

    fn constants(self) -> Constants {
        Constants::default().set("LANES", self.lanes).set("CONTIGUOUS", self.contiguous)
    }

    /// Copies `vectors` vectors of 16 bytes from the first binding to the second.
    pub(crate) fn copy(self, vectors: u32, limits: &Limits, bindings: &[Binding; 2]) -> Step {
        self.step(COPY, self.constants(), vectors, limits, bindings.to_vec())
    }

    /// Reads `vectors` vectors of 16 bytes from the first binding; sums go to the second.
    pub(crate) fn read(self, vectors: u32, limits: &Limits, bindings: &[Binding; 2]) -> Step {
        let constants = self.constants().set("UNROLL", self.unroll);
        self.step(READ, constants, vectors, limits, bindings.to_vec())
    }
}

fn lanes(limits: &Limits) -> impl Iterator<Item = u32> {
    let most = limits.invocations;
    [8, 64, 256].into_iter().filter(move |&lanes| lanes <= most)
}

/// How multiply-adds are laid out.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MultiplyAdds {
    pub(crate) lanes: u32,
    /// Independent accumulators of an invocation.
    pub(crate) chains: u32,
    /// Multiply-adds on each of them to a loop iteration.
    pub(crate) repeat: u32,
}

#[derive(Debug, Clone, Copy, Pod, Zeroable)]
#[repr(C)]
struct Params {
    steps: u32,
    x: f32,
    y: f32,
}

impl MultiplyAdds {
    /// Every layout that `limits` allow.
    pub(crate) fn all(limits: &Limits) -> Vec<Self> {
        let counts = [(8, 16), (16, 8), (32, 4)];
        lanes(limits)
            .flat_map(|lanes| counts.map(|(chains, repeat)| Self { lanes, chains, repeat }))
            .collect()
    }

    /// Floating-point operations of a step over `invocations`.
    pub(crate) fn flops(self, invocations: u32, steps: u32) -> u64 {
        2 * u64::from(self.chains * self.repeat) * u64::from(invocations) * u64::from(steps)
    }

    /// `steps` times `repeat` multiply-adds on every accumulator of `invocations`; sums go to the binding.
    pub(crate) fn step(self, invocations: u32, steps: u32, sums: Binding) -> Step {
        Step {
            kernel: MULTIPLY_ADD,
            constants: Constants::default()
                .set("LANES", self.lanes)
                .set("CHAINS", self.chains)
                .set("REPEAT", self.repeat),
            // converges to 2, far from denormals and infinities
            params: bytemuck::bytes_of(&Params { steps, x: 0.5, y: 1.0 }).to_vec(),
            bindings: vec![sums],
            groups: [invocations / self.lanes, 1, 1],
            flops: self.flops(invocations, steps),
        }
    }
}
