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

pub mod cache;
pub mod coordinator;
pub mod fusion;
pub mod gaussian;
pub mod matching;
pub mod message;
pub mod node;
pub mod plan;
pub mod recorder;
pub mod request;
pub mod timeline;
pub mod tree;

pub use coordinator::Coordinator;
pub use fusion::Batch;
pub use matching::{Agreed, match_requests};
pub use request::{Device, Kind, Request};
