//! What a node says, from its inputs to submissions, and from their outcome to TensorFlow's outputs.
//!
//! Tensors are not copied: the engine reads the input where it is and writes into TensorFlow's output, which is the input
//! itself where TensorFlow allows that.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use corro_core::{Buffer, Compression, DType, Error, Rank, ReduceOp, Shape};
use corro_engine::{Device, Kind, Memory, Outcome, Output, Submission};

use super::api::Tensor;
use super::failure::{ABORTED, Answer, Failure};
use super::node::{Attributes, Call};
use super::ops::Op;
use super::output_memory;
use super::work_in_place::WorkInPlace;
use crate::{compression, names};

/// What a node says, read once.
pub(super) struct Kernel {
    pub(super) op: Op,
    /// The name for other ranks; None to be counted.
    name: Option<String>,
    set: i64,
    pub(super) eager: bool,
    reduce: i64,
    prescale: f64,
    postscale: f64,
    compression: Option<Compression>,
    root: i64,
    pub(super) work_in_place: WorkInPlace,
    /// Somebody else has held the input, so that TensorFlow did not give it away: likely so the next time, and then memory
    /// of our own is better (see [`output_memory`]).
    is_kept: AtomicBool,
}

impl Kernel {
    pub(super) fn read(op: Op, node: &Attributes) -> Answer<Self> {
        let eager = node.flag(c"eager")?;
        let given = node.text(c"tensor_name")?;
        let name = match (given, eager) {
            (Some(name), _) if !name.is_empty() => Some(name),
            (_, true) => None,
            _ if node.flag(c"ignore_name_scope")? => node.name().rsplit('/').next().map(str::to_owned),
            _ => Some(node.name()),
        };
        Ok(Self {
            op,
            name,
            eager,
            set: node.integer(c"process_set_id")?.unwrap_or(0),
            reduce: node.integer(c"reduce_op")?.unwrap_or(1),
            prescale: node.factor(c"prescale_factor")?,
            postscale: node.factor(c"postscale_factor")?,
            compression: compression::parse_if_any(&node.text(c"compression")?.unwrap_or_default())?,
            root: node.integer(c"root_rank")?.unwrap_or(0),
            work_in_place: WorkInPlace::default(),
            is_kept: AtomicBool::new(false),
        })
    }

    /// The process set: the attribute, or the one input behind the first `own`.
    pub(super) fn set(&self, call: Call, own: usize) -> Answer<u32> {
        let number = if call.inputs() > own {
            call.input(own)?.int32s().first().copied().map_or(self.set, i64::from)
        } else {
            self.set
        };
        u32::try_from(number).map_err(|_| {
            Error::Usage(format!("process set {number} does not exist, or has not been registered: ids begin at 0"))
                .into()
        })
    }

    fn kind(&self, splits: Vec<usize>) -> Answer<Kind> {
        let (prescale, postscale) = (self.prescale.to_bits(), self.postscale.to_bits());
        Ok(match self.op {
            Op::Allreduce | Op::GroupedAllreduce => {
                let compression = self.compression;
                Kind::Allreduce { op: self.reduction()?, prescale, postscale, compression }
            }
            Op::Reducescatter | Op::GroupedReducescatter => {
                let op = self.reduction()?;
                if !matches!(op, ReduceOp::Sum | ReduceOp::Average) {
                    let text = "reducescatter supports the reduce ops Sum and Average only".into();
                    return Err(Failure { code: ABORTED, text });
                }
                Kind::Reducescatter { op, prescale, postscale }
            }
            Op::Allgather | Op::GroupedAllgather => Kind::Allgather,
            Op::Alltoall => Kind::Alltoall { splits },
            Op::Broadcast => Kind::Broadcast { root: self.root()? },
            _ => Kind::Barrier,
        })
    }

    fn reduction(&self) -> Answer<ReduceOp> {
        u8::try_from(self.reduce)
            .ok()
            .and_then(ReduceOp::from_id)
            .ok_or_else(|| Error::Usage(format!("{} is not a reduce op; say hvd.Sum or the like", self.reduce)).into())
    }

    fn root(&self) -> Answer<Rank> {
        usize::try_from(self.root).map(Rank::new).map_err(|_| {
            Error::Usage(format!("broadcast received invalid root rank {}: ranks begin at 0", self.root)).into()
        })
    }

    const fn operation_name(&self) -> &'static str {
        match self.op {
            Op::Allreduce | Op::GroupedAllreduce => "allreduce",
            Op::Allgather | Op::GroupedAllgather => "allgather",
            Op::Broadcast => "broadcast",
            Op::Alltoall => "alltoall",
            Op::Reducescatter | Op::GroupedReducescatter => "reducescatter",
            _ => "",
        }
    }

    /// What other ranks know the tensor by. A node's name is all of it, as in Horovod: if ranks have different operations
    /// under one name, that is an error and not a wait for ever.
    fn name_in(&self, set: u32, kind: &str) -> String {
        self.name.clone().unwrap_or_else(|| names::of_eager(set, kind))
    }

    /// Submits what this call of the kernel is for.
    pub(super) fn submissions(&self, call: Call) -> Answer<Vec<Submission>> {
        match self.op {
            Op::GroupedAllreduce | Op::GroupedAllgather | Op::GroupedReducescatter => {
                // The last input may be the process set; which one is, the outputs tell.
                let count = call.outputs();
                let set = self.set(call, count)?;
                let group = self.name_in(set, &format!("grouped_{}", self.operation_name()));
                (0..count)
                    .map(|i| self.submission(call, i, set, format!("{group}_{}of{count}", i + 1), Vec::new()))
                    .collect()
            }
            Op::Barrier => Ok(vec![Submission { set: self.set(call, 0)?, ..Submission::barrier() }]),
            Op::Alltoall => {
                let set = self.set(call, 2)?;
                let splits = splits(&call.input(1)?)?;
                let name = self.name_in(set, self.operation_name());
                Ok(vec![self.submission(call, 0, set, name, splits)?])
            }
            _ => {
                let set = self.set(call, 1)?;
                let name = self.name_in(set, self.operation_name());
                Ok(vec![self.submission(call, 0, set, name, Vec::new())?])
            }
        }
    }

    fn submission(&self, call: Call, i: usize, set: u32, name: String, splits: Vec<usize>) -> Answer<Submission> {
        let kind = self.kind(splits)?;
        let input = call.input(i)?;
        let (number, dims) = (input.dtype(), input.dims());
        let dtype = dtype(number)?;
        if dims.is_empty() && matches!(kind, Kind::Reducescatter { .. }) {
            return Err(Error::Usage(format!("reducescatter of {name}, a rank-zero tensor, is not possible")).into());
        }
        let (input, output) = match &kind {
            Kind::Allreduce { .. } | Kind::Broadcast { .. } => {
                let apart = if self.is_kept.load(Ordering::Relaxed) {
                    output_memory::place(call, i, number, &dims, input.bytes())?
                } else {
                    None
                };
                if let Some(output) = apart {
                    (Some(memory(input)), Output::InPlace(memory(output)))
                } else {
                    drop(input); // TensorFlow gives away an input only if nobody else holds it.
                    let (output, forwarded) = call.forward_or_allocate(i, &dims)?;
                    self.is_kept.store(!forwarded, Ordering::Relaxed);
                    let input = if forwarded { None } else { Some(memory(call.input(i)?)) };
                    (input, Output::InPlace(memory(output)))
                }
            }
            // How many rows come is known for sure only when they are there: TensorFlow takes an output once.
            _ => (
                Some(memory(input)),
                Output::Allocate(Box::new(move |shape| Ok(output_memory::room(shape.bytes(dtype)?)))),
            ),
        };
        Ok(Submission { set, name, kind, dtype, shape: Shape(dims), device: Device::Cpu, input, output })
    }

    /// Gives TensorFlow what it has not got yet of tensor `i`: a result whose size others decide, and lists of numbers.
    pub(super) fn finish(&self, call: Call, i: usize, outcome: Outcome) -> Answer<()> {
        match self.op {
            Op::Alltoall => {
                let received: Vec<i32> = outcome.received_splits.iter().map(|rows| *rows as i32).collect();
                call.put_int32s(1, &[received.len()], &received)?;
                output_memory::give(call, i, call.input(i)?.dtype(), outcome)
            }
            Op::Allgather | Op::GroupedAllgather | Op::Reducescatter | Op::GroupedReducescatter => {
                output_memory::give(call, i, call.input(i)?.dtype(), outcome)
            }
            Op::Join => call.put_int32s(0, &[], &[outcome.last_joined.map_or(0, Rank::index) as i32]),
            _ => Ok(()),
        }
    }
}

fn splits(tensor: &Tensor) -> Answer<Vec<usize>> {
    if tensor.dims().len() > 1 {
        return Err(Error::Usage("alltoall expects a 1D splits tensor".into()).into());
    }
    let numbers = tensor.int32s();
    let checked: Result<Vec<_>, _> = numbers.iter().map(|rows| usize::try_from(*rows)).collect();
    checked.map_err(|_| Error::Usage(format!("splits must not be negative, but they are {numbers:?}")).into())
}

fn dtype(number: c_int) -> Answer<DType> {
    Ok(match number {
        1 => DType::F32,
        2 => DType::F64,
        3 => DType::I32,
        4 => DType::U8,
        5 => DType::I16,
        6 => DType::I8,
        9 => DType::I64,
        10 => DType::Bool,
        14 => DType::BF16,
        17 => DType::U16,
        19 => DType::F16,
        22 => DType::U32,
        23 => DType::U64,
        _ => return Err(Error::Usage(format!("TensorFlow's dtype number {number} is not supported")).into()),
    })
}

fn memory(tensor: Tensor) -> Memory {
    let (at, bytes) = (tensor.data(), tensor.bytes());
    // SAFETY: the tensor, which the buffer keeps, keeps the memory. An output is nobody else's before the kernel says that
    // it is done; an input that is not the output as well is only read.
    unsafe { Buffer::from_raw(at, bytes, Box::new(tensor)) }.into()
}
