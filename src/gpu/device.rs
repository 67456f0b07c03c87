//! An open device with its pipelines, scratch memory and errors.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::builder::{GpuBuilder, kind, limits_of};
use super::shader::{self, Constants};
use crate::limits::Limits;
use crate::{Error, Result};

#[cfg(not(target_arch = "wasm32"))]
type ErrorFuture = Pin<Box<dyn Future<Output = Option<wgpu::Error>> + Send>>;
#[cfg(target_arch = "wasm32")]
type ErrorFuture = Pin<Box<dyn Future<Output = Option<wgpu::Error>>>>;

/// A device that operators run on. Cloning shares it.
///
/// ```no_run
/// let gpu = wgpu_attention::Gpu::new()?;
/// println!("{} ({})", gpu.name(), gpu.driver());
/// # Ok::<(), wgpu_attention::Error>(())
/// ```
#[derive(Clone)]
pub struct Gpu(Arc<Inner>);

struct Inner {
    device: wgpu::Device,
    queue: wgpu::Queue,
    info: wgpu::AdapterInfo,
    limits: Limits,
    pipelines: Mutex<HashMap<(&'static str, Constants), Arc<Pipeline>>>,
    /// Text replaced in every kernel that has it.
    edit: Option<(String, String)>,
    /// Scratch buffers, grown on demand: dispatches of one queue run in order, and each operator writes what
    /// it reads. Two, since a dispatch may not read and write one buffer.
    scratch: [Mutex<Option<wgpu::Buffer>>; 10],
    lost: Arc<Mutex<Option<String>>>,
    /// Error scopes that were not resolved at once (browsers); the next read reports them.
    pending: Mutex<Vec<(String, ErrorFuture)>>,
}

/// A compiled kernel and its bindings.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(super) compute: wgpu::ComputePipeline,
    pub(super) layout: wgpu::BindGroupLayout,
    pub(super) label: String,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu")
            .field("name", &self.name())
            .field("driver", &self.driver())
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn new(
        device: wgpu::Device,
        queue: wgpu::Queue,
        lost: Arc<Mutex<Option<String>>>,
        dispatch_flops: Option<u64>,
    ) -> Self {
        let info = device.adapter_info();
        let mut limits = limits_of(&info, device.features(), &device.limits());
        if let Some(flops) = dispatch_flops {
            limits.dispatch_flops = flops.max(1);
        }
        Self {
            device,
            queue,
            info,
            limits,
            pipelines: Mutex::default(),
            edit: None,
            scratch: Default::default(),
            lost,
            pending: Mutex::default(),
        }
    }
}

/// A lock whose holder panicked still guards consistent data: every critical section here is one assignment.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Gpu {
    /// Opens the best adapter: discrete before integrated before software.
    ///
    /// `WGPU_BACKEND`, `WGPU_ADAPTER_NAME` and `WGPU_POWER_PREF` are honoured.
    ///
    /// # Errors
    /// There is no adapter, or its driver opens no device.
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// Chooses an adapter, features and limits.
    #[must_use]
    pub fn builder() -> GpuBuilder {
        GpuBuilder::default()
    }

    /// Takes an app's own device and queue, whatever features and limits it was opened with.
    #[must_use]
    pub fn from_wgpu(device: &wgpu::Device, queue: &wgpu::Queue) -> Self {
        // the app's device keeps its own lost callback: loss shows as errors of the calls that follow
        Self(Arc::new(Inner::new(device.clone(), queue.clone(), Arc::default(), None)))
    }

    pub(super) fn owned(device: wgpu::Device, queue: wgpu::Queue, dispatch_flops: Option<u64>) -> Self {
        let lost: Arc<Mutex<Option<String>>> = Arc::default();
        let flag = lost.clone();
        device.set_device_lost_callback(move |reason, message| {
            *lock(&flag) = Some(format!("{reason:?}: {message}"));
        });
        Self(Arc::new(Inner::new(device, queue, lost, dispatch_flops)))
    }

    /// The same device with `from` replaced by `to` in its kernels: how tests plant faults.
    #[doc(hidden)]
    #[must_use]
    pub fn with_edit(&self, from: &str, to: &str) -> Self {
        let Inner { device, queue, lost, limits, .. } = &*self.0;
        let mut inner = Inner::new(device.clone(), queue.clone(), lost.clone(), Some(limits.dispatch_flops));
        inner.edit = Some((from.to_owned(), to.to_owned()));
        Self(Arc::new(inner))
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &wgpu::Device {
        &self.0.device
    }

    /// The queue.
    #[must_use]
    pub fn queue(&self) -> &wgpu::Queue {
        &self.0.queue
    }

    /// What plans are made from.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.0.limits
    }

    /// Adapter name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.0.info.name
    }

    /// Driver and its version.
    #[must_use]
    pub fn driver(&self) -> String {
        format!("{} {}", self.0.info.driver, self.0.info.driver_info).trim().to_owned()
    }

    /// Kind of adapter and backend, as in `software, vulkan`.
    #[must_use]
    pub fn kind(&self) -> String {
        format!("{}, {}", kind(&self.0.info), self.0.info.backend)
    }

    /// Runs `f` and returns what the device had against it, where the device says so at once.
    pub(crate) fn scoped<T>(&self, what: &str, f: impl FnOnce() -> T) -> Result<T> {
        self.check_lost()?;
        let device = &self.0.device;
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let value = f();
        let futures: [ErrorFuture; 3] =
            [Box::pin(validation.pop()), Box::pin(internal.pop()), Box::pin(memory.pop())];
        let mut first = None;
        for mut future in futures {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(Some(error)) => first = first.or(Some(error)),
                Poll::Ready(None) => {}
                Poll::Pending => lock(&self.0.pending).push((what.to_owned(), future)),
            }
        }
        match first {
            Some(error) => Err(self.explain(what, &error)),
            None => Ok(value),
        }
    }

    fn explain(&self, what: &str, error: &wgpu::Error) -> Error {
        let message = one_line(&error.to_string());
        if let Some(message) = lock(&self.0.lost).clone() {
            return Error::DeviceLost { message };
        }
        match error {
            wgpu::Error::OutOfMemory { .. } => Error::OutOfMemory { what: what.into(), message },
            _ if message.contains("is lost") => Error::DeviceLost { message },
            _ => Error::Device { what: what.into(), message },
        }
    }

    fn check_lost(&self) -> Result<()> {
        match lock(&self.0.lost).clone() {
            Some(message) => Err(Error::DeviceLost { message }),
            None => Ok(()),
        }
    }

    /// Waits for the errors of everything recorded so far.
    ///
    /// # Errors
    /// The first thing the device refused and nobody has been told of.
    pub async fn check(&self) -> Result<()> {
        let pending = std::mem::take(&mut *lock(&self.0.pending));
        for (what, future) in pending {
            if let Some(error) = future.await {
                return Err(self.explain(&what, &error));
            }
        }
        self.check_lost()
    }

    /// Drives a future to its end, waiting on the device whenever it is not ready.
    pub(crate) fn block_on<T>(&self, future: impl Future<Output = Result<T>>) -> Result<T> {
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return value;
            }
            // no time-out: wgpu 30 panics in timed waits that race
            let waited = self.0.device.poll(wgpu::PollType::wait_indefinitely());
            waited.map_err(|e| Error::Device {
                what: "waiting for the device".into(),
                message: e.to_string(),
            })?;
        }
    }

    /// A storage buffer of at least `bytes` (rounded up to whole vectors).
    pub(crate) fn buffer(&self, what: &'static str, bytes: u64) -> Result<wgpu::Buffer> {
        let bytes = bytes.max(1).next_multiple_of(16);
        self.create_buffer(what, bytes, wgpu::BufferUsages::STORAGE, false)
    }

    /// A storage buffer of `bytes` bytes, rounded up to a word only: for memory that is accounted for.
    pub(crate) fn exact_buffer(&self, what: &'static str, bytes: u64) -> Result<wgpu::Buffer> {
        self.create_buffer(what, bytes.max(1).next_multiple_of(4), wgpu::BufferUsages::STORAGE, false)
    }

    /// A storage buffer that holds `data`.
    pub(crate) fn buffer_with(&self, what: &'static str, data: &[u8]) -> Result<wgpu::Buffer> {
        let bytes = (data.len() as u64).max(1).next_multiple_of(16);
        let buffer = self.create_buffer(what, bytes, wgpu::BufferUsages::STORAGE, true)?;
        self.scoped(what, || {
            if let Ok(mut view) = buffer.slice(..).get_mapped_range_mut() {
                view.slice(..data.len()).copy_from_slice(data);
            }
            buffer.unmap();
        })?;
        Ok(buffer)
    }

    fn create_buffer(
        &self,
        what: &'static str,
        size: u64,
        usage: wgpu::BufferUsages,
        mapped: bool,
    ) -> Result<wgpu::Buffer> {
        if size > self.0.limits.buffer_bytes {
            return Err(Error::Binding {
                field: what,
                needed: size,
                limit: "max_buffer_size",
                allowed: self.0.limits.buffer_bytes,
                split: "batch or heads",
            });
        }
        let usage = usage | wgpu::BufferUsages::COPY_SRC | wgpu::BufferUsages::COPY_DST;
        let desc = wgpu::BufferDescriptor { label: Some(what), size, usage, mapped_at_creation: mapped };
        self.scoped(what, || self.0.device.create_buffer(&desc))
    }

    /// Scratch memory of at least `bytes`, shared by all calls of this device; one of ten buffers.
    ///
    /// Attention takes the first two, operators that contain it the others.
    ///
    /// Only for work that goes into one submission: between two of them another call may write here.
    pub(crate) fn scratch(&self, which: usize, bytes: u64) -> Result<wgpu::Buffer> {
        let mut scratch = lock(&self.0.scratch[which]);
        match &*scratch {
            Some(buffer) if buffer.size() >= bytes => Ok(buffer.clone()),
            _ => {
                let buffer = self.buffer("scratch", bytes)?;
                *scratch = Some(buffer.clone());
                Ok(buffer)
            }
        }
    }

    /// Submits commands.
    ///
    /// # Errors
    /// What the device has against them.
    pub fn submit(&self, commands: wgpu::CommandEncoder) -> Result<()> {
        self.scoped("submit", || self.0.queue.submit([commands.finish()])).map(|_| ())
    }

    /// `bytes` bytes of a buffer from `offset` on.
    pub(crate) async fn download(&self, buffer: &wgpu::Buffer, offset: u64, bytes: usize) -> Result<Vec<u8>> {
        if !buffer.usage().contains(wgpu::BufferUsages::COPY_SRC) {
            return Err(Error::OutOfRange {
                field: "buffer",
                value: format!("{:?}", buffer.usage()),
                bound: "made with BufferUsages::COPY_SRC".into(),
                remedy: "add COPY_SRC to the usage of buffers that are read back",
            });
        }
        let skip = (offset % 4) as usize;
        let start = offset - skip as u64;
        let size = ((skip + bytes) as u64).next_multiple_of(4);
        let staging = self.scoped("read back", || {
            let staging = self.0.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("read back"),
                size,
                usage: wgpu::BufferUsages::MAP_READ | wgpu::BufferUsages::COPY_DST,
                mapped_at_creation: false,
            });
            let mut encoder =
                self.0.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
            encoder.copy_buffer_to_buffer(buffer, start, &staging, 0, size);
            self.0.queue.submit([encoder.finish()]);
            staging
        })?;
        self.check().await?;
        let mapped = Arc::new(Mutex::new((None, None::<Waker>)));
        let shared = mapped.clone();
        self.scoped("read back", || {
            staging.slice(..).map_async(wgpu::MapMode::Read, move |result| {
                let mut state = lock(&shared);
                state.0 = Some(result);
                if let Some(waker) = state.1.take() {
                    waker.wake();
                }
            });
        })?;
        let result = std::future::poll_fn(|context| {
            let mut state = lock(&mapped);
            if let Some(result) = state.0.take() {
                Poll::Ready(result)
            } else {
                state.1 = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await;
        let failed = |message: String| match lock(&self.0.lost).clone() {
            Some(message) => Error::DeviceLost { message },
            None => Error::Device { what: "read back".into(), message },
        };
        result.map_err(|e| failed(e.to_string()))?;
        let view = staging.slice(..).get_mapped_range().map_err(|e| failed(e.to_string()))?;
        Ok(view[skip..skip + bytes].to_vec())
    }

    /// The compiled kernel; compiled on first use.
    pub(crate) fn pipeline(&self, kernel: &'static str, constants: &Constants) -> Result<Arc<Pipeline>> {
        let key = (kernel, constants.clone());
        if let Some(pipeline) = lock(&self.0.pipelines).get(&key) {
            return Ok(pipeline.clone());
        }
        let source = shader::edited(kernel, constants, self.0.edit.as_ref())?;
        let label = constants.label(kernel);
        let pipeline = self.scoped(&label, || self.compile(&source, &label)).map_err(|e| match e {
            Error::Device { what, message } => Error::Device { what, message: source.locate(message) },
            other => other,
        })?;
        let pipeline = Arc::new(pipeline);
        lock(&self.0.pipelines).insert(key, pipeline.clone());
        Ok(pipeline)
    }

    fn compile(&self, source: &shader::Source, label: &str) -> Pipeline {
        let device = &self.0.device;
        let desc = wgpu::ShaderModuleDescriptor {
            label: Some(label),
            source: wgpu::ShaderSource::Wgsl(source.text.as_str().into()),
        };
        #[expect(
            unsafe_code,
            reason = "our own shaders: indices are bounded by the host, loops too; tests \
                                        poison what lies around every buffer"
        )]
        let module =
            unsafe { device.create_shader_module_trusted(desc, wgpu::ShaderRuntimeChecks::unchecked()) };
        let entries: Vec<_> = (0..)
            .zip(source.bindings())
            .map(|(binding, written)| wgpu::BindGroupLayoutEntry {
                binding,
                visibility: wgpu::ShaderStages::COMPUTE,
                ty: wgpu::BindingType::Buffer {
                    ty: wgpu::BufferBindingType::Storage { read_only: !written },
                    has_dynamic_offset: false,
                    min_binding_size: None,
                },
                count: None,
            })
            .collect();
        let desc = wgpu::BindGroupLayoutDescriptor { label: Some(label), entries: &entries };
        let layout = device.create_bind_group_layout(&desc);
        let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
            label: Some(label),
            bind_group_layouts: &[Some(&layout)],
            immediate_size: 0,
        });
        let pipeline = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
            label: Some(label),
            layout: Some(&pipeline_layout),
            module: &module,
            entry_point: Some("main"),
            compilation_options: wgpu::PipelineCompilationOptions {
                constants: &[],
                // kernels write workgroup memory before they read it; zeroing costs seconds in FXC
                zero_initialize_workgroup_memory: false,
            },
            cache: None,
        });
        Pipeline { compute: pipeline, layout, label: label.to_owned() }
    }
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
