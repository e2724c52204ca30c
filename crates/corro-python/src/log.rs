//! What Python code has to say to whoever runs the job: the same log as everything else (`corro-log`).

use pyo3::prelude::*;

/// Something went wrong that the program can live with.
#[pyfunction]
pub(crate) fn log_warning(text: &str) {
    // Drivers of jobs in Spark and Ray are no ranks, and have no log yet.
    corro_log::init_rank();
    tracing::warn!("{text}");
}
