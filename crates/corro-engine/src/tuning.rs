//! Finding the settings with which this job's tensors move fastest.

pub mod autotune;
pub mod gaussian;
