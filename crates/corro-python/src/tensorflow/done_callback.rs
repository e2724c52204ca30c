//! TensorFlow's callback that a kernel is done, kept beyond the call that brought it.
//!
//! An asynchronous kernel gets a pointer to a `std::function<void()>` on its caller's stack, so it must be copied before the
//! kernel returns; the C API has no function for that. What is known about it: it is made by TensorFlow, which is built
//! with libstdc++, where it is two words of data, a manager (which copies and destroys the data) and an invoker, and has been
//! for as long as there is `std::function`. [`Done::copy`] looks whether the two functions are TensorFlow's own; if
//! they are not, this is something else, and the kernel must finish before it returns.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::sync::{PoisonError, RwLock};

use super::api::{DoneCallback, api};

type Manager = unsafe extern "C" fn(*mut [usize; 2], *const [usize; 2], c_int) -> bool;

const CLONE: c_int = 2;
const DESTROY: c_int = 3;

#[repr(C)]
struct Function {
    data: [usize; 2],
    manager: Option<Manager>,
    invoker: usize,
}

/// A copy. Dropping it without calling it would leave TensorFlow waiting for ever.
pub(super) struct Done(Box<Function>);

// SAFETY: TensorFlow calls these on any of its threads.
unsafe impl Send for Done {}

impl Done {
    /// A copy, or None if this is not what it should be.
    ///
    /// # Safety
    /// `callback` is what TensorFlow gave to an asynchronous kernel that has not returned.
    pub(super) unsafe fn copy(callback: *const DoneCallback) -> Option<Self> {
        // SAFETY: four words on the caller's stack, whatever they are: a frame is larger than that.
        let source = unsafe { &*callback.cast::<Function>() };
        let manager = source.manager?;
        if !known(manager as usize) || !known(source.invoker) {
            return None;
        }
        let mut data = MaybeUninit::<[usize; 2]>::zeroed();
        // SAFETY: a manager clones from data like its own into memory of that size.
        let data = unsafe {
            manager(data.as_mut_ptr(), &raw const source.data, CLONE);
            data.assume_init()
        };
        Some(Self(Box::new(Function { data, manager: Some(manager), invoker: source.invoker })))
    }

    /// Tells TensorFlow. Nothing of the kernel's call may be touched afterwards.
    pub(super) fn call(mut self) {
        // SAFETY: this is a whole `std::function<void()>`, and it is destroyed after its one use.
        unsafe {
            (api().TF_RunAsyncOpKernelDoneCallback)((&raw mut *self.0).cast());
            if let Some(manager) = self.0.manager {
                let data = &raw mut self.0.data;
                manager(data, data, DESTROY);
            }
        }
    }
}

/// Functions that were found to be TensorFlow's. There are a handful, and looking one up takes long.
static KNOWN: RwLock<Vec<usize>> = RwLock::new(Vec::new());

fn known(function: usize) -> bool {
    if KNOWN.read().unwrap_or_else(PoisonError::into_inner).contains(&function) {
        return true;
    }
    let found = is_tensorflows(function);
    if found {
        KNOWN.write().unwrap_or_else(PoisonError::into_inner).push(function);
    }
    found
}

fn is_tensorflows(function: usize) -> bool {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address may be asked about; the answer is complete if the result is not 0.
    unsafe {
        if libc::dladdr(std::ptr::with_exposed_provenance(function), info.as_mut_ptr()) == 0 {
            return false;
        }
        let name = info.assume_init().dli_fname;
        !name.is_null()
            && CStr::from_ptr(name).to_string_lossy().rsplit('/').next().is_some_and(|file| file.contains("tensorflow"))
    }
}
