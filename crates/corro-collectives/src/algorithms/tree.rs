//! Up and down a binomial tree.
//!
//! | collective | steps | bytes the root sends or receives |
//! | --- | --- | --- |
//! | reduce, broadcast | log2 n | the data, log2 n times |
//! | allreduce (reduce, then broadcast) | 2 log2 n | the same both ways |
//!
//! Best for short data that starts or ends at one rank. Works for any number of ranks.

use std::ops::Range;

use super::planner::Planner;
use crate::schedule::{Action, Builder};
use crate::subset::Subset;

pub(crate) const PLANNER: Planner =
    Planner { allreduce: Some(allreduce), broadcast: Some(broadcast), ..Planner::NOTHING };

/// From `root` to everyone.
pub(crate) fn broadcast(b: &mut Builder, s: &Subset, root: usize, range: Range<usize>) {
    let n = s.size();
    let place = (s.me() + n - root) % n;
    let at = |place: usize| s.member((place + root) % n);
    // A place's parent is the place without its lowest bit; its children add a bit below that one.
    let lowest = if place == 0 { n.next_power_of_two() } else { place & place.wrapping_neg() };
    if place != 0 {
        b.receive(at(place - lowest), range.clone(), Action::Store, false);
    }
    let mut bit = lowest / 2;
    while bit > 0 {
        if place + bit < n {
            b.send(at(place + bit), range.clone());
        }
        bit /= 2;
    }
}

/// From everyone to position 0, and back.
pub(crate) fn allreduce(b: &mut Builder, s: &Subset, chunks: &[Range<usize>]) {
    let n = s.size();
    // All of it goes each way.
    let range = chunks[0].start..chunks[n - 1].end;
    let mut bit = 1;
    while bit < n {
        if s.me() & bit != 0 {
            b.send(s.member(s.me() - bit), range.clone());
            break;
        }
        if s.me() + bit < n {
            let last = s.me() == 0 && bit * 2 >= n;
            b.receive(s.member(s.me() + bit), range.clone(), Action::Reduce, last);
        }
        bit *= 2;
    }
    broadcast(b, s, 0, range);
}
