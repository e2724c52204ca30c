//! How the next epoch is made: of whom, when, and when no more.

use std::collections::{BTreeMap, BTreeSet};

use corro_core::Rank;

use super::{Decision, Epoch, Machine, Time, Worker, WorkerState, list};
use crate::message::{Change, PastSeat, ToWorker, WorkerId};
use crate::seats::{self, Candidate, Chosen};

impl Machine {
    pub(super) fn candidates(&self, also_seated: bool) -> Vec<Candidate<'_>> {
        let may = |w: &&Worker| {
            w.link.is_some() && (w.state == WorkerState::Waiting || (also_seated && w.state == WorkerState::Seated))
        };
        let wanted = |w: &&Worker| !self.finishing || w.was.is_some();
        let all = self.workers.iter().filter(|(_, w)| may(w) && wanted(w));
        all.map(|(id, w)| Candidate { worker: *id, host: &w.host, was: w.was, progress: w.progress, slot: w.slot })
            .collect()
    }

    pub(super) fn choose(&self, also_seated: bool) -> Vec<Chosen> {
        let room = |host: &str| if self.rules.supply { self.fleet.room(host) } else { usize::MAX };
        let mut candidates = self.candidates(also_seated);
        if also_seated {
            // All members of a running epoch are equally far, whatever they said when it began, and further than any other.
            for candidate in &mut candidates {
                let seated = self.workers[&candidate.worker].state == WorkerState::Seated;
                candidate.progress = u64::from(seated && candidate.progress > 0);
            }
        }
        seats::choose(&candidates, room, self.rules.max)
    }

    pub(super) fn try_to_form(&mut self, now: Time) {
        if let Some(epoch) = &self.epoch {
            if epoch.over.is_none() {
                return;
            }
            let out = |(rank, id): (&Rank, &WorkerId)| {
                let worker = self.workers.get(id)?;
                (worker.state == WorkerState::Seated).then(|| format!("rank {rank} on {}", worker.host))
            };
            let still_out: Vec<String> = epoch.members.iter().filter_map(out).collect();
            if !still_out.is_empty() {
                return self.tell_waiting(&format!("{} to come back", list(&still_out)));
            }
            if epoch.adopted && now.saturating_sub(self.last_arrival) < self.rules.gather && !self.is_full() {
                return self.tell_waiting("others that may have lost the driver as well");
            }
        }
        let chosen = self.choose(false);
        let first = self.epoch.is_none();
        let need = match (first, self.finishing || self.ending.is_some()) {
            (_, true) => 1,
            (true, _) if self.rules.supply => self.rules.start,
            _ => self.rules.min,
        };
        if chosen.len() < need {
            self.short_since = self.short_since.or(Some(now));
            let text = format!("{} more of the {need} processes that are needed", need - chosen.len());
            return self.tell_waiting(&text);
        }
        if !first && !chosen.iter().any(|c| self.has_newest_state(&self.workers[&c.worker])) {
            // Only members of the last epoch have the newest state. Where nobody can be killed for being silent, they may even
            // still work. [`Self::check_supply`] says for how long they are waited for.
            return self.tell_waiting("the members of the last epoch, of whom nothing is heard");
        }
        if first && !self.is_full() && now.saturating_sub(self.last_arrival) < self.rules.gather {
            return self.tell_waiting("others that are on their way");
        }
        if !first && self.rules.reset_limit.is_some_and(|limit| self.formed > limit) {
            let limit = self.rules.reset_limit.unwrap_or(0);
            let why = self.why_over();
            return self
                .end(false, format!("number of resets during elastic job exceeded limit: {limit} (the last: {why})"));
        }
        self.form(&chosen, now);
    }

    /// Whether a worker was a member of the last epoch in which anything can have been done.
    pub(super) fn has_newest_state(&self, worker: &Worker) -> bool {
        worker.met >= self.state_epoch
    }

    /// Whether everybody is there who could come.
    pub(super) fn is_full(&self) -> bool {
        let waiting = self.workers.values().filter(|w| w.state == WorkerState::Waiting).count();
        let starting = self.workers.values().any(|w| w.state == WorkerState::Starting);
        if self.rules.supply { !starting } else { waiting >= self.rules.start }
    }

    pub(super) fn form(&mut self, chosen: &[Chosen], now: Time) {
        let why = self.why_over();
        let number = self.last_number + 1;
        self.last_number = number;
        self.formed += 1;
        self.short_since = None;
        self.announced.clear();
        let mut members = BTreeMap::new();
        for (seat, one) in seats::seats(chosen, number, &why, self.change.number).into_iter().zip(chosen) {
            members.insert(seat.rank, one.worker);
            let Some(worker) = self.workers.get_mut(&one.worker) else { continue };
            (worker.state, worker.since, worker.blamed) = (WorkerState::Seated, now, None);
            (worker.was, worker.slot) = (Some(PastSeat { epoch: number, rank: seat.rank }), Some(one.slot));
            self.out.extend(worker.link.map(|link| Decision::Tell(link, ToWorker::Seat(seat))));
        }
        let named = chosen.iter().map(|c| (c.worker, c.host.clone())).collect();
        self.out.push(Decision::Formed { epoch: number, members: named, why });
        let size = chosen.len();
        self.epoch = Some(Epoch { number, members, size, cards: BTreeMap::new(), over: None, adopted: false });
        if self.ending.is_some() {
            // Those who were lost meanwhile are not waited for; the others are still to end.
            self.tell_of_the_end();
        }
    }

    pub(super) fn why_over(&self) -> String {
        self.epoch.as_ref().and_then(|e| e.over.as_ref()).map_or_else(String::new, |o| o.why.clone())
    }

    /// Tells those who wait what they wait for, if that has changed.
    pub(super) fn tell_waiting(&mut self, what: &str) {
        for worker in self.workers.values_mut().filter(|w| w.state == WorkerState::Waiting && w.told != what) {
            what.clone_into(&mut worker.told);
            self.out.extend(worker.link.map(|link| Decision::Tell(link, ToWorker::Wait(what.to_owned()))));
        }
    }

    /// Those whose host has left the job, and who have no seat, are told to go.
    pub(super) fn dismiss_those_who_must_go(&mut self, now: Time) {
        if !self.rules.supply || self.epoch.as_ref().is_some_and(|e| e.over.is_some()) {
            return;
        }
        let gone = |w: &Worker| w.state == WorkerState::Waiting && self.fleet.room(&w.host) == 0;
        let gone: Vec<WorkerId> = self.workers.iter().filter(|(_, w)| gone(w)).map(|(id, _)| *id).collect();
        for id in gone {
            self.dismiss(id, "its host has left the job", now);
        }
        // Members of earlier epochs for whom there is no slot any more; the youngest go first.
        let mut living: BTreeMap<String, usize> = BTreeMap::new();
        for worker in self.workers.values().filter(|w| w.state != WorkerState::Leaving) {
            *living.entry(worker.host.clone()).or_default() += 1;
        }
        let mut surplus = Vec::new();
        for (id, w) in self.workers.iter().rev().filter(|(_, w)| w.state == WorkerState::Waiting && w.was.is_some()) {
            let here = living.entry(w.host.clone()).or_default();
            if *here > self.fleet.room(&w.host) + self.rules.spares {
                *here -= 1;
                surplus.push(*id);
            }
        }
        for id in surplus {
            self.dismiss(id, "its host has fewer slots in the job now", now);
        }
    }

    /// Tells the members of a running epoch that another one would have other members.
    pub(super) fn announce(&mut self, now: Time) {
        let Some(epoch) = self.epoch.as_ref().filter(|e| e.over.is_none()) else { return };
        let members: BTreeSet<WorkerId> = epoch.members.values().copied().collect();
        let wanted: BTreeSet<WorkerId> = self.choose(true).iter().map(|c| c.worker).collect();
        if wanted == members
            || wanted == self.announced
            || wanted.len() < self.rules.min
            || self.finishing
            || self.ending.is_some()
        {
            return;
        }
        let added = wanted.difference(&members).next().is_some();
        let removed = members.difference(&wanted).next().is_some();
        let on_their_way = self.workers.values().any(|w| w.state == WorkerState::Starting);
        let first_came =
            self.workers.values().filter(|w| w.state == WorkerState::Waiting).map(|w| w.since).min().unwrap_or(now);
        if !removed && on_their_way && now.saturating_sub(first_came) < self.rules.gather {
            return;
        }
        self.announced = wanted;
        self.change = Change { number: self.change.number + 1, added, removed, ending: false };
        let change = ToWorker::Changed(self.change);
        self.tell_seated(&change);
    }

    /// Tells the user of workers that wait for nothing but the loss of another: only then is a loss filled at once.
    pub(super) fn tell_of_spares(&mut self) {
        if self.rules.spares == 0 || self.finishing || self.epoch.as_ref().is_none_or(|e| e.over.is_some()) {
            return;
        }
        let wanted: BTreeSet<WorkerId> = self.choose(true).iter().map(|c| c.worker).collect();
        for (id, worker) in &mut self.workers {
            let waits = worker.state == WorkerState::Waiting && worker.link.is_some() && !wanted.contains(id);
            if waits && !std::mem::replace(&mut worker.spare, true) {
                self.out
                    .push(Decision::Say(format!("worker {id} on {} is ready to take a lost one's place", worker.host)));
            }
        }
    }

    pub(super) fn start_workers(&mut self, now: Time) {
        if !self.rules.supply || self.finishing || self.ending.is_some() {
            return;
        }
        let slots = self.fleet.usable_slots();
        if self.epoch.is_none() && self.workers.is_empty() && slots < self.rules.start {
            return;
        }
        let mut live: BTreeMap<&str, usize> = BTreeMap::new();
        for worker in self.workers.values().filter(|w| w.state != WorkerState::Leaving) {
            *live.entry(&worker.host).or_default() += 1;
        }
        let living: usize = live.values().sum();
        let target = slots.max(living).min(self.rules.max);
        for host in self.fleet.starts(&live, target, self.rules.spares, now) {
            let id = self.next_worker;
            self.next_worker = id.next();
            self.add_worker(id, host.clone(), None, now);
            self.out.push(Decision::Start { worker: id, host });
        }
    }

    /// Whether the job can still go on.
    pub(super) fn check_supply(&mut self, now: Time) {
        if self.finishing {
            return;
        }
        let with_state = self.workers.values().any(|w| self.has_newest_state(w) && w.state != WorkerState::Leaving);
        let ended_at = self.epoch.as_ref().and_then(|e| e.over.as_ref()).map_or(now, |over| over.since);
        let waited_enough = self.rules.supply || now.saturating_sub(ended_at) >= self.rules.patience;
        if self.epoch.is_some() && !with_state && waited_enough {
            let why = format!("every process that held the state of the training is gone ({})", self.why_over());
            return self.end(false, why);
        }
        if self.ending.is_some() && self.workers.is_empty() {
            return self.end(false, "all processes were lost before their next commit".into());
        }
        let Some(since) = self.short_since.filter(|_| self.ending.is_none()) else { return };
        let need = if self.epoch.is_none() { self.rules.start } else { self.rules.min };
        let living = self.workers.values().filter(|w| w.state != WorkerState::Leaving).count();
        let could = living + self.fleet.usable_slots().saturating_sub(living);
        let hopeless = self.hosts_known
            && self.rules.supply
            && !self.rules.hosts_change
            && !self.fleet.some_cool_down()
            && could < need;
        let too_late =
            now.saturating_sub(since) >= self.rules.patience && self.epoch.as_ref().is_none_or(|e| e.over.is_some());
        if hopeless || too_late {
            let when = if hopeless {
                "no more can be started".to_owned()
            } else {
                format!(
                    "Timed out waiting for more. Timeout after {} seconds (--elastic-timeout)",
                    self.rules.patience.as_secs_f64()
                )
            };
            let last =
                self.failed.as_ref().map_or_else(String::new, |(id, exit)| format!("; worker {id} {}", exit.words));
            let minimum = if self.epoch.is_none() { "to start (-np)" } else { "to go on (--min-np)" };
            let slots = self.fleet.usable_slots();
            let room = match (self.rules.supply, self.hosts_known) {
                (false, _) => String::new(),
                (true, false) => "; no list of hosts has come".to_owned(),
                (true, true) => format!("; there are {slots} usable slots on the hosts in the list"),
            };
            let why = format!("{living} processes are left of the {need} it takes {minimum}: {when}{room}{last}");
            self.end(false, why);
        }
    }
}
