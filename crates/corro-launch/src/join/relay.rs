//! Bytes both ways between a connection, which never waits, and one of a pair of local sockets, at which others may.

use std::io::{ErrorKind, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use corro_transport::listener;
use corro_transport::{Broken, Stream};
use rustix::event::{PollFd, PollFlags};

/// How much may wait in one direction.
const ROOM: usize = 1 << 20;
/// How long the last bytes may take when the local side has ended.
const LAST_BYTES: Duration = Duration::from_secs(5);

/// One direction.
#[derive(Default)]
struct Flow {
    waiting: Vec<u8>,
    /// No more will come.
    ended: bool,
}

impl Flow {
    fn has_room(&self) -> bool {
        !self.ended && self.waiting.len() < ROOM
    }
}

/// Passes bytes on until one side has ended, and what it said before has arrived. `already` has come from the connection.
pub(super) fn run(mut stream: Box<dyn Stream>, already: Vec<u8>, local: &UnixStream) {
    if local.set_nonblocking(true).is_err() {
        return;
    }
    let (mut out, mut back) = (Flow::default(), Flow { waiting: already, ended: false });
    let mut give_up = None;
    loop {
        let flushed = move_all(stream.as_mut(), local, &mut out, &mut back);
        let now = Instant::now();
        if out.ended {
            let until = *give_up.get_or_insert(now + LAST_BYTES);
            if (out.waiting.is_empty() && flushed) || now >= until {
                return;
            }
        }
        if back.ended && back.waiting.is_empty() {
            return;
        }
        let wants = |read: bool, write: bool| {
            let mut flags = PollFlags::empty();
            flags.set(PollFlags::IN, read);
            flags.set(PollFlags::OUT, write);
            flags
        };
        let mut fds =
            vec![PollFd::from_borrowed_fd(stream.fd(), wants(back.has_room(), !out.waiting.is_empty() || !flushed))];
        if !out.ended {
            fds.push(PollFd::from_borrowed_fd(local.as_fd(), wants(out.has_room(), !back.waiting.is_empty())));
        }
        if listener::sleep(&mut fds, give_up.map(|until| until.saturating_duration_since(now))).is_err() {
            return;
        }
    }
}

/// Gives to the connection what it takes now, and whether it holds nothing back.
fn send(stream: &mut dyn Stream, out: &mut Flow) -> Result<bool, Broken> {
    while !out.waiting.is_empty() {
        match stream.try_write(&out.waiting)? {
            0 => break,
            count => drop(out.waiting.drain(..count)),
        }
    }
    stream.try_flush()
}

/// Moves what can be moved now. Gives whether the connection holds nothing back.
fn move_all(stream: &mut dyn Stream, mut local: &UnixStream, out: &mut Flow, back: &mut Flow) -> bool {
    let mut bytes = [0; 16 * 1024];
    while out.has_room() {
        match local.read(&mut bytes) {
            Ok(0) => out.ended = true,
            Ok(count) => out.waiting.extend_from_slice(&bytes[..count]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            Err(_) => out.ended = true,
        }
    }
    let sent = send(stream, out);
    while back.has_room() {
        match stream.try_read(&mut bytes) {
            Ok(0) => break,
            Ok(count) => back.waiting.extend_from_slice(&bytes[..count]),
            Err(_) => back.ended = true,
        }
    }
    let flushed = sent.unwrap_or_else(|_| {
        // It takes no more; what it has said before is still passed on.
        out.waiting.clear();
        back.ended = true;
        true
    });
    while !back.waiting.is_empty() {
        match local.write(&back.waiting) {
            Ok(count @ 1..) => drop(back.waiting.drain(..count)),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) if e.kind() == ErrorKind::WouldBlock => break,
            // It has ended; what it said before is still passed on.
            Ok(_) | Err(_) => {
                back.waiting.clear();
                out.ended = true;
            }
        }
    }
    flushed
}
