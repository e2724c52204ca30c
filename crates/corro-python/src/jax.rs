//! JAX's collectives: handlers that code compiled by XLA calls, through XLA's interface for foreign functions (FFI).
//!
//! `corro/jax/_primitive.py` writes the calls into the programs, and gives XLA the addresses that [`jax_handlers`] hands out.
//! What a call means is in its attributes, which are constants of the program; tensors come as buffers.
//!
//! | module | owns |
//! | --- | --- |
//! | [`ffi`] | XLA's structures, errors and futures |
//! | [`call`] | one call of the handler: what it asks for, and its buffers |
//! | [`run`] | the handlers |
//! | [`devices`] | a program that runs on several devices of this process at once |
//! | [`work`] | what is done with a call: from it to submissions, and to its end |

mod call;
mod devices;
mod ffi;
mod run;
mod work;

use pyo3::prelude::*;

use crate::error::exception;

/// The handlers for host memory and for that of GPUs, as `register_ffi_target` takes them.
///
/// `futures` is the place of `XLA_FFI_Future_Create` among the functions of XLA's API. It has moved from version to
/// version; the header that comes with each of them says where it is. Without it a call waits where it is made.
#[pyfunction]
#[pyo3(signature = (futures=None))]
pub(crate) fn jax_handlers(py: Python<'_>, futures: Option<usize>) -> PyResult<(Py<PyAny>, Py<PyAny>)> {
    // XLA runs any part of a program on any of its threads.
    corro_engine::expect_foreign_threads();
    ffi::know_futures(futures);
    Ok((ffi::capsule(py, run::on_host)?, ffi::capsule(py, run::on_gpu)?))
}

/// Why a collective in a compiled program has failed, as an exception; None if `text`, which is all that XLA hands on, comes
/// from something else.
#[pyfunction]
pub(crate) fn jax_failure(py: Python<'_>, text: &str) -> Option<PyErr> {
    work::failure_behind(text).map(|error| exception(py, &error))
}
