//! This process's part in a job: begun by `init`, ended by `shutdown`, and what it may be asked.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use corro_core::{Error, Rank};
use corro_engine::Engine;
use pyo3::prelude::*;

use crate::compression;
use crate::departure;
use crate::elastic;
use crate::handles;
use crate::running::{Running, about, change, engine, is_forked, running};
use crate::without_gil::outside;

/// How often this process has joined a job; ranks that meet must have done so equally often. Not in elastic jobs.
static TIMES: AtomicU64 = AtomicU64::new(0);

/// Whether the user was told what there is to say about the environment.
static REVIEWED: AtomicBool = AtomicBool::new(false);

#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    if is_initialized() {
        return engine(py).map(drop);
    }
    corro_log::init_rank();
    departure::begin();
    // Horovod's users expect ValueError from a failed init, whatever failed.
    let refused = |error: Error| {
        departure::suffers(&error);
        Error::Usage(error.to_string())
    };
    let started = match outside(py, || elastic::client().map_err(refused))? {
        Some(client) => elastic::start(py, client)?,
        None => outside(py, || {
            let epoch = TIMES.fetch_add(1, Ordering::Relaxed);
            Ok(Running { engine: Engine::from_env(epoch).map_err(refused)?, epoch, seat: None })
        })?,
    };
    let elastic = started.seat.is_some().then_some(started.epoch);
    corro_log::identify(started.engine.rank(), started.engine.host(), elastic);
    if !REVIEWED.swap(true, Ordering::Relaxed) {
        started.engine.review_environment();
    }
    if elastic.is_some() {
        compression::go_on(&started.engine);
    }
    *change() = Some(started);
    Ok(())
}

#[pyfunction]
#[pyo3(signature = (after=None))]
pub(crate) fn shutdown(py: Python<'_>, after: Option<departure::Raised>) -> PyResult<()> {
    if is_forked() {
        return Ok(());
    }
    outside(py, || {
        let running = change().take();
        if let Some(Running { engine, seat, .. }) = running {
            elastic::remember(engine.over());
            if seat.is_some() {
                compression::carry(&engine);
            }
            engine.leave(departure::reason(after));
        }
        Ok(())
    })?;
    handles::clear();
    Ok(())
}

#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    running().is_some()
}

#[pyfunction]
pub(crate) fn epoch(py: Python<'_>) -> PyResult<u64> {
    about(py, |running| running.epoch)
}

#[pyfunction]
pub(crate) fn rank(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.engine.rank().index())
}

#[pyfunction]
pub(crate) fn size(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.engine.size())
}

#[pyfunction]
pub(crate) fn local_rank(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.seat.as_ref().map_or_else(|| running.engine.local_rank(), |seat| seat.local_rank))
}

#[pyfunction]
pub(crate) fn local_size(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.seat.as_ref().map_or_else(|| running.engine.local_size(), |seat| seat.local_size))
}

#[pyfunction]
pub(crate) fn cross_rank(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.seat.as_ref().map_or_else(|| running.engine.cross_rank(), |seat| seat.cross_rank))
}

#[pyfunction]
pub(crate) fn cross_size(py: Python<'_>) -> PyResult<usize> {
    about(py, |running| running.seat.as_ref().map_or_else(|| running.engine.cross_size(), |seat| seat.cross_size))
}

#[pyfunction]
pub(crate) fn is_homogeneous(py: Python<'_>) -> PyResult<bool> {
    about(py, |running| running.seat.as_ref().map_or_else(|| running.engine.is_homogeneous(), |seat| seat.homogeneous))
}

fn as_ranks(numbers: Vec<usize>) -> Vec<Rank> {
    numbers.into_iter().map(Rank::new).collect()
}

#[pyfunction]
pub(crate) fn add_process_set(py: Python<'_>, ranks: Vec<usize>) -> PyResult<u32> {
    let engine = engine(py)?;
    let ranks = as_ranks(ranks);
    outside(py, move || engine.add_process_set(&ranks))
}

#[pyfunction]
pub(crate) fn reserve_process_set(py: Python<'_>, ranks: Vec<usize>) -> PyResult<u32> {
    Ok(engine(py)?.reserve_process_set(&as_ranks(ranks)))
}

#[pyfunction]
pub(crate) fn remove_process_set(py: Python<'_>, set_id: u32) -> PyResult<bool> {
    let engine = engine(py)?;
    outside(py, move || engine.remove_process_set(set_id))
}

#[pyfunction]
pub(crate) fn process_set(py: Python<'_>, set_id: u32) -> PyResult<Option<Vec<usize>>> {
    Ok(engine(py)?.process_set(set_id).map(|ranks| ranks.into_iter().map(Rank::index).collect()))
}

#[pyfunction]
pub(crate) fn start_timeline(py: Python<'_>, path: &str, mark_cycles: bool) -> PyResult<()> {
    let engine = engine(py)?;
    outside(py, move || engine.start_timeline(path, mark_cycles))
}

#[pyfunction]
pub(crate) fn stop_timeline(py: Python<'_>) -> PyResult<()> {
    let engine = engine(py)?;
    outside(py, move || engine.stop_timeline())
}

#[pyfunction]
pub(crate) fn flight_record(py: Python<'_>) -> PyResult<String> {
    Ok(engine(py)?.flight_record())
}

#[pyfunction]
pub(crate) fn metrics(py: Python<'_>) -> PyResult<String> {
    Ok(engine(py)?.metrics().prometheus())
}
