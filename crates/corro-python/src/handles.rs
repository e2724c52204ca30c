//! Operations in flight, by number. A handle keeps the Python objects whose memory the engine works on.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use corro_engine::{Outcome, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};

use crate::error::exception;
use crate::gpu;
use crate::output::Output;
use crate::running;
use crate::without_gil::{Signals, outside};

/// Horovod looks for work once in so long. Programs (its tests among them) take an operation that has ended when they ask
/// right after submitting it for one that was not asynchronous, so the first to ask so early is told "not yet".
const CYCLE: Duration = Duration::from_millis(1);

/// What one handle stands for.
pub(crate) struct Pending {
    /// One for each tensor.
    tickets: Arc<Vec<Ticket>>,
    /// What waiting gives, or what `complete` makes it from.
    pub(crate) results: Results,
    /// Owns the memory of the inputs: it is dropped after the engine is done with them.
    pub(crate) keep: Py<PyAny>,
    /// The memory is a GPU's, which no owner can hold in its place: what `keep` has to say of that is asked for at the end.
    on_gpu: bool,
    /// `complete(result, output)`, if the result is not the result yet.
    pub(crate) complete: Option<Py<PyAny>>,
    /// When it was submitted, until somebody has asked for it.
    submitted: Option<Instant>,
}

impl Pending {
    pub(crate) fn new(
        tickets: Vec<Ticket>,
        results: Results,
        (keep, on_gpu): (Py<PyAny>, bool),
        complete: Option<Py<PyAny>>,
    ) -> Self {
        Self { tickets: Arc::new(tickets), results, keep, on_gpu, complete, submitted: Some(Instant::now()) }
    }
}

/// One operation, or a group of them that completes together.
pub(crate) enum Results {
    One(Py<PyAny>),
    Group(Vec<Py<PyAny>>),
}

#[derive(Default)]
struct Table {
    next: u64,
    pending: HashMap<u64, Pending>,
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Gives a handle to an operation that was submitted.
pub(crate) fn insert(pending: Pending) -> u64 {
    let mut table = table();
    let handle = table.next;
    table.next += 1;
    table.pending.insert(handle, pending);
    handle
}

/// Waits until the operation is done. Not with the GIL. False if a signal came first.
fn wait_for(handle: u64, signals: &mut Signals) -> bool {
    let Some(tickets) = table().pending.get(&handle).map(|pending| Arc::clone(&pending.tickets)) else { return true };
    // All of a group, also after a failure: nothing may touch the tensors afterwards.
    tickets.iter().all(|ticket| ticket.wait_while(&mut || signals.go_on()))
}

/// Forgets everything, and counts from 0 again. The engine must have ended.
pub(crate) fn clear() {
    let forgotten = std::mem::take(&mut *table());
    // Dropping Python objects may run Python code, which may come back here: not under the lock.
    drop(forgotten);
}

/// Handles of a process that this one was forked from are not its own.
fn check_process(py: Python<'_>) -> PyResult<()> {
    if running::is_forked() { running::engine(py).map(drop) } else { Ok(()) }
}

#[pyfunction]
pub(crate) fn poll(py: Python<'_>, handle: u64) -> PyResult<bool> {
    check_process(py)?;
    let mut table = table();
    let pending = table.pending.get_mut(&handle).ok_or_else(|| {
        PyValueError::new_err(format!(
            "handle {handle} is not in flight: it was never given out, or has been synchronized already"
        ))
    })?;
    if pending.submitted.take().is_some_and(|submitted| submitted.elapsed() < CYCLE) {
        return Ok(false);
    }
    Ok(pending.tickets.iter().all(Ticket::is_done))
}

#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    check_process(py)?;
    let mut signals = Signals::new();
    if !outside(py, || Ok(wait_for(handle, &mut signals)))? {
        // It is still under way, and the handle still good.
        return Err(signals.raised());
    }
    let Some(Pending { tickets, results, keep, on_gpu, complete, .. }) = table().pending.remove(&handle) else {
        return Ok(None);
    };
    let outcomes: Result<Vec<Outcome>> = tickets.iter().map(Ticket::take).collect();
    let ordered = outcomes
        .map_err(|error| exception(py, &error))
        .and_then(|outcomes| gpu::order(py, &outcomes).map(|()| outcomes))
        .and_then(|outcomes| if on_gpu { check(keep.bind(py)).map(|()| outcomes) } else { Ok(outcomes) });
    let result = ordered.and_then(|outcomes| match results {
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

/// Raises what an owner, or one of a group, has to say about its memory (`check` of `corro/torch/_tensors.py`).
fn check(keep: &Bound<'_, PyAny>) -> PyResult<()> {
    if let Ok(owners) = keep.cast::<PyList>() {
        return owners.iter().try_for_each(|owner| check(&owner));
    }
    keep.getattr_opt("check")?.map_or(Ok(()), |check| check.call0().map(drop))
}

fn finish(py: Python<'_>, result: Py<PyAny>, complete: Option<&Py<PyAny>>, outcome: Outcome) -> PyResult<Py<PyAny>> {
    match complete {
        None => Ok(result),
        Some(complete) => complete.call1(py, (result, Output::new(outcome))),
    }
}
