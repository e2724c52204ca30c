//! One process set at work: what its member has submitted, its part in the agreement, and its lane.
//!
//! Two locks. The *state* is held for moments only: nothing waits under it. The *lane* is held by whoever runs
//! collectives, and for as long as they take. Two threads serve a set when nobody else does: the *watcher* sleeps on the
//! wires and answers the neighbours, the *runner* runs what is agreed. But a program that waits for a ticket does their
//! work itself, in its own thread, which saves waking anybody: that is most of the time of a small collective.
//!
//! Promises are kept, and other sets are told, only after the state's lock is released.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_agreement::fusion;
use corro_agreement::hash::{HashMap, HashSet};
use corro_agreement::node::{Action, Gear, Node, Rules};
use corro_agreement::request::Kind;
use corro_agreement::tree::{FAN_OUT, neighbours};
use corro_core::{Buffer, Error, GroupId, Rank, Result};
use corro_transport::Withdrawal;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;

use crate::core::Core;
use crate::submission::Submission;
use crate::ticket::{Outcome, Promise};
use crate::watch::metrics::Count;
use crate::watch::recorder::Recorder;

mod driving;
pub(crate) mod executor;
mod lane;
mod state;
mod wires;

use executor::Tensor;
pub(crate) use lane::Ended;
use lane::Lane;
use state::{After, Entry, Job, State};
use wires::{Heard, Traffic, Wires};

/// How long neighbours may take to hear that the job is over.
const CLOSING_TIME: Duration = Duration::from_secs(3);

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
    /// The runner sleeps on this.
    work: Condvar,
    /// Wakes the watcher.
    bell: OwnedFd,
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many pools its members have made.
    pools: AtomicU64,
}

/// Among the numbers of a set's groups, where those of its pools begin.
const POOLS: u64 = 1 << 23;

impl ProcessSet {
    /// Opens the set. All members must do so, with the same serial number, which no other set of the job ever had.
    pub(crate) fn open(core: &Arc<Core>, id: u32, serial: u64, members: Vec<Rank>) -> Result<Arc<Self>> {
        let fabric = &core.fabric;
        let me = members.binary_search(&fabric.rank()).map_err(|_| Error::Bug("a set without this rank".into()))?;
        let neighbours = neighbours(&hosts(core, &members), FAN_OUT, me);
        let wires = Wires::open(fabric, group_id(serial, 0), &members, &neighbours)?;
        let withdrawal = Withdrawal::default();
        let timeout = fabric.settings().timeout;
        let rules = Rules { timeout, watches: id == crate::submission::GLOBAL, ..core.options.rules() };
        let node = Node::new(fabric.rank(), members.clone(), neighbours, rules);
        let watched = wires.watched()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("making an event descriptor", e))?;
        let state = State {
            node,
            wires,
            entries: HashMap::default(),
            express: None,
            queue: VecDeque::new(),
            fusion: core.options.rules().fusion,
            joins: Vec::new(),
            doomed: Vec::new(),
            withdrawal: withdrawal.clone(),
            over: None,
            listeners: 0,
            armed: false,
            watcher_up: true,
            unsaid: None,
            closing: None,
            waiting: None,
            moved: Duration::ZERO,
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
            lane: Mutex::new(None),
            drivers: AtomicUsize::new(0),
            may_have_job: AtomicBool::new(false),
            work: Condvar::new(),
            bell,
            threads: Mutex::new(Vec::new()),
            pools: AtomicU64::new(0),
        });
        // From here on the set hears of deaths, also while it waits for its members to open the lane.
        set.start("watcher", move |set| set.watch(&watched))?;
        match set.open_lane(0, withdrawal).and_then(|()| set.start("runner", |set| set.run_jobs())) {
            Ok(()) => Ok(set),
            Err(error) => Err(set.stillborn(error)),
        }
    }

    /// The set could not be opened: ends it, and gives the reason that all members come to.
    fn stillborn(&self, error: Error) -> Error {
        let global = self.id == crate::submission::GLOBAL;
        if global {
            // The others wait for this rank.
            self.fail(error.clone());
            let until = Instant::now() + CLOSING_TIME;
            while !self.is_over() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let why = lock(&self.state).over.clone().or_else(|| self.core.over()).unwrap_or(error);
        self.close(why.clone());
        self.stop(global);
        why
    }

    /// Makes memory that the members share, if all are on one host. All of them must call this, in the same order.
    pub(crate) fn shared_memory(&self, bytes: usize) -> Result<Option<Buffer>> {
        if let Some(error) = &lock(&self.state).over {
            return Err(error.clone());
        }
        let number = self.pools.fetch_add(1, Ordering::Relaxed);
        let pool = self.core.fabric.pool(group_id(self.serial, POOLS | number), &self.members, bytes)?;
        Ok(pool.map(|pool| pool.part()))
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

    /// A name for a tensor that has none.
    pub(crate) fn name(&self, kind: &str) -> String {
        lock(&self.state).node.name(kind)
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
                if st.is_under_way(&submission.name) {
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
        if st.is_under_way(&submission.name) {
            return Err(self.duplicate(&submission.name));
        }
        let request = submission.request(group);
        let promise = Promise::new();
        let record = st.recorder.submitted(&request.name, request.kind.name(), request.bytes(), now);
        self.core.observers.submitted(now, &request);
        let Submission { input, output, .. } = submission;
        let tensor = Tensor { input, output, prescaled: false, refused: None };
        st.node.note_looks(self.core.looks());
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
                    let mine = batch.tensors.iter().map(|i| st.is_under_way(&agreed[*i].name)).collect();
                    let batch = batch.tensors.iter().map(|i| Arc::clone(&agreed[*i])).collect();
                    st.queue.push_back(Job::Batch(batch, mine, gear));
                }
                self.wake_runner();
            }
            Action::Fail(names, error) => {
                self.core.observers.refused(now, &names);
                for name in &names {
                    if let Some((agreed, verdict)) = &mut st.express
                        && agreed.name == *name
                    {
                        *verdict = Some(error.clone());
                    }
                    match st.entries.get_mut(name) {
                        // Withdrawn from, but not back yet.
                        Some(Entry { tensor: None, verdict, .. }) => *verdict = Some(error.clone()),
                        _ => st.refuse(now, name, &error),
                    }
                }
            }
            Action::AllJoined(last) => {
                st.moved = now;
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
            Action::Refined { from, to } => {
                let text = format!("process set {}: the plan has {to} entries from now on, it had {from}", self.id);
                st.after.push(After::Inform(text));
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
            Action::Silent(member, silence) => {
                if let Some(error) = st.wires.give_up_on(member, silence) {
                    st.node.lost(now, member, error);
                }
            }
            Action::Stalled(report) => {
                self.core.observers.metrics.add(Count::Stalls, 1);
                st.after.push(After::Warn(report.to_string()));
            }
            Action::Tune(threshold, knobs) => {
                st.fusion.threshold = threshold;
                // In the queue, so that it comes between the same two collectives on all members.
                st.queue.push_back(Job::Tune(lane::tuning(knobs)));
                self.wake_runner();
            }
            Action::Over(error) => {
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
                self.core.note_end(self.id, &error);
                st.after.push(After::Over(error.clone()));
                // What runs is still being used; it fails when it comes back.
                let waiting = |(name, entry): (&String, &Entry)| {
                    (entry.tensor.is_some() && !told.contains(name)).then(|| name.clone())
                };
                for name in st.entries.iter().filter_map(waiting).collect::<Vec<_>>() {
                    st.refuse(now, &name, &error);
                }
                for promise in st.joins.drain(..).chain(st.doomed.drain(..)) {
                    st.after.push(After::Keep(promise, Err(error.clone())));
                }
            }
        }
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
        let mut threads = std::mem::take(&mut *lock(&self.threads));
        threads.retain(|t| t.thread().id() != own);
        while threads.iter().any(|t| !t.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        // Whatever still runs, or is being opened, waits for somebody who does not come.
        self.with_state(|st| st.withdrawal.set());
        if self.id == crate::submission::GLOBAL {
            self.core.fabric.give_up(Error::Shutdown("Horovod has been shut down".into()));
        }
        for thread in threads {
            let _ = thread.join();
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
