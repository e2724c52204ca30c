//! The one door between Python and the engine: no call site can forget to release the GIL or to stop a panic.

use std::panic::{AssertUnwindSafe, catch_unwind};

use corro_core::{Error, Result};
use pyo3::marker::Ungil;
use pyo3::prelude::*;

use crate::error::exception;

/// Does `work` while other Python threads run; a panic in it is an error like any other.
pub(crate) fn outside<T: Ungil + Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Ungil + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(bug(&*panic))))
        .map_err(|error| exception(py, &error))
}

fn bug(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into());
    Error::Bug(text)
}
