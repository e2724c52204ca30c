//! The handler: what compiled programs call.
//!
//! A call never waits for anything but its own collective, and not for long: it lends the engine its thread for a moment, and if
//! the other ranks have not come by then, it returns and the engine ends it. So XLA may run the calls of a program
//! in any order, on as few threads as it likes, and in another order on each rank: ranks find each other by name. (A version of
//! XLA that has no futures waits here, and then runs a program's calls one after the other.)

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::panic::{AssertUnwindSafe, catch_unwind};

use corro_core::{Error, Result};
use corro_engine::{Outcome, Ticket};

use super::call::{Tensors, Wanted};
use super::devices;
use super::ffi::{CallFrame, EXECUTE, RawError, Xla, answers_query};
use super::work::{end, finish, submit, told, when_done};
use crate::running;

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
    let Some(engine) = running::current() else {
        return Err(Error::Usage("Horovod has not been initialized; use hvd.init().".into()));
    };
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
    // All of a group, also after a failure: nothing may touch the buffers afterwards.
    let outcomes: Vec<_> = tickets.into_iter().map(Ticket::wait).collect();
    let result = outcomes.into_iter().collect::<Result<Vec<Outcome>>>().map(drop);
    finish(&engine, &wanted, &tensors, result)
}
