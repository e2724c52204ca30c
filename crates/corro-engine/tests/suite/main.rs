//! The tests of this crate from outside, as one program: linking takes longer than compiling any of them. `races.rs` is
//! another, because it compiles sources of the crate once more with other primitives.

mod chaos;
mod engine;
mod meanings;
mod planes;
mod processes;
mod stores;
mod support;
mod watching;
