//! What a submit gives back: a place to wait for the result, or to leave word what to do with it.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use corro_core::{Buffer, Error, Rank, Result, Shape};

use crate::primitive::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};
use crate::set::ProcessSet;

/// What became of a tensor.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Where the result is: the buffer that was given for it, or the one that was allocated.
    pub output: Option<Buffer>,
    /// The result's dimensions.
    pub shape: Shape,
    /// Alltoall: rows from each rank of the set.
    pub received_splits: Vec<usize>,
    /// Join: who came last.
    pub last_joined: Option<Rank>,
}

type Callback = Box<dyn FnOnce(Result<Outcome>) + Send>;

enum State {
    Pending,
    Watched(Callback),
    Done(Result<Outcome>),
    Taken,
}

/// The end of a ticket that the engine holds.
pub(crate) struct Promise {
    done: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Promise {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { done: AtomicBool::new(false), state: Mutex::new(State::Pending), changed: Condvar::new() })
    }

    /// Keeps the promise; whoever waits wakes, and a callback runs here and now.
    pub(crate) fn keep(&self, result: Result<Outcome>) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Watched(callback) => {
                self.done.store(true, Ordering::Release);
                drop(state);
                callback(result);
            }
            State::Pending => {
                *state = State::Done(result);
                self.done.store(true, Ordering::Release);
                drop(state);
                self.changed.notify_all();
            }
            // Kept twice: the first word counts.
            before => *state = before,
        }
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    /// Sleeps until the promise is kept or the time is over. True if it is kept.
    pub(crate) fn sleep(&self, time: Duration) -> bool {
        let state = self.lock();
        if !matches!(*state, State::Pending) {
            return true;
        }
        let (state, _) = self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner);
        !matches!(*state, State::Pending)
    }

    pub(crate) fn take(&self) -> Result<Outcome> {
        match std::mem::replace(&mut *self.lock(), State::Taken) {
            State::Done(result) => result,
            _ => Err(Error::Bug("a ticket was taken twice, or before it was done".into())),
        }
    }

    fn watch(&self, callback: Callback) {
        let mut state = self.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::Done(result) => {
                drop(state);
                callback(result);
            }
            _ => *state = State::Watched(callback),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A submitted tensor on its way. Dropping it does not stop the tensor.
pub struct Ticket {
    pub(crate) promise: Arc<Promise>,
    pub(crate) set: Arc<ProcessSet>,
}

impl Ticket {
    /// Whether waiting would return at once.
    pub fn is_done(&self) -> bool {
        let done = self.promise.is_kept();
        if done {
            self.set.looked();
        }
        done
    }

    /// As [`Ticket::is_done`], for callers that do not tell the program, which therefore does nothing because of it.
    pub fn has_ended(&self) -> bool {
        self.promise.is_kept()
    }

    /// Waits for the result. The waiting thread does the engine's work meanwhile, which is faster than having it done.
    pub fn wait(self) -> Result<Outcome> {
        self.set.drive_until(&self.promise, &mut || true);
        self.set.looked();
        self.promise.take()
    }

    /// Waits as [`Ticket::wait`] does, but leaves the result where it is, and asks `go_on` every now and then (several times
    /// a second): if that says no, stops waiting. True if the result is there. See also `Engine::run_while`.
    pub fn wait_while(&self, go_on: &mut dyn FnMut() -> bool) -> bool {
        let done = self.set.drive_until(&self.promise, go_on);
        if done {
            self.set.looked();
        }
        done
    }

    /// The result, if it is there; only the first who asks gets it.
    pub fn take(&self) -> Result<Outcome> {
        self.promise.take()
    }

    /// Waits until the result is there or the time is over. True if it is there; [`Ticket::wait`] then gives it.
    pub fn wait_timeout(&self, time: Duration) -> bool {
        let done = self.promise.is_kept() || self.promise.sleep(time);
        if done {
            self.set.looked();
        }
        done
    }

    /// Has `act` called with the result, on whichever thread finds it, or at once if it is there. It must not wait for
    /// other tickets.
    pub fn on_done(self, act: impl FnOnce(Result<Outcome>) + Send + 'static) {
        let set = self.set;
        self.promise.watch(Box::new(move |outcome| {
            set.looked();
            act(outcome);
        }));
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", if self.promise.is_kept() { "done" } else { "on its way" })
    }
}
