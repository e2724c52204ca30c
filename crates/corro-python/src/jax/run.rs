//! From a call to submissions, and to the end of the call.
//!
//! A call never waits for anything but its own collective, and not for long: it lends the engine its thread for a moment, and if
//! the other ranks have not come by then, it returns and the engine ends it. So XLA may run the calls of a program
//! in any order, on as few threads as it likes, and in another order on each rank: ranks find each other by name. (A version of
//! XLA that has no futures waits here, and then runs a program's calls one after the other.)

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::collections::VecDeque;
use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};

use corro_core::{Error, Result};
use corro_engine::{Engine, Outcome, Ticket};

use super::call::{Tensors, Wanted};
use super::devices;
use super::ffi::{CallFrame, EXECUTE, Future, RawError, Xla, answers_query};
use crate::{departure, running};

/// XLA's numbers for what went wrong.
const UNKNOWN: c_int = 2;
const INVALID_ARGUMENT: c_int = 3;
const FAILED_PRECONDITION: c_int = 9;
const INTERNAL: c_int = 13;

/// Why calls have failed, the last ones.
static FAILURES: Mutex<VecDeque<Error>> = Mutex::new(VecDeque::new());
const REMEMBERED: usize = 64;

/// The failure whose text is part of this one.
pub(super) fn failure_behind(text: &str) -> Option<Error> {
    let failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.iter().find(|error| text.contains(&error.to_string())).cloned()
}

/// An error as XLA is told.
fn told(error: Error) -> (c_int, String) {
    departure::suffers(&error);
    let code = match error {
        Error::Usage(_) => INVALID_ARGUMENT,
        Error::Mismatch(_) => FAILED_PRECONDITION,
        Error::Bug(_) => INTERNAL,
        _ => UNKNOWN,
    };
    let text = error.to_string();
    let mut failures = FAILURES.lock().unwrap_or_else(PoisonError::into_inner);
    failures.truncate(REMEMBERED - 1);
    failures.push_front(error);
    (code, text)
}

/// Runs `work` so that a panic is an error like any other: it must not reach XLA's frames.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::Bug("a panic in a call from XLA; see the standard error output".into())))
}

/// What compiled programs call, with tensors in host memory.
///
/// SAFETY: called by XLA with a frame of its own.
pub(super) unsafe extern "C" fn on_host(frame: *mut CallFrame) -> *mut RawError {
    // SAFETY: as above.
    unsafe {
        if answers_query(frame) || (*frame).stage != EXECUTE {
            return std::ptr::null_mut();
        }
        let xla = Xla::of(frame);
        match guarded(|| execute(xla, frame)) {
            Ok(()) => std::ptr::null_mut(),
            Err(error) => {
                let (code, text) = told(error);
                xla.error(code, &text)
            }
        }
    }
}

/// # Safety
/// `frame` is that of a call which is to be executed.
unsafe fn execute(xla: Xla, frame: *mut CallFrame) -> Result<()> {
    // SAFETY: as above.
    let (wanted, tensors) = unsafe { (Wanted::read(frame)?, Tensors::read(frame)?) };
    let Some(engine) = running::current() else {
        return Err(Error::Usage("Horovod has not been initialized; use hvd.init().".into()));
    };
    if wanted.devices > 1 {
        // SAFETY: as above.
        let future = unsafe { xla.promise(frame) };
        return devices::execute(&engine, wanted, tensors, future);
    }
    let tickets = submit(&engine, &wanted, &tensors)?;
    if !tickets.iter().all(Ticket::has_ended) {
        // SAFETY: as above.
        if let Some(future) = unsafe { xla.promise(frame) } {
            when_done(tickets, move |result| end(future, finish(&engine, &wanted, &tensors, result)));
            return Ok(());
        }
    }
    // All of a group, also after a failure: nothing may touch the buffers afterwards.
    let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
    let result = outcomes.into_iter().collect::<Result<Vec<Outcome>>>().map(drop);
    finish(&engine, &wanted, &tensors, result)
}

/// Hands a call's tensors to the engine.
pub(super) fn submit(engine: &Engine, wanted: &Wanted, tensors: &Tensors) -> Result<Vec<Ticket>> {
    let mut submissions = wanted.submissions(tensors)?;
    match submissions.pop() {
        Some(only) if submissions.is_empty() => Ok(vec![engine.submit_and_help(only)?]),
        last => {
            submissions.extend(last);
            let tickets = engine.submit_group(submissions)?;
            tickets.iter().for_each(Ticket::help);
            Ok(tickets)
        }
    }
}

/// What is left to do when the engine has done its part, with this result.
pub(super) fn finish(engine: &Engine, wanted: &Wanted, tensors: &Tensors, result: Result<()>) -> Result<()> {
    result.map_err(|error| wanted.explained(error))?;
    if wanted.is_for_root() && usize::try_from(wanted.root) != Ok(engine.rank().index()) {
        return tensors.clear();
    }
    if wanted.is_barrier() { tensors.pass_through() } else { Ok(()) }
}

/// Ends a call that has outlived its handler.
pub(super) fn end(future: Future, result: Result<()>) {
    future.end(result.map_err(told));
}

/// Has `act` called once all tickets have ended, with the first failure if there was one.
pub(super) fn when_done(tickets: Vec<Ticket>, act: impl FnOnce(Result<()>) + Send + 'static) {
    struct Left<F> {
        tickets: usize,
        result: Result<()>,
        act: Option<F>,
    }
    let left = Arc::new(Mutex::new(Left { tickets: tickets.len(), result: Ok(()), act: Some(act) }));
    for ticket in tickets {
        let left = Arc::clone(&left);
        ticket.on_done(move |outcome| {
            let mut left = left.lock().unwrap_or_else(PoisonError::into_inner);
            left.tickets -= 1;
            if let (Ok(()), Err(error)) = (&left.result, outcome) {
                left.result = Err(error);
            }
            if left.tickets == 0
                && let Some(act) = left.act.take()
            {
                let result = std::mem::replace(&mut left.result, Ok(()));
                drop(left);
                act(result);
            }
        });
    }
}
