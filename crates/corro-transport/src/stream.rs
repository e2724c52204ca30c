//! The one word every transport speaks: a non-blocking byte stream to one peer.
//!
//! A transport (`mem`, `shm`, `tcp`, `tls`) is a way to get such a stream; everything above is written once. Streams never
//! wait: whoever drives them decides how to (see the executor of `corro-collectives`), by spinning, or by sleeping in `poll` on [`Stream::fd`].

use std::os::fd::BorrowedFd;

use corro_core::Error;

/// Why a stream is of no more use, in words that read after "lost rank 3 on node7: ".
///
/// The stream does not know whom it leads to; its driver adds that.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken(pub String);

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

/// A reliable, ordered byte stream to one peer, both ways, that never blocks.
///
/// After an error a stream stays broken.
pub trait Stream: Send {
    /// Takes as many bytes as fit now and says how many; 0 when none do.
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken>;

    /// Gives as many bytes as have come and says how many; 0 when none have.
    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken>;

    /// As `try_write` of `first` and then `second`, in one system call where there is one.
    fn try_write_both(&mut self, first: &[u8], second: &[u8]) -> Result<usize, Broken> {
        let count = self.try_write(first)?;
        if count < first.len() { Ok(count) } else { Ok(count + self.try_write(second)?) }
    }

    /// As `try_read` into `first` and then `second`, in one system call where there is one.
    fn try_read_both(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Broken> {
        let count = self.try_read(first)?;
        if count < first.len() { Ok(count) } else { Ok(count + self.try_read(second)?) }
    }

    /// Pushes on what `try_write` took but still holds inside (TLS records). True when nothing is held any more.
    fn try_flush(&mut self) -> Result<bool, Broken> {
        Ok(true)
    }

    /// What to sleep on: readable when `try_read` may give bytes or when the stream broke.
    fn fd(&self) -> BorrowedFd<'_>;

    /// Whether `fd` becomes *writable* when `try_write` or `try_flush` may go on. Where it does not (rings in memory),
    /// it becomes readable for both.
    fn writable_by_poll(&self) -> bool;

    /// Called before sleeping on `fd`: asks the peer to ring. The driver tries once more after this, then sleeps.
    fn arm(&mut self) {}

    /// Called after sleeping: takes the ring off `fd` again.
    fn disarm(&mut self) {}

    /// Called when `fd` was found readable, before looking what has come: takes off a ring that came after `disarm`. The peer had
    /// been asked for it, and what it rang for was found without it. Nobody else would take it off, and who sleeps on
    /// `fd` would never sleep again.
    fn silence(&mut self) {}

    /// Readable once the peer's process has exited, where `fd` would not tell.
    fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// If this stream broke because of a third rank, the error that names it.
    fn culprit(&self) -> Option<Error> {
        None
    }

    /// Called now and then while nothing moves: an error if the peer is known to be gone. Sockets need not answer;
    /// they break by themselves.
    fn check(&mut self) -> Result<(), Broken> {
        Ok(())
    }
}
