//! The door of a process that serves data to whoever of the job comes: connections in, streams out.
//!
//! [`Door`] lets those who dial prove themselves, and hands their connections to its owner, who polls it together with
//! whatever else it waits for. [`knock`] is the other side. Owns nothing of a connection once it is handed over, and
//! knows nothing of what is said on it: as on the streams between ranks, data is not sealed; with TLS it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};

use crate::handshake::{Purpose, Serves};
use crate::nic;
use crate::secret::Secret;
use crate::stream::Stream;
use crate::tcp::acceptor::Acceptor;
use crate::tcp::dial::{self, Dialer};
use crate::tcp::listen_at;
use crate::tcp::socket::wait;
use crate::tls::TlsIdentity;

/// A connection to one who has the job's secret.
pub struct Visitor {
    /// The connection.
    pub stream: Box<dyn Stream>,
    /// Where the other one is.
    pub remote: SocketAddr,
}

/// A listening port and the handshakes that are under way.
pub struct Door {
    address: SocketAddr,
    acceptor: Acceptor,
}

impl Door {
    /// Listens at `bind` (port 0: any free one). `name` says in messages who listens.
    pub fn open(name: &str, bind: SocketAddr, secret: &Secret, tls: bool) -> Result<Self> {
        let failed = |e| Error::io(format!("opening {bind} for {name}"), e);
        let listener = listen_at(bind).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let acceptor = Acceptor::new(vec![listener], Arc::new(secret.clone()), tls, Serves::Parameters)?;
        Ok(Self { address, acceptor })
    }

    /// Where it can be reached, most promising first, loopback last.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        if !self.address.ip().is_unspecified() {
            return Ok(vec![self.address]);
        }
        Ok(nic::with_port(&nic::addresses(None)?, self.address.port(), self.address.is_ipv6()))
    }

    /// Adds what to poll. The same number of answers must be given to [`Door::turn`].
    pub fn poll_fds<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        self.acceptor.poll_fds(now, fds);
    }

    /// When to take a turn even if nothing happens.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        self.acceptor.timeout(now)
    }

    /// Goes on with every handshake that has something, and gives those who are through.
    pub fn turn(&mut self, events: &[PollFlags], now: Instant) -> Vec<Visitor> {
        let proven = self.acceptor.turn(events, now);
        let visitors = proven.into_iter().map(|proven| {
            let remote = proven.remote;
            proven.accept().map(|socket| Visitor { stream: socket.into_stream(), remote })
        });
        visitors.flatten().collect()
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Door").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Connects to a [`Door`], which may be reachable by several addresses and may open later than we come. `name` says in
/// messages whose it is.
pub fn knock(
    name: &str,
    addresses: &[SocketAddr],
    secret: &Secret,
    tls: bool,
    deadline: Deadline,
) -> Result<Box<dyn Stream>> {
    visit(name, addresses, secret, tls, deadline).map(|visitor| visitor.stream)
}

/// As [`knock`]; also says which of the addresses it was.
pub fn visit(name: &str, addresses: &[SocketAddr], secret: &Secret, tls: bool, deadline: Deadline) -> Result<Visitor> {
    let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
    let dialer = Dialer { secret: Arc::new(secret.clone()), tls };
    let failed = |tried: &[dial::Tried]| {
        let how = if tried.is_empty() { "no address was given".into() } else { dial::list(tried) };
        let how = format!("not possible{}: {how}", dial::within(deadline));
        if tried.iter().any(|t| t.failure == dial::Failure::Impostor) {
            return Error::Unauthenticated(format!("connecting to {name}: {how}"));
        }
        Error::io(format!("connecting to {name}"), how)
    };
    let limit = deadline.into();
    loop {
        let proven = dialer.race(addresses, Purpose::Parameters, false, &limit).map_err(|tried| failed(&tried))?;
        let Some(first) = proven.into_iter().next() else { continue };
        let remote = first.address;
        match first.complete(&limit) {
            Ok(socket) => return Ok(Visitor { stream: socket.into_stream(), remote }),
            Err(tried) if deadline.passed() => return Err(failed(&[tried])),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// Sleeps until one of `fds` has something, or `timeout` is over (`None`: no end). A signal ends it early.
pub fn sleep(fds: &mut [PollFd<'_>], timeout: Option<Duration>) -> Result<()> {
    wait(fds, timeout)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// The next visitor, if one comes while `other` works.
    fn admit<T: Send>(door: &mut Door, other: impl FnOnce() -> T + Send) -> (Option<Visitor>, T) {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            let mut visitor = None;
            while visitor.is_none() && !other.is_finished() {
                let now = Instant::now();
                let mut fds = Vec::new();
                door.poll_fds(now, &mut fds);
                sleep(&mut fds, Some(Duration::from_millis(20))).unwrap();
                let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
                drop(fds);
                visitor = door.turn(&events, Instant::now()).pop();
            }
            (visitor, other.join().unwrap())
        })
    }

    #[test]
    fn members_come_in_and_strangers_do_not() {
        for tls in [false, true] {
            let secret = Secret::from_bytes([3; 32]);
            let mut door = Door::open("a test", "127.0.0.1:0".parse().unwrap(), &secret, tls).unwrap();
            let at = door.addresses().unwrap();
            let (visitor, mine) = admit(&mut door, || knock("a test", &at, &secret, tls, Deadline::after(SOON)));
            let (mut theirs, mut mine) = (visitor.unwrap().stream, mine.unwrap());
            assert_eq!(mine.try_write(b"hello").unwrap(), 5);
            assert!(mine.try_flush().unwrap());
            let (mut got, until) = (Vec::new(), Instant::now() + SOON);
            while got.len() < 5 && Instant::now() < until {
                let mut bytes = [0; 8];
                let count = theirs.try_read(&mut bytes).unwrap();
                got.extend_from_slice(&bytes[..count]);
            }
            assert_eq!(got, b"hello");
            let other = Secret::from_bytes([4; 32]);
            let (nobody, error) = admit(&mut door, || {
                knock("a test", &at, &other, tls, Deadline::after(Duration::from_secs(2))).err().map(|e| e.to_string())
            });
            assert!(nobody.is_none() && error.unwrap().contains("a test"));
        }
    }
}
