//! What the adapter can do at best: copy, stream, multiply and add. Benches state shares of these.

pub(crate) const COPY: &str = "ceiling_copy";
pub(crate) const READ: &str = "ceiling_read";
pub(crate) const MULTIPLY_ADD: &str = "ceiling_multiply_add";
