//! Byte streams between members of a team, through the rings of the shared segment.
//!
//! A stream is a pair of rings. Who is about to sleep arms its rings; the peer that then writes or reads rings the
//! sleeper's doorbell (an eventfd), so these streams can be slept on together with sockets.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use corro_core::Error;

use super::segment::{ControlWord, Segment};
use super::team::{Hosts, Member, has_exited, poisoned};
use crate::ring::Ring;
use crate::stream::{Broken, Stream};

/// The doorbells of a team, one per member, known to all.
pub(crate) type Doorbells = Arc<Vec<OwnedFd>>;

pub(crate) struct RingStream {
    outgoing: Ring,
    incoming: Ring,
    me: usize,
    peer: usize,
    doorbells: Doorbells,
    who: Member,
    hosts: Hosts,
    /// Keeps the rings' memory mapped.
    segment: Arc<Segment>,
}

impl RingStream {
    /// The stream from `me` to `peer`, both members of `segment`. `who` describes the peer.
    #[expect(unsafe_code, reason = "takes the rings out of the segment")]
    pub(crate) fn new(
        segment: Arc<Segment>,
        me: usize,
        peer: usize,
        doorbells: Doorbells,
        who: Member,
        hosts: Hosts,
    ) -> Self {
        let capacity = segment.sizes().ring;
        // SAFETY: the segment lives as long as the stream; its layout keeps one ring per ordered pair of members, of
        // which only this stream of `me` writes one and reads the other (a channel makes one stream per peer).
        let (outgoing, incoming) =
            unsafe { (Ring::new(segment.ring(me, peer), capacity), Ring::new(segment.ring(peer, me), capacity)) };
        Self { outgoing, incoming, me, peer, doorbells, who, hosts, segment }
    }

    fn ring_peer(&self) {
        // A full counter (never in practice) means it is ringing already.
        let _ = rustix::io::write(&self.doorbells[self.peer], &1u64.to_ne_bytes());
    }
}

impl Drop for RingStream {
    fn drop(&mut self) {
        // Streams are dropped when their channel is given up: peers need not wait for the deadline to learn it.
        self.segment.word(self.me, ControlWord::State).store(1, Ordering::SeqCst);
        self.ring_peer();
    }
}

impl Stream for RingStream {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        let n = self.outgoing.write(bytes);
        if n > 0 && self.outgoing.reader_wants_bell() {
            self.ring_peer();
        }
        Ok(n)
    }

    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        let n = self.incoming.read(into);
        if n > 0 && self.incoming.writer_wants_bell() {
            self.ring_peer();
        }
        Ok(n)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.doorbells[self.me].as_fd()
    }

    fn writable_by_poll(&self) -> bool {
        false
    }

    fn arm(&mut self) {
        self.incoming.arm_reader();
        self.outgoing.arm_writer();
    }

    fn disarm(&mut self) {
        // The peer takes the mark away when it rings; while it is there, nobody has rung for this stream.
        let (unread, unwritten) = (self.incoming.disarm_reader(), self.outgoing.disarm_writer());
        if !(unread && unwritten) {
            self.silence();
        }
    }

    fn silence(&mut self) {
        // Non-blocking: empties the counter. A ring that comes later only wakes once more.
        let _ = rustix::io::read(&self.doorbells[self.me], &mut [0u8; 8]);
    }

    fn exit_fd(&self) -> Option<BorrowedFd<'_>> {
        self.who.exit.as_ref().map(AsFd::as_fd)
    }

    fn culprit(&self) -> Option<Error> {
        poisoned(&self.segment, &self.hosts)
    }

    fn check(&mut self) -> Result<(), Broken> {
        if let Some(error) = self.culprit() {
            return Err(Broken(error.to_string()));
        }
        if has_exited(&self.who) {
            return Err(Broken("its process has exited".into()));
        }
        if self.segment.word(self.peer, ControlWord::State).load(Ordering::SeqCst) != 0 {
            return Err(Broken("it has left the group".into()));
        }
        Ok(())
    }
}
