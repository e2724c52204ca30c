//! The tests of this crate from outside, as one program: linking takes longer than compiling any of them.

mod conformance;
mod faults;
mod numerics;
mod pool;
mod processes;
mod subsets;
mod support;
mod tuning;
