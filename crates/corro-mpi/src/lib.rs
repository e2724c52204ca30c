//! MPI without a compiler and without a link: what Corro needs of it, opened when it is first asked for.
//!
//! Floor 2 of Corro. It owns the MPI library of this process: found at run time, in one of three binary interfaces. It knows
//! nothing of Corro's ranks beyond MPI's numbers, and decides nothing: who uses it, and for what, is decided above.
//!
//! | module | holds |
//! | --- | --- |
//! | `places` | where an MPI library may be, by what is loaded and who started this process: pure |
//! | `library` | opening it, and its functions |
//! | `abi` | the numbers that differ between the three interfaces |
//! | `operators` | reductions that MPI lacks: floats of 16 bits, bools, minima with NaN |
//! | [`world`] | MPI in this process: who starts and ends it, how many threads may call it |
//! | [`communicator`] | a group of processes, and its collectives |
//! | [`memory`] | what MPI reads and writes: the host's, or a GPU's |
//! | `request` | a collective that is under way |
//! | `caller` | a thread for collectives that block |
//!
//! # What is safe
//! A collective borrows its memory until it has ended. One that can't end, because another process is lost, keeps its memory for
//! ever: MPI may still write there. See `docs/design/mpi.md`.

mod abi;
mod caller;
pub mod communicator;
mod library;
pub mod memory;
mod operators;
mod places;
mod request;
pub mod world;

pub use abi::has_own;
pub use caller::Prepare;
pub use communicator::{Communicator, LARGE};
pub use memory::{Source, Target};
pub use request::Patience;
pub use world::{Mpi, Threads};
