//! What a rank asks for.

use corro_core::{Compression, DType, Error, Rank, ReduceOp, Result, Shape};
use serde::{Deserialize, Serialize};

/// Longest name of a tensor; longer ones are a mistake of the program.
pub const NAME_CAP: usize = 4096;

/// Where a tensor lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Device {
    /// In host memory.
    Cpu,
    /// On this GPU of the rank's host, of which the engine is given a copy in host memory. Ranks may use different GPUs; only
    /// "CPU or GPU" must agree.
    Copied(u32),
    /// On this GPU of the rank's host, where the engine finds it.
    Gpu(u32),
}

impl Device {
    /// Whether it is a GPU.
    pub const fn is_gpu(self) -> bool {
        !matches!(self, Self::Cpu)
    }
}

/// Where the tensors of all ranks live, which decides who may move them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum MemoryPlace {
    /// In host memory.
    Host,
    /// On GPUs; at least one rank's engine is given a copy in host memory.
    Copied,
    /// On GPUs, where the engines of all ranks find them.
    Gpu,
}

impl MemoryPlace {
    /// Of a tensor that lives on these devices.
    pub fn of(devices: impl IntoIterator<Item = Device>) -> Self {
        let one = |device| match device {
            Device::Cpu => Self::Host,
            Device::Copied(_) => Self::Copied,
            Device::Gpu(_) => Self::Gpu,
        };
        // Ranks that differ in "CPU or GPU" don't come so far.
        let both = |a: Self, b: Self| if a == b { a } else { Self::Copied };
        devices.into_iter().map(one).reduce(both).unwrap_or(Self::Host)
    }

    /// Whether it is on GPUs.
    pub const fn is_gpu(self) -> bool {
        !matches!(self, Self::Host)
    }
}

/// What is to be done with the tensor. Scale factors are compared by their bits, so that requests can be hashed and a
/// factor that is not a number still equals itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kind {
    /// Reduce over all ranks.
    Allreduce {
        /// How.
        op: ReduceOp,
        /// `f64::to_bits` of the factor before.
        prescale: u64,
        /// `f64::to_bits` of the factor after.
        postscale: u64,
        /// How fewer bytes are sent between hosts, if they are to be.
        compression: Option<Compression>,
    },
    /// Concatenate along the first dimension.
    Allgather,
    /// From one rank to all. The root is a global rank.
    Broadcast {
        /// Whose tensor.
        root: Rank,
    },
    /// Rows to each rank, as `splits` says; empty: equal parts.
    Alltoall {
        /// Rows for each rank of the set.
        splits: Vec<usize>,
    },
    /// Reduce, and give each rank its rows.
    Reducescatter {
        /// How.
        op: ReduceOp,
        /// `f64::to_bits` of the factor before.
        prescale: u64,
        /// `f64::to_bits` of the factor after.
        postscale: u64,
    },
    /// Wait for all.
    Barrier,
    /// Make a process set of these ranks. Asked of the global set, by all its members.
    AddSet {
        /// Ascending.
        ranks: Vec<Rank>,
    },
    /// Remove a process set. Asked of the global set, by all its members.
    RemoveSet {
        /// Its number.
        id: u32,
    },
}

impl Kind {
    /// The word for it in error texts and timelines. Adasum has its own there, as in Horovod.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Allreduce { op: ReduceOp::Adasum, .. } => "ADASUM",
            Self::Allreduce { .. } => "ALLREDUCE",
            Self::Allgather => "ALLGATHER",
            Self::Broadcast { .. } => "BROADCAST",
            Self::Alltoall { .. } => "ALLTOALL",
            Self::Reducescatter { .. } => "REDUCESCATTER",
            Self::Barrier => "BARRIER",
            Self::AddSet { .. } => "ADD_PROCESS_SET",
            Self::RemoveSet { .. } => "REMOVE_PROCESS_SET",
        }
    }

    /// Op and scale factors, of the kinds that reduce.
    pub const fn reduction(&self) -> Option<(ReduceOp, u64, u64)> {
        match self {
            Self::Allreduce { op, prescale, postscale, .. } | Self::Reducescatter { op, prescale, postscale } => {
                Some((*op, *prescale, *postscale))
            }
            _ => None,
        }
    }

    /// How fewer bytes are sent, if they are to be.
    pub const fn compression(&self) -> Option<&Compression> {
        match self {
            Self::Allreduce { compression, .. } => compression.as_ref(),
            _ => None,
        }
    }

    /// Whether a rank that has joined may stand aside with zeros.
    pub const fn works_with_join(&self) -> bool {
        matches!(self, Self::Allreduce { .. } | Self::Barrier)
    }

    /// Whether a repetition may be announced by a number instead of in full.
    pub const fn is_cacheable(&self) -> bool {
        !matches!(self, Self::AddSet { .. } | Self::RemoveSet { .. })
    }

    /// Whether a scalar makes no sense: there must be rows to deal out or put together.
    pub const fn needs_rows(&self) -> bool {
        matches!(self, Self::Allgather | Self::Alltoall { .. } | Self::Reducescatter { .. })
    }

    /// Whether the first dimension may differ between ranks.
    pub const fn has_free_rows(&self) -> bool {
        matches!(self, Self::Allgather | Self::Alltoall { .. })
    }
}

/// One tensor that one rank has submitted.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Request {
    /// By which ranks find each other's requests.
    pub name: String,
    /// What to do.
    pub kind: Kind,
    /// The type of the elements.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
    /// Where it lives.
    pub device: Device,
    /// The number of its group and how many tensors that has; they complete together.
    pub group: Option<(u64, usize)>,
    /// Bytes of the place that was given for the result, where its size depends on the other ranks.
    pub room: Option<usize>,
}

/// An error if such a tensor could not be run whatever the others ask for.
pub fn check(name: &str, kind: &Kind, dtype: DType) -> Result<()> {
    if name.is_empty() || name.len() > NAME_CAP {
        return Err(Error::Usage(format!("a tensor's name must have 1 to {NAME_CAP} bytes, not {}", name.len())));
    }
    let Some((op, ..)) = kind.reduction() else { return Ok(()) };
    if !op.supports(dtype) {
        return Err(Error::Usage(format!("{op} of {dtype} elements is not supported (tensor {name})")));
    }
    if let Some(compression) = kind.compression() {
        compression.check()?;
        if !dtype.is_float() || !matches!(op, ReduceOp::Sum | ReduceOp::Average) {
            return Err(Error::Usage(format!(
                "compression is for Sum and Average of floating-point tensors, not for {op} of {dtype} elements (tensor {name})"
            )));
        }
    }
    if matches!(kind, Kind::Reducescatter { .. }) && !matches!(op, ReduceOp::Sum | ReduceOp::Average) {
        return Err(Error::Usage(format!("reducescatter supports Sum and Average, not {op} (tensor {name})")));
    }
    Ok(())
}

impl Request {
    /// Bytes of the tensor; 0 for absurd shapes, which a submit refuses.
    pub fn bytes(&self) -> usize {
        self.shape.bytes(self.dtype).unwrap_or(0)
    }
}
