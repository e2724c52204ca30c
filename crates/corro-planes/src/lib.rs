//! Who moves and reduces the bytes of a batch that all members of a process set have agreed on.
//!
//! A [`Plane`] runs batches: [`Host`] over the connections among the members, through host memory; others where tensors lie
//! in the memory of GPUs. Which one runs a batch is the same on all members: [`Planes::choose`] says so, by a table of rows
//! that was put in order beforehand and by facts that members tell each other once. `docs/design/planes.md` says why it is so,
//! and how a plane is added.
//!
//! | module | holds |
//! | --- | --- |
//! | `memory` | memory that knows where it lies |
//! | `tensor`, `outcome` | what a member brings, and what becomes of it |
//! | `plane` | what a plane must do, and what its row in the table says |
//! | `host` | the plane of host memory |
//! | `compressed`, `ledgers` | allreduce with fewer bytes between hosts, and what is remembered for it |
//! | `wire` | what moves and reduces bytes of host memory: Corro's own connections, or MPI |
//! | `mpi` | the plane of MPI |
//! | `cuda` | planes of NVIDIA's GPUs |
//! | `facts`, `choice` | what members tell about themselves; who serves a batch, and why others don't: pure |
//! | `exchange` | a few bytes from each member to all, over their connections |
//! | `rows` | the rows of a table, and the planes that are in use |
//! | `planes` | the planes of one process set |
//! | `testing` | a device that is not there, for tests |

mod choice;
mod compressed;
mod cuda;
mod exchange;
mod facts;
mod host;
mod ledgers;
mod memory;
mod mpi;
mod outcome;
mod plane;
mod planes;
mod rows;
mod tensor;
#[doc(hidden)]
pub mod testing;
mod wire;

pub use choice::{Choice, choose};
pub use corro_compress::{Entry as CompressionEntry, Ledger};
pub use corro_cuda::DeviceMemory;
pub use cuda::{CudaDone, CudaIpc, Staging as CudaStaging, nccl_rows};
pub use exchange::{agree, exchange};
pub use facts::Facts;
pub use host::{HOST, Host};
pub use ledgers::Ledgers;
pub use memory::Memory;
pub use mpi::MpiRow;
pub use outcome::{Done, Outcome, Outcomes};
pub use plane::{Plane, Pool, Release, Releases, Row, Verdict, Wanted};
pub use planes::{Planes, Staging, Table};
pub use tensor::{Allocate, Output, Tensor};
