//! Which bytes of whom make up a member's result. Pure.

use corro_agreement::matching::Agreed;
use corro_agreement::request::Kind;
use corro_core::shape::share;
use corro_core::{Error, Result, Shape};

/// Bytes that are taken from a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pull {
    pub(super) member: usize,
    /// Where they begin in what it brings.
    pub(super) from: usize,
    /// Where they go in the result.
    pub(super) to: usize,
    pub(super) len: usize,
}

/// How a member's result of one tensor comes to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Movement {
    /// All members bring as much; each has the whole reduced.
    Allreduce,
    /// The bytes from here on of what all members bring are reduced.
    Reduce { from: usize },
    /// Bytes of members one after the other.
    Pulls(Vec<Pull>),
}

/// A tensor's result on one member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    pub(super) shape: Shape,
    pub(super) movement: Movement,
    /// Alltoall: rows from each member.
    pub(super) received: Vec<usize>,
}

/// How many bytes a member brings to a tensor; `root` is the member that a broadcast comes from.
pub(super) fn brings(agreed: &Agreed, member: usize, root: usize) -> Result<usize> {
    let shape = match agreed.kind {
        Kind::Broadcast { .. } if member != root => return Ok(0),
        _ if agreed.kind.has_free_rows() => agreed.shapes.get(member),
        _ => agreed.shapes.first(),
    };
    shape.ok_or_else(|| Error::Bug(format!("tensor {} has no shape", agreed.name)))?.bytes(agreed.dtype)
}

/// What member `me` of `members` has to do for its result.
pub(super) fn plan(agreed: &Agreed, members: usize, me: usize, root: usize) -> Result<Plan> {
    let shape = agreed.shapes.first().cloned().unwrap_or_default();
    let whole = |shape: Shape, movement| Plan { shape, movement, received: Vec::new() };
    Ok(match &agreed.kind {
        Kind::Allreduce { .. } => whole(shape, Movement::Allreduce),
        Kind::Reducescatter { .. } => {
            let rows = shape.0.first().copied().unwrap_or(0);
            let mine = share(rows, members, me);
            let row = Shape(shape.0.iter().skip(1).copied().collect()).bytes(agreed.dtype)?;
            let shape = Shape(std::iter::once(mine.len()).chain(shape.0.iter().skip(1).copied()).collect());
            whole(shape, Movement::Reduce { from: mine.start * row })
        }
        Kind::Broadcast { .. } => {
            let len = shape.bytes(agreed.dtype)?;
            whole(shape, Movement::Pulls(vec![Pull { member: root, from: 0, to: 0, len }]))
        }
        Kind::Allgather => {
            let mut to = 0;
            let mut pulls = Vec::with_capacity(members);
            for member in 0..members {
                let len = brings(agreed, member, root)?;
                pulls.push(Pull { member, from: 0, to, len });
                to += len;
            }
            let rows = agreed.shapes.iter().filter_map(|s| s.0.first()).sum();
            let shape = Shape(std::iter::once(rows).chain(shape.0.iter().skip(1).copied()).collect());
            whole(shape, Movement::Pulls(pulls))
        }
        Kind::Alltoall { .. } => alltoall(agreed, members, me)?,
        Kind::Barrier | Kind::AddSet { .. } | Kind::RemoveSet { .. } => {
            return Err(Error::Bug(format!("{} of tensors on GPUs", agreed.kind.name())));
        }
    })
}

/// What member `me` gives to each member in an alltoall: from which byte of what it brings, and how many.
pub(super) fn gives(agreed: &Agreed, members: usize, me: usize) -> Result<Vec<(usize, usize)>> {
    let shape = agreed.shapes.get(me).ok_or_else(|| Error::Bug(format!("tensor {} has no shape", agreed.name)))?;
    let row = Shape(shape.0.iter().skip(1).copied().collect()).bytes(agreed.dtype)?;
    let equal = shape.0.first().copied().unwrap_or(0) / members.max(1);
    let splits = agreed.splits.get(me).filter(|splits| !splits.is_empty());
    let mut from = 0;
    let give = |to: usize| {
        let len = splits.map_or(equal, |splits| splits[to]) * row;
        from += len;
        (from - len, len)
    };
    Ok((0..members).map(give).collect())
}

/// How many bytes of a reducescatter's result each member gets.
pub(super) fn shares(agreed: &Agreed, members: usize) -> Result<Vec<usize>> {
    let shape = agreed.shapes.first().cloned().unwrap_or_default();
    let row = Shape(shape.0.iter().skip(1).copied().collect()).bytes(agreed.dtype)?;
    let rows = shape.0.first().copied().unwrap_or(0);
    Ok((0..members).map(|member| share(rows, members, member).len() * row).collect())
}

fn alltoall(agreed: &Agreed, members: usize, me: usize) -> Result<Plan> {
    let rest: Vec<usize> = agreed.shapes[0].0.iter().skip(1).copied().collect();
    let row = Shape(rest.clone()).bytes(agreed.dtype)?;
    let mut received = Vec::with_capacity(members);
    let mut pulls = Vec::with_capacity(members);
    let mut to = 0;
    for member in 0..members {
        let equal = agreed.shapes[member].0[0] / members;
        let splits = agreed.splits.get(member).filter(|splits| !splits.is_empty());
        let rows = |to: usize| splits.map_or(equal, |splits| splits[to]);
        let before: usize = (0..me).map(rows).sum();
        pulls.push(Pull { member, from: before * row, to, len: rows(me) * row });
        to += rows(me) * row;
        received.push(rows(me));
    }
    let shape = Shape(std::iter::once(received.iter().sum()).chain(rest).collect());
    Ok(Plan { shape, movement: Movement::Pulls(pulls), received })
}

#[cfg(test)]
mod tests {
    use corro_agreement::request::MemoryPlace;
    use corro_core::DType;

    use super::*;

    fn agreed(kind: Kind, shapes: Vec<Shape>, splits: Vec<Vec<usize>>) -> Agreed {
        Agreed { name: "x".into(), kind, dtype: DType::F32, shapes, splits, place: MemoryPlace::Gpu, group: None }
    }

    #[test]
    fn what_one_gives_is_what_the_other_pulls() {
        for splits in [vec![vec![]; 3], vec![vec![1, 0, 2], vec![0, 3, 3], vec![4, 1, 1]]] {
            let rows = |member: usize| if splits[member].is_empty() { 6 } else { splits[member].iter().sum() };
            let shapes = (0..3).map(|member| Shape(vec![rows(member), 5])).collect();
            let agreed = agreed(Kind::Alltoall { splits: vec![] }, shapes, splits.clone());
            for to in 0..3 {
                let Movement::Pulls(pulls) = plan(&agreed, 3, to, 0).unwrap().movement else { panic!("no pulls") };
                for pull in pulls {
                    assert_eq!(gives(&agreed, 3, pull.member).unwrap()[to], (pull.from, pull.len));
                }
            }
        }
    }

    #[test]
    fn shares_are_those_of_the_plans() {
        let one = 1f64.to_bits();
        let kind = Kind::Reducescatter { op: corro_core::ReduceOp::Sum, prescale: one, postscale: one };
        for rows in [0, 1, 3, 7] {
            let agreed = agreed(kind.clone(), vec![Shape(vec![rows, 2])], vec![]);
            let mut begins = 0;
            for (member, share) in shares(&agreed, 3).unwrap().into_iter().enumerate() {
                let plan = plan(&agreed, 3, member, 0).unwrap();
                assert_eq!(
                    (plan.shape.bytes(DType::F32).unwrap(), plan.movement),
                    (share, Movement::Reduce { from: begins })
                );
                begins += share;
            }
            assert_eq!(begins, rows * 8);
        }
    }
}
