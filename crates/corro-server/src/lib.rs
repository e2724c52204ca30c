//! Parameter servers: processes that sum or own parameters, for workers that are not tied to each other.
//!
//! A *store* has workers and servers. Keys are cut into parts, each at one server. In rounds (BSP) a server adds one push of
//! every worker, in the order of workers, and answers with the bits of an allreduce; with a bound (SSP) or without one,
//! workers read what is there, as old as the bound allows.
//!
//! | module | holds |
//! | --- | --- |
//! | [`protocol`] | keys, rules, consistency |
//! | [`frame`] | what is said on the wire |
//! | [`code`] | values with fewer bytes on it (pure) |
//! | [`placement`] | which server has which part (pure) |
//! | [`consistency`] | who waits for whom (pure) |
//! | [`optimizer`], [`table`] | the arithmetic on one part (pure) |
//! | `entry`, [`shard`] | all decisions of a server (pure) |
//! | `queue`, `parts`, [`session`] | all decisions of a worker (pure) |
//! | [`saving`] | what servers own, in a file |
//! | `wire`, [`server`], [`client`] | the same with sockets |
//! | [`launched`] | servers that a launcher has started, as ranks find them |
//! | [`simulator`] | the pure parts in a world that goes wrong |
//!
//! `docs/design/parameter-server.md` says why it is so.

#![forbid(unsafe_code)]

pub mod client;
pub mod code;
pub mod consistency;
mod entry;
pub mod frame;
pub mod launched;
pub mod optimizer;
mod parts;
pub mod placement;
pub mod protocol;
mod queue;
pub mod saving;
pub mod server;
pub mod session;
pub mod shard;
#[doc(hidden)]
pub mod simulator;
pub mod table;
mod wire;

pub use code::Code;
pub use entry::Output;
pub use optimizer::Optimizer;
pub use protocol::{Consistency, Rule, ServerId, WorkerId};
