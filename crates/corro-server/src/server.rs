//! A server with its sockets: one thread that serves all workers of all stores, and keeps copies for other servers.
//!
//! What requests mean is [`Shard`]'s business. A connection that breaks is not made again: a worker whose connection broke
//! is given up, a server whose connection broke is lost, and all who are left agree on that. A client that sends
//! nonsense, or does not read, is sent away, and nobody else notices.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use corro_transport::listener::{self, Connection, Listener};
use corro_transport::messages::Waker;
use corro_transport::secret::Secret;
use corro_transport::{Bind, Broken, Stream};
use rustix::event::{PollFd, PollFlags};

use crate::entry::Output;
use crate::frame::{Request, Response};
use crate::protocol::{Payload, ServerId, WorkerId};
use crate::shard::Shard;
use crate::wire::Wire;

/// How long a client may leave what it was told unread.
const UNREAD_TIME: Duration = Duration::from_secs(60);
/// How long reaching another server may take.
const PARTNER_TIME: Duration = Duration::from_secs(5);
/// How many connections at once.
const MOST_CLIENTS: usize = 16 * 1024;

/// What a server's thread is told: go on, go when nobody needs you, go.
const SERVE: u8 = 0;
const FINISH: u8 = 1;
const STOP: u8 = 2;

/// What servers that a launcher starts and their workers prove to each other, of the job's own secret.
pub fn job_secret(job: &Secret) -> Secret {
    Secret::from_bytes(job.derive("parameter servers"))
}

/// A running server. Stops when dropped.
#[derive(Debug)]
pub struct Server {
    addresses: Vec<SocketAddr>,
    stop: Arc<AtomicU8>,
    waker: Waker,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Listens at `bind` (port 0: any free one), and serves everyone who proves `secret`.
    pub fn start(bind: SocketAddr, secret: &Secret, tls: bool) -> Result<Self> {
        Self::start_at(&bind.into(), secret, tls)
    }

    /// As [`Server::start`], at several addresses perhaps.
    pub fn start_at(bind: &Bind, secret: &Secret, tls: bool) -> Result<Self> {
        let listener = Listener::open_at("a parameter server", bind, secret, tls)?;
        let addresses = listener.addresses()?;
        let (waker, stop) = (Waker::new()?, Arc::new(AtomicU8::new(SERVE)));
        let (sender, dialled) = channel();
        let serving = Loop {
            listener,
            dialler: Dialler { secret: secret.clone(), tls, waker: waker.clone(), sender },
            dialled,
            stop: stop.clone(),
            shards: BTreeMap::new(),
            clients: BTreeMap::new(),
            seats: BTreeMap::new(),
            partners: BTreeMap::new(),
            unfinished: Vec::new(),
            sent_away: 0,
            next: 0,
        };
        let thread = std::thread::Builder::new()
            .name("corro-server".into())
            .spawn(move || serving.run())
            .map_err(|e| Error::io("starting the thread of a parameter server", e))?;
        tracing::debug!(?addresses, "a parameter server is listening");
        Ok(Self { addresses, stop, waker, thread: Some(thread) })
    }

    /// Where it can be reached, most promising first.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }
}

impl Server {
    /// Stops once all workers have left, but after `limit` in any case: who left last would take it for lost otherwise.
    pub fn finish(self, limit: Duration) {
        self.stop.store(FINISH, Ordering::Release);
        self.waker.ring();
        let until = Instant::now() + limit;
        while self.thread.as_ref().is_some_and(|thread| !thread.is_finished()) && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(STOP, Ordering::Release);
        self.waker.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of a parameter server has panicked; please report it");
        }
    }
}

type ClientId = u64;
type StoreId = u64;
type Dialled = (StoreId, ServerId, Result<Box<dyn Stream>>);

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Who {
    Worker(StoreId, WorkerId),
    Server(StoreId, ServerId),
}

struct Client {
    wire: Wire<Request>,
    remote: SocketAddr,
    who: Option<Who>,
    /// It was told why, and goes as soon as it has heard that.
    leaving: bool,
    /// When output last moved, or began to wait, and how much had gone by then.
    moved: Instant,
    out: u64,
}

/// The connection to a server that keeps our copies; what is said before it stands waits.
enum Partner {
    Dialling(Vec<(Request, Payload)>),
    Up(Box<Wire<Response>>),
    Lost,
}

struct Dialler {
    secret: Secret,
    tls: bool,
    waker: Waker,
    sender: Sender<Dialled>,
}

impl Dialler {
    /// In a thread of its own, so that nobody waits meanwhile.
    fn dial(&self, store: StoreId, server: ServerId, addresses: Vec<SocketAddr>) {
        let (secret, tls, waker, sender) = (self.secret.clone(), self.tls, self.waker.clone(), self.sender.clone());
        let dial = move || {
            let name = format!("parameter server {server}");
            let stream = listener::connect(&name, &addresses, &secret, tls, Deadline::after(PARTNER_TIME))
                .map(|connection| connection.stream);
            let _ = sender.send((store, server, stream));
            waker.ring();
        };
        if let Err(e) = std::thread::Builder::new().name("corro-dial".into()).spawn(dial) {
            let failed = Err(Error::io("starting a thread that dials", e));
            let _ = self.sender.send((store, server, failed));
            self.waker.ring();
        }
    }
}

struct Loop {
    listener: Listener,
    dialler: Dialler,
    dialled: Receiver<Dialled>,
    stop: Arc<AtomicU8>,
    shards: BTreeMap<StoreId, Shard>,
    clients: BTreeMap<ClientId, Client>,
    seats: BTreeMap<Who, ClientId>,
    partners: BTreeMap<(StoreId, ServerId), Partner>,
    /// Clients that had more to say than one turn hears.
    unfinished: Vec<ClientId>,
    /// How many clients talked nonsense.
    sent_away: u64,
    next: ClientId,
}

impl Loop {
    fn run(mut self) {
        loop {
            match self.stop.load(Ordering::Acquire) {
                SERVE => {}
                FINISH if !self.shards.is_empty() => {}
                _ => break,
            }
            let now = Instant::now();
            let waker = self.dialler.waker.clone();
            let mut fds = vec![PollFd::from_borrowed_fd(waker.as_fd(), PollFlags::IN)];
            self.listener.poll_fds(now, &mut fds);
            let listener_end = fds.len();
            fds.extend(self.clients.values().map(|g| PollFd::from_borrowed_fd(g.wire.fd(), g.wire.interest())));
            let clients_end = fds.len();
            let up = self.partners.values().filter_map(|p| if let Partner::Up(wire) = p { Some(wire) } else { None });
            fds.extend(up.map(|wire| PollFd::from_borrowed_fd(wire.fd(), wire.interest())));
            if let Err(e) = listener::sleep(&mut fds, self.timeout(now)) {
                tracing::warn!(error = %e, "the thread of a parameter server");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            if !events[0].is_empty() {
                waker.silence();
            }
            self.turn(&events, listener_end, clients_end);
        }
        for client in self.clients.values_mut() {
            let _ = client.wire.flush();
        }
    }

    fn turn(&mut self, events: &[PollFlags], listener_end: usize, clients_end: usize) {
        let mut ready = std::mem::take(&mut self.unfinished);
        let with_events = self.clients.keys().zip(&events[listener_end..clients_end]);
        ready.extend(with_events.filter(|(_, e)| !e.is_empty()).map(|(id, _)| *id));
        let up = self.partners.iter().filter(|(_, p)| matches!(p, Partner::Up(_))).map(|(key, _)| *key);
        let partners: Vec<(StoreId, ServerId)> =
            up.zip(&events[clients_end..]).filter(|(_, e)| !e.is_empty()).map(|(key, _)| key).collect();
        for id in ready {
            self.serve(id);
        }
        for (store, server) in partners {
            self.hear_partner(store, server);
        }
        while let Ok((store, server, stream)) = self.dialled.try_recv() {
            self.connected(store, server, stream);
        }
        let now = Instant::now();
        self.send_slow_ones_away(now);
        for connection in self.listener.turn(&events[1..listener_end], now) {
            self.admit(connection, now);
        }
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        if !self.unfinished.is_empty() {
            return Some(Duration::ZERO);
        }
        let unread = self.clients.values().filter(|g| g.wire.waiting() > 0);
        let until = unread.map(|g| (g.moved + UNREAD_TIME).saturating_duration_since(now)).min();
        [until, self.listener.timeout(now)].into_iter().flatten().min()
    }

    fn admit(&mut self, connection: Connection, now: Instant) {
        if self.clients.len() >= MOST_CLIENTS {
            tracing::warn!(remote = %connection.remote, "this parameter server takes no more connections");
            return;
        }
        self.next += 1;
        let wire = Wire::new(connection.stream);
        self.clients.insert(
            self.next,
            Client { wire, remote: connection.remote, who: None, leaving: false, moved: now, out: 0 },
        );
        // With TLS, the first frame may have come along with the proof, and then no event will tell of it.
        self.serve(self.next);
    }

    fn serve(&mut self, id: ClientId) {
        // Taken out while it is heard: what it says is answered to it and to others.
        let Some(mut client) = self.clients.remove(&id) else { return };
        let mut heard = Vec::new();
        let outcome = client.wire.flush().and_then(|()| {
            client.wire.read(|request, payload| {
                heard.push((request, payload));
                Ok(())
            })
        });
        self.clients.insert(id, client);
        for (request, payload) in heard {
            if let Err(e) = self.hear(id, request, payload) {
                let who = self.clients.get(&id).map(|g| g.remote);
                tracing::warn!(remote = ?who, error = %e, "a parameter server refuses a client");
                self.sent_away += 1;
                self.refuse(id, &e.to_string());
                break;
            }
        }
        match outcome {
            Ok(true) => self.unfinished.push(id),
            Ok(false) => {}
            Err(Broken(reason)) => {
                self.sent_away += u64::from(self.clients.get(&id).is_some_and(|client| client.wire.nonsense));
                return self.lose(id, &reason);
            }
        }
        if self.clients.get(&id).is_some_and(|g| g.leaving && g.wire.waiting() == 0) {
            self.lose(id, "it was refused");
        }
    }

    /// Tells a client why it must go.
    fn refuse(&mut self, id: ClientId, why: &str) {
        if let Some(client) = self.clients.get_mut(&id) {
            client.leaving = true;
            let _ = client.wire.say(&Response::Refused { id: 0, why: why.to_owned() }, Payload::default());
            let _ = client.wire.flush();
        }
    }

    fn hear(&mut self, id: ClientId, request: Request, payload: Payload) -> Result<()> {
        let Some(client) = self.clients.get_mut(&id).filter(|client| !client.leaving) else { return Ok(()) };
        let store = match (client.who, request) {
            (None, Request::Hello { setup, worker, lost }) => {
                let (store, who) = (setup.store, Who::Worker(setup.store, worker));
                if self.seats.contains_key(&who) {
                    return Err(Error::Usage(format!("worker {worker} is connected already")));
                }
                let shard = match self.shards.entry(store) {
                    Entry::Occupied(known) => known.into_mut(),
                    Entry::Vacant(new) => new.insert(Shard::new(setup.clone())?),
                };
                shard.hello(&setup, worker, &lost)?;
                self.seats.insert(who, id);
                client.who = Some(who);
                store
            }
            (None, Request::Partner { store, server }) => {
                let who = Who::Server(store, server);
                client.who = Some(who);
                self.seats.insert(who, id);
                return Ok(());
            }
            (Some(Who::Worker(store, worker)), request) => {
                let Some(shard) = self.shards.get_mut(&store) else { return Ok(()) };
                shard.handle(worker, request, payload);
                store
            }
            (Some(Who::Server(store, server)), request) => {
                if let Request::Copy { setup, .. } = &request
                    && !self.shards.contains_key(&store)
                    && setup.store == store
                {
                    self.shards.insert(store, Shard::new(setup.clone())?);
                }
                let shard = self.shards.get_mut(&store);
                shard
                    .ok_or_else(|| Error::Malformed("a change of an unknown store".into()))?
                    .keep(server, request, payload)?;
                store
            }
            (None, _) => return Err(Error::Malformed("a frame out of order: the first one must be a hello".into())),
        };
        self.pump(store);
        Ok(())
    }

    /// Sends what a shard wants to be said.
    fn pump(&mut self, store: StoreId) {
        let Some(shard) = self.shards.get_mut(&store) else { return };
        let mut spoken_to = Vec::new();
        for output in shard.take_output() {
            match output {
                Output::Worker(worker, mut response, payload) => {
                    if let Response::Stats { counts, .. } = &mut response {
                        // What no store knows of.
                        counts.push(("clients sent away".into(), self.sent_away));
                        counts.push(("strangers turned away".into(), self.listener.turned_away()));
                    }
                    spoken_to.extend(self.tell(Who::Worker(store, worker), &response, payload));
                }
                Output::Server(server, response) => {
                    spoken_to.extend(self.tell(Who::Server(store, server), &response, Payload::default()));
                }
                Output::Partner(server, request, payload) => self.tell_partner(store, server, request, payload),
            }
        }
        for id in spoken_to {
            let outcome = self.clients.get_mut(&id).map_or(Ok(()), |client| client.wire.flush());
            if let Err(Broken(reason)) = outcome {
                self.lose(id, &reason);
            }
        }
        if self.shards.get(&store).is_some_and(Shard::is_over) {
            self.shards.remove(&store);
            self.partners.retain(|(of, _), _| *of != store);
        }
    }

    /// Queues a frame for somebody; gives whom, if it has to be flushed.
    fn tell(&mut self, who: Who, response: &Response, payload: Payload) -> Option<ClientId> {
        let id = *self.seats.get(&who)?;
        let client = self.clients.get_mut(&id)?;
        if client.wire.waiting() == 0 {
            client.moved = Instant::now();
        }
        if let Err(e) = client.wire.say(response, payload) {
            tracing::error!(error = %e, "a parameter server can't answer");
        }
        Some(id)
    }

    fn tell_partner(&mut self, store: StoreId, server: ServerId, request: Request, payload: Payload) {
        let Some(setup) = self.shards.get(&store).map(Shard::setup) else { return };
        let partner = self.partners.entry((store, server)).or_insert_with(|| {
            let addresses = setup.servers.get(server.index()).cloned().unwrap_or_default();
            self.dialler.dial(store, server, addresses);
            Partner::Dialling(Vec::new())
        });
        match partner {
            Partner::Dialling(waiting) => waiting.push((request, payload)),
            Partner::Up(wire) => {
                // What is broken is noticed when it is read.
                let _ = wire.say(&request, payload);
                let _ = wire.flush();
            }
            Partner::Lost => {}
        }
    }

    fn connected(&mut self, store: StoreId, server: ServerId, stream: Result<Box<dyn Stream>>) {
        let Some(me) = self.shards.get(&store).map(|shard| shard.setup().you) else { return };
        let Some(partner) = self.partners.get_mut(&(store, server)) else { return };
        let Partner::Dialling(waiting) = std::mem::replace(partner, Partner::Lost) else { return };
        match stream {
            Ok(stream) => {
                let mut wire = Box::new(Wire::new(stream));
                let hello = Request::Partner { store, server: me };
                let frames = std::iter::once((hello, Payload::default())).chain(waiting);
                for (request, payload) in frames {
                    let _ = wire.say(&request, payload);
                }
                *partner = Partner::Up(wire);
                self.hear_partner(store, server);
            }
            Err(e) => self.lose_partner(store, server, &e.to_string()),
        }
    }

    fn hear_partner(&mut self, store: StoreId, server: ServerId) {
        let Some(Partner::Up(wire)) = self.partners.get_mut(&(store, server)) else { return };
        let mut heard = Vec::new();
        let mut more = true;
        let mut outcome = Ok(());
        while more && outcome.is_ok() {
            outcome = wire.flush();
            match wire.read(|response, _| {
                heard.push(response);
                Ok(())
            }) {
                Ok(again) => more = again,
                Err(broken) => outcome = Err(broken),
            }
        }
        if let Some(shard) = self.shards.get_mut(&store) {
            for response in heard {
                match response {
                    Response::Kept { key, change } => shard.kept(server, key, change),
                    Response::Refused { why, .. } => outcome = Err(Broken(why)),
                    _ => outcome = Err(Broken("it says what servers do not say to servers".into())),
                }
            }
        }
        if let Err(Broken(reason)) = outcome {
            self.lose_partner(store, server, &reason);
        }
        self.pump(store);
    }

    fn lose_partner(&mut self, store: StoreId, server: ServerId, reason: &str) {
        tracing::warn!(%server, reason, "a parameter server has lost the one that keeps its copies");
        self.partners.insert((store, server), Partner::Lost);
        if let Some(shard) = self.shards.get_mut(&store) {
            shard.lose(server);
        }
        self.pump(store);
    }

    fn send_slow_ones_away(&mut self, now: Instant) {
        for client in self.clients.values_mut() {
            let out = client.wire.moved.1;
            if client.wire.waiting() == 0 || out != client.out {
                (client.moved, client.out) = (now, out);
            }
        }
        let late = |g: &Client| g.wire.waiting() > 0 && now >= g.moved + UNREAD_TIME;
        let late: Vec<ClientId> = self.clients.iter().filter(|(_, g)| late(g)).map(|(id, _)| *id).collect();
        for id in late {
            self.lose(id, &format!("it has not read what it was told for {UNREAD_TIME:?}"));
        }
    }

    /// A connection has ended: nobody waits for its worker any more.
    fn lose(&mut self, id: ClientId, reason: &str) {
        let Some(client) = self.clients.remove(&id) else { return };
        tracing::debug!(remote = %client.remote, who = ?client.who, reason, "a client of a parameter server is gone");
        let Some(who) = client.who.filter(|who| self.seats.get(who) == Some(&id)) else { return };
        self.seats.remove(&who);
        let store = match who {
            Who::Worker(store, worker) => {
                if let Some(shard) = self.shards.get_mut(&store) {
                    shard.leave(worker);
                }
                store
            }
            Who::Server(store, server) => {
                if let Some(shard) = self.shards.get_mut(&store) {
                    shard.lose(server);
                }
                store
            }
        };
        self.pump(store);
    }
}
