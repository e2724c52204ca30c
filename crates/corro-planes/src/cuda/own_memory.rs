//! Memory of a GPU that a plane makes itself: for results whose size nobody knew, and for what stands in for other memory.

use corro_core::Result;
use corro_cuda::{Allocation, BlockPool, Device, DeviceMemory};

/// So much stays for the next batches.
const KEPT: usize = 256 << 20;

/// See the module.
pub(super) struct OwnMemory {
    device: Device,
    pool: BlockPool<Allocation>,
}

impl OwnMemory {
    pub(super) fn new(device: &Device) -> Self {
        Self { device: device.clone(), pool: BlockPool::new(KEPT) }
    }

    /// The GPU it lies on.
    pub(super) fn device(&self) -> &Device {
        &self.device
    }

    /// So many bytes, with anything in them.
    pub(super) fn take(&self, bytes: usize) -> Result<DeviceMemory> {
        let lease = self.pool.take(bytes, |bytes| Allocation::new(&self.device, bytes))?;
        DeviceMemory::own(lease, bytes)
    }
}
