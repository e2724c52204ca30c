//! How ranks that each submit named tensors, in any order, agree on what runs next.
//!
//! Everything here is pure: state, input and the time go in; messages and actions come out. No I/O, no clock, no threads.
//! `corro-engine` gives it connections and runs what it decides; the [`simulator`] plays thousands of members against each
//! other by seed. `docs/design/agreement.md` says how it works and why.
//!
//! | module | decides |
//! | --- | --- |
//! | [`request`], [`matching`] | what a rank asks for; whether all ask for the same, and if not, who differs and how |
//! | [`coordinator`] | when a tensor may run, who is missing |
//! | [`node`], [`message`], [`tree`], [`cache`], [`plan`], [`refine`] | what one member says to its neighbours, and what runs, in three gears |
//! | [`unnamed`] | what tensors without a name are called |
//! | [`fusion`] | which tensors run as one collective |
//! | [`liveness`], [`blame`] | whether the neighbours still answer; whom to blame when collectives fail |
//! | [`deadlock`] | whether ranks wait for each other in a circle that nothing can open |
//! | [`simulator`] | nothing: it plays many nodes against each other |

#![forbid(unsafe_code)]

pub mod blame;
pub mod cache;
pub mod coordinator;
pub mod deadlock;
pub mod fusion;
pub mod hash;
pub mod liveness;
pub mod matching;
pub mod message;
pub mod node;
pub mod plan;
pub mod refine;
pub mod request;
pub mod simulator;
pub mod tree;
pub mod unnamed;
