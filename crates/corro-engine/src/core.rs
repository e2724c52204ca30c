//! What the process sets of one engine share: the fabric, the clock, who watches, and how it all ends.
//!
//! Sets don't know of each other. What concerns all of them, they ask of the engine as a [`Whole`].

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

use corro_agreement::deadlock::{Awaited, InSet, Standing};
use corro_core::{Error, Rank, Result};
use corro_transport::{Fabric, cores};

use crate::options::Options;
use crate::submission::GLOBAL;
use crate::threads::{Blocked, Threads};
use crate::tuning::autotune::Change;
use crate::watch::life::Life;
use crate::watch::observers::Observers;

pub(crate) struct Core {
    pub(crate) fabric: Arc<Fabric>,
    pub(crate) options: Options,
    pub(crate) may_spin: bool,
    /// The core that this rank's own threads stay on.
    pinned_to: Option<usize>,
    pub(crate) observers: Observers,
    /// What is gathered for those who watch the job, if somebody does.
    pub(crate) life: Option<Life>,
    /// How often the program has learned that something is done.
    looks: AtomicU64,
    start: Instant,
    whole: OnceLock<Weak<dyn Whole>>,
    over: Mutex<Option<Error>>,
    /// Since when each set has waited without anything getting on.
    waiting: Mutex<BTreeMap<u32, Duration>>,
    /// The program's threads.
    pub(crate) threads: Arc<Threads>,
    /// How the program stands in each set: `None` while something there may go on.
    standing: Mutex<BTreeMap<u32, Option<InOneSet>>>,
}

/// What a process set needs of the engine as a whole.
pub(crate) trait Whole: Send + Sync {
    /// Makes a process set.
    fn add_set(&self, ranks: &[Rank]) -> Result<u32>;
    /// Removes one.
    fn remove_set(&self, id: u32) -> Result<()>;
    /// The global set has come to its end.
    fn ended(&self, error: &Error);
    /// Something here has ended the job: all ranks learn it through the global set, and what came first.
    fn failed(&self, error: Error);
    /// The same of something that is certain.
    fn lost(&self, error: Error);
}

/// How the program stands in one set.
#[derive(Clone, Debug)]
pub(crate) struct InOneSet {
    /// See [`Blocked::stirred`].
    pub(crate) stirred: u64,
    pub(crate) waits: Vec<Awaited>,
    pub(crate) in_set: InSet,
}

impl Core {
    pub(crate) fn new(fabric: Arc<Fabric>, options: Options) -> Arc<Self> {
        let here = &fabric.card(fabric.rank()).locality;
        let local = fabric.cards().iter().filter(|c| c.locality == *here).count();
        let may_spin = fabric.settings().spin.unwrap_or_else(|| cores::may_spin(local));
        let local_rank = fabric.cards()[..fabric.rank().index()].iter().filter(|c| c.locality == *here).count();
        let core = options.cores.get(local_rank).copied();
        if core.is_none() && !options.cores.is_empty() {
            let count = options.cores.len();
            tracing::warn!(
                rank = fabric.rank().index(),
                "CORRO_THREAD_AFFINITY names {count} cores, one for each rank of a host, but this is the host's rank \
                 {local_rank}: its threads are not bound to a core"
            );
        }
        // Rank 0 tunes for all.
        let tuner = options.tuning.as_ref().filter(|_| fabric.rank() == Rank::ZERO).map(|tuning| tuning.tuner(&fabric));
        let life = options.watching.feed.then(Life::default);
        Arc::new(Self {
            fabric,
            life,
            options,
            may_spin,
            pinned_to: core,
            observers: Observers::new(tuner),
            looks: AtomicU64::new(0),
            start: Instant::now(),
            whole: OnceLock::new(),
            over: Mutex::new(None),
            waiting: Mutex::default(),
            threads: Threads::new(),
            standing: Mutex::default(),
        })
    }

    /// Whom sets ask for what concerns all of them.
    pub(crate) fn belong_to(&self, whole: Weak<dyn Whole>) {
        let _ = self.whole.set(whole);
    }

    fn whole(&self) -> Option<Arc<dyn Whole>> {
        self.whole.get().and_then(Weak::upgrade)
    }

    pub(crate) fn add_set(&self, ranks: &[Rank]) -> Result<u32> {
        self.whole().ok_or(Error::Withdrawn)?.add_set(ranks)
    }

    pub(crate) fn remove_set(&self, id: u32) -> Result<()> {
        self.whole().ok_or(Error::Withdrawn)?.remove_set(id)
    }

    /// A set has come to its end. If it is the global one, so have all.
    pub(crate) fn ended(&self, id: u32, error: &Error) {
        if let Some(whole) = self.whole().filter(|_| id == GLOBAL) {
            whole.ended(error);
        }
    }

    pub(crate) fn failed(&self, error: Error) {
        if let Some(whole) = self.whole() {
            whole.failed(error);
        }
    }

    pub(crate) fn lost(&self, error: Error) {
        if let Some(whole) = self.whole() {
            whole.lost(error);
        }
    }

    /// For a thread of the engine to call first: puts it where the user wants it.
    pub(crate) fn settle(&self) {
        if let Some(core) = self.pinned_to
            && let Err(error) = cores::pin(core)
        {
            self.warn(&format!("CORRO_THREAD_AFFINITY: core {core} can't be used: {error}"));
        }
    }

    /// Since the engine's start.
    pub(crate) fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// As [`Core::now`], in nanoseconds.
    pub(crate) fn nanos(&self) -> u64 {
        self.now().as_nanos() as u64
    }

    /// The program waits until what is given here is dropped.
    pub(crate) fn waits_here(&self) -> Option<Waits<'_>> {
        self.life.as_ref().map(|life| {
            life.waiting.begins(self.nanos());
            Waits(self, life)
        })
    }

    /// How often the program has learned that something is done. What it submits from then on may depend on that.
    pub(crate) fn looks(&self) -> u64 {
        self.looks.load(Ordering::Relaxed)
    }

    /// The program learns that something is done.
    pub(crate) fn look(&self) {
        self.looks.fetch_add(1, Ordering::Relaxed);
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

    /// Since when a set has waited without anything getting on. Gives since when any set has.
    pub(crate) fn waits(&self, id: u32, since: Option<Duration>) -> Option<Duration> {
        let mut waiting = lock(&self.waiting);
        match since {
            Some(since) => waiting.insert(id, since),
            None => waiting.remove(&id),
        };
        waiting.values().min().copied()
    }

    /// How the program stands in one set.
    pub(crate) fn note_standing(&self, id: u32, here: Option<InOneSet>) {
        lock(&self.standing).insert(id, here);
    }

    /// A set is gone.
    pub(crate) fn leave_standing(&self, id: u32) {
        lock(&self.standing).remove(&id);
    }

    /// How the program stands in all, if that is known of all sets: each looks for itself.
    pub(crate) fn standing(&self, blocked: &Blocked) -> Option<Standing> {
        let standing = lock(&self.standing);
        let sets: Vec<&InOneSet> = standing.values().map(Option::as_ref).collect::<Option<_>>()?;
        let waits: Vec<Awaited> = sets.iter().flat_map(|s| s.waits.iter().cloned()).collect();
        let known = sets.iter().all(|s| s.stirred == blocked.stirred) && waits.len() == blocked.waiting.len();
        let host = self.fabric.card(self.fabric.rank()).host.clone();
        let sets = sets.into_iter().map(|s| s.in_set.clone()).collect();
        known.then_some(Standing { stirred: blocked.stirred, host, waits, sets })
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

    /// Starts what watches from the beginning: timeline, ranges, trace, the tuner's log.
    pub(crate) fn start_observers(&self) {
        let (rank, watch) = (self.fabric.rank(), &self.options.watching);
        let mut results = Vec::new();
        if let Some(path) = watch.timeline.as_ref().filter(|_| rank == Rank::ZERO) {
            results.push(self.observers.start_timeline(path, watch.cap, watch.mark_cycles, self.now()));
        }
        if watch.ranges {
            results.push(self.observers.start_ranges());
        }
        if let Some(path) = &watch.trace {
            results.push(self.observers.start_trace(path, rank, &self.fabric.card(rank).host, watch.cap));
        }
        if let Some(path) = self.options.tuning.as_ref().filter(|_| rank == Rank::ZERO).and_then(|t| t.log.as_ref()) {
            let started = std::fs::write(path, crate::tuning::autotune::LOG_HEADER);
            results.push(started.map_err(|e| Error::io(format!("starting the autotuner's log {}", path.display()), e)));
        }
        for error in results.into_iter().filter_map(Result::err) {
            // Training goes on without being watched.
            tracing::error!(rank = rank.index(), "{error}");
        }
    }

    pub(crate) fn warn(&self, text: &str) {
        tracing::warn!(rank = self.fabric.rank().index(), "{text}");
    }

    pub(crate) fn detail(&self, text: &str) {
        tracing::debug!(rank = self.fabric.rank().index(), "{text}");
    }

    pub(crate) fn inform(&self, text: &str) {
        tracing::info!(rank = self.fabric.rank().index(), "{text}");
    }
}

/// While the program waits.
pub(crate) struct Waits<'a>(&'a Core, &'a Life);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.1.waiting.ends(self.0.nanos());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
