//! Watching over the neighbours: who is gone, who does not answer, and what becomes of the job then.

use std::time::Duration;

use corro_core::Error;

use crate::coordinator::Time;
use crate::liveness::Findings;
use crate::message::{Decision, Up};

use super::rules::Action;
use super::state::Node;

/// How long a member that saw something fail waits for the root's word on what failed first.
pub(super) const VERDICT_TIME: Duration = Duration::from_millis(500);

impl Node {
    /// Since when something here has waited without anything getting on; `None`: nothing waits. To be said now and then:
    /// a member whose program waits in vain looks whether its neighbours are still there.
    pub fn waits(&mut self, since: Option<Time>) {
        self.ending.liveness.waits(since);
    }

    /// A neighbour has said something. (What, is told by [`Node::hear_child`] and [`Node::hear_parent`].)
    pub fn heard_from(&mut self, now: Time, member: usize) {
        self.ending.liveness.heard(now, member);
    }

    /// Something went wrong here that ends the job for all.
    pub fn fail(&mut self, now: Time, error: Error) {
        self.now = now;
        if self.ending.over.is_some() || self.ending.suspicion.is_some() {
            return;
        }
        self.suspect(error.clone());
        self.tell_root(Up::Failed(self.rank, error));
    }

    /// A rank is to count as lost, for certain, though its engine answers: its program has made others wait for too long.
    pub fn give_up(&mut self, now: Time, error: Error) {
        self.now = now;
        if self.ending.over.is_none() {
            self.tell_root(Up::Lost(error));
        }
    }

    /// A neighbour is gone: its connection has broken, or it does not answer. (Whoever has said goodbye may go: that is no
    /// loss.)
    pub fn lost(&mut self, now: Time, member: usize, error: Error) {
        self.now = now;
        if self.neighbours.parent == Some(member) {
            return self.decide(Decision::Failed(error));
        }
        // It won't say goodbye any more.
        self.count_bye();
        if self.ending.over.is_none() {
            // Certain, unlike what was suspected before.
            self.suspect(error.clone());
            self.tell_root(Up::Lost(error));
        }
    }

    /// From now on the root has some time to say what failed first.
    fn suspect(&mut self, error: Error) {
        let Some(parent) = self.neighbours.parent else { return };
        let until = self.ending.suspicion.as_ref().map_or(self.now + VERDICT_TIME, |(_, until)| *until);
        self.ending.suspicion = Some((error, until));
        // Its word comes through the parent. If that one does not answer, no word will come, and it is the one to blame:
        // others may have left because of it.
        if self.ending.liveness.ask(self.now, parent) {
            self.outbox.up.push(Up::AreYouThere);
        }
    }

    /// When this member goes by what it has seen itself: when the root's time is over, and the parent has answered, or had
    /// the time to.
    pub(super) fn verdict_at(&self) -> Option<Time> {
        let (_, until) = self.ending.suspicion.as_ref()?;
        Some(self.parent_owes_answer().map_or(*until, |(at, _)| at.max(*until)))
    }

    /// Goes by what it has seen itself.
    pub(super) fn give_verdict(&mut self) {
        let Some((error, _)) = self.ending.suspicion.take() else { return };
        match (self.neighbours.parent, self.parent_owes_answer()) {
            (Some(parent), Some((_, silence))) => self.outbox.actions.push(Action::Silent(parent, silence)),
            _ => self.decide(Decision::Failed(error)),
        }
    }

    fn parent_owes_answer(&self) -> Option<(Time, Duration)> {
        self.ending.liveness.owes_answer(self.now, self.neighbours.parent?)
    }

    /// A child that was asked and should have answered long ago, and for how long it has been silent.
    pub(super) fn child_that_owes_answer(&self) -> Option<(usize, Duration)> {
        let late = |child: &usize| self.ending.liveness.owes_answer(self.now, *child).filter(|(at, _)| self.now >= *at);
        self.neighbours.children.iter().find_map(|child| Some((*child, late(child)?.1)))
    }

    /// The parent wants to know whether this member is there: somebody waits.
    pub(super) fn asked_by_parent(&mut self) {
        self.ending.liveness.was_asked(self.now);
        self.outbox.up.push(Up::Here);
    }

    /// The same of a child.
    pub(super) fn asked_by_child(&mut self) {
        self.ending.liveness.was_asked(self.now);
        // One answer is for all children.
        if !self.outbox.down.contains(&Decision::Here) {
            self.outbox.down.push(Decision::Here);
        }
    }

    pub(super) fn look_at_neighbours(&mut self) {
        if self.ending.liveness.next_look().is_none_or(|at| self.now < at) {
            return;
        }
        let Findings { ask, lost } = self.ending.liveness.look(self.now);
        let parent = self.neighbours.parent;
        if ask.iter().any(|member| Some(*member) == parent) {
            self.outbox.up.push(Up::AreYouThere);
        }
        if ask.iter().any(|member| Some(*member) != parent) {
            self.outbox.down.push(Decision::AreYouThere);
        }
        self.outbox.actions.extend(lost.into_iter().map(|(member, time)| Action::Silent(member, time)));
    }
}
