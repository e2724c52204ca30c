//! Recursive halving and doubling: partners at distance 1, 2, 4, ... exchange ever smaller, then ever larger, parts.
//!
//! | collective | steps | bytes each rank sends |
//! | --- | --- | --- |
//! | allreduce, long | 2 log2 n | 2 (n - 1) / n of the data |
//! | allreduce, short ([`allreduce_short`]) | log2 n | the data, log2 n times |
//! | reducescatter, allgather | log2 n | (n - 1) / n of the data |
//!
//! Best for middling data. If n is no power of two, the first ranks pair up: of each pair the odd one hands its data to
//! the even one before and gets the result after, which costs two more steps with all the data. What remains is a power
//! of two of *seats*.

use std::ops::Range;

use super::planner::Planner;
use crate::schedule::{Action, Builder};
use crate::subset::Subset;

pub(crate) const PLANNER: Planner = Planner {
    allreduce: Some(allreduce),
    reducescatter: Some(reducescatter),
    allgather: Some(allgather),
    ..Planner::NOTHING
};

/// Up to this many bytes, everything is exchanged at once instead of parts.
pub(crate) const SHORT: usize = 16 << 10;

/// How ranks are folded onto a power of two of seats.
struct Seats {
    /// How many seats: the largest power of two that is not above n.
    count: usize,
    /// How many pairs share a seat.
    pairs: usize,
}

/// Where a rank stands in the folding.
enum Role {
    /// Sits on this seat, perhaps for a partner as well.
    Seated { seat: usize, partner: Option<usize> },
    /// Is represented by this position.
    Behind(usize),
}

impl Seats {
    fn new(n: usize) -> Self {
        let count = 1 << n.ilog2();
        Self { count, pairs: n - count }
    }

    fn role(&self, position: usize) -> Role {
        if position >= 2 * self.pairs {
            Role::Seated { seat: position - self.pairs, partner: None }
        } else if position.is_multiple_of(2) {
            Role::Seated { seat: position / 2, partner: Some(position + 1) }
        } else {
            Role::Behind(position - 1)
        }
    }

    /// The position of whoever sits there.
    fn position(&self, seat: usize) -> usize {
        if seat < self.pairs { 2 * seat } else { seat + self.pairs }
    }

    /// From the positions' chunks (consecutive, in order) the bytes of seats `from..to`.
    fn span(&self, chunks: &[Range<usize>], from: usize, to: usize) -> Range<usize> {
        let first = self.position(from);
        let end = if to == self.count { chunks.len() } else { self.position(to) };
        chunks[first].start..chunks[end - 1].end
    }

    fn rounds(&self) -> u32 {
        self.count.ilog2()
    }
}

fn whole(chunks: &[Range<usize>]) -> Range<usize> {
    chunks[0].start..chunks[chunks.len() - 1].end
}

/// Reduces all chunks and leaves every one of them everywhere.
pub(crate) fn allreduce(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let all = chunks[0].start..chunks[s.size() - 1].end;
    if all.len() <= SHORT { allreduce_short(b, s, &all) } else { allreduce_long(b, s, chunks) }
}

/// Reduces all chunks and leaves every one of them everywhere.
pub(crate) fn allreduce_long(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let seats = Seats::new(s.size());
    match seats.role(s.me()) {
        Role::Behind(seated) => {
            b.send(s.member(seated), whole(chunks));
            b.receive(s.member(seated), whole(chunks), Action::Store, false);
        }
        Role::Seated { seat, partner } => {
            if let Some(partner) = partner {
                b.receive(s.member(partner), whole(chunks), Action::Reduce, false);
            }
            halve(b, s, &seats, seat, chunks);
            double(b, s, &seats, seat, chunks);
            if let Some(partner) = partner {
                b.send(s.member(partner), whole(chunks));
            }
        }
    }
}

/// As [`allreduce`] with half the steps: partners exchange everything each time, and both compute the same.
pub(crate) fn allreduce_short(b: &mut Builder, s: &Subset, range: &Range<usize>) {
    let seats = Seats::new(s.size());
    match seats.role(s.me()) {
        Role::Behind(seated) => {
            b.send(s.member(seated), range.clone());
            b.receive(s.member(seated), range.clone(), Action::Store, false);
        }
        Role::Seated { seat, partner } => {
            if let Some(partner) = partner {
                b.receive(s.member(partner), range.clone(), Action::Reduce, false);
            }
            for round in 0..seats.rounds() {
                let other = seat ^ (1 << round);
                let to = s.member(seats.position(other));
                b.send(to, range.clone());
                // The lower seat's value always comes first, so that both get the same bits.
                let action = if other < seat { Action::ReduceUnder } else { Action::Reduce };
                b.receive(to, range.clone(), action, round + 1 == seats.rounds());
            }
            if let Some(partner) = partner {
                b.send(s.member(partner), range.clone());
            }
        }
    }
}

/// Reduces all chunks and leaves chunk p at position p.
pub(crate) fn reducescatter(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let seats = Seats::new(s.size());
    match seats.role(s.me()) {
        Role::Behind(seated) => {
            b.send(s.member(seated), whole(chunks));
            b.receive(s.member(seated), chunks[s.me()].clone(), Action::Store, false);
        }
        Role::Seated { seat, partner } => {
            if let Some(partner) = partner {
                b.receive(s.member(partner), whole(chunks), Action::Reduce, false);
            }
            halve(b, s, &seats, seat, chunks);
            if let Some(partner) = partner {
                b.send(s.member(partner), chunks[partner].clone());
            }
        }
    }
}

/// Position p starts with chunk p; everyone ends with all.
pub(crate) fn allgather(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let seats = Seats::new(s.size());
    match seats.role(s.me()) {
        Role::Behind(seated) => {
            b.send(s.member(seated), chunks[s.me()].clone());
            b.receive(s.member(seated), whole(chunks), Action::Store, false);
        }
        Role::Seated { seat, partner } => {
            if let Some(partner) = partner {
                b.receive(s.member(partner), chunks[partner].clone(), Action::Store, false);
            }
            double(b, s, &seats, seat, chunks);
            if let Some(partner) = partner {
                b.send(s.member(partner), whole(chunks));
            }
        }
    }
}

/// Each round hands half of what is held to the partner and takes the partner's share of the other half.
fn halve(b: &mut Builder, s: &Subset, seats: &Seats, seat: usize, chunks: &[Range<usize>]) {
    let (mut from, mut to) = (0, seats.count);
    while to - from > 1 {
        let middle = from.midpoint(to);
        let upper = seat >= middle;
        let partner = s.member(seats.position(seat ^ (middle - from)));
        let (keep, give) = if upper { ((middle, to), (from, middle)) } else { ((from, middle), (middle, to)) };
        b.send(partner, seats.span(chunks, give.0, give.1));
        b.receive(partner, seats.span(chunks, keep.0, keep.1), Action::Reduce, keep.1 - keep.0 == 1);
        (from, to) = keep;
    }
}

/// Each round doubles what is held, by exchange with a partner that holds the neighbouring part.
fn double(b: &mut Builder, s: &Subset, seats: &Seats, seat: usize, chunks: &[Range<usize>]) {
    for round in 0..seats.rounds() {
        let width = 1 << round;
        let (mine, theirs) = (seat & !(width - 1), (seat ^ width) & !(width - 1));
        let partner = s.member(seats.position(seat ^ width));
        b.send(partner, seats.span(chunks, mine, mine + width));
        b.receive(partner, seats.span(chunks, theirs, theirs + width), Action::Store, false);
    }
}
