//! The plane of host memory: runs batches over the connections among the members.

use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_collectives::{Group, Reduction};
use corro_core::shape::share;
use corro_core::{Compression, DType, Error, Rank, Result, Shape};
use smallvec::{SmallVec, smallvec};

use crate::compressed::{Batch, Rooms, pay_debts};
use crate::ledgers::Ledgers;
use crate::memory::Memory;
use crate::outcome::{Outcome, Outcomes};
use crate::plane::{Plane, check};
use crate::tensor::{Output, Tensor};
use crate::wire::Wire;

/// The name of the plane.
pub const HOST: &str = "host";

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Host {
    ledgers: Ledgers,
    rooms: Rooms,
}

impl Host {
    /// With these ledgers for what compression remembers.
    pub fn new(ledgers: Ledgers) -> Self {
        Self { ledgers, rooms: Rooms::default() }
    }
}

impl Plane for Host {
    fn name(&self) -> &'static str {
        HOST
    }

    fn run(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        agreed: &[Arc<Agreed>],
        tensors: &mut [Tensor],
        planned: bool,
    ) -> Result<Outcomes> {
        match agreed.first().and_then(|first| first.kind.compression()) {
            Some(compression) => self.compressed(group, members, compression, (agreed, tensors), planned),
            None => run(group, members, agreed, tensors, planned),
        }
    }
}

/// Runs one batch of tensors in host memory over whatever moves and reduces their bytes.
pub(crate) fn run(
    wire: &mut impl Wire,
    members: &[Rank],
    agreed: &[Arc<Agreed>],
    tensors: &mut [Tensor],
    planned: bool,
) -> Result<Outcomes> {
    let Some(first) = agreed.first() else { return Ok(SmallVec::new()) };
    for agreed in agreed {
        check(agreed, wire.size())?;
    }
    match &first.kind {
        Kind::Allreduce { .. } => allreduce(wire, agreed, tensors, planned),
        Kind::Allgather => allgather(wire, agreed, tensors),
        Kind::Broadcast { root } => {
            let root = members.iter().position(|m| m == root);
            let root = root.ok_or_else(|| Error::Bug("a broadcast from outside of the set".into()))?;
            each(agreed, tensors, |agreed, tensor| broadcast(wire, root, agreed, tensor))
        }
        Kind::Alltoall { .. } => each(agreed, tensors, |agreed, tensor| alltoall(wire, agreed, tensor)),
        Kind::Reducescatter { .. } => each(agreed, tensors, |agreed, tensor| reducescatter(wire, agreed, tensor)),
        Kind::Barrier => {
            wire.barrier()?;
            Ok(smallvec![Ok(Outcome::default())])
        }
        Kind::AddSet { .. } | Kind::RemoveSet { .. } => Err(Error::Bug("process sets are not collectives".into())),
    }
}

impl Host {
    fn compressed(
        &mut self,
        group: &mut Group,
        members: &[Rank],
        compression: &Compression,
        (agreed, tensors): (&[Arc<Agreed>], &mut [Tensor]),
        planned: bool,
    ) -> Result<Outcomes> {
        for agreed in agreed {
            check(agreed, group.size())?;
        }
        compression.check().map_err(|error| Error::Malformed(format!("tensor {}: {error}", agreed[0].name)))?;
        let (op, pre, post) = agreed[0].kind.reduction().ok_or_else(no_reduction)?;
        let factors = (f64::from_bits(pre), f64::from_bits(post));
        let alone = group.seats(compression.inside).hosts == 1;
        // Once all have come, nobody can call the batch off: what is remembered may change.
        if planned && !alone {
            group.barrier()?;
        }
        if !alone || self.ledgers.with(members, |ledger| !ledger.is_empty()) {
            for (agreed, tensor) in agreed.iter().zip(tensors.iter_mut()) {
                fill_in(tensor, agreed)?;
            }
        }
        if alone {
            // Inside a host bytes cost next to nothing. What is owed from other times is paid.
            let prescale = if tensors.iter().any(|tensor| tensor.prescaled) { 1.0 } else { factors.0 };
            let mut owed = Vec::new();
            for (agreed, tensor) in agreed.iter().zip(tensors.iter_mut()) {
                if tensor.input.is_none() && matches!(tensor.output, Output::InPlace(_)) {
                    owed.push((&**agreed, place(tensor)?));
                }
            }
            pay_debts(&self.ledgers, members, (op, prescale), owed.into_iter());
            return allreduce(group, agreed, tensors, planned);
        }
        let mut batch = Batch::new(group, members, compression, (op, factors));
        for (agreed, tensor) in agreed.iter().zip(tensors.iter_mut()) {
            batch.add(agreed, place(tensor)?)?;
        }
        batch.run(group, &self.ledgers, &mut self.rooms)?;
        Ok(agreed.iter().zip(tensors).map(|(agreed, tensor)| tensor.outcome(agreed.shapes[0].clone())).collect())
    }
}

fn each(
    agreed: &[Arc<Agreed>],
    tensors: &mut [Tensor],
    mut act: impl FnMut(&Agreed, &mut Tensor) -> Result<Result<Outcome>>,
) -> Result<Outcomes> {
    agreed.iter().zip(tensors).map(|(agreed, tensor)| act(agreed, tensor)).collect()
}

fn allreduce(wire: &mut impl Wire, agreed: &[Arc<Agreed>], tensors: &mut [Tensor], planned: bool) -> Result<Outcomes> {
    let Some((op, pre, post)) = agreed[0].kind.reduction() else { return Err(no_reduction()) };
    let dtype = agreed[0].dtype;
    let prescale = f64::from_bits(pre);
    for (agreed, tensor) in agreed.iter().zip(tensors.iter_mut()) {
        if prescale == 1.0 {
            allocate(tensor, &agreed.shapes[0], dtype)?;
            continue;
        }
        fill_in(tensor, agreed)?;
        if !std::mem::replace(&mut tensor.prescaled, true) {
            corro_kernels::scale(dtype, place(tensor)?, prescale);
        }
    }
    let (postscale, afterwards) = postscales(&agreed[0], f64::from_bits(post));
    let how = Reduction { prescale: 1.0, postscale, ..Reduction::new(dtype, op) };
    let mut views: SmallVec<[corro_collectives::Tensor<'_>; 1]> = SmallVec::with_capacity(tensors.len());
    for tensor in tensors.iter_mut() {
        views.push(view(tensor)?);
    }
    let ran = wire.allreduce(&mut views, &how, planned);
    drop(views);
    ran?;
    for tensor in tensors.iter_mut().filter(|_| afterwards != 1.0) {
        corro_kernels::scale(dtype, place(tensor)?, afterwards);
    }
    // Most often there is one, and it is made where it goes: moving it into a list is a hundredth of the smallest collective.
    if let ([agreed], [tensor]) = (agreed, &mut *tensors) {
        return Ok(Outcomes::from_buf([tensor.outcome(agreed.shapes[0].clone())]));
    }
    let mut outcomes = Outcomes::with_capacity(tensors.len());
    for (agreed, tensor) in agreed.iter().zip(tensors) {
        outcomes.push(tensor.outcome(agreed.shapes[0].clone()));
    }
    Ok(outcomes)
}

/// Allgathers all tensors of the batch at once: what each member brings is put in a row.
fn allgather(wire: &mut impl Wire, agreed: &[Arc<Agreed>], tensors: &mut [Tensor]) -> Result<Outcomes> {
    let n = wire.size();
    let bytes = |a: &Agreed, member: usize| a.shapes[member].bytes(a.dtype);
    let shapes: Vec<Shape> = agreed.iter().map(|a| rows_together(&a.shapes)).collect();
    for ((a, tensor), shape) in agreed.iter().zip(tensors.iter_mut()).zip(&shapes) {
        allocate(tensor, shape, a.dtype)?;
    }
    if let ([a], [tensor]) = (agreed, &mut *tensors) {
        let counts = (0..n).map(|m| bytes(a, m)).collect::<Result<Vec<_>>>()?;
        let (input, output) = slices(tensor)?;
        wire.allgather(input, &counts, output)?;
    } else {
        let mut counts = vec![0; n];
        for a in agreed {
            for (m, count) in counts.iter_mut().enumerate() {
                *count += bytes(a, m)?;
            }
        }
        let mut packed = Vec::with_capacity(counts[wire.rank()]);
        for tensor in tensors.iter_mut() {
            packed.extend_from_slice(slices(tensor)?.0);
        }
        let mut all = vec![0; counts.iter().sum()];
        wire.allgather(&packed, &counts, &mut all)?;
        let mut at = 0;
        let mut filled = vec![0; agreed.len()];
        for m in 0..n {
            for ((a, tensor), filled) in agreed.iter().zip(tensors.iter_mut()).zip(&mut filled) {
                let len = bytes(a, m)?;
                place(tensor)?[*filled..*filled + len].copy_from_slice(&all[at..at + len]);
                *filled += len;
                at += len;
            }
        }
    }
    Ok(tensors.iter_mut().zip(shapes).map(|(t, shape)| t.outcome(shape)).collect())
}

fn broadcast(wire: &mut impl Wire, root: usize, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    if wire.rank() != root {
        tensor.input = None;
    }
    fill_in(tensor, agreed)?;
    wire.broadcast(place(tensor)?, root)?;
    Ok(tensor.outcome(agreed.shapes[0].clone()))
}

fn alltoall(wire: &mut impl Wire, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    let (n, me) = (wire.size(), wire.rank());
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
    allocate(tensor, &shape, agreed.dtype)?;
    let (input, output) = slices(tensor)?;
    wire.alltoall(input, &bytes(&table[me]), output, &bytes(&received), longest)?;
    Ok(tensor.outcome(shape).map(|outcome| Outcome { received_splits: received, ..outcome }))
}

fn reducescatter(wire: &mut impl Wire, agreed: &Agreed, tensor: &mut Tensor) -> Result<Result<Outcome>> {
    let Some((op, pre, post)) = agreed.kind.reduction() else { return Err(no_reduction()) };
    let shape = &agreed.shapes[0];
    let rows = shape.0.first().copied().unwrap_or(0);
    let mut mine = shape.clone();
    mine.0[0] = share(rows, wire.size(), wire.rank()).len();
    allocate(tensor, &mine, agreed.dtype)?;
    let (postscale, afterwards) = postscales(agreed, f64::from_bits(post));
    let how = Reduction { prescale: f64::from_bits(pre), postscale, ..Reduction::new(agreed.dtype, op) };
    let (input, output) = slices(tensor)?;
    wire.reducescatter(input, rows, output, &how)?;
    if afterwards != 1.0 {
        corro_kernels::scale(agreed.dtype, output, afterwards);
    }
    Ok(tensor.outcome(mine))
}

/// The factor that is applied before a sum is rounded, and the one that is applied to what has been rounded.
///
/// On the host 16-bit floats are rounded once. Tensors of GPUs follow the arithmetic of their frameworks, which round the
/// sum before they multiply it; their fronts give factors that are numbers of the tensor's own type.
pub(crate) fn postscales(agreed: &Agreed, postscale: f64) -> (f64, f64) {
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

/// Makes a place for the result in host memory, if none was given.
fn allocate(tensor: &mut Tensor, shape: &Shape, dtype: DType) -> Result<()> {
    tensor.allocate(shape, dtype, |given: &Memory| given.host().map(drop), |bytes| Ok(vec![0; bytes].into()))
}

/// Makes the result's place hold what this member brings: its input, or zeros if it has joined.
fn fill_in(tensor: &mut Tensor, agreed: &Agreed) -> Result<()> {
    allocate(tensor, &agreed.shapes[0], agreed.dtype)?;
    if let Some(input) = tensor.input.take() {
        let (input, place) = (input.host()?.as_slice(), place(tensor)?);
        if place.len() != input.len() {
            let (name, brought, room) = (&agreed.name, input.len(), place.len());
            return Err(Error::Bug(format!("tensor {name} has {brought} bytes, its result {room}")));
        }
        place.copy_from_slice(input);
    }
    Ok(())
}

/// As the collectives take it.
fn view(tensor: &mut Tensor) -> Result<corro_collectives::Tensor<'_>> {
    if tensor.input.is_none() {
        return Ok(corro_collectives::Tensor::in_place(place(tensor)?));
    }
    let (input, place) = slices(tensor)?;
    Ok(corro_collectives::Tensor::apart(input, place))
}

/// The result's place.
fn place(tensor: &mut Tensor) -> Result<&mut [u8]> {
    Ok(tensor.place()?.host_mut()?.as_mut_slice())
}

/// What this member brings, and the result's place.
fn slices(tensor: &mut Tensor) -> Result<(&[u8], &mut [u8])> {
    let (input, place) = tensor.both()?;
    Ok((input.host()?.as_slice(), place.host_mut()?.as_mut_slice()))
}

fn no_reduction() -> Error {
    Error::Bug("a reduction without an op".into())
}
