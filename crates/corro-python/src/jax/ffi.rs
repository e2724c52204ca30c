//! XLA's interface for foreign functions, as far as it is used: `xla/ffi/api/c_api.h`.
//!
//! Structures only ever grow at their ends, and say how large they are. What is used of them here has been the same from
//! the first version (JAX 0.4.31) on, but for the place of the functions for futures, see [`know_futures`].

#![expect(unsafe_code, reason = "XLA's C interface")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::OnceLock;

use pyo3::ffi::PyCapsule_New;
use pyo3::prelude::*;

pub(super) const EXECUTE: c_int = 3;
pub(super) const STRING: c_int = 4;
/// Bytes, in XLA's numbering of element types.
pub(super) const U8: c_int = 6;

const METADATA: c_int = 1;
/// The version of the interface that this is written for; XLA takes older handlers.
const VERSION: (c_int, c_int) = (0, 1);

pub(super) type Handler = unsafe extern "C" fn(*mut CallFrame) -> *mut RawError;

/// An error of XLA's. Who gets one from a handler owns it.
pub(super) enum RawError {}
enum RawFuture {}
enum Context {}

#[repr(C)]
struct Extension {
    size: usize,
    kind: c_int,
    next: *mut Extension,
}

#[repr(C)]
struct Version {
    size: usize,
    extensions: *mut Extension,
    major: c_int,
    minor: c_int,
}

#[repr(C)]
struct Metadata {
    size: usize,
    version: Version,
}

#[repr(C)]
struct MetadataExtension {
    base: Extension,
    metadata: *mut Metadata,
}

#[repr(C)]
pub(super) struct RawBuffer {
    size: usize,
    extensions: *mut Extension,
    pub(super) dtype: c_int,
    pub(super) data: *mut c_void,
    pub(super) rank: i64,
    pub(super) dims: *const i64,
}

#[repr(C)]
pub(super) struct Text {
    pub(super) at: *const u8,
    pub(super) len: usize,
}

/// Arguments, or results.
#[repr(C)]
pub(super) struct Buffers {
    size: usize,
    extensions: *mut Extension,
    pub(super) count: i64,
    types: *const c_int,
    pub(super) places: *const *const RawBuffer,
}

#[repr(C)]
pub(super) struct Attributes {
    size: usize,
    extensions: *mut Extension,
    pub(super) count: i64,
    pub(super) types: *const c_int,
    names: *const *const Text,
    pub(super) values: *const *const c_void,
}

/// One call of a handler.
#[repr(C)]
pub(super) struct CallFrame {
    size: usize,
    extensions: *mut Extension,
    api: *const Api,
    context: *mut Context,
    pub(super) stage: c_int,
    pub(super) arguments: Buffers,
    pub(super) results: Buffers,
    pub(super) attributes: Attributes,
    future: *mut RawFuture,
}

#[repr(C)]
struct Api {
    size: usize,
    extensions: *mut Extension,
    version: Version,
    internal: *const c_void,
    create_error: unsafe extern "C" fn(*mut CreateError) -> *mut RawError,
    // More functions follow.
}

#[repr(C)]
struct CreateError {
    size: usize,
    extensions: *mut Extension,
    message: *const c_char,
    code: c_int,
}

#[repr(C)]
struct GetStream {
    size: usize,
    extensions: *mut Extension,
    context: *mut Context,
    stream: *mut c_void,
}

type GetStreamFunction = unsafe extern "C" fn(*mut GetStream) -> *mut RawError;
/// The place of `XLA_FFI_Stream_Get`, the same in all versions.
const GET_STREAM: usize = 4;

#[repr(C)]
struct OfFuture {
    size: usize,
    extensions: *mut Extension,
    future: *mut RawFuture,
    /// Only where a future fails.
    error: *mut RawError,
}

type FutureFunction = unsafe extern "C" fn(*mut OfFuture) -> *mut RawError;

/// The place of the first of the three functions for futures; None where there are none.
static FUTURES: OnceLock<Option<usize>> = OnceLock::new();

/// See [`super::jax_handlers`]. Only the first word counts: there is one XLA in a process.
pub(super) fn know_futures(place: Option<usize>) {
    let _ = FUTURES.set(place);
}

/// A handler, as Python hands it to XLA.
pub(super) fn capsule(py: Python<'_>, handler: Handler) -> PyResult<Py<PyAny>> {
    const NAME: &CStr = c"xla._CUSTOM_CALL_TARGET";
    // SAFETY: a function lives for ever, and so does the name; the new reference is given to Python.
    unsafe {
        let capsule = PyCapsule_New(handler as *mut c_void, NAME.as_ptr(), None);
        Ok(Bound::from_owned_ptr_or_err(py, capsule)?.unbind())
    }
}

/// Answers if XLA only asks for the handler's version. The rest of the frame may then be empty.
///
/// # Safety
/// `frame` is what XLA called a handler with.
pub(super) unsafe fn answers_query(frame: *mut CallFrame) -> bool {
    // SAFETY: extensions are a list; that of this kind is one of metadata, which is to be written.
    unsafe {
        let extension = (*frame).extensions;
        if extension.is_null() || (*extension).kind != METADATA {
            return false;
        }
        let metadata = (*extension.cast::<MetadataExtension>()).metadata;
        ((*metadata).version.major, (*metadata).version.minor) = VERSION;
        true
    }
}

/// XLA, for as long as it lives: its functions. Programs may end on any thread.
#[derive(Clone, Copy)]
pub(super) struct Xla(*const Api);

// SAFETY: the API is constant.
unsafe impl Send for Xla {}
// SAFETY: as above.
unsafe impl Sync for Xla {}

impl Xla {
    /// # Safety
    /// `frame` is that of a call which is to be executed.
    pub(super) unsafe fn of(frame: *const CallFrame) -> Self {
        // SAFETY: as above.
        Self(unsafe { (*frame).api })
    }

    /// An error for XLA, with the number of its kind.
    pub(super) fn error(self, code: c_int, text: &str) -> *mut RawError {
        let text = CString::new(text.replace('\0', " ")).unwrap_or_default();
        let mut wanted = CreateError {
            size: size_of::<CreateError>(),
            extensions: std::ptr::null_mut(),
            message: text.as_ptr(),
            code,
        };
        // SAFETY: XLA copies the text.
        unsafe { ((*self.0).create_error)(&raw mut wanted) }
    }

    /// The stream of a call on a GPU, by CUDA's number; None if XLA does not tell.
    ///
    /// # Safety
    /// `frame` is that of a call which is to be executed.
    pub(super) unsafe fn stream(self, frame: *const CallFrame) -> Option<u64> {
        // SAFETY: the function has been at this place from the first version on; it writes the stream.
        unsafe {
            let first = (&raw const (*self.0).create_error).cast::<GetStreamFunction>();
            let get = first.add(GET_STREAM).read();
            let mut asked = GetStream {
                size: size_of::<GetStream>(),
                extensions: std::ptr::null_mut(),
                context: (*frame).context,
                stream: std::ptr::null_mut(),
            };
            // An error would be ours to give back; a program on a GPU has a stream, so there is none.
            get(&raw mut asked).is_null().then_some(asked.stream as u64)
        }
    }

    fn future_function(self, which: usize) -> Option<FutureFunction> {
        let place = (*FUTURES.get()?)?;
        // SAFETY: the header of this version of XLA says that a function is there.
        Some(unsafe {
            let first = (&raw const (*self.0).create_error).cast::<FutureFunction>();
            first.add(place + which).read()
        })
    }

    /// Tells XLA that the call goes on after the handler has returned; None where this version can't be told.
    ///
    /// # Safety
    /// `frame` is that of the call, whose handler has not returned.
    pub(super) unsafe fn promise(self, frame: *mut CallFrame) -> Option<Future> {
        let create = self.future_function(0)?;
        let mut made = of(std::ptr::null_mut());
        // SAFETY: XLA writes the new future, which belongs to the frame from then on, until it is told of its end.
        unsafe {
            if !create(&raw mut made).is_null() || made.future.is_null() {
                return None;
            }
            (*frame).future = made.future;
        }
        Some(Future { xla: self, raw: made.future })
    }
}

fn of(future: *mut RawFuture) -> OfFuture {
    // Functions that have no error in their arguments know a shorter structure, and look at the size only to compare it
    // with theirs: at least.
    OfFuture { size: size_of::<OfFuture>(), extensions: std::ptr::null_mut(), future, error: std::ptr::null_mut() }
}

/// A call that has not ended. To be ended once: XLA waits for it.
pub(super) struct Future {
    xla: Xla,
    raw: *mut RawFuture,
}

// SAFETY: XLA has futures ended on any thread.
unsafe impl Send for Future {}

impl Future {
    /// Nothing of the call may be touched afterwards.
    pub(super) fn end(self, result: Result<(), (c_int, String)>) {
        let (which, error) = match result {
            Ok(()) => (1, std::ptr::null_mut()),
            Err((code, text)) => (2, self.xla.error(code, &text)),
        };
        if let Some(end) = self.xla.future_function(which) {
            let mut arguments = OfFuture { error, ..of(self.raw) };
            // SAFETY: the future is this call's, and has not ended; XLA owns the error.
            unsafe { end(&raw mut arguments) };
        }
    }
}
