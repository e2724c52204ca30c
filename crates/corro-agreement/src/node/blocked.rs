//! Finding deadlocks (see [`crate::deadlock`]).

use corro_core::Rank;

use super::rules::Action;
use super::state::Node;
use crate::coordinator::Time;
use crate::deadlock::{Next, Standing};
use crate::message::{Decision, Up};

impl Node {
    /// Whether this member's program is blocked at present: all its threads wait, and nothing of it is on its way. To be
    /// said now and then by whoever runs this node.
    pub fn blocked(&mut self, now: Time, blocked: bool) {
        self.now = now;
        self.watch.blocked(blocked);
    }

    /// How this member stands, since it was asked by [`Action::AskedStanding`]; `None`: it is not blocked.
    pub fn stands(&mut self, now: Time, round: u64, standing: Option<Standing>) {
        self.now = now;
        if self.ending.over.is_none() {
            self.tell_root(Up::Stands { round, rank: self.rank, standing: standing.map(Box::new) });
        }
    }

    /// How many decisions on tensors this member has heard.
    pub fn decisions(&self) -> u64 {
        self.requests.decisions
    }

    /// Whether a plan is followed, in which members need not tell each other what they submit.
    pub fn follows_plan(&self) -> bool {
        self.plan.following.is_some()
    }

    /// Says whether this member and all below it are blocked, if that is news. In a plan nothing is said: if ranks wait
    /// there in vain, it is left first.
    pub(super) fn say_whether_blocked(&mut self) {
        if self.plan.following.is_some() || self.ending.over.is_some() {
            return;
        }
        let Some(blocked) = self.watch.news(self.neighbours.children.len()) else { return };
        match &mut self.root {
            Some(root) => {
                root.inquiry.all_blocked(blocked);
                self.inquire();
            }
            None => self.outbox.up.push(Up::Blocked { round: self.watch.round(), blocked }),
        }
    }

    /// At the root: asks how all stand, if it is time to.
    pub(super) fn inquire(&mut self) {
        let now = self.now;
        let next = self.root.as_mut().filter(|_| self.plan.following.is_none()).and_then(|root| root.inquiry.look(now));
        self.pursue(next);
    }

    /// At the root: a member answers.
    pub(super) fn heard_standing(&mut self, round: u64, rank: Rank, standing: Option<Standing>) {
        let now = self.now;
        let Some(root) = &mut self.root else { return };
        let next = root.inquiry.answered(now, round, rank, standing, root.members());
        self.pursue(next);
    }

    fn pursue(&mut self, next: Option<Next>) {
        match next {
            Some(Next::Ask(round)) => self.decide(Decision::AskStanding { round }),
            Some(Next::Tell(error)) => self.outbox.actions.push(Action::Deadlocked(error)),
            None => {}
        }
    }

    pub(super) fn asked_standing(&mut self, round: u64) {
        self.watch.asked(round);
        self.outbox.actions.push(Action::AskedStanding(round));
    }
}
