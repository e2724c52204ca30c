//! One process set at work: what its member has submitted, its part in the agreement, and its lane.
//!
//! Two locks. The *state* is held for moments only: nothing waits under it. The *lane* is held by whoever runs
//! collectives, and for as long as they take. Two threads serve a set when nobody else does: the *watcher* sleeps on the
//! wires and answers the neighbours, the *runner* runs what is agreed. But a program that waits for a ticket does their
//! work itself, in its own thread, which saves waking anybody: that is most of the time of a small collective.
//!
//! Promises are kept, and other sets are told, only after the state's lock is released.

use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_collectives::Group;
use corro_core::{Error, GroupId, Rank, Result};
use corro_transport::Withdrawal;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use smallvec::{SmallVec, smallvec};

use crate::autotune::Change;
use crate::clock::{Estimate, PeerClock, RoundTrip};
use crate::core::Core;
use crate::executor::{self, Tensor};
use crate::fusion;
use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::metrics::Count;
use crate::node::{Action, Gear, Node};
use crate::observers::Ran;
use crate::recorder::{Recorder, State as Stage};
use crate::request::Kind;
use crate::submission::Submission;
use crate::ticket::{Outcome, Promise};
use crate::tree::{FAN_OUT, neighbours};
use crate::wires::{Heard, Traffic, Wires};

/// Looks for something to do before a waiting program gives way, if every rank has a core.
const SPINS: u32 = 200;
/// Turns given to others before it goes to sleep.
const YIELDS: u32 = 64;
/// How long a sleeping program sleeps before it looks again; it is woken when its ticket is done.
const NAP: Duration = Duration::from_millis(200);
/// How long the watcher sleeps at most: programs in a plan don't wake it, yet somebody must see when they wait in vain.
const LOOK_UP: Duration = Duration::from_millis(250);
/// How long neighbours may take to hear that the job is over.
const CLOSING_TIME: Duration = Duration::from_secs(3);

/// How often clocks are compared; the quickest comparison counts.
const CLOCK_SAMPLES: usize = 16;

/// A tensor this member has submitted, until it is done.
struct Entry {
    /// `None` while it runs.
    tensor: Option<Tensor>,
    /// Why it is to fail once it has come back from a collective it is withdrawn from.
    verdict: Option<Error>,
    promise: Arc<Promise>,
    /// In the flight recorder.
    record: u64,
    /// When it was submitted.
    since: Duration,
}

/// What the lane does next.
enum Job {
    /// Run these as one.
    Batch(Arc<[Arc<Agreed>]>, Gear),
    /// Open fresh connections: some member withdrew from the old ones.
    Renew,
}

/// A job that was taken.
enum Running {
    Batch(Batch),
    Renew,
}

/// Tensors that run as one. Most often it is one: then nothing is allocated.
struct Batch {
    agreed: Arc<[Arc<Agreed>]>,
    /// Of this member; where it has joined, nothing.
    tensors: SmallVec<[Tensor; 1]>,
    began: Duration,
    gear: Gear,
}

struct State {
    node: Node,
    wires: Wires,
    entries: HashMap<String, Entry>,
    queue: VecDeque<Job>,
    fusion: fusion::Limits,
    joins: Vec<Arc<Promise>>,
    /// Failed in a collective; they learn why once all agree on what failed first.
    doomed: Vec<Arc<Promise>>,
    /// Of the lane in use.
    withdrawal: Withdrawal,
    over: Option<Error>,
    /// Whether neighbours ring when they say something.
    armed: bool,
    /// Whether the watcher will look again by itself.
    watcher_up: bool,
    /// When the first tensor was submitted of which the others were not told.
    unsaid: Option<Duration>,
    closing: Option<Instant>,
    /// What the metrics know of.
    counted: Traffic,
    recorder: Recorder,
    /// To be done once the lock is released.
    after: SmallVec<[After; 1]>,
    heard: Vec<Heard>,
}

/// What is done without the lock.
enum After {
    Keep(Arc<Promise>, Result<Outcome>),
    Warn(String),
    Inform(String),
    Over(Error),
    Failed(Error),
}

/// What collectives run on.
struct Lane {
    group: Group,
    /// How many came before it.
    generation: u64,
}

/// See the module.
pub(crate) struct ProcessSet {
    pub(crate) id: u32,
    pub(crate) members: Vec<Rank>,
    serial: u64,
    core: Arc<Core>,
    state: Mutex<State>,
    lane: Mutex<Option<Lane>>,
    /// Programs that drive the set themselves right now.
    drivers: AtomicUsize,
    /// Whether there may be a job. A driver that leaves looks here after it has left; who makes a job looks for drivers
    /// after it has set this: so one of them sees the other, and wakes the runner.
    may_have_job: AtomicBool,
    /// Whether a driver listens to the neighbours, so that they need not ring.
    disarmed: AtomicBool,
    /// The runner sleeps on this.
    work: Condvar,
    /// Wakes the watcher.
    bell: OwnedFd,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl ProcessSet {
    /// Opens the set. All members must do so, with the same serial number, which no other set of the job ever had.
    pub(crate) fn open(core: &Arc<Core>, id: u32, serial: u64, members: Vec<Rank>) -> Result<Arc<Self>> {
        let fabric = &core.fabric;
        let me = members.binary_search(&fabric.rank()).map_err(|_| Error::Bug("a set without this rank".into()))?;
        let neighbours = neighbours(&hosts(core, &members), FAN_OUT, me);
        let wires = Wires::open(fabric, group_id(serial, 0), &members, &neighbours)?;
        let group = Group::open(fabric, group_id(serial, 1), &members)?;
        let node = Node::new(fabric.rank(), members.clone(), neighbours, core.options.rules());
        let watched = wires.watched()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("making an event descriptor", e))?;
        let state = State {
            node,
            wires,
            entries: HashMap::default(),
            queue: VecDeque::new(),
            fusion: core.options.rules().fusion,
            joins: Vec::new(),
            doomed: Vec::new(),
            withdrawal: group.withdrawal(),
            over: None,
            armed: false,
            watcher_up: true,
            unsaid: None,
            closing: None,
            counted: Traffic::default(),
            recorder: Recorder::new(core.options.recorded).of_set(id),
            after: SmallVec::new(),
            heard: Vec::new(),
        };
        let set = Arc::new(Self {
            id,
            members,
            serial,
            core: Arc::clone(core),
            state: Mutex::new(state),
            lane: Mutex::new(Some(Lane { group, generation: 0 })),
            drivers: AtomicUsize::new(0),
            may_have_job: AtomicBool::new(false),
            disarmed: AtomicBool::new(true),
            work: Condvar::new(),
            bell,
            threads: Mutex::new(Vec::new()),
        });
        set.start("watcher", move |set| set.watch(&watched))?;
        set.start("runner", |set| set.run_jobs())?;
        Ok(set)
    }

    fn start(self: &Arc<Self>, name: &str, act: impl FnOnce(&Arc<Self>) + Send + 'static) -> Result<()> {
        let set = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(format!("corro-{name}-{}", self.id))
            .spawn(move || act(&set))
            .map_err(|e| Error::io(format!("starting a thread ({name})"), e))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// Takes a tensor. With `driving`, the caller is about to drive until it is done, and nobody needs to be woken.
    pub(crate) fn submit(&self, submission: Submission, driving: bool) -> Result<Arc<Promise>> {
        submission.check(&self.members)?;
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            let now = self.core.now();
            let promise = self.take(st, now, submission, None)?;
            if driving {
                self.drivers.fetch_add(1, Ordering::SeqCst);
                self.may_have_job.store(true, Ordering::SeqCst);
            } else {
                self.wake_for(st, now);
            }
            Ok(promise)
        })
    }

    /// Takes tensors that complete together, or none of them.
    pub(crate) fn submit_group(&self, submissions: Vec<Submission>, number: u64) -> Result<Vec<Arc<Promise>>> {
        for submission in &submissions {
            submission.check(&self.members)?;
        }
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            for submission in &submissions {
                if st.entries.contains_key(&submission.name) {
                    return Err(self.duplicate(&submission.name));
                }
            }
            let now = self.core.now();
            let group = Some((number, submissions.len()));
            let mut promises = Vec::with_capacity(submissions.len());
            for submission in submissions {
                promises.push(self.take(st, now, submission, group)?);
            }
            self.wake_for(st, now);
            Ok(promises)
        })
    }

    /// Takes one tensor.
    fn take(
        &self,
        st: &mut State,
        now: Duration,
        mut submission: Submission,
        group: Option<(u64, usize)>,
    ) -> Result<Arc<Promise>> {
        if st.entries.contains_key(&submission.name) {
            return Err(self.duplicate(&submission.name));
        }
        let request = submission.request(group);
        let promise = Promise::new();
        let record = st.recorder.submitted(&request.name, request.kind.name(), request.bytes(), now);
        self.core.observers.submitted(now, &request);
        let Submission { input, output, .. } = submission;
        let tensor = Tensor { input, output, prescaled: false };
        let entry = Entry { tensor: Some(tensor), verdict: None, promise: Arc::clone(&promise), record, since: now };
        if st.node.submit_to_plan(now, &request) {
            st.entries.insert(request.name, entry);
        } else {
            st.entries.insert(request.name.clone(), entry);
            st.node.submit(now, request);
        }
        self.core.observers.metrics.set_queue_depth(st.entries.len() as u64);
        Ok(promise)
    }

    fn duplicate(&self, name: &str) -> Error {
        Error::Usage(format!(
            "requested to process a tensor with the same name as another tensor that is currently being processed: \
             {name} (process set {}). Give each tensor that is under way a name of its own.",
            self.id
        ))
    }

    /// Wakes whoever is needed for what was just submitted.
    fn wake_for(&self, st: &mut State, now: Duration) {
        if st.node.gear() == Gear::Plan {
            if st.node.can_begin() {
                self.wake_runner();
            }
            if !st.node.has_news() {
                return;
            }
        }
        st.unsaid.get_or_insert(now);
        if !std::mem::replace(&mut st.watcher_up, true) {
            self.ring();
        }
    }

    fn ring(&self) {
        // A full counter (never in practice) means it is ringing already.
        let _ = rustix::io::write(&self.bell, &1u64.to_ne_bytes());
    }

    /// This rank has run out of data.
    pub(crate) fn join(&self) -> Result<Arc<Promise>> {
        let promise = Promise::new();
        self.with_state(|st| {
            if let Some(error) = &st.over {
                return Err(error.clone());
            }
            if !st.joins.is_empty() {
                return Err(self.duplicate("join.noname"));
            }
            st.joins.push(Arc::clone(&promise));
            st.node.join(self.core.now());
            self.turn(st);
            Ok(())
        })?;
        Ok(promise)
    }

    /// Does the set's work in the caller's thread until the promise is kept; sleeps when there is none to do.
    pub(crate) fn drive_until(&self, promise: &Promise) {
        if !promise.is_kept() {
            self.drivers.fetch_add(1, Ordering::SeqCst);
            self.drive(promise);
        }
    }

    /// As [`ProcessSet::drive_until`], for a caller that counts as driver already.
    pub(crate) fn drive(&self, promise: &Promise) {
        let spins = if self.core.may_spin { SPINS } else { 0 };
        let mut idle = 0;
        let mut listening = false;
        while !promise.is_kept() {
            if self.run_what_is_ready() || self.listen(&mut listening) {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle < spins {
                std::hint::spin_loop();
            } else if idle < spins + YIELDS {
                rustix::thread::sched_yield();
            } else {
                break;
            }
        }
        let last = self.drivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && (self.disarmed.load(Ordering::SeqCst) || self.may_have_job.load(Ordering::SeqCst)) {
            self.with_state(|st| {
                if !st.armed {
                    self.arm(st);
                }
                if self.has_job(st) {
                    self.work.notify_one();
                }
            });
        }
        while !promise.is_kept() && !promise.sleep(NAP) {}
    }

    /// There is a job: if nobody drives, the runner is to do it.
    fn wake_runner(&self) {
        self.may_have_job.store(true, Ordering::SeqCst);
        if self.is_undriven() {
            self.work.notify_one();
        }
    }

    fn is_undriven(&self) -> bool {
        self.drivers.load(Ordering::SeqCst) == 0
    }

    /// Looks what the neighbours say; they need not ring meanwhile.
    fn listen(&self, listening: &mut bool) -> bool {
        self.with_state(|st| {
            if !std::mem::replace(listening, true) {
                self.disarm(st);
            }
            self.turn(st) || self.has_job(st)
        })
    }

    /// From now on neighbours ring; what they said before is heard now.
    fn arm(&self, st: &mut State) {
        st.wires.arm();
        st.armed = true;
        self.disarmed.store(false, Ordering::SeqCst);
        self.turn(st);
    }

    fn disarm(&self, st: &mut State) {
        if std::mem::take(&mut st.armed) {
            st.wires.disarm();
            self.disarmed.store(true, Ordering::SeqCst);
        }
    }

    fn has_job(&self, st: &State) -> bool {
        !st.queue.is_empty() || st.node.can_begin()
    }

    /// Runs all jobs there are. False if there were none, or somebody else runs them.
    fn run_what_is_ready(&self) -> bool {
        let mut lane = match self.lane.try_lock() {
            Ok(lane) => lane,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return false,
        };
        let Some(mut running) = self.with_state(|st| self.next_job(st, self.core.now())) else { return false };
        while let Some(next) = self.run_job(&mut lane, running) {
            running = next;
        }
        true
    }

    fn next_job(&self, st: &mut State, now: Duration) -> Option<Running> {
        let next = self.take_job(st, now);
        if next.is_none() {
            self.may_have_job.store(false, Ordering::SeqCst);
        }
        next
    }

    fn take_job(&self, st: &mut State, now: Duration) -> Option<Running> {
        let (agreed, gear) = match st.queue.pop_front() {
            Some(Job::Renew) => return Some(Running::Renew),
            Some(Job::Batch(agreed, gear)) => (agreed, gear),
            None => (st.node.begin(now)?, Gear::Plan),
        };
        let mut tensors = SmallVec::with_capacity(agreed.len());
        for agreed in agreed.iter() {
            let entry = st.entries.get_mut(&agreed.name);
            if let Some(entry) = &entry {
                st.recorder.came_to(entry.record, Stage::Running, now);
            }
            tensors.push(entry.and_then(|e| e.tensor.take()).unwrap_or_default());
        }
        Some(Running::Batch(Batch { agreed, tensors, began: now, gear }))
    }

    /// Runs a job, and takes the next one.
    fn run_job(&self, lane: &mut Option<Lane>, running: Running) -> Option<Running> {
        let mut batch = match running {
            Running::Batch(batch) => batch,
            Running::Renew => {
                let result = self.renew(lane);
                return self.with_state(|st| {
                    st.after.extend(result.err().map(After::Failed));
                    self.next_job(st, self.core.now())
                });
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
            st.node.tune(change.parameters.fusion_threshold);
            if change.finished {
                st.node.allow_plans();
            }
            self.turn(st);
        });
    }

    /// Keeps the promises of a batch, or puts its tensors back.
    fn finish(&self, st: &mut State, now: Duration, batch: Batch, result: Result<SmallVec<[Outcome; 1]>>) {
        let Batch { agreed, tensors, .. } = batch;
        match result {
            Ok(outcomes) => {
                for (agreed, outcome) in agreed.iter().zip(outcomes) {
                    let Some(entry) = st.entries.remove(&agreed.name) else { continue };
                    st.recorder.came_to(entry.record, Stage::Done, now);
                    self.core.observers.metrics.completed([now.saturating_sub(entry.since)]);
                    st.after.push(After::Keep(entry.promise, Ok(outcome)));
                }
            }
            Err(Error::Withdrawn) if st.over.is_none() => {
                for (agreed, tensor) in agreed.iter().zip(tensors) {
                    let Some(entry) = st.entries.get_mut(&agreed.name) else { continue };
                    entry.tensor = Some(tensor);
                    st.recorder.came_to(entry.record, Stage::Submitted, now);
                    if let Some(error) = entry.verdict.take() {
                        self.refuse(st, now, &agreed.name, &error);
                    }
                }
            }
            Err(error) => {
                // Making or removing a process set may be refused, on all ranks alike. Everything else ends the job, and
                // all are told what failed first.
                let refused = matches!(error, Error::Usage(_)) && !agreed[0].kind.is_cacheable();
                for agreed in agreed.iter() {
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

    /// Fails a tensor that does not run.
    fn refuse(&self, st: &mut State, now: Duration, name: &str, error: &Error) {
        if let Some(entry) = st.entries.remove(name) {
            st.recorder.failed(entry.record, error, now);
            st.after.push(After::Keep(entry.promise, Err(error.clone())));
        }
    }

    /// Replaces the lane. The old one is kept until all members have finished what they had begun there.
    fn renew(&self, lane: &mut Option<Lane>) -> Result<()> {
        let Some(old) = lane.take() else { return Ok(()) };
        let generation = old.generation + 1;
        let mut group = Group::open(&self.core.fabric, group_id(self.serial, 1 + generation), &self.members)?;
        group.barrier()?;
        self.with_state(|st| {
            st.withdrawal = group.withdrawal();
            if st.over.is_some() {
                st.withdrawal.set();
            }
        });
        *lane = Some(Lane { group, generation });
        Ok(())
    }

    /// The runner: runs jobs when nobody else does.
    fn run_jobs(&self) {
        loop {
            let mut st = lock(&self.state);
            while !(self.is_undriven() && self.has_job(&st)) {
                if st.closing.is_some() {
                    return;
                }
                st = self.work.wait(st).unwrap_or_else(PoisonError::into_inner);
            }
            drop(st);
            if !self.run_what_is_ready() {
                // Somebody else runs them: when that one leaves, there may be more.
                let lane = self.lane.lock().unwrap_or_else(PoisonError::into_inner);
                drop(lane);
            }
        }
    }

    /// The watcher: answers the neighbours when nobody else does.
    fn watch(&self, watched: &[(OwnedFd, usize)]) {
        loop {
            let (interest, nap) = self.with_state(|st| {
                self.disarm(st);
                let hold_back = self.hold_back(st);
                if hold_back.is_none() {
                    self.turn(st);
                }
                let mut heard = Vec::new();
                st.wires.check(&mut heard);
                st.heard.append(&mut heard);
                if self.is_undriven() {
                    if hold_back.is_none() {
                        self.arm(st);
                    }
                    if self.has_job(st) {
                        self.work.notify_one();
                    }
                }
                st.watcher_up = false;
                let nap = hold_back.unwrap_or_else(|| self.nap(st));
                (st.wires.interest(watched), nap)
            });
            let done = self.with_state(|st| st.closing.is_some_and(|until| self.may_close(st, until)));
            if done {
                return;
            }
            let mut fds = vec![PollFd::new(&self.bell, PollFlags::IN)];
            fds.extend(interest.iter().map(|(i, flags)| PollFd::from_borrowed_fd(watched[*i].0.as_fd(), *flags)));
            let nap = Timespec { tv_sec: nap.as_secs().cast_signed(), tv_nsec: i64::from(nap.subsec_nanos()) };
            let _ = poll(&mut fds, Some(&nap));
            let _ = rustix::io::read(&self.bell, &mut [0u8; 8]);
        }
    }

    /// How long to hold back what was submitted, for those who set a cycle time.
    fn hold_back(&self, st: &State) -> Option<Duration> {
        let until = st.unsaid? + self.core.options.cycle_time?;
        let left = until.saturating_sub(self.core.now());
        (!left.is_zero() && self.is_undriven() && st.over.is_none()).then_some(left)
    }

    fn nap(&self, st: &State) -> Duration {
        let tick = st.node.next_tick().map_or(LOOK_UP, |at| at.saturating_sub(self.core.now()));
        tick.clamp(Duration::from_millis(1), LOOK_UP)
    }

    fn may_close(&self, st: &State, until: Instant) -> bool {
        (st.node.may_close() && st.wires.is_flushed()) || Instant::now() >= until
    }

    /// Listens, thinks, speaks, until there is nothing new. True if anything was heard or said.
    fn turn(&self, st: &mut State) -> bool {
        let now = self.core.now();
        st.unsaid = None;
        let mut stirred = false;
        loop {
            let mut heard = std::mem::take(&mut st.heard);
            st.wires.pump(&mut heard);
            let mut again = !heard.is_empty();
            for said in heard.drain(..) {
                match said {
                    Heard::FromChild(said) => said.into_iter().for_each(|m| st.node.hear_child(now, m)),
                    Heard::FromParent(decisions) => st.node.hear_parent(now, decisions),
                    // The global set sees every death; others would only see it in another order.
                    Heard::Lost(member, error) if self.id == crate::submission::GLOBAL => {
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
            Action::Run(agreed) => {
                let gear = st.node.gear();
                self.core.observers.agreed(now, gear, &agreed);
                for batch in fusion::batches(&agreed, st.fusion) {
                    let batch = batch.tensors.iter().map(|i| Arc::clone(&agreed[*i])).collect();
                    st.queue.push_back(Job::Batch(batch, gear));
                }
                self.wake_runner();
            }
            Action::Fail(names, error) => {
                self.core.observers.refused(now, &names);
                for name in &names {
                    match st.entries.get_mut(name) {
                        // Withdrawn from, but not back yet.
                        Some(Entry { tensor: None, verdict, .. }) => *verdict = Some(error.clone()),
                        _ => self.refuse(st, now, name, &error),
                    }
                }
            }
            Action::AllJoined(last) => {
                for promise in st.joins.drain(..) {
                    let outcome = Outcome { last_joined: Some(last), ..Outcome::default() };
                    st.after.push(After::Keep(promise, Ok(outcome)));
                }
            }
            Action::Planned => {
                self.core.observers.metrics.changed_gear("the same step came again and again: a plan");
                st.after.push(After::Inform(format!("process set {}: follows a plan from now on", self.id)));
                self.wake_runner();
            }
            Action::PlanLeft { withdraw, renew, reason } => {
                if withdraw {
                    st.withdrawal.set();
                }
                if renew {
                    st.queue.push_back(Job::Renew);
                    self.wake_runner();
                }
                self.core.observers.metrics.add(Count::PlansLeft, 1);
                self.core.observers.metrics.changed_gear(&reason);
                st.after.push(After::Inform(format!("process set {}: left the plan, {reason}", self.id)));
            }
            Action::Heard(name, rank) => {
                if let Ok(member) = self.members.binary_search(&rank) {
                    self.core.observers.rank_ready(now, &name, member);
                }
            }
            Action::Asked => {
                let doing = st.recorder.last(now);
                st.node.answer(doing);
            }
            Action::Stalled(report) => {
                self.core.observers.metrics.add(Count::Stalls, 1);
                st.after.push(After::Warn(report.to_string()));
            }
            Action::Tune(threshold) => st.fusion.threshold = threshold,
            Action::Over(error) => {
                st.over = Some(error.clone());
                st.withdrawal.set();
                st.queue.clear();
                st.wires.expect_end();
                // What runs is still being used; it fails when it comes back.
                let waiting = |(name, entry): (&String, &Entry)| entry.tensor.is_some().then(|| name.clone());
                for name in st.entries.iter().filter_map(waiting).collect::<Vec<_>>() {
                    self.refuse(st, now, &name, &error);
                }
                for promise in st.joins.drain(..).chain(st.doomed.drain(..)) {
                    st.after.push(After::Keep(promise, Err(error.clone())));
                }
                st.after.push(After::Over(error));
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

    /// Ends the job for all ranks.
    pub(crate) fn shut_down(&self) {
        self.with_state(|st| {
            st.node.shut_down();
            self.turn(st);
        });
    }

    /// Something here has ended the job.
    pub(crate) fn fail(&self, error: Error) {
        self.with_state(|st| {
            st.node.fail(self.core.now(), error);
            self.turn(st);
        });
    }

    /// Ends this set here: the job is over.
    pub(crate) fn close(&self, error: Error) {
        self.with_state(|st| {
            st.node.close(error);
            self.turn(st);
        });
    }

    /// Whether the job is over for this set.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).over.is_some()
    }

    /// Ends the threads and closes the connections.
    pub(crate) fn stop(&self, linger: bool) {
        let until = Instant::now() + if linger { CLOSING_TIME } else { Duration::ZERO };
        self.with_state(|st| st.closing = Some(until));
        self.work.notify_all();
        self.ring();
        let own = std::thread::current().id();
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            if thread.thread().id() != own {
                let _ = thread.join();
            }
        }
        drop(self.lane.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    /// The last operations.
    pub(crate) fn with_recorder<R>(&self, act: impl FnOnce(&Recorder) -> R) -> R {
        act(&lock(&self.state).recorder)
    }

    /// How members agree at present, and what that has cost in messages.
    pub(crate) fn traffic(&self) -> (Gear, Traffic) {
        let st = lock(&self.state);
        (st.node.gear(), st.wires.traffic)
    }

    /// Calls `act` with the state; does afterwards what must not be done under its lock.
    fn with_state<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        let mut st = lock(&self.state);
        let result = act(&mut st);
        if st.after.is_empty() {
            return result;
        }
        let after = std::mem::take(&mut st.after);
        drop(st);
        for after in after {
            match after {
                After::Keep(promise, outcome) => promise.keep(outcome),
                After::Warn(text) => self.core.warn(&text),
                After::Inform(text) => self.core.inform(&text),
                After::Over(error) => self.core.ended(self.id, &error),
                After::Failed(error) => self.core.failed(error),
            }
        }
        result
    }
}

fn one_outcome<T>(_: T) -> SmallVec<[Outcome; 1]> {
    smallvec![Outcome::default()]
}

/// A set's connections: 0 for the agreement, from 1 on for its lanes.
fn group_id(serial: u64, what: u64) -> GroupId {
    GroupId((serial + 1) << 24 | what)
}

/// Members by host: hosts in the order of their first member.
fn hosts(core: &Core, members: &[Rank]) -> Vec<Vec<usize>> {
    let mut places: HashMap<&str, usize> = HashMap::default();
    let mut hosts: Vec<Vec<usize>> = Vec::new();
    for (member, rank) in members.iter().enumerate() {
        let host = *places.entry(core.fabric.cards()[*rank].locality.as_str()).or_insert(hosts.len());
        if host == hosts.len() {
            hosts.push(Vec::new());
        }
        hosts[host].push(member);
    }
    hosts
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// For whoever must not keep a set alive.
pub(crate) type WeakSet = Weak<ProcessSet>;

/// The request a member makes of the global set to change the process sets.
pub(crate) fn set_request(kind: Kind) -> Submission {
    let name = match kind {
        Kind::AddSet { .. } => "add_process_set.noname",
        _ => "remove_process_set.noname",
    };
    Submission::new(name, kind, corro_core::DType::U8, corro_core::Shape(vec![]))
}

/// A number for a group of tensors that is the same on all ranks and in every step: made of their names.
pub(crate) fn group_number<'a>(names: impl Iterator<Item = &'a str>) -> u64 {
    // FNV-1a: stable across processes and releases, unlike the standard hasher.
    names
        .flat_map(|n| n.bytes().chain([0]))
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
