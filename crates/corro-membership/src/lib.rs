//! Who belongs to an elastic job, and what each process is in it.
//!
//! A job is a row of epochs. In each, every member has a rank; when one is lost, or members come and go, the epoch ends and the
//! survivors meet in the next. [`Machine`] decides all of that and does nothing; the driver (`corro run`, or [`embedded::EmbeddedDriver`] where a
//! scheduler starts the processes) and the [`Client`] in each process do what it says.
//!
//! | module | holds |
//! | --- | --- |
//! | [`machine`] | epochs, losses, growth (pure) |
//! | `seats` | who gets a seat, and which (pure) |
//! | [`fleet`] | hosts, strikes, blacklist, where to start workers (pure) |
//! | [`member`] | a worker's side (pure) |
//! | [`message`] | what is said on the wire |
//! | `client` | the worker's end of the connection |
//! | [`embedded`] | the driver inside a process of the job, where there is no launcher |
//! | `time` | the clock of the pure parts, which is told and never looked at |
//! | [`simulator`] | all of the pure parts in a world that goes wrong |
//!
//! `docs/design/elastic.md` says why it is so.

#![forbid(unsafe_code)]

mod client;
pub mod embedded;
pub mod fleet;
pub mod machine;
pub mod member;
pub mod message;
mod seats;
#[doc(hidden)]
pub mod simulator;
mod time;

pub use client::{Changes, Client, JoinRequest};
pub use machine::{Decision, Exit, Input, Machine, Rules, Verdict};
pub use member::Joined;
pub use message::{Seat, WorkerId};
pub use time::Time;
