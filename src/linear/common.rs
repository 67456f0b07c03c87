//! What the operators with a state share: checks, sequences, whole-tensor bindings, and outputs that are packed
//! after the kernels have written f32.

pub(super) use crate::attention::check_shared;
use crate::gpu::{Binding, Copy, DType, Gpu, Step, Table, Tensor};
use crate::kernels::pack_words;
use crate::{Error, Result};

/// Refuses a tensor of another shape.
pub(super) fn check_shape(field: &'static str, t: &Tensor, expected: &[usize]) -> Result<()> {
    if t.shape() == expected {
        return Ok(());
    }
    Err(Error::Shape {
        field,
        shape: t.shape().to_vec(),
        expected: format!("{expected:?}"),
        remedy: "give tensors of one call",
    })
}

/// Axes of a tensor that must have `N`.
pub(super) fn axes<const N: usize>(field: &'static str, t: &Tensor, expected: &str) -> Result<[usize; N]> {
    <[usize; N]>::try_from(t.shape()).map_err(|_| Error::Shape {
        field,
        shape: t.shape().to_vec(),
        expected: expected.into(),
        remedy: "give a tensor of as many axes",
    })
}

pub(super) fn check_f32(field: &'static str, t: &Tensor) -> Result<()> {
    if t.dtype() == DType::F32 {
        return Ok(());
    }
    Err(Error::DType { field, dtype: t.dtype().name(), allowed: "f32" })
}

pub(super) fn check_float(field: &'static str, dtype: DType) -> Result<()> {
    if dtype.is_float() {
        return Ok(());
    }
    Err(Error::DType { field, dtype: dtype.name(), allowed: "f32, f16 or bf16" })
}

pub(super) fn check_packed(field: &'static str, t: &Tensor) -> Result<()> {
    if t.is_packed() {
        return Ok(());
    }
    Err(Error::Strides {
        field,
        strides: t.strides().to_vec(),
        bound: "it must be packed",
        remedy: "copy it into a packed tensor",
    })
}

/// Refuses a size outside `1..=most`.
pub(super) fn check_size(field: &'static str, value: usize, most: usize) -> Result<()> {
    if (1..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::OutOfRange {
        field,
        value: value.to_string(),
        bound: format!("1 to {most}"),
        remedy: "give tensors of that size",
    })
}

/// Refuses more workgroups than a dispatch may have in one dimension.
pub(super) fn check_groups(gpu: &Gpu, field: &'static str, value: usize) -> Result<()> {
    let most = gpu.limits().workgroups as usize;
    if value <= most {
        return Ok(());
    }
    Err(Error::OutOfRange {
        field,
        value: value.to_string(),
        bound: format!("at most the device's {most} workgroups"),
        remedy: "split the call",
    })
}

/// A buffer that stands in for an absent tensor.
pub(super) fn absent(gpu: &Gpu, what: &'static str) -> Result<Binding> {
    gpu.buffer(what, 16).map(|buffer| Binding { buffer, offset: 0, size: 16 })
}

/// Refuses `bytes` beyond what one binding holds.
pub(super) fn fits(gpu: &Gpu, field: &'static str, bytes: u64) -> Result<()> {
    let allowed = gpu.limits().binding_bytes;
    if bytes + u64::from(gpu.limits().offset_alignment) <= allowed.max(1 << 10) {
        return Ok(());
    }
    let limit = "max_storage_buffer_binding_size";
    Err(Error::Binding { field, needed: bytes, limit, allowed, split: "batch or tokens" })
}

/// A whole tensor's binding and the element at which it starts there.
pub(super) fn whole(gpu: &Gpu, field: &'static str, t: &Tensor) -> Result<(Binding, u32)> {
    if t.is_empty() {
        return Ok((absent(gpu, "empty tensor")?, 0));
    }
    fits(gpu, field, t.span_bytes())?;
    Ok(t.bind(gpu, 0, t.span()))
}

/// First token and number of tokens of each sequence, where the caller gave them.
#[derive(Debug, Clone, Default)]
pub(super) struct Sequences(pub(super) Option<(Tensor, Tensor)>);

impl Sequences {
    /// Sequences of a call with `batch` entries.
    pub(super) fn count(&self, batch: usize) -> Result<usize> {
        let Some((starts, lengths)) = &self.0 else { return Ok(batch) };
        let count = if batch == 1 { starts.len() } else { batch };
        for (field, t) in [("starts", starts), ("lengths", lengths)] {
            check_shape(field, t, &[count])?;
            if t.dtype() != DType::I32 {
                return Err(Error::DType { field, dtype: t.dtype().name(), allowed: "i32" });
            }
        }
        Ok(count)
    }

    pub(super) fn ragged(&self) -> bool {
        self.0.is_some()
    }

    /// First words in the table of starts and lengths.
    pub(super) fn add(&self, table: &mut Table) -> Result<[u32; 2]> {
        match &self.0 {
            Some((starts, lengths)) => Ok([table.add("starts", starts)?, table.add("lengths", lengths)?]),
            None => Ok([0; 2]),
        }
    }

    /// Elements from one sequence's batch entry to the next: sequences of a single entry share it.
    pub(super) fn step(&self, batch: usize, stride: usize) -> u32 {
        if self.ragged() && batch == 1 { 0 } else { stride as u32 }
    }
}

/// Refuses a state that cannot be copied into, then copies the initial one; none where it is updated in place.
pub(super) fn copy_state(initial: Option<&Tensor>, state: &Tensor) -> Result<Vec<Copy>> {
    let Some(initial) = initial else { return Ok(Vec::new()) };
    if initial.buffer() == state.buffer() {
        if initial.offset_bytes() == state.offset_bytes() {
            return Ok(Vec::new());
        }
        return Err(Error::SharedBuffer { field: "state", other: "another part as initial_state" });
    }
    if initial.is_empty() {
        return Ok(Vec::new());
    }
    for (field, t, usage) in [
        ("initial_state", initial, wgpu::BufferUsages::COPY_SRC),
        ("state", state, wgpu::BufferUsages::COPY_DST),
    ] {
        if !t.buffer().usage().contains(usage) {
            return Err(Error::OutOfRange {
                field,
                value: format!("{:?}", t.buffer().usage()),
                bound: format!("in a buffer made with {usage:?}"),
                remedy: "add it to the buffer's usage, or update the state in place",
            });
        }
    }
    Ok(vec![Copy { from: initial.clone(), to: state.buffer().clone(), to_bytes: state.offset_bytes() }])
}

/// Where kernels write f32: the caller's tensor, or scratch that is packed to it afterwards.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) binding: Binding,
    pub(super) base: u32,
    packed: Option<(Tensor, Tensor)>,
}

impl Target {
    pub(super) fn new(gpu: &Gpu, field: &'static str, out: &Tensor, shape: &[usize]) -> Result<Self> {
        check_shape(field, out, shape)?;
        check_float(field, out.dtype())?;
        check_packed(field, out)?;
        if out.dtype() == DType::F32 {
            let (binding, base) = whole(gpu, field, out)?;
            return Ok(Self { binding, base, packed: None });
        }
        fits(gpu, field, out.len() as u64 * 4)?;
        let scratch = Tensor::uninitialised(gpu, DType::F32, shape)?;
        let (binding, base) = whole(gpu, field, &scratch)?;
        Ok(Self { binding, base, packed: Some((scratch, out.clone())) })
    }

    /// The dispatch that packs, if one is needed.
    pub(super) fn finish(&self, gpu: &Gpu, steps: &mut Vec<Step>) {
        if let Some((scratch, out)) = self.packed.as_ref().filter(|(_, out)| !out.is_empty()) {
            let (source, target) = (scratch.bind(gpu, 0, out.len()), out.bind(gpu, 0, out.len()));
            steps.push(pack_words::step(out.dtype(), source, target, out.len(), gpu.limits().workgroups));
        }
    }
}

/// Options that every operator over sequences with a state has.
macro_rules! sequence_options {
    () => {
        /// First token and number of tokens of each sequence, both `[sequences]` in i32.
        ///
        /// With one batch entry, sequences lie one after another on its token axis; with more, there is one
        /// sequence a batch entry and what lies around it is padding that is neither read nor touches the state.
        /// Values beyond the token axis are cut there; sequences must not overlap.
        #[must_use]
        pub fn sequences(mut self, starts: &Tensor, lengths: &Tensor) -> Self {
            self.sequences = Sequences(Some((starts.clone(), lengths.clone())));
            self
        }

        /// Keeps the state before the first token and after each, on a new first axis: going back to the state
        /// after `j` tokens is taking entry `j` (speculative decoding). Past a sequence's end the state stays.
        #[must_use]
        pub fn keep_states(mut self) -> Self {
            self.keep = true;
            self
        }

        /// Storage of the output that [`run`](Self::run) allocates; f32 by default.
        #[must_use]
        pub fn output(mut self, dtype: DType) -> Self {
            self.output = dtype;
            self
        }
    };
}
pub(super) use sequence_options;
