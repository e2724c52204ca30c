//! Collectives on their way: what a member is told to run, begins, completes or withdraws from.

use std::sync::Arc;

use corro_core::Error;

use super::lane::{Job, Nth, Task};
use super::world::{Checked, Event, Set, SetMember, World};
use crate::matching::Agreed;

impl World<'_> {
    /// A member is told to run these: takes its tickets for them.
    pub(super) fn take(&mut self, place: SetMember, agreed: &[Arc<Agreed>], planned: bool) -> Checked<Job> {
        let member = self.member(place);
        let job = Job::new(agreed, &member.tickets, planned);
        for (name, _) in &job.tensors {
            match member.tickets.get_mut(name) {
                Some(ticket) if ticket.taken && !member.joined => {
                    return Err(format!("rank {} is to run {name} twice", member.rank));
                }
                Some(ticket) => ticket.taken = true,
                None if member.joined && !planned => {}
                None => return Err(format!("rank {} is to run {name}, which it has not submitted", member.rank)),
            }
        }
        Ok(job)
    }

    /// Begins the next collective if there is one and the last is done.
    pub(super) fn advance(&mut self, place: SetMember) -> Checked {
        let now = self.now;
        let member = self.member(place);
        if member.lane.running.is_some() {
            return Ok(());
        }
        let job = match member.lane.tasks.pop_front() {
            Some(Task::Run(job)) => job,
            Some(Task::Renew) => {
                member.lane.next = (member.lane.next.0 + 1, 0);
                return self.advance(place);
            }
            None => match member.node.begin(now) {
                Some(agreed) => self.take(place, &agreed, true)?,
                None => return Ok(()),
            },
        };
        let (set, me) = place;
        let rank = self.member(place).rank;
        self.note(|| format!("rank {rank} in set {set} begins {job:?}"));
        let Set { members, nodes, history, .. } = &mut self.sets[set];
        let lane = &mut nodes[me].lane;
        let at = lane.next;
        lane.next.1 += 1;
        let complete = history.begin(members, me, at, &job)?;
        lane.running = Some(job);
        for who in complete {
            let time = self.random.time(self.scenario.lane);
            self.after(time, Event::Done((set, who), at));
        }
        Ok(())
    }

    pub(super) fn complete(&mut self, place: SetMember, at: Nth) -> Checked {
        let now = self.now;
        let member = self.member(place);
        if member.lane.next != (at.0, at.1 + 1) {
            return Err(format!("rank {} completes collective {at:?} and is not in it", member.rank));
        }
        // Given up: the job is over.
        let Some(job) = member.lane.running.take() else { return Ok(()) };
        if job.planned {
            member.node.finished(now);
        }
        self.sets[place.0].history.complete(at);
        for (name, tag) in job.tensors {
            if tag.is_some() {
                self.resolve(place, &name, None)?;
            }
        }
        self.advance(place)?;
        self.speak(place)
    }

    pub(super) fn withdraw(&mut self, place: SetMember) -> Checked {
        let now = self.now;
        let Set { nodes, history, .. } = &mut self.sets[place.0];
        let size = nodes.len();
        let member = &mut nodes[place.1];
        let Some(job) = member.lane.running.take().filter(|job| job.planned) else {
            return Err(format!("rank {} is to withdraw and in no entry of the plan", member.rank));
        };
        let (generation, next) = member.lane.next;
        history.withdraw(size, (generation, next - 1))?;
        for (name, _) in job.tensors {
            if let Some(ticket) = member.tickets.get_mut(&name) {
                ticket.taken = false;
            }
        }
        member.node.finished(now);
        self.report.withdrawals += 1;
        Ok(())
    }

    /// A tensor is done with, on one member: the others must come to the same.
    pub(super) fn resolve(&mut self, place: SetMember, name: &str, error: Option<&Error>) -> Checked {
        let rank = self.member(place).rank;
        let Some(ticket) = self.member(place).tickets.remove(name) else {
            // It has joined, or takes part in a set without having asked for this.
            return error.map_or_else(|| Err(format!("rank {rank} completes {name} twice")), |_| Ok(()));
        };
        if ticket.taken == error.is_some() {
            return Err(format!("rank {rank}: {name} fails although it was to run: {error:?}"));
        }
        let text = error.map(ToString::to_string);
        let as_expected = match (&text, ticket.fails) {
            (None, None) => true,
            (Some(text), Some(fragment)) => text.contains(fragment),
            _ => false,
        };
        if !as_expected {
            return Err(format!("rank {rank}: {name} ({}) came to {text:?}, not to {:?}", ticket.tag, ticket.fails));
        }
        self.member(place).moved = self.now;
        let key = (place.0, name.to_owned(), ticket.tag);
        let first = self.report.verdicts.entry(key).or_insert_with(|| text.clone());
        if *first != text {
            return Err(format!("rank {rank}: {name} came to {text:?}, elsewhere to {first:?}"));
        }
        self.moved = self.now;
        Ok(())
    }
}
