//! Elastic jobs: processes come and go, and the job goes on.
//!
//! All decisions are [`corro_membership::Machine`]'s. Here is what it decides about: hosts as they are discovered
//! (`discovery`), agents and processes on them, the connections of workers (`driver`).

mod discovery;
mod driver;
mod job;

pub use job::{ElasticJob, Hosts};
