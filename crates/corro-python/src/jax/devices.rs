//! A program that runs on several devices of this process at once: the call is made once for each of them.
//!
//! Each brings the same values (what differs between devices was reduced by XLA before), and there is one collective for
//! all of them. The last that comes does it, and the others get a copy of its results. None of them goes on before all have come,
//! so that a device can't be one run of the program ahead of another: calls of the same name belong to the same run.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use corro_core::{Error, Result};
use corro_engine::Engine;

use super::call::{Tensors, Wanted};
use super::ffi::Future;
use super::work::{end, finish, submit, when_done};

/// How long a call waits for those of the other devices where it has to wait at all. XLA runs them side by side.
const LIMIT: Duration = Duration::from_secs(600);

/// How a call that has come before the last is ended.
enum Waiting {
    Promised(Future),
    Here(Sender<Result<()>>),
}

impl Waiting {
    fn end(self, result: Result<()>) {
        match self {
            Self::Promised(future) => end(future, result),
            // If it has given up, it has said so itself.
            Self::Here(sender) => drop(sender.send(result)),
        }
    }
}

/// Who has come so far, by name.
static COME: LazyLock<Mutex<HashMap<String, Vec<Come>>>> = LazyLock::new(Mutex::default);

/// A call, and how it is ended.
type Come = (Tensors, Waiting);

/// One of the calls. With a future it does not wait.
pub(super) fn execute(engine: &Engine, wanted: Wanted, tensors: Tensors, future: Option<Future>) -> Result<()> {
    let (waiting, result) = match future {
        Some(future) => (Waiting::Promised(future), None),
        None => {
            let (sender, receiver) = channel();
            (Waiting::Here(sender), Some(receiver))
        }
    };
    let all = {
        let mut come = COME.lock().unwrap_or_else(PoisonError::into_inner);
        let calls = come.entry(wanted.name.clone()).or_default();
        calls.push((tensors, waiting));
        if calls.len() < wanted.devices { None } else { come.remove(&wanted.name) }
    };
    let name = wanted.name.clone();
    if let Some(all) = all {
        together(engine, wanted, all);
    }
    let Some(result) = result else { return Ok(()) };
    result.recv_timeout(LIMIT).unwrap_or_else(|_| {
        Err(Error::Usage(format!(
            "{name} runs on several devices of this process, and not all of them have come to it within {} s: all must run \
             the same collectives",
            LIMIT.as_secs()
        )))
    })
}

/// The collective for all of them.
fn together(engine: &Engine, wanted: Wanted, mut all: Vec<Come>) {
    let Some((tensors, waiting)) = all.pop() else { return };
    let tickets = match submit(engine, &wanted, &tensors) {
        Ok(tickets) => tickets,
        Err(error) => {
            all.push((tensors, waiting));
            for (_, waiting) in all {
                waiting.end(Err(error.clone()));
            }
            return;
        }
    };
    let engine = engine.clone();
    when_done(tickets, move |result| {
        let result = finish(&engine, &wanted, &tensors, result);
        for (others, waiting) in all {
            waiting.end(result.clone().and_then(|()| others.copy_from(&tensors)));
        }
        waiting.end(result);
    });
}
