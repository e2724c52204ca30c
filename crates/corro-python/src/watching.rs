//! What those who watch the job are told by the program.

use pyo3::prelude::*;

use crate::running::current;

#[pyfunction]
pub(crate) fn is_watched() -> bool {
    current().is_some_and(|engine| engine.is_watched())
}

#[pyfunction]
pub(crate) fn log_value(step: u64, name: &str, value: f64) {
    if let Some(engine) = current() {
        engine.log_value(step, name, value);
    }
}

#[pyfunction]
pub(crate) fn dumps_on(signal: u8) {
    if let Some(engine) = current() {
        engine.dumps_on(signal);
    }
}

#[pyfunction]
pub(crate) fn mark_step() {
    if let Some(engine) = current() {
        engine.mark_step();
    }
}
