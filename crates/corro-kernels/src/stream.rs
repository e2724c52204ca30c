//! Copies past the caches, for what nobody reads soon.
//!
//! A plain store first fetches the line that it is about to overwrite, and pushes another out of the cache. For a large
//! result that goes to memory of its own, that is a third of all traffic, and for nothing.

#![expect(unsafe_code, reason = "works on raw memory")]

/// What a store past the caches writes at once.
pub(crate) const LINE: usize = 64;

/// As the compiler does it, for machines that have nothing else.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap.
pub(crate) unsafe fn plain(from: *const u8, to: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, len) }
}

/// Copies whole lines of `to` by `copy_lines` (from, to, how many), and what is before and behind them plainly.
///
/// # Safety
/// As for [`plain`].
#[inline(always)]
pub(crate) unsafe fn by_lines(
    from: *const u8,
    to: *mut u8,
    len: usize,
    copy_lines: impl FnOnce(*const u8, *mut u8, usize),
) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the three parts make up the whole.
    unsafe {
        plain(from, to, head);
        copy_lines(from.add(head), to.add(head), lines);
        plain(from.add(tail), to.add(tail), len - tail);
    }
}
