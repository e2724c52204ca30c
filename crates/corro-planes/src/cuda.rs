//! Planes of NVIDIA's GPUs.

mod done;
mod ipc;
mod layout;
mod local;
mod members;
mod movement;
mod own_memory;
mod row;
mod signals;
mod staging;

pub use done::CudaDone;
pub use row::CudaIpc;
pub use staging::Staging;
