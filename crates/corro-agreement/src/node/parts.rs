//! What a node knows, in four parts: what its member has asked for, where it is in a plan, how it may end, and what is to be
//! said and done.

use std::time::Duration;

use corro_core::Error;

use super::names::Names;
use super::refined::Refining;
use super::rules::{Action, Gear, Rules};
use crate::cache::Cache;
use crate::coordinator::Time;
use crate::hash::{HashMap, HashSet};
use crate::liveness::Liveness;
use crate::message::{Decision, Slot, Up};
use crate::plan::Following;
use crate::request::Request;
use crate::tree::Neighbours;

/// How long a member waits for others in a plan, at first and at most, before it asks to leave it.
pub(super) const PATIENCE: Duration = Duration::from_secs(1);
pub(super) const MOST_PATIENCE: Duration = Duration::from_secs(30);

/// How this member has told the others about a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Said {
    InFull,
    ByNumber(Slot),
}

#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) said: Said,
    pub(super) since: Time,
}

/// Whether this member has run out of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Joining {
    #[default]
    No,
    /// It has, and says so once all it has submitted has run: nobody may decide without it on what it has said.
    Wanted,
    Said,
}

/// Who has stopped following the plan.
#[derive(Clone, Copy, Debug)]
pub(super) struct Halting {
    pub(super) left: usize,
    pub(super) fewest: u64,
    pub(super) most: u64,
    pub(super) torn: bool,
}

/// What this member has asked for, and what is known of such requests.
#[derive(Debug, Default)]
pub(super) struct Requests {
    /// Requests found in the cache, and not found.
    pub(super) lookups: (u64, u64),
    pub(super) era: u32,
    pub(super) gear: Gear,
    pub(super) cache: Cache,
    /// What this member has submitted and not been told to run; in plans only what they don't have.
    pub(super) waiting: HashMap<String, Waiting>,
    /// How many of this member and its children have each slot.
    pub(super) counts: HashMap<Slot, usize>,
    /// Slots of which the root was told that somebody has waited long for them.
    pub(super) overdue: HashSet<Slot>,
    pub(super) unnamed: Names,
    pub(super) joining: Joining,
    /// Submitted while this member stands aside; told once all have joined.
    pub(super) aside: Vec<Request>,
    /// How many decisions on tensors were heard.
    pub(super) decisions: u64,
}

/// Where this member is in a plan.
#[derive(Debug)]
pub(super) struct InPlan {
    pub(super) following: Option<Following>,
    pub(super) halting: Option<Halting>,
    pub(super) refining: Refining,
    /// How often the program has learned of a result.
    pub(super) looks: u64,
    pub(super) left_because: String,
    pub(super) asked_to_leave: bool,
    pub(super) patience: Duration,
    /// When this member last got on with the plan, or began to wait.
    pub(super) moved: Time,
    /// Whether an entry of the plan has begun and not finished.
    pub(super) in_entry: bool,
}

impl Default for InPlan {
    fn default() -> Self {
        Self {
            following: None,
            halting: None,
            refining: Refining::default(),
            looks: 0,
            left_because: String::new(),
            asked_to_leave: false,
            patience: PATIENCE,
            moved: Time::ZERO,
            in_entry: false,
        }
    }
}

/// Whether the job is over, who might be to blame, and who has said goodbye.
#[derive(Debug)]
pub(super) struct Ending {
    pub(super) over: Option<Error>,
    /// What failed as this member sees it, and until when it waits for the root's word.
    pub(super) suspicion: Option<(Error, Time)>,
    pub(super) liveness: Liveness,
    pub(super) byes: usize,
    pub(super) said_bye: bool,
}

impl Ending {
    pub(super) fn new(neighbours: &Neighbours, rules: &Rules) -> Self {
        let watched = neighbours.parent.iter().chain(&neighbours.children).copied().filter(|_| rules.watches);
        let liveness = Liveness::new(rules.timeout, watched);
        Self { over: None, suspicion: None, liveness, byes: 0, said_bye: false }
    }
}

/// What is to be said to the neighbours, and done.
#[derive(Debug, Default)]
pub(super) struct Outbox {
    /// Numbers that are complete below this member.
    pub(super) bits: Vec<Slot>,
    pub(super) up: Vec<Up>,
    pub(super) down: Vec<Decision>,
    pub(super) actions: Vec<Action>,
}
