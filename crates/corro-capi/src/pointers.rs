//! From what C hands over to what Rust can work with. Null is an error; everything else is believed.

#![expect(unsafe_code, reason = "reads and writes where C says")]

use std::ffi::{CStr, c_char};

use crate::status::{Answer, Failure, usage};

/// The text at `at`.
///
/// # Safety
/// `at` is null or points to a text that ends with a zero byte and stays unchanged for `'a`.
pub(crate) unsafe fn text<'a>(at: *const c_char, what: &str) -> Result<&'a str, Failure> {
    if at.is_null() {
        return Err(null(what));
    }
    // SAFETY: not null, and so a text by the contract above.
    let text = unsafe { CStr::from_ptr(at) };
    text.to_str().map_err(|_| usage(format!("{what} is not UTF-8: {}", text.to_string_lossy())))
}

/// The `len` values at `at`; none if `len` is 0, whatever the address.
///
/// # Safety
/// `at` is null or points to `len` values that stay unchanged for `'a`.
pub(crate) unsafe fn list<'a, T>(at: *const T, len: usize, what: &str) -> Result<&'a [T], Failure> {
    if len == 0 {
        return Ok(&[]);
    }
    if at.is_null() {
        return Err(null(what));
    }
    if !at.is_aligned() || len > isize::MAX as usize / size_of::<T>().max(1) {
        return Err(usage(format!("{what} can't be a list of {len} values at {at:p}")));
    }
    // SAFETY: aligned, not too long, and valid by the contract above.
    Ok(unsafe { std::slice::from_raw_parts(at, len) })
}

/// Writes `value` to `at`.
///
/// # Safety
/// `at` is null or may be written to.
pub(crate) unsafe fn put<T>(at: *mut T, value: T, what: &str) -> Answer {
    if at.is_null() {
        return Err(null(what));
    }
    // SAFETY: by the contract above.
    unsafe { at.write_unaligned(value) };
    Ok(())
}

/// Writes the first `room` of `values` to `at`, and how many there are to `count`.
///
/// # Safety
/// `at` has room for `room` values, and `count` is null or may be written to.
pub(crate) unsafe fn put_list<T: Copy>(values: &[T], at: *mut T, room: usize, count: *mut usize, what: &str) -> Answer {
    let fit = values.len().min(room);
    if fit > 0 {
        if at.is_null() {
            return Err(null(what));
        }
        // SAFETY: there is room, by the contract above, and nothing of ours lies there.
        unsafe { std::ptr::copy_nonoverlapping(values.as_ptr(), at, fit) };
    }
    // SAFETY: by the contract above.
    unsafe { put(count, values.len(), "the place for the count") }
}

pub(crate) fn null(what: &str) -> Failure {
    usage(format!("{what} is NULL"))
}
