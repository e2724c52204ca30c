//! What a program hands to the engine.

use corro_agreement::request::{Device, Kind, Request};
use corro_core::{DType, Error, Rank, ReduceOp, Result, Shape};
use corro_planes::{DeviceMemory, Memory, Output};

/// Number of the set of all ranks.
pub const GLOBAL: u32 = 0;

/// A tensor and what is to be done with it.
#[derive(Debug)]
pub struct Submission {
    /// Which process set; [`GLOBAL`] for all ranks.
    pub set: u32,
    /// By which ranks find each other's tensors.
    pub name: String,
    /// What to do.
    pub kind: Kind,
    /// The type of the elements.
    pub dtype: DType,
    /// The dimensions.
    pub shape: Shape,
    /// Where it lives. Of a GPU's tensor the engine sees by itself whether it was given that, or a copy in host memory.
    pub device: Device,
    /// What this rank brings, if that is not in the result's place already.
    pub input: Option<Memory>,
    /// Where the result goes.
    pub output: Output,
}

impl Submission {
    /// A tensor of host memory, on all ranks, with the result in the engine's own memory.
    pub fn new(name: impl Into<String>, kind: Kind, dtype: DType, shape: Shape) -> Self {
        Self {
            set: GLOBAL,
            name: name.into(),
            kind,
            dtype,
            shape,
            device: Device::Cpu,
            input: None,
            output: Output::None,
        }
    }

    /// An allreduce in place.
    pub fn allreduce(name: impl Into<String>, op: ReduceOp, dtype: DType, shape: Shape, data: Memory) -> Self {
        let one = 1f64.to_bits();
        let kind = Kind::Allreduce { op, prescale: one, postscale: one, compression: None };
        Self { output: Output::InPlace(data), ..Self::new(name, kind, dtype, shape) }
    }

    /// A barrier.
    pub fn barrier() -> Self {
        Self::new("barrier.noname", Kind::Barrier, DType::U8, Shape(vec![]))
    }

    /// An error if this can't be run by these members whatever the others say.
    pub(crate) fn check(&self, members: &[Rank]) -> Result<()> {
        let (name, n) = (&self.name, members.len());
        corro_agreement::request::check(name, &self.kind, self.dtype)?;
        let rows = self.shape.0.first().copied();
        match &self.kind {
            Kind::Broadcast { root } if !members.contains(root) => {
                return Err(Error::Usage(format!(
                    "broadcast received invalid root rank {root} for tensor {name}: the process set has ranks {members:?}"
                )));
            }
            Kind::Alltoall { splits } if splits.is_empty() => {
                if let Some(rows) = rows.filter(|r| !r.is_multiple_of(n)) {
                    return Err(Error::Usage(format!(
                        "tensor {name}: without splits the first dimension ({rows}) must be a multiple of the number of workers ({n})"
                    )));
                }
            }
            Kind::Alltoall { splits } => {
                if splits.len() != n {
                    return Err(Error::Usage(format!(
                        "tensor {name}: {} splits were given, which does not equal number of workers {n}",
                        splits.len()
                    )));
                }
                let sum = splits.iter().try_fold(0usize, |sum, s| sum.checked_add(*s));
                if sum.is_none_or(|sum| sum > rows.unwrap_or(0)) {
                    return Err(Error::Usage(format!(
                        "tensor {name}: the sum of splits is greater than the first dimension {}",
                        rows.unwrap_or(0)
                    )));
                }
            }
            _ => {}
        }
        if self.device == Device::Cpu && self.gpu_memory().is_some() {
            return Err(Error::Usage(format!(
                "tensor {name} is in GPU memory, but was submitted as a tensor of the host"
            )));
        }
        if let Some((op, pre, post)) = self.kind.reduction() {
            check_scale(op, self.dtype, f64::from_bits(pre), f64::from_bits(post))?;
        }
        let bytes = self.shape.bytes(self.dtype)?;
        let in_place = matches!(self.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
        let given = match (&self.input, &self.output) {
            (Some(input), _) => Some(input.len()),
            (None, Output::InPlace(memory)) if in_place => Some(memory.len()),
            (None, Output::None | Output::Allocate(_)) if matches!(self.kind, Kind::Broadcast { .. }) => None,
            (None, _) if matches!(self.kind, Kind::Barrier | Kind::AddSet { .. } | Kind::RemoveSet { .. }) => None,
            (None, _) => return Err(Error::Usage(format!("tensor {name} was submitted without data"))),
        };
        let room = match &self.output {
            Output::InPlace(memory) if in_place => Some(memory.len()),
            _ => None,
        };
        if let Some(given) = given.into_iter().chain(room).find(|g| *g != bytes) {
            return Err(Error::Usage(format!(
                "tensor {name} of shape {} and type {} has {bytes} bytes, but {given} were given",
                self.shape, self.dtype
            )));
        }
        Ok(())
    }

    /// The memory it lies in, if that is a GPU's.
    pub(crate) fn gpu_memory(&self) -> Option<&DeviceMemory> {
        let place = if let Output::InPlace(memory) = &self.output { Some(memory) } else { None };
        self.input.as_ref().or(place)?.device()
    }

    /// The request that ranks compare.
    pub(crate) fn request(&mut self, group: Option<(u64, usize)>) -> Request {
        let room = match &self.output {
            Output::InPlace(memory) if self.kind.needs_rows() => Some(memory.len()),
            _ => None,
        };
        let device = match self.device {
            Device::Copied(gpu) | Device::Gpu(gpu) if self.gpu_memory().is_some() => Device::Gpu(gpu),
            Device::Copied(gpu) | Device::Gpu(gpu) => Device::Copied(gpu),
            Device::Cpu => Device::Cpu,
        };
        Request {
            name: std::mem::take(&mut self.name),
            kind: self.kind.clone(),
            dtype: self.dtype,
            shape: std::mem::take(&mut self.shape),
            device,
            group,
            room,
        }
    }
}

/// Whether scale factors can be applied to this type; Horovod leaves out some integers, and so do we where a fraction
/// makes no sense.
fn check_scale(op: ReduceOp, dtype: DType, pre: f64, post: f64) -> Result<()> {
    let scales = pre != 1.0 || post != 1.0 || op == ReduceOp::Average;
    if scales && dtype == DType::Bool {
        return Err(Error::Usage(format!("{dtype} elements can't be scaled or averaged")));
    }
    Ok(())
}
