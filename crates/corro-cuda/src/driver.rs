//! Opening the driver, once a process, when it is first asked for.

#![expect(unsafe_code, reason = "loads the driver and calls it")]

use std::ffi::c_int;
use std::sync::OnceLock;

use corro_core::functions::why;
use corro_core::{Error, Result};
use libloading::Library;

use crate::device::Device;
use crate::failure::check;
use crate::sys::{Functions, NO_DEVICE, POINTER_DEVICE_ORDINAL, version_text};

/// NVIDIA's driver in this process. It is never closed again.
pub struct Driver {
    functions: Functions,
    version: c_int,
    _library: Library,
}

/// The driver, opened by the first call. A host without one gives the same reason each time.
///
/// # Errors
/// No driver, a driver that is too old, or no GPU that this process may see.
pub fn driver() -> Result<&'static Driver> {
    static DRIVER: OnceLock<Result<Driver>> = OnceLock::new();
    DRIVER.get_or_init(|| Driver::open("libcuda.so.1")).as_ref().map_err(Clone::clone)
}

impl Driver {
    fn open(name: &str) -> Result<Self> {
        // SAFETY: the driver's initialisers are made to be run in any process.
        let library = unsafe { Library::new(name) }.map_err(|error| {
            Error::io(
                format!("opening {name}"),
                format!("{}: no NVIDIA driver on this host, or in this container", why(&error)),
            )
        })?;
        // SAFETY: the library is the driver, and lives as long as the table, in the same struct.
        let functions = unsafe { Functions::find(&library) }?;
        // SAFETY: no flags exist; the call may be repeated by whoever else is in this process.
        let code = unsafe { (functions.cuInit)(0) };
        check(&functions, code, || "starting CUDA in this process".into())?;
        let mut version = 0;
        // SAFETY: it writes one number.
        let code = unsafe { (functions.cuDriverGetVersion)(&raw mut version) };
        check(&functions, code, || "asking for the driver's version".into())?;
        Ok(Self { functions, version, _library: library })
    }

    /// The newest CUDA that this driver can run: 13000 is 13.0.
    pub fn version(&self) -> u32 {
        self.version as u32
    }

    /// [`Self::version`] as people write it.
    pub fn version_text(&self) -> String {
        version_text(self.version)
    }

    /// How many GPUs this process may see.
    pub fn device_count(&self) -> Result<usize> {
        let mut count = 0;
        // SAFETY: it writes one number.
        match unsafe { (self.functions.cuDeviceGetCount)(&raw mut count) } {
            NO_DEVICE => Ok(0),
            code => check(&self.functions, code, || "counting GPUs".into()).map(|()| count.max(0) as usize),
        }
    }

    /// The GPU with this number, as CUDA counts those that this process may see.
    pub fn device(&'static self, ordinal: usize) -> Result<Device> {
        let count = self.device_count()?;
        if ordinal >= count {
            return Err(Error::Usage(format!(
                "there is no GPU {ordinal}: this process sees {count}, counted from 0 (see CUDA_VISIBLE_DEVICES)"
            )));
        }
        Device::open(&self.functions, ordinal)
    }

    /// The number of the GPU that has the memory at this address.
    pub fn device_with(&self, address: u64) -> Result<usize> {
        let mut ordinal: c_int = 0;
        // SAFETY: it writes one int for this attribute; any number may be asked for.
        let code = unsafe {
            (self.functions.cuPointerGetAttribute)((&raw mut ordinal).cast(), POINTER_DEVICE_ORDINAL, address)
        };
        check(&self.functions, code, || format!("asking which GPU has the address {address:#x}"))?;
        usize::try_from(ordinal).map_err(|_| Error::Usage(format!("the memory at {address:#x} is not that of a GPU")))
    }
}

impl std::fmt::Debug for Driver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Driver(CUDA {})", self.version_text())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_a_driver_says_so() {
        let text = Driver::open("libcorro-no-such-driver.so.1").unwrap_err().to_string();
        assert!(text.contains("libcorro-no-such-driver.so.1") && text.contains("no NVIDIA driver"), "{text}");
        assert!(text.contains("No such file"), "{text}");
    }

    #[test]
    fn the_reason_is_given_each_time() {
        if let Err(first) = driver() {
            assert_eq!(driver().unwrap_err(), first);
        }
    }
}
