//! Ranges for NVIDIA's profilers (NVTX): spans of time with a name, shown beside the kernels that ran in them.
//!
//! A profiler names itself in `NVTX_INJECTION64_PATH`. Without that nobody would see ranges, and nothing is opened.

#![expect(unsafe_code, reason = "loads NVTX and calls it")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::NonNull;
use std::sync::Arc;

use corro_core::{Error, Result, config};
use libloading::Library;

use corro_core::functions::function_table;

/// By which a profiler says that it is there.
const PROFILER: &str = "NVTX_INJECTION64_PATH";
/// The names that the library has had, newest first.
const NAMES: [&str; 2] = ["libnvtx3interop.so.1", "libnvToolsExt.so.1"];

/// An `nvtxEventAttributes_t`.
#[repr(C)]
pub(crate) struct Attributes {
    version: u16,
    size: u16,
    category: u32,
    color_type: c_int,
    color: u32,
    payload_type: c_int,
    _reserved: c_int,
    payload: u64,
    message_type: c_int,
    message: *const c_char,
}

/// The form of [`Attributes`] above, which all versions understand.
const VERSION: u16 = 2;
/// The message is a text that ends with a 0.
const ASCII: c_int = 1;

function_table! {
    /// NVTX's functions, as `nvToolsExt.h` declares them. The pointer is a domain.
    Functions, missing: missing,
    required {
        nvtxDomainCreateA(*const c_char) -> *mut c_void;
        nvtxDomainRangeStartEx(*mut c_void, *const Attributes) -> u64;
        nvtxDomainRangeEnd(*mut c_void, u64) -> ();
    }
    optional {}
}

fn missing(_library: &Library, name: &str) -> Error {
    Error::Native { library: "NVTX".into(), code: 0, text: format!("the library has no function {name}") }
}

/// A group of ranges under one name.
#[derive(Clone)]
pub struct Domain {
    functions: Arc<Functions>,
    /// None if the profiler does not want it: ranges in it then cost next to nothing.
    handle: Option<NonNull<c_void>>,
}

// SAFETY: NVTX may be called from any thread, and domains stay for as long as the process does.
unsafe impl Send for Domain {}

/// A range that has begun and not ended.
#[derive(Clone, Copy, Debug)]
#[must_use = "a range that is not ended is shown without an end"]
pub struct Range(u64);

/// Domains with these names; none if no profiler watches this process.
///
/// # Errors
/// A profiler watches, and NVTX is not there.
pub fn domains<const N: usize>(names: [&CStr; N]) -> Result<Option<[Domain; N]>> {
    if config::foreign(PROFILER).is_none() {
        return Ok(None);
    }
    // SAFETY: NVTX's initialisers are made to be run in any process.
    let opened = NAMES.iter().find_map(|name| unsafe { Library::new(*name) }.ok());
    let library = opened.ok_or_else(|| {
        let names = NAMES.join(" or ");
        Error::io("opening NVTX for a profiler's ranges", format!("there is no {names} (pip install nvidia-nvtx)"))
    })?;
    // SAFETY: it has NVTX's name. It stays loaded: see below.
    let functions = Arc::new(unsafe { Functions::find(&library) }?);
    std::mem::forget(library);
    Ok(Some(names.map(|name| {
        // SAFETY: a text that ends with a 0.
        let handle = NonNull::new(unsafe { (functions.nvtxDomainCreateA)(name.as_ptr()) });
        Domain { functions: Arc::clone(&functions), handle }
    })))
}

impl Domain {
    /// Begins a range.
    pub fn start(&self, text: &str) -> Range {
        let Some(handle) = self.handle else { return Range(0) };
        // What is behind a 0 in a tensor's name is not shown.
        let text = text.split('\0').next().unwrap_or_default();
        let Ok(message) = CString::new(text) else { return Range(0) };
        let attributes = Attributes {
            version: VERSION,
            size: size_of::<Attributes>() as u16,
            category: 0,
            color_type: 0,
            color: 0,
            payload_type: 0,
            _reserved: 0,
            payload: 0,
            message_type: ASCII,
            message: message.as_ptr(),
        };
        // SAFETY: the domain is one of NVTX's, and the attributes and their text live during the call, which copies them.
        Range(unsafe { (self.functions.nvtxDomainRangeStartEx)(handle.as_ptr(), &raw const attributes) })
    }

    /// Ends it.
    pub fn end(&self, range: Range) {
        if let Some(handle) = self.handle {
            // SAFETY: the domain is one of NVTX's; a number it does not know is ignored.
            unsafe { (self.functions.nvtxDomainRangeEnd)(handle.as_ptr(), range.0) };
        }
    }
}

impl std::fmt::Debug for Domain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Domain({})", if self.handle.is_some() { "watched" } else { "not watched" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_size_of_the_header() {
        assert_eq!(size_of::<Attributes>(), 48);
        assert_eq!(std::mem::offset_of!(Attributes, message), 40);
    }
}
