//! Runs a batch of agreed tensors on a group.
//!
//! Called by whoever holds the process set's lane, one batch after the other, in the order all members agreed on. Members
//! that have joined take part with zeros.

use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::{Group, Reduction};
use corro_core::shape::share;
use corro_core::{Buffer, DType, Error, Rank, Result, Shape};
use smallvec::{SmallVec, smallvec};

use crate::promise::Outcome;
use crate::submission::Output;

/// What this member brings to an agreed tensor.
#[derive(Debug, Default)]
pub(crate) struct Tensor {
    pub(crate) input: Option<Buffer>,
    pub(crate) output: Output,
    /// Whether the factor that comes first was applied: a batch may be withdrawn and run again.
    pub(crate) prescaled: bool,
    /// Why this member can't have the result, although all take part.
    pub(crate) refused: Option<Box<Error>>,
}

/// What became of each tensor of a batch, on this member.
pub(crate) type Outcomes = SmallVec<[Result<Outcome>; 1]>;

/// Runs one batch. `tensors[i]` belongs to `agreed[i]`. If this gives [`Error::Withdrawn`], the tensors can be run again.
/// Otherwise there is an outcome for each, or one error for all.
///
/// A member that has no place for its result takes part nevertheless, with memory of the engine's own: the others are
/// in the collective already. Only its own ticket fails.
pub(crate) fn run(
    group: &mut Group,
    members: &[Rank],
    agreed: &[Arc<Agreed>],
    tensors: &mut [Tensor],
    planned: bool,
) -> Result<Outcomes> {
    let Some(first) = agreed.first() else { return Ok(SmallVec::new()) };
    for agreed in agreed {
        check(agreed, group.size())?;
    }
    match &first.kind {
        Kind::Allreduce { .. } => allreduce(group, agreed, tensors, planned),
        Kind::Allgather => allgather(group, agreed, tensors),
        Kind::Broadcast { root } => {
            let root = members.iter().position(|m| m == root);
            let root = root.ok_or_else(|| Error::Bug("a broadcast from outside of the set".into()))?;
            each(agreed, tensors, |agreed, tensor| broadcast(group, root, agreed, tensor))
        }
        Kind::Alltoall { .. } => each(agreed, tensors, |agreed, tensor| alltoall(group, agreed, tensor)),
        Kind::Reducescatter { .. } => each(agreed, tensors, |agreed, tensor| reducescatter(group, agreed, tensor)),
        Kind::Barrier => {
            group.barrier()?;
            Ok(smallvec![Ok(Outcome::default())])
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => Err(Error::Bug("process sets are not collectives".into())),
    }
}

/// An error if what all have agreed on, as a peer tells it, can't have come from matching their requests.
fn check(agreed: &Agreed, members: usize) -> Result<()> {
    let shapes = if agreed.kind.has_free_rows() { members } else { 1 };
    let has_rows = !agreed.kind.needs_rows() || agreed.shapes.iter().all(|shape| !shape.0.is_empty());
    let has_splits = agreed.splits.iter().all(|splits| splits.is_empty() || splits.len() == members);
    if agreed.shapes.len() == shapes && has_rows && has_splits {
        return Ok(());
    }
    Err(Error::Malformed(format!("tensor {} is to run with {} shapes", agreed.name, agreed.shapes.len())))
}

fn each(
    agreed: &[Arc<Agreed>],
    tensors: &mut [Tensor],
    mut act: impl FnMut(&Agreed, &mut Tensor) -> Result<Result<Outcome>>,
) -> Result<Outcomes> {
    agreed.iter().zip(tensors).map(|(agreed, tensor)| act(agreed, tensor)).collect()
}

fn allreduce(group: &mut Group, agreed: &[Arc<Agreed>], tensors: &mut [Tensor], planned: bool) -> Result<Outcomes> {
    let Some((op, pre, post)) = agreed[0].kind.reduction() else { return Err(no_reduction()) };
    let dtype = agreed[0].dtype;
    let prescale = f64::from_bits(pre);
    for (agreed, tensor) in agreed.iter().zip(tensors.iter_mut()) {
        if prescale == 1.0 {
            tensor.allocate(&agreed.shapes[0], dtype)?;
            continue;
        }
        tensor.fill_in(agreed)?;
        if !std::mem::replace(&mut tensor.prescaled, true) {
            corro_kernels::scale(dtype, tensor.place()?.as_mut_slice(), prescale);
        }
    }
    let (postscale, afterwards) = postscales(&agreed[0], f64::from_bits(post));
    let how = Reduction { prescale: 1.0, postscale, ..Reduction::new(dtype, op) };
    let mut views: SmallVec<[corro_collectives::Tensor<'_>; 1]> = SmallVec::with_capacity(tensors.len());
    for tensor in tensors.iter_mut() {
        views.push(tensor.view()?);
    }
    let ran =
        if planned { group.allreduce_withdrawable(&mut views, &how) } else { group.allreduce_many(&mut views, &how) };
    drop(views);
    ran?;
    for tensor in tensors.iter_mut().filter(|_| afterwards != 1.0) {
        corro_kernels::scale(dtype, tensor.place()?.as_mut_slice(), afterwards);
    }
    Ok(agreed.iter().zip(tensors).map(|(a, t)| t.outcome(a.shapes[0].clone())).collect())
}

/// Allgathers all tensors of the batch at once: what each member brings is put in a row.
fn allgather(group: &mut Group, agreed: &[Arc<Agreed>], tensors: &mut [Tensor]) -> Result<Outcomes> {
    let n = group.size();
    let bytes = |a: &Agreed, member: usize| a.shapes[member].bytes(a.dtype);
    let shapes: Vec<Shape> = agreed.iter().map(|a| rows_together(&a.shapes)).collect();
    for ((a, tensor), shape) in agreed.iter().zip(tensors.iter_mut()).zip(&shapes) {
        tensor.allocate(shape, a.dtype)?;
    }
    if let ([a], [tensor]) = (agreed, &mut *tensors) {
        let counts = (0..n).map(|m| bytes(a, m)).collect::<Result<Vec<_>>>()?;
        let Tensor { input: Some(input), output: Output::InPlace(output), .. } = tensor else {
            return Err(no_memory());
        };
        group.allgather_bytes(input.as_slice(), &counts, output.as_mut_slice())?;
    } else {
        let mut counts = vec![0; n];
        for a in agreed {
            for (m, count) in counts.iter_mut().enumerate() {
                *count += bytes(a, m)?;
            }
        }
        let mut packed = Vec::with_capacity(counts[group.rank()]);
        for tensor in tensors.iter() {
            packed.extend_from_slice(tensor.input.as_ref().ok_or_else(no_memory)?.as_slice());
        }
        let mut all = vec![0; counts.iter().sum()];
        group.allgather_bytes(&packed, &counts, &mut all)?;
        let mut at = 0;
        let mut filled = vec![0; agreed.len()];
        for m in 0..n {
            for ((a, tensor), filled) in agreed.iter().zip(tensors.iter_mut()).zip(&mut filled) {
                let len = bytes(a, m)?;
                tensor.place()?.as_mut_slice()[*filled..*filled + len].copy_from_slice(&all[at..at + len]);
                *filled += len;
                at += len;
            }
        }
    }
    Ok(tensors.iter_mut().zip(shapes).map(|(t, shape)| t.outcome(shape)).collect())
}

fn broadcast(group: &mut Group, root: usize, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    if group.rank() != root {
        tensor.input = None;
    }
    tensor.fill_in(agreed)?;
    group.broadcast_bytes(tensor.place()?.as_mut_slice(), root)?;
    Ok(tensor.outcome(agreed.shapes[0].clone()))
}

fn alltoall(group: &mut Group, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    let (n, me) = (group.size(), group.rank());
    let row_shape: Vec<usize> = agreed.shapes[0].0.iter().skip(1).copied().collect();
    let row = Shape(row_shape.clone()).bytes(agreed.dtype)?;
    // Rows from each member to each member.
    let table: Vec<Vec<usize>> = (0..n)
        .map(|m| match agreed.splits.get(m).filter(|s| !s.is_empty()) {
            Some(splits) => splits.clone(),
            None => vec![agreed.shapes[m].0[0] / n; n],
        })
        .collect();
    let bytes = |rows: &[usize]| rows.iter().map(|r| r * row).collect::<Vec<usize>>();
    let received: Vec<usize> = table.iter().map(|splits| splits[me]).collect();
    let longest = table.iter().flatten().copied().max().unwrap_or(0) * row;
    let mut dimensions = vec![received.iter().sum()];
    dimensions.extend(row_shape);
    let shape = Shape(dimensions);
    tensor.allocate(&shape, agreed.dtype)?;
    let Tensor { input: Some(input), output: Output::InPlace(output), .. } = tensor else { return Err(no_memory()) };
    group.alltoall_bytes(input.as_slice(), &bytes(&table[me]), output.as_mut_slice(), &bytes(&received), longest)?;
    Ok(tensor.outcome(shape).map(|outcome| Outcome { received_splits: received, ..outcome }))
}

fn reducescatter(group: &mut Group, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    let Some((op, pre, post)) = agreed.kind.reduction() else { return Err(no_reduction()) };
    let shape = &agreed.shapes[0];
    let rows = shape.0.first().copied().unwrap_or(0);
    let mut mine = shape.clone();
    mine.0[0] = share(rows, group.size(), group.rank()).len();
    tensor.allocate(&mine, agreed.dtype)?;
    let (postscale, afterwards) = postscales(agreed, f64::from_bits(post));
    let how = Reduction { prescale: f64::from_bits(pre), postscale, ..Reduction::new(agreed.dtype, op) };
    let Tensor { input: Some(input), output: Output::InPlace(output), .. } = tensor else { return Err(no_memory()) };
    group.reducescatter_bytes(input.as_slice(), rows, output.as_mut_slice(), &how)?;
    if afterwards != 1.0 {
        corro_kernels::scale(agreed.dtype, output.as_mut_slice(), afterwards);
    }
    Ok(tensor.outcome(mine))
}

/// The factor that is applied before a sum is rounded, and the one that is applied to what has been rounded.
///
/// On the host 16-bit floats are rounded once. Tensors of GPUs follow the arithmetic of their frameworks, which round the
/// sum before they multiply it; their fronts give factors that are numbers of the tensor's own type.
fn postscales(agreed: &Agreed, postscale: f64) -> (f64, f64) {
    let rounds_first = agreed.place.is_gpu() && matches!(agreed.dtype, DType::F16 | DType::BF16);
    if rounds_first { (1.0, postscale) } else { (postscale, 1.0) }
}

/// The shapes put together along the first dimension.
fn rows_together(shapes: &[Shape]) -> Shape {
    let mut shape = shapes.first().cloned().unwrap_or_default();
    if let Some(rows) = shape.0.first_mut() {
        *rows = shapes.iter().filter_map(|s| s.0.first()).sum();
    }
    shape
}

impl Tensor {
    /// Makes the result's place hold what this member brings: its input, or zeros if it has joined.
    fn fill_in(&mut self, agreed: &Agreed) -> Result<()> {
        let shape = &agreed.shapes[0];
        self.allocate(shape, agreed.dtype)?;
        if let Some(input) = self.input.take() {
            let place = self.place()?;
            if place.len() != input.len() {
                return Err(Error::Bug(format!(
                    "tensor {} has {} bytes, its result {}",
                    agreed.name,
                    input.len(),
                    place.len()
                )));
            }
            place.as_mut_slice().copy_from_slice(input.as_slice());
        }
        Ok(())
    }

    /// As the data plane takes it.
    fn view(&mut self) -> Result<corro_collectives::Tensor<'_>> {
        let Output::InPlace(place) = &mut self.output else { return Err(no_memory()) };
        Ok(match &self.input {
            Some(input) => corro_collectives::Tensor::apart(input.as_slice(), place.as_mut_slice()),
            None => corro_collectives::Tensor::in_place(place.as_mut_slice()),
        })
    }

    /// Makes a place for the result, if none was given. One that does not fit is replaced, and the ticket will fail.
    fn allocate(&mut self, shape: &Shape, dtype: DType) -> Result<()> {
        let bytes = shape.bytes(dtype)?;
        let place = match std::mem::take(&mut self.output) {
            Output::InPlace(buffer) => Ok(buffer),
            Output::Allocate(allocate) => allocate(shape),
            Output::None => Ok(vec![0; bytes].into()),
        };
        let place = place.and_then(|buffer| {
            let len = buffer.len();
            let wrong = || Error::Usage(format!("a result of {bytes} bytes was given a place of {len}"));
            if len == bytes { Ok(buffer) } else { Err(wrong()) }
        });
        self.output = Output::InPlace(place.unwrap_or_else(|error| {
            self.refused.get_or_insert(Box::new(error));
            vec![0; bytes].into()
        }));
        Ok(())
    }

    fn place(&mut self) -> Result<&mut Buffer> {
        match &mut self.output {
            Output::InPlace(buffer) => Ok(buffer),
            _ => Err(no_memory()),
        }
    }

    fn outcome(&mut self, shape: Shape) -> Result<Outcome> {
        // Whoever is told of the result may want to have it back.
        self.input = None;
        if let Some(error) = self.refused.take() {
            return Err(*error);
        }
        let output = match std::mem::take(&mut self.output) {
            Output::InPlace(buffer) => Some(buffer),
            _ => None,
        };
        Ok(Outcome { output, shape, ..Outcome::default() })
    }
}

fn no_memory() -> Error {
    Error::Bug("a tensor without its memory".into())
}

fn no_reduction() -> Error {
    Error::Bug("a reduction without an op".into())
}
