//! How the rows of one kind lie in their buffer: all values first, then all scales.

use crate::model::{LayerCache, Rows, Storage};
use crate::{DType, Error, Result};

/// Values of a block with one scale (`q8_0`, `q4_0`).
pub(crate) const BLOCK: u32 = 32;
/// Values of a group with one scale (`fp8-groups`).
const GROUP: u32 = 128;

/// Storage of one kind of row: `heads` rows of `width` values to a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Format {
    pub(crate) storage: Storage,
    pub(crate) heads: u32,
    pub(crate) width: u32,
}

impl Format {
    /// The format of `rows`, refused where a token's values or scales do not fill whole words.
    pub(crate) fn new(layer: &LayerCache, rows: &Rows) -> Result<Self> {
        let format = Self { storage: rows.storage, heads: rows.heads, width: rows.width };
        let words = [format.token_values(), format.token_scales()].iter().all(|bytes| bytes % 4 == 0);
        let quads = rows.storage == Storage::F32 || format.blocks() > 0 || rows.width.is_multiple_of(4);
        if words && quads {
            return Ok(format);
        }
        Err(Error::OutOfRange {
            field: "width",
            value: format!("{} ({} heads, {}, layer {})", rows.width, rows.heads, rows.storage, layer.index),
            bound: "such that rows are whole groups of four values and a token's scales whole words".into(),
            remedy: "store this model's cache as f32 or f16, or pad its heads",
        })
    }

    /// Values that a row takes up: blocks are padded.
    pub(crate) fn padded(self) -> u32 {
        if self.blocks() > 0 { self.blocks() * BLOCK } else { self.width }
    }

    /// Blocks of a row; 0 where the storage has none.
    fn blocks(self) -> u32 {
        match self.storage {
            Storage::Q8_0 | Storage::Q4_0 => self.width.div_ceil(BLOCK),
            _ => 0,
        }
    }

    /// Scales of a row.
    pub(crate) fn scales(self) -> u32 {
        match self.storage {
            Storage::Q8_0 | Storage::Q4_0 => self.blocks(),
            Storage::Fp8 | Storage::Int8 => 1,
            Storage::Fp8Groups => self.width.div_ceil(GROUP),
            _ => 0,
        }
    }

    /// Bytes of a scale.
    pub(crate) fn scale_bytes(self) -> u64 {
        if self.blocks() > 0 { 2 } else { 4 }
    }

    /// Bytes of a token's values.
    pub(crate) fn token_values(self) -> u64 {
        let values = u64::from(self.padded());
        let row = match self.storage {
            Storage::F32 => values * 4,
            Storage::F16 | Storage::Bf16 => values * 2,
            Storage::Q4_0 => values / 2,
            _ => values,
        };
        u64::from(self.heads) * row
    }

    /// Bytes of a token's scales.
    pub(crate) fn token_scales(self) -> u64 {
        u64::from(self.heads) * u64::from(self.scales()) * self.scale_bytes()
    }

    /// Storage type of a tensor over these rows, where they are plain numbers.
    pub(crate) fn dtype(self) -> Option<DType> {
        float(self.storage)
    }
}

/// The tensor type of a float storage.
pub(crate) fn float(storage: Storage) -> Option<DType> {
    match storage {
        Storage::F32 => Some(DType::F32),
        Storage::F16 => Some(DType::F16),
        Storage::Bf16 => Some(DType::Bf16),
        _ => None,
    }
}
