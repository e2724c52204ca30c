//! Why a kernel failed, in TensorFlow's terms, and what keeps a panic from its frames.

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corro_core::Error;
use corro_engine::Engine;

use crate::{departure, running};

/// TensorFlow's numbers for what went wrong.
const UNKNOWN: c_int = 2;
const INVALID_ARGUMENT: c_int = 3;
const FAILED_PRECONDITION: c_int = 9;
pub(super) const ABORTED: c_int = 10;
const INTERNAL: c_int = 13;

/// Why a kernel failed, as TensorFlow is told.
pub(super) struct Failure {
    pub(super) code: c_int,
    pub(super) text: String,
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        departure::suffers(&error);
        let code = match error {
            Error::Usage(_) => INVALID_ARGUMENT,
            Error::Mismatch(_) => FAILED_PRECONDITION,
            Error::Bug(_) => INTERNAL,
            _ => UNKNOWN,
        };
        Self { code, text: error.to_string() }
    }
}

impl From<String> for Failure {
    /// TensorFlow refused something that we asked for.
    fn from(text: String) -> Self {
        Self { code: INTERNAL, text }
    }
}

pub(super) type Answer<T> = Result<T, Failure>;

/// Runs `work` so that a panic is a failure like any other: it must not reach TensorFlow's frames.
pub(super) fn guarded<T>(work: impl FnOnce() -> Answer<T>) -> Answer<T> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Error::Bug("a panic in a TensorFlow kernel; see the standard error output".into()).into())
    })
}

pub(super) fn engine() -> Answer<Engine> {
    running::current().ok_or_else(|| Failure {
        code: FAILED_PRECONDITION,
        text: "Horovod has not been initialized; use hvd.init().".into(),
    })
}
