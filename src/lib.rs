//! Modern LLM attention on any GPU.

mod error;

pub use error::{Error, Result};
