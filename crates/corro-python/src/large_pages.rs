//! Fewer and larger pages for large tensors: the system clears a page when it is first written to, and each time costs a trip
//! there. For fresh memory that takes longer than reducing it.

#![expect(unsafe_code, reason = "advice to the system about memory")]

/// Smaller memory is used again by the C library, and has its pages.
pub(crate) const LARGE: usize = 8 << 20;

/// Advises the system about memory that is about to be written.
pub(crate) fn want(at: *mut u8, bytes: usize) {
    const PAGE: usize = 4096;
    let skipped = at.align_offset(PAGE);
    if bytes < LARGE || skipped > bytes {
        return;
    }
    let whole = (bytes - skipped) / PAGE * PAGE;
    // SAFETY: whole pages of memory that the caller owns. It is advice: nothing changes but the size of pages, if anything.
    unsafe { libc::madvise(at.add(skipped).cast(), whole, libc::MADV_HUGEPAGE) };
}
