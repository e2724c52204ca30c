//! Collectives: what ranks do together with bytes.
//!
//! A [`Group`] of ranks calls the same collective on each member, in the same order, with matching arguments, and each
//! call returns when this rank's part is done. (Ranks that submit in any order, by name, are the business of
//! `corro-engine`.) Every rank ends with the same bits, and the same inputs give the same bits on every run.
//!
//! ```
//! use corro_collectives::{Group, ReduceOp};
//! use corro_transport::{Fabric, Settings};
//!
//! // Two ranks as threads of this process; processes join through a rendezvous instead.
//! let ranks = Fabric::threads(&[0, 0], &Settings::default());
//! std::thread::scope(|scope| {
//!     for fabric in &ranks {
//!         scope.spawn(move || {
//!             let mut world = Group::world(fabric)?;
//!             let mut gradient = [1.0f32, 2.0 * fabric.rank().index() as f32];
//!             world.allreduce(&mut gradient, ReduceOp::Average)?;
//!             assert_eq!(gradient, [1.0, 1.0]);
//!             Ok::<(), corro_core::Error>(())
//!         });
//!     }
//! });
//! ```
//!
//! | module | holds |
//! | --- | --- |
//! | `group`, `allreduce` | [`Group`]: the collectives as programs call them |
//! | `between` | what hosts tell each other, apart from what ranks of a host do among themselves |
//! | `collective`, `choice` | what can be done, and which algorithm does it: a table |
//! | `algorithms` | the algorithms, one a file |
//! | `schedule` | plans: what a rank sends and receives, and what waits for what; no I/O |
//! | `executor` | runs a plan over links |
//! | `pieces` | several buffers seen as one |
//! | `tuning` | knobs that may be turned on the way |

#![forbid(unsafe_code)]

mod algorithms;
mod allreduce;
mod between;
mod choice;
mod collective;
mod element;
mod executor;
mod group;
mod pieces;
mod reduction;
mod schedule;
mod subset;
mod tuning;

pub use algorithms::Algorithm;
pub use between::{Between, Seats};
pub use collective::{Collective, Topology};
pub use corro_core::{DType, Error, ReduceOp, Result};
pub use element::Element;
pub use group::Group;
pub use pieces::Tensor;
pub use reduction::Reduction;
pub use tuning::Tuning;
