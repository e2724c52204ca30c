//! The store's sockets: one thread that serves all clients.
//!
//! Owns the connections; what requests mean is `table`'s business. Never blocks on a client: one that does not read its
//! answers is dropped after a while, and nobody else notices.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use rustix::event::{PollFd, PollFlags};

use super::Limits;
use super::message::Response;
use super::session::Session;
use super::table::{ClientId, Table};
use crate::bind::{Bind, published};
use crate::handshake::Serves;
use crate::secret::Secret;
use crate::stream::Broken;
use crate::tcp::acceptor::{Acceptor, Proven};
use crate::tcp::socket::{Socket, wait};
use crate::tcp::{ring, wake_fd};
use crate::tls::TlsIdentity;

/// How long a client may leave its answers unread.
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// How many requests of one client are served before others get their turn.
const REQUESTS_PER_TURN: usize = 64;
const READ_BYTES: usize = 64 * 1024;

/// A running store. Stops when dropped.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `bind` (port 0: any free one) and serves everyone who proves `secret`.
    pub fn start(bind: SocketAddr, secret: &Secret, tls: bool, limits: Limits) -> Result<Self> {
        Self::start_at(&bind.into(), secret, tls, limits)
    }

    /// As [`Server::start`], at several addresses perhaps.
    pub fn start_at(bind: &Bind, secret: &Secret, tls: bool, limits: Limits) -> Result<Self> {
        let (listeners, addresses) = bind.listen().map_err(|e| {
            Error::io(
                format!("opening {bind} for the rendezvous store"),
                format!("{e} (is another job using this port?)"),
            )
        })?;
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let acceptor = Acceptor::new(listeners, Arc::new(secret.clone()), tls, Serves::Store)?;
        let wake = Arc::new(wake_fd()?);
        let thread = std::thread::Builder::new()
            .name("corro-store".into())
            .spawn({
                let wake = wake.clone();
                move || Loop::new(acceptor, limits).run(&wake)
            })
            .map_err(|e| Error::io("starting the thread of the rendezvous store", e))?;
        for address in &addresses {
            tracing::debug!(%address, "the rendezvous store is listening");
        }
        Ok(Self { addresses, wake, thread: Some(thread) })
    }

    /// Where it listens. The address may be the unspecified one; see [`Server::addresses`].
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Where clients can reach it, most promising first, loopback last.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        published(&self.addresses)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        ring(&self.wake);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the rendezvous store has panicked; please report it");
        }
    }
}

struct Loop {
    acceptor: Acceptor,
    limits: Limits,
    table: Table,
    clients: BTreeMap<ClientId, Connection>,
    next_id: ClientId,
    /// Bytes under way, of all clients.
    under_way: usize,
    /// Clients that had more requests than one turn serves.
    unfinished: Vec<ClientId>,
    /// Where bytes land before it is known that they may stay.
    scratch: Box<[u8]>,
}

struct Connection {
    socket: Socket,
    session: Session,
    remote: SocketAddr,
    /// When output last moved, or began to wait.
    moved: Instant,
}

impl Loop {
    fn new(acceptor: Acceptor, limits: Limits) -> Self {
        Self {
            acceptor,
            limits,
            table: Table::new(limits),
            clients: BTreeMap::new(),
            next_id: 0,
            under_way: 0,
            unfinished: Vec::new(),
            scratch: vec![0; READ_BYTES].into_boxed_slice(),
        }
    }

    fn run(mut self, wake: &OwnedFd) {
        loop {
            let now = Instant::now();
            let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
            self.acceptor.poll_fds(now, &mut fds);
            let acceptor_end = fds.len();
            fds.extend(self.clients.values().map(|c| PollFd::from_borrowed_fd(c.socket.as_fd(), c.interest())));
            if let Err(e) = wait(&mut fds, self.timeout(now)) {
                tracing::warn!(error = %e, "the thread of the rendezvous store");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !events[0].is_empty() {
                return;
            }
            let mut ready = std::mem::take(&mut self.unfinished);
            let with_events = self.clients.keys().zip(&events[acceptor_end..]);
            ready.extend(with_events.filter(|(_, e)| !e.is_empty()).map(|(id, _)| *id));
            for id in ready {
                self.serve(id);
            }
            let now = Instant::now();
            self.drop_those_who_do_not_read(now);
            for proven in self.acceptor.turn(&events[1..acceptor_end], now) {
                self.admit(proven, now);
            }
        }
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.unfinished.is_empty() {
            return Some(Duration::ZERO);
        }
        let unread = self.clients.values().filter(|c| !c.session.output().is_empty());
        let until = unread.map(|c| (c.moved + UNREAD_TIME).saturating_duration_since(now)).min();
        [until, self.acceptor.timeout(now)].into_iter().flatten().min()
    }

    fn admit(&mut self, proven: Proven, now: Instant) {
        let remote = proven.remote;
        if self.clients.len() >= self.limits.clients {
            tracing::warn!(%remote, clients = self.clients.len(), "the rendezvous store takes no more clients");
            return;
        }
        let Some(socket) = proven.accept() else { return };
        let id = self.next_id;
        self.next_id += 1;
        let connection = Connection { socket, session: Session::default(), remote, moved: now };
        self.clients.insert(id, connection);
        // With TLS, the first request may have come along with the proof, and then no event will tell of it.
        self.serve(id);
    }

    fn serve(&mut self, id: ClientId) {
        if let Err(reason) = self.try_serve(id) {
            self.remove(id, &reason);
        }
    }

    fn try_serve(&mut self, id: ClientId) -> Result<(), String> {
        let mut answers = Vec::new();
        for _ in 0..REQUESTS_PER_TURN {
            if !self.flush(id)? {
                return Ok(());
            }
            let Some(client) = self.clients.get_mut(&id) else { return Ok(()) };
            let before = client.session.bytes();
            let request = client.session.next_request(&self.limits).map_err(|e| e.to_string())?;
            self.under_way -= before - client.session.bytes();
            if let Some(request) = request {
                self.table.handle(id, request, &mut answers);
                for (to, response) in answers.drain(..) {
                    self.answer(to, &response);
                }
                continue;
            }
            let count = client.socket.stream().try_read(&mut self.scratch).map_err(|Broken(reason)| reason)?;
            if count == 0 {
                return Ok(());
            }
            if self.under_way + count > self.limits.memory {
                return Err("the store has too many requests under way".into());
            }
            client.session.receive(&self.scratch[..count]);
            self.under_way += count;
        }
        self.unfinished.push(id);
        Ok(())
    }

    fn answer(&mut self, to: ClientId, response: &Response) {
        let Some(client) = self.clients.get_mut(&to) else { return };
        let before = client.session.bytes();
        let outcome = client.session.respond(response, self.limits.memory.saturating_sub(self.under_way));
        self.under_way += client.session.bytes() - before;
        client.moved = Instant::now();
        if let Err(reason) = outcome.map_err(|e| e.to_string()).and_then(|()| self.flush(to)) {
            self.remove(to, &reason);
        }
    }

    /// Sends what waits for `id`. True when nothing is left.
    fn flush(&mut self, id: ClientId) -> Result<bool, String> {
        let Some(client) = self.clients.get_mut(&id) else { return Ok(true) };
        let broken = |Broken(reason)| reason;
        while !client.session.output().is_empty() {
            let count = client.socket.stream().try_write(client.session.output()).map_err(broken)?;
            if count == 0 {
                return Ok(false);
            }
            let before = client.session.bytes();
            client.session.advance(count);
            self.under_way -= before - client.session.bytes();
            client.moved = Instant::now();
        }
        client.socket.stream().try_flush().map_err(broken)
    }

    fn drop_those_who_do_not_read(&mut self, now: Instant) {
        let late = |c: &Connection| !c.session.output().is_empty() && now >= c.moved + UNREAD_TIME;
        let late: Vec<ClientId> = self.clients.iter().filter(|(_, c)| late(c)).map(|(id, _)| *id).collect();
        for id in late {
            self.remove(id, &format!("it has not read its answer for {UNREAD_TIME:?}"));
        }
    }

    fn remove(&mut self, id: ClientId, reason: &str) {
        self.table.forget(id);
        if let Some(client) = self.clients.remove(&id) {
            self.under_way -= client.session.bytes();
            tracing::debug!(remote = %client.remote, reason, "a client of the rendezvous store is gone");
        }
    }
}

impl Connection {
    fn interest(&self) -> PollFlags {
        // No new request is read while the last answer is unsent, so that answers can't pile up.
        if self.session.output().is_empty() { self.socket.interest(false) } else { PollFlags::OUT }
    }
}
