//! Moments in a stream: recorded by one, waited for by others, also in other processes.
//!
//! A wait takes the event as it was last recorded *when the wait is called*. So whoever waits for the event of another
//! process must have been told, on the host, that it has been recorded.

#![expect(unsafe_code, reason = "calls the driver")]

use std::sync::{Arc, Mutex, PoisonError, Weak};

use corro_core::Result;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::sys::{EVENT_DISABLE_TIMING, EVENT_INTERPROCESS, Handle, IpcHandle, NOT_READY};

/// See the module. Events measure no time, which makes them cheap.
pub struct Event {
    device: Device,
    raw: Handle,
    /// Where it goes when nobody needs it any more.
    home: Weak<SpareEvents>,
}

/// What another process opens an event by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct EventHandle(#[serde(with = "serde_bytes")] [u8; 64]);

impl Event {
    /// An event for this process.
    pub fn new(device: &Device) -> Result<Self> {
        Self::create(device, EVENT_DISABLE_TIMING, Weak::new())
    }

    /// An event that other processes can wait for: see [`Event::handle`].
    pub fn shared(device: &Device) -> Result<Self> {
        Self::create(device, EVENT_DISABLE_TIMING | EVENT_INTERPROCESS, Weak::new())
    }

    fn create(device: &Device, flags: u32, home: Weak<SpareEvents>) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = Handle::NULL;
        // SAFETY: it writes one handle, which is destroyed once.
        let code = unsafe { (device.functions().cuEventCreate)(&raw mut raw, flags) };
        device.check(code, || "creating an event".into())?;
        Ok(Self { device: device.clone(), raw, home })
    }

    /// What another process opens it by; only for one made by [`Event::shared`].
    pub fn handle(&self) -> Result<EventHandle> {
        let _entered = self.device.enter()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: it writes one handle, and refuses events that were not made for this.
        let code = unsafe { (self.device.functions().cuIpcGetEventHandle)(&raw mut handle, self.raw) };
        self.device.check(code, || "sharing an event with other processes".into())?;
        Ok(EventHandle(handle.0))
    }

    /// An event of another process, on the same GPU or one of the same host. Not of this one: the driver refuses that.
    pub fn open(device: &Device, handle: EventHandle) -> Result<Self> {
        let _entered = device.enter()?;
        let mut raw = Handle::NULL;
        // SAFETY: it writes one handle, which is destroyed once. Bytes that are no handle are refused.
        let code = unsafe { (device.functions().cuIpcOpenEventHandle)(&raw mut raw, IpcHandle(handle.0)) };
        device.check(code, || "opening an event of another process".into())?;
        Ok(Self { device: device.clone(), raw, home: Weak::new() })
    }

    /// Whether what was last recorded has been reached. An event that was never recorded has.
    pub fn is_done(&self) -> Result<bool> {
        // SAFETY: the event lives as long as `self`.
        match unsafe { (self.device.functions().cuEventQuery)(self.raw) } {
            NOT_READY => Ok(false),
            code => self.device.check(code, || "asking for an event".into()).map(|()| true),
        }
    }

    /// Waits on the host, without a limit: ask [`Event::is_done`] where a peer may be lost.
    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the event lives as long as `self`.
        let code = unsafe { (self.device.functions().cuEventSynchronize)(self.raw) };
        self.device.check(code, || "waiting for an event".into())
    }

    /// The device it was made on.
    pub fn device(&self) -> &Device {
        &self.device
    }

    pub(crate) fn raw(&self) -> Handle {
        self.raw
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(spare) = self.home.upgrade()
            && spare.put(self.raw)
        {
            return;
        }
        destroy(&self.device, self.raw);
    }
}

fn destroy(device: &Device, event: Handle) {
    // An error means that the context is gone, and the event with it.
    if let Ok(_entered) = device.enter() {
        // SAFETY: destroyed once, by its last owner. The driver waits with that for work that still needs it.
        unsafe { (device.functions().cuEventDestroy_v2)(event) };
    }
}

impl std::fmt::Debug for Event {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Event(GPU {})", self.device.ordinal())
    }
}

/// Gives events, and takes them back when they are dropped: to create one costs microseconds, to record it far less.
///
/// An event may come back before it is reached. That is no harm: those who wait for it took its state when they called.
#[derive(Clone)]
pub struct EventPool(Arc<SpareEvents>);

struct SpareEvents {
    device: Device,
    spare: Mutex<Vec<Handle>>,
    most: usize,
}

impl EventPool {
    /// Keeps at most `most` events that nobody uses.
    pub fn new(device: &Device, most: usize) -> Self {
        Self(Arc::new(SpareEvents { device: device.clone(), spare: Mutex::default(), most }))
    }

    /// An event of this process.
    pub fn take(&self) -> Result<Event> {
        let home = Arc::downgrade(&self.0);
        match self.0.spare().pop() {
            Some(raw) => Ok(Event { device: self.0.device.clone(), raw, home }),
            None => Event::create(&self.0.device, EVENT_DISABLE_TIMING, home),
        }
    }
}

impl SpareEvents {
    fn spare(&self) -> std::sync::MutexGuard<'_, Vec<Handle>> {
        self.spare.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether there was room for it.
    fn put(&self, event: Handle) -> bool {
        let mut spare = self.spare();
        let room = spare.len() < self.most;
        if room {
            spare.push(event);
        }
        room
    }
}

impl Drop for SpareEvents {
    fn drop(&mut self) {
        for event in std::mem::take(&mut *self.spare()) {
            destroy(&self.device, event);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_travels() {
        let handle = EventHandle(std::array::from_fn(|i| i as u8));
        let bytes = postcard::to_allocvec(&handle).unwrap();
        assert_eq!(postcard::from_bytes::<EventHandle>(&bytes).unwrap(), handle);
        assert!(postcard::from_bytes::<EventHandle>(&[3, 1, 2, 3]).is_err());
    }
}
