//! A byte queue from one rank to another through memory both map: one writer, one reader, no lock.
//!
//! Two counters of bytes, written by one side each, say how much was ever put in and taken out; bytes between them
//! belong to the reader, all others to the writer. The two `armed` flags are how a side that wants to sleep asks the
//! other for a ring of its doorbell; who rings clears the flag first, so each request is answered once.

#![expect(unsafe_code, reason = "works on memory shared with other processes")]

use crate::primitive::{AtomicU32, AtomicU64, Ordering};

/// Bytes in front of the data: one cache-line pair for what the writer writes, one for what the reader writes.
pub(crate) const CONTROL_BYTES: usize = 256;

/// One end of a ring. Which of `write` and `read` it may use is decided by who holds it: see [`Ring::new`].
pub(crate) struct Ring {
    base: *mut u8,
    capacity: usize,
}

// SAFETY: a ring end is used by one thread at a time (`&mut` in the stream that owns it), and the memory outlives it.
unsafe impl Send for Ring {}

impl Ring {
    /// A view of the ring at `base`, which holds `CONTROL_BYTES + capacity` bytes; zeroed memory is an empty ring.
    ///
    /// # Safety
    /// The memory stays mapped while this view lives, is 8-byte aligned, `capacity` is a power of two, and over all
    /// views in all processes at most one ever writes and at most one ever reads.
    pub(crate) unsafe fn new(base: *mut u8, capacity: usize) -> Self {
        debug_assert!(capacity.is_power_of_two());
        Self { base, capacity }
    }

    fn written(&self) -> &AtomicU64 {
        // SAFETY: aligned, mapped (see `new`), and accessed atomically by all.
        unsafe { AtomicU64::from_ptr(self.base.cast()) }
    }

    fn taken(&self) -> &AtomicU64 {
        // SAFETY: as above.
        unsafe { AtomicU64::from_ptr(self.base.add(CONTROL_BYTES / 2).cast()) }
    }

    fn reader_armed(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.add(CONTROL_BYTES / 2 + 8).cast()) }
    }

    fn writer_armed(&self) -> &AtomicU32 {
        // SAFETY: as above.
        unsafe { AtomicU32::from_ptr(self.base.add(8).cast()) }
    }

    /// The reader's, before it sleeps: asks to be rung for. It must look once more whether there is something to read.
    pub(crate) fn arm_reader(&self) {
        self.reader_armed().store(1, Ordering::SeqCst);
    }

    /// The writer's, before it sleeps: asks to be rung for. It must look once more whether there is room.
    pub(crate) fn arm_writer(&self) {
        self.writer_armed().store(1, Ordering::SeqCst);
    }

    /// The reader's, after it slept. False if it was rung for, or will be in a moment.
    pub(crate) fn disarm_reader(&self) -> bool {
        self.reader_armed().swap(0, Ordering::SeqCst) != 0
    }

    /// The writer's, after it slept. False if it was rung for, or will be in a moment.
    pub(crate) fn disarm_writer(&self) -> bool {
        self.writer_armed().swap(0, Ordering::SeqCst) != 0
    }

    /// The writer's, after it wrote: whether it must ring for the reader.
    pub(crate) fn reader_wants_bell(&self) -> bool {
        wants_bell(self.reader_armed())
    }

    /// The reader's, after it read: whether it must ring for the writer.
    pub(crate) fn writer_wants_bell(&self) -> bool {
        wants_bell(self.writer_armed())
    }

    /// Puts in what fits and says how much.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> usize {
        let written = self.written().load(Ordering::Relaxed);
        // Acquire: the reader is done with the bytes we may now overwrite.
        let taken = self.taken().load(Ordering::Acquire);
        let free = self.capacity.saturating_sub(written.wrapping_sub(taken) as usize);
        let len = bytes.len().min(free);
        if len == 0 {
            return 0;
        }
        let at = written as usize & (self.capacity - 1);
        let first = len.min(self.capacity - at);
        // SAFETY: both parts lie inside the ring, and the counters say they are the writer's.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.data().add(at), first);
            std::ptr::copy_nonoverlapping(bytes.as_ptr().add(first), self.data(), len - first);
        }
        // SeqCst rather than Release: the caller asks `reader_wants_bell` next, which must not see the past.
        self.written().store(written.wrapping_add(len as u64), Ordering::SeqCst);
        len
    }

    /// Takes out what is there, as much as fits, and says how much.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> usize {
        let taken = self.taken().load(Ordering::Relaxed);
        // Acquire: the bytes were written before the counter was.
        let written = self.written().load(Ordering::Acquire);
        // A writer gone mad can't make us leave the ring, only read garbage.
        let there = (written.wrapping_sub(taken) as usize).min(self.capacity);
        let len = into.len().min(there);
        if len == 0 {
            return 0;
        }
        let at = taken as usize & (self.capacity - 1);
        let first = len.min(self.capacity - at);
        // SAFETY: both parts lie inside the ring, and the counters say they are the reader's.
        unsafe {
            std::ptr::copy_nonoverlapping(self.data().add(at), into.as_mut_ptr(), first);
            std::ptr::copy_nonoverlapping(self.data(), into.as_mut_ptr().add(first), len - first);
        }
        self.taken().store(taken.wrapping_add(len as u64), Ordering::SeqCst);
        len
    }

    fn data(&self) -> *mut u8 {
        // SAFETY: inside the ring's memory.
        unsafe { self.base.add(CONTROL_BYTES) }
    }
}

/// A look first: a swap would take the cache line from the other side each time.
fn wants_bell(armed: &AtomicU32) -> bool {
    armed.load(Ordering::SeqCst) != 0 && armed.swap(0, Ordering::SeqCst) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(memory: &mut Vec<u64>, capacity: usize) -> (Ring, Ring) {
        memory.resize((CONTROL_BYTES + capacity) / 8, 0);
        let base = memory.as_mut_ptr().cast();
        // SAFETY: the vector outlives both ends and is not touched meanwhile; one end writes, the other reads.
        unsafe { (Ring::new(base, capacity), Ring::new(base, capacity)) }
    }

    #[test]
    fn wraps_around_and_keeps_order() {
        let mut memory = Vec::new();
        let (mut tx, mut rx) = pair(&mut memory, 64);
        let mut sent = 0u32;
        let mut seen = 0u32;
        let mut buffer = [0u8; 37];
        for _ in 0..1000 {
            let bytes: Vec<u8> = (sent..sent + 29).map(|n| n as u8).collect();
            sent += tx.write(&bytes) as u32;
            let n = rx.read(&mut buffer);
            for b in &buffer[..n] {
                assert_eq!(*b, seen as u8);
                seen += 1;
            }
        }
        assert!(sent - seen <= 64 && seen > 10_000);
    }

    #[test]
    fn full_and_empty() {
        let mut memory = Vec::new();
        let (mut tx, mut rx) = pair(&mut memory, 16);
        assert_eq!(rx.read(&mut [0; 4]), 0);
        assert_eq!(tx.write(&[1; 20]), 16);
        assert_eq!(tx.write(&[1; 20]), 0);
        assert_eq!(rx.read(&mut [0; 40]), 16);
    }

    #[test]
    fn two_threads() {
        let mut memory = Vec::new();
        let (mut tx, mut rx) = pair(&mut memory, 128);
        let total = if cfg!(miri) { 2_000 } else { 300_000 };
        std::thread::scope(|scope| {
            scope.spawn(move || {
                let mut n = 0usize;
                while n < total {
                    let bytes: Vec<u8> = (n..(n + 50).min(total)).map(|i| (i * 7) as u8).collect();
                    n += tx.write(&bytes);
                    std::thread::yield_now();
                }
            });
            let mut seen = 0usize;
            let mut buffer = [0u8; 61];
            while seen < total {
                let n = rx.read(&mut buffer);
                for b in &buffer[..n] {
                    assert_eq!(*b, (seen * 7) as u8);
                    seen += 1;
                }
                if n == 0 {
                    std::thread::yield_now();
                }
            }
        });
    }
}
