//! Starting the processes of a job.
//!
//! So far only ranks on this host, for Rust programs that start themselves; `corro run` grows from here.

mod local;

pub use local::run_local;
