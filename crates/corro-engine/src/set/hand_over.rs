//! Who does a set's work, and who wakes whom when that changes: the *programs* that wait, or else the set's own *runner*
//! and *watcher*.
//!
//! Owns the set's two locks, and knows who drives the set and who listens to its neighbours. Does not know what the work
//! is: that comes as [`Work`], which is the process set. `tests/races.rs` compiles this file once more, with primitives
//! between whose steps threads may change, and with other work: no wake-up may be missing here, since nobody there wakes
//! by himself.

use std::sync::PoisonError;
use std::time::Duration;

use crate::primitive::{AtomicBool, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, TryLockError};
use crate::promise::Promise;

/// What is handed over. Who is given the state holds its lock, and must not wait.
pub(super) trait Work: Sized {
    /// What is known at a moment.
    type State;
    /// What jobs run on. Its lock is held for as long as they take.
    type Lane;
    type Job;
    /// A job that has run, with what came of it.
    type Done;

    fn listening(st: &mut Self::State) -> &mut ListenState;

    fn has_job(&self, st: &Self::State) -> bool;

    /// Whether the set's own threads are to end.
    fn is_closing(&self, st: &Self::State) -> bool;

    /// From now on neighbours ring when they say something. What they have said before is still to be heard.
    fn arm(&self, st: &mut Self::State);

    /// Neighbours need not ring.
    fn disarm(&self, st: &mut Self::State);

    /// Hears the neighbours and answers. True if anything was heard or said.
    fn turn(&self, st: &mut Self::State) -> bool;

    /// Puts away what has run, and takes the next job.
    fn next_job(&self, st: &mut Self::State, done: Option<Self::Done>) -> Option<Self::Job>;

    /// Runs a job. The state is not locked.
    fn run(&self, lane: &mut Self::Lane, job: Self::Job) -> Self::Done;

    /// Lets go of the state, and then does what must not be done under its lock.
    fn release(&self, st: MutexGuard<'_, Self::State>);

    /// A driver has found nothing to do, so many times in a row: passes a moment. False if that is enough.
    fn idle(&self, times: u32) -> bool;

    /// Rings for the watcher. If it is awake, it will look once more before it sleeps.
    fn ring(&self);
}

/// Who hears what neighbours say; part of the state.
pub(super) struct ListenState {
    /// Drivers that listen by themselves.
    listeners: usize,
    /// Whether neighbours ring when they say something.
    armed: bool,
    /// Whether the watcher will look again by itself.
    watcher_up: bool,
}

impl Default for ListenState {
    /// The watcher is about to start.
    fn default() -> Self {
        Self { listeners: 0, armed: false, watcher_up: true }
    }
}

/// See the module.
pub(super) struct HandOver<W: Work> {
    state: Mutex<W::State>,
    lane: Mutex<W::Lane>,
    /// Programs that drive the set themselves right now.
    drivers: AtomicUsize,
    /// Whether there may be a job. A driver that leaves looks here after it has left; who makes a job looks for drivers
    /// after it has set this: so one of them sees the other, and wakes the runner.
    may_have_job: AtomicBool,
    /// The runner sleeps on this.
    runner: Condvar,
}

impl<W: Work> HandOver<W> {
    pub(super) fn new(state: W::State, lane: W::Lane) -> Self {
        Self {
            state: Mutex::new(state),
            lane: Mutex::new(lane),
            drivers: AtomicUsize::new(0),
            may_have_job: AtomicBool::new(false),
            runner: Condvar::new(),
        }
    }

    /// The state, for those who leave nothing to be done after its lock is released.
    pub(super) fn state(&self) -> MutexGuard<'_, W::State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Calls `act` with the state; does afterwards what must not be done under its lock.
    pub(super) fn with_state<R>(&self, work: &W, act: impl FnOnce(&mut W::State) -> R) -> R {
        let mut st = self.state();
        let result = act(&mut st);
        work.release(st);
        result
    }

    /// The lane, once nobody runs anything.
    pub(super) fn lane(&self) -> MutexGuard<'_, W::Lane> {
        self.lane.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lane, if nobody runs anything. Whoever has it need not be a driver.
    pub(super) fn free_lane(&self) -> Option<MutexGuard<'_, W::Lane>> {
        match self.lane.try_lock() {
            Ok(lane) => Some(lane),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// The caller counts as a driver from now on, and must [`drive`](Self::drive).
    pub(super) fn enlist(&self) {
        self.drivers.fetch_add(1, Ordering::SeqCst);
    }

    /// As [`HandOver::enlist`], for one that brings what may become a job.
    pub(super) fn enlist_with_job(&self) {
        self.enlist();
        self.may_have_job.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_undriven(&self) -> bool {
        self.drivers.load(Ordering::SeqCst) == 0
    }

    /// Does the set's work in the caller's thread, until the promise is kept, `go_on` says no, or there has been nothing
    /// to do for a while. Then leaves the rest to others.
    pub(super) fn drive(&self, work: &W, promise: &Promise, go_on: &mut dyn FnMut() -> bool) {
        let mut idle = 0;
        let mut listening = false;
        while !promise.is_kept() {
            if self.run_what_is_ready(work, &mut listening) || self.listen(work, &mut listening) {
                idle = 0;
                if go_on() {
                    continue;
                }
                break;
            }
            idle += 1;
            if !work.idle(idle) {
                break;
            }
        }
        let last = self.drivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if listening || last && self.may_have_job.load(Ordering::SeqCst) {
            self.with_state(work, |st| {
                if listening {
                    Self::stop_listening(work, st);
                }
                if work.has_job(st) {
                    self.runner.notify_one();
                }
            });
        }
    }

    /// Looks what the neighbours say; they need not ring meanwhile.
    fn listen(&self, work: &W, listening: &mut bool) -> bool {
        self.with_state(work, |st| {
            if !std::mem::replace(listening, true) {
                W::listening(st).listeners += 1;
                Self::disarm(work, st);
            }
            work.turn(st)
        })
    }

    /// A driver leaves, or goes on to something that takes time: if nobody else listens, neighbours are to ring.
    fn stop_listening(work: &W, st: &mut W::State) {
        let listening = W::listening(st);
        listening.listeners -= 1;
        if listening.listeners == 0 && !listening.armed {
            Self::arm(work, st);
        }
    }

    /// From now on neighbours ring; what they said before is heard now.
    fn arm(work: &W, st: &mut W::State) {
        work.arm(st);
        W::listening(st).armed = true;
        work.turn(st);
    }

    fn disarm(work: &W, st: &mut W::State) {
        if std::mem::take(&mut W::listening(st).armed) {
            work.disarm(st);
        }
    }

    /// Runs all jobs there are. False if there were none, or somebody else runs them.
    fn run_what_is_ready(&self, work: &W, listening: &mut bool) -> bool {
        let Some(mut lane) = self.free_lane() else { return false };
        let Some(mut job) = self.next_job(work, None, listening) else { return false };
        loop {
            let done = work.run(&mut lane, job);
            match self.next_job(work, Some(done), listening) {
                Some(next) => job = next,
                None => return true,
            }
        }
    }

    fn next_job(&self, work: &W, done: Option<W::Done>, listening: &mut bool) -> Option<W::Job> {
        self.with_state(work, |st| {
            let next = work.next_job(st, done);
            if next.is_none() {
                self.may_have_job.store(false, Ordering::SeqCst);
            } else if std::mem::take(listening) {
                Self::stop_listening(work, st);
            }
            next
        })
    }

    /// There is a job: if nobody drives, the runner is to do it. The caller holds the state.
    pub(super) fn wake_runner(&self) {
        self.may_have_job.store(true, Ordering::SeqCst);
        if self.is_undriven() {
            self.runner.notify_one();
        }
    }

    /// There is something to be said, and the caller does not say it.
    pub(super) fn wake_watcher(work: &W, st: &mut W::State) {
        if !std::mem::replace(&mut W::listening(st).watcher_up, true) {
            work.ring();
        }
    }

    /// The runner: runs jobs when nobody else does.
    pub(super) fn run_jobs(&self, work: &W) {
        loop {
            let mut st = self.state();
            while !(self.is_undriven() && work.has_job(&st)) {
                if work.is_closing(&st) {
                    return;
                }
                st = self.runner.wait(st).unwrap_or_else(PoisonError::into_inner);
            }
            drop(st);
            if !self.run_what_is_ready(work, &mut false) {
                // Somebody else runs them: when that one leaves, there may be more.
                drop(self.lane());
            }
        }
    }

    /// The watcher's look round, after which it may sleep until somebody rings. `hear` takes its turn, or says how long to
    /// hold that back, and then neighbours need not ring yet. `before_sleep` sees what came of it.
    pub(super) fn look_round<R>(
        &self,
        work: &W,
        hear: impl FnOnce(&mut W::State) -> Option<Duration>,
        before_sleep: impl FnOnce(&mut W::State, Option<Duration>) -> R,
    ) -> R {
        self.with_state(work, |st| {
            Self::disarm(work, st);
            let held_back = hear(st);
            if W::listening(st).listeners == 0 && held_back.is_none() {
                Self::arm(work, st);
            }
            if self.is_undriven() && work.has_job(st) {
                self.runner.notify_one();
            }
            W::listening(st).watcher_up = false;
            before_sleep(st, held_back)
        })
    }

    /// Has the set's own threads end: `close` makes that known.
    pub(super) fn close(&self, work: &W, close: impl FnOnce(&mut W::State)) {
        self.with_state(work, close);
        self.runner.notify_all();
        work.ring();
    }
}
