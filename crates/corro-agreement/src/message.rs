//! What ranks say to each other to agree.
//!
//! Members of a process set form a tree (see [`crate::tree`]). News goes up it to the root, which coordinates; the root's
//! [`Decision`]s come down it, to every member, in one order. That order is the log that all members follow alike.

use std::time::Duration;

use corro_core::{Departure, Error, Rank};
use serde::{Deserialize, Serialize};

use crate::deadlock::Standing;
use crate::matching::Agreed;
use crate::refine::Seen;
use crate::request::Request;

/// Longest message that is believed: a few hundred thousand tensors with long names.
pub const MESSAGE_CAP: usize = 64 << 20;

/// A cached tensor's number. Numbers are never used again, so one that was forgotten is never taken for another.
pub type Slot = u64;

/// From a member to its parent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// These members have submitted these tensors; in full.
    Announce(Vec<Announcement>),
    /// Every member at or below the sender has submitted these tensors.
    Bits {
        /// Stale ones are ignored: their senders say it again.
        era: u32,
        /// Which.
        slots: Vec<SlotRange>,
    },
    /// Somebody has waited long for these, said by number: all are to say them in full, so that the root sees who has not.
    Overdue(Vec<SlotRange>),
    /// This member has run out of data, and all it had submitted has run.
    Join(Rank),
    /// This member can't follow the plan any more.
    Leave {
        /// Which plan.
        era: u32,
        /// Who.
        rank: Rank,
        /// Why, to be read after "left the plan: ".
        why: String,
        /// Whether it waited in vain, so that the same plan would fail again.
        futile: bool,
    },
    /// Every member at or below the sender has stopped following the plan.
    Halted {
        /// Which plan.
        era: u32,
        /// How many of its entries the slowest has begun.
        fewest: u64,
        /// And the fastest.
        most: u64,
        /// Whether some member has part of the next entry's tensors, and not all.
        torn: bool,
    },
    /// What every member at or below the sender has seen of the plan, so that it can be refined.
    Seen {
        /// Which plan.
        era: u32,
        /// How often it was refined before.
        round: u32,
        /// What.
        seen: Seen,
    },
    /// What this member is doing, since somebody waits for it.
    Doing {
        /// Who.
        rank: Rank,
        /// In words.
        doing: String,
        /// Whether its program waits for others.
        waits: bool,
    },
    /// This member leaves, and so ends the job for all.
    Shutdown(Departure),
    /// Something has ended the job, as this member sees it. It may be wrong about whose fault that is.
    Failed(Rank, Error),
    /// A member that was the sender's neighbour is gone, for certain.
    Lost(Error),
    /// Whether every member at or below the sender is blocked. For the parent alone.
    Blocked {
        /// Since which inquiry.
        round: u64,
        /// Or no longer.
        blocked: bool,
    },
    /// How this member stands, since it was asked.
    Stands {
        /// In which inquiry.
        round: u64,
        /// Who.
        rank: Rank,
        /// `None`: it is not blocked.
        standing: Option<Box<Standing>>,
    },
    /// Somebody waits: does the parent still answer? For the parent alone.
    AreYouThere,
    /// It does. For the parent alone.
    Here,
    /// Everyone at or below the sender knows that the job is over; nothing more will come.
    Bye,
}

/// A tensor that a member has submitted, in full.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Announcement {
    /// Who.
    pub rank: Rank,
    /// What.
    pub request: Request,
    /// How long ago, when it was said.
    pub waited: Duration,
}

/// Consecutive slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SlotRange {
    /// The first.
    pub first: Slot,
    /// How many.
    pub count: u64,
}

/// From a member to its children: the next decisions of the log.
pub type Down = Vec<Decision>;

/// One entry of the log (but for the last two). Every member sees the same ones in the same order.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Decision {
    /// Run these, in this order; fusion cuts them into batches, on every member alike.
    Run(Vec<Item>),
    /// These tensors fail, with this error; nothing else is affected.
    Fail {
        /// The tensors' names.
        names: Vec<String>,
        /// Why.
        error: Error,
    },
    /// Everyone has joined.
    AllJoined {
        /// Who came last.
        last: Rank,
    },
    /// These slots are not to be used any more.
    Forget(Vec<SlotRange>),
    /// From here on members follow this plan, over and over, without a word.
    Plan {
        /// The era that begins with it.
        era: u32,
        /// Entries, each to be run as one.
        batches: Vec<Vec<Slot>>,
    },
    /// Begin no further entry of the plan, and say how many you have begun.
    Halt {
        /// Which plan.
        era: u32,
        /// Who wanted it.
        rank: Rank,
        /// Why.
        why: String,
    },
    /// The plan is over.
    Resume {
        /// The era that begins.
        era: u32,
        /// How many entries all members have begun.
        begun: u64,
        /// Whether some had begun one more, which they must withdraw from.
        withdraw: bool,
    },
    /// The plan is not left after all: go on, and from an entry on in fewer entries.
    Refine {
        /// Which plan.
        era: u32,
        /// How many entries are begun before, in all.
        at: u64,
        /// Entries, each to be run as one: the same tensors.
        batches: Vec<Vec<Slot>>,
    },
    /// From the `base`th unnamed tensor of a kind on, numbers come round after `length` of them.
    Fold {
        /// Of which kind.
        stream: String,
        /// From which on: far enough ahead.
        base: u64,
        /// How many numbers.
        length: u64,
    },
    /// Tell what you are doing.
    Ask(Vec<Rank>),
    /// Tell how you stand: all seem to wait for each other.
    AskStanding {
        /// Which inquiry this is.
        round: u64,
    },
    /// How much may run as one, from here on.
    Tune {
        /// Bytes.
        fusion_threshold: usize,
        /// And how collectives are run.
        knobs: Knobs,
    },
    /// The job is over, since this rank has left.
    Shutdown(Departure),
    /// The job is over: this went wrong first.
    Failed(Error),
    /// Not of the log, from a parent to its children alone. Somebody waits: do they still answer?
    AreYouThere,
    /// It does.
    Here,
}

impl Decision {
    /// Whether tensors are done with by it, or may be from here on.
    pub fn is_on_tensors(&self) -> bool {
        matches!(
            self,
            Self::Run(_) | Self::Fail { .. } | Self::AllJoined { .. } | Self::Plan { .. } | Self::Resume { .. }
        )
    }
}

/// The knobs of collectives that can be tuned, see `corro_collectives::Tuning`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Knobs {
    /// Bytes of a message's segment.
    pub segment: usize,
    /// The power of two by which crossover sizes are multiplied.
    pub crossover: i32,
    /// Whether also those of reductions.
    pub reductions: bool,
}

/// A tensor to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Item {
    /// One all members know.
    Known(Slot),
    /// One that is new or has changed; to be remembered if it has a slot.
    New(Agreed, Option<Slot>),
}

/// Puts slots in order and writes runs of consecutive ones as one range.
pub fn ranges(mut slots: Vec<Slot>) -> Vec<SlotRange> {
    slots.sort_unstable();
    let mut ranges: Vec<SlotRange> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some(last) if slot - last.first == last.count => last.count += 1,
            Some(last) if slot - last.first < last.count => {}
            _ => ranges.push(SlotRange { first: slot, count: 1 }),
        }
    }
    ranges
}

/// The slots of a range, of which a peer might claim any number: at most `limit` of them.
pub fn slots(ranges: &[SlotRange], limit: usize) -> impl Iterator<Item = Slot> {
    ranges.iter().flat_map(|r| r.first..r.first.saturating_add(r.count)).take(limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_slots_are_one_range() {
        let made = ranges(vec![7, 3, 4, 5, 9, 8, 4]);
        assert_eq!(made, [SlotRange { first: 3, count: 3 }, SlotRange { first: 7, count: 3 }]);
        assert_eq!(slots(&made, 100).collect::<Vec<_>>(), [3, 4, 5, 7, 8, 9]);
        let absurd = [SlotRange { first: u64::MAX - 1, count: u64::MAX }];
        assert!(slots(&absurd, 100).count() <= 100);
    }
}
