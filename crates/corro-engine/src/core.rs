//! What the process sets of one engine share: the fabric, the clock, the table of sets, and how it all ends.

use std::collections::{BTreeMap, VecDeque};
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Error, Rank, Result};
use corro_transport::{Fabric, cores};

use crate::options::Options;
use crate::set::{ProcessSet, WeakSet};
use crate::submission::GLOBAL;
use crate::tuning::autotune::Change;
use crate::watch::observers::Observers;

pub(crate) struct Core {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) options: Options,
    pub(crate) may_spin: bool,
    pub(crate) observers: Observers,
    /// How often the program has learned that something is done.
    looks: AtomicU64,
    start: Instant,
    sets: Mutex<Sets>,
    global: OnceLock<WeakSet>,
    over: Mutex<Option<Error>>,
    /// Since when each set has waited without anything getting on.
    waiting: Mutex<BTreeMap<u32, Duration>>,
}

/// Which sets there are. All ranks add and remove in the same order, so they number alike.
#[derive(Default)]
struct Sets {
    known: BTreeMap<u32, Known>,
    /// Numbers of removed sets, the first to be used again first.
    free: VecDeque<u32>,
    /// How many sets there ever were.
    made: u64,
}

struct Known {
    members: Vec<Rank>,
    /// `None`: this rank is not a member.
    set: Option<Arc<ProcessSet>>,
}

impl Core {
    pub(crate) fn new(fabric: Arc<Fabric>, options: Options) -> Arc<Self> {
        let here = &fabric.cards()[fabric.rank()].locality;
        let local = fabric.cards().iter().filter(|c| c.locality == *here).count();
        let may_spin = fabric.settings().spin.unwrap_or_else(|| cores::may_spin(local));
        // Rank 0 tunes for all.
        let tuner = options.tuning.as_ref().filter(|_| fabric.rank() == 0).map(|tuning| tuning.tuner(&fabric));
        Arc::new(Self {
            fabric,
            options,
            may_spin,
            observers: Observers::new(tuner),
            looks: AtomicU64::new(0),
            start: Instant::now(),
            sets: Mutex::default(),
            global: OnceLock::new(),
            over: Mutex::new(None),
            waiting: Mutex::default(),
        })
    }

    /// Since the engine's start.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// How often the program has learned that something is done. What it submits from then on may depend on that.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// The program learns that something is done.
    pub(crate) fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
    }

    /// The set with this number, if this rank is a member.
    pub(crate) fn set(&self, id: u32) -> Result<Arc<ProcessSet>> {
        match lock(&self.sets).known.get(&id) {
            Some(Known { set: Some(set), .. }) => Ok(Arc::clone(set)),
            Some(Known { members, .. }) if self.is_reserved(members) => Err(Error::Usage(format!(
                "process set {id} has ranks {members:?}, but since the last change of its ranks this job has {}, and no set of \
                 its own for these: Process set provided does not exist at present. Ask hvd.size() before using it, or \
                 use hvd.global_process_set",
                self.fabric.size()
            ))),
            Some(Known { members, .. }) => Err(Error::Usage(format!(
                "rank {} is not a member of the provided process set {id}, which has ranks {members:?}",
                self.fabric.rank()
            ))),
            None if self.over().is_some() => Err(self.over().unwrap_or(Error::Withdrawn)),
            None => Err(Error::Usage(format!(
                "process set {id}: Process set provided does not exist, or has not been registered"
            ))),
        }
    }

    pub(crate) fn members(&self, id: u32) -> Option<Vec<Rank>> {
        lock(&self.sets).known.get(&id).map(|k| k.members.clone())
    }

    pub(crate) fn all_members(&self) -> Vec<(u32, Vec<Rank>)> {
        lock(&self.sets).known.iter().map(|(id, k)| (*id, k.members.clone())).collect()
    }

    /// The number a set of these ranks has.
    pub(crate) fn find(&self, members: &[Rank]) -> Option<u32> {
        lock(&self.sets).known.iter().find(|(_, k)| k.members == members).map(|(id, _)| *id)
    }

    /// Makes a process set. All ranks do so in the same order.
    pub(crate) fn add_set(self: &Arc<Self>, ranks: &[Rank]) -> Result<u32> {
        if let Some(id) = self.find(ranks) {
            return Err(duplicate(id, ranks));
        }
        let (id, serial) = {
            let mut sets = lock(&self.sets);
            let serial = sets.made;
            sets.made += 1;
            (sets.free.pop_front().unwrap_or(sets.known.len() as u32), serial)
        };
        let member = ranks.binary_search(&self.fabric.rank()).is_ok();
        let set = if member { Some(ProcessSet::open(self, id, serial, ranks.to_vec())?) } else { None };
        if id == GLOBAL
            && let Some(set) = &set
        {
            let _ = self.global.set(Arc::downgrade(set));
        }
        lock(&self.sets).known.insert(id, Known { members: ranks.to_vec(), set });
        Ok(id)
    }

    /// Keeps a number for a set that can't be made of the ranks there are.
    pub(crate) fn reserve_set(&self, ranks: Vec<Rank>) -> u32 {
        let mut sets = lock(&self.sets);
        let id = sets.free.pop_front().unwrap_or(sets.known.len() as u32);
        sets.known.insert(id, Known { members: ranks, set: None });
        id
    }

    fn is_reserved(&self, members: &[Rank]) -> bool {
        members.last().is_none_or(|last| *last >= self.fabric.size()) || members.len() == self.fabric.size()
    }

    /// Removes a process set. All ranks do so in the same order.
    pub(crate) fn remove_set(&self, id: u32) -> Result<()> {
        let known = {
            let mut sets = lock(&self.sets);
            let known = sets.known.remove(&id);
            if known.is_some() {
                sets.free.push_back(id);
            }
            known
        };
        let Some(known) = known else {
            return Err(Error::Usage(format!("process set {id} does not exist, or has not been registered")));
        };
        if let Some(set) = known.set {
            set.close(Error::Usage(format!("process set {id} was removed")));
            set.stop(false);
        }
        Ok(())
    }

    /// Why the job ended, if it did.
    pub(crate) fn over(&self) -> Option<Error> {
        lock(&self.over).clone()
    }

    /// Takes note of a set's end, without doing anything about it: whoever learns of it later finds the engine over.
    pub(crate) fn note_end(&self, id: u32, error: &Error) {
        if id == GLOBAL {
            *lock(&self.over) = Some(error.clone());
        }
    }

    /// A set has come to its end. If it is the global one, so have all.
    pub(crate) fn ended(&self, id: u32, error: &Error) {
        if id != GLOBAL {
            return;
        }
        // After an orderly shutdown what was agreed on before still runs, and may have to be opened first.
        if !matches!(error, Error::Shutdown(_)) {
            self.fabric.give_up(error.clone());
        }
        if !matches!(error, Error::Shutdown(text) if !text.contains("Missing ranks")) {
            self.warn(&format!("no collective can run any more: {error}"));
        }
        let others: Vec<Arc<ProcessSet>> =
            lock(&self.sets).known.iter().filter(|(id, _)| **id != GLOBAL).filter_map(|(_, k)| k.set.clone()).collect();
        for set in others {
            set.close(error.clone());
        }
    }

    /// Since when a set has waited without anything getting on. Gives since when any set has.
    pub(crate) fn waits(&self, id: u32, since: Option<Duration>) -> Option<Duration> {
        let mut waiting = lock(&self.waiting);
        match since {
            Some(since) => waiting.insert(id, since),
            None => waiting.remove(&id),
        };
        waiting.values().min().copied()
    }

    /// Something here has ended the job: all ranks learn it through the global set.
    pub(crate) fn failed(&self, error: Error) {
        if let Some(global) = self.global.get().and_then(WeakSet::upgrade) {
            global.fail(error);
        }
    }

    /// Takes all sets out of the table, the global one last.
    pub(crate) fn take_sets(&self) -> Vec<Arc<ProcessSet>> {
        let known = std::mem::take(&mut lock(&self.sets).known);
        known.into_values().rev().filter_map(|k| k.set).collect()
    }

    /// Writes down what the tuner has found.
    pub(crate) fn log_tuning(&self, change: &Change) {
        self.inform(&change.reason);
        let Some(path) = self.options.tuning.as_ref().and_then(|t| t.log.as_ref()) else { return };
        let written = OpenOptions::new().append(true).open(path).and_then(|mut f| f.write_all(change.rows.as_bytes()));
        if let Err(error) = written {
            self.warn(&format!("the autotuner's log {} can't be written: {error}", path.display()));
        }
    }

    /// Starts what watches from the beginning: timeline, trace, the tuner's log.
    pub(crate) fn start_observers(&self) {
        let (rank, watch) = (self.fabric.rank(), &self.options.watching);
        let mut results = Vec::new();
        if let Some(path) = watch.timeline.as_ref().filter(|_| rank == 0) {
            results.push(self.observers.start_timeline(path, watch.cap, watch.mark_cycles, self.now()));
        }
        if let Some(path) = &watch.trace {
            results.push(self.observers.start_trace(path, rank, &self.fabric.cards()[rank].host, watch.cap));
        }
        if let Some(path) = self.options.tuning.as_ref().filter(|_| rank == 0).and_then(|t| t.log.as_ref()) {
            let started = std::fs::write(path, crate::tuning::autotune::LOG_HEADER);
            results.push(started.map_err(|e| Error::io(format!("starting the autotuner's log {}", path.display()), e)));
        }
        for error in results.into_iter().filter_map(Result::err) {
            // Training goes on without being watched.
            tracing::error!(rank, "{error}");
        }
    }

    pub(crate) fn warn(&self, text: &str) {
        tracing::warn!(rank = self.fabric.rank(), "{text}");
    }

    pub(crate) fn inform(&self, text: &str) {
        tracing::info!(rank = self.fabric.rank(), "{text}");
    }
}

pub(crate) fn duplicate(id: u32, ranks: &[Rank]) -> Error {
    Error::Usage(format!("duplicate process set: ranks {ranks:?} are process set {id} already"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
