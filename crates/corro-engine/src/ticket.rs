//! What a submit gives back: a place to wait for the result, or to leave word what to do with it.

use std::sync::Arc;
use std::time::Duration;

use corro_core::Result;
use corro_planes::Outcome;

use crate::promise::Promise;
use crate::set::ProcessSet;

/// A submitted tensor on its way. Dropping it does not stop the tensor.
///
/// Of a tensor in the memory of a GPU the result *is there*, for those who wait for it, once all that makes it is enqueued; then
/// [`Outcome::after`] says when the GPU is done, and who goes on using the result there need not wait for that. It is *done*
/// when the GPU is.
pub struct Ticket {
    pub(crate) promise: Arc<Promise>,
    pub(crate) set: Arc<ProcessSet>,
}

impl Ticket {
    /// Whether it is done: waiting would return at once, with a result that nothing works on any more.
    pub fn is_done(&self) -> bool {
        let done = self.promise.is_done();
        if done {
            self.set.looked();
        }
        done
    }

    /// As [`Ticket::is_done`], for callers that do not tell the program, which therefore does nothing because of it.
    pub fn has_ended(&self) -> bool {
        self.promise.is_done()
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

    /// Does the engine's work for a moment, as [`crate::Engine::submit_and_help`] does: for the last of a group that was just
    /// submitted.
    pub fn help(&self) {
        self.set.help(&self.promise);
    }

    /// The result, if it is there; only the first who asks gets it.
    pub fn take(&self) -> Result<Outcome> {
        self.promise.take()
    }

    /// Waits until the result is there or the time is over. True if it is there; [`Ticket::wait`] then gives it.
    pub fn wait_timeout(&self, time: Duration) -> bool {
        let done = self.promise.is_kept() || self.set.program_waits(|| self.promise.sleep(time));
        if done {
            self.set.looked();
        }
        done
    }

    /// Has `act` called with the result, on whichever thread finds it, or at once if it is there. It must not wait for
    /// other tickets.
    pub fn on_done(self, act: impl FnOnce(Result<Outcome>) + Send + 'static) {
        let set = self.set;
        let call = set.flies(&self.promise);
        self.promise.watch(Box::new(move |outcome| {
            set.has_landed();
            set.looked();
            match call {
                Some(call) => call.ends(|| act(outcome)),
                None => act(outcome),
            }
        }));
    }
}

impl std::fmt::Debug for Ticket {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Ticket({})", if self.promise.is_kept() { "done" } else { "on its way" })
    }
}
