//! What is written down about a job while it runs: nothing here decides anything.

pub mod clock;
pub(crate) mod feed;
pub(crate) mod life;
pub mod metrics;
pub(crate) mod nvtx;
pub(crate) mod observers;
pub(crate) mod record_file;
pub mod recorder;
pub mod timeline;
pub mod trace;
