//! Operations in flight, by number. A handle keeps the Python objects whose memory the engine works on.
//!
//! A tensor that the program did not name gets a name out of a few (see `names`), which its last bearer may still have.
//! Then it is kept here, with those of its stream that come behind it, and submitted once that one is done: whoever waits
//! for anything looks after it ([`submit_due`]). The program must not be made to wait for it at submit: it may be about to
//! submit what the other ranks wait for.

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
use crate::names::{self, Stream};
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

/// What the operation is called: as the program says, or as the next of its stream.
pub(crate) enum Called {
    Given(String),
    NextOf(Stream),
}

/// Hands the operation to the engine under a name: a ticket for each tensor.
pub(crate) type Submit = Box<dyn FnOnce(String) -> Result<Vec<Ticket>> + Send>;

enum Stage {
    /// To be submitted when its turn in its stream comes.
    Due(Stream, Submit),
    /// Somebody submits it right now.
    Leaving,
    Flying(Arc<Vec<Ticket>>),
    Refused(Error),
}

impl Stage {
    fn has_ended(&self) -> bool {
        match self {
            Self::Due(..) | Self::Leaving => false,
            Self::Flying(tickets) => tickets.iter().all(Ticket::has_ended),
            Self::Refused(_) => true,
        }
    }
}

#[derive(Default)]
struct Table {
    next: u64,
    pending: HashMap<u64, (Stage, Pending)>,
    /// Who was the last to bear a name that the program did not give, by set and name.
    bearers: HashMap<(u32, String), u64>,
    queues: HashMap<Stream, Queue>,
}

/// The operations of a stream that are at stage `Due`, oldest first.
#[derive(Default)]
struct Queue {
    handles: VecDeque<u64>,
    /// What the first will be called, once that is known.
    name: Option<String>,
}

impl Table {
    /// Who has this name now.
    fn bearer(&self, set: u32, name: &str) -> Option<u64> {
        let handle = *self.bearers.get(&(set, name.to_owned()))?;
        self.pending.get(&handle).is_some_and(|(stage, _)| !stage.has_ended()).then_some(handle)
    }

    /// Whom an operation at stage `Due` waits for.
    fn before(&self, stream: &Stream) -> Option<u64> {
        self.bearer(stream.0, self.queues.get(stream)?.name.as_ref()?)
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Submits an operation and gives it a handle.
pub(crate) fn submit(py: Python<'_>, pending: Pending, called: Called, submit: Submit) -> PyResult<u64> {
    let insert = |stage: Stage| {
        let mut table = table();
        let handle = table.next;
        table.next += 1;
        table.pending.insert(handle, (stage, pending));
        (table, handle)
    };
    let (stream, name) = match called {
        Called::Given(name) => {
            let tickets = outside(py, move || submit(name))?;
            return Ok(insert(Stage::Flying(Arc::new(tickets))).1);
        }
        Called::NextOf(stream) if table().queues.get(&stream).is_some_and(|queue| !queue.handles.is_empty()) => {
            (stream, None)
        }
        Called::NextOf(stream) => {
            let name = names::next(&stream);
            if table().bearer(stream.0, &name).is_none() {
                let key = (stream.0, name.clone());
                let tickets = outside(py, move || submit(name))?;
                let (mut table, handle) = insert(Stage::Flying(Arc::new(tickets)));
                table.bearers.insert(key, handle);
                return Ok(handle);
            }
            (stream, Some(name))
        }
    };
    let (mut table, handle) = insert(Stage::Due(stream.clone(), submit));
    let queue = table.queues.entry(stream).or_default();
    queue.handles.push_back(handle);
    if name.is_some() {
        queue.name = name;
    }
    Ok(handle)
}

/// Submits what waits for its name to be free, where it is. Whoever waits calls this every now and then, without the GIL.
pub(crate) fn submit_due() {
    // One at a time, so that all go in the order in which the program submitted them.
    static TURN: Mutex<()> = Mutex::new(());
    let Ok(_turn) = TURN.try_lock() else { return };
    let streams: Vec<Stream> = table().queues.keys().cloned().collect();
    for stream in streams {
        while submit_first(&stream) {}
    }
}

/// Submits the first of a stream, if its name is free. False if not, or there is none.
fn submit_first(stream: &Stream) -> bool {
    let mut here = table();
    let Some(queue) = here.queues.get(stream).filter(|queue| !queue.handles.is_empty()) else {
        here.queues.remove(stream);
        return false;
    };
    let known = queue.name.clone();
    drop(here);
    let name = known.unwrap_or_else(|| names::next(stream));
    let mut here = table();
    let taken = here.bearer(stream.0, &name).is_some();
    let Some(queue) = here.queues.get_mut(stream) else { return false };
    if taken {
        queue.name = Some(name);
        return false;
    }
    queue.name = None;
    let Some(handle) = queue.handles.pop_front() else { return false };
    let stage = here.pending.get_mut(&handle).map(|(stage, _)| std::mem::replace(stage, Stage::Leaving));
    here.bearers.insert((stream.0, name.clone()), handle);
    drop(here);
    let Some(Stage::Due(_, submit)) = stage else { return true };
    let left = match submit(name) {
        Ok(tickets) => Stage::Flying(Arc::new(tickets)),
        Err(error) => Stage::Refused(error),
    };
    if let Some((stage, _)) = table().pending.get_mut(&handle) {
        *stage = left;
    }
    true
}

/// The name for the stream's next tensor, free: for an operation that the program waits for anyway. Not with the GIL. None
/// if a signal came first.
pub(crate) fn wait_for_name(stream: &Stream, signals: &mut Signals) -> Option<String> {
    // Those that are due come before it.
    loop {
        let last = table().queues.get(stream).and_then(|queue| queue.handles.back().copied());
        match last {
            Some(last) if !wait_for_submit(last, signals) => return None,
            Some(_) => {}
            None => break,
        }
    }
    let name = names::next(stream);
    loop {
        let bearer = table().bearer(stream.0, &name);
        match bearer {
            Some(handle) if !wait_for(handle, signals) => return None,
            Some(_) => {}
            None => return Some(name),
        }
    }
}

/// Waits until the operation is done. Not with the GIL. False if a signal came first.
fn wait_for(handle: u64, signals: &mut Signals) -> bool {
    if !wait_for_submit(handle, signals) {
        return false;
    }
    let tickets = match table().pending.get(&handle) {
        Some((Stage::Flying(tickets), _)) => Arc::clone(tickets),
        _ => return true,
    };
    // All of a group, also after a failure: nothing may touch the tensors afterwards.
    tickets.iter().all(|ticket| ticket.wait_while(&mut || signals.go_on()))
}

/// Waits until the operation has been submitted. Not with the GIL. False if a signal came first.
fn wait_for_submit(handle: u64, signals: &mut Signals) -> bool {
    loop {
        let before = {
            let here = table();
            match here.pending.get(&handle) {
                Some((Stage::Due(stream, _), _)) => here.before(stream),
                Some((Stage::Leaving, _)) => None,
                _ => return true,
            }
        };
        match before {
            Some(before) if before != handle => {
                if !wait_for(before, signals) {
                    return false;
                }
            }
            _ => std::thread::sleep(MOMENT),
        }
        submit_due();
        if !signals.go_on() {
            return false;
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
    Ok(match stage {
        Stage::Flying(tickets) => tickets.iter().all(Ticket::is_done),
        other => other.has_ended(),
    })
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
        Stage::Due(..) | Stage::Leaving => Err(Error::Bug("waited for an operation that was not submitted".into())),
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
