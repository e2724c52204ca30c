//! Running what is agreed: whoever holds the lane takes job after job.

use std::sync::Arc;
use std::time::Duration;

use corro_agreement::node::Gear;
use corro_agreement::request::Kind;
use corro_collectives::{Group, Tuning};
use corro_core::{Error, Result};
use corro_planes::{HOST, Outcome, Outcomes, Plane, Planes, Tensor};
use corro_transport::Withdrawal;
use smallvec::{SmallVec, smallvec};

use super::entries;
use super::hand_over::HandOver;
use super::lane::{Lane, group_id};
use super::process_set::{ProcessSet, STAGING_POOL};
use super::state::{After, Batch, Running, State};
use crate::promise::Promise;
use crate::submission::{GLOBAL, Submission};
use crate::tuning::autotune::Change;
use crate::watch::clock::{Estimate, PeerClock, RoundTrip};
use crate::watch::metrics::Count;
use crate::watch::observers::Ran;
use crate::watch::recorder::State as Stage;

/// How often clocks are compared; the quickest comparison counts.
const CLOCK_SAMPLES: usize = 16;

/// An outcome, or the promise of one that was not waited for to the end.
pub(crate) type Ended = std::result::Result<Outcome, Arc<Promise>>;

impl ProcessSet {
    /// Runs a tensor at once, in the caller's thread, if it is all that the next entry of the plan consists of and the
    /// lane is free: then nobody needs to be told. Otherwise leaves it as it is.
    pub(crate) fn run_at_once(
        &self,
        submission: &mut Submission,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Option<Result<Ended>> {
        let mut lane = self.hand_over.free_lane().filter(|lane| lane.is_some())?;
        if let Err(error) = self.check(submission) {
            return Some(Err(error));
        }
        self.core.threads.take_part();
        let request = submission.request(None);
        let began = self.core.now();
        let mut st = self.hand_over.state();
        st.node.note_looks(self.core.looks());
        let free = st.over.is_none() && st.queue.is_empty() && !st.is_under_way(&request.name);
        let Some(agreed) = free.then(|| st.node.begin_alone(began, &request)).flatten() else {
            drop(st);
            (submission.name, submission.shape) = (request.name, request.shape);
            return None;
        };
        let record = st.recorder.submitted(&request.name, request.kind.name(), request.bytes(), began);
        st.recorder.came_to(record, Stage::Running, began);
        self.core.observers.submitted(began, &request);
        st.entries.insert_alone(request.name, record, began);
        drop(st);
        let (input, output) = (submission.input.take(), std::mem::take(&mut submission.output));
        let tensors = SmallVec::from_buf([Tensor::new(input, output)]);
        let mut batch = Batch { agreed, mine: SmallVec::new(), tensors, began, ended: began, gear: Gear::Plan };
        let life = self.core.life.as_ref();
        if let Some(life) = life {
            life.waiting.begins(began.as_nanos() as u64);
        }
        let mut result = self.run_batch(&mut lane, &mut batch);
        let ended = batch.ended;
        if let Some(life) = life {
            life.waiting.ends(ended.as_nanos() as u64);
        }
        // Nearly always it went well, and then there is less to do than in `finish`.
        if let Ok(outcomes) = &mut result
            && outcomes.len() == 1
        {
            self.with_state(|st| {
                st.node.finished(ended);
                st.moved = ended;
                self.ended(st, ended, &batch.agreed[0].name, &outcomes[0]);
                self.submit_parked(st, ended);
            });
            drop(lane);
            let outcome = outcomes.pop().unwrap_or_else(|| Err(no_outcome()));
            return Some(outcome.map(Ok));
        }
        let own = self.with_state(|st| {
            st.node.finished(ended);
            self.finish(st, &mut batch, result)
        });
        drop(lane);
        Some(match own {
            Some(Ok(outcome)) => outcome.map(Ok),
            // Withdrawn from, or failed: from here on it goes the way of all others.
            Some(Err(promise)) => {
                let kept = self.drive_until(&promise, go_on);
                if kept { promise.take().map(Ok) } else { Ok(Err(promise)) }
            }
            None => Err(no_outcome()),
        })
    }

    /// Runs a job.
    pub(super) fn run_job(&self, lane: &mut Option<Lane>, job: Running) -> Done {
        match job {
            Running::Batch(mut batch) => {
                let result = self.run_batch(lane, &mut batch);
                Done::Batch(batch, result)
            }
            Running::Renew => Done::Renewed(self.renew(lane)),
            Running::Tune(tuning) => {
                if let Some(lane) = lane {
                    lane.group.tune(tuning);
                    lane.tuning = tuning;
                }
                Done::Tuned
            }
        }
    }

    /// Puts away what has run, and takes the next job.
    pub(super) fn next_job(&self, st: &mut State, done: Option<Done>) -> Option<Running> {
        let now = match done {
            Some(Done::Batch(mut batch, result)) => {
                if batch.gear == Gear::Plan {
                    st.node.finished(batch.ended);
                }
                self.finish(st, &mut batch, result);
                batch.ended
            }
            Some(Done::Renewed(result)) => {
                // Called off: then the job is over, and all know why.
                st.after.extend(result.err().filter(|e| *e != Error::Withdrawn).map(After::Failed));
                self.core.now()
            }
            Some(Done::Tuned) | None => self.core.now(),
        };
        let next = st.take_job(now);
        // What a member has seen of a plan, it says when it begins an entry.
        if st.node.gear() == Gear::Plan && st.node.has_news() {
            HandOver::wake_watcher(self, st);
        }
        next
    }

    /// Runs a batch on the plane that serves it, notes when it ended, and says how. (Batches and outcomes are large, so they
    /// stay where they are: moving them costs a good part of what the smallest collective does.)
    fn run_batch(&self, lane: &mut Option<Lane>, batch: &mut Batch) -> Result<Outcomes> {
        let (group, chosen) = match lane {
            None => (None, Err(self.core.over().unwrap_or(Error::Withdrawn))),
            Some(Lane { group, planes, .. }) => {
                let chosen = planes.choose(group, &self.members, &batch.agreed, &batch.tensors);
                (Some(group), chosen)
            }
        };
        let plane = chosen.as_ref().map_or(HOST, |plane| plane.name());
        self.core.observers.begins(batch.began, batch.gear == Gear::Plan, plane, &batch.agreed);
        if plane != HOST {
            self.note_plane(batch, plane);
        }
        let result = self.run_on(group, chosen, batch);
        batch.ended = self.core.now();
        if !matches!(result, Err(Error::Withdrawn)) {
            self.note_end(batch, plane, result.is_ok());
        }
        result
    }

    /// Runs it there. Making and removing process sets is the engine's own business, and needs no plane.
    fn run_on(&self, group: Option<&mut Group>, plane: Result<&mut dyn Plane>, batch: &mut Batch) -> Result<Outcomes> {
        let Batch { agreed, tensors, gear, .. } = batch;
        match (&agreed[0].kind, group, plane) {
            (Kind::AddSet { ranks }, ..) => self.core.add_set(ranks).map(one_outcome),
            (Kind::RemoveSet { id }, ..) => self.core.remove_set(*id).map(one_outcome),
            (_, Some(group), Ok(plane)) => plane.run(group, &self.members, agreed, tensors, *gear == Gear::Plan),
            (_, _, plane) => Err(plane.err().unwrap_or(Error::Withdrawn)),
        }
    }

    /// Tells who watches what has run. The tuner may want something else from now on.
    fn note_end(&self, batch: &Batch, plane: &'static str, well: bool) {
        let Batch { agreed, began, ended, gear, .. } = batch;
        let ran = Ran { set: self.id, agreed, plane, began: *began, ended: *ended, gear: *gear, well };
        if let Some(change) = self.core.observers.ran(&ran) {
            self.tune(&change);
        }
        if let Some(life) = self.core.life.as_ref().filter(|_| self.id == GLOBAL) {
            life.ran(&ran, self.core.observers.metrics.get(Count::CollectiveNanos));
        }
    }

    /// Writes down on which plane a batch runs, if that is not the host's: should it hang, that is what to look at.
    fn note_plane(&self, batch: &Batch, plane: &'static str) {
        self.with_state(|st| {
            for agreed in batch.agreed.iter() {
                if let Some(record) = st.entries.get_mut(&agreed.name).map(|entry| entry.record) {
                    st.recorder.runs_on(record, plane);
                }
            }
        });
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

    /// A tensor has run: it is done with, and written down.
    #[inline]
    fn ended(&self, st: &mut State, now: Duration, name: &str, outcome: &Result<Outcome>) -> Option<entries::Ended> {
        let entry = st.remove(name)?;
        match outcome {
            Ok(_) => {
                st.recorder.came_to(entry.record, Stage::Done, now);
                self.core.observers.metrics.completed([now.saturating_sub(entry.since)]);
            }
            Err(error) => st.recorder.failed(entry.record, error, now),
        }
        Some(entry)
    }

    /// Keeps the promises of a batch, or puts its tensors back. What nobody has a promise of is for the caller: the outcome,
    /// or, if there is none yet, a promise.
    fn finish(&self, st: &mut State, batch: &mut Batch, result: Result<Outcomes>) -> Option<Own> {
        let Batch { agreed, mine, tensors, ended: now, .. } = batch;
        let now = *now;
        let is_mine = |i: usize| *mine.get(i).unwrap_or(&true);
        let mut own = None;
        match result {
            Ok(outcomes) => {
                st.moved = now;
                for (_, (agreed, outcome)) in agreed.iter().zip(outcomes).enumerate().filter(|(i, _)| is_mine(*i)) {
                    let Some(entry) = self.ended(st, now, &agreed.name, &outcome) else { continue };
                    match entry.promise {
                        Some(promise) => st.after.push(After::Keep(promise, outcome)),
                        None => own = Some(Ok(outcome)),
                    }
                }
            }
            Err(Error::Withdrawn) if st.over.is_none() => {
                for (agreed, tensor) in agreed.iter().zip(tensors.drain(..)) {
                    let Some(entry) = st.entries.get_mut(&agreed.name) else { continue };
                    entry.tensor = Some(tensor);
                    own = own.or_else(|| promise_of(&mut entry.promise));
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
                    let Some(mut entry) = st.remove(&agreed.name) else { continue };
                    own = own.or_else(|| promise_of(&mut entry.promise));
                    st.recorder.failed(entry.record, &error, now);
                    let Some(promise) = entry.promise else { continue };
                    match &st.over {
                        Some(over) => st.after.push(After::Keep(promise, Err(over.clone()))),
                        None if refused => st.after.push(After::Keep(promise, Err(error.clone()))),
                        None => st.doomed.push(promise),
                    }
                }
                if st.over.is_none() && !refused {
                    st.after.push(After::Failed(error));
                }
            }
        }
        self.submit_parked(st, now);
        own
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
        let mut group = self.connected(old.generation + 1, old.tuning, withdrawal)?;
        group.barrier()?;
        *lane = Some(Lane { group, generation: old.generation + 1, ..old });
        Ok(())
    }

    /// Opens the lane, for the first time.
    pub(super) fn open_lane(&self, generation: u64, withdrawal: Withdrawal) -> Result<()> {
        let tuning = Tuning::default();
        let group = self.connected(generation, tuning, withdrawal)?;
        let fabric = &self.core.fabric;
        let planes = Planes::new(
            self.core.options.planes.clone(),
            fabric.card(fabric.rank()).locality.clone(),
            self.releases.clone(),
        );
        let (pool_of, id, members) = (Arc::clone(fabric), group_id(self.serial, STAGING_POOL), self.members.clone());
        let planes = planes.with_pool(Arc::new(move |bytes| pool_of.pool(id, &members, bytes)));
        *self.hand_over.lane() = Some(Lane { group, planes, generation, tuning });
        Ok(())
    }

    fn connected(&self, generation: u64, tuning: Tuning, withdrawal: Withdrawal) -> Result<Group> {
        Lane::connect(&self.core.fabric, self.serial, &self.members, (generation, tuning), withdrawal)
    }

    /// Finds out how this rank's clock stands to that of the first member. All members must call this.
    ///
    /// Nobody leaves the barrier before all have come, so the first member reads its clock after this rank has come; and
    /// before this rank has heard of it.
    pub(crate) fn align_clocks(&self) -> Result<()> {
        let mut lane = self.hand_over.lane();
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

/// A job that has run.
#[expect(
    clippy::large_enum_variant,
    reason = "there is one at a time, nearly always a batch, and a box would cost time"
)]
pub(super) enum Done {
    /// And how it went.
    Batch(Batch, Result<Outcomes>),
    Renewed(Result<()>),
    Tuned,
}

/// What becomes of a tensor that runs in the thread that has submitted it.
type Own = std::result::Result<Result<Outcome>, Arc<Promise>>;

/// From now on somebody must be promised what becomes of this.
fn promise_of(place: &mut Option<Arc<Promise>>) -> Option<Own> {
    if place.is_some() {
        return None;
    }
    let promise = Promise::new();
    *place = Some(Arc::clone(&promise));
    Some(Err(promise))
}

fn no_outcome() -> Error {
    Error::Bug("a tensor without an outcome".into())
}

fn one_outcome<T>(_: T) -> Outcomes {
    smallvec![Ok(Outcome::default())]
}
