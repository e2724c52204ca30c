//! What the tests of several crates share. Only ever a dev-dependency: `scripts/floors.py` sees to that.
//!
//! - [`Random`]: numbers that look random, the same for the same seed on every machine.
//! - [`pairs`]: few cases that still have every pair of values, in place of a full product.
//! - [`model`]: sample data of every dtype, and what collectives must make of it.
//! - [`job`]: ranks as real processes, started from the test program itself.
//! - [`fake_gpu`]: libraries of NVIDIA's that are none.
//! - [`wait_until`], [`Folder`], [`number`], [`thorough`], [`skip`]: waiting with a limit, scratch folders, the knobs of tests.
//!
//! Nothing in here knows the engine or the launcher: what only one crate's tests need stays with them.

#![forbid(unsafe_code)]

pub mod fake_gpu;
mod folder;
pub mod job;
mod knobs;
pub mod model;
mod pairs;
mod waiting;

pub use corro_core::random::Random;
pub use folder::Folder;
pub use knobs::{number, skip, thorough};
pub use pairs::pairs;
pub use waiting::wait_until;
