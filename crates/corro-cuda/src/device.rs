//! A GPU, and its primary context: the one that torch, JAX and everybody else who uses the runtime API shares.
//!
//! A thread works with the context that is current on it. Nothing of Corro relies on what a thread had before: every call
//! enters the context of its device, and leaves the thread as it was.

#![expect(unsafe_code, reason = "calls the driver")]

use std::ffi::{CStr, c_int};
use std::marker::PhantomData;
use std::sync::Arc;

use corro_core::Result;

use crate::failure::{check, failure};
use crate::sys::{Code, Functions, Handle, INVALID_VALUE, RawDevice, SUCCESS, Uuid};

/// See the module. A clone is the same device.
#[derive(Clone)]
pub struct Device(Arc<Retained>);

struct Retained {
    functions: &'static Functions,
    ordinal: usize,
    raw: RawDevice,
    context: Handle,
}

/// Something that a device can or has. The numbers are the driver's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(i32)]
enum Attribute {
    Multiprocessors = 16,
    UnifiedAddressing = 41,
    Major = 75,
    Minor = 76,
    VirtualMemory = 102,
    WideSignals = 122,
    IpcEvents = 125,
    UnderMps = 133,
}

impl Device {
    pub(crate) fn open(functions: &'static Functions, ordinal: usize) -> Result<Self> {
        let (mut raw, mut context) = (0, Handle::NULL);
        // SAFETY: both write what they are asked for.
        let code = unsafe { (functions.cuDeviceGet)(&raw mut raw, ordinal as c_int) };
        check(functions, code, || format!("opening GPU {ordinal}"))?;
        // SAFETY: as above; the context is released once, when the last clone of the device goes.
        let code = unsafe { (functions.cuDevicePrimaryCtxRetain)(&raw mut context, raw) };
        check(functions, code, || format!("opening the context of GPU {ordinal}"))?;
        Ok(Self(Arc::new(Retained { functions, ordinal, raw, context })))
    }

    /// Its number, as CUDA counts the GPUs that this process may see.
    pub fn ordinal(&self) -> usize {
        self.0.ordinal
    }

    pub(crate) fn functions(&self) -> &'static Functions {
        self.0.functions
    }

    /// As [`check`], for a call on this device: "GPU 0: " comes before what was being done.
    pub(crate) fn check(&self, code: Code, doing: impl FnOnce() -> String) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        Err(failure(self.functions(), code, &format!("GPU {}: {}", self.ordinal(), doing())))
    }

    /// Makes this device's context the current one of this thread, until the guard is dropped.
    pub fn enter(&self) -> Result<Entered> {
        let functions = self.functions();
        let mut current = Handle::NULL;
        // SAFETY: it writes one handle.
        let code = unsafe { (functions.cuCtxGetCurrent)(&raw mut current) };
        if code == SUCCESS && current == self.0.context {
            return Ok(Entered { pushed: None, _this_thread: PhantomData });
        }
        // SAFETY: the context lives as long as `self`, and is popped by the guard.
        let code = unsafe { (functions.cuCtxPushCurrent_v2)(self.0.context) };
        self.check(code, || "entering its context".into())?;
        Ok(Entered { pushed: Some(self.clone()), _this_thread: PhantomData })
    }

    /// Waits until nothing that this process has given to this device is left to do.
    pub fn synchronize(&self) -> Result<()> {
        let _entered = self.enter()?;
        // SAFETY: it only waits.
        let code = unsafe { (self.functions().cuCtxSynchronize)() };
        self.check(code, || "waiting for all of its work".into())
    }

    /// What NVIDIA calls it.
    pub fn name(&self) -> Result<String> {
        let mut name = [0u8; 256];
        // SAFETY: it writes at most as many bytes as it is told, the last of them 0.
        let code =
            unsafe { (self.functions().cuDeviceGetName)(name.as_mut_ptr().cast(), name.len() as c_int, self.0.raw) };
        self.check(code, || "asking for its name".into())?;
        Ok(CStr::from_bytes_until_nul(&name).unwrap_or_default().to_string_lossy().into_owned())
    }

    /// What tells it from all other GPUs, in every process and on every host.
    pub fn uuid(&self) -> Result<[u8; 16]> {
        let get = self.functions().cuDeviceGetUuid_v2.unwrap_or(self.functions().cuDeviceGetUuid);
        let mut uuid = Uuid([0; 16]);
        // SAFETY: it writes 16 bytes.
        let code = unsafe { get(&raw mut uuid, self.0.raw) };
        self.check(code, || "asking for its UUID".into())?;
        Ok(uuid.0)
    }

    /// Bytes of its memory.
    pub fn total_memory(&self) -> Result<u64> {
        let mut bytes = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (self.functions().cuDeviceTotalMem_v2)(&raw mut bytes, self.0.raw) };
        self.check(code, || "asking for the size of its memory".into())?;
        Ok(bytes as u64)
    }

    /// Bytes of its memory that nobody uses.
    pub fn free_memory(&self) -> Result<u64> {
        let _entered = self.enter()?;
        let (mut free, mut total) = (0, 0);
        // SAFETY: it writes two numbers.
        let code = unsafe { (self.functions().cuMemGetInfo_v2)(&raw mut free, &raw mut total) };
        self.check(code, || "asking for its free memory".into())?;
        Ok(free as u64)
    }

    /// What kind of GPU it is: (9, 0) for Hopper.
    pub fn compute_capability(&self) -> Result<(u32, u32)> {
        Ok((self.attribute(Attribute::Major)? as u32, self.attribute(Attribute::Minor)? as u32))
    }

    /// How many multiprocessors it has: a kernel with fewer blocks leaves some of them idle.
    pub fn multiprocessors(&self) -> Result<u32> {
        Ok(self.attribute(Attribute::Multiprocessors)?.max(1) as u32)
    }

    /// Whether one address means the same to the host and all GPUs. All of Corro's copies rely on it; every 64-bit Linux has it.
    pub fn has_unified_addressing(&self) -> Result<bool> {
        Ok(self.attribute(Attribute::UnifiedAddressing)? != 0)
    }

    /// Whether memory can be mapped page by page, as torch's expandable segments do.
    pub fn has_virtual_memory(&self) -> Result<bool> {
        self.newer_attribute(Attribute::VirtualMemory, false)
    }

    /// Whether streams can wait for numbers of 64 bits in memory.
    pub(crate) fn has_wide_signals(&self) -> Result<bool> {
        self.newer_attribute(Attribute::WideSignals, false)
    }

    /// Whether events can be shared between processes. A driver that does not know the question can share them.
    pub fn shares_events(&self) -> Result<bool> {
        self.newer_attribute(Attribute::IpcEvents, true)
    }

    /// Whether this process uses the GPU through NVIDIA's MPS, with which kernels of several processes run at the same time.
    pub fn is_under_mps(&self) -> Result<bool> {
        self.newer_attribute(Attribute::UnderMps, false)
    }

    /// Whether kernels here can read and write the memory of `other`: of itself always.
    pub fn can_reach(&self, other: &Self) -> Result<bool> {
        if self.0.raw == other.0.raw {
            return Ok(true);
        }
        let mut can = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (self.functions().cuDeviceCanAccessPeer)(&raw mut can, self.0.raw, other.0.raw) };
        self.check(code, || format!("asking whether it can reach GPU {}", other.ordinal()))?;
        Ok(can != 0)
    }

    fn attribute(&self, attribute: Attribute) -> Result<c_int> {
        let mut value = 0;
        // SAFETY: it writes one number, and refuses attributes that it does not know.
        let code = unsafe { (self.functions().cuDeviceGetAttribute)(&raw mut value, attribute as c_int, self.0.raw) };
        self.check(code, || format!("asking for its {attribute:?}"))?;
        Ok(value)
    }

    /// An attribute that older drivers do not know.
    fn newer_attribute(&self, attribute: Attribute, unknown: bool) -> Result<bool> {
        let mut value = 0;
        // SAFETY: as above.
        let code = unsafe { (self.functions().cuDeviceGetAttribute)(&raw mut value, attribute as c_int, self.0.raw) };
        if code == INVALID_VALUE {
            return Ok(unknown);
        }
        self.check(code, || format!("asking for its {attribute:?}"))?;
        Ok(value != 0)
    }
}

impl PartialEq for Device {
    fn eq(&self, other: &Self) -> bool {
        self.0.raw == other.0.raw
    }
}
impl Eq for Device {}

impl std::fmt::Debug for Device {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Device({})", self.ordinal())
    }
}

impl Drop for Retained {
    fn drop(&mut self) {
        // SAFETY: retained once, in `open`. An error means that the driver is gone already, with everything of ours.
        unsafe { (self.functions.cuDevicePrimaryCtxRelease_v2)(self.raw) };
    }
}

/// While it lives, a device's context is the current one of this thread.
#[must_use = "the context is left again when this is dropped"]
pub struct Entered {
    /// Nothing if the context was current already.
    pushed: Option<Device>,
    _this_thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        if let Some(device) = &self.pushed {
            let mut left = Handle::NULL;
            // SAFETY: pops what `enter` pushed on this very thread, which the guard has not left.
            unsafe { (device.functions().cuCtxPopCurrent_v2)(&raw mut left) };
        }
    }
}
