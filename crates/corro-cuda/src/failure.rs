//! What a call of the driver has returned, as an error that says what was being done.

#![expect(unsafe_code, reason = "asks the driver for the words of an error")]

use std::ffi::CStr;

use corro_core::{Error, Result};

use crate::sys::{Code, Functions, SUCCESS};

/// An error unless `code` is 0. `doing` is what was tried, and on what: "allocating 64 bytes on GPU 0".
pub(crate) fn check(functions: &Functions, code: Code, doing: impl FnOnce() -> String) -> Result<()> {
    if code == SUCCESS { Ok(()) } else { Err(failure(functions, code, &doing())) }
}

/// The error of `code`, in the driver's words and ours.
#[cold]
pub(crate) fn failure(functions: &Functions, code: Code, doing: &str) -> Error {
    let word = |get: unsafe extern "C" fn(Code, *mut *const std::ffi::c_char) -> Code| {
        let mut text = std::ptr::null();
        // SAFETY: it writes one pointer, to a text that is never freed, or null for a code it does not know.
        let found = unsafe { get(code, &raw mut text) };
        // SAFETY: as above.
        (found == SUCCESS && !text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy())
    };
    let name = word(functions.cuGetErrorName).unwrap_or_else(|| "an error the driver has no name for".into());
    let text = word(functions.cuGetErrorString).unwrap_or_default();
    let advice = advice(code).map_or_else(String::new, |advice| format!("; {advice}"));
    Error::Native { library: "CUDA".into(), code: code.into(), text: format!("{doing}: {name} ({text}){advice}") }
}

/// What to try, where the driver's words don't say it.
fn advice(code: Code) -> Option<&'static str> {
    Some(match code {
        2 => "the GPU's memory is full: use a smaller batch, or fewer processes on this GPU",
        3 | 4 => "CUDA can't be used after a fork, nor while the process ends: start workers by spawn",
        46 => "the GPU is in use by another process in exclusive mode: see `nvidia-smi -q -d COMPUTE`",
        100 => "no GPU is visible: see CUDA_VISIBLE_DEVICES, and how the container was started",
        218 | 222 => "the NVIDIA driver is too old for Corro's kernels (it must know PTX 7.8: driver 520 or newer)",
        304 => "in containers, processes that share GPU memory must share their IPC and PID namespaces",
        700 | 716 | 719 => "an earlier kernel of this process failed; CUDA_LAUNCH_BLOCKING=1 shows which",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_gpu_and_a_fork_have_advice() {
        assert!(advice(2).unwrap().contains("smaller batch"));
        assert!(advice(3).unwrap().contains("fork"));
        assert!(advice(1).is_none());
    }
}
