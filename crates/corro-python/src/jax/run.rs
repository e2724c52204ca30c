//! The handler: what compiled programs call.
//!
//! A call never waits for anything but its own collective, and not for long: it lends the engine its thread for a moment, and if
//! the other ranks have not come by then, it returns and the engine ends it. So XLA may run the calls of a program
//! in any order, on as few threads as it likes, and in another order on each rank: ranks find each other by name. (A version of
//! XLA that has no futures waits here, and then runs a program's calls one after the other.)

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use corro_core::{Error, Result};
use corro_engine::{Engine, Outcome, Ticket};

use super::call::{Tensors, Wanted, explained};
use super::devices;
use super::ffi::{CallFrame, EXECUTE, RawError, Xla, answers_query};
use super::work::{end, finish, submit, told, when_done};
use crate::{gpu, running};

/// Runs `work` so that a panic is an error like any other: it must not reach XLA's frames.
fn guarded<T>(work: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_unwind(AssertUnwindSafe(work))
        .unwrap_or_else(|_| Err(Error::Bug("a panic in a call from XLA; see the standard error output".into())))
}

/// What compiled programs call, with tensors in host memory.
///
/// SAFETY: called by XLA with a frame of its own.
pub(super) unsafe extern "C" fn on_host(frame: *mut CallFrame) -> *mut RawError {
    // SAFETY: as above.
    unsafe { answer(frame, execute) }
}

/// What compiled programs call, with tensors in the memory of a GPU.
///
/// SAFETY: called by XLA with a frame of its own.
pub(super) unsafe extern "C" fn on_gpu(frame: *mut CallFrame) -> *mut RawError {
    // SAFETY: as above.
    unsafe { answer(frame, execute_on_gpu) }
}

/// # Safety
/// `frame` is what XLA called a handler with.
unsafe fn answer(frame: *mut CallFrame, execute: unsafe fn(Xla, *mut CallFrame) -> Result<()>) -> *mut RawError {
    // SAFETY: as above.
    unsafe {
        if answers_query(frame) || (*frame).stage != EXECUTE {
            return std::ptr::null_mut();
        }
        let xla = Xla::of(frame);
        match guarded(|| execute(xla, frame)) {
            Ok(()) => std::ptr::null_mut(),
            Err(error) => {
                let (code, text) = told(error);
                xla.error(code, &text)
            }
        }
    }
}

/// # Safety
/// `frame` is that of a call which is to be executed.
unsafe fn execute(xla: Xla, frame: *mut CallFrame) -> Result<()> {
    // SAFETY: as above.
    let (wanted, tensors) = unsafe { (Wanted::read(frame)?, Tensors::read(frame)?) };
    let engine = engine()?;
    if wanted.devices > 1 {
        // SAFETY: as above.
        let future = unsafe { xla.promise(frame) };
        return devices::execute(&engine, wanted, tensors, future);
    }
    let tickets = submit(&engine, &wanted, &tensors)?;
    if !tickets.iter().all(Ticket::has_ended) {
        // SAFETY: as above.
        if let Some(future) = unsafe { xla.promise(frame) } {
            when_done(tickets, move |result| end(future, finish(&engine, &wanted, &tensors, result)));
            return Ok(());
        }
    }
    finish(&engine, &wanted, &tensors, all(tickets).map(drop))
}

fn engine() -> Result<Engine> {
    running::current().ok_or_else(|| Error::Usage("Horovod has not been initialized; use hvd.init().".into()))
}

/// A program on a GPU makes its calls from one thread, in the order in which it was compiled, which is the same on all ranks. A
/// call lasts until the work is with the GPU; the program's stream waits for it, the thread does not.
///
/// # Safety
/// `frame` is that of a call which is to be executed, of a program on a GPU.
unsafe fn execute_on_gpu(xla: Xla, frame: *mut CallFrame) -> Result<()> {
    // SAFETY: as above.
    let (wanted, tensors, stream) = unsafe { (Wanted::read(frame)?, Tensors::read(frame)?, xla.stream(frame)) };
    let engine = engine()?;
    if wanted.devices > 1 {
        return Err(Error::Usage(format!(
            "{} runs on {} GPUs of this process. Give each rank a GPU of its own (one rank for each, with \
             CUDA_VISIBLE_DEVICES or jax.config.update(\"jax_cuda_visible_devices\", str(hvd.local_rank()))), or call it \
             with arrays on one device",
            wanted.name, wanted.devices
        )));
    }
    let number = stream.ok_or_else(|| Error::Bug(format!("{}: XLA does not tell the call's stream", wanted.name)))?;
    let ordinal = tensors.gpu()?;
    let ready = gpu::Moments::default().now(ordinal, number)?;
    let tensors = tensors.on_gpu(ordinal, ready);
    let outcomes = all(submit(&engine, &wanted, &tensors)?).map_err(explained)?;
    let stream = gpu::stream(ordinal, number)?;
    gpu::order_on(&stream, &outcomes)?;
    if wanted.is_cleared_on(engine.rank()) {
        return tensors.clear_on(&stream);
    }
    if wanted.is_barrier() { tensors.pass_through_on(&stream) } else { Ok(()) }
}

/// Waits for all of a group, also after a failure: nothing may touch the buffers afterwards.
fn all(tickets: Vec<Ticket>) -> Result<Vec<Outcome>> {
    let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
    outcomes.into_iter().collect()
}
