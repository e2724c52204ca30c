//! What is to be done with a batch, on this member.

use std::any::Any;
use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::Group;
use corro_core::{DType, Error, Rank, ReduceOp, Result};
use corro_cuda::{Reduction, Stream};

use super::local::Local;
use super::movement::{Plan, brings, plan};
use super::own_memory::OwnMemory;
use crate::plane::check;
use crate::tensor::Tensor;

/// See the module. Nothing of it was given to the device yet.
pub(super) struct Batch<'a> {
    pub(super) agreed: &'a [Arc<Agreed>],
    pub(super) how: Reduction,
    pub(super) plans: Vec<Plan>,
    pub(super) locals: Vec<Local>,
    /// By tensor, and then by member: how much it brings.
    pub(super) bytes: Vec<Vec<usize>>,
    pub(super) members: usize,
    pub(super) me: usize,
    /// The member that a broadcast comes from.
    pub(super) root: usize,
}

impl<'a> Batch<'a> {
    /// Makes places for the results.
    pub(super) fn new(
        own: &OwnMemory,
        group: &Group,
        members: &[Rank],
        agreed: &'a [Arc<Agreed>],
        tensors: &mut [Tensor],
    ) -> Result<Self> {
        let (size, me) = (group.size(), group.rank());
        let first = agreed.first().ok_or_else(|| Error::Bug("a batch of nothing".into()))?;
        let root = match &first.kind {
            Kind::Broadcast { root } => members.iter().position(|member| member == root),
            _ => Some(0),
        };
        let root = root.ok_or_else(|| Error::Bug("a broadcast from outside of the set".into()))?;
        let (mut plans, mut locals, mut bytes) = (Vec::new(), Vec::new(), Vec::new());
        for (agreed, tensor) in agreed.iter().zip(tensors) {
            check(agreed, size)?;
            let plan = plan(agreed, size, me, root)?;
            locals.push(Local::new(own, agreed, &plan, tensor)?);
            bytes.push((0..size).map(|member| brings(agreed, member, root)).collect::<Result<Vec<_>>>()?);
            plans.push(plan);
        }
        Ok(Self { agreed, how: reduction(first, size), plans, locals, bytes, members: size, me, root })
    }

    /// The stream may use the tensors from here on.
    pub(super) fn begin(&self, stream: &Stream) -> Result<()> {
        let mut last = None;
        self.locals.iter().try_for_each(|local| local.begin(stream, &mut last))
    }

    /// All results are where they were made.
    pub(super) fn end(&self, stream: &Stream) -> Result<()> {
        self.locals.iter().try_for_each(|local| local.end(stream))
    }

    /// What must not go before the stream is done.
    pub(super) fn keepers(&self) -> Vec<Arc<dyn Any + Send + Sync>> {
        self.locals.iter().flat_map(Local::keepers).collect()
    }
}

/// How elements are combined. 16-bit floats follow the arithmetic of their frameworks, which round the sum before they
/// multiply it; an average's factor is part of the sum.
pub(super) fn reduction(agreed: &Agreed, members: usize) -> Reduction {
    let Some((op, pre, post)) = agreed.kind.reduction() else { return Reduction::new(agreed.dtype, ReduceOp::Sum) };
    let (prescale, postscale) = (f64::from_bits(pre), f64::from_bits(post));
    let small = matches!(agreed.dtype, DType::F16 | DType::BF16);
    match op {
        ReduceOp::Average => {
            let postscale = postscale / members as f64;
            Reduction { prescale, postscale, ..Reduction::new(agreed.dtype, ReduceOp::Sum) }
        }
        op => Reduction { prescale, postscale, rounds_first: small, ..Reduction::new(agreed.dtype, op) },
    }
}
