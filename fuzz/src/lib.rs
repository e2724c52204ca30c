//! Everything a stranger's bytes can reach, as functions of bytes that must not panic whatever these are.
//!
//! `make test` replays the inputs under `seeds/`, with plain builds (`tests/replay.rs`); `make deep` lets libFuzzer think
//! up new ones (`run`).

pub mod targets;

pub use targets::{TARGETS, Target};
