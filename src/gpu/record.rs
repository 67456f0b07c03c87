//! Recording dispatches into a command encoder.

use super::shader::Constants;
use super::{Gpu, Tensor};
use crate::{Error, Result};

/// A range of a buffer that a kernel sees.
#[derive(Debug, Clone)]
pub(crate) struct Binding {
    pub(crate) buffer: wgpu::Buffer,
    pub(crate) offset: u64,
    pub(crate) size: u64,
}

/// One dispatch: binding 0 is `params`, the others follow.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) kernel: &'static str,
    pub(crate) constants: Constants,
    pub(crate) params: Vec<u8>,
    pub(crate) bindings: Vec<Binding>,
    pub(crate) groups: [u32; 3],
    /// Estimated work, for cutting submissions.
    pub(crate) flops: u64,
}

/// A buffer-to-buffer copy that must precede the steps.
#[derive(Debug, Clone)]
pub(crate) struct Copy {
    pub(crate) from: Tensor,
    pub(crate) to: wgpu::Buffer,
    pub(crate) to_bytes: u64,
}

/// Small per-head and per-batch tensors gathered into one buffer, since a shader has few bindings.
#[derive(Debug, Default)]
pub(crate) struct Table {
    parts: Vec<(Tensor, u32)>,
    words: u32,
}

impl Table {
    /// Adds a packed tensor of 32-bit values; returns its first word.
    pub(crate) fn add(&mut self, field: &'static str, tensor: &Tensor) -> Result<u32> {
        if !tensor.is_packed() {
            return Err(Error::Strides {
                field,
                strides: tensor.strides().to_vec(),
                bound: "it must be packed",
                remedy: "copy it into a packed tensor",
            });
        }
        if !tensor.buffer().usage().contains(wgpu::BufferUsages::COPY_SRC) {
            return Err(Error::OutOfRange {
                field,
                value: format!("{:?}", tensor.buffer().usage()),
                bound: "in a buffer made with BufferUsages::COPY_SRC".into(),
                remedy: "add COPY_SRC to the buffer's usage",
            });
        }
        let at = self.words;
        self.parts.push((tensor.clone(), at));
        self.words += tensor.len() as u32;
        Ok(at)
    }

    /// Allocates the buffer; the copies must run before the steps that read it.
    pub(crate) fn build(self, gpu: &Gpu) -> Result<(Binding, Vec<Copy>)> {
        let buffer = gpu.buffer("table", u64::from(self.words) * 4)?;
        let copies = self.parts.into_iter().filter(|(t, _)| !t.is_empty());
        let copies =
            copies.map(|(from, at)| Copy { from, to: buffer.clone(), to_bytes: u64::from(at) * 4 }).collect();
        Ok((Binding { size: buffer.size(), buffer, offset: 0 }, copies))
    }
}

impl Tensor {
    /// Binding of elements `first .. first + count`, and the element of the binding at which `first` lies.
    pub(crate) fn bind(&self, gpu: &Gpu, first: usize, count: usize) -> (Binding, u32) {
        let bytes = self.dtype().bytes() as u64;
        let start = self.offset_bytes() + first as u64 * bytes;
        let offset = start - start % u64::from(gpu.limits().offset_alignment);
        let end = (start + count as u64 * bytes).next_multiple_of(16).min(self.buffer().size());
        let size = (end - offset).max(4);
        let base = ((start - offset) / bytes) as u32;
        (Binding { buffer: self.buffer().clone(), offset, size }, base)
    }
}

impl Gpu {
    /// Records copies and steps; nothing is submitted.
    pub(crate) fn record(
        &self,
        encoder: &mut wgpu::CommandEncoder,
        copies: &[Copy],
        steps: &[Step],
    ) -> Result<()> {
        let alignment = u64::from(self.limits().offset_alignment.max(16));
        let mut words = Vec::new();
        let mut offsets = Vec::new();
        for step in steps {
            offsets.push(words.len() as u64);
            words.extend_from_slice(&step.params);
            words.resize((words.len() as u64).next_multiple_of(alignment) as usize, 0);
        }
        let pipelines: Vec<_> =
            steps.iter().map(|s| self.pipeline(s.kernel, &s.constants)).collect::<Result<_>>()?;
        let params = self.buffer_with("params", &words)?;
        self.scoped("record", || {
            for copy in copies {
                let bytes = copy.from.len() as u64 * copy.from.dtype().bytes() as u64;
                let (from, at) = (copy.from.buffer(), copy.from.offset_bytes());
                encoder.copy_buffer_to_buffer(from, at, &copy.to, copy.to_bytes, bytes);
            }
            let mut pass = encoder.begin_compute_pass(&wgpu::ComputePassDescriptor {
                label: steps.first().map(|s| s.kernel),
                timestamp_writes: None,
            });
            for ((step, pipeline), offset) in steps.iter().zip(&pipelines).zip(offsets) {
                let params = Binding { buffer: params.clone(), offset, size: step.params.len() as u64 };
                let entries: Vec<_> = (0..)
                    .zip(std::iter::once(&params).chain(&step.bindings))
                    .map(|(binding, bound)| wgpu::BindGroupEntry {
                        binding,
                        resource: wgpu::BindingResource::Buffer(wgpu::BufferBinding {
                            buffer: &bound.buffer,
                            offset: bound.offset,
                            size: std::num::NonZeroU64::new(bound.size),
                        }),
                    })
                    .collect();
                let group = self.device().create_bind_group(&wgpu::BindGroupDescriptor {
                    label: Some(&pipeline.label),
                    layout: &pipeline.layout,
                    entries: &entries,
                });
                pass.set_pipeline(&pipeline.compute);
                pass.set_bind_group(0, &group, &[]);
                pass.dispatch_workgroups(step.groups[0], step.groups[1], step.groups[2]);
            }
        })
    }

    /// Records and submits, in as many submissions as keep each short.
    pub(crate) fn run_steps(&self, copies: &[Copy], steps: &[Step]) -> Result<()> {
        let mut copies = copies;
        let mut rest = steps;
        while !rest.is_empty() {
            let mut flops = 0;
            let within = rest.iter().take_while(|s| {
                flops += s.flops;
                flops <= self.limits().dispatch_flops
            });
            let (now, later) = rest.split_at(within.count().max(1));
            let mut encoder =
                self.device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            self.record(&mut encoder, copies, now)?;
            self.submit(encoder)?;
            (copies, rest) = (&[], later);
        }
        Ok(())
    }
}
