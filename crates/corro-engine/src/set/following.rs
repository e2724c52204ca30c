//! Following the agreement: what is said to the neighbours and heard from them, and what is done about it.

use std::sync::Arc;
use std::time::Duration;

use corro_agreement::coordinator::StallReport;
use corro_agreement::fusion;
use corro_agreement::hash::HashSet;
use corro_agreement::matching::Agreed;
use corro_agreement::node::{Action, Gear};
use corro_core::Error;
use corro_planes::Outcome;

use super::entries::Entry;
use super::lane::tuning;
use super::process_set::ProcessSet;
use super::state::{After, Job, State};
use super::wires::Heard;
use crate::submission::GLOBAL;
use crate::watch::metrics::Count;

impl ProcessSet {
    /// Listens, thinks, speaks, until there is nothing new. True if anything was heard or said.
    pub(super) fn turn(&self, st: &mut State) -> bool {
        let now = self.core.now();
        st.unsaid = None;
        let mut stirred = false;
        loop {
            let mut heard = std::mem::take(&mut st.heard);
            st.wires.pump(&mut heard);
            let mut again = !heard.is_empty();
            for said in heard.drain(..) {
                match said {
                    Heard::FromChild(member, said) => {
                        st.node.heard_from(now, member);
                        for message in said {
                            st.node.hear_child(now, message);
                        }
                    }
                    Heard::FromParent(member, decisions) => {
                        st.node.heard_from(now, member);
                        st.node.hear_parent(now, decisions);
                    }
                    // The global set sees every death; others would only see it in another order.
                    Heard::Lost(member, error) if self.id == GLOBAL => {
                        st.node.lost(now, member, error);
                    }
                    Heard::Lost(..) => {}
                }
            }
            st.heard = heard;
            if st.node.next_tick().is_some_and(|at| now >= at) {
                st.node.tick(now);
            }
            let (up, down) = st.node.flush(now);
            if !up.is_empty() || !down.is_empty() {
                again = true;
                if let Err(error) = st.wires.send(&up, &down) {
                    st.after.push(After::Failed(error));
                }
            }
            let actions = st.node.take_actions();
            again |= !actions.is_empty();
            for action in actions {
                self.act(st, now, action);
            }
            if !again {
                if stirred {
                    self.count_messages(st);
                }
                return stirred;
            }
            stirred = true;
        }
    }

    fn count_messages(&self, st: &mut State) {
        let (before, now) = (std::mem::replace(&mut st.counted, st.wires.traffic), st.wires.traffic);
        let metrics = &self.core.observers.metrics;
        metrics.add(Count::ControlMessagesSent, now.sent - before.sent);
        metrics.add(Count::ControlMessagesReceived, now.received - before.received);
        metrics.add(Count::ControlBytesSent, now.sent_bytes - before.sent_bytes);
        metrics.add(Count::ControlBytesReceived, now.received_bytes - before.received_bytes);
        let (hits, misses) = st.node.take_lookups();
        metrics.add(Count::CacheHits, hits);
        metrics.add(Count::CacheMisses, misses);
    }

    fn act(&self, st: &mut State, now: Duration, action: Action) {
        match action {
            Action::Run(agreed) => self.enqueue(st, now, &agreed),
            Action::Fail(names, error) => self.refuse(st, now, &names, &error),
            Action::AllJoined(last) => {
                st.moved = now;
                for promise in st.joins.drain(..) {
                    let outcome = Outcome { last_joined: Some(last), ..Outcome::default() };
                    st.after.push(After::Keep(promise, Ok(outcome)));
                }
            }
            Action::Planned => {
                self.core.observers.metrics.changed_gear("the same step came again and again: a plan");
                st.after.push(After::Detail(format!("process set {}: follows a plan from now on", self.id)));
                self.hand_over.wake_runner();
            }
            Action::Refined { from, to } => {
                let text = format!("process set {}: the plan has {to} entries from now on, it had {from}", self.id);
                st.after.push(After::Detail(text));
                self.hand_over.wake_runner();
            }
            Action::PlanLeft { withdraw, renew, reason } => {
                if withdraw {
                    st.withdrawal.set();
                }
                if renew {
                    st.queue.push_back(Job::Renew);
                    self.hand_over.wake_runner();
                }
                self.core.observers.metrics.add(Count::PlansLeft, 1);
                self.core.observers.metrics.changed_gear(&reason);
                st.after.push(After::Detail(format!("process set {}: left the plan, {reason}", self.id)));
            }
            Action::Heard(name, rank) => {
                if let Ok(member) = self.members.binary_search(&rank) {
                    self.core.observers.rank_ready(now, &name, member);
                }
            }
            Action::Asked => {
                let doing = st.recorder.last(now);
                st.node.answer(doing, self.core.threads.all_wait());
            }
            Action::Silent(member, silence) => {
                if let Some(error) = st.wires.give_up_on(member, silence) {
                    st.node.lost(now, member, error);
                }
            }
            Action::Stalled(report) => {
                self.core.observers.metrics.add(Count::Stalls, 1);
                st.after.push(After::Warn(report.to_string()));
            }
            Action::Overdue(report) => {
                self.core.observers.metrics.add(Count::Stalls, 1);
                st.after.push(After::Lost(self.made_others_wait(&report)));
            }
            Action::AskedStanding(round) => {
                let standing = self.standing(st);
                st.node.stands(now, round, standing);
            }
            Action::Deadlocked(error) => st.after.push(After::Failed(error)),
            Action::Tune(threshold, knobs) => {
                st.fusion.threshold = threshold;
                // In the queue, so that it comes between the same two collectives on all members.
                st.queue.push_back(Job::Tune(tuning(knobs)));
                self.hand_over.wake_runner();
            }
            Action::Over(error) => self.end(st, now, &error),
        }
    }

    /// Takes note of what is to run, batch by batch.
    fn enqueue(&self, st: &mut State, now: Duration, agreed: &[Arc<Agreed>]) {
        let gear = st.node.gear();
        self.core.observers.agreed(now, gear, agreed);
        for batch in fusion::batches(agreed, st.fusion) {
            let mine = batch.tensors.iter().map(|i| st.is_under_way(&agreed[*i].name)).collect();
            let batch = batch.tensors.iter().map(|i| Arc::clone(&agreed[*i])).collect();
            st.queue.push_back(Job::Batch(batch, mine, gear));
        }
        self.hand_over.wake_runner();
    }

    /// These fail on all ranks.
    fn refuse(&self, st: &mut State, now: Duration, names: &[String], error: &Error) {
        self.core.observers.refused(now, names);
        for name in names {
            match st.entries.get_mut(name) {
                // Withdrawn from, but not back yet.
                Some(Entry { tensor: None, verdict, .. }) => *verdict = Some(Box::new(error.clone())),
                _ => st.refuse(now, name, error),
            }
        }
        self.submit_parked(st, now);
    }

    /// Others have waited for a rank's program for too long: it counts as lost.
    fn made_others_wait(&self, report: &StallReport) -> Error {
        let rank = report.culprit().unwrap_or(self.members[0]);
        let host = &self.core.fabric.card(rank).host;
        let why = format!(
            "its process lives, but other ranks have waited too long for what its program has not submitted. {report}\nIf \
             ranks may rightly wait so long for each other, set CORRO_TIMEOUT to more seconds (0: for ever)."
        );
        Error::peer_lost(rank, host, why)
    }

    /// The job is over, or this set is.
    fn end(&self, st: &mut State, now: Duration, error: &Error) {
        st.over = Some(error.clone());
        st.wires.expect_end();
        // After an orderly shutdown what was agreed on before still runs, on all ranks; otherwise they would
        // differ in what succeeded. It is cut short when the set is stopped.
        if !matches!(error, Error::Shutdown(_)) || st.node.gear() == Gear::Plan {
            st.withdrawal.set();
            st.queue.clear();
        }
        let told: HashSet<String> = st
            .queue
            .iter()
            .filter_map(|job| if let Job::Batch(agreed, ..) = job { Some(agreed) } else { None })
            .flat_map(|agreed| agreed.iter().map(|a| a.name.clone()))
            .collect();
        // First, so that a program that hears of it from its ticket finds the engine over.
        self.core.note_end(self.id, error);
        st.after.push(After::Over(error.clone()));
        // What runs is still being used; it fails when it comes back.
        let waiting =
            |(name, entry): (&String, &Entry)| (entry.tensor.is_some() && !told.contains(name)).then(|| name.clone());
        for name in st.entries.iter().filter_map(waiting).collect::<Vec<_>>() {
            st.refuse(now, &name, error);
        }
        let parked = st.parking.clear();
        for promise in st.joins.drain(..).chain(st.doomed.drain(..)).chain(parked) {
            st.after.push(After::Keep(promise, Err(error.clone())));
        }
    }
}
