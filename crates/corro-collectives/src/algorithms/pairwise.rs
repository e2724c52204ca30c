//! Everyone with everyone: alltoall, and the barrier.
//!
//! | collective | steps | bytes each rank sends |
//! | --- | --- | --- |
//! | alltoall | n - 1, all at once | what it has for others |
//! | barrier | log2 n | one byte each |

use std::ops::Range;

use super::planner::Planner;
use crate::schedule::{Action, Builder};
use crate::subset::Subset;

pub(crate) const PLANNER: Planner = Planner { alltoall: Some(alltoall), barrier: Some(barrier), ..Planner::NOTHING };

/// `out[p]` of the input goes to position p, whose part comes into `into[p]` of the main buffer.
///
/// In step i a rank sends to the one i places on and receives from the one i places back, so that nobody is everybody's
/// target at the same time.
pub(crate) fn alltoall(b: &mut Builder, s: &Subset, out: &[Range<usize>], into: &[Range<usize>]) {
    let n = s.size();
    for step in 1..n {
        let (to, from) = ((s.me() + step) % n, (s.me() + n - step) % n);
        b.send_input(s.member(to), out[to].clone());
        b.receive(s.member(from), into[from].clone(), Action::Store, false);
    }
}

/// Dissemination: after round k everyone has heard, directly or not, from the 2^(k+1) - 1 ranks before it. Uses one byte
/// of the main buffer, through which each round waits for the one before.
pub(crate) fn barrier(b: &mut Builder, s: &Subset) {
    let n = s.size();
    let mut distance = 1;
    while distance < n {
        b.send(s.member((s.me() + distance) % n), 0..1);
        b.receive(s.member((s.me() + n - distance) % n), 0..1, Action::Store, false);
        distance *= 2;
    }
}
