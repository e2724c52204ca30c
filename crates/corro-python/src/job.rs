//! The engine of this process: made by `init`, gone after `shutdown`.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{PoisonError, RwLock};

use corro_core::Error;
use corro_engine::Engine;
use pyo3::prelude::*;

use crate::error::not_initialized;
use crate::gate::outside;
use crate::{handles, names};

/// One for all fronts of a process, whatever they call themselves.
static ENGINE: RwLock<Option<Engine>> = RwLock::new(None);
/// How often this process has joined a job; ranks that meet must have done so equally often.
static EPOCH: AtomicU64 = AtomicU64::new(0);

/// The engine, or the exception that says that there is none.
pub(crate) fn engine(py: Python<'_>) -> PyResult<Engine> {
    current().ok_or_else(|| not_initialized(py))
}

/// The engine, if there is one: for callers without Python.
pub(crate) fn current() -> Option<Engine> {
    ENGINE.read().unwrap_or_else(PoisonError::into_inner).clone()
}

#[pyfunction]
pub(crate) fn init(py: Python<'_>) -> PyResult<()> {
    outside(py, || {
        let mut place = ENGINE.write().unwrap_or_else(PoisonError::into_inner);
        if place.is_none() {
            // Horovod's users expect ValueError from a failed init, whatever failed.
            let epoch = EPOCH.fetch_add(1, Ordering::Relaxed);
            *place = Some(Engine::from_env(epoch).map_err(|error| Error::Usage(error.to_string()))?);
        }
        Ok(())
    })
}

#[pyfunction]
pub(crate) fn shutdown(py: Python<'_>) -> PyResult<()> {
    outside(py, || {
        let engine = ENGINE.write().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(engine) = engine {
            engine.shutdown();
        }
        Ok(())
    })?;
    handles::clear();
    names::forget();
    Ok(())
}

#[pyfunction]
pub(crate) fn is_initialized() -> bool {
    ENGINE.read().unwrap_or_else(PoisonError::into_inner).is_some()
}

#[pyfunction]
pub(crate) fn rank(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.rank())
}

#[pyfunction]
pub(crate) fn size(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.size())
}

#[pyfunction]
pub(crate) fn local_rank(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.local_rank())
}

#[pyfunction]
pub(crate) fn local_size(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.local_size())
}

#[pyfunction]
pub(crate) fn cross_rank(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.cross_rank())
}

#[pyfunction]
pub(crate) fn cross_size(py: Python<'_>) -> PyResult<usize> {
    Ok(engine(py)?.cross_size())
}

#[pyfunction]
pub(crate) fn is_homogeneous(py: Python<'_>) -> PyResult<bool> {
    Ok(engine(py)?.is_homogeneous())
}

#[pyfunction]
pub(crate) fn add_process_set(py: Python<'_>, ranks: Vec<usize>) -> PyResult<u32> {
    let engine = engine(py)?;
    let set_id = outside(py, move || engine.add_process_set(&ranks))?;
    names::forget_set(set_id);
    Ok(set_id)
}

#[pyfunction]
pub(crate) fn remove_process_set(py: Python<'_>, set_id: u32) -> PyResult<bool> {
    let engine = engine(py)?;
    outside(py, move || engine.remove_process_set(set_id))
}

#[pyfunction]
pub(crate) fn process_set(py: Python<'_>, set_id: u32) -> PyResult<Option<Vec<usize>>> {
    Ok(engine(py)?.process_set(set_id))
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
