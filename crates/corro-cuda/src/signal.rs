//! Numbers in memory by which streams of several processes wait for each other.
//!
//! One stream writes a number when it gets there, another waits until the number is large enough. The host takes no part, and no
//! kernel spins: a stream that waits leaves the GPU to others, also to other processes. Unlike an event of another process,
//! such a wait can be ended from outside: whoever writes the number lets the stream go on. So a process that dies holds
//! nobody for ever.

#![expect(unsafe_code, reason = "calls the driver")]

use corro_core::{Error, Result};

use crate::device::Device;
use crate::span::Span;
use crate::stream::Stream;
use crate::sys::Handle;

/// How a function of the driver is called that has a stream, an address and a number.
type Call = unsafe extern "C" fn(Handle, u64, u32, std::ffi::c_uint) -> std::ffi::c_int;

impl Device {
    /// Whether streams of it can wait for numbers in memory.
    pub fn has_signals(&self) -> Result<bool> {
        let functions = self.functions();
        let both = functions.cuStreamWaitValue32_v2.is_some() && functions.cuStreamWriteValue32_v2.is_some();
        // There is no attribute for 32 bits; all that have 64 have them.
        Ok(both && self.has_wide_signals()?)
    }
}

impl Stream {
    /// Writes `number` to the 4 bytes of `at` once all work before it is done and can be seen by others.
    pub fn write(&self, at: Span<'_>, number: u32) -> Result<()> {
        self.call(self.device().functions().cuStreamWriteValue32_v2, at, number, "writing a signal")
    }

    /// What is given to this stream from now on waits until the 4 bytes of `at` have reached `number`. They may have gone
    /// round: what is up to 2^31 ahead of `number` has reached it.
    pub fn wait_for(&self, at: Span<'_>, number: u32) -> Result<()> {
        self.call(self.device().functions().cuStreamWaitValue32_v2, at, number, "waiting for a signal")
    }

    fn call(&self, function: Option<Call>, at: Span<'_>, number: u32, what: &str) -> Result<()> {
        if at.len() != 4 || !at.address().is_multiple_of(4) {
            return Err(Error::Bug(format!("{what} at {at:?}")));
        }
        let function = function.ok_or_else(|| Error::Bug(format!("{what}, which this driver can't")))?;
        let device = self.device();
        let _entered = device.enter()?;
        // SAFETY: the stream lives, and the memory does until the work is done by the promise behind every span. With no flags
        // a write comes after everything before it, and a wait compares as said above.
        let code = unsafe { function(self.raw(), at.address(), number, 0) };
        device.check(code, || what.into())
    }
}
