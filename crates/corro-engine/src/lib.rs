//! From "these ranks each submitted some named tensors, in any order" to collectives that all ranks run alike.
//!
//! So far the pure decisions: what a request is, whether the requests of all ranks belong together, and which of them
//! run as one. The engine's threads, its agreement and its tickets are built on these.
//!
//! | module | decides |
//! | --- | --- |
//! | [`request`] | what a rank asks for |
//! | [`matching`] | whether all ranks ask for the same, and if not, who differs and how |
//! | [`fusion`] | which responses run as one collective |

#![forbid(unsafe_code)]

pub mod fusion;
pub mod matching;
pub mod request;

pub use fusion::Batch;
pub use matching::{Agreed, match_requests};
pub use request::{Device, Kind, Request};
