//! One connected socket: options, words for its errors, and the two flavours (plain, TLS) a connection may have.
//!
//! Owns the file descriptor. Never waits, except in [`wait`], which is the one place of this half that sleeps.

use std::io::{IoSlice, IoSliceMut, Read, Write};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::handshake::{Binding, Side};
use crate::stream::{Broken, Stream};
use crate::tls::{TlsIdentity, TlsStream};

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
        prepare(&socket).map_err(|e| Error::io("setting the options of a TCP connection", e))?;
        Ok(Self { socket, broken: None })
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
fn prepare(socket: &std::net::TcpStream) -> std::io::Result<()> {
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

/// A connection that may or may not run through a tunnel.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Tls(Box<TlsStream>),
}

impl Socket {
    pub(crate) fn client(socket: std::net::TcpStream, tls: Option<&Arc<TlsIdentity>>) -> Result<Self> {
        prepare(&socket).map_err(|e| Error::io("setting the options of a TCP connection", e))?;
        Ok(match tls {
            None => Self::Plain(TcpStream { socket, broken: None }),
            Some(identity) => Self::Tls(Box::new(TlsStream::client(socket, identity)?)),
        })
    }

    pub(crate) fn server(socket: std::net::TcpStream, tls: Option<&Arc<TlsIdentity>>) -> Result<Self> {
        prepare(&socket).map_err(|e| Error::io("setting the options of a TCP connection", e))?;
        Ok(match tls {
            None => Self::Plain(TcpStream { socket, broken: None }),
            Some(identity) => Self::Tls(Box::new(TlsStream::server(socket, identity)?)),
        })
    }

    /// Drives the tunnel's own handshake; gives what to bind the proof to once the tunnel stands.
    pub(crate) fn tunnel(&mut self) -> Result<Option<Binding>, Broken> {
        match self {
            Self::Plain(_) => Ok(Some(Binding::Plain)),
            Self::Tls(stream) => Ok(stream.tunnel()?.map(Binding::Tls)),
        }
    }

    /// Moves handshake bytes both ways until one side must wait for the other. True when nothing is left to be sent.
    pub(crate) fn pump(&mut self, side: &mut impl Side) -> Result<bool, PumpError> {
        let stream = self.stream();
        loop {
            while !side.output().is_empty() {
                match stream.try_write(side.output())? {
                    0 => return Ok(false),
                    count => side.sent(count),
                }
            }
            let flushed = stream.try_flush()?;
            let mut buffer = [0; crate::handshake::HELLO_BYTES];
            let wanted = side.wanted().min(buffer.len());
            if wanted == 0 {
                return Ok(flushed);
            }
            match stream.try_read(&mut buffer[..wanted])? {
                0 => return Ok(flushed),
                count => side.receive(&buffer[..count]).map_err(PumpError::Wrong)?,
            }
        }
    }

    /// What to wait for while a handshake runs.
    pub(crate) fn interest(&self, output_left: bool) -> PollFlags {
        let held = match self {
            Self::Plain(_) => false,
            Self::Tls(stream) => stream.holds_output(),
        };
        if held || output_left { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// Whether the other side has already gone. Bytes that wait to be read hide that.
    pub(crate) fn is_dead(&self) -> bool {
        let mut byte = [0];
        match self.tcp().peek(&mut byte) {
            Ok(count) => count == 0,
            Err(e) => e.kind() != std::io::ErrorKind::WouldBlock && e.kind() != std::io::ErrorKind::Interrupted,
        }
    }

    /// Whether the tunnel failed because the other side is not of this job.
    pub(crate) fn found_impostor(&self) -> bool {
        matches!(self, Self::Tls(stream) if stream.found_impostor())
    }

    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.tcp().local_addr().ok()
    }

    pub(crate) fn stream(&mut self) -> &mut dyn Stream {
        match self {
            Self::Plain(stream) => stream,
            Self::Tls(stream) => &mut **stream,
        }
    }

    pub(crate) fn into_stream(self) -> Box<dyn Stream> {
        match self {
            Self::Plain(stream) => Box::new(stream),
            Self::Tls(stream) => stream,
        }
    }

    fn tcp(&self) -> &std::net::TcpStream {
        match self {
            Self::Plain(stream) => &stream.socket,
            Self::Tls(stream) => stream.tcp(),
        }
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

/// Why a handshake over a socket ended.
#[derive(Debug)]
pub(crate) enum PumpError {
    /// The connection did.
    Broken(Broken),
    /// The other side sent something wrong.
    Wrong(Error),
}

impl From<Broken> for PumpError {
    fn from(broken: Broken) -> Self {
        Self::Broken(broken)
    }
}

/// Sleeps until one of `fds` has something, or `timeout` is over (`None`: no end). A signal ends it early.
pub(crate) fn wait(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<()> {
    let timeout = timeout.map(|t| Timespec {
        tv_sec: i64::try_from(t.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: i64::from(t.subsec_nanos()),
    });
    match poll(fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(e) => Err(Error::io(format!("waiting for {} network connections", fds.len()), e)),
    }
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
