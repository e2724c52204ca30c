//! A plain TCP connection on which nothing can be changed unnoticed.
//!
//! ```text
//! frame   length (4 bytes) · payload (1 byte to 16 KiB) · MAC(direction's key: number of the frame, length, payload), 16 bytes
//! ```
//! The keys come from the handshake: fresh for each connection, one for each direction. Frames are numbered, so none can be
//! left out, repeated, or put elsewhere. A frame that is wrong ends the connection; its payload is never given to anyone.
//!
//! For what *decides* something: requests to the store, messages, agreement. Others can still read it; where they must not,
//! there is TLS.

use std::os::fd::BorrowedFd;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

use super::plain::TcpStream;
use crate::secret::Secret;
use crate::stream::{Broken, Stream};

/// The longest payload of a frame.
const MOST: usize = 16 * 1024;
const LENGTH: usize = 4;
const TAG: usize = 16;
/// How much may wait to be sent.
const HELD: usize = 4 * MOST;

const CHANGED: &str = "what came from it over the network is not what it sent: something between the hosts has changed it. Find \
                       out what that is; with CORRO_TLS=1 nobody can read the traffic either";

/// One direction: its key, and how many frames it has had.
struct Direction {
    keyed: Hmac<Sha256>,
    frames: u64,
}

impl Direction {
    fn new(session: &Secret, name: &str) -> Self {
        let keyed = Hmac::<Sha256>::new_from_slice(&session.derive(name)).expect("HMAC takes keys of any length");
        Self { keyed, frames: 0 }
    }

    /// The MAC over the next frame.
    fn next(&mut self, length: &[u8], payload: &[u8]) -> Hmac<Sha256> {
        let mut mac = self.keyed.clone();
        mac.update(&self.frames.to_le_bytes());
        mac.update(length);
        mac.update(payload);
        self.frames += 1;
        mac
    }
}

/// See the module.
pub(crate) struct SealedStream {
    inner: TcpStream,
    outgoing: Direction,
    incoming: Direction,
    /// Frames, of which `sent` bytes are on their way.
    output: Vec<u8>,
    sent: usize,
    /// What has come and is not a whole frame yet.
    input: Vec<u8>,
    /// A payload, of which `given` bytes were read.
    opened: Vec<u8>,
    given: usize,
    broken: Option<Broken>,
}

impl SealedStream {
    /// Goes on with a connection whose handshake has ended; `session` is its key, the same at both ends.
    pub(crate) fn new(inner: TcpStream, session: &Secret, dialled: bool) -> Self {
        let (to_server, to_client) = (Direction::new(session, "to server"), Direction::new(session, "to client"));
        let (outgoing, incoming) = if dialled { (to_server, to_client) } else { (to_client, to_server) };
        let (output, input, opened) = (Vec::new(), Vec::new(), Vec::new());
        Self { inner, outgoing, incoming, output, sent: 0, input, opened, given: 0, broken: None }
    }

    pub(crate) fn tcp(&self) -> &std::net::TcpStream {
        self.inner.tcp()
    }

    /// Whether something waits to be sent.
    pub(crate) fn holds_output(&self) -> bool {
        self.sent < self.output.len()
    }

    fn seal(&mut self, payload: &[u8]) {
        let length = (payload.len() as u32).to_le_bytes();
        let tag = self.outgoing.next(&length, payload).finalize().into_bytes();
        self.output.extend_from_slice(&length);
        self.output.extend_from_slice(payload);
        self.output.extend_from_slice(&tag[..TAG]);
    }

    /// Opens the next frame, if all of it has come. True if one was opened.
    fn open(&mut self) -> Result<bool, Broken> {
        let changed = || Broken(CHANGED.into());
        let Some((length, rest)) = self.input.split_first_chunk::<LENGTH>() else { return Ok(false) };
        let bytes = u32::from_le_bytes(*length) as usize;
        if bytes == 0 || bytes > MOST {
            return Err(changed());
        }
        let Some((payload, tag)) = rest.get(..bytes + TAG).map(|frame| frame.split_at(bytes)) else { return Ok(false) };
        if self.incoming.next(length, payload).verify_truncated_left(tag).is_err() {
            return Err(changed());
        }
        self.opened.clear();
        self.opened.extend_from_slice(payload);
        self.given = 0;
        self.input.drain(..LENGTH + bytes + TAG);
        Ok(true)
    }

    /// Opened bytes; if there are none, those of the next frame; none if that has not come.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        let mut came = [0; MOST];
        while self.given == self.opened.len() {
            if self.open()? {
                break;
            }
            match self.inner.try_read(&mut came)? {
                0 => return Ok(0),
                count => self.input.extend_from_slice(&came[..count]),
            }
        }
        let count = into.len().min(self.opened.len() - self.given);
        into[..count].copy_from_slice(&self.opened[self.given..self.given + count]);
        self.given += count;
        Ok(count)
    }

    fn push(&mut self) -> Result<bool, Broken> {
        while self.holds_output() {
            match self.inner.try_write(&self.output[self.sent..])? {
                0 => return Ok(false),
                count => self.sent += count,
            }
        }
        self.output.clear();
        self.sent = 0;
        Ok(true)
    }

    fn intact(&self) -> Result<(), Broken> {
        self.broken.clone().map_or(Ok(()), Err)
    }

    fn note<T>(&mut self, outcome: Result<T, Broken>) -> Result<T, Broken> {
        outcome.inspect_err(|broken| self.broken = Some(broken.clone()))
    }
}

impl Stream for SealedStream {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        self.intact()?;
        let mut taken = 0;
        while taken < bytes.len() && self.output.len() - self.sent < HELD {
            let count = (bytes.len() - taken).min(MOST);
            self.seal(&bytes[taken..taken + count]);
            taken += count;
        }
        self.try_flush()?;
        Ok(taken)
    }

    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        self.intact()?;
        if into.is_empty() {
            return Ok(0);
        }
        let outcome = self.read(into);
        self.note(outcome)
    }

    fn try_flush(&mut self) -> Result<bool, Broken> {
        self.intact()?;
        let outcome = self.push();
        self.note(outcome)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.inner.fd()
    }

    fn writable_by_poll(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<(), Broken> {
        self.intact()?;
        let outcome = self.inner.check();
        self.note(outcome)
    }
}

impl std::fmt::Debug for SealedStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SealedStream").field("inner", &self.inner).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream as Tcp};

    use proptest::prelude::*;

    use super::*;

    fn pair() -> (Tcp, Tcp) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = Tcp::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    fn sealed(socket: Tcp, dialled: bool) -> SealedStream {
        SealedStream::new(TcpStream::new(socket).unwrap(), &Secret::from_bytes([5; 32]), dialled)
    }

    fn soon<T>(mut attempt: impl FnMut() -> Option<T>) -> T {
        let start = std::time::Instant::now();
        loop {
            if let Some(value) = attempt() {
                return value;
            }
            assert!(start.elapsed().as_secs() < 20, "nothing came");
            std::thread::yield_now();
        }
    }

    /// The bytes of `messages` on the wire.
    fn frames(messages: &[&[u8]]) -> Vec<u8> {
        let (one, mut other) = pair();
        let mut stream = sealed(one, true);
        for message in messages {
            assert_eq!(stream.try_write(message).unwrap(), message.len());
        }
        drop(stream);
        let mut wire = Vec::new();
        other.read_to_end(&mut wire).unwrap();
        wire
    }

    /// What is read if these bytes come, until the end or an error.
    fn read_all(wire: &[u8]) -> (Vec<u8>, Broken) {
        let (mut one, other) = pair();
        let mut stream = sealed(other, false);
        one.write_all(wire).unwrap();
        drop(one);
        let mut all = Vec::new();
        let broken = soon(|| {
            let mut bytes = [0; 1000];
            match stream.try_read(&mut bytes) {
                Ok(count) => all.extend_from_slice(&bytes[..count]),
                Err(broken) => return Some(broken),
            }
            None
        });
        (all, broken)
    }

    #[test]
    fn long_data_goes_both_ways_whole() {
        let (one, other) = pair();
        let (mut one, mut other) = (sealed(one, true), sealed(other, false));
        let data: Vec<u8> = (0..300_000u32).map(|i| (i * 7) as u8).collect();
        for _ in 0..2 {
            let (mut sent, mut came) = (0, Vec::new());
            soon(|| {
                sent += one.try_write(&data[sent..]).unwrap();
                one.try_flush().unwrap();
                let mut bytes = [0; 5000];
                let count = other.try_read(&mut bytes).unwrap();
                came.extend_from_slice(&bytes[..count]);
                (came.len() == data.len()).then_some(())
            });
            assert!(came == data);
            std::mem::swap(&mut one, &mut other);
        }
    }

    #[test]
    fn frames_that_are_repeated_left_out_or_turned_back_are_refused() {
        let (a, b) = (frames(&[b"one"]), frames(&[b"one", b"two"]));
        let second = &b[a.len()..];
        assert_eq!(read_all(&b).0, b"onetwo");
        for wrong in [[a.as_slice(), &a].concat(), second.to_vec(), [second, &a].concat()] {
            let (read, broken) = read_all(&wrong);
            assert!(read.is_empty() || read == b"one", "{read:?}");
            assert_eq!(broken.0, CHANGED);
        }
        // What one side sent comes back to it.
        let (mut one, other) = pair();
        one.write_all(&a).unwrap();
        let mut stream = sealed(other, true);
        assert_eq!(soon(|| stream.try_read(&mut [0; 9]).err()).0, CHANGED);
        assert_eq!(stream.try_read(&mut [0; 9]).unwrap_err().0, CHANGED, "it stays broken");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn no_changed_byte_gets_through(at in 0usize..60, bit in 0u8..8) {
            let mut wire = frames(&[b"a first message", b"a second"]);
            let at = at % wire.len();
            wire[at] ^= 1 << bit;
            let (read, _) = read_all(&wire);
            let first = LENGTH + 15 + TAG;
            let whole: &[u8] = if at < first { b"" } else { b"a first message" };
            prop_assert_eq!(read, whole);
        }
    }
}
