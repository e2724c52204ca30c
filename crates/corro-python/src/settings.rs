//! The knobs that Python code asks for itself; `corro_core::config` owns them.

use corro_core::config::{self, Variable};
use pyo3::exceptions::PyKeyError;
use pyo3::prelude::*;

fn knob(name: &str) -> PyResult<&'static Variable> {
    config::find(name).ok_or_else(|| PyKeyError::new_err(format!("{name} is no knob of corro-core/src/config.rs")))
}

/// What the user set. All of this reads the environment with the GIL, under which Python writes it.
#[pyfunction]
pub(crate) fn setting(name: &str) -> PyResult<Option<String>> {
    Ok(knob(name)?.value())
}

#[pyfunction]
#[pyo3(signature = (name, default=false))]
pub(crate) fn flag(name: &str, default: bool) -> PyResult<bool> {
    Ok(knob(name)?.flag(default))
}

/// A variable that others set.
#[pyfunction]
pub(crate) fn foreign(name: &str) -> PyResult<Option<String>> {
    if !config::is_foreign(name) {
        return Err(PyKeyError::new_err(format!(
            "{name} is not among the foreign variables of corro-core/src/config.rs"
        )));
    }
    Ok(config::foreign(name))
}
