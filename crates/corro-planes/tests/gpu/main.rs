//! Every plane of GPUs does what the plane of the host does, with ranks as processes on one GPU:
//! `cargo test -p corro-planes --test gpu -- --ignored --nocapture --test-threads=1`, or `make gpu` with all that needs one.
//!
//! The program can be built elsewhere and carried to a machine with a GPU: it needs the driver, and NCCL where that is tested.

mod kit;
mod lost;
mod planes;
#[path = "../suite/support/mod.rs"]
#[allow(dead_code, reason = "a part is enough here")]
mod support;
