//! Work in order: what is given to a stream runs one after the other, and beside the work of other streams.

#![expect(unsafe_code, reason = "calls the driver")]

use corro_core::{Error, Result};

use crate::device::Device;
use crate::event::Event;
use crate::span::Span;
use crate::sys::{Handle, NOT_READY, STREAM_NON_BLOCKING};

/// A stream of our own, or of a framework. Everything here returns at once, except [`Stream::synchronize`].
pub struct Stream {
    device: Device,
    raw: Handle,
    owned: bool,
}

impl Stream {
    /// A stream of our own: it waits for no other, and goes before those of ordinary priority.
    pub fn new(device: &Device) -> Result<Self> {
        let _entered = device.enter()?;
        let (mut least, mut greatest, mut raw) = (0, 0, Handle::NULL);
        // SAFETY: it writes two numbers.
        let code = unsafe { (device.functions().cuCtxGetStreamPriorityRange)(&raw mut least, &raw mut greatest) };
        device.check(code, || "asking for the priorities of streams".into())?;
        // SAFETY: it writes one handle, which is destroyed once.
        let code =
            unsafe { (device.functions().cuStreamCreateWithPriority)(&raw mut raw, STREAM_NON_BLOCKING, greatest) };
        device.check(code, || "creating a stream".into())?;
        Ok(Self { device: device.clone(), raw, owned: true })
    }

    /// A framework's stream. 0 is the legacy default stream, which is also torch's default: all blocking streams of the
    /// context wait for it, and it for them.
    ///
    /// # Safety
    /// `handle` must be a stream of the primary context of `device`, or 0, 1 or 2 (CUDA's names of default streams), and
    /// must not be destroyed before this value is dropped.
    pub unsafe fn foreign(device: &Device, handle: u64) -> Self {
        Self { device: device.clone(), raw: Handle(handle as *mut _), owned: false }
    }

    /// As others of this process name it: what torch calls `cuda_stream`.
    pub fn handle(&self) -> u64 {
        self.raw.0 as u64
    }

    /// Its device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> Handle {
        self.raw
    }

    /// The event is reached when everything that was given to this stream so far is done.
    pub fn record(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both live.
        let code = unsafe { (self.device.functions().cuEventRecord)(event.raw(), self.raw) };
        self.device.check(code, || "recording an event".into())
    }

    /// What is given to this stream from now on waits for the event, as it was last recorded. The host does not wait.
    pub fn wait(&self, event: &Event) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: both live; the driver keeps what a waiting stream needs when the event is destroyed. No flags exist.
        let code = unsafe { (self.device.functions().cuStreamWaitEvent)(self.raw, event.raw(), 0) };
        self.device.check(code, || "making a stream wait for an event".into())
    }

    /// Copies between any two pieces of memory: of this GPU, of others, pinned on the host.
    pub fn copy(&self, to: Span<'_>, from: Span<'_>) -> Result<()> {
        if to.len() != from.len() {
            return Err(Error::Bug(format!("a copy of {} bytes to {}", from.len(), to.len())));
        }
        if from.is_empty() {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        // SAFETY: both are reachable for as many bytes by the promise behind every span, and stay so until the work is done.
        let code =
            unsafe { (self.device.functions().cuMemcpyAsync)(to.address(), from.address(), from.len(), self.raw) };
        self.device.check(code, || format!("copying {} bytes", from.len()))
    }

    /// Fills with zeros.
    pub fn zero(&self, memory: Span<'_>) -> Result<()> {
        if memory.is_empty() {
            return Ok(());
        }
        let _entered = self.device.enter()?;
        // SAFETY: as for `copy`.
        let code = unsafe { (self.device.functions().cuMemsetD8Async)(memory.address(), 0, memory.len(), self.raw) };
        self.device.check(code, || format!("zeroing {} bytes", memory.len()))
    }

    /// Whether everything that was given to it is done.
    pub fn is_done(&self) -> Result<bool> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream lives.
        match unsafe { (self.device.functions().cuStreamQuery)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.device.check(code, || "asking for a stream".into()).map(|()| true),
        }
    }

    /// Waits on the host until everything that was given to it is done, without a limit.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.device.enter()?;
        // SAFETY: the stream lives.
        let code = unsafe { (self.device.functions().cuStreamSynchronize)(self.raw) };
        self.device.check(code, || "waiting for a stream".into())
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // An error means that the context is gone, and the stream with it.
        if self.owned
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: destroyed once, by its owner. Work that was given to it is done all the same.
            unsafe { (self.device.functions().cuStreamDestroy_v2)(self.raw) };
        }
    }
}

impl std::fmt::Debug for Stream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Stream({:#x} on GPU {})", self.handle(), self.device.ordinal())
    }
}
