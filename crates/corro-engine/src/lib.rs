//! From "these ranks each submitted some named tensors, in any order" to collectives that all ranks run alike.
//!
//! Programs use [`Engine`]: they hand it a [`Submission`] and get a [`Ticket`]. What ranks agree on is decided by
//! `corro-agreement`, which knows no I/O; here are the threads and connections that carry it out. `docs/design/engine.md`
//! says how they work and why.
//!
//! | part | does |
//! | --- | --- |
//! | `engine`, `options`, `submission`, `ticket`, `promise` | what programs see |
//! | `core`, `sets`, `threads`, `process` | what all process sets share; which there are, and how they end; the program's threads, and those of others |
//! | `set` | one process set at work |
//! | [`store`] | stores of parameters at servers of the job |
//! | `watch` ([`timeline`], [`trace`], [`metrics`], [`recorder`], [`clock`]) | what is written down about a job |
//! | `tuning` ([`autotune`], [`gaussian`]) | which settings to try next; pure |

#![forbid(unsafe_code)]

mod advice;
mod core;
mod engine;
mod options;
mod primitive;
mod process;
mod promise;
mod set;
mod sets;
pub mod store;
mod submission;
mod threads;
mod ticket;
mod tuning;
mod watch;

pub use corro_agreement::coordinator::{Coordinator, StallLimits};
pub use corro_agreement::fusion::Batch;
pub use corro_agreement::matching::{Agreed, match_requests};
pub use corro_agreement::node::Gear;
pub use corro_agreement::request::{Device, Kind, Request};
pub use corro_planes::{Allocate, CompressionEntry, DeviceMemory, Done, Ledger, Memory, Outcome, Output, Table};
pub use engine::Engine;
pub use options::{Options, Tuning, Watching};
pub use submission::{GLOBAL, Submission};
pub use threads::expect_foreign_threads;
pub use ticket::Ticket;
pub use tuning::{autotune, gaussian};
pub use watch::{clock, metrics, recorder, timeline, trace};
