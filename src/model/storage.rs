//! How a cache stores its values, and the options it is laid out by.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// How the values of a row are stored.
///
/// Block formats store 32 values a block; a row whose width is not a multiple of 32 is padded to a whole block,
/// so that no block straddles heads or tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Storage {
    /// 4 bytes a value.
    F32,
    /// 2 bytes a value.
    F16,
    /// 2 bytes a value.
    Bf16,
    /// 34 bytes a block of 32: one f16 scale and 32 signed bytes.
    Q8_0,
    /// 18 bytes a block of 32: one f16 scale and 32 half bytes.
    Q4_0,
    /// 1 byte a value; one scale for the whole tensor, kept outside the cache.
    Fp8Tensor,
    /// 1 byte a value and one f32 scale a row.
    Fp8,
    /// 1 byte a value and one f32 scale a row.
    Int8,
    /// 1 byte a value and one f32 scale for each started group of 128: the latent half of the 656-byte form.
    Fp8Groups,
}

impl Storage {
    /// Every storage that a user can ask for.
    pub const ALL: [Self; 8] =
        [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Fp8Tensor, Self::Fp8, Self::Int8];

    /// Bytes of one row of `width` values.
    #[must_use]
    pub fn row_bytes(self, width: u32) -> u64 {
        let values = u64::from(width);
        match self {
            Self::F32 => values * 4,
            Self::F16 | Self::Bf16 => values * 2,
            Self::Q8_0 => values.div_ceil(32) * 34,
            Self::Q4_0 => values.div_ceil(32) * 18,
            Self::Fp8Tensor => values,
            Self::Fp8 | Self::Int8 => values + 4,
            Self::Fp8Groups => values + values.div_ceil(128) * 4,
        }
    }

    /// The storage's name, as [`FromStr`] reads it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Fp8Tensor => "fp8-tensor",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Fp8Groups => "fp8-groups",
        }
    }

    /// Storage of a latent's rows: one scale a row is too coarse for 512 values, so `fp8` means the 656-byte form.
    pub(super) fn latent(self) -> Self {
        if self == Self::Fp8 { Self::Fp8Groups } else { self }
    }

    /// Storage of a latent layer's rotated part, which quantises badly: 16-bit unless the whole tensor is one type.
    pub(super) fn rope_key(self) -> Self {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 | Self::Fp8Tensor => self,
            Self::Fp8 | Self::Fp8Groups => Self::Bf16,
            Self::Q8_0 | Self::Q4_0 | Self::Int8 => Self::F16,
        }
    }

    pub(super) fn is_float(self) -> bool {
        matches!(self, Self::F32 | Self::F16 | Self::Bf16)
    }
}

impl fmt::Display for Storage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Storage {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|storage| storage.name() == text).ok_or_else(|| Error::OutOfRange {
            field: "kv",
            value: format!("{:?}", text.chars().take(40).collect::<String>()),
            bound: format!("one of {}", Self::ALL.map(Self::name).join(", ")),
            remedy: "choose a storage type from the list",
        })
    }
}

/// How a cache is to be laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct CacheOptions {
    /// Storage of keys, values and latents.
    pub kv: Storage,
    /// Storage of indexer keys; `None` follows `kv`.
    pub index: Option<Storage>,
    /// Storage of recurrent states: f32, f16 or bf16.
    pub state: Storage,
    /// Storage of convolution tails: f32, f16 or bf16.
    pub conv: Storage,
    /// Most tokens one call appends: a window layer holds `window - 1` old tokens and these.
    pub call_tokens: u32,
    /// Whether the multi-token-prediction layers get caches too.
    pub prediction_layers: bool,
}

impl CacheOptions {
    /// `kv` storage, f32 states and tails, one token a call.
    #[must_use]
    pub fn new(kv: Storage) -> Self {
        Self {
            kv,
            index: None,
            state: Storage::F32,
            conv: Storage::F32,
            call_tokens: 1,
            prediction_layers: false,
        }
    }

    /// Sets the most tokens one call appends.
    #[must_use]
    pub fn call_tokens(mut self, call_tokens: u32) -> Self {
        self.call_tokens = call_tokens;
        self
    }

    /// Sets the storage of indexer keys.
    #[must_use]
    pub fn index(mut self, index: Storage) -> Self {
        self.index = Some(index);
        self
    }

    /// Sets the storage of convolution tails.
    #[must_use]
    pub fn conv(mut self, conv: Storage) -> Self {
        self.conv = conv;
        self
    }

    /// Sets the storage of recurrent states.
    #[must_use]
    pub fn state(mut self, state: Storage) -> Self {
        self.state = state;
        self
    }

    /// Gives the multi-token-prediction layers caches too.
    #[must_use]
    pub fn prediction_layers(mut self, prediction_layers: bool) -> Self {
        self.prediction_layers = prediction_layers;
        self
    }
}
