//! How busy the GPU of this process is, by NVIDIA's management library, opened at run time.
//!
//! Looks only: a process that uses no GPU gets neither the driver nor this library loaded, and no context is ever made. Which GPU
//! is meant is asked of the driver that somebody else has loaded: the one on which this process has a context.

#![expect(unsafe_code, reason = "loads libraries and calls them")]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_ulonglong};
use std::fmt::Write;

use corro_core::{Error, Result};
use libloading::Library;
use libloading::os::unix::{Library as Loaded, RTLD_LAZY, RTLD_LOCAL};

use crate::sys::{Handle, RawDevice, SUCCESS, Uuid};
use corro_core::functions::{function_table, why};

/// What a GPU does at this moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The share of the last moments in which something ran on it, in percent. Parts of a divided GPU do not tell.
    pub load: Option<u32>,
    /// Bytes of its memory that are used, by anybody.
    pub used: u64,
    /// Bytes there are.
    pub memory: u64,
}

/// Reads the GPU of this process, as soon as it uses one.
pub struct Meter {
    driver: CString,
    library: String,
    state: State,
}

enum State {
    /// This process has used no GPU yet.
    Waiting,
    Reading(Opened, Handle),
    /// It can't be read, which was said.
    Failed,
}

impl Default for Meter {
    fn default() -> Self {
        Self::of("libcuda.so.1", "libnvidia-ml.so.1")
    }
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Meter({})", self.library)
    }
}

impl Meter {
    fn of(driver: &str, library: &str) -> Self {
        let driver = CString::new(driver).unwrap_or_default();
        Self { driver, library: library.to_owned(), state: State::Waiting }
    }

    /// How the GPU is. `None`: this process uses none, or it can't be read, which is an error the first time.
    ///
    /// # Errors
    /// The library is not there or does not know the GPU; once.
    pub fn read(&mut self) -> Result<Option<Reading>> {
        if matches!(self.state, State::Waiting) {
            let Some(uuid) = used(&self.driver) else { return Ok(None) };
            // Not again, should it fail.
            self.state = State::Failed;
            let opened = Opened::open(&self.library)?;
            let device = opened.device(&uuid)?;
            self.state = State::Reading(opened, device);
        }
        let State::Reading(opened, device) = &self.state else { return Ok(None) };
        let reading = opened.read(*device);
        if reading.is_err() {
            self.state = State::Failed;
        }
        reading.map(Some)
    }
}

/// What the driver is asked, wherever it was loaded.
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;
type ByNumber = unsafe extern "C" fn(*mut RawDevice, c_int) -> c_int;
type IsUsed = unsafe extern "C" fn(RawDevice, *mut c_uint, *mut c_int) -> c_int;
type Identity = unsafe extern "C" fn(*mut Uuid, RawDevice) -> c_int;

/// The first GPU on which this process has a context. `None`: none, or nobody here has loaded the driver.
fn used(driver: &CStr) -> Option<[u8; 16]> {
    // SAFETY: nothing is loaded by this, so nothing of it runs.
    let loaded =
        unsafe { Loaded::open(Some(driver.to_str().ok()?), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()?;
    let (mut count, mut state) = (0, (0, 0));
    // SAFETY: these are the driver's functions with its header's signatures. Each writes what it is asked for, makes nothing, and
    // says so if nobody has started the driver yet.
    unsafe {
        let (counts, number) =
            (*loaded.get::<Count>(b"cuDeviceGetCount\0").ok()?, *loaded.get::<ByNumber>(b"cuDeviceGet\0").ok()?);
        let is_used = *loaded.get::<IsUsed>(b"cuDevicePrimaryCtxGetState\0").ok()?;
        let newest = loaded.get::<Identity>(b"cuDeviceGetUuid_v2\0");
        let identity = *newest.or_else(|_| loaded.get::<Identity>(b"cuDeviceGetUuid\0")).ok()?;
        if counts(&raw mut count) != SUCCESS {
            return None;
        }
        for ordinal in 0..count {
            let (mut device, mut uuid) = (0, Uuid([0; 16]));
            let found = number(&raw mut device, ordinal) == SUCCESS
                && is_used(device, &raw mut state.0, &raw mut state.1) == SUCCESS
                && state.1 != 0;
            if found && identity(&raw mut uuid, device) == SUCCESS {
                return Some(uuid.0);
            }
        }
    }
    None
}

/// A `nvmlUtilization_t`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Utilization {
    gpu: c_uint,
    _memory: c_uint,
}

/// A `nvmlMemory_t`.
#[derive(Default)]
#[repr(C)]
pub(crate) struct Memory {
    total: c_ulonglong,
    _free: c_ulonglong,
    used: c_ulonglong,
}

function_table! {
    /// The library's functions, as `nvml.h` declares them.
    Functions, missing: missing,
    required {
        nvmlInit_v2();
        nvmlErrorString(c_int) -> *const c_char;
        nvmlDeviceGetHandleByUUID(*const c_char, *mut Handle);
        nvmlDeviceGetUtilizationRates(Handle, *mut Utilization);
        nvmlDeviceGetMemoryInfo(Handle, *mut Memory);
    }
    optional {}
}

fn missing(_: &Library, name: &str) -> Error {
    Error::Native {
        library: "NVML".into(),
        code: 0,
        text: format!("it has no function {name}: a newer NVIDIA driver is needed"),
    }
}

/// The library, started. It stays so until the process ends.
struct Opened {
    functions: Functions,
    _library: Library,
}

impl Opened {
    fn open(name: &str) -> Result<Self> {
        // SAFETY: the library's initialisers are made to be run in any process.
        let library =
            unsafe { Library::new(name) }.map_err(|error| Error::io(format!("opening {name}"), why(&error)))?;
        // SAFETY: the library is NVML, and lives as long as the table, in the same struct.
        let functions = unsafe { Functions::find(&library) }?;
        let opened = Self { functions, _library: library };
        // SAFETY: it may be called any number of times.
        opened.check(unsafe { (opened.functions.nvmlInit_v2)() }, "starting it")?;
        Ok(opened)
    }

    fn check(&self, code: c_int, doing: &str) -> Result<()> {
        if code == SUCCESS {
            return Ok(());
        }
        // SAFETY: it gives a text that is there for ever, for any number.
        let text = unsafe { (self.functions.nvmlErrorString)(code) };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: it ends with 0, and is not null.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        Err(Error::Native { library: "NVML".into(), code: code.into(), text: format!("{doing}: {text}") })
    }

    fn device(&self, uuid: &[u8; 16]) -> Result<Handle> {
        let mut device = Handle::NULL;
        let mut code = SUCCESS;
        // A part of a divided GPU has a name of its own.
        for kind in ["GPU", "MIG"] {
            let name = CString::new(format!("{kind}-{}", hyphenated(uuid))).unwrap_or_default();
            // SAFETY: the name ends with 0; one handle is written.
            code = unsafe { (self.functions.nvmlDeviceGetHandleByUUID)(name.as_ptr(), &raw mut device) };
            if code == SUCCESS {
                break;
            }
        }
        self.check(code, "finding the GPU of this process").map(|()| device)
    }

    fn read(&self, device: Handle) -> Result<Reading> {
        let (mut memory, mut utilization) = (Memory::default(), Utilization::default());
        // SAFETY: the handle is the library's own; one struct is written.
        let code = unsafe { (self.functions.nvmlDeviceGetMemoryInfo)(device, &raw mut memory) };
        self.check(code, "asking for the memory of the GPU")?;
        // SAFETY: as above.
        let code = unsafe { (self.functions.nvmlDeviceGetUtilizationRates)(device, &raw mut utilization) };
        Ok(Reading { load: (code == SUCCESS).then_some(utilization.gpu), used: memory.used, memory: memory.total })
    }
}

/// As NVIDIA writes it: `12345678-9abc-...`.
fn hyphenated(uuid: &[u8; 16]) -> String {
    let mut text = String::new();
    for (at, byte) in uuid.iter().enumerate() {
        if [4, 6, 8, 10].contains(&at) {
            text.push('-');
        }
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use corro_testing::fake_gpu;

    use super::*;

    #[test]
    fn a_process_without_a_gpu_loads_nothing() {
        let mut meter = Meter::of("libcorro-no-such-driver.so.1", "libcorro-no-such-library.so.1");
        assert_eq!((meter.read().unwrap(), meter.read().unwrap()), (None, None));
    }

    fn load(path: &Path) -> Library {
        // SAFETY: made for this test, and does nothing when it is loaded.
        unsafe { Library::new(path) }.unwrap()
    }

    fn text(path: &Path) -> String {
        path.display().to_string()
    }

    #[test]
    fn the_gpu_with_a_context_is_read() {
        let folder = corro_testing::Folder::new("nvml");
        let Some(fake) = fake_gpu::build(folder.path()) else {
            return corro_testing::skip("the_gpu_with_a_context_is_read", "no C compiler");
        };
        let mut meter = Meter::of(&text(&fake.driver), &text(&fake.nvml));
        assert_eq!(meter.read().unwrap(), None, "nobody has loaded the driver");
        let _driver = load(&fake.driver);
        let reading = meter.read().unwrap().unwrap();
        assert_eq!(reading, Reading { load: Some(fake_gpu::LOAD), used: fake_gpu::USED, memory: fake_gpu::MEMORY });
        let mut without = Meter::of(&text(&fake.driver), "libcorro-no-such-library.so.1");
        assert!(without.read().unwrap_err().to_string().contains("libcorro-no-such-library"), "it is said");
        assert_eq!(without.read().unwrap(), None, "once");
        let mut wrong = Meter::of(&text(&fake.driver), &text(&fake.driver));
        assert!(wrong.read().unwrap_err().to_string().contains("nvmlInit_v2"));
    }

    #[test]
    fn names_are_written_as_nvidia_does() {
        let uuid: [u8; 16] = std::array::from_fn(|at| at as u8);
        assert_eq!(hyphenated(&uuid), "00010203-0405-0607-0809-0a0b0c0d0e0f");
    }
}
