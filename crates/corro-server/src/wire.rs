//! One connection of frames: bytes of a stream in, frames out; frames in, bytes out. Never waits.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use corro_core::Result;
use corro_transport::{Broken, Stream};
use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::frame::{Reader, encode};
use crate::protocol::Payload;

/// How much of one connection is read before others get their turn.
const TURN_BYTES: usize = 8 << 20;
/// Shorter payloads are copied behind their heads, and such frames are sent together.
const SHORT: usize = 4096;
/// How long frames that are sent together may be.
const TOGETHER: usize = 64 * 1024;

/// A connection on which `Heard` comes.
pub(crate) struct Wire<Heard> {
    stream: Box<dyn Stream>,
    reader: Reader<Heard>,
    /// Bytes, and the payload that follows them.
    output: VecDeque<(Vec<u8>, Payload)>,
    /// Bytes of the first of them that are on their way.
    sent: usize,
    waiting: usize,
    flushed: bool,
    /// Bytes that went in and out.
    pub(crate) moved: (u64, u64),
    /// What came was no frame.
    pub(crate) nonsense: bool,
}

impl<Heard: DeserializeOwned> Wire<Heard> {
    pub(crate) fn new(stream: Box<dyn Stream>) -> Self {
        // All workers send to one server at a time, and it waits for the last of them. BBR shares a link less evenly between them than
        // cubic, which every Linux has: rounds took a quarter longer. No matter if it can't be had.
        let _ = rustix::net::sockopt::set_tcp_congestion(stream.fd(), "cubic");
        let (reader, output) = (Reader::default(), VecDeque::new());
        Self { stream, reader, output, sent: 0, waiting: 0, flushed: true, moved: (0, 0), nonsense: false }
    }

    /// Queues a frame.
    pub(crate) fn say<Said: Serialize>(&mut self, head: &Said, payload: Payload) -> Result<()> {
        let mut head = encode(head, payload.len())?;
        self.waiting += head.len() + payload.len();
        let short = payload.len() < SHORT;
        if short {
            head.extend_from_slice(&payload);
        }
        let payload = if short { Payload::default() } else { payload };
        match self.output.back_mut() {
            Some((last, after)) if after.is_empty() && last.len() < TOGETHER => {
                last.append(&mut head);
                *after = payload;
            }
            _ => self.output.push_back((head, payload)),
        }
        Ok(())
    }

    /// Sends what can be sent now.
    pub(crate) fn flush(&mut self) -> Result<(), Broken> {
        while let Some((head, payload)) = self.output.front() {
            let in_head = self.sent.min(head.len());
            let in_payload = self.sent - in_head;
            let count = self.stream.try_write_both(&head[in_head..], &payload[in_payload..])?;
            self.sent += count;
            self.waiting -= count;
            self.moved.1 += count as u64;
            if self.sent == head.len() + payload.len() {
                self.output.pop_front();
                self.sent = 0;
            } else if count == 0 {
                break;
            }
        }
        self.flushed = self.stream.try_flush()?;
        Ok(())
    }

    /// Reads what has come, and gives each frame to `hear`. True if there may be more at once.
    pub(crate) fn read(&mut self, mut hear: impl FnMut(Heard, Payload) -> Result<()>) -> Result<bool, Broken> {
        let wrong = |e: corro_core::Error| Broken(e.to_string());
        let mut turn = 0;
        while turn < TURN_BYTES {
            let count = self.stream.try_read(self.reader.room())?;
            if count == 0 {
                return Ok(false);
            }
            turn += count;
            self.moved.0 += count as u64;
            self.reader.filled(count);
            loop {
                let frame = self.reader.next_frame();
                self.nonsense |= frame.is_err();
                let Some((said, payload)) = frame.map_err(wrong)? else { break };
                hear(said, payload).map_err(wrong)?;
            }
        }
        Ok(true)
    }

    /// Bytes that wait to be sent.
    pub(crate) const fn waiting(&self) -> usize {
        self.waiting
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.stream.fd()
    }

    /// What to poll for.
    pub(crate) fn interest(&self) -> PollFlags {
        let idle = self.output.is_empty() && self.flushed;
        if idle { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
    }
}
