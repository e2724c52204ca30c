//! The one door between Python and the engine: no call site can forget to release the GIL or to stop a panic, and none
//! that waits can keep a signal (Ctrl-C) from being handled.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::marker::Ungil;
use pyo3::prelude::*;

use crate::error::exception;

/// Does `work` while other Python threads run; a panic in it is an error like any other.
pub(crate) fn outside<T: Ungil + Send>(py: Python<'_>, work: impl FnOnce() -> Result<T> + Ungil + Send) -> PyResult<T> {
    py.detach(|| catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(bug(&*panic))))
        .map_err(|error| exception(py, &error))
}

/// How often a thread that waits for other ranks looks for signals. Looking takes the GIL.
const LOOK: Duration = Duration::from_millis(100);

/// What a thread does every now and then while it waits: asks Python whether a signal handler has raised, as Ctrl-C's does.
pub(crate) struct Signals {
    looked: Instant,
    raised: Option<PyErr>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self { looked: Instant::now(), raised: None }
    }

    /// Whether to go on waiting. To be called outside, without the GIL. Only Python's main thread ever gets signals.
    pub(crate) fn go_on(&mut self) -> bool {
        if self.raised.is_none() && self.looked.elapsed() >= LOOK {
            let look = |py: Python<'_>| py.check_signals();
            self.raised = Python::attach(look).err();
            self.looked = Instant::now();
        }
        self.raised.is_none()
    }

    /// What the handler has raised, for a caller who was told not to go on.
    pub(crate) fn raised(self) -> PyErr {
        self.raised.unwrap_or_else(|| PyKeyboardInterrupt::new_err(()))
    }
}

fn bug(panic: &(dyn std::any::Any + Send)) -> Error {
    let text = panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "a panic without a message".into());
    Error::Bug(text)
}
