//! Planes of NVIDIA's GPUs.

mod adasum;
mod batch;
mod done;
mod hierarchical;
mod ipc;
mod layout;
mod link;
mod local;
mod members;
mod movement;
mod mpi;
mod nccl;
mod nccl_rows;
mod own_memory;
mod packing;
mod row;
mod signals;
mod staging;
mod teams;

pub use done::CudaDone;
pub(crate) use mpi::CudaMpi;
pub use nccl_rows::nccl_rows;
pub use row::CudaIpc;
pub use staging::Staging;
