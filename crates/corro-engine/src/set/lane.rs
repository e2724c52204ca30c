//! Running what is agreed: whoever holds the lane takes job after job.

use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError, TryLockError};
use std::time::Duration;

use corro_agreement::message::Knobs;
use corro_agreement::node::Gear;
use corro_agreement::request::Kind;
use corro_collectives::{Group, Tuning};
use corro_core::{Error, Result};
use corro_transport::Withdrawal;
use smallvec::{SmallVec, smallvec};

use super::executor::{self, Outcomes, Tensor};
use super::state::{After, Batch, Entry, Running, State};
use super::{ProcessSet, group_id, lock};
use crate::submission::Submission;
use crate::ticket::{Outcome, Promise};
use crate::tuning::autotune::Change;
use crate::watch::clock::{Estimate, PeerClock, RoundTrip};
use crate::watch::observers::Ran;
use crate::watch::recorder::State as Stage;

/// How often clocks are compared; the quickest comparison counts.
const CLOCK_SAMPLES: usize = 16;

/// An outcome, or the promise of one that was not waited for to the end.
pub(crate) type Ended = std::result::Result<Outcome, Arc<Promise>>;

/// What collectives run on.
pub(super) struct Lane {
    pub(super) group: Group,
    /// How many came before it.
    pub(super) generation: u64,
    /// What those that come after it go on with.
    pub(super) tuning: Tuning,
}

impl ProcessSet {
    /// Runs a tensor at once, in the caller's thread, if it is all that the next entry of the plan consists of and the
    /// lane is free: then it needs no entry, no promise, and nobody to be told. Otherwise gives it back.
    pub(crate) fn express(
        &self,
        mut submission: Submission,
        go_on: &mut dyn FnMut() -> bool,
    ) -> std::result::Result<Result<Ended>, Box<Submission>> {
        let Ok(mut lane) = self.lane.try_lock() else { return Err(Box::new(submission)) };
        let Some(Lane { group, .. }) = lane.as_mut() else { return Err(Box::new(submission)) };
        if let Err(error) = submission.check(&self.members) {
            return Ok(Err(error));
        }
        let request = submission.request(None);
        let began = self.core.now();
        let mut st = lock(&self.state);
        st.node.note_looks(self.core.looks());
        let free = st.over.is_none() && st.queue.is_empty() && !st.is_under_way(&request.name);
        let Some(agreed) = free.then(|| st.node.begin_alone(began, &request)).flatten() else {
            drop(st);
            (submission.name, submission.shape) = (request.name, request.shape);
            return Err(Box::new(submission));
        };
        st.express = Some((Arc::clone(&agreed[0]), None));
        let record = st.recorder.submitted(&request.name, request.kind.name(), request.bytes(), began);
        st.recorder.came_to(record, Stage::Running, began);
        drop(st);
        let observers = &self.core.observers;
        observers.submitted(began, &request);
        observers.begins(began, true, &agreed);
        let mut tensor = Tensor { input: submission.input, output: submission.output, prescaled: false, refused: None };
        let result = executor::run(group, &self.members, &agreed, std::slice::from_mut(&mut tensor), true);
        let ended = self.core.now();
        let mut st = lock(&self.state);
        let verdict = st.express.take().and_then(|(_, verdict)| verdict);
        st.node.finished(ended);
        if let Ok(mut outcomes) = result {
            st.moved = ended;
            st.recorder.came_to(record, Stage::Done, ended);
            drop(st);
            observers.metrics.completed([ended.saturating_sub(began)]);
            observers.ran(&Ran { set: self.id, agreed: &agreed, began, ended, gear: Gear::Plan, well: true });
            let outcome = outcomes.pop().unwrap_or_else(|| Err(Error::Bug("a tensor without an outcome".into())));
            return Ok(outcome.map(Ok));
        }
        // From here on it goes the long way.
        let promise = Promise::new();
        let entry = Entry { tensor: None, verdict, promise: Arc::clone(&promise), record, since: began };
        st.entries.insert(request.name, entry);
        drop(st);
        let tensors = smallvec![tensor];
        let batch = Batch { agreed, mine: SmallVec::new(), tensors, began, gear: Gear::Plan };
        self.with_state(|st| self.finish(st, ended, batch, result));
        drop(lane);
        let kept = self.drive_until(&promise, go_on);
        Ok(if kept { promise.take().map(Ok) } else { Ok(Err(promise)) })
    }

    /// Runs all jobs there are. False if there were none, or somebody else runs them.
    pub(super) fn run_what_is_ready(&self, listening: &mut bool) -> bool {
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let first = self.with_state(|st| {
            let next = self.next_job(st, self.core.now());
            if next.is_some() && std::mem::take(listening) {
                self.stop_listening(st);
            }
            next
        });
        let Some(mut running) = first else { return false };
        while let Some(next) = self.run_job(&mut lane, running) {
            running = next;
        }
        true
    }

    fn next_job(&self, st: &mut State, now: Duration) -> Option<Running> {
        let next = st.take_job(now);
        if next.is_none() {
            self.may_have_job.store(false, Ordering::SeqCst);
        }
        // What a member has seen of a plan, it says when it begins an entry.
        if st.node.gear() == Gear::Plan && st.node.has_news() && !std::mem::replace(&mut st.watcher_up, true) {
            self.ring();
        }
        next
    }

    /// Runs a job, and takes the next one.
    fn run_job(&self, lane: &mut Option<Lane>, running: Running) -> Option<Running> {
        let mut batch = match running {
            Running::Batch(batch) => batch,
            Running::Renew => {
                let result = self.renew(lane);
                return self.with_state(|st| {
                    // Called off: then the job is over, and all know why.
                    st.after.extend(result.err().filter(|e| *e != Error::Withdrawn).map(After::Failed));
                    self.next_job(st, self.core.now())
                });
            }
            Running::Tune(tuning) => {
                if let Some(lane) = lane {
                    lane.group.tune(tuning);
                    lane.tuning = tuning;
                }
                return self.with_state(|st| self.next_job(st, self.core.now()));
            }
        };
        let planned = batch.gear == Gear::Plan;
        self.core.observers.begins(batch.began, planned, &batch.agreed);
        let result = match (&batch.agreed[0].kind, lane) {
            (Kind::AddSet { ranks }, _) => self.core.add_set(ranks).map(one_outcome),
            (Kind::RemoveSet { id }, _) => self.core.remove_set(*id).map(one_outcome),
            (_, None) => Err(self.core.over().unwrap_or(Error::Withdrawn)),
            (_, Some(lane)) => {
                executor::run(&mut lane.group, &self.members, &batch.agreed, &mut batch.tensors, planned)
            }
        };
        let now = self.core.now();
        if !matches!(result, Err(Error::Withdrawn)) {
            let (began, ended, gear, well) = (batch.began, now, batch.gear, result.is_ok());
            let ran = Ran { set: self.id, agreed: &batch.agreed, began, ended, gear, well };
            if let Some(change) = self.core.observers.ran(&ran) {
                self.tune(&change);
            }
        }
        self.with_state(|st| {
            if planned {
                st.node.finished(now);
            }
            self.finish(st, now, batch, result);
            self.next_job(st, now)
        })
    }

    /// Follows the tuner: all members do from the same batch on.
    fn tune(&self, change: &Change) {
        self.core.log_tuning(change);
        self.with_state(|st| {
            let reductions =
                self.core.options.tuning.as_ref().is_some_and(|t| t.may_tune_reductions(&self.core.fabric));
            st.node.tune(change.parameters.fusion_threshold, change.parameters.knobs(reductions));
            if change.finished {
                st.node.allow_plans();
            }
            self.turn(st);
        });
    }

    /// Keeps the promises of a batch, or puts its tensors back.
    fn finish(&self, st: &mut State, now: Duration, batch: Batch, result: Result<Outcomes>) {
        let Batch { agreed, mine, tensors, .. } = batch;
        let is_mine = |i: usize| *mine.get(i).unwrap_or(&true);
        match result {
            Ok(outcomes) => {
                st.moved = now;
                for (_, (agreed, outcome)) in agreed.iter().zip(outcomes).enumerate().filter(|(i, _)| is_mine(*i)) {
                    let Some(entry) = st.entries.remove(&agreed.name) else { continue };
                    match &outcome {
                        Ok(_) => {
                            st.recorder.came_to(entry.record, Stage::Done, now);
                            self.core.observers.metrics.completed([now.saturating_sub(entry.since)]);
                        }
                        Err(error) => st.recorder.failed(entry.record, error, now),
                    }
                    st.after.push(After::Keep(entry.promise, outcome));
                }
            }
            Err(Error::Withdrawn) if st.over.is_none() => {
                for (agreed, tensor) in agreed.iter().zip(tensors) {
                    let Some(entry) = st.entries.get_mut(&agreed.name) else { continue };
                    entry.tensor = Some(tensor);
                    st.recorder.came_to(entry.record, Stage::Submitted, now);
                    if let Some(error) = entry.verdict.take() {
                        st.refuse(now, &agreed.name, &error);
                    }
                }
            }
            Err(error) => {
                // Making or removing a process set may be refused, on all ranks alike. Everything else ends the job, and
                // all are told what failed first.
                let refused = matches!(error, Error::Usage(_)) && !agreed[0].kind.is_cacheable();
                for (_, agreed) in agreed.iter().enumerate().filter(|(i, _)| is_mine(*i)) {
                    let Some(entry) = st.entries.remove(&agreed.name) else { continue };
                    st.recorder.failed(entry.record, &error, now);
                    match &st.over {
                        Some(over) => st.after.push(After::Keep(entry.promise, Err(over.clone()))),
                        None if refused => st.after.push(After::Keep(entry.promise, Err(error.clone()))),
                        None => st.doomed.push(entry.promise),
                    }
                }
                if st.over.is_none() && !refused {
                    st.after.push(After::Failed(error));
                }
            }
        }
    }

    /// Replaces the lane. The old one is kept until all members have finished what they had begun there.
    fn renew(&self, lane: &mut Option<Lane>) -> Result<()> {
        let Some(old) = lane.take() else { return Ok(()) };
        let withdrawal = Withdrawal::default();
        // Known before anything waits for it: who is to be waited for may be lost at any moment.
        self.with_state(|st| {
            if st.is_called_off() {
                withdrawal.set();
            }
            st.withdrawal = withdrawal.clone();
        });
        let mut new = self.opened(old.generation + 1, old.tuning, withdrawal)?;
        new.group.barrier()?;
        *lane = Some(new);
        Ok(())
    }

    /// Opens the lane, for the first time.
    pub(super) fn open_lane(&self, generation: u64, withdrawal: Withdrawal) -> Result<()> {
        let opened = self.opened(generation, Tuning::default(), withdrawal)?;
        *lock(&self.lane) = Some(opened);
        Ok(())
    }

    fn opened(&self, generation: u64, tuning: Tuning, withdrawal: Withdrawal) -> Result<Lane> {
        let id = group_id(self.serial, 1 + generation);
        let mut group = Group::open_withdrawable(&self.core.fabric, id, &self.members, withdrawal)?;
        group.tune(tuning);
        Ok(Lane { group, generation, tuning })
    }

    /// The runner: runs jobs when nobody else does.
    pub(super) fn run_jobs(&self) {
        loop {
            let mut st = lock(&self.state);
            while !(self.is_undriven() && st.has_job()) {
                if st.closing.is_some() {
                    return;
                }
                st = self.work.wait(st).unwrap_or_else(PoisonError::into_inner);
            }
            drop(st);
            if !self.run_what_is_ready(&mut false) {
                // Somebody else runs them: when that one leaves, there may be more.
                let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
                drop(lane);
            }
        }
    }

    /// Finds out how this rank's clock stands to that of the first member. All members must call this.
    ///
    /// Nobody leaves the barrier before all have come, so the first member reads its clock after this rank has come; and
    /// before this rank has heard of it.
    pub(crate) fn align_clocks(&self) -> Result<()> {
        let mut lane = lock(&self.lane);
        let Some(Lane { group, .. }) = lane.as_mut() else { return Ok(()) };
        let nanos = || self.core.now().as_nanos() as u64;
        let mut clock = PeerClock::default();
        for _ in 0..CLOCK_SAMPLES {
            let sent = nanos();
            group.barrier()?;
            let mut read = [nanos()];
            group.broadcast(&mut read, 0)?;
            clock.observe(RoundTrip { sent, arrived: read[0], answered: read[0], returned: nanos() });
        }
        let estimate = if group.rank() == 0 { Some(Estimate::SAME) } else { clock.estimate(nanos()) };
        if let Some(estimate) = estimate {
            self.core.observers.clock(self.core.now(), estimate);
        }
        Ok(())
    }
}

/// How collectives run with these knobs.
pub(super) fn tuning(Knobs { segment, crossover, reductions }: Knobs) -> Tuning {
    Tuning { segment, crossover, reductions }
}

fn one_outcome<T>(_: T) -> Outcomes {
    smallvec![Ok(Outcome::default())]
}
