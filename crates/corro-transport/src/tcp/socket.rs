//! One connected socket, and the flavours that a connection may have: plain, sealed, or TLS.
//!
//! Owns the file descriptor. Never waits, except in [`wait`], which is the one place of this half that sleeps.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Result};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::plain::{TcpStream, prepared};
use super::sealed::SealedStream;
use crate::handshake::{Binding, Side};
use crate::secret::Secret;
use crate::stream::{Broken, Stream};
use crate::tls::{TlsIdentity, TlsStream};

/// A connection that may or may not run through a tunnel.
#[derive(Debug)]
pub(crate) enum Socket {
    Plain(TcpStream),
    Sealed(Box<SealedStream>),
    Tls(Box<TlsStream>),
}

impl Socket {
    pub(crate) fn client(socket: std::net::TcpStream, tls: Option<&Arc<TlsIdentity>>) -> Result<Self> {
        Ok(match tls {
            None => Self::Plain(TcpStream::new(socket)?),
            Some(identity) => Self::Tls(Box::new(TlsStream::client(prepared(socket)?, identity)?)),
        })
    }

    pub(crate) fn server(socket: std::net::TcpStream, tls: Option<&Arc<TlsIdentity>>) -> Result<Self> {
        Ok(match tls {
            None => Self::Plain(TcpStream::new(socket)?),
            Some(identity) => Self::Tls(Box::new(TlsStream::server(prepared(socket)?, identity)?)),
        })
    }

    /// Drives the tunnel's own handshake; gives what to bind the proof to once the tunnel stands.
    pub(crate) fn tunnel(&mut self) -> Result<Option<Binding>, Broken> {
        match self {
            Self::Plain(_) | Self::Sealed(_) => Ok(Some(Binding::Plain)),
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
            Self::Sealed(stream) => stream.holds_output(),
            Self::Tls(stream) => stream.holds_output(),
        };
        if held || output_left { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN }
    }

    /// From now on nothing on this connection can be changed unnoticed. In a tunnel that is so already.
    pub(crate) fn seal(self, session: &[u8; 32], dialled: bool) -> Self {
        match self {
            Self::Plain(stream) => {
                let session = Secret::from_bytes(*session);
                Self::Sealed(Box::new(SealedStream::new(stream, &session, dialled)))
            }
            other => other,
        }
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
            Self::Sealed(stream) => &mut **stream,
            Self::Tls(stream) => &mut **stream,
        }
    }

    pub(crate) fn into_stream(self) -> Box<dyn Stream> {
        match self {
            Self::Plain(stream) => Box::new(stream),
            Self::Sealed(stream) => stream,
            Self::Tls(stream) => stream,
        }
    }

    fn tcp(&self) -> &std::net::TcpStream {
        match self {
            Self::Plain(stream) => stream.tcp(),
            Self::Sealed(stream) => stream.tcp(),
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
