//! Memory of our own, of frameworks, and of the host for GPUs.
//!
//! Memory of the host is let go only when the device has nothing left to do, so that no copy that is still under way can
//! land in what has become something else.

#![expect(unsafe_code, reason = "calls the driver, and turns pinned memory into slices")]

use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

use corro_core::{Error, Result};

use crate::block_pool::{Block, Lease};
use crate::device::Device;
use crate::event::Event;
use crate::span::Span;
use crate::sys::MEM_HOST_PORTABLE_MAPPED;

/// Memory of a GPU that is ours. Its address is a multiple of 256, and other processes of the host can map it.
pub struct Allocation {
    device: Device,
    address: u64,
    len: usize,
}

impl Allocation {
    /// Not filled with anything.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        if len == 0 {
            return Ok(Self { device: device.clone(), address: 0, len });
        }
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: it writes one address, which is freed once.
        let code = unsafe { (device.functions().cuMemAlloc_v2)(&raw mut address, len) };
        device.check(code, || format!("allocating {len} bytes"))?;
        Ok(Self { device: device.clone(), address, len })
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        // SAFETY: ours until `self` is dropped, and the driver frees only when work on it is done.
        unsafe { Span::from_raw(self.address, self.len) }
    }

    /// The device it lies on.
    pub fn device(&self) -> &Device {
        &self.device
    }
}

impl Block for Allocation {
    fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        if self.len > 0
            && let Ok(_entered) = self.device.enter()
        {
            // SAFETY: freed once, by its owner. An error means that the context is gone, and the memory with it.
            unsafe { (self.device.functions().cuMemFree_v2)(self.address) };
        }
    }
}

impl std::fmt::Debug for Allocation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Allocation({:#x}, {} bytes on GPU {})", self.address, self.len, self.device.ordinal())
    }
}

/// Memory of the host that belongs to somebody else, pinned: copies to and from it run without the host's help.
pub struct PinnedRegion {
    device: Device,
    at: *mut c_void,
    len: usize,
    address: u64,
}

// SAFETY: the pointer is never read through here; it only names the region to the driver, from any thread.
unsafe impl Send for PinnedRegion {}
// SAFETY: as above.
unsafe impl Sync for PinnedRegion {}

impl PinnedRegion {
    /// Pins `len` bytes from `at` on, whole pages of them, for all GPUs of this process.
    ///
    /// # Safety
    /// The memory must stay mapped, and the same, until the region is dropped, and must not be pinned twice. What streams
    /// write there must be used as memory that others write.
    pub unsafe fn register(device: &Device, at: *mut u8, len: usize) -> Result<Self> {
        let functions = device.functions();
        let _entered = device.enter()?;
        let at = at.cast::<c_void>();
        // SAFETY: the caller's promise.
        let code = unsafe { (functions.cuMemHostRegister_v2)(at, len, MEM_HOST_PORTABLE_MAPPED) };
        device.check(code, || format!("pinning {len} bytes of the host (see `ulimit -l`)"))?;
        let mut region = Self { device: device.clone(), at, len, address: 0 };
        // SAFETY: it writes one address. No flags exist.
        let code = unsafe { (functions.cuMemHostGetDevicePointer_v2)(&raw mut region.address, at, 0) };
        device.check(code, || "asking for the address of pinned memory".into())?;
        Ok(region)
    }

    /// All of it, as a GPU sees it.
    pub fn span(&self) -> Span<'_> {
        // SAFETY: pinned until `self` is dropped, which waits for work on it.
        unsafe { Span::from_raw(self.address, self.len) }
    }
}

impl Drop for PinnedRegion {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: registered once, by `register`, which was promised that it stays mapped until now.
            unsafe { (self.device.functions().cuMemHostUnregister)(self.at) };
        }
    }
}

/// Pinned memory of the host that is ours.
pub struct Pinned {
    device: Device,
    at: *mut u8,
    len: usize,
}

// SAFETY: it owns its memory.
unsafe impl Send for Pinned {}
// SAFETY: a shared one gives only shared slices.
unsafe impl Sync for Pinned {}

impl Pinned {
    /// Zeros. For streams of `device`; those of other GPUs must be done with it before it is dropped.
    pub fn new(device: &Device, len: usize) -> Result<Self> {
        let _entered = device.enter()?;
        let mut at = std::ptr::null_mut();
        // One byte at least: the driver refuses none.
        // SAFETY: it writes one pointer, which is freed once.
        let code = unsafe { (device.functions().cuMemHostAlloc)(&raw mut at, len.max(1), MEM_HOST_PORTABLE_MAPPED) };
        device.check(code, || format!("allocating {len} bytes of pinned memory (see `ulimit -l`)"))?;
        let at = at.cast::<u8>();
        // SAFETY: just allocated, for at least as many bytes. The driver does not say what is in it.
        unsafe { at.write_bytes(0, len) };
        Ok(Self { device: device.clone(), at, len })
    }

    /// All of it, as a GPU sees it. With unified addresses that is where the host sees it.
    pub fn span(&self) -> Span<'_> {
        // SAFETY: ours until `self` is dropped, which waits for work on it.
        unsafe { Span::from_raw(self.at as u64, self.len) }
    }

    /// Its bytes. Wait for the streams that write them first: they are what they happen to be until then.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, as many bytes, and all of them were written at the beginning.
        unsafe { std::slice::from_raw_parts(self.at, self.len) }
    }

    /// Its bytes, to be written. Wait for the streams that read them first.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.at, self.len) }
    }
}

impl Block for Pinned {
    fn bytes(&self) -> usize {
        self.len
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let _ = self.device.synchronize();
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: freed once, by its owner.
            unsafe { (self.device.functions().cuMemFreeHost)(self.at.cast()) };
        }
    }
}

/// A framework's tensor on a GPU: what [`corro_core::Buffer`] is for one on the host. Never a slice.
pub struct DeviceMemory {
    address: u64,
    len: usize,
    device: usize,
    ready: Option<Arc<Event>>,
    keep: Arc<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Memory that belongs to somebody else, whom `keep` keeps from freeing it. Before a stream touches it, it must wait for
    /// `ready`.
    ///
    /// # Safety
    /// Until the value is dropped, `len` bytes from `address` on must be memory of the GPU with the number `device`, and,
    /// once `ready` is reached, nobody else may write them; nor read them, unless they are only used as an input.
    pub unsafe fn from_raw(
        address: u64,
        len: usize,
        device: usize,
        ready: Option<Arc<Event>>,
        keep: Arc<dyn Any + Send + Sync>,
    ) -> Self {
        Self { address, len, device, ready, keep }
    }

    /// The first `len` bytes of memory of our own, for those who take a framework's. It goes back to its pool with the last of
    /// those who keep it.
    pub fn own(lease: Lease<Allocation>, len: usize) -> Result<Self> {
        let Some(allocation) = lease.get().filter(|allocation| allocation.len >= len) else {
            return Err(Error::Bug(format!("{len} bytes of memory that has less")));
        };
        let (address, device) = (allocation.address, allocation.device.ordinal());
        Ok(Self { address, len, device, ready: None, keep: Arc::new(lease) })
    }

    /// The same memory once more, for whoever works on it: it is kept until both are gone.
    #[must_use]
    pub fn again(&self) -> Self {
        let Self { address, len, device, ready, keep } = self;
        Self { address: *address, len: *len, device: *device, ready: ready.clone(), keep: Arc::clone(keep) }
    }

    /// What keeps the memory: to be held by whoever has given work on it to a stream, until that is done.
    pub fn keeper(&self) -> Arc<dyn Any + Send + Sync> {
        Arc::clone(&self.keep)
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        // SAFETY: the promise of `from_raw`.
        unsafe { Span::from_raw(self.address, self.len) }
    }

    /// How many bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The number of the GPU it lies on.
    pub fn device(&self) -> usize {
        self.device
    }

    /// What a stream must wait for before it touches the memory.
    pub fn ready(&self) -> Option<&Arc<Event>> {
        self.ready.as_ref()
    }

    /// From now on streams must wait for `event` instead: whoever wrote the memory says so.
    pub fn set_ready(&mut self, event: Option<Arc<Event>>) {
        self.ready = event;
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({} bytes on GPU {})", self.len, self.device)
    }
}

/// An error unless `memory` lies on `device`.
pub fn expect_on(memory: &DeviceMemory, device: &Device) -> Result<()> {
    if memory.device == device.ordinal() {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "a tensor lies on GPU {}, and this process works on GPU {}: give each rank one GPU, by its local rank",
        memory.device,
        device.ordinal()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_keeps_its_owner() {
        let kept = Arc::new(());
        // SAFETY: never given to a GPU.
        let memory = unsafe { DeviceMemory::from_raw(0x7000, 12, 1, None, Arc::clone(&kept) as _) };
        assert_eq!((memory.span().address(), memory.len(), memory.device()), (0x7000, 12, 1));
        let keeper = memory.keeper();
        assert!(memory.ready().is_none() && Arc::strong_count(&kept) == 3);
        drop((memory, keeper));
        assert_eq!(Arc::strong_count(&kept), 1);
    }
}
