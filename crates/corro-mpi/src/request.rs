//! A collective that is under way.

#![expect(unsafe_code, reason = "calls MPI")]

use std::ffi::c_int;

use corro_core::{Deadline, Error, Result};

use crate::abi::Handle;
use crate::world::Mpi;

/// So many looks before others may have the core: where ranks share it, what is waited for needs it. MPI moves bytes only while
/// it is asked, so there is no longer pause.
const LOOKS: u32 = 32;
/// Every so many looks `stop` is asked.
const ASKED: u32 = 64;

/// How long to wait, and what ends it before: `stop` is asked now and then, and gives why the others will never come.
pub struct Patience<'a> {
    /// When waiting ends.
    pub deadline: Deadline,
    /// Why it ends at once.
    pub stop: &'a dyn Fn() -> Option<Error>,
}

impl Patience<'_> {
    /// Why waiting for `what` ends now, if it does.
    pub(crate) fn why_over(&self, what: &str) -> Option<Error> {
        (self.stop)().or_else(|| {
            let doing = format!("waiting for the other processes in {what}");
            let granted = self.deadline.granted();
            self.deadline.passed().then(|| Error::io(doing, format!("not all came in {granted:?}")))
        })
    }
}

/// See the module. It must be waited for; if it can't end, its memory must never be used again.
#[must_use]
pub(crate) struct Request<'a> {
    mpi: &'a Mpi,
    handle: Handle,
}

impl<'a> Request<'a> {
    pub(crate) fn new(mpi: &'a Mpi, handle: Handle) -> Self {
        Self { mpi, handle }
    }

    /// Waits until it has ended, as long as there is patience.
    pub(crate) fn wait(mut self, what: &str, patience: &Patience<'_>) -> Result<()> {
        for look in 1_u32.. {
            let mut done: c_int = 0;
            let turn = self.mpi.turn();
            // SAFETY: the request is this library's, and has not ended; no status is asked for.
            let code = unsafe {
                (self.mpi.functions().MPI_Test)(&raw mut self.handle, &raw mut done, self.mpi.abi().status_ignore)
            };
            drop(turn);
            self.mpi.check(code, what)?;
            if done != 0 {
                return Ok(());
            }
            if look % ASKED == 0
                && let Some(why) = patience.why_over(what)
            {
                return Err(why);
            }
            if look < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
