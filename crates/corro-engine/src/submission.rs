//! What a program hands to the engine.

use corro_agreement::request::{Device, Kind, Request};
use corro_core::{Buffer, DType, Error, Rank, ReduceOp, Result, Shape};

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
    /// Where it lives.
    pub device: Device,
    /// What this rank brings, if that is not in the result's place already.
    pub input: Option<Buffer>,
    /// Where the result goes.
    pub output: Output,
}

/// Makes room for a result of this shape.
pub type Allocate = Box<dyn FnOnce(&Shape) -> Result<Buffer> + Send>;

/// Where a result goes.
#[derive(Default)]
pub enum Output {
    /// Into this buffer. If there is no input, it also holds what this rank brings. If the result turns out to have another
    /// size, the tensor fails on all ranks.
    InPlace(Buffer),
    /// Into what this gives, called with the result's shape once that is known. May run on any thread. If it fails, or gives
    /// a place of another size, this rank's ticket fails; the others have their results.
    Allocate(Allocate),
    /// Into memory of the engine's own; or there is none.
    #[default]
    None,
}

impl std::fmt::Debug for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::InPlace(buffer) => write!(f, "InPlace({buffer:?})"),
            Self::Allocate(_) => f.write_str("Allocate"),
            Self::None => f.write_str("None"),
        }
    }
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
    pub fn allreduce(name: impl Into<String>, op: ReduceOp, dtype: DType, shape: Shape, data: Buffer) -> Self {
        let one = 1f64.to_bits();
        let kind = Kind::Allreduce { op, prescale: one, postscale: one };
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
        if let Some((op, pre, post)) = self.kind.reduction() {
            check_scale(op, self.dtype, f64::from_bits(pre), f64::from_bits(post))?;
        }
        let bytes = self.shape.bytes(self.dtype)?;
        let in_place = matches!(self.kind, Kind::Allreduce { .. } | Kind::Broadcast { .. });
        let given = match (&self.input, &self.output) {
            (Some(input), _) => Some(input.len()),
            (None, Output::InPlace(buffer)) if in_place => Some(buffer.len()),
            (None, Output::None | Output::Allocate(_)) if matches!(self.kind, Kind::Broadcast { .. }) => None,
            (None, _) if matches!(self.kind, Kind::Barrier | Kind::AddSet { .. } | Kind::RemoveSet { .. }) => None,
            (None, _) => return Err(Error::Usage(format!("tensor {name} was submitted without data"))),
        };
        let room = match &self.output {
            Output::InPlace(buffer) if in_place => Some(buffer.len()),
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

    /// The request that ranks compare.
    pub(crate) fn request(&mut self, group: Option<(u64, usize)>) -> Request {
        let room = match &self.output {
            Output::InPlace(buffer) if self.kind.needs_rows() => Some(buffer.len()),
            _ => None,
        };
        Request {
            name: std::mem::take(&mut self.name),
            kind: self.kind.clone(),
            dtype: self.dtype,
            shape: std::mem::take(&mut self.shape),
            device: self.device,
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
