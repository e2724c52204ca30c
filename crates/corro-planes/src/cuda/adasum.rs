//! Adasum of what all members bring, done by each for itself: the same vectors, in the same order, give all of them the same bits.
//!
//! Sharing the work, as the host does, would take a signal for each level of the tree; a GPU reads its neighbours' memory faster.

use corro_core::{DType, ReduceOp, Result};
use corro_cuda::{DeviceMemory, Kernels, Pair, Piece, Reduction, Span, Stream};

use super::own_memory::OwnMemory;

/// Vectors begin at multiples of it.
const ALIGNED: usize = 256;

/// What is combined, level by level: the second of each pair goes into the first. The result is in the first of all. The same tree as
/// on the host: if `members` is no power of two, the first pair up before.
fn levels(members: usize) -> Vec<Vec<(usize, usize)>> {
    let seats = 1usize << members.max(1).ilog2();
    let pairs = members.max(1) - seats;
    let position = |seat: usize| if seat < pairs { 2 * seat } else { seat + pairs };
    let mut levels = Vec::new();
    if pairs > 0 {
        levels.push((0..pairs).map(|pair| (2 * pair, 2 * pair + 1)).collect());
    }
    let mut distance = 1;
    while distance < seats {
        let first = (0..seats).step_by(2 * distance);
        levels.push(first.map(|seat| (position(seat), position(seat + distance))).collect());
        distance *= 2;
    }
    levels
}

/// Copies of what all members bring to one tensor.
pub(super) struct Vectors {
    room: DeviceMemory,
    members: usize,
    len: usize,
    how: Reduction,
}

impl Vectors {
    /// Enqueues the copies: `brought` has what each member brings.
    pub(super) fn new(
        (kernels, stream, own): (&Kernels, &Stream, &OwnMemory),
        how: Reduction,
        brought: &[Span<'_>],
    ) -> Result<Self> {
        let (members, len) = (brought.len(), brought.first().map_or(0, |first| first.len()));
        let room = own.take(members * len.next_multiple_of(ALIGNED))?;
        let vectors = Self { room, members, len, how };
        for (member, from) in brought.iter().enumerate() {
            scale(kernels, stream, (how.dtype, how.prescale), vectors.of(member)?, *from)?;
        }
        Ok(vectors)
    }

    fn of(&self, member: usize) -> Result<Span<'_>> {
        let at = member * self.len.next_multiple_of(ALIGNED);
        self.room.span().part(at..at + self.len)
    }

    /// Enqueues the tree, and gives the memory that must stay until the stream is done.
    pub(super) fn combine(
        self,
        (kernels, stream, own): (&Kernels, &Stream, &OwnMemory),
        output: Span<'_>,
    ) -> Result<[DeviceMemory; 2]> {
        let levels = levels(self.members);
        // Sums, and what they need beside them, for the widest level.
        let widest = levels.iter().map(Vec::len).max().unwrap_or(0);
        let sums = (widest * 3 * size_of::<f64>()).next_multiple_of(ALIGNED);
        let beside = Kernels::dots_scratch(self.how.dtype, &vec![Pair { mine: output, theirs: output }; widest]);
        let scratch = own.take(sums + beside)?;
        for level in &levels {
            let pair = |(a, b): &(usize, usize)| Ok(Pair { mine: self.of(*a)?, theirs: self.of(*b)? });
            let pairs = level.iter().map(pair).collect::<Result<Vec<_>>>()?;
            let (of_sums, of_rest) = (scratch.span().part(0..sums)?, scratch.span().part(sums..sums + beside)?);
            kernels.dots(stream, self.how.dtype, &pairs, true, of_rest, of_sums)?;
            kernels.adasum(stream, self.how.dtype, &pairs, true, of_sums)?;
        }
        scale(kernels, stream, (self.how.dtype, self.how.postscale), output, self.of(0)?)?;
        Ok([self.room, scratch])
    }
}

/// Multiplies, from one place to another.
fn scale(
    kernels: &Kernels,
    stream: &Stream,
    (dtype, factor): (DType, f64),
    to: Span<'_>,
    from: Span<'_>,
) -> Result<()> {
    if factor == 1.0 {
        return kernels.gather(stream, &[(to, from)]);
    }
    let how = Reduction { postscale: factor, ..Reduction::new(dtype, ReduceOp::Sum) };
    kernels.combine(stream, &how, &[to], &[from], &[Piece { from: 0, to: 0, count: to.len() / dtype.size() }])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_member_comes_into_the_first_once() {
        for members in 1..=16 {
            let mut left: Vec<usize> = (0..members).collect();
            for (into, from) in levels(members).into_iter().flatten() {
                assert!(left.contains(&into) && left.contains(&from) && into != from, "{members}");
                left.retain(|member| *member != from);
            }
            assert_eq!(left, [0], "{members}");
        }
    }

    #[test]
    fn the_tree_is_that_of_the_host() {
        assert_eq!(levels(4), [vec![(0, 1), (2, 3)], vec![(0, 2)]]);
        assert_eq!(levels(3), [vec![(0, 1)], vec![(0, 2)]]);
        assert_eq!(levels(5), [vec![(0, 1)], vec![(0, 2), (3, 4)], vec![(0, 3)]]);
        assert!(levels(1).is_empty());
    }
}
