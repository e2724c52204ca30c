//! The engine of this process, for all who need it. `job` makes it and ends it.

use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use corro_engine::Engine;
use corro_membership::Seat;
use pyo3::prelude::*;

use crate::error::{exception, not_initialized};

/// One for all fronts of a process, whatever they call themselves.
static RUNNING: RwLock<Option<Running>> = RwLock::new(None);

/// A process in its job.
pub(crate) struct Running {
    pub(crate) engine: Engine,
    /// Which of the times that ranks have met this is.
    pub(crate) epoch: u64,
    /// In an elastic job: its seat, which says where it is among the hosts.
    pub(crate) seat: Option<Seat>,
}

pub(crate) fn running() -> RwLockReadGuard<'static, Option<Running>> {
    RUNNING.read().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn change() -> RwLockWriteGuard<'static, Option<Running>> {
    RUNNING.write().unwrap_or_else(PoisonError::into_inner)
}

/// The engine, or the exception that says that there is none.
pub(crate) fn engine(py: Python<'_>) -> PyResult<Engine> {
    let engine = about(py, |running| running.engine.clone())?;
    engine.check_process().map_err(|error| exception(py, &error))?;
    Ok(engine)
}

/// Whether this process was forked from the one that has joined the job: then nothing here is to be ended.
pub(crate) fn is_forked() -> bool {
    running().as_ref().is_some_and(|running| running.engine.check_process().is_err())
}

/// Asks something of it.
pub(crate) fn about<T>(py: Python<'_>, ask: impl FnOnce(&Running) -> T) -> PyResult<T> {
    running().as_ref().map(ask).ok_or_else(|| not_initialized(py))
}

/// A name for a tensor that has none.
pub(crate) fn unnamed(set: u32, kind: &str) -> Option<String> {
    running().as_ref()?.engine.name(set, kind).ok()
}

/// The place of this process among those of its host, and how many they are.
pub(crate) fn local_place() -> (usize, usize) {
    let place = |running: &Running| match &running.seat {
        Some(seat) => (seat.local_rank, seat.local_size),
        None => (running.engine.local_rank(), running.engine.local_size()),
    };
    running().as_ref().map_or((0, 1), place)
}

/// The engine, if there is one: for callers without Python.
pub(crate) fn current() -> Option<Engine> {
    running().as_ref().map(|running| running.engine.clone()).filter(|engine| engine.check_process().is_ok())
}
