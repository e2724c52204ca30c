//! A result that is to come: the engine's end of a ticket. It is kept once, and whoever waits for it wakes.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use corro_core::{Error, Result};
use corro_planes::Outcome;

use crate::primitive::{AtomicBool, Condvar, Mutex, MutexGuard, Ordering};

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
    /// Set before that if a device still works on the result.
    enqueued: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

impl Promise {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            done: AtomicBool::new(false),
            enqueued: AtomicBool::new(false),
            state: Mutex::new(State::Pending),
            changed: Condvar::new(),
        })
    }

    /// Tells promises apart.
    pub(crate) fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
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
                if result.as_ref().is_ok_and(|outcome| outcome.after.is_some()) {
                    self.enqueued.store(true, Ordering::Relaxed);
                }
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

    /// Whether it is kept, and no device works on the result any more. Does not wait.
    pub(crate) fn is_done(&self) -> bool {
        self.is_kept() && (!self.enqueued.load(Ordering::Relaxed) || self.device_is_done())
    }

    #[cold]
    fn device_is_done(&self) -> bool {
        let mut state = self.lock();
        let State::Done(Ok(Outcome { after: Some(after), .. })) = &*state else { return true };
        match after.is_done() {
            Ok(done) => done,
            Err(error) => {
                *state = State::Done(Err(error));
                true
            }
        }
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

    /// Has the result handed to this, when it comes or now.
    pub(crate) fn watch(&self, callback: Callback) {
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
