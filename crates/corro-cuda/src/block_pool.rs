//! Memory that is not in use, for the next who needs some: allocating it, and giving it back, has a GPU finish all its work first.

use std::sync::{Arc, Mutex, PoisonError};

use corro_core::Result;

/// What a pool keeps.
pub trait Block {
    /// How many bytes it has.
    fn bytes(&self) -> usize;
}

/// See the module. Clones share one pool.
///
/// Whoever gives a piece back must have no work under way on it: hold the [`Lease`] until a stream is done.
pub struct BlockPool<T: Block> {
    unused: Arc<Mutex<Vec<T>>>,
    /// So many bytes stay; what has lain there longest goes first.
    limit: usize,
}

impl<T: Block> Clone for BlockPool<T> {
    fn clone(&self) -> Self {
        Self { unused: Arc::clone(&self.unused), limit: self.limit }
    }
}

impl<T: Block> BlockPool<T> {
    /// An empty one, which keeps up to so many bytes.
    pub fn new(limit: usize) -> Self {
        Self { unused: Arc::default(), limit }
    }

    /// A piece of at least so many bytes, from the pool or from `make`. If that fails, everything in the pool is let go, and it
    /// may try again.
    pub fn take(&self, bytes: usize, make: impl Fn(usize) -> Result<T>) -> Result<Lease<T>> {
        let size = bytes.max(MIN).next_power_of_two();
        let found = {
            let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
            // The last that came is the likeliest to be in some cache.
            let found = unused.iter().rposition(|piece| (bytes..=2 * size).contains(&piece.bytes()));
            found.map(|at| unused.remove(at))
        };
        let piece = match found {
            Some(piece) => piece,
            None => make(size).or_else(|error| {
                let unused = std::mem::take(&mut *self.unused.lock().unwrap_or_else(PoisonError::into_inner));
                if unused.is_empty() {
                    return Err(error);
                }
                drop(unused);
                make(bytes.max(1))
            })?,
        };
        Ok(Lease { piece: Some(piece), pool: self.clone() })
    }

    fn put(&self, piece: T) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        unused.push(piece);
        let mut gone = Vec::new();
        while unused.iter().map(Block::bytes).sum::<usize>() > self.limit {
            gone.push(unused.remove(0));
        }
        drop(unused);
        // Giving memory back takes its time: not under the lock.
        drop(gone);
    }
}

/// The smallest piece.
const MIN: usize = 512;

/// A piece in use; goes back to its pool when it is dropped.
pub struct Lease<T: Block> {
    piece: Option<T>,
    pool: BlockPool<T>,
}

impl<T: Block> Lease<T> {
    /// What was taken. (There is always one: it leaves only with the lease.)
    pub fn get(&self) -> Option<&T> {
        self.piece.as_ref()
    }

    /// As [`Lease::get`], to write to it.
    pub fn get_mut(&mut self) -> Option<&mut T> {
        self.piece.as_mut()
    }
}

impl<T: Block> Drop for Lease<T> {
    fn drop(&mut self) {
        if let Some(piece) = self.piece.take() {
            self.pool.put(piece);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use corro_core::Error;

    use super::*;

    struct Made(usize);

    impl Block for Made {
        fn bytes(&self) -> usize {
            self.0
        }
    }

    #[test]
    fn what_is_given_back_is_used_again_if_it_fits() {
        let pool = BlockPool::new(1 << 20);
        let count = Cell::new(0);
        let make = |bytes| {
            count.set(count.get() + 1);
            Ok(Made(bytes))
        };
        drop(pool.take(1000, make).unwrap());
        for (bytes, so_far) in [(1024, 1), (600, 1), (1025, 2), (10, 2), (512, 2), (0, 2), (10_000, 3)] {
            let lease = pool.take(bytes, make).unwrap();
            assert!(lease.get().unwrap().bytes() >= bytes);
            assert_eq!(count.get(), so_far, "{bytes}");
        }
    }

    #[test]
    fn more_than_the_limit_does_not_stay() {
        let pool = BlockPool::new(3000);
        let leases: Vec<_> = (0..4).map(|_| pool.take(1000, |bytes| Ok(Made(bytes))).unwrap()).collect();
        drop(leases);
        assert_eq!(pool.unused.lock().unwrap().len(), 2);
    }

    #[test]
    fn where_there_is_no_more_what_lies_unused_is_let_go() {
        let pool = BlockPool::new(1 << 20);
        drop(pool.take(5000, |bytes| Ok(Made(bytes))).unwrap());
        let full = |bytes| {
            let there = pool.unused.lock().unwrap().len();
            if there > 0 { Err(Error::Usage("full".into())) } else { Ok(Made(bytes)) }
        };
        assert_eq!(pool.take(100_000, full).unwrap().get().unwrap().bytes(), 100_000);
        assert!(pool.take(100, |_| Err(Error::Usage("none at all".into()))).is_err());
    }
}
