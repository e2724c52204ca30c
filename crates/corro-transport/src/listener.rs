//! A port where a process serves data to others of its job: connections in, streams out.
//!
//! [`Listener`] lets those who dial prove themselves, and hands their connections to its owner, who polls it together with
//! whatever else it waits for. [`connect`] is the other side. Owns nothing of a connection once it is handed over, and
//! knows nothing of what is said on it: as on the streams between ranks, data is not sealed; with TLS it is.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};

use crate::bind::{Bind, published};
use crate::handshake::{Purpose, Serves};
use crate::secret::Secret;
use crate::stream::Stream;
use crate::tcp::acceptor::Acceptor;
use crate::tcp::dial::{self, Dialer};
use crate::tcp::socket::wait;
use crate::tls::TlsIdentity;

/// A connection to one who has the job's secret.
pub struct Connection {
    /// The connection.
    pub stream: Box<dyn Stream>,
    /// Where the other one is.
    pub remote: SocketAddr,
}

/// A listening port and the handshakes that are under way.
pub struct Listener {
    addresses: Vec<SocketAddr>,
    acceptor: Acceptor,
}

impl Listener {
    /// Listens at `bind` (port 0: any free one). `name` says in messages who listens.
    pub fn open(name: &str, bind: SocketAddr, secret: &Secret, tls: bool) -> Result<Self> {
        Self::open_at(name, &bind.into(), secret, tls)
    }

    /// As [`Listener::open`], at several addresses perhaps.
    pub fn open_at(name: &str, bind: &Bind, secret: &Secret, tls: bool) -> Result<Self> {
        let (listeners, addresses) = bind.listen().map_err(|e| Error::io(format!("opening {bind} for {name}"), e))?;
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let acceptor = Acceptor::new(listeners, Arc::new(secret.clone()), tls, Serves::Parameters)?;
        Ok(Self { addresses, acceptor })
    }

    /// Where it can be reached, most promising first, loopback last.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        published(&self.addresses)
    }

    /// Adds what to poll. The same number of answers must be given to [`Listener::turn`].
    pub fn poll_fds<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        self.acceptor.poll_fds(now, fds);
    }

    /// When to take a turn even if nothing happens.
    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        self.acceptor.timeout(now)
    }

    /// How many have come and could not prove that they have the job's secret.
    pub fn turned_away(&self) -> u64 {
        self.acceptor.refusals().lock().map_or(0, |refusals| refusals.all)
    }

    /// Goes on with every handshake that has something, and gives those who are through.
    pub fn turn(&mut self, events: &[PollFlags], now: Instant) -> Vec<Connection> {
        let proven = self.acceptor.turn(events, now);
        let connections = proven.into_iter().map(|proven| {
            let remote = proven.remote;
            proven.accept().map(|socket| Connection { stream: socket.into_stream(), remote })
        });
        connections.flatten().collect()
    }
}

impl std::fmt::Debug for Listener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listener").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

/// Connects to a [`Listener`], which may be reachable by several addresses and may open later than we come; says by which of them.
/// `name` says in messages whose it is.
pub fn connect(
    name: &str,
    addresses: &[SocketAddr],
    secret: &Secret,
    tls: bool,
    deadline: Deadline,
) -> Result<Connection> {
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
            Ok(socket) => return Ok(Connection { stream: socket.into_stream(), remote }),
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

    /// The next connection, if one comes while `other` works.
    fn admit<T: Send>(listener: &mut Listener, other: impl FnOnce() -> T + Send) -> (Option<Connection>, T) {
        std::thread::scope(|scope| {
            let other = scope.spawn(other);
            let mut connection = None;
            while connection.is_none() && !other.is_finished() {
                let now = Instant::now();
                let mut fds = Vec::new();
                listener.poll_fds(now, &mut fds);
                sleep(&mut fds, Some(Duration::from_millis(20))).unwrap();
                let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
                drop(fds);
                connection = listener.turn(&events, Instant::now()).pop();
            }
            (connection, other.join().unwrap())
        })
    }

    #[test]
    fn members_come_in_and_strangers_do_not() {
        for tls in [false, true] {
            let secret = Secret::from_bytes([3; 32]);
            let mut listener = Listener::open("a test", "127.0.0.1:0".parse().unwrap(), &secret, tls).unwrap();
            let at = listener.addresses().unwrap();
            let (connection, mine) =
                admit(&mut listener, || connect("a test", &at, &secret, tls, Deadline::after(SOON)));
            let (mut theirs, mut mine) = (connection.unwrap().stream, mine.unwrap().stream);
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
            let (nobody, error) = admit(&mut listener, || {
                connect("a test", &at, &other, tls, Deadline::after(Duration::from_secs(2)))
                    .err()
                    .map(|e| e.to_string())
            });
            assert!(nobody.is_none() && error.unwrap().contains("a test"));
        }
    }
}
