//! Tensors in GPU buffers: a buffer slice, a storage type, a shape and strides.

use std::sync::Arc;

use half::{bf16, f16};

use super::Gpu;
use crate::{Error, Result};

/// Storage type of a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DType {
    /// 32-bit float.
    F32,
    /// IEEE half float.
    F16,
    /// The upper half of a 32-bit float.
    Bf16,
    /// Unsigned 32-bit integer.
    U32,
    /// Signed 32-bit integer.
    I32,
}

impl DType {
    /// Bytes of an element.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::F32 | Self::U32 | Self::I32 => 4,
        }
    }

    /// Name as in `--dtype` and error messages.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::U32 => "u32",
            Self::I32 => "i32",
        }
    }

    /// Whether it is one of the three float types.
    #[must_use]
    pub const fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

mod sealed {
    pub trait Sealed {}
}

/// Rust types that tensors are made from and read back as.
pub trait Element: bytemuck::Pod + sealed::Sealed {
    /// The matching storage type.
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t { const DTYPE: DType = DType::$d; }
    )*};
}
elements!(f32 => F32, f16 => F16, bf16 => Bf16, u32 => U32, i32 => I32);

/// A tensor: a slice of a GPU buffer seen through a shape and strides. Cloning shares the buffer.
#[derive(Debug, Clone)]
pub struct Tensor {
    buffer: wgpu::Buffer,
    /// First element, from the start of the buffer.
    offset_bytes: u64,
    /// Bytes of the buffer that belong to this tensor, from `offset_bytes` on.
    size_bytes: u64,
    dtype: DType,
    shape: Arc<[usize]>,
    strides: Arc<[usize]>,
}

/// Elements of a shape, refused where their bytes could not be counted.
fn elements(shape: &[usize]) -> Result<usize> {
    let count = shape.iter().try_fold(1usize, |a, &b| a.checked_mul(b));
    count.filter(|&n| n <= usize::MAX >> 4).ok_or_else(|| Error::OutOfRange {
        field: "shape",
        value: format!("{shape:?}"),
        bound: "of fewer elements than memory has bytes".into(),
        remedy: "check the axes",
    })
}

fn packed_strides(shape: &[usize]) -> Arc<[usize]> {
    let mut strides = vec![1_usize; shape.len()];
    for axis in (1..shape.len()).rev() {
        strides[axis - 1] = strides[axis].saturating_mul(shape[axis].max(1));
    }
    strides.into()
}

impl Tensor {
    /// Uploads `data`, packed in row-major order.
    ///
    /// # Errors
    /// The shape does not hold `data.len()` elements, the device's buffers are smaller, or its memory is full.
    pub fn from_slice<T: Element>(gpu: &Gpu, data: &[T], shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        if elements(&shape)? != data.len() {
            return Err(Error::Shape {
                field: "shape",
                shape,
                expected: format!("as many elements as the data's {}", data.len()),
                remedy: "give the data's own shape",
            });
        }
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let buffer = gpu.buffer_with("tensor", bytes)?;
        Ok(Self::packed(buffer, T::DTYPE, shape))
    }

    /// Allocates a packed tensor; its contents are not defined.
    ///
    /// # Errors
    /// The device's buffers are smaller, or its memory is full.
    pub fn uninitialised(gpu: &Gpu, dtype: DType, shape: impl Into<Vec<usize>>) -> Result<Self> {
        let shape = shape.into();
        let bytes = elements(&shape)? as u64 * dtype.bytes() as u64;
        Ok(Self::packed(gpu.buffer("tensor", bytes)?, dtype, shape))
    }

    fn packed(buffer: wgpu::Buffer, dtype: DType, shape: Vec<usize>) -> Self {
        let size_bytes = shape.iter().product::<usize>() as u64 * dtype.bytes() as u64;
        let strides = packed_strides(&shape);
        Self { buffer, offset_bytes: 0, size_bytes, dtype, shape: shape.into(), strides }
    }

    /// A packed tensor over a slice of the caller's own buffer.
    ///
    /// The buffer needs `STORAGE` usage; `COPY_SRC` too for reading back and for small tensors (`sinks`,
    /// `kv_len`, `alibi`, `q_starts`).
    ///
    /// # Errors
    /// The slice is too short, or `offset_bytes` is not a multiple of the element's size and of 4.
    pub fn from_buffer(
        buffer: &wgpu::Buffer,
        offset_bytes: u64,
        size_bytes: u64,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
    ) -> Result<Self> {
        let shape = shape.into();
        let needed = elements(&shape)? as u64 * dtype.bytes() as u64;
        let end = offset_bytes.checked_add(size_bytes);
        if size_bytes < needed || end.is_none_or(|end| end > buffer.size()) {
            return Err(Error::OutOfRange {
                field: "size_bytes",
                value: size_bytes.to_string(),
                bound: format!(
                    "at least the tensor's {needed} bytes, and within the buffer's {} after offset {offset_bytes}",
                    buffer.size()
                ),
                remedy: "give the slice that holds the whole tensor",
            });
        }
        if !offset_bytes.is_multiple_of(4) {
            return Err(Error::OutOfRange {
                field: "offset_bytes",
                value: offset_bytes.to_string(),
                bound: "a multiple of 4".into(),
                remedy: "start tensors on word boundaries",
            });
        }
        if !buffer.usage().contains(wgpu::BufferUsages::STORAGE) {
            return Err(Error::OutOfRange {
                field: "buffer",
                value: format!("{:?}", buffer.usage()),
                bound: "made with BufferUsages::STORAGE".into(),
                remedy: "add STORAGE (and COPY_SRC to read back) to the buffer's usage",
            });
        }
        let strides = packed_strides(&shape);
        Ok(Self { buffer: buffer.clone(), offset_bytes, size_bytes, dtype, shape: shape.into(), strides })
    }

    /// The same memory under another shape and strides (in elements), `start` elements further on.
    ///
    /// # Errors
    /// The view reaches outside this tensor's slice, or shape and strides differ in length.
    pub fn view(&self, start: usize, shape: &[usize], strides: &[usize]) -> Result<Self> {
        let mut steps = shape.iter().zip(strides).map(|(&n, &s)| n.saturating_sub(1).checked_mul(s));
        let last = steps.try_fold(0usize, |sum, step| sum.checked_add(step?));
        let elements = if shape.contains(&0) {
            Some(start)
        } else {
            last.and_then(|last| last.checked_add(start)?.checked_add(1))
        };
        let end = elements.and_then(|n| n.checked_mul(self.dtype.bytes()));
        if shape.len() != strides.len() || end.is_none_or(|end| end as u64 > self.size_bytes) {
            return Err(Error::Strides {
                field: "view",
                strides: strides.to_vec(),
                bound: "every element must lie within the tensor, one stride an axis",
                remedy: "check shape, strides and start",
            });
        }
        let skipped = (start * self.dtype.bytes()) as u64;
        Ok(Self {
            buffer: self.buffer.clone(),
            offset_bytes: self.offset_bytes + skipped,
            size_bytes: self.size_bytes - skipped,
            dtype: self.dtype,
            shape: shape.into(),
            strides: strides.into(),
        })
    }

    /// The same tensor with its axes in another order: `[0, 2, 1, 3]` turns `[B, L, H, D]` into the
    /// `[B, H, L, D]` that operators take, without a copy.
    ///
    /// # Panics
    /// `axes` is not a permutation of the tensor's axes.
    #[must_use]
    pub fn permute(&self, axes: &[usize]) -> Self {
        let mut sorted = axes.to_vec();
        sorted.sort_unstable();
        assert!(sorted.iter().copied().eq(0..self.shape.len()), "axes {axes:?} must be a permutation");
        let pick = |of: &[usize]| axes.iter().map(|&a| of[a]).collect();
        Self { shape: pick(&self.shape), strides: pick(&self.strides), ..self.clone() }
    }

    /// `count` entries of axis `axis` from `first` on, without a copy.
    ///
    /// # Errors
    /// The range reaches past the axis.
    pub fn narrow(&self, axis: usize, first: usize, count: usize) -> Result<Self> {
        let mut shape = self.shape.to_vec();
        if axis >= shape.len() || first.checked_add(count).is_none_or(|end| end > shape[axis]) {
            return Err(Error::Shape {
                field: "narrow",
                shape,
                expected: format!("at least {} entries on axis {axis}", first.saturating_add(count)),
                remedy: "stay within the tensor",
            });
        }
        shape[axis] = count;
        self.view(first * self.strides[axis], &shape, &self.strides)
    }

    /// Storage type.
    #[must_use]
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Entries on each axis.
    #[must_use]
    pub fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Elements between neighbours on each axis.
    #[must_use]
    pub fn strides(&self) -> &[usize] {
        &self.strides
    }

    /// Elements in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shape.iter().product()
    }

    /// Elements from the first to the last, gaps included.
    pub(crate) fn span(&self) -> usize {
        let steps = self.shape.iter().zip(self.strides.iter());
        if self.is_empty() { 0 } else { steps.map(|(&n, &s)| (n - 1) * s).sum::<usize>() + 1 }
    }

    /// Where four-axis rows lie in a binding: `base`, then the strides of batch, head and row.
    pub(crate) fn place(&self, base: u32) -> [u32; 4] {
        let s = &self.strides;
        [base, s[0] as u32, s[1] as u32, s[2] as u32]
    }

    /// Bytes from the first element to the last, gaps included.
    pub(crate) fn span_bytes(&self) -> u64 {
        self.span() as u64 * self.dtype.bytes() as u64
    }

    /// Whether an axis has no entries.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether the elements lie in row-major order without gaps.
    #[must_use]
    pub fn is_packed(&self) -> bool {
        let packed = packed_strides(&self.shape);
        self.shape.iter().zip(self.strides.iter().zip(packed.iter())).all(|(&n, (s, p))| n <= 1 || s == p)
    }

    /// The buffer underneath.
    #[must_use]
    pub fn buffer(&self) -> &wgpu::Buffer {
        &self.buffer
    }

    /// First byte within the buffer.
    #[must_use]
    pub fn offset_bytes(&self) -> u64 {
        self.offset_bytes
    }

    /// Reads the elements back in row-major order, blocking until the device has finished.
    ///
    /// # Errors
    /// `T` is not the storage type, or the device failed at anything since the last read.
    pub fn read<T: Element>(&self, gpu: &Gpu) -> Result<Vec<T>> {
        gpu.block_on(self.read_async(gpu))
    }

    /// Like [`read`](Self::read) with any float type widened to f32.
    ///
    /// # Errors
    /// The tensor holds integers, or the device failed at anything since the last read.
    pub fn read_f32(&self, gpu: &Gpu) -> Result<Vec<f32>> {
        Ok(match self.dtype {
            DType::F16 => self.read::<f16>(gpu)?.into_iter().map(f16::to_f32).collect(),
            DType::Bf16 => self.read::<bf16>(gpu)?.into_iter().map(bf16::to_f32).collect(),
            _ => self.read::<f32>(gpu)?,
        })
    }

    /// Reads the elements back in row-major order without blocking: the caller (or a browser) polls.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub async fn read_async<T: Element>(&self, gpu: &Gpu) -> Result<Vec<T>> {
        if T::DTYPE != self.dtype {
            return Err(Error::DType { field: "tensor", dtype: self.dtype.name(), allowed: T::DTYPE.name() });
        }
        if self.is_empty() {
            gpu.check().await?;
            return Ok(Vec::new());
        }
        let bytes = gpu.download(&self.buffer, self.offset_bytes, self.span() * size_of::<T>()).await?;
        let at = |ix: usize| {
            let start = ix * size_of::<T>();
            bytemuck::pod_read_unaligned(&bytes[start..start + size_of::<T>()])
        };
        if self.is_packed() {
            return Ok((0..self.len()).map(at).collect());
        }
        let mut out = Vec::with_capacity(self.len());
        for mut flat in 0..self.len() {
            let mut ix = 0;
            for (n, s) in self.shape.iter().zip(self.strides.iter()).rev() {
                ix += flat % n * s;
                flat /= n;
            }
            out.push(at(ix));
        }
        Ok(out)
    }
}
