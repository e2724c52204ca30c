//! TensorFlow's operations, registered through its C API at run time: the ones that `corro.tensorflow` calls.
//!
//! `tf.load_op_library` makes Python functions for the operations that a library registers while it is opened. This one is
//! open long before, so a second, tiny one (`shim/lib.rs`) is opened then, and calls [`corro_tensorflow_register`].
//!
//! | module | owns |
//! | --- | --- |
//! | [`api`] | TensorFlow's functions |
//! | [`done_callback`] | the call-back of an asynchronous kernel |
//! | [`ops`] | definitions and shapes |
//! | [`node`] | one node, and one call of its kernel |
//! | [`kernel`] | from a node to a submission, and back |
//! | [`output_memory`] | memory for large outputs |
//! | [`run`] | how calls of kernels run |
//! | [`failure`] | why they failed |
//! | [`xla`] | collectives in compiled code |

#![expect(unsafe_code, reason = "TensorFlow's C API")]

mod api;
mod done_callback;
mod failure;
mod kernel;
mod node;
mod ops;
mod output_memory;
mod run;
mod work_in_place;
mod xla;

use std::sync::{Mutex, OnceLock, PoisonError};

use pyo3::prelude::*;

/// How the registration went; None before it.
static OUTCOME: Mutex<Option<Result<(), String>>> = Mutex::new(None);

/// Called by the shim while TensorFlow opens it.
///
/// SAFETY: an exported name that nobody else has.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn corro_tensorflow_register() {
    let mut outcome = OUTCOME.lock().unwrap_or_else(PoisonError::into_inner);
    // A second registration of the same operation would end the process.
    if outcome.is_none() {
        *outcome = Some(register());
    }
}

fn register() -> Result<(), String> {
    // Nodes of a graph run on any of TensorFlow's threads, and go on in call-backs.
    corro_engine::expect_foreign_threads();
    let api = api::load()?;
    ops::define_all(api)?;
    run::register_kernels(api)
}

/// Makes collectives known to XLA, or says why that is not possible. Once is enough.
#[pyfunction]
pub(crate) fn tensorflow_xla_problem() -> Option<String> {
    static OUTCOME: OnceLock<Result<(), String>> = OnceLock::new();
    OUTCOME.get_or_init(xla::register).clone().err()
}

/// Why TensorFlow has no operations of ours; None if all is well.
#[pyfunction]
pub(crate) fn tensorflow_problem() -> Option<String> {
    match &*OUTCOME.lock().unwrap_or_else(PoisonError::into_inner) {
        Some(Ok(())) => None,
        Some(Err(text)) => Some(text.clone()),
        None => Some("the library that registers them was not opened".into()),
    }
}
