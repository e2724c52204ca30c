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
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_agreement::hash::HashMap;
use corro_agreement::node::{Gear, Node, Rules};
use corro_agreement::tree::{FAN_OUT, neighbours};
use corro_core::{Buffer, Error, Rank, Reason, Result};
use corro_planes::Releases;
use corro_transport::Withdrawal;
use rustix::event::{EventfdFlags, eventfd};
use smallvec::SmallVec;

use super::entries::Entries;
use super::hand_over::{HandOver, ListenState};
use super::lane::group_id;
use super::parking::Parking;
use super::state::{After, State};
use super::wires::{Traffic, Wires};
use crate::core::Core;
use crate::submission::GLOBAL;
use crate::watch::recorder::Recorder;

/// How long neighbours may take to hear that the job is over.
const CLOSING_TIME: Duration = Duration::from_secs(3);

/// See the module.
pub(crate) struct ProcessSet {
    pub(crate) id: u32,
    pub(crate) members: Vec<Rank>,
    pub(super) serial: u64,
    pub(super) core: Arc<Core>,
    /// Has the state and the lane, and says who does the set's work.
    pub(super) hand_over: HandOver<Self>,
    /// Wakes the watcher.
    pub(super) bell: OwnedFd,
    pub(super) threads: Mutex<Vec<JoinHandle<()>>>,
    /// How many pools its members have made.
    pub(super) pools: AtomicU64,
    /// How its devices are let go on when it has ended.
    pub(super) releases: Releases,
    /// All members have removed it, in order.
    removed: AtomicBool,
}

/// Among the numbers of a set's groups, where those of its pools begin.
const POOLS: u64 = 1 << 23;

/// The one in which tensors of GPUs pass through the host: of the planes, which make it in the order of batches.
pub(super) const STAGING_POOL: u64 = POOLS - 1;

impl ProcessSet {
    /// Opens the set. All members must do so, with the same serial number, which no other set of the job ever had.
    pub(crate) fn open(core: &Arc<Core>, id: u32, serial: u64, members: Vec<Rank>) -> Result<Arc<Self>> {
        let fabric = &core.fabric;
        let me = members.binary_search(&fabric.rank()).map_err(|_| Error::Bug("a set without this rank".into()))?;
        let neighbours = neighbours(&hosts(core, &members), FAN_OUT, me);
        let wires = Wires::open(fabric, group_id(serial, 0), &members, &neighbours)?;
        let withdrawal = Withdrawal::default();
        let timeout = fabric.settings().timeout;
        let rules = Rules { timeout, watches: id == GLOBAL, ..core.options.rules() };
        let node = Node::new(fabric.rank(), members.clone(), neighbours, rules);
        let watched = wires.watched()?;
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| Error::io("making an event descriptor", e))?;
        let state = State {
            node,
            wires,
            entries: Entries::default(),
            parking: Parking::default(),
            queue: VecDeque::new(),
            fusion: core.options.rules().fusion,
            joins: Vec::new(),
            doomed: Vec::new(),
            withdrawal: withdrawal.clone(),
            over: None,
            listening: ListenState::default(),
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
            hand_over: HandOver::new(state, None),
            bell,
            threads: Mutex::new(Vec::new()),
            pools: AtomicU64::new(0),
            releases: Releases::default(),
            removed: AtomicBool::new(false),
        });
        // From here on the set hears of deaths, also while it waits for its members to open the lane.
        set.start("watcher", move |set| set.watch(&watched))?;
        match set.open_lane(0, withdrawal).and_then(|()| set.start("runner", |set| set.hand_over.run_jobs(set))) {
            Ok(()) => Ok(set),
            Err(error) => Err(set.stillborn(error)),
        }
    }

    /// The set could not be opened: ends it, and gives the reason that all members come to.
    fn stillborn(&self, error: Error) -> Error {
        let global = self.id == GLOBAL;
        if global {
            // The others wait for this rank.
            self.fail(error.clone());
            let until = Instant::now() + CLOSING_TIME;
            while !self.is_over() && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let why = self.hand_over.state().over.clone().or_else(|| self.core.over()).unwrap_or(error);
        self.close(why.clone());
        self.stop(global);
        why
    }

    /// Makes memory that the members share, if all are on one host. All of them must call this, in the same order.
    pub(crate) fn shared_memory(&self, bytes: usize) -> Result<Option<Buffer>> {
        if let Some(error) = &self.hand_over.state().over {
            return Err(error.clone());
        }
        let number = self.pools.fetch_add(1, Ordering::Relaxed);
        self.core.fabric.pool(group_id(self.serial, POOLS | number), &self.members, bytes)
    }

    fn start(self: &Arc<Self>, name: &str, act: impl FnOnce(&Arc<Self>) + Send + 'static) -> Result<()> {
        let set = Arc::clone(self);
        let thread = std::thread::Builder::new()
            .name(format!("corro-{name}-{}", self.id))
            .spawn(move || {
                set.core.settle();
                act(&set);
            })
            .map_err(|e| Error::io(format!("starting a thread ({name})"), e))?;
        lock(&self.threads).push(thread);
        Ok(())
    }

    /// This rank leaves, which ends the job for all.
    pub(crate) fn shut_down(&self, reason: Reason) {
        let host = &self.core.fabric.card(self.core.fabric.rank()).host;
        self.with_state(|st| {
            st.node.shut_down(host, reason);
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

    /// A rank is to count as lost, though its engine answers.
    pub(crate) fn give_up(&self, error: Error) {
        self.with_state(|st| {
            st.node.give_up(self.core.now(), error);
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

    /// Ends this set here: all members do, after everything that they have agreed on. The job goes on.
    pub(crate) fn remove(&self) {
        self.removed.store(true, Ordering::SeqCst);
        self.close(Error::Usage(format!("process set {} was removed", self.id)));
    }

    /// Whether the job is over for this set.
    pub(crate) fn is_over(&self) -> bool {
        self.hand_over.state().over.is_some()
    }

    /// Ends the threads and closes the connections.
    pub(crate) fn stop(&self, linger: bool) {
        let until = Instant::now() + if linger { CLOSING_TIME } else { Duration::ZERO };
        self.hand_over.close(self, |st| st.closing = Some(until));
        let own = std::thread::current().id();
        let mut threads = std::mem::take(&mut *lock(&self.threads));
        threads.retain(|t| t.thread().id() != own);
        while threads.iter().any(|t| !t.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_micros(200));
        }
        // Whatever still runs, or is being opened, waits for somebody who does not come.
        self.with_state(|st| st.withdrawal.set());
        if self.id == GLOBAL {
            self.core.fabric.give_up(Error::Shutdown("Horovod has been shut down".into()));
        }
        for thread in threads {
            let _ = thread.join();
        }
        drop(self.hand_over.lane().take());
    }

    /// The last operations.
    pub(crate) fn with_recorder<R>(&self, act: impl FnOnce(&Recorder) -> R) -> R {
        act(&self.hand_over.state().recorder)
    }

    /// How members agree at present, and what that has cost in messages.
    pub(crate) fn traffic(&self) -> (Gear, Traffic) {
        let st = self.hand_over.state();
        (st.node.gear(), st.wires.traffic)
    }

    /// Calls `act` with the state; does afterwards what must not be done under its lock.
    pub(super) fn with_state<R>(&self, act: impl FnOnce(&mut State) -> R) -> R {
        self.hand_over.with_state(self, act)
    }

    /// Devices wait for no one who is lost. After an orderly end all have done what they had to.
    fn release_devices(&self, error: &Error) {
        let is_orderly = matches!(error, Error::Shutdown(_)) || self.removed.load(Ordering::SeqCst);
        if !is_orderly && let Err(error) = self.releases.run() {
            self.core.warn(&format!("a GPU may wait for ever for a rank that is lost: {error}"));
        }
    }

    /// Lets go of the state, and then does what was put off until then.
    pub(super) fn do_after(&self, mut st: MutexGuard<'_, State>) {
        if st.after.is_empty() {
            return;
        }
        let after = std::mem::take(&mut st.after);
        drop(st);
        for after in after {
            match after {
                After::Keep(promise, outcome) => promise.keep(outcome),
                After::Warn(text) => self.core.warn(&text),
                After::Detail(text) => self.core.detail(&text),
                After::Over(error) => {
                    // First it is known to be over: what devices come to afterwards is of no worth, see `Engine::over`.
                    self.core.ended(self.id, &error);
                    self.release_devices(&error);
                }
                After::Failed(error) => self.core.failed(error),
                After::Lost(error) => self.core.lost(error),
            }
        }
    }
}

/// Members by host: hosts in the order of their first member.
fn hosts(core: &Core, members: &[Rank]) -> Vec<Vec<usize>> {
    let mut places: HashMap<&str, usize> = HashMap::default();
    let mut hosts: Vec<Vec<usize>> = Vec::new();
    for (member, rank) in members.iter().enumerate() {
        let host = *places.entry(core.fabric.card(*rank).locality.as_str()).or_insert(hosts.len());
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
