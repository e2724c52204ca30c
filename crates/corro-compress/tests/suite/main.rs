//! Compressed allreduces among ranks as threads of one process.

mod bad_input;
mod conservation;
mod counter_examples;
mod identities;
mod memory;
mod regression;

mod unbiased;
