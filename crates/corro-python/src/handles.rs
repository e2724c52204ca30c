//! Operations in flight, by number. A handle keeps the Python objects whose memory the engine works on.
//!
//! A tensor that the program did not name gets a name out of a few (see `names`), which its last bearer may still have.
//! Then it is kept here and submitted once that one is done: whoever waits for anything looks after it ([`submit_due`]).
//! The program must not be made to wait for it at submit: it may be about to submit what the other ranks wait for.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corro_core::{Error, Result};
use corro_engine::{Outcome, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::exception;
use crate::gate::{Signals, outside};
use crate::output::Output;

/// Between two looks whether a name is free again.
const MOMENT: Duration = Duration::from_micros(20);

/// What one handle stands for.
pub(crate) struct Pending {
    /// What waiting gives, or what `complete` makes it from.
    pub(crate) results: Results,
    /// Owns the memory of the inputs. Never read: it is dropped after the engine is done with them.
    pub(crate) keep: Py<PyAny>,
    /// `complete(result, output)`, if the result is not the result yet.
    pub(crate) complete: Option<Py<PyAny>>,
}

/// One operation, or a group of them that completes together.
pub(crate) enum Results {
    One(Py<PyAny>),
    Group(Vec<Py<PyAny>>),
}

/// The set and the name of a tensor that the program did not name.
pub(crate) type Unnamed = (u32, String);

/// Hands the operation to the engine: a ticket for each tensor.
pub(crate) type Submit = Box<dyn FnOnce() -> Result<Vec<Ticket>> + Send>;

enum Stage {
    /// To be submitted once the operation with this handle is done.
    Due {
        after: u64,
        submit: Submit,
    },
    /// Somebody submits it right now.
    Leaving,
    Flying(Arc<Vec<Ticket>>),
    Refused(Error),
}

impl Stage {
    fn is_done(&self) -> bool {
        match self {
            Self::Due { .. } | Self::Leaving => false,
            Self::Flying(tickets) => tickets.iter().all(Ticket::is_done),
            Self::Refused(_) => true,
        }
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    pending: HashMap<u64, (Stage, Pending)>,
    /// Who was the last to bear a name that the program did not give.
    unnamed: HashMap<Unnamed, u64>,
    /// The handles at stage `Due`, oldest first.
    due: VecDeque<u64>,
}

impl Table {
    fn is_done(&self, handle: u64) -> bool {
        self.pending.get(&handle).is_none_or(|(stage, _)| stage.is_done())
    }

    /// Who has this name now.
    fn bearer(&self, unnamed: &Unnamed) -> Option<u64> {
        self.unnamed.get(unnamed).copied().filter(|handle| !self.is_done(*handle))
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Submits an operation and gives it a handle. `unnamed` is there if the program did not name it.
pub(crate) fn submit(py: Python<'_>, pending: Pending, unnamed: Option<Unnamed>, submit: Submit) -> PyResult<u64> {
    let bearer = unnamed.as_ref().and_then(|unnamed| table().bearer(unnamed));
    let stage = match bearer {
        None => Stage::Flying(Arc::new(outside(py, submit)?)),
        Some(after) => Stage::Due { after, submit },
    };
    let mut table = table();
    let handle = table.next;
    table.next += 1;
    if bearer.is_some() {
        table.due.push_back(handle);
    }
    table.pending.insert(handle, (stage, pending));
    if let Some(unnamed) = unnamed {
        table.unnamed.insert(unnamed, handle);
    }
    Ok(handle)
}

/// Submits what was kept until a name is free, where it is. Whoever waits calls this every now and then, without the GIL.
pub(crate) fn submit_due() {
    // One at a time, so that all go in the order in which the program submitted them.
    static TURN: Mutex<()> = Mutex::new(());
    let Ok(_turn) = TURN.try_lock() else { return };
    loop {
        let mut here = table();
        let Some(&handle) = here.due.front() else { return };
        let Some((stage, _)) = here.pending.get(&handle) else {
            here.due.pop_front();
            continue;
        };
        let Stage::Due { after, .. } = stage else { return };
        if !here.is_done(*after) {
            return;
        }
        here.due.pop_front();
        let Some((stage, _)) = here.pending.get_mut(&handle) else { return };
        let Stage::Due { submit, .. } = std::mem::replace(stage, Stage::Leaving) else { return };
        drop(here);
        let left = match submit() {
            Ok(tickets) => Stage::Flying(Arc::new(tickets)),
            Err(error) => Stage::Refused(error),
        };
        if let Some((stage, _)) = table().pending.get_mut(&handle) {
            *stage = left;
        }
    }
}

/// Waits until the last tensor with this name is done: for an operation that the program waits for anyway. Not with the
/// GIL. False if a signal came first.
pub(crate) fn wait_until_free(unnamed: &Unnamed, signals: &mut Signals) -> bool {
    loop {
        let Some(handle) = table().bearer(unnamed) else { return true };
        if !wait_for(handle, signals) {
            return false;
        }
    }
}

/// Waits until the operation is done. Not with the GIL. False if a signal came first.
fn wait_for(handle: u64, signals: &mut Signals) -> bool {
    loop {
        let before = match table().pending.get(&handle) {
            None | Some((Stage::Refused(_), _)) => return true,
            Some((Stage::Flying(tickets), _)) => Ok(Arc::clone(tickets)),
            Some((Stage::Due { after, .. }, _)) => Err(Some(*after)),
            Some((Stage::Leaving, _)) => Err(None),
        };
        match before {
            // All of a group, also after a failure: nothing may touch the tensors afterwards.
            Ok(tickets) => return tickets.iter().all(|ticket| ticket.wait_while(&mut || signals.go_on())),
            Err(Some(after)) if !wait_for(after, signals) => return false,
            Err(_) => {
                submit_due();
                if !signals.go_on() {
                    return false;
                }
                std::thread::sleep(MOMENT);
            }
        }
    }
}

/// Forgets everything, and counts from 0 again. The engine must have ended.
pub(crate) fn clear() {
    let forgotten = std::mem::take(&mut *table());
    // Dropping Python objects may run Python code, which may come back here: not under the lock.
    drop(forgotten);
}

#[pyfunction]
pub(crate) fn poll(py: Python<'_>, handle: u64) -> PyResult<bool> {
    outside(py, || {
        submit_due();
        Ok(())
    })?;
    let table = table();
    let (stage, _) = table.pending.get(&handle).ok_or_else(|| {
        PyValueError::new_err(format!(
            "handle {handle} is not in flight: it was never given out, or has been synchronized already"
        ))
    })?;
    Ok(stage.is_done())
}

#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    let mut signals = Signals::new();
    if !outside(py, || Ok(wait_for(handle, &mut signals)))? {
        // It is still under way, and the handle still good.
        return Err(signals.raised());
    }
    let Some((stage, Pending { results, keep, complete })) = table().pending.remove(&handle) else { return Ok(None) };
    let outcomes: Result<Vec<Outcome>> = match stage {
        Stage::Flying(tickets) => tickets.iter().map(Ticket::take).collect(),
        Stage::Refused(error) => Err(error),
        Stage::Due { .. } | Stage::Leaving => Err(Error::Bug("waited for an operation that was not submitted".into())),
    };
    let result = outcomes.map_err(|error| exception(py, &error)).and_then(|outcomes| match results {
        Results::One(result) => outcomes.into_iter().next().map_or_else(
            || Err(exception(py, &Error::Bug("an operation without an outcome".into()))),
            |outcome| finish(py, result, complete.as_ref(), outcome),
        ),
        Results::Group(results) => {
            let finished: Vec<_> = results
                .into_iter()
                .zip(outcomes)
                .map(|(result, outcome)| finish(py, result, complete.as_ref(), outcome))
                .collect::<PyResult<_>>()?;
            Ok(PyTuple::new(py, finished)?.into_any().unbind())
        }
    });
    drop(keep);
    result.map(Some)
}

fn finish(py: Python<'_>, result: Py<PyAny>, complete: Option<&Py<PyAny>>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match complete {
        None => Ok(result),
        Some(complete) => complete.call1(py, (result, Output::new(outcome))),
    }
}
