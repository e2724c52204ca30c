//! From "these ranks each submitted some named tensors, in any order" to collectives that all ranks run alike.
//!
//! So far the pure decisions: what a request is, whether the requests of all ranks belong together, when they may run,
//! and which of them run as one. The engine's threads, its agreement and its tickets are built on these.
//!
//! | module | decides |
//! | --- | --- |
//! | [`request`] | what a rank asks for |
//! | [`matching`] | whether all ranks ask for the same, and if not, who differs and how |
//! | [`coordinator`] | when a tensor may run, who is missing |
//! | [`fusion`] | which tensors run as one collective |
//! | [`timeline`] | what is written about a tensor's life, in Horovod's format |
//! | [`gaussian`] | where autotuning looks next |
//! | [`recorder`] | nothing: it remembers the last operations |

#![forbid(unsafe_code)]

pub mod autotune;
pub mod cache;
pub mod clock;
pub mod coordinator;
mod core;
mod engine;
mod executor;
pub mod fusion;
pub mod gaussian;
mod hash;
pub mod matching;
pub mod message;
pub mod metrics;
pub mod node;
mod observers;
mod options;
pub mod plan;
mod primitive;
pub mod recorder;
pub mod request;
mod set;
pub mod simulator;
mod submission;
mod ticket;
pub mod timeline;
pub mod trace;
pub mod tree;
mod wires;

pub use coordinator::{Coordinator, StallLimits};
pub use engine::Engine;
pub use fusion::Batch;
pub use matching::{Agreed, match_requests};
pub use node::Gear;
pub use options::{Level, Log, Options, Sink, Tuning, Watching};
pub use request::{Device, Kind, Request};
pub use submission::{Allocate, GLOBAL, Output, Submission};
pub use ticket::{Outcome, Ticket};
