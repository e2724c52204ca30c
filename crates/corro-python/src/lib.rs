//! `corro._native`: the engine as Python sees it.
//!
//! Thin on purpose: it turns addresses and numbers into submissions, and outcomes into Python objects. What a call may
//! say is decided in `python/corro/_front`, what it means in `corro-engine`. The Python fronts are the only callers.
//!
//! | module | owns |
//! | --- | --- |
//! | `without_gil` | the one place where the GIL is released and panics are caught |
//! | `error` | which error becomes which exception |
//! | `job`, `running` | the engine of this process |
//! | `departure` | why this process leaves its job |
//! | `elastic` | its place in an elastic job |
//! | `compression` | what compression remembers, and has done |
//! | `names` | what tensors are called |
//! | `ops` | collectives |
//! | `objects` | proofs that Python objects come from a rank as it sent them |
//! | `gpu` | tensors on GPUs, in the order of streams |
//! | `handles` | operations in flight |
//! | `output` | results in memory that the engine has allocated |
//! | `large_pages` | large tensors in fresh memory |
//! | `log` | what Python code says to whoever runs the job |
//! | `arrays` | arrays that come as addresses |
//! | `rows` | rows of embeddings, and their numbers |
//! | `servers` | parameter servers, and stores at them |
//! | `settings` | knobs that Python code asks for |
//! | `starter` | starting jobs, for `corro.runner` |
//! | `watching` | what those who watch the job are told |
//! | `tensorflow` | TensorFlow's operations |
//! | `jax` | JAX's collectives |

mod arrays;
mod compression;
mod departure;
mod elastic;
mod error;
mod gpu;
mod handles;
mod jax;
mod job;
mod large_pages;
mod log;
mod names;
mod objects;
mod ops;
mod output;
mod rows;
mod running;
mod servers;
mod settings;
mod starter;
mod tensorflow;
mod watching;
mod without_gil;

use pyo3::prelude::*;

/// The module that Python imports.
#[pymodule]
mod _native {
    #[pymodule_export]
    use crate::compression::{
        check_compression, compression_report, compression_state, forget_compression, load_compression_state,
        scale_compression,
    };
    #[pymodule_export]
    use crate::departure::{leaving, open_statements, thread_raised};
    #[pymodule_export]
    use crate::elastic::{end_early, host_changes, leave, set_progress};
    #[pymodule_export]
    use crate::gpu::{
        also_look_for_nccl_in, check_running, expect_foreign_threads, nccl_version, register_streams, takes_gpu_memory,
    };
    #[pymodule_export]
    use crate::handles::{poll, wait};
    #[pymodule_export]
    use crate::jax::{jax_failure, jax_handlers};
    #[pymodule_export]
    use crate::job::{
        add_process_set, cross_rank, cross_size, epoch, flight_record, init, is_homogeneous, is_initialized,
        local_rank, local_size, metrics, process_set, rank, remove_process_set, reserve_process_set, shutdown, size,
        start_timeline, stop_timeline,
    };
    #[pymodule_export]
    use crate::log::log_warning;
    #[pymodule_export]
    use crate::objects::{check_object, object_call, object_proof};
    #[pymodule_export]
    use crate::ops::{barrier, join, run, shared_memory, submit, submit_group};
    #[pymodule_export]
    use crate::output::Output;
    #[pymodule_export]
    use crate::rows::{add_rows, deal, distinct, take_rows};
    #[pymodule_export]
    use crate::servers::{ParameterServer, Pulled, PulledRows, StoreClient, launched_servers, server_shares};
    #[pymodule_export]
    use crate::settings::{flag, foreign, setting};
    #[pymodule_export]
    use crate::starter::{give_result, payload, start_job};
    #[pymodule_export]
    use crate::tensorflow::{tensorflow_problem, tensorflow_xla_problem};
    #[pymodule_export]
    use crate::watching::{dumps_on, is_watched, log_value, mark_step};
}
