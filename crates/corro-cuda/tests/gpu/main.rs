//! What needs a GPU: `cargo test -p corro-cuda --test gpu -- --ignored --nocapture --test-threads=1`.
//!
//! The program can be built elsewhere and carried to a machine with a GPU: it needs the driver, and nothing else.

mod adasum;
mod basics;
mod codes;
mod nccl;
mod peers;
mod reductions;
mod speed;
mod support;
