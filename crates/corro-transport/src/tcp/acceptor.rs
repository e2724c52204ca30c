//! What a listening process does: accepts connections and lets them prove themselves, all at once, in one thread.
//!
//! Owns the listeners and every connection whose handshake is not finished; hands proven ones to its owner (the
//! endpoint's registry, or the store). Bounded: so many unfinished handshakes, so many seconds each. Never waits; its
//! owner polls.

use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use rustix::event::{PollFd, PollFlags};

use super::refusals::{Reached, Refusals};
use super::socket::{PumpError, Socket};
use crate::handshake::{Purpose, Server, Serves, Side};
use crate::secret::Secret;
use crate::tls::TlsIdentity;

/// How long a connection may take to prove itself.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// How long a connection may stay even when its place is needed: ample for an honest one.
const UNDISTURBED_TIME: Duration = Duration::from_millis(250);
/// How long no connection is accepted after the system had no room for one.
const PAUSE: Duration = Duration::from_millis(100);
/// How many connections are accepted before the others get their turn.
const ACCEPTS_PER_TURN: usize = 64;

/// A connection whose other end has the secret and waits to be accepted.
pub(crate) struct Proven {
    pub(crate) purpose: Purpose,
    pub(crate) remote: SocketAddr,
    socket: Socket,
    handshake: Server,
}

impl Proven {
    /// Tells the other end that it is taken. `None` if it has gone.
    pub(crate) fn accept(mut self) -> Option<Socket> {
        self.handshake.accept().ok()?;
        // One byte into a socket from which all was taken: if it does not fit, something is wrong with the other end.
        let sent = matches!(self.socket.pump(&mut self.handshake), Ok(true));
        let sealed = self.purpose.must_be_sealed();
        sent.then(|| if sealed { self.socket.seal(self.handshake.session(), false) } else { self.socket })
    }
}

pub(crate) struct Acceptor {
    listeners: Vec<TcpListener>,
    secret: Arc<Secret>,
    tls: Option<Arc<TlsIdentity>>,
    serves: Serves,
    refusals: Arc<Mutex<Refusals>>,
    /// Oldest first.
    pending: VecDeque<Pending>,
    places: usize,
    paused_until: Option<Instant>,
}

struct Pending {
    socket: Socket,
    /// None while the tunnel is still being built.
    handshake: Option<Server>,
    remote: SocketAddr,
    since: Instant,
}

/// What became of a connection in one turn.
enum Fate {
    Stays,
    Proven,
    /// Gone without having done anything worth a line.
    Gone,
    Refused(Reached, String),
}

impl Acceptor {
    pub(crate) fn new(
        listeners: Vec<TcpListener>,
        secret: Arc<Secret>,
        tls: Option<Arc<TlsIdentity>>,
        serves: Serves,
    ) -> Result<Self> {
        for listener in &listeners {
            listener.set_nonblocking(true).map_err(|e| Error::io("preparing a listening socket", e))?;
        }
        let refusals = Arc::new(Mutex::new(Refusals::new(Instant::now())));
        let pending = VecDeque::new();
        Ok(Self { listeners, secret, tls, serves, refusals, pending, places: places(), paused_until: None })
    }

    /// Shared with whoever must explain why a peer did not come.
    pub(crate) fn refusals(&self) -> Arc<Mutex<Refusals>> {
        self.refusals.clone()
    }

    /// Adds what to poll. The same number of answers must be given to [`Acceptor::turn`].
    pub(crate) fn poll_fds<'a>(&'a self, now: Instant, fds: &mut Vec<PollFd<'a>>) {
        let listening = if self.may_accept(now) { PollFlags::IN } else { PollFlags::empty() };
        fds.extend(self.listeners.iter().map(|listener| PollFd::from_borrowed_fd(listener.as_fd(), listening)));
        for pending in &self.pending {
            let output_left = pending.handshake.as_ref().is_some_and(|h| !h.output().is_empty());
            fds.push(PollFd::from_borrowed_fd(pending.socket.as_fd(), pending.socket.interest(output_left)));
        }
    }

    /// When to take a turn even if nothing happens.
    pub(crate) fn timeout(&self, now: Instant) -> Option<Duration> {
        let oldest = self.pending.front().map(|p| p.since);
        let at = [
            oldest.map(|since| since + HANDSHAKE_TIME),
            oldest.filter(|_| self.is_full()).map(|since| since + UNDISTURBED_TIME),
            self.paused_until,
            self.refusals().lock().is_ok_and(|r| r.holds_back()).then(|| now + Duration::from_secs(1)),
        ];
        at.into_iter().flatten().min().map(|at| at.saturating_duration_since(now))
    }

    /// Goes on with every connection that has something; `events` are the answers to [`Acceptor::poll_fds`].
    pub(crate) fn turn(&mut self, events: &[PollFlags], now: Instant) -> Vec<Proven> {
        let mut proven = Vec::new();
        let (listening, handshakes) = events.split_at(self.listeners.len().min(events.len()));
        let before = std::mem::take(&mut self.pending);
        for (i, mut pending) in before.into_iter().enumerate() {
            let has_something = handshakes.get(i).is_some_and(|e| !e.is_empty());
            let fate = if has_something { pending.advance(&self.secret, self.serves) } else { Fate::Stays };
            match fate {
                Fate::Stays if now.saturating_duration_since(pending.since) < HANDSHAKE_TIME => {
                    self.pending.push_back(pending);
                }
                Fate::Stays => {
                    self.refuse(pending.remote, &format!("it did not prove itself within {HANDSHAKE_TIME:?}"), now);
                }
                Fate::Gone => tracing::debug!(remote = %pending.remote, "a connection was opened and closed unused"),
                Fate::Refused(reached, reason) => self.refuse_at(reached, pending.remote, &reason, now),
                Fate::Proven => proven.extend(pending.into_proven()),
            }
        }
        for (index, _) in listening.iter().enumerate().filter(|(_, event)| !event.is_empty()) {
            self.accept(index, now, &mut proven);
        }
        if let Ok(mut refusals) = self.refusals.lock() {
            refusals.tick(now);
        }
        proven
    }

    fn accept(&mut self, listener: usize, now: Instant, proven: &mut Vec<Proven>) {
        for _ in 0..ACCEPTS_PER_TURN {
            if !self.may_accept(now) {
                return;
            }
            let (socket, remote) = match self.listeners[listener].accept() {
                Ok((socket, remote)) => (socket, SocketAddr::new(remote.ip().to_canonical(), remote.port())),
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return,
                Err(e)
                    if matches!(e.kind(), std::io::ErrorKind::Interrupted | std::io::ErrorKind::ConnectionAborted) =>
                {
                    continue;
                }
                Err(e) => {
                    // Mostly: no file descriptor left. Trying again at once would spin.
                    let address = self.listeners[listener].local_addr().unwrap_or_else(|_| ([0, 0, 0, 0], 0).into());
                    self.refuse(address, &format!("can't accept connections: {e} (see `ulimit -n`)"), now);
                    self.paused_until = Some(now + PAUSE);
                    return;
                }
            };
            self.paused_until = None;
            let socket = match Socket::server(socket, self.tls.as_ref()) {
                Ok(socket) => socket,
                Err(e) => {
                    self.refuse(remote, &e.to_string(), now);
                    continue;
                }
            };
            if self.is_full()
                && let Some(oldest) = self.pending.pop_front()
            {
                self.refuse(oldest.remote, "it was slow to prove itself and its place was needed", now);
            }
            // Often the hello has come along with the connection, so the first step is taken at once.
            let mut pending = Pending { socket, handshake: None, remote, since: now };
            match pending.advance(&self.secret, self.serves) {
                Fate::Stays => self.pending.push_back(pending),
                Fate::Gone => {}
                Fate::Refused(reached, reason) => self.refuse_at(reached, remote, &reason, now),
                Fate::Proven => proven.extend(pending.into_proven()),
            }
        }
    }

    fn is_full(&self) -> bool {
        self.pending.len() >= self.places
    }

    fn may_accept(&self, now: Instant) -> bool {
        let paused = self.paused_until.is_some_and(|until| now < until);
        let room = !self.is_full()
            || self.pending.front().is_some_and(|p| now.saturating_duration_since(p.since) >= UNDISTURBED_TIME);
        !paused && room
    }

    fn refuse(&self, remote: SocketAddr, reason: &str, now: Instant) {
        self.refuse_at(Reached::Handshake, remote, reason, now);
    }

    fn refuse_at(&self, reached: Reached, remote: SocketAddr, reason: &str, now: Instant) {
        if let Ok(mut refusals) = self.refusals.lock() {
            refusals.refuse(remote, reached, reason, now);
        }
    }
}

impl Pending {
    fn advance(&mut self, secret: &Arc<Secret>, serves: Serves) -> Fate {
        let handshake = match &mut self.handshake {
            Some(handshake) => handshake,
            None => match self.socket.tunnel() {
                Ok(None) => return Fate::Stays,
                Ok(Some(binding)) => self.handshake.insert(Server::new(secret.clone(), serves, binding)),
                Err(broken) => return Fate::Refused(Reached::Tunnel, broken.0),
            },
        };
        match self.socket.pump(handshake) {
            Err(PumpError::Wrong(e)) => Fate::Refused(Reached::Handshake, e.to_string()),
            Err(PumpError::Broken(_)) if !handshake.has_heard() || handshake.is_withdrawn() => Fate::Gone,
            Err(PumpError::Broken(_)) => Fate::Refused(Reached::Handshake, handshake.if_closed().into()),
            Ok(_) if handshake.is_withdrawn() => Fate::Gone,
            Ok(_) if handshake.proven().is_some() => Fate::Proven,
            Ok(_) => Fate::Stays,
        }
    }

    fn into_proven(self) -> Option<Proven> {
        let handshake = self.handshake?;
        Some(Proven { purpose: handshake.proven()?, remote: self.remote, socket: self.socket, handshake })
    }
}

/// How many unfinished handshakes there may be: many, but never so many that the process runs out of descriptors.
fn places() -> usize {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(4096);
    (usize::try_from(limit).unwrap_or(usize::MAX) / 4).clamp(64, 1024)
}
