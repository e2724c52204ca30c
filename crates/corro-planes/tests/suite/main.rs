//! The tests of this crate from outside, as one program.

mod choosing;
mod conformance;
mod support;
mod withdrawing;
