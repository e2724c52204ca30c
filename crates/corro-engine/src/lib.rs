//! From "these ranks each submitted some named tensors, in any order" to collectives that all ranks run alike.
//!
//! Programs use [`Engine`]: they hand it a [`Submission`] and get a [`Ticket`]. What ranks agree on is decided by
//! `corro-agreement`, which knows no I/O; here are the threads and connections that carry it out. `docs/design/engine.md`
//! says how they work and why.
//!
//! | part | does |
//! | --- | --- |
//! | `engine`, `core`, `options`, `submission`, `ticket` | what programs see; what all process sets share; how it ends |
//! | `set` (`state`, `driving`, `lane`, `wires`, `executor`) | one process set at work: its lock, who does its work, messages to the neighbours, a batch on a group |
//! | `watch` ([`timeline`], [`trace`], [`metrics`], [`recorder`], [`clock`]) | what is written down about a job |
//! | `tuning` ([`autotune`], [`gaussian`]) | which settings to try next; pure |

#![forbid(unsafe_code)]

mod advice;
mod core;
mod engine;
mod helping;
mod options;
mod primitive;
mod set;
mod submission;
mod ticket;
mod tuning;
mod watch;

pub use corro_agreement::coordinator::{Coordinator, StallLimits};
pub use corro_agreement::fusion::Batch;
pub use corro_agreement::matching::{Agreed, match_requests};
pub use corro_agreement::node::Gear;
pub use corro_agreement::request::{Device, Kind, Request};
pub use engine::Engine;
pub use helping::Helping;
pub use options::{Options, Tuning, Watching};
pub use submission::{Allocate, GLOBAL, Output, Submission};
pub use ticket::{Outcome, Ticket};
pub use tuning::{autotune, gaussian};
pub use watch::{clock, metrics, recorder, timeline, trace};
