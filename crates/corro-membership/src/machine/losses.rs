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
        tracing::debug!(worker = %id, why, "a worker has lost its connection to the driver");
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
        // While an epoch runs, those before it were replaced, or not needed: if the job ends now, it is for this one. Else others
        // may fail for the first one's sake, and a victim never fails for its own.
        let others_fail_for_it = exit.victim || self.finishing || self.epoch.is_none();
        if !others_fail_for_it || self.failed.as_ref().is_none_or(|(_, before)| before.victim) {
            self.failed = Some((id, exit.clone()));
        }
        self.out.push(Decision::Say(format!("{name} {}", exit.words)));
        if !had_seat {
            self.fleet.failed_to_join(&host, now);
        }
        // While an epoch runs, a worker without a seat (a spare, or one that was to take a lost one's place) says nothing about its
        // host, where others work. But if the job waits for such workers, and they fail by themselves, it is to end soon.
        let job_runs = self.epoch.as_ref().is_some_and(|epoch| epoch.over.is_none());
        if !exit.killed
            && !exit.victim
            && (had_seat || !job_runs)
            && let Some(text) = self.fleet.strike(&host, now)
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
                (_, None) if silent >= rules.reconnect_time => {
                    let limit = seconds(rules.reconnect_time);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::HostSlots;
    use crate::machine::{Input, Rules};
    use crate::message::{Cause, Hello, PastSeat, ToDriver};

    const MS: Duration = Duration::from_millis(1);

    /// A job on one host; what it decided is kept.
    struct Job {
        machine: Machine,
        now: Time,
        decided: Vec<Decision>,
    }

    impl Job {
        fn new(start: usize, min: usize) -> Self {
            let rules = Rules { start, min, max: start, ..Rules::default() };
            let mut job = Self { machine: Machine::new(rules, Time::ZERO), now: Time::ZERO, decided: Vec::new() };
            job.hear(Input::Hosts(vec![HostSlots { name: "a".into(), slots: start }]));
            for worker in 0..start as u64 {
                job.hello(worker, None, None);
            }
            assert_eq!(job.epoch(), Some((1, (0..start as u64).collect())));
            job
        }

        fn hear(&mut self, input: Input) {
            self.now += MS;
            self.decided.extend(self.machine.handle(input, self.now));
        }

        fn hello(&mut self, worker: u64, was: Option<PastSeat>, cause: Option<Cause>) {
            let (host, release) = ("a".into(), env!("CARGO_PKG_VERSION").into());
            let hello = Hello { worker: WorkerId(worker), host, release, was, progress: 1, cause };
            self.hear(Input::Said(worker, ToDriver::Hello(hello)));
        }

        /// Comes back from epoch 1, in which it was the rank of its own number.
        fn comes_back(&mut self, worker: u64, culprit: Option<Rank>) {
            let was = Some(PastSeat { epoch: 1, rank: Rank::new(worker as usize) });
            self.hello(worker, was, Some(Cause { culprit, text: "it waited in vain".into() }));
        }

        fn exited(&mut self, worker: u64, code: i32, killed: bool) {
            self.hear(Input::Exited(WorkerId(worker), Exit { code, killed, victim: false, words: "ended".into() }));
        }

        /// Time passes, in steps of a driver that looks at its clock, while `workers` say that they live.
        fn pass(&mut self, time: Duration, workers: &[u64]) {
            let until = self.now + time;
            while self.now < until {
                self.now += 100 * MS;
                for worker in workers {
                    self.hear(Input::Said(*worker, ToDriver::Beat));
                }
                self.hear(Input::Tick);
            }
        }

        fn epoch(&self) -> Option<(u64, Vec<u64>)> {
            self.machine.members().map(|(epoch, members)| (epoch, members.iter().map(|worker| worker.0).collect()))
        }

        fn last_start(&self) -> Option<u64> {
            let start = |decision: &Decision| match decision {
                Decision::Start { worker, .. } => Some(worker.0),
                _ => None,
            };
            self.decided.iter().rev().find_map(start)
        }

        fn said(&self, words: &str) -> bool {
            self.decided.iter().any(|d| matches!(d, Decision::Say(text) if text.contains(words)))
        }
    }

    #[test]
    fn workers_that_fail_before_they_join_do_not_blacklist_a_host_where_others_work() {
        for killed in [true, false] {
            let mut job = Job::new(2, 1);
            job.exited(1, 137, true);
            job.comes_back(0, Some(Rank::new(1)));
            assert_eq!(job.epoch(), Some((2, vec![0])));
            for newest in 2..8 {
                assert_eq!(job.last_start(), Some(newest), "one after the other is started in its place");
                job.exited(newest, 1, killed);
                job.pass(70_000 * MS, &[0]);
            }
            assert!(!job.said("blacklisted"), "{:?}", job.decided);
        }
    }

    #[test]
    fn workers_that_fail_by_themselves_while_the_job_waits_for_them_end_it_soon() {
        let mut job = Job::new(2, 2);
        job.exited(1, 137, true);
        job.comes_back(0, Some(Rank::new(1)));
        for newest in 2..5 {
            job.exited(newest, 1, false);
            job.pass(5000 * MS, &[0]);
        }
        assert!(job.said("host a is blacklisted") && job.machine.is_over(), "{:?}", job.decided);
    }

    #[test]
    fn one_that_made_the_others_wait_in_vain_is_ended_and_the_job_goes_on() {
        let mut job = Job::new(3, 2);
        job.comes_back(0, Some(Rank::new(1)));
        job.comes_back(2, Some(Rank::new(1)));
        // It lives, and hangs in the program's own code.
        job.pass(2600 * MS, &[0, 1, 2]);
        assert_eq!(job.epoch().map(|epoch| epoch.0), Some(1), "it may still come back");
        job.pass(600 * MS, &[0, 1, 2]);
        assert!(
            job.decided.iter().any(|d| matches!(d, Decision::Kill { worker: WorkerId(1), .. })),
            "{:?}",
            job.decided
        );
        assert_eq!(job.epoch(), Some((2, vec![0, 2])));
        assert_eq!(job.last_start(), Some(3), "another one is started in its place");
        assert!(job.said("rank 1 on a made the others wait in vain and did not come back"), "{:?}", job.decided);
    }
}
