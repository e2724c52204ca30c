//! How workers are lost, and epochs with them.

use std::time::Duration;

use corro_core::Rank;

use super::{ABSENCE, Decision, Exit, LEAVE_TIME, LinkId, Machine, Over, Time, WorkerState};
use crate::message::{ToWorker, WorkerId};

/// How long a process that is gone from the network may be missing before nobody asks how it ended.
const HEARSAY_TIME: Duration = Duration::from_millis(200);

impl Machine {
    pub(super) fn lost_link(&mut self, link: LinkId, why: &str, now: Time) {
        let Some(id) = self.links.remove(&link) else { return };
        let Some(worker) = self.workers.get_mut(&id) else { return };
        // Its epoch may still be well: it is given some time to come again, or its exit will be heard, or its peers blame it.
        worker.link = None;
        worker.heard = now;
        tracing::debug!(worker = id, why, "a worker has lost its connection to the driver");
    }

    pub(super) fn exited(&mut self, id: WorkerId, exit: Exit, now: Time) {
        let Some(worker) = self.workers.get(&id) else { return };
        let (state, host, had_seat) = (worker.state, worker.host.clone(), worker.was.is_some());
        let name = self.name_of(id);
        if exit.code == 0 && state != WorkerState::Leaving && (state != WorkerState::Waiting || worker.done) {
            self.begin_to_finish();
            return self.drop_worker(id, None, now);
        }
        if state == WorkerState::Leaving || exit.code == 0 {
            return self.drop_worker(id, Some(exit.words), now);
        }
        if self.finishing || self.epoch.is_none() {
            // Others may fail for the first one's sake.
            self.failed.get_or_insert((id, exit.clone()));
        } else {
            // Those before it were replaced, or not needed; if the job ends now, it is for this one.
            self.failed = Some((id, exit.clone()));
        }
        self.out.push(Decision::Say(format!("{name} {}", exit.words)));
        if (!had_seat || !exit.by_signal)
            && let Some(text) = self.fleet.strike(&host, had_seat, now)
        {
            self.out.push(Decision::Say(text));
        }
        self.drop_worker(id, Some(exit.words), now);
    }

    pub(super) fn host_lost(&mut self, host: &str, why: &str, now: Time) {
        let text = if self.fleet.is_listed(host) {
            self.fleet.blacklist(host, why, now)
        } else {
            // It was to leave anyway, and may come back one day.
            format!("host {host} is gone, which was not in the list of hosts any more: {why}")
        };
        self.out.push(Decision::Say(text));
        let there: Vec<WorkerId> = self.workers.iter().filter(|(_, w)| w.host == host).map(|(id, _)| *id).collect();
        for id in there {
            self.drop_worker(id, Some(format!("was lost with its host: {why}")), now);
        }
    }

    /// Forgets a worker; what it was to the current epoch ends with it, for this reason unless it was done.
    pub(super) fn drop_worker(&mut self, id: WorkerId, why: Option<String>, now: Time) {
        let (rank, name) = (self.rank_of(id), self.name_of(id));
        let Some(worker) = self.workers.remove(&id) else { return };
        if let Some(link) = worker.link {
            self.links.remove(&link);
            self.out.push(Decision::Close(link));
        }
        if worker.state == WorkerState::Seated
            && let Some(why) = why
        {
            self.over(format!("{name} {why}"), rank, now);
        }
    }

    /// Gives a worker up: its process is ended, and should it wake up, nobody listens to it.
    pub(super) fn give_up(&mut self, id: WorkerId, why: &str, now: Time) {
        let name = self.name_of(id);
        self.out.push(Decision::Say(format!("{name} {why}, so it is ended")));
        if self.rules.supply {
            self.out.push(Decision::Kill { worker: id, why: why.to_owned() });
        }
        self.drop_worker(id, Some(why.to_owned()), now);
    }

    pub(super) fn watch_the_clock(&mut self, now: Time) {
        let rules = &self.rules;
        let over = self.epoch.as_ref().and_then(|e| e.over.as_ref()).map(|o| o.since);
        let mut given_up = Vec::new();
        for (id, worker) in &self.workers {
            let silent = now.saturating_sub(worker.heard);
            let seconds = |d: Duration| d.as_secs_f64();
            match (worker.state, worker.link) {
                (WorkerState::Starting, _) if silent < rules.patience => {}
                (WorkerState::Starting, _) => {
                    given_up.push((*id, format!("did not join within {} s of its start", seconds(rules.patience))));
                }
                // Its host tells how it ended, and mostly sooner than this; without a launcher nobody will.
                (_, None) if worker.blamed.is_some_and(|b| !rules.supply || now.saturating_sub(b) >= HEARSAY_TIME) => {
                    given_up.push((*id, "has left the others and the driver without a word".to_owned()));
                }
                (_, None) if silent >= rules.suspect_time => {
                    let limit = seconds(rules.suspect_time);
                    given_up.push((*id, format!("lost its connection and did not come back within {limit} s")));
                }
                (_, Some(_)) if silent >= rules.silence => {
                    let words =
                        format!("gave no sign of life for {} s (CORRO_ELASTIC_SILENCE)", seconds(rules.silence));
                    given_up.push((*id, words));
                }
                (WorkerState::Seated, Some(_)) => {
                    let Some(since) = over else { continue };
                    let late = |limit: Duration, from: Time| !limit.is_zero() && now.saturating_sub(from) >= limit;
                    if worker.blamed.is_some_and(|b| late(rules.suspect_time, b)) {
                        let words = "made the others wait in vain and did not come back".to_owned();
                        given_up.push((*id, words));
                    } else if late(rules.return_time, since) {
                        let words =
                            format!("did not come back within {} s (CORRO_TIMEOUT)", seconds(rules.return_time));
                        given_up.push((*id, words));
                    }
                }
                // One that was told to go and does not.
                (WorkerState::Leaving, Some(_)) if now.saturating_sub(worker.since) >= LEAVE_TIME => {
                    given_up.push((*id, "was told to leave and did not".to_owned()));
                }
                _ => {}
            }
        }
        for (id, why) in given_up {
            self.give_up(id, &why, now);
        }
    }

    /// Should the driver itself have been stopped for a while, nobody else was silent in that time: it did not listen.
    pub(super) fn forgive_own_absence(&mut self, now: Time) {
        let absent = now.saturating_sub(std::mem::replace(&mut self.last_now, now));
        if absent < ABSENCE {
            return;
        }
        for worker in self.workers.values_mut() {
            worker.heard += absent;
            worker.blamed = worker.blamed.map(|at| at + absent);
        }
        if let Some(over) = self.epoch.as_mut().and_then(|e| e.over.as_mut()) {
            over.since += absent;
        }
        self.short_since = self.short_since.map(|at| at + absent);
    }

    pub(super) fn over(&mut self, why: String, culprit: Option<Rank>, now: Time) {
        let Some(epoch) = &mut self.epoch else { return };
        if let Some(over) = &mut epoch.over {
            // The first to tell may not have known who is to blame.
            if over.culprit.is_none() && culprit.is_some() {
                (over.culprit, over.why) = (culprit, why);
            }
            return;
        }
        let message = ToWorker::Over { epoch: epoch.number, culprit, why: why.clone() };
        epoch.over = Some(Over { since: now, why, culprit });
        self.tell_seated(&message);
    }
}
