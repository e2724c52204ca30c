//! Memory of other processes of this host: named by a handle, mapped here.
//!
//! A handle names a whole allocation. Frameworks cut their tensors out of larger ones, so what travels is the handle, where
//! the allocation begins at its owner, and how long it is ([`SharedMemory`]); a tensor is then an offset.

#![expect(unsafe_code, reason = "calls the driver")]

use corro_core::Result;
use serde::{Deserialize, Serialize};

use crate::device::Device;
use crate::mappings::Opener;
use crate::span::Span;
use crate::sys::{
    INVALID_VALUE, IPC_MEM_LAZY_ENABLE_PEER_ACCESS, IpcHandle, NOT_SUPPORTED, POINTER_IPC_CAPABLE, SUCCESS,
};

/// What another process maps an allocation by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct MemoryHandle(#[serde(with = "serde_bytes")] [u8; 64]);

/// An allocation, as its owner names it to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SharedMemory {
    /// By which it is mapped.
    pub handle: MemoryHandle,
    /// Where it begins at its owner.
    pub base: u64,
    /// How many bytes it has.
    pub len: u64,
}

/// The allocation that has this address: where it begins, and its length.
pub fn allocation_of(device: &Device, address: u64) -> Result<(u64, usize)> {
    let _entered = device.enter()?;
    let (mut base, mut len) = (0, 0);
    // SAFETY: it writes two numbers, and refuses addresses that are no GPU's.
    let code = unsafe { (device.functions().cuMemGetAddressRange_v2)(&raw mut base, &raw mut len, address) };
    device.check(code, || format!("asking which allocation has the address {address:#x}"))?;
    Ok((base, len))
}

/// The handle of the allocation that begins at `base`. `None` if this memory can't be shared so: it comes from a pool
/// (`cudaMallocAsync`, JAX), or was mapped page by page (torch's expandable segments).
pub fn memory_handle(device: &Device, base: u64) -> Result<Option<MemoryHandle>> {
    let _entered = device.enter()?;
    let functions = device.functions();
    let mut capable = 0u32;
    // SAFETY: it writes one unsigned int for this attribute. A driver that does not know it returns an error, and the next
    // call decides.
    let code = unsafe { (functions.cuPointerGetAttribute)((&raw mut capable).cast(), POINTER_IPC_CAPABLE, base) };
    if code == SUCCESS && capable == 0 {
        return Ok(None);
    }
    let mut handle = IpcHandle([0; 64]);
    // SAFETY: it writes one handle.
    match unsafe { (functions.cuIpcGetMemHandle)(&raw mut handle, base) } {
        INVALID_VALUE | NOT_SUPPORTED => Ok(None),
        code => {
            device.check(code, || "sharing memory with other processes".into())?;
            Ok(Some(MemoryHandle(handle.0)))
        }
    }
}

/// The allocation that has this address, as others can map it; `None` as for [`memory_handle`].
pub fn share(device: &Device, address: u64) -> Result<Option<SharedMemory>> {
    let (base, len) = allocation_of(device, address)?;
    Ok(memory_handle(device, base)?.map(|handle| SharedMemory { handle, base, len: len as u64 }))
}

/// An allocation of another process, mapped here until it is dropped.
pub struct Mapping {
    device: Device,
    address: u64,
    len: usize,
}

impl Mapping {
    /// Maps it for `device`, which need not be the one it lies on: the way between two GPUs is opened when it is first used.
    /// Not for memory of this very process: the driver refuses that.
    pub fn open(device: &Device, handle: MemoryHandle) -> Result<Self> {
        let _entered = device.enter()?;
        let mut address = 0;
        // SAFETY: it writes one address, which is closed once. Bytes that are no handle are refused.
        let code = unsafe {
            (device.functions().cuIpcOpenMemHandle_v2)(
                &raw mut address,
                IpcHandle(handle.0),
                IPC_MEM_LAZY_ENABLE_PEER_ACCESS,
            )
        };
        device.check(code, || "mapping memory of another process".into())?;
        let mut mapping = Self { device: device.clone(), address, len: 0 };
        // Its owner says a length, too. The driver knows it.
        mapping.len = allocation_of(device, address)?.1;
        Ok(mapping)
    }

    /// All of it.
    pub fn span(&self) -> Span<'_> {
        // SAFETY: mapped until `self` is dropped.
        unsafe { Span::from_raw(self.address, self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if let Ok(_entered) = self.device.enter() {
            // SAFETY: opened once, by `open`; the driver counts, and keeps it for others who opened the same.
            unsafe { (self.device.functions().cuIpcCloseMemHandle)(self.address) };
        }
    }
}

impl std::fmt::Debug for Mapping {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Mapping({:#x}, {} bytes)", self.address, self.len)
    }
}

/// Opens what others share, for one device.
impl Opener for Device {
    type Shared = SharedMemory;
    type Open = Mapping;

    fn open(&self, shared: &SharedMemory) -> Result<Mapping> {
        Mapping::open(self, shared.handle)
    }

    fn range(shared: &SharedMemory) -> std::ops::Range<u64> {
        shared.base..shared.base.saturating_add(shared.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_travels() {
        let shared = SharedMemory { handle: MemoryHandle([7; 64]), base: 1 << 40, len: 1 << 21 };
        let bytes = postcard::to_allocvec(&shared).unwrap();
        assert_eq!(postcard::from_bytes::<SharedMemory>(&bytes).unwrap(), shared);
        assert!(postcard::from_bytes::<SharedMemory>(&bytes[..40]).is_err());
    }
}
