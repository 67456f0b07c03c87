//! The cache of a whole model against a plain one in main memory.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

#[path = "../common/mod.rs"]
mod common;

mod controls;
mod history;
mod paged;
mod quantised;
mod random;
mod sizes;
mod steps;
mod toy;

use common::gpu;
