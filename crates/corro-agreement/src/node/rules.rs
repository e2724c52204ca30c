//! How a node is to behave, and what it says is to be done.

use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};

use crate::coordinator::{StallLimits, StallReport};
use crate::fusion;
use crate::matching::Agreed;
use crate::message::Knobs;

/// How a node behaves.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// When waiting is worth a word, or the end.
    pub stalls: StallLimits,
    /// How many tensors are remembered by number; 0: none.
    pub cache_capacity: usize,
    /// Whether plans are made.
    pub plans: bool,
    /// How plans fuse.
    pub fusion: fusion::Limits,
    /// What it costs to run two entries of a plan and not one: plans are refined so far that no entry waits longer for
    /// what it is merged with. Zero: they stay as they were made.
    pub entry_cost: Duration,
    /// Whether the root says who has asked for what, for a timeline.
    pub ticks: bool,
    /// How long waiting for a rank that makes no progress may go on; zero: for ever.
    pub timeout: Duration,
    /// Whether this node watches over its neighbours. One process set that all ranks are in is enough.
    pub watches: bool,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            stalls: StallLimits { warn: Duration::from_secs(60), shutdown: Duration::from_secs(1800) },
            cache_capacity: 1024,
            plans: true,
            fusion: fusion::Limits { threshold: 128 << 20, only_groups: false },
            entry_cost: Duration::from_micros(30),
            ticks: false,
            timeout: Duration::from_secs(60),
            watches: true,
        }
    }
}

/// How members agree at present.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Gear {
    /// In full.
    #[default]
    Announce,
    /// By numbers.
    Bits,
    /// Without a word.
    Plan,
}

/// What is to be done, in this order.
#[derive(Debug)]
pub enum Action {
    /// Run these; cut into batches by fusion.
    Run(Vec<Arc<Agreed>>),
    /// Fail these.
    Fail(Vec<String>, Error),
    /// Joins return this rank.
    AllJoined(Rank),
    /// A plan begins; [`super::Node::begin`] has its entries.
    Planned,
    /// The plan goes on in fewer entries.
    Refined {
        /// How many there were.
        from: usize,
        /// And are from now on.
        to: usize,
    },
    /// The plan is over.
    PlanLeft {
        /// Whether this member must withdraw from the entry it has begun.
        withdraw: bool,
        /// Whether some member must, so that all need fresh connections.
        renew: bool,
        /// Who wanted it, and why.
        reason: String,
    },
    /// Only at the root, for the timeline: this rank has asked for this tensor, in full.
    Heard(String, Rank),
    /// Say what this member is doing, by [`super::Node::answer`].
    Asked,
    /// This neighbour has not said a word for so long although it was asked: to be told by [`super::Node::lost`].
    Silent(usize, Duration),
    /// Only at the root, to be told to people.
    Stalled(StallReport),
    /// Only at the root: these ranks have made others wait for too long. To be told by [`super::Node::give_up`] to the set of all ranks.
    Overdue(StallReport),
    /// Say how this member stands, by [`super::Node::stands`], in this inquiry.
    AskedStanding(u64),
    /// Only at the root: ranks wait for each other for ever. To be told by [`super::Node::fail`] to the set of all ranks.
    Deadlocked(Error),
    /// How much may run as one from here on, and how collectives run that are not under way.
    Tune(usize, Knobs),
    /// The job is over: fail all that waits and all that comes.
    Over(Error),
}
