//! What the root knows beside what every member knows.

use std::sync::Arc;
use std::time::Duration;

use corro_core::{Departure, Rank};

use super::refined::Refined;
use crate::blame::Blame;
use crate::coordinator::{Coordinator, StallLimits, StallReport, Time, Warned};
use crate::deadlock::Inquiry;
use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::message::{Announcement, Slot};
use crate::plan::Learner;

/// How long missing ranks may take to tell what they are doing, and members to leave a plan when the job is to end.
pub(super) const ANSWER_TIME: Duration = Duration::from_secs(1);

/// What the root keeps beside what every member keeps.
#[derive(Debug)]
pub(super) struct Root {
    pub(super) coordinator: Coordinator,
    pub(super) learner: Learner,
    pub(super) limits: StallLimits,
    pub(super) next_slot: Slot,
    /// When each slot last ran, counted in lists.
    pub(super) used: HashMap<Slot, u64>,
    pub(super) lists: u64,
    /// Complete by numbers, and not yet decided on.
    pub(super) complete: Vec<Slot>,
    /// Decided on, and not yet told.
    pub(super) to_run: Vec<Arc<Agreed>>,
    /// What came while a plan is being left.
    pub(super) held: Vec<News>,
    pub(super) leaving: Option<Leaving>,
    pub(super) refined: Refined,
    pub(super) asking: Option<Asking>,
    /// Somebody was waited for too long: the job is about to end.
    pub(super) given_up: bool,
    pub(super) inquiry: Inquiry,
    pub(super) blame: Blame,
}

/// What the root decides on.
#[derive(Debug)]
pub(super) enum News {
    Announced(Announcement),
    Joined(Rank),
    Shutdown(Departure),
}

/// Members were told to leave the plan.
#[derive(Debug)]
pub(super) struct Leaving {
    /// Whether they had waited in vain.
    pub(super) futile: bool,
    /// Since when somebody waits.
    pub(super) since: Time,
    /// When and how often a word was said about it.
    pub(super) warned: Option<Warned>,
    /// Nobody wants to leave: it is to go on in these entries.
    pub(super) refine: Option<Vec<Vec<Slot>>>,
}

/// A stall that ranks were asked about.
#[derive(Debug)]
pub(super) struct Asking {
    pub(super) report: StallReport,
    /// They may answer until then.
    pub(super) until: Time,
    /// Whether all members were asked, since it is not known who is missing: whoever does not answer.
    pub(super) roll_call: bool,
}

impl Root {
    pub(super) fn new(members: Vec<Rank>, limits: StallLimits) -> Self {
        Self {
            coordinator: Coordinator::new(members, limits),
            learner: Learner::default(),
            limits,
            next_slot: 0,
            used: HashMap::default(),
            lists: 0,
            complete: Vec::new(),
            to_run: Vec::new(),
            held: Vec::new(),
            leaving: None,
            refined: Refined::default(),
            asking: None,
            given_up: false,
            inquiry: Inquiry::default(),
            blame: Blame::default(),
        }
    }

    pub(super) fn members(&self) -> usize {
        self.coordinator.members().len()
    }

    pub(super) fn memory(&self) -> usize {
        let members = self.coordinator.members().len();
        let pending = self.coordinator.waiting() * members * size_of::<Option<Arc<Agreed>>>();
        pending + members * (size_of::<Rank>() + 1) + self.used.len() * 16
    }

    pub(super) fn has_news(&self) -> bool {
        !(self.complete.is_empty() && self.to_run.is_empty())
    }

    /// Nothing is decided any more.
    pub(super) fn end(&mut self) {
        self.complete.clear();
        self.to_run.clear();
        self.held.clear();
    }

    pub(super) fn next_tick(&self) -> Option<Time> {
        // One stall at a time.
        let look = match &self.asking {
            Some(asking) => Some(asking.until),
            None if self.given_up => None,
            None => [self.coordinator.next_look(), self.next_roll_call()].into_iter().flatten().min(),
        };
        [look, self.end_at(), self.blame.due()].into_iter().flatten().min()
    }

    pub(super) fn next_roll_call(&self) -> Option<Time> {
        self.leaving.as_ref().and_then(|l| self.limits.next_look(l.since, l.warned))
    }

    /// When the job ends although the plan was not left, since somebody wants the end and somebody else does not answer.
    pub(super) fn end_at(&self) -> Option<Time> {
        let ends = self.held.iter().any(|news| matches!(news, News::Shutdown(_)));
        self.leaving.as_ref().filter(|_| ends).map(|l| l.since + ANSWER_TIME)
    }
}
