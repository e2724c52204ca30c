//! What compression remembers of tensors, and what it has done with them.

use std::collections::{HashMap, HashSet};
use std::sync::{Mutex, PoisonError};

use corro_core::{Compression, Result, config};
use corro_engine::{CompressionEntry, Engine, GLOBAL, Ledger};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict};

use crate::error::{exception, unregistered};
use crate::running::engine;

/// What an elastic job's engine remembered when it ended: what is owed stays owed, whoever the ranks are.
static CARRIED: Mutex<Option<Ledger>> = Mutex::new(None);

/// Keeps what the engine remembers, for the next one of an elastic job.
pub(crate) fn carry(engine: &Engine) {
    let taken = engine.with_compression(GLOBAL, std::mem::take).ok();
    *CARRIED.lock().unwrap_or_else(PoisonError::into_inner) = taken;
}

/// Has a new engine of an elastic job go on with what was kept.
pub(crate) fn go_on(engine: &Engine) {
    if let Some(kept) = CARRIED.lock().unwrap_or_else(PoisonError::into_inner).take() {
        // A new engine has all ranks as its first set.
        let _ = engine.with_compression(GLOBAL, |ledger| *ledger = kept);
    }
}

/// How a tensor is compressed, as a front writes it.
pub(crate) fn parse(text: &str) -> Result<Compression> {
    let mut compression: Compression = text.parse()?;
    compression.inside |= config::COMPRESS_INSIDE.flag(false);
    Ok(compression)
}

/// The same, written in full; an error if it can't be done. The second says whether it strays without bound.
#[pyfunction]
pub(crate) fn check_compression(py: Python<'_>, text: &str) -> PyResult<(String, bool, bool)> {
    let compression: Compression = text.parse().map_err(|error| exception(py, &error))?;
    Ok((compression.to_string(), compression.feedback, compression.is_biased()))
}

#[pyfunction]
pub(crate) fn compression_report(py: Python<'_>, set_id: Option<u32>) -> PyResult<Bound<'_, PyDict>> {
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let entries = engine(py)?.with_compression(set, |ledger| ledger.report()).map_err(|e| exception(py, &e))?;
    let report = PyDict::new(py);
    for (name, entry) in entries {
        let CompressionEntry { compression, calls, plain_bytes, sent_bytes, seconds, residual_norm } = entry;
        let line = PyDict::new(py);
        line.set_item("compression", compression)?;
        line.set_item("calls", calls)?;
        line.set_item("plain_bytes", plain_bytes)?;
        line.set_item("sent_bytes", sent_bytes)?;
        line.set_item("seconds", seconds)?;
        line.set_item("residual_norm", residual_norm)?;
        report.set_item(name, line)?;
    }
    Ok(report)
}

#[pyfunction]
pub(crate) fn compression_state(py: Python<'_>, set_id: Option<u32>) -> PyResult<Bound<'_, PyDict>> {
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let saved = engine(py)?.with_compression(set, |ledger| ledger.save()).and_then(|saved| saved);
    let states = PyDict::new(py);
    for (name, bytes) in saved.map_err(|error| exception(py, &error))? {
        states.set_item(name, PyBytes::new(py, &bytes))?;
    }
    Ok(states)
}

#[pyfunction]
pub(crate) fn load_compression_state(
    py: Python<'_>,
    set_id: Option<u32>,
    states: HashMap<String, Vec<u8>>,
) -> PyResult<()> {
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let load = |ledger: &mut Ledger| states.into_iter().try_for_each(|(name, bytes)| ledger.load(&name, &bytes));
    engine(py)?.with_compression(set, load).and_then(|loaded| loaded).map_err(|error| exception(py, &error))
}

/// Multiplies what is owed of these tensors.
#[pyfunction]
pub(crate) fn scale_compression(py: Python<'_>, set_id: Option<u32>, factor: f32, names: Vec<String>) -> PyResult<()> {
    let set = set_id.ok_or_else(|| unregistered(py))?;
    let names: HashSet<String> = names.into_iter().collect();
    let scale = |ledger: &mut Ledger| ledger.scale(factor, |name| names.contains(name));
    engine(py)?.with_compression(set, scale).map_err(|error| exception(py, &error))
}
