//! Compressed allreduces among ranks as threads of one process.

mod bad_input;
mod conservation;
mod identities;
mod memory;
mod regressions;
