//! Arrays that Python gives as an address and a number of bytes.

#![expect(unsafe_code, reason = "arrays arrive as addresses")]

/// Where an array lies, and how long it is.
pub(crate) type Memory = (usize, usize);

/// # Safety
/// The caller's Python code holds the array until the call returns, and changes nothing of it meanwhile.
pub(crate) unsafe fn readable<'a>(memory: Memory) -> &'a [u8] {
    let (address, bytes) = memory;
    if bytes == 0 {
        return &[];
    }
    // SAFETY: as the caller vouches; every bit pattern is a byte, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(address as *const u8, bytes) }
}

/// # Safety
/// The same, and nobody else reads the array meanwhile.
pub(crate) unsafe fn writable<'a>(memory: Memory) -> &'a mut [u8] {
    let (address, bytes) = memory;
    if bytes == 0 {
        return &mut [];
    }
    // SAFETY: as the caller vouches.
    unsafe { std::slice::from_raw_parts_mut(address as *mut u8, bytes) }
}

/// What an array of 64-bit numbers holds; it need not be aligned.
pub(crate) fn numbers(bytes: &[u8]) -> Vec<u64> {
    bytes.chunks_exact(8).map(|b| u64::from_ne_bytes(std::array::from_fn(|i| b[i]))).collect()
}
