//! What is done with a call: its tensors to the engine, and its end to XLA.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::sync::{Arc, Mutex, PoisonError};

use corro_core::{Error, Result};
use corro_engine::{Engine, Ticket};

use super::call::{Tensors, Wanted, explained};
use super::ffi::Future;
use crate::departure;

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
pub(super) fn told(error: Error) -> (c_int, String) {
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
    result.map_err(explained)?;
    if wanted.is_cleared_on(engine.rank()) {
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
