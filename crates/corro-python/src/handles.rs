//! Operations in flight, by number. A handle keeps the Python objects whose memory the engine works on.

use std::collections::HashMap;
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use corro_core::Result;
use corro_engine::{Outcome, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::gate::outside;
use crate::output::Output;

/// Between two looks whether a name is free again.
const MOMENT: Duration = Duration::from_micros(20);

/// One tensor on its way.
pub(crate) struct Flight {
    pub(crate) ticket: Ticket,
    /// What waiting gives, or what `complete` makes it from.
    pub(crate) result: Py<PyAny>,
}

/// What one handle stands for.
pub(crate) struct Pending {
    pub(crate) flights: Flights,
    /// Owns the memory of the inputs. Never read: it is dropped after the engine is done with them.
    pub(crate) keep: Py<PyAny>,
    /// `complete(result, output)`, if the result is not the result yet.
    pub(crate) complete: Option<Py<PyAny>>,
}

impl Pending {
    fn is_done(&self) -> bool {
        match &self.flights {
            Flights::One(flight) => flight.ticket.is_done(),
            Flights::Group(flights) => flights.iter().all(|flight| flight.ticket.is_done()),
        }
    }
}

/// One operation, or a group of them that completes together.
pub(crate) enum Flights {
    One(Flight),
    Group(Vec<Flight>),
}

#[derive(Default)]
struct Table {
    next: u64,
    pending: HashMap<u64, Pending>,
    /// Who was the last to bear a name that the program did not give.
    unnamed: HashMap<(u32, String), u64>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives the operation a handle. `unnamed` is the set and the name of a tensor that the program did not name.
pub(crate) fn insert(pending: Pending, unnamed: Option<(u32, String)>) -> u64 {
    let mut table = table();
    let handle = table.next;
    table.next += 1;
    table.pending.insert(handle, pending);
    if let Some(unnamed) = unnamed {
        table.unnamed.insert(unnamed, handle);
    }
    handle
}

/// Waits until the last tensor with this name, which the program did not give, is done. Not with the GIL.
pub(crate) fn wait_until_free(set: u32, name: &str) {
    let key = (set, name.to_owned());
    let under_way = || {
        let table = table();
        table.unnamed.get(&key).and_then(|handle| table.pending.get(handle)).is_some_and(|pending| !pending.is_done())
    };
    while under_way() {
        std::thread::sleep(MOMENT);
    }
}

/// Forgets everything, and counts from 0 again. The engine must have ended.
pub(crate) fn clear() {
    let forgotten = std::mem::take(&mut *table());
    // Dropping Python objects may run Python code, which may come back here: not under the lock.
    drop(forgotten);
}

fn remove(handle: u64) -> Option<Pending> {
    table().pending.remove(&handle)
}

#[pyfunction]
pub(crate) fn poll(handle: u64) -> PyResult<bool> {
    let table = table();
    let pending = table.pending.get(&handle).ok_or_else(|| {
        PyValueError::new_err(format!(
            "handle {handle} is not in flight: it was never given out, or has been synchronized already"
        ))
    })?;
    Ok(pending.is_done())
}

#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    let Some(Pending { flights, keep, complete }) = remove(handle) else { return Ok(None) };
    let result = match flights {
        Flights::One(Flight { ticket, result }) => {
            outside(py, move || ticket.wait()).and_then(|outcome| finish(py, result, complete.as_ref(), outcome))
        }
        Flights::Group(flights) => wait_for_group(py, flights, complete.as_ref()),
    };
    drop(keep);
    result.map(Some)
}

fn wait_for_group(py: Python<'_>, flights: Vec<Flight>, complete: Option<&Py<PyAny>>) -> PyResult<Py<PyAny>> {
    let (tickets, results): (Vec<_>, Vec<_>) = flights.into_iter().map(|flight| (flight.ticket, flight.result)).unzip();
    // All are waited for, also after a failure: nothing may touch the tensors afterwards.
    let outcomes = outside(py, move || {
        let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
        outcomes.into_iter().collect::<Result<Vec<_>>>()
    })?;
    let finished: Vec<_> = results
        .into_iter()
        .zip(outcomes)
        .map(|(result, outcome)| finish(py, result, complete, outcome))
        .collect::<PyResult<_>>()?;
    Ok(PyTuple::new(py, finished)?.into_any().unbind())
}

fn finish(py: Python<'_>, result: Py<PyAny>, complete: Option<&Py<PyAny>>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match complete {
        None => Ok(result),
        Some(complete) => complete.call1(py, (result, Output::new(outcome))),
    }
}
