//! A plain TCP connection: its options, and its errors in words.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use corro_core::{Error, Result};

use crate::stream::{Broken, Stream};

/// What a read of zero bytes means.
pub(crate) const CLOSED: &str = "the connection was closed; the process has probably exited";

/// A plain TCP connection as a [`Stream`].
#[derive(Debug)]
pub struct TcpStream {
    socket: std::net::TcpStream,
    broken: Option<Broken>,
}

impl TcpStream {
    /// Takes a connected socket and makes it non-blocking.
    pub fn new(socket: std::net::TcpStream) -> Result<Self> {
        Ok(Self { socket: prepared(socket)?, broken: None })
    }

    pub(crate) fn tcp(&self) -> &std::net::TcpStream {
        &self.socket
    }

    fn note<T>(&mut self, outcome: Result<T, Broken>) -> Result<T, Broken> {
        outcome.inspect_err(|broken| self.broken = Some(broken.clone()))
    }

    fn intact(&self) -> Result<(), Broken> {
        self.broken.clone().map_or(Ok(()), Err)
    }
}

impl Stream for TcpStream {
    fn try_write(&mut self, bytes: &[u8]) -> Result<usize, Broken> {
        self.intact()?;
        let outcome = write_some(&mut self.socket, bytes);
        self.note(outcome)
    }

    fn try_read(&mut self, into: &mut [u8]) -> Result<usize, Broken> {
        self.intact()?;
        if into.is_empty() {
            return Ok(0);
        }
        let outcome = read_some(&mut self.socket, into);
        self.note(outcome)
    }

    fn try_write_both(&mut self, first: &[u8], second: &[u8]) -> Result<usize, Broken> {
        self.intact()?;
        let parts = [IoSlice::new(first), IoSlice::new(second)];
        let outcome = some_written(|| self.socket.write_vectored(&parts));
        self.note(outcome)
    }

    fn try_read_both(&mut self, first: &mut [u8], second: &mut [u8]) -> Result<usize, Broken> {
        self.intact()?;
        if first.is_empty() && second.is_empty() {
            return Ok(0);
        }
        let mut parts = [IoSliceMut::new(first), IoSliceMut::new(second)];
        let outcome = some_read(|| self.socket.read_vectored(&mut parts));
        self.note(outcome)
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    fn writable_by_poll(&self) -> bool {
        true
    }

    fn check(&mut self) -> Result<(), Broken> {
        self.intact()?;
        let outcome = answers(&self.socket);
        self.note(outcome)
    }
}

/// An error if the other host has been silent for long although it was asked.
pub(crate) fn answers(socket: &std::net::TcpStream) -> Result<(), Broken> {
    if super::health::is_silent(socket) {
        return Err(Broken("its host has stopped answering; it has probably crashed or lost its network".into()));
    }
    Ok(())
}

/// Writes what fits now; 0 when nothing does.
pub(crate) fn write_some(socket: &mut impl Write, bytes: &[u8]) -> Result<usize, Broken> {
    if bytes.is_empty() {
        return Ok(0);
    }
    some_written(|| socket.write(bytes))
}

fn some_written(mut write: impl FnMut() -> std::io::Result<usize>) -> Result<usize, Broken> {
    loop {
        match write() {
            Ok(count) => return Ok(count),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(0),
            Err(e) => return Err(Broken(words(&e))),
        }
    }
}

/// Reads what has come; 0 when nothing has. The end of the stream is an error. `into` must not be empty.
pub(crate) fn read_some(socket: &mut impl Read, into: &mut [u8]) -> Result<usize, Broken> {
    some_read(|| socket.read(into))
}

fn some_read(mut read: impl FnMut() -> std::io::Result<usize>) -> Result<usize, Broken> {
    loop {
        match read() {
            Ok(0) => return Err(Broken(CLOSED.into())),
            Ok(count) => return Ok(count),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(0),
            Err(e) => return Err(Broken(words(&e))),
        }
    }
}

/// A socket's error in words that read after "lost rank 3 on node7: ".
pub(crate) fn words(error: &std::io::Error) -> String {
    use std::io::ErrorKind as Kind;
    let meaning = match error.kind() {
        Kind::ConnectionReset | Kind::BrokenPipe | Kind::ConnectionAborted => {
            "the connection was reset; the process has probably been killed, see its own log"
        }
        Kind::TimedOut => "its host has stopped answering; it has probably crashed or lost its network",
        Kind::HostUnreachable | Kind::NetworkUnreachable | Kind::NetworkDown => {
            "there is no route to its host any more; look at the network"
        }
        _ => return format!("the connection failed: {error}"),
    };
    format!("{meaning} ({error})")
}

/// Options every connection has: no delay, no blocking, and a host that vanishes while nothing is under way is noticed
/// within half a minute.
pub(crate) fn prepared(socket: std::net::TcpStream) -> Result<std::net::TcpStream> {
    set_options(&socket).map_err(|e| Error::io("setting the options of a TCP connection", e))?;
    Ok(socket)
}

fn set_options(socket: &std::net::TcpStream) -> std::io::Result<()> {
    let keepalive = socket2::TcpKeepalive::new()
        .with_time(Duration::from_secs(10))
        .with_interval(Duration::from_secs(5))
        .with_retries(3);
    let socket = socket2::SockRef::from(socket);
    socket.set_nonblocking(true)?;
    socket.set_tcp_nodelay(true)?;
    // No TCP_USER_TIMEOUT: see `health`.
    socket.set_tcp_keepalive(&keepalive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_that_does_not_read_is_no_lost_peer() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let mut stream = TcpStream::new(std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap()).unwrap();
        let _silent = listener.accept().unwrap();
        while stream.try_write(&[0; 8192]).unwrap() > 0 {}
        // This option ends a full connection after its time, however well the peer is.
        let timeout = socket2::SockRef::from(&stream.socket).tcp_user_timeout().unwrap();
        assert!(timeout.is_none_or(|t| t.is_zero()), "{timeout:?}");
        assert_eq!(stream.check(), Ok(()));
        assert_eq!(stream.try_write(&[0]), Ok(0));
    }
}
