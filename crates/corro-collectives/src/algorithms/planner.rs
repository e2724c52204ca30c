//! What an algorithm offers that writes schedules.

use std::ops::Range;

use crate::collective::Collective;
use crate::schedule::Builder;
use crate::subset::Subset;

/// Plans what happens to chunks, one for each member, which lie one behind the other.
pub(crate) type PlanChunks = fn(&mut Builder, &Subset, &[Range<usize>]);

/// Plans how the bytes of the member at a position reach all.
pub(crate) type PlanBroadcast = fn(&mut Builder, &Subset, usize, Range<usize>);

/// Plans an exchange: what goes out to each position, and where what comes from each goes.
pub(crate) type PlanExchange = fn(&mut Builder, &Subset, &[Range<usize>], &[Range<usize>]);

/// What an algorithm that writes schedules can plan; `None`: not this collective.
#[derive(Clone, Copy)]
pub(crate) struct Planner {
    /// All chunks are reduced, and are then everywhere.
    pub(crate) allreduce: Option<PlanChunks>,
    /// All chunks are reduced, and chunk p is then at position p.
    pub(crate) reducescatter: Option<PlanChunks>,
    /// Chunk p is at position p, and all are then everywhere.
    pub(crate) allgather: Option<PlanChunks>,
    /// The bytes of the member at this position become everyone's.
    pub(crate) broadcast: Option<PlanBroadcast>,
    /// The first list of the input goes out, by position; what comes goes where the second says.
    pub(crate) alltoall: Option<PlanExchange>,
    /// Nobody ends before all have begun. May use the first byte of the main buffer.
    pub(crate) barrier: Option<fn(&mut Builder, &Subset)>,
}

impl Planner {
    /// For those who can't do everything: `..Planner::NOTHING`.
    pub(crate) const NOTHING: Self =
        Self { allreduce: None, reducescatter: None, allgather: None, broadcast: None, alltoall: None, barrier: None };

    pub(crate) const fn plans(&self, collective: Collective) -> bool {
        match collective {
            Collective::Allreduce => self.allreduce.is_some(),
            Collective::Reducescatter => self.reducescatter.is_some(),
            Collective::Allgather => self.allgather.is_some(),
            Collective::Broadcast => self.broadcast.is_some(),
            Collective::Alltoall => self.alltoall.is_some(),
            Collective::Barrier => self.barrier.is_some(),
        }
    }
}
