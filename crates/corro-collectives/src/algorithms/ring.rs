//! Around the ring: each rank talks to its two neighbours only, all links carry the same load.
//!
//! | collective | steps | bytes each rank sends |
//! | --- | --- | --- |
//! | allreduce | 2 (n - 1) | 2 (n - 1) / n of the data |
//! | reducescatter, allgather | n - 1 | (n - 1) / n of the data |
//! | broadcast | n - 1, pipelined in segments | the data |
//!
//! Best for long data: the bandwidth term is the least there is. The number of steps grows with the ranks.

use std::ops::Range;

use super::planner::Planner;
use crate::schedule::{Action, Builder};
use crate::subset::Subset;

pub(crate) const PLANNER: Planner = Planner {
    allreduce: Some(allreduce),
    reducescatter: Some(reducescatter),
    allgather: Some(allgather),
    broadcast: Some(broadcast),
    ..Planner::NOTHING
};

/// Reduces all chunks and leaves every one of them everywhere.
pub(crate) fn allreduce(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let n = s.size();
    // After this, position p holds the finished chunk p + 1.
    for step in 0..n - 1 {
        let (out, into) = ((s.me() + n - step) % n, (s.me() + 2 * n - step - 1) % n);
        b.send(s.next(), chunks[out].clone());
        b.receive(s.previous(), chunks[into].clone(), Action::Reduce, step == n - 2);
    }
    for step in 0..n - 1 {
        let (out, into) = ((s.me() + 1 + n - step) % n, (s.me() + n - step) % n);
        b.send(s.next(), chunks[out].clone());
        b.receive(s.previous(), chunks[into].clone(), Action::Store, false);
    }
}

/// Reduces all chunks and leaves chunk p at position p.
pub(crate) fn reducescatter(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let n = s.size();
    for step in 0..n - 1 {
        let (out, into) = ((s.me() + 2 * n - step - 1) % n, (s.me() + 2 * n - step - 2) % n);
        b.send(s.next(), chunks[out].clone());
        b.receive(s.previous(), chunks[into].clone(), Action::Reduce, step == n - 2);
    }
}

/// Position p starts with chunk p; everyone ends with all.
pub(crate) fn allgather(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let n = s.size();
    for step in 0..n - 1 {
        let (out, into) = ((s.me() + n - step) % n, (s.me() + 2 * n - step - 1) % n);
        b.send(s.next(), chunks[out].clone());
        b.receive(s.previous(), chunks[into].clone(), Action::Store, false);
    }
}

/// From `root` along the chain; segments make it a pipeline.
pub(crate) fn broadcast(b: &mut Builder, s: &Subset, root: usize, range: Range<usize>) {
    if s.me() != root {
        b.receive(s.previous(), range.clone(), Action::Store, false);
    }
    if (s.me() + 1) % s.size() != root {
        b.send(s.next(), range);
    }
}
