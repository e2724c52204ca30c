//! From "these ranks each submitted some named tensors, in any order" to collectives that all ranks run alike.
//!
//! Programs use [`Engine`]: they hand it a [`Submission`] and get a [`Ticket`]. Two halves: pure decisions, which the
//! simulator runs by the thousand, and the threads and connections that carry them out. `docs/design/engine.md` and
//! `docs/design/agreement.md` say how they work and why.
//!
//! | pure | decides |
//! | --- | --- |
//! | [`request`], [`matching`] | what a rank asks for; whether all ask for the same, and if not, who differs and how |
//! | [`coordinator`] | when a tensor may run, who is missing |
//! | [`node`], [`message`], [`tree`], [`cache`], [`plan`] | what one member says to its neighbours, and what runs, in three gears |
//! | [`pulse`], [`blame`] | whether the neighbours still answer; whom to blame when collectives fail |
//! | [`fusion`] | which tensors run as one collective |
//! | [`autotune`], [`gaussian`] | which settings to try next |
//! | [`clock`] | how far two clocks are apart |
//! | [`simulator`] | nothing: it plays many nodes against each other, by seed |
//!
//! | with I/O | does |
//! | --- | --- |
//! | `engine`, `core`, `submission`, `ticket` | what programs see; what all process sets share; how it ends |
//! | `set` (`state`, `driving`, `lane`) | one process set at work: its lock, who does its work, running collectives |
//! | `wires`, `executor` | messages to the neighbours; a batch on a group |
//! | [`timeline`], [`trace`], [`metrics`], [`recorder`], `observers` | what is written down about a job |

#![forbid(unsafe_code)]

pub mod autotune;
pub mod blame;
pub mod cache;
pub mod clock;
pub mod coordinator;
mod core;
mod engine;
mod executor;
pub mod fusion;
pub mod gaussian;
mod hash;
mod helping;
pub mod matching;
pub mod message;
pub mod metrics;
pub mod node;
mod observers;
mod options;

pub mod plan;
mod primitive;
pub mod pulse;
pub mod recorder;
pub mod refine;
pub mod request;
mod set;
pub mod simulator;
mod submission;
mod ticket;
pub mod timeline;
pub mod trace;
pub mod tree;
pub mod unnamed;
mod wires;

pub use coordinator::{Coordinator, StallLimits};
pub use engine::Engine;
pub use fusion::Batch;
pub use helping::Helping;
pub use matching::{Agreed, match_requests};
pub use node::Gear;
pub use options::{Level, Log, Options, Sink, Tuning, Watching};
pub use request::{Device, Kind, Request};
pub use submission::{Allocate, GLOBAL, Output, Submission};
pub use ticket::{Outcome, Ticket};
