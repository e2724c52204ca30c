//! Large memory that is used again.
//!
//! The C library gives a large piece of memory back to the system at once when it is freed. Whoever needs the same next
//! step gets it page by page, each cleared first: for a tensor of 64 MiB that takes about as long as reducing it. A
//! [`Blocks`] keeps what comes back for the next one who asks, but never so much that all of it together, in use or not,
//! is more than what was in use at one time.

#![expect(unsafe_code, reason = "owns memory that others write through pointers")]

use std::alloc::{Layout, alloc, dealloc};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

/// Blocks begin at a multiple of this: a large page of the system.
pub const ALIGNMENT: usize = 2 << 20;

/// A block may be this part larger than what was asked for, so that sizes that differ a little share blocks.
const SLACK: usize = 8;

/// See the module.
#[derive(Debug)]
pub struct Blocks {
    books: Arc<Mutex<Books>>,
    prepare: Prepare,
}

/// What is done with new memory before anybody touches it: this crate speaks to no system.
pub type Prepare = fn(*mut u8, usize);

#[derive(Debug, Default)]
struct Books {
    /// What came back, the oldest first.
    free: Vec<Memory>,
    in_use: usize,
    /// The most that was in use at one time.
    most: usize,
}

/// A block in use. Comes back when it is dropped, on whichever thread that is.
#[derive(Debug)]
pub struct Block {
    memory: Option<Memory>,
    home: Arc<Mutex<Books>>,
}

#[derive(Debug)]
struct Memory {
    at: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a piece of memory that belongs to one owner, on any thread.
unsafe impl Send for Memory {}

impl Memory {
    fn new(bytes: usize, prepare: Prepare) -> Option<Self> {
        let layout = Layout::from_size_align(bytes, ALIGNMENT).ok()?;
        // SAFETY: at least one byte, which `take` sees to; all of it is written before anybody reads it.
        unsafe {
            let at = NonNull::new(alloc(layout))?;
            prepare(at.as_ptr(), bytes);
            at.write_bytes(0, bytes);
            Some(Self { at, layout })
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: came from `alloc` with this layout, and this is its owner.
        unsafe { dealloc(self.at.as_ptr(), self.layout) }
    }
}

impl Blocks {
    /// None yet.
    pub fn new(prepare: Prepare) -> Self {
        Self { books: Arc::default(), prepare }
    }

    /// At least `bytes` bytes, of any content; `None` if there is not so much memory.
    pub fn take(&self, bytes: usize) -> Option<Block> {
        let bytes = bytes.max(1);
        let mut books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        let fits = |memory: &Memory| (bytes..=bytes.saturating_add(bytes / SLACK)).contains(&memory.layout.size());
        // The newest is the likeliest to be in a cache.
        let memory = match books.free.iter().rposition(fits) {
            Some(i) => books.free.remove(i),
            None => Memory::new(bytes, self.prepare)?,
        };
        books.in_use += memory.layout.size();
        books.most = books.most.max(books.in_use);
        let surplus = books.surplus();
        drop(books);
        drop(surplus);
        Some(Block { memory: Some(memory), home: Arc::clone(&self.books) })
    }

    /// How many bytes there are, in use or not.
    pub fn bytes(&self) -> usize {
        let books = self.books.lock().unwrap_or_else(PoisonError::into_inner);
        books.in_use + books.kept()
    }
}

impl Books {
    fn kept(&self) -> usize {
        self.free.iter().map(|memory| memory.layout.size()).sum()
    }

    /// Takes out what is too much.
    fn surplus(&mut self) -> Vec<Memory> {
        let mut rest = self.kept();
        let too_many = self.free.iter().take_while(|memory| {
            let too_much = self.in_use + rest > self.most;
            rest -= memory.layout.size();
            too_much
        });
        let too_many = too_many.count();
        self.free.drain(..too_many).collect()
    }
}

impl Block {
    /// Where it is: valid for reads and writes for as long as this lives.
    pub fn as_ptr(&self) -> *mut u8 {
        self.memory.as_ref().map_or(std::ptr::null_mut(), |memory| memory.at.as_ptr())
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        let Some(memory) = self.memory.take() else { return };
        let mut books = self.home.lock().unwrap_or_else(PoisonError::into_inner);
        books.in_use -= memory.layout.size();
        books.free.push(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_comes_back_and_is_used_again() {
        let blocks = Blocks::new(|_, _| ());
        let first = blocks.take(1000).unwrap();
        let at = first.as_ptr();
        assert!(at.addr().is_multiple_of(ALIGNMENT));
        drop(first);
        let again = blocks.take(990).unwrap();
        assert_eq!((again.as_ptr(), blocks.bytes()), (at, 1000), "a little smaller will do");
        drop(again);
        let smaller = blocks.take(500).unwrap();
        assert_ne!(smaller.as_ptr(), at, "much smaller would be a waste");
    }

    #[test]
    fn no_more_is_kept_than_was_in_use_at_one_time() {
        let blocks = Blocks::new(|_, _| ());
        let two = [blocks.take(1000).unwrap(), blocks.take(2000).unwrap()];
        assert_eq!(blocks.bytes(), 3000);
        drop(two);
        let other = blocks.take(2900).unwrap();
        assert_eq!(blocks.bytes(), 2900, "what is kept makes room");
        drop(other);
        assert_eq!(blocks.bytes(), 2900);
        for bytes in (1..100).chain((1..100).rev()) {
            let some = [blocks.take(bytes * 10).unwrap(), blocks.take(bytes * 7).unwrap()];
            assert!(blocks.bytes() <= 3000);
            drop(some);
            assert!(blocks.bytes() <= 3000);
        }
    }

    #[test]
    fn a_block_outlives_its_store_and_too_much_is_refused() {
        let blocks = Blocks::new(|_, _| ());
        let block = blocks.take(0).unwrap();
        assert!(blocks.take(usize::MAX).is_none());
        drop(blocks);
        assert!(!block.as_ptr().is_null());
    }
}
