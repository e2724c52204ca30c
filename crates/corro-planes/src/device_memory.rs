//! Memory of a GPU, and what keeps it alive. The host can pass on where it is; it can't look into it.

#![expect(unsafe_code, reason = "whoever names foreign memory vouches for it")]

use std::any::Any;

/// See the module.
pub struct DeviceMemory {
    address: u64,
    len: usize,
    device: u32,
    /// Dropped with the memory, on whichever thread that happens.
    _keep: Box<dyn Any + Send + Sync>,
}

impl DeviceMemory {
    /// Memory of this device, as the process numbers them, that belongs to somebody else, whom `keep` keeps from freeing it.
    ///
    /// # Safety
    /// Until it is dropped, `len` bytes at `address` must be the device's memory, valid for reads and writes by what is
    /// enqueued there, and nothing else that is enqueued may touch them; reading is fine for what is only an input.
    pub unsafe fn from_raw(address: u64, len: usize, device: u32, keep: Box<dyn Any + Send + Sync>) -> Self {
        Self { address, len, device, _keep: keep }
    }

    /// Where it begins, to the device.
    pub const fn address(&self) -> u64 {
        self.address
    }

    /// How many bytes.
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no bytes.
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// On which device.
    pub const fn device(&self) -> u32 {
        self.device
    }
}

impl std::fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceMemory({} bytes at {:#x} of GPU {})", self.len, self.address, self.device)
    }
}
