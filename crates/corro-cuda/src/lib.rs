//! CUDA without a compiler and without a link: what Corro needs of GPUs, opened when it is first asked for.
//!
//! Floor 1 of Corro. It owns the driver (`libcuda.so.1`), NCCL (`libnccl.so.2`), what tells how busy a GPU is (`libnvidia-ml.so.1`), and the few kernels that Corro brings
//! itself. A host without a GPU loads nothing: the driver is opened by the first call of [`driver()`], NVIDIA's other libraries only
//! where a program has a GPU in use or a profiler watches it. It never starts a
//! thread, knows nothing of ranks beyond NCCL's numbers, and decides nothing: who copies what to whom is decided above.
//!
//! | module | holds |
//! | --- | --- |
//! | [`driver`](mod@driver) | opening the driver, finding devices |
//! | [`device`] | a GPU and its primary context, which torch and JAX use too |
//! | [`span`] | a piece of memory that a GPU can reach |
//! | [`memory`] | memory of our own, of frameworks, and of the host for GPUs |
//! | [`block_pool`] | memory that is not in use: pure |
//! | [`sharing`] | memory of other processes |
//! | [`mappings`] | which memory of whom is open: pure |
//! | [`event`] | moments in a stream, also of other processes |
//! | [`stream`] | work in order |
//! | `signal` | numbers in memory by which streams of several processes wait for each other |
//! | [`kernels`] | reduce, copy many pieces, Adasum, codes, to the bit as `corro-kernels` does |
//! | [`nccl`] | collectives between GPUs, by NVIDIA |
//! | [`nvml`] | how busy the GPU of this process is |
//! | [`nvtx`] | spans of time for NVIDIA's profilers |
//!
//! # What is safe
//! Memory of a GPU is no memory of Rust: a kernel that reads it too early or too late reads wrong numbers, and a wrong
//! address is an error of the driver. What could break the *host's* memory is fenced: a [`Span`] borrows from its owner,
//! and memory of the host is let go only when no work on it is left. Whoever brings foreign addresses or streams promises
//! that they are good (`unsafe`).
//!
//! See `docs/design/gpu.md`.

pub mod block_pool;
pub mod device;
pub mod driver;
pub mod event;
mod failure;
pub mod kernels;
pub mod mappings;
pub mod memory;
pub mod nccl;
pub mod nvml;
pub mod nvtx;
pub mod sharing;
mod signal;
pub mod span;
pub mod stream;
mod sys;

pub use block_pool::{BlockPool, Lease};
pub use device::Device;
pub use driver::{Driver, driver};
pub use event::{Event, EventHandle, EventPool};
pub use kernels::{Encoding, Integers, Kernels, Pair, Piece, Reduction};
pub use mappings::{MappingCache, Opener};
pub use memory::{Allocation, DeviceMemory, Pinned, PinnedRegion};
pub use nccl::{Communicator, Nccl, UniqueId};
pub use sharing::{Mapping, MemoryHandle, SharedMemory};
pub use span::Span;
pub use stream::Stream;
