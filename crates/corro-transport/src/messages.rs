//! Many processes of a job talking to one of them, by messages, both ways and at any time.
//!
//! [`MessageServer`] is the one: one thread that hands every message to a function of its owner's. [`MessageClient`] is
//! the other end. What messages mean is the owner's business; here they are authenticated, length-capped and decoded. A
//! client that sends nonsense, or does not read, is sent away, and nobody else notices. (The rendezvous store answers
//! questions; this server can also speak first, and tells when a client has gone.)

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result, codec};
use rustix::event::{PollFd, PollFlags};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::bind::{Bind, published};
use crate::handshake::{Purpose, Serves};
use crate::secret::Secret;
use crate::stream::{Broken, Stream};
use crate::tcp::acceptor::Acceptor;
use crate::tcp::dial::{self, Dialer};
use crate::tcp::socket::{Socket, wait};
use crate::tcp::{ring, wake_fd};
use crate::tls::TlsIdentity;

/// How long a client may leave what it was told unread.
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// How much may wait to be read by one client.
const UNREAD_BYTES: usize = 256 << 20;
/// How many connections at once.
const CONNECTIONS: usize = 64 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// One connection of a client; never used for another.
pub type ConnectionId = u64;

/// What a server hears.
#[derive(Debug)]
pub enum MessageEvent<T> {
    /// A process that has the job's secret has come.
    Connected(ConnectionId),
    /// It says this.
    Received(ConnectionId, T),
    /// Its connection has ended, for this reason.
    Disconnected(ConnectionId, String),
}

enum Order {
    Tell(ConnectionId, Vec<u8>),
    Close(ConnectionId),
    Stop,
}

/// A server that is open. Closed when dropped.
pub struct MessageServer {
    name: &'static str,
    addresses: Vec<SocketAddr>,
    wake: Arc<OwnedFd>,
    orders: Mutex<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl MessageServer {
    /// Listens at `bind` (port 0: any free one). Whatever those who prove `secret` say, in at most `cap` bytes, is given to
    /// `hear`, in a thread of the server's own. `name` says in messages who listens.
    pub fn open<T: DeserializeOwned + 'static>(
        name: &'static str,
        bind: SocketAddr,
        secret: &Secret,
        tls: bool,
        cap: usize,
        hear: impl FnMut(MessageEvent<T>) + Send + 'static,
    ) -> Result<Self> {
        Self::open_at(name, &bind.into(), secret, tls, cap, hear)
    }

    /// As [`MessageServer::open`], at several addresses perhaps.
    pub fn open_at<T: DeserializeOwned + 'static>(
        name: &'static str,
        bind: &Bind,
        secret: &Secret,
        tls: bool,
        cap: usize,
        hear: impl FnMut(MessageEvent<T>) + Send + 'static,
    ) -> Result<Self> {
        let (listeners, addresses) = bind.listen().map_err(|e| Error::io(format!("opening {bind} for {name}"), e))?;
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let acceptor = Acceptor::new(listeners, Arc::new(secret.clone()), tls, Serves::Messages)?;
        let wake = Arc::new(wake_fd()?);
        let (sender, orders) = channel();
        let serve = {
            let wake = Arc::clone(&wake);
            move || {
                let scratch = vec![0; READ_BYTES].into_boxed_slice();
                let connections = BTreeMap::new();
                let loop_ = Loop { name, acceptor, cap, hear, connections, next: 0, scratch, said: PhantomData };
                loop_.run(&wake, &orders);
            }
        };
        let thread = std::thread::Builder::new()
            .name("corro-messages".into())
            .spawn(serve)
            .map_err(|e| Error::io(format!("starting the thread of {name}"), e))?;
        Ok(Self { name, addresses, wake, orders: Mutex::new(sender), thread: Some(thread) })
    }

    /// Tells a client something. One that has gone hears nothing.
    pub fn tell<T: Serialize>(&self, connection: ConnectionId, message: &T) -> Result<()> {
        let bytes = codec::encode(message)?;
        self.order(Order::Tell(connection, bytes));
        Ok(())
    }

    /// Ends a client's connection. It is not heard of any more.
    pub fn close(&self, connection: ConnectionId) {
        self.order(Order::Close(connection));
    }

    /// Where it listens. The address may be the unspecified one; see [`MessageServer::addresses`].
    pub fn address(&self) -> SocketAddr {
        self.addresses[0]
    }

    /// Where clients can reach it, most promising first, loopback last.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        published(&self.addresses)
    }

    fn order(&self, order: Order) {
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        ring(&self.wake);
    }
}

impl Drop for MessageServer {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of {} has panicked; please report it", self.name);
        }
    }
}

impl std::fmt::Debug for MessageServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageServer").field("addresses", &self.addresses).finish_non_exhaustive()
    }
}

struct Connection {
    socket: Socket,
    input: Vec<u8>,
    output: Vec<u8>,
    /// When output last moved, or began to wait.
    moved: Instant,
}

struct Loop<T, H> {
    name: &'static str,
    acceptor: Acceptor,
    cap: usize,
    hear: H,
    connections: BTreeMap<ConnectionId, Connection>,
    next: ConnectionId,
    scratch: Box<[u8]>,
    said: PhantomData<T>,
}

impl<T: DeserializeOwned, H: FnMut(MessageEvent<T>)> Loop<T, H> {
    fn run(mut self, wake: &OwnedFd, orders: &Receiver<Order>) {
        loop {
            let now = Instant::now();
            let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
            self.acceptor.poll_fds(now, &mut fds);
            let acceptor_end = fds.len();
            fds.extend(
                self.connections
                    .values()
                    .map(|v| PollFd::from_borrowed_fd(v.socket.as_fd(), v.socket.interest(!v.output.is_empty()))),
            );
            if let Err(e) = wait(&mut fds, self.timeout(now)) {
                tracing::warn!(error = %e, "the thread of {}", self.name);
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            let with_events = self.connections.keys().zip(&events[acceptor_end..]);
            let ready: Vec<ConnectionId> = with_events.filter(|(_, e)| !e.is_empty()).map(|(id, _)| *id).collect();
            for id in ready {
                self.serve(id);
            }
            if !events[0].is_empty() {
                let _ = rustix::io::read(wake, &mut [0; 8]);
            }
            while let Ok(order) = orders.try_recv() {
                match order {
                    Order::Stop => return self.say_goodbye(),
                    Order::Close(id) => drop(self.connections.remove(&id)),
                    Order::Tell(id, bytes) => self.tell(id, &bytes),
                }
            }
            let now = Instant::now();
            self.send_slow_ones_away(now);
            for proven in self.acceptor.turn(&events[1..acceptor_end], now) {
                if self.connections.len() >= CONNECTIONS {
                    tracing::warn!(remote = %proven.remote, "{} takes no more connections", self.name);
                    continue;
                }
                let Some(socket) = proven.accept() else { continue };
                let id = self.next;
                self.next += 1;
                let connection = Connection { socket, input: Vec::new(), output: Vec::new(), moved: now };
                self.connections.insert(id, connection);
                (self.hear)(MessageEvent::Connected(id));
                // With TLS, the first message may have come along with the proof, and then no event will tell of it.
                self.serve(id);
            }
        }
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        let unread = self.connections.values().filter(|v| !v.output.is_empty());
        let until = unread.map(|v| (v.moved + UNREAD_TIME).saturating_duration_since(now)).min();
        [until, self.acceptor.timeout(now)].into_iter().flatten().min()
    }

    fn serve(&mut self, id: ConnectionId) {
        if let Err(reason) = self.try_serve(id) {
            self.lose(id, reason);
        }
    }

    fn try_serve(&mut self, id: ConnectionId) -> Result<(), String> {
        loop {
            let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
            connection.flush()?;
            let count = connection.socket.stream().try_read(&mut self.scratch).map_err(|Broken(reason)| reason)?;
            if count == 0 {
                return Ok(());
            }
            connection.input.extend_from_slice(&self.scratch[..count]);
            let mut taken = 0;
            while let Some((message, used)) =
                codec::take::<T>(&connection.input[taken..], self.cap).map_err(|e| e.to_string())?
            {
                taken += used;
                (self.hear)(MessageEvent::Received(id, message));
            }
            connection.input.drain(..taken);
        }
    }

    fn tell(&mut self, id: ConnectionId, bytes: &[u8]) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.output.is_empty() {
            connection.moved = Instant::now();
        }
        connection.output.extend_from_slice(bytes);
        let full = connection.output.len() > UNREAD_BYTES;
        match connection.flush() {
            Err(reason) => self.lose(id, reason),
            Ok(()) if full => self.lose(id, "it does not read what it is told".into()),
            Ok(()) => {}
        }
    }

    /// What was told last is still sent, as far as it goes at once.
    fn say_goodbye(mut self) {
        for connection in self.connections.values_mut() {
            let _ = connection.flush();
        }
    }

    fn send_slow_ones_away(&mut self, now: Instant) {
        let late = |v: &Connection| !v.output.is_empty() && now >= v.moved + UNREAD_TIME;
        let late: Vec<ConnectionId> = self.connections.iter().filter(|(_, v)| late(v)).map(|(id, _)| *id).collect();
        for id in late {
            self.lose(id, format!("it has not read what it was told for {UNREAD_TIME:?}"));
        }
    }

    fn lose(&mut self, id: ConnectionId, reason: String) {
        if self.connections.remove(&id).is_some() {
            (self.hear)(MessageEvent::Disconnected(id, reason));
        }
    }
}

impl Connection {
    fn flush(&mut self) -> Result<(), String> {
        let broken = |Broken(reason)| reason;
        while !self.output.is_empty() {
            let count = self.socket.stream().try_write(&self.output).map_err(broken)?;
            if count == 0 {
                return Ok(());
            }
            self.output.drain(..count);
            self.moved = Instant::now();
        }
        self.socket.stream().try_flush().map(drop).map_err(broken)
    }
}

/// A client's end of its connection to a server.
pub struct MessageClient {
    stream: Box<dyn Stream>,
    address: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl MessageClient {
    /// Connects to a server, which may be reachable by several addresses and may open later than we come. `name` says in
    /// messages who it is.
    pub fn connect(
        name: &'static str,
        addresses: &[SocketAddr],
        secret: &Secret,
        tls: bool,
        deadline: Deadline,
    ) -> Result<Self> {
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
            let proven = dialer.race(addresses, Purpose::Messages, false, &limit).map_err(|tried| failed(&tried))?;
            let Some(first) = proven.into_iter().next() else { continue };
            let address = first.address;
            match first.complete(&limit) {
                Ok(socket) => {
                    return Ok(Self { stream: socket.into_stream(), address, input: Vec::new(), output: Vec::new() });
                }
                Err(tried) if deadline.passed() => return Err(failed(&[tried])),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Where the server is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says something; it is on its way at the latest after some calls of [`MessageClient::turn`].
    pub fn say<T: Serialize>(&mut self, message: &T) -> Result<(), Broken> {
        let bytes = codec::encode(message).map_err(|e| Broken(e.to_string()))?;
        self.output.extend_from_slice(&bytes);
        self.flush()
    }

    /// Sends what waits, and gives the messages that have come, each of at most `cap` bytes. Never waits.
    pub fn turn<T: DeserializeOwned>(&mut self, cap: usize) -> Result<Vec<T>, Broken> {
        // What came before the end is still heard; the end is told after it.
        let mut ended = self.flush().err();
        let mut bytes = vec![0; READ_BYTES];
        loop {
            match self.stream.try_read(&mut bytes) {
                Ok(0) => break,
                Ok(count) => self.input.extend_from_slice(&bytes[..count]),
                Err(broken) => {
                    ended = Some(broken);
                    break;
                }
            }
        }
        let mut messages = Vec::new();
        let mut taken = 0;
        let wrong = |e: Error| Broken(e.to_string());
        while let Some((message, used)) = codec::take::<T>(&self.input[taken..], cap).map_err(wrong)? {
            taken += used;
            messages.push(message);
        }
        self.input.drain(..taken);
        match ended {
            Some(broken) if messages.is_empty() => Err(broken),
            _ => Ok(messages),
        }
    }

    /// Sleeps until something has come, `also` is readable, or `timeout` is over.
    pub fn wait(&self, also: BorrowedFd<'_>, timeout: Duration) -> Result<()> {
        let interest = if self.output.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT };
        let mut fds =
            [PollFd::from_borrowed_fd(self.stream.fd(), interest), PollFd::from_borrowed_fd(also, PollFlags::IN)];
        wait(&mut fds, Some(timeout))
    }

    fn flush(&mut self) -> Result<(), Broken> {
        while !self.output.is_empty() {
            let count = self.stream.try_write(&self.output)?;
            if count == 0 {
                return Ok(());
            }
            self.output.drain(..count);
        }
        self.stream.try_flush().map(drop)
    }
}

impl std::fmt::Debug for MessageClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MessageClient").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Something to poll that another thread can make readable, for [`MessageClient::wait`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<OwnedFd>);

impl Waker {
    /// A new one.
    pub fn new() -> Result<Self> {
        Ok(Self(Arc::new(wake_fd()?)))
    }

    /// Makes it readable.
    pub fn ring(&self) {
        ring(&self.0);
    }

    /// Makes it unreadable again.
    pub fn silence(&self) {
        let _ = rustix::io::read(&*self.0, &mut [0; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn open(secret: &Secret, tls: bool) -> (MessageServer, Receiver<MessageEvent<String>>) {
        let (sender, heard) = channel();
        let hear = move |h| drop(sender.send(h));
        (MessageServer::open("a test", "127.0.0.1:0".parse().unwrap(), secret, tls, 100, hear).unwrap(), heard)
    }

    fn hear(client: &mut MessageClient) -> Result<Vec<String>, Broken> {
        let bell = Waker::new().unwrap();
        let until = Instant::now() + SOON;
        loop {
            let said = client.turn::<String>(100)?;
            if !said.is_empty() || Instant::now() > until {
                return Ok(said);
            }
            client.wait(bell.as_fd(), Duration::from_millis(50)).unwrap();
        }
    }

    #[test]
    fn both_ends_may_speak_first_and_the_end_is_heard() {
        for tls in [false, true] {
            let secret = Secret::from_bytes([3; 32]);
            let (server, heard) = open(&secret, tls);
            let mut client =
                MessageClient::connect("a test", &[server.address()], &secret, tls, Deadline::after(SOON)).unwrap();
            let MessageEvent::Connected(id) = heard.recv_timeout(SOON).unwrap() else { panic!() };
            server.tell(id, &"welcome").unwrap();
            assert_eq!(hear(&mut client).unwrap(), ["welcome"]);
            client.say(&"hello").unwrap();
            assert!(
                matches!(heard.recv_timeout(SOON).unwrap(), MessageEvent::Received(from, text) if from == id && text == "hello")
            );
            drop(client);
            assert!(matches!(heard.recv_timeout(SOON).unwrap(), MessageEvent::Disconnected(gone, _) if gone == id));
        }
    }

    #[test]
    fn strangers_and_nonsense_are_sent_away() {
        let secret = Secret::from_bytes([3; 32]);
        let (server, heard) = open(&secret, false);
        let other = Secret::from_bytes([4; 32]);
        let error =
            MessageClient::connect("a test", &[server.address()], &other, false, Deadline::after(SOON)).unwrap_err();
        assert!(matches!(error, Error::Unauthenticated(_)), "{error}");
        let mut client =
            MessageClient::connect("a test", &[server.address()], &secret, false, Deadline::after(SOON)).unwrap();
        client.say(&"x".repeat(1000)).unwrap();
        assert!(matches!(heard.recv_timeout(SOON).unwrap(), MessageEvent::Connected(_)));
        assert!(
            matches!(heard.recv_timeout(SOON).unwrap(), MessageEvent::Disconnected(_, why) if why.contains("at most 100"))
        );
        assert!(hear(&mut client).is_err());
    }

    #[test]
    fn last_words_are_heard_before_the_end() {
        let secret = Secret::from_bytes([3; 32]);
        let (server, heard) = open(&secret, false);
        let mut client =
            MessageClient::connect("a test", &[server.address()], &secret, false, Deadline::after(SOON)).unwrap();
        let MessageEvent::Connected(id) = heard.recv_timeout(SOON).unwrap() else { panic!() };
        server.tell(id, &"over").unwrap();
        drop(server);
        assert_eq!(hear(&mut client).unwrap(), ["over"]);
        assert!(hear(&mut client).is_err());
    }
}
