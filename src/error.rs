//! Every way a call can be refused or fail.

/// Result of this crate's fallible calls.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a call was refused (before any GPU work) or failed (in the device's own words).
///
/// Every refusal names the field as the API spells it, its value, the bound, and what to do.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    // --- problems ---
    /// A field has a value outside its bounds.
    #[error("{field} is {value}, but must be {bound}: {remedy}")]
    OutOfRange {
        /// Field as the API spells it.
        field: &'static str,
        /// The value given.
        value: String,
        /// What it must be.
        bound: String,
        /// What to do.
        remedy: &'static str,
    },
}
