//! Operations in flight, by number. A handle keeps the Python objects whose memory the engine works on.
//!
//! A tensor that the program did not name gets a name out of a few (see `names`), which its last bearer may still have.
//! Then it is kept here and submitted once that one is done: whoever waits for anything looks after it ([`submit_due`]).
//! The program must not be made to wait for it at submit: it may be about to submit what the other ranks wait for. Those
//! of its stream that come after it get their names when it is gone: the engine wants no name drawn ahead of time.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use corro_engine::{Outcome, Ticket};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyTuple;

use crate::error::exception;
use crate::gate::{Signals, outside};
use crate::names::{Name, Stream};
use crate::output::Output;

/// Between two looks whether a name is free again.
const MOMENT: Duration = Duration::from_micros(20);

/// Horovod looks for work once in so long. Programs (its tests among them) take an operation that has ended when they ask
/// right after submitting it for one that was not asynchronous, so the first to ask so early is told "not yet".
const CYCLE: Duration = Duration::from_millis(1);

/// What one handle stands for.
pub(crate) struct Pending {
    /// What waiting gives, or what `complete` makes it from.
    pub(crate) results: Results,
    /// Owns the memory of the inputs. Never read: it is dropped after the engine is done with them.
    pub(crate) keep: Py<PyAny>,
    /// `complete(result, output)`, if the result is not the result yet.
    pub(crate) complete: Option<Py<PyAny>>,
    /// When it was submitted, until somebody has asked for it.
    submitted: Option<Instant>,
}

impl Pending {
    pub(crate) fn new(results: Results, keep: Py<PyAny>, complete: Option<Py<PyAny>>) -> Self {
        Self { results, keep, complete, submitted: Some(Instant::now()) }
    }
}

/// One operation, or a group of them that completes together.
pub(crate) enum Results {
    One(Py<PyAny>),
    Group(Vec<Py<PyAny>>),
}

/// The set and the name of a tensor that the program did not name.
type Unnamed = (u32, String);

/// Hands the operation to the engine under this name: a ticket for each tensor.
pub(crate) type Submit = Box<dyn FnOnce(String) -> Result<Vec<Ticket>> + Send>;

enum Stage {
    /// To be submitted when its turn comes.
    Due {
        stream: Stream,
        turn: Option<Turn>,
        submit: Submit,
    },
    /// Somebody submits it right now.
    Leaving,
    Flying(Arc<Vec<Ticket>>),
    Refused(Error),
}

/// What an operation that is due is to be called, once the operation with this handle, which is called so, is done.
struct Turn {
    name: String,
    after: u64,
}

impl Stage {
    fn is_done(&self) -> bool {
        match self {
            Self::Due { .. } | Self::Leaving => false,
            Self::Flying(tickets) => tickets.iter().all(Ticket::has_ended),
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
    /// The handles at stage `Due`, oldest first, and how many there are of each stream.
    due: VecDeque<u64>,
    kept_back: HashMap<Stream, usize>,
}

impl Table {
    fn is_done(&self, handle: u64) -> bool {
        self.pending.get(&handle).is_none_or(|(stage, _)| stage.is_done())
    }

    fn is_kept_back(&self, stream: &Stream) -> bool {
        self.kept_back.get(stream).is_some_and(|count| *count > 0)
    }

    /// Who has this name now.
    fn bearer(&self, unnamed: &Unnamed) -> Option<u64> {
        self.unnamed.get(unnamed).copied().filter(|handle| !self.is_done(*handle))
    }

    /// Draws a name for the operation with this handle. Gives who has it now, if anybody.
    fn draw_name(&mut self, stream: &Stream, handle: u64) -> (String, Option<u64>) {
        let unnamed = (stream.set, stream.next_name());
        let bearer = self.bearer(&unnamed);
        let name = unnamed.1.clone();
        self.unnamed.insert(unnamed, handle);
        (name, bearer)
    }

    /// Whom the oldest operation that is due waits for.
    fn first_waits_for(&self) -> Option<u64> {
        match self.pending.get(self.due.front()?) {
            Some((Stage::Due { turn: Some(Turn { after, .. }), .. }, _)) => Some(*after),
            _ => None,
        }
    }

    fn new_handle(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }
}

static TABLE: LazyLock<Mutex<Table>> = LazyLock::new(Mutex::default);

fn table() -> MutexGuard<'static, Table> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Submits an operation and gives it a handle.
pub(crate) fn submit(py: Python<'_>, pending: Pending, name: Name, submit: Submit) -> PyResult<u64> {
    let stream = match name {
        Name::Given(name) => {
            let tickets = outside(py, || submit(name))?;
            let mut table = table();
            let handle = table.new_handle();
            table.pending.insert(handle, (Stage::Flying(Arc::new(tickets)), pending));
            return Ok(handle);
        }
        Name::Of(stream) => stream,
    };
    let (handle, turn) = {
        let mut table = table();
        let handle = table.new_handle();
        let turn = if table.is_kept_back(&stream) { None } else { Some(table.draw_name(&stream, handle)) };
        (handle, turn)
    };
    let stage = match turn {
        Some((name, None)) => Stage::Flying(Arc::new(outside(py, || submit(name))?)),
        Some((name, Some(after))) => Stage::Due { stream, turn: Some(Turn { name, after }), submit },
        None => Stage::Due { stream, turn: None, submit },
    };
    let mut table = table();
    if let Stage::Due { stream, .. } = &stage {
        table.due.push_back(handle);
        *table.kept_back.entry(stream.clone()).or_default() += 1;
    }
    table.pending.insert(handle, (stage, pending));
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
        let drawn = match here.pending.get(&handle) {
            Some((Stage::Due { turn: None, stream, .. }, _)) => {
                let stream = stream.clone();
                Some(here.draw_name(&stream, handle))
            }
            Some((Stage::Due { .. }, _)) => None,
            _ => {
                here.due.pop_front();
                continue;
            }
        };
        let free = match (&drawn, here.first_waits_for()) {
            (Some((_, bearer)), _) => bearer.is_none(),
            (None, Some(after)) => here.is_done(after),
            (None, None) => true,
        };
        let Some((stage, _)) = here.pending.get_mut(&handle) else { return };
        if !free {
            if let (Stage::Due { turn, .. }, Some((name, Some(after)))) = (stage, drawn) {
                *turn = Some(Turn { name, after });
            }
            return;
        }
        let Stage::Due { stream, turn, submit } = std::mem::replace(stage, Stage::Leaving) else { return };
        here.due.pop_front();
        here.kept_back.entry(stream).and_modify(|count| *count -= 1);
        drop(here);
        let name = turn.map(|turn| turn.name).or(drawn.map(|(name, _)| name)).unwrap_or_default();
        let left = match submit(name) {
            Ok(tickets) => Stage::Flying(Arc::new(tickets)),
            Err(error) => Stage::Refused(error),
        };
        if let Some((stage, _)) = table().pending.get_mut(&handle) {
            *stage = left;
        }
    }
}

/// A name for an operation that the program waits for anyway, once it is free. Not with the GIL. `None` if a signal came
/// first.
pub(crate) fn name_to_wait_with(name: Name, signals: &mut Signals) -> Option<String> {
    let stream = match name {
        Name::Given(name) => return Some(name),
        Name::Of(stream) => stream,
    };
    loop {
        let here = table();
        let Some(last) = here.due.back().copied().filter(|_| here.is_kept_back(&stream)) else {
            let unnamed = (stream.set, stream.next_name());
            let bearer = here.bearer(&unnamed);
            drop(here);
            return match bearer {
                Some(handle) if !wait_for(handle, signals) => None,
                _ => Some(unnamed.1),
            };
        };
        drop(here);
        if !wait_for(last, signals) {
            return None;
        }
    }
}

/// Waits until the operation is done. Not with the GIL. False if a signal came first.
fn wait_for(handle: u64, signals: &mut Signals) -> bool {
    loop {
        let here = table();
        let before = match here.pending.get(&handle) {
            None | Some((Stage::Refused(_), _)) => return true,
            Some((Stage::Flying(tickets), _)) => Ok(Arc::clone(tickets)),
            Some((Stage::Due { .. }, _)) => Err(here.first_waits_for()),
            Some((Stage::Leaving, _)) => Err(None),
        };
        drop(here);
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
    let mut table = table();
    let (stage, pending) = table.pending.get_mut(&handle).ok_or_else(|| {
        PyValueError::new_err(format!(
            "handle {handle} is not in flight: it was never given out, or has been synchronized already"
        ))
    })?;
    if pending.submitted.take().is_some_and(|submitted| submitted.elapsed() < CYCLE) {
        return Ok(false);
    }
    Ok(match stage {
        Stage::Flying(tickets) => tickets.iter().all(Ticket::is_done),
        _ => stage.is_done(),
    })
}

#[pyfunction]
pub(crate) fn wait(py: Python<'_>, handle: u64) -> PyResult<Option<Py<PyAny>>> {
    let mut signals = Signals::new();
    if !outside(py, || Ok(wait_for(handle, &mut signals)))? {
        // It is still under way, and the handle still good.
        return Err(signals.raised());
    }
    let Some((stage, Pending { results, keep, complete, .. })) = table().pending.remove(&handle) else {
        return Ok(None);
    };
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
