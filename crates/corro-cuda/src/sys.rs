//! The driver's functions that Corro calls, as its header declares them, found by name in the library.
//!
//! Names of this file follow the header (`cuda.h`), `_v2` included where the driver has it: the plain name is then another,
//! older function. Nothing here is checked or explained; the modules that call these functions do both.

#![expect(unsafe_code, reason = "looks up foreign functions and trusts their signatures")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use corro_core::Error;
use libloading::Library;

use corro_core::functions::function_table;

/// What every function returns: 0, or the number of an error.
pub(crate) type Code = c_int;
/// A `CUdevice`.
pub(crate) type RawDevice = c_int;
/// An address in the space that host and GPUs share, a `CUdeviceptr`.
pub(crate) type Address = u64;

/// A pointer to something of the driver's: contexts, streams, events, modules, functions.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Handle(pub(crate) *mut c_void);

impl Handle {
    pub(crate) const NULL: Self = Self(std::ptr::null_mut());
}

// SAFETY: the driver's objects may be used from any thread; the pointer is only ever handed back to it.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

/// A `CUipcMemHandle` or `CUipcEventHandle`: passed by value.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct IpcHandle(pub(crate) [u8; 64]);

/// A `CUuuid`.
#[repr(C)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

pub(crate) const SUCCESS: Code = 0;
pub(crate) const INVALID_VALUE: Code = 1;
pub(crate) const NO_DEVICE: Code = 100;
pub(crate) const NOT_READY: Code = 600;
pub(crate) const NOT_SUPPORTED: Code = 801;

pub(crate) const STREAM_NON_BLOCKING: c_uint = 1;
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;
pub(crate) const EVENT_INTERPROCESS: c_uint = 4;
pub(crate) const IPC_MEM_LAZY_ENABLE_PEER_ACCESS: c_uint = 1;
/// Pinned for all contexts, and reachable from kernels. The flags of `cuMemHostAlloc` and `cuMemHostRegister` are the same.
pub(crate) const MEM_HOST_PORTABLE_MAPPED: c_uint = 1 | 2;

pub(crate) const POINTER_DEVICE_ORDINAL: c_int = 9;
pub(crate) const POINTER_IPC_CAPABLE: c_int = 10;

function_table! {
    /// The table: one field for each function, named after it.
    Functions, missing: missing,
    required {
        cuInit(c_uint);
        cuDriverGetVersion(*mut c_int);
        cuGetErrorName(Code, *mut *const c_char);
        cuGetErrorString(Code, *mut *const c_char);

        cuDeviceGetCount(*mut c_int);
        cuDeviceGet(*mut RawDevice, c_int);
        cuDeviceGetName(*mut c_char, c_int, RawDevice);
        cuDeviceGetUuid(*mut Uuid, RawDevice);
        cuDeviceTotalMem_v2(*mut usize, RawDevice);
        cuDeviceGetAttribute(*mut c_int, c_int, RawDevice);
        cuDeviceCanAccessPeer(*mut c_int, RawDevice, RawDevice);
        cuDevicePrimaryCtxRetain(*mut Handle, RawDevice);
        cuDevicePrimaryCtxRelease_v2(RawDevice);

        cuCtxGetCurrent(*mut Handle);
        cuCtxPushCurrent_v2(Handle);
        cuCtxPopCurrent_v2(*mut Handle);
        cuCtxSynchronize();
        cuCtxGetStreamPriorityRange(*mut c_int, *mut c_int);

        cuMemGetInfo_v2(*mut usize, *mut usize);
        cuMemAlloc_v2(*mut Address, usize);
        cuMemFree_v2(Address);
        cuMemGetAddressRange_v2(*mut Address, *mut usize, Address);
        cuMemHostAlloc(*mut *mut c_void, usize, c_uint);
        cuMemFreeHost(*mut c_void);
        cuMemHostRegister_v2(*mut c_void, usize, c_uint);
        cuMemHostUnregister(*mut c_void);
        cuMemHostGetDevicePointer_v2(*mut Address, *mut c_void, c_uint);
        cuMemcpyAsync(Address, Address, usize, Handle);
        cuMemsetD8Async(Address, u8, usize, Handle);
        cuPointerGetAttribute(*mut c_void, c_int, Address);

        cuIpcGetMemHandle(*mut IpcHandle, Address);
        cuIpcOpenMemHandle_v2(*mut Address, IpcHandle, c_uint);
        cuIpcCloseMemHandle(Address);
        cuIpcGetEventHandle(*mut IpcHandle, Handle);
        cuIpcOpenEventHandle(*mut Handle, IpcHandle);

        cuStreamCreateWithPriority(*mut Handle, c_uint, c_int);
        cuStreamDestroy_v2(Handle);
        cuStreamQuery(Handle);
        cuStreamSynchronize(Handle);
        cuStreamWaitEvent(Handle, Handle, c_uint);

        cuEventCreate(*mut Handle, c_uint);
        cuEventDestroy_v2(Handle);
        cuEventRecord(Handle, Handle);
        cuEventQuery(Handle);
        cuEventSynchronize(Handle);

        cuModuleLoadData(*mut Handle, *const c_void);
        cuModuleUnload(Handle);
        cuModuleGetFunction(*mut Handle, Handle, *const c_char);
        cuLaunchKernel(
            Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void
        );
    }
    optional {
        // Streams that wait for a number in memory; from CUDA 11.7 on.
        cuStreamWaitValue32_v2(Handle, Address, u32, c_uint);
        cuStreamWriteValue32_v2(Handle, Address, u32, c_uint);
        // Tells the instances of a GPU that was divided (MIG) apart; from CUDA 11.4 on.
        cuDeviceGetUuid_v2(*mut Uuid, RawDevice);
    }
}

fn missing(library: &Library, name: &str) -> Error {
    let version =
        version(library).map_or_else(|| "of an unknown version".into(), |v| format!("for CUDA {}", version_text(v)));
    Error::Native {
        library: "CUDA".into(),
        code: 0,
        text: format!("the driver ({version}) has no function {name}: a newer NVIDIA driver is needed"),
    }
}

/// The driver's version, if it can tell.
fn version(library: &Library) -> Option<c_int> {
    // SAFETY: the header's signature; the caller of `Functions::find` vouches for the library.
    let get = unsafe { library.get::<unsafe extern "C" fn(*mut c_int) -> Code>(b"cuDriverGetVersion\0") }.ok()?;
    let mut version = 0;
    // SAFETY: it writes one number, and may be called before cuInit.
    let code = unsafe { get(&raw mut version) };
    (code == SUCCESS).then_some(version)
}

/// 13000 as "13.0".
pub(crate) fn version_text(version: c_int) -> String {
    format!("{}.{}", version / 1000, version % 1000 / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_read_as_people_write_them() {
        assert_eq!(
            (version_text(13000), version_text(11080), version_text(12040)),
            ("13.0".into(), "11.8".into(), "12.4".into())
        );
    }

    #[test]
    fn a_library_without_the_functions_is_refused_by_the_first_name() {
        // SAFETY: no initialiser runs that has not run already: it is this very process's.
        let library = unsafe { Library::new("libc.so.6") }.unwrap();
        // SAFETY: nothing is found, so nothing is called.
        let text = unsafe { Functions::find(&library) }.err().unwrap().to_string();
        assert!(text.contains("cuInit") && text.contains("newer NVIDIA driver"), "{text}");
    }

    #[test]
    fn handles_have_the_drivers_sizes() {
        assert_eq!((size_of::<IpcHandle>(), size_of::<Uuid>(), size_of::<Handle>()), (64, 16, 8));
    }
}
