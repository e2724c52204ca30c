//! Which error becomes which exception: the one map.

use corro_core::Error;
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use crate::departure;

/// The exception for an error of the engine. Their classes are in `corro/_errors.py`.
pub(crate) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    departure::suffers(error);
    let text = error.to_string();
    match error {
        Error::Usage(_) => PyValueError::new_err(text),
        Error::Mismatch(_) | Error::Bug(_) => class(py, "NotRetryableError", text),
        _ => blaming(py, class(py, "HorovodInternalError", text), error),
    }
}

/// `raised`, which knows whose fault it is.
fn blaming(py: Python<'_>, raised: PyErr, error: &Error) -> PyErr {
    if let Some(rank) = error.blames() {
        // Only if the package is damaged; then the text must do.
        let _ = raised.value(py).setattr("blamed_rank", rank.index());
    }
    raised
}

/// The exception for a call before `init` or after `shutdown`.
pub(crate) fn not_initialized(py: Python<'_>) -> PyErr {
    class(py, "NotInitializedError", "Horovod has not been initialized; use hvd.init().")
}

/// The exception for a process set without a number.
pub(crate) fn unregistered(py: Python<'_>) -> PyErr {
    let text = "the process set provided does not exist, or has not been registered: Process set does not exist or has \
                not been registered. Register it with hvd.add_process_set or hvd.init(process_sets=[...]); those that were \
                added while an elastic job ran must be added again after each change of its ranks.";
    class(py, "UnregisteredProcessSet", text)
}

fn class(py: Python<'_>, name: &str, argument: impl pyo3::PyErrArguments + 'static) -> PyErr {
    static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let found = MODULE
        .get_or_try_init(py, || Ok::<_, PyErr>(py.import("corro._errors")?.into_any().unbind()))
        .and_then(|module| Ok(module.bind(py).getattr(name)?.cast_into::<PyType>()?));
    match found {
        Ok(class) => PyErr::from_type(class, argument),
        // Only if the package is damaged; the error itself must not be lost over that.
        Err(_) => PyRuntimeError::new_err(argument),
    }
}
