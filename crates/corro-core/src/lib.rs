//! The words every other crate of Corro shares.
//!
//! This crate owns names and their rules: what a dtype is, what a reduce op means for it, how an error is sorted, which
//! environment variables exist, how a message is laid out. It does no I/O and starts no thread.
//!
//! | module | holds |
//! | --- | --- |
//! | [`dtype`] | the element types |
//! | [`reduce_op`] | Sum, Average, Min, Max, Product, Adasum |
//! | [`compression`] | how an allreduce sends fewer bytes, as data |
//! | [`shape`] | dimensions, and how rows are dealt to ranks |
//! | [`ids`] | ranks, groups |
//! | [`error`] | one error type, sorted by what the caller can do |
//! | [`departure`] | why a rank leaves its job, in its own words |
//! | [`config`] | every environment variable, once |
//! | [`codec`] | versioned, length-capped messages |
//! | [`buffer`] | a tensor's memory, and what keeps it alive |
//! | [`blocks`] | large memory that is used again |
//! | [`random`] | numbers by seed, for simulations and tests; never for secrets |
//! | [`deadline`] | a moment after which waiting ends |
//! | [`functions`] | tables of the functions of libraries that are opened at run time |

pub mod blocks;
pub mod buffer;
pub mod codec;
pub mod compression;
pub mod config;
pub mod deadline;
pub mod departure;
pub mod dtype;
pub mod error;
pub mod functions;
pub mod ids;
pub mod random;
pub mod reduce_op;
pub mod shape;

pub use buffer::Buffer;
pub use compression::Compression;
pub use deadline::Deadline;
pub use departure::{Departure, Exception, Reason, Statement};
pub use dtype::DType;
pub use error::{Error, Result};
pub use ids::{GroupId, Rank};
pub use reduce_op::ReduceOp;
pub use shape::Shape;
