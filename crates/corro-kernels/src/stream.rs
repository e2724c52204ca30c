//! Copies past the caches, for what nobody reads soon.
//!
//! A plain store first fetches the line that it is about to overwrite, and pushes another out of the cache. For a large
//! result that goes to memory of its own, that is a third of all traffic, and for nothing.

#![expect(unsafe_code, reason = "works on raw memory")]

/// Copies `len` bytes past the caches, where the machine can: for what nobody reads soon. Others see them as they see plain
/// stores.
///
/// # Safety
/// `from` must be readable and `to` writable for `len` bytes, and they must not overlap.
pub unsafe fn stream(from: *const u8, to: *mut u8, len: usize) {
    let head = to.align_offset(LINE).min(len);
    let lines = (len - head) / LINE;
    let tail = head + lines * LINE;
    // SAFETY: the three parts make up the whole; the middle one begins and ends with a line.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        stream_lines(from.add(head), to.add(head), lines);
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), len - tail);
    }
}

const LINE: usize = 64;

/// # Safety
/// As for [`stream`], for as many lines; `to` begins with one.
#[cfg(target_arch = "x86_64")]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    const PART: usize = size_of::<__m128i>();
    const PARTS: usize = LINE / PART;
    // SAFETY: the caller's promise; every machine of this architecture has these instructions.
    unsafe {
        for line in 0..lines {
            // Its parts directly after each other: the core then sends it as one. Wider registers gain nothing.
            let (from, to) = (from.add(line * LINE), to.add(line * LINE));
            let parts: [_; PARTS] = std::array::from_fn(|i| _mm_loadu_si128(from.add(i * PART).cast()));
            parts.into_iter().enumerate().for_each(|(i, part)| _mm_stream_si128(to.add(i * PART).cast(), part));
        }
        // Such stores wait for no others: what is said to be done after this must be.
        _mm_sfence();
    }
}

/// # Safety
/// As for [`stream`], for as many lines.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn stream_lines(from: *const u8, to: *mut u8, lines: usize) {
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(from, to, lines * LINE) }
}
