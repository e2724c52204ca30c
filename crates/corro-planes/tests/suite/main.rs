//! The tests of this crate from outside, as one program.

mod choosing;
mod compressed;
mod conformance;
mod support;
mod withdrawing;
