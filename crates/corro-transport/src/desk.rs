//! Many processes of a job talking to one of them, by messages, both ways and at any time.
//!
//! [`Desk`] is the one: one thread that hands every message to a function of its owner's. [`Line`] is the other end.
//! What messages mean is the owner's business; here they are authenticated, length-capped and decoded. A visitor that
//! sends nonsense, or does not read, is sent away, and nobody else notices. (The rendezvous store answers questions; a desk
//! can also speak first, and tells when a visitor has gone.)

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

use crate::handshake::{Purpose, Serves};
use crate::nic;
use crate::secret::Secret;
use crate::stream::{Broken, Stream};
use crate::tcp::dial::{self, Dialer};
use crate::tcp::gate::Gate;
use crate::tcp::socket::{Socket, wait};
use crate::tcp::{listen_at, ring, wake_fd};
use crate::tls::TlsIdentity;

/// How long a visitor may leave what it was told unread.
const UNREAD_TIME: Duration = Duration::from_secs(30);
/// How much may wait to be read by one visitor.
const UNREAD_BYTES: usize = 256 << 20;
/// How many visitors at once.
const VISITORS: usize = 64 * 1024;
const READ_BYTES: usize = 64 * 1024;

/// One connection of a visitor; never used for another.
pub type VisitorId = u64;

/// What a desk hears.
#[derive(Debug)]
pub enum Heard<T> {
    /// A process that has the job's secret has come.
    Came(VisitorId),
    /// It says this.
    Said(VisitorId, T),
    /// Its connection has ended, for this reason.
    Gone(VisitorId, String),
}

enum Order {
    Tell(VisitorId, Vec<u8>),
    Close(VisitorId),
    Stop,
}

/// A desk that is open. Closed when dropped.
pub struct Desk {
    address: SocketAddr,
    wake: Arc<OwnedFd>,
    orders: Mutex<Sender<Order>>,
    thread: Option<JoinHandle<()>>,
}

impl Desk {
    /// Listens at `bind` (port 0: any free one). Whatever those who prove `secret` say, in at most `cap` bytes, is given to
    /// `hear`, in a thread of the desk's own.
    pub fn open<T: DeserializeOwned + 'static>(
        bind: SocketAddr,
        secret: &Secret,
        tls: bool,
        cap: usize,
        hear: impl FnMut(Heard<T>) + Send + 'static,
    ) -> Result<Self> {
        let failed = |e| Error::io(format!("opening {bind} for an elastic job's driver"), e);
        let listener = listen_at(bind).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let gate = Gate::new(listener, Arc::new(secret.clone()), tls, Serves::Desk)?;
        let wake = Arc::new(wake_fd()?);
        let (sender, orders) = channel();
        let serve = {
            let wake = Arc::clone(&wake);
            move || {
                let scratch = vec![0; READ_BYTES].into_boxed_slice();
                let loop_ = Loop { gate, cap, hear, visitors: BTreeMap::new(), next: 0, scratch, said: PhantomData };
                loop_.run(&wake, &orders);
            }
        };
        let thread = std::thread::Builder::new()
            .name("corro-desk".into())
            .spawn(serve)
            .map_err(|e| Error::io("starting the thread of an elastic job's driver", e))?;
        Ok(Self { address, wake, orders: Mutex::new(sender), thread: Some(thread) })
    }

    /// Tells a visitor something. One that has gone hears nothing.
    pub fn tell<T: Serialize>(&self, visitor: VisitorId, message: &T) -> Result<()> {
        let bytes = codec::encode(message)?;
        self.order(Order::Tell(visitor, bytes));
        Ok(())
    }

    /// Ends a visitor's connection. It is not heard of any more.
    pub fn close(&self, visitor: VisitorId) {
        self.order(Order::Close(visitor));
    }

    /// Where it listens. The address may be the unspecified one; see [`Desk::addresses`].
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where visitors can reach it, most promising first, loopback last.
    pub fn addresses(&self) -> Result<Vec<SocketAddr>> {
        if !self.address.ip().is_unspecified() {
            return Ok(vec![self.address]);
        }
        Ok(nic::with_port(&nic::addresses(None)?, self.address.port(), self.address.is_ipv6()))
    }

    fn order(&self, order: Order) {
        let _ = self.orders.lock().unwrap_or_else(PoisonError::into_inner).send(order);
        ring(&self.wake);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of an elastic job's driver has panicked; please report it");
        }
    }
}

impl std::fmt::Debug for Desk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Desk").field("address", &self.address).finish_non_exhaustive()
    }
}

struct Visitor {
    socket: Socket,
    input: Vec<u8>,
    output: Vec<u8>,
    /// When output last moved, or began to wait.
    moved: Instant,
}

struct Loop<T, H> {
    gate: Gate,
    cap: usize,
    hear: H,
    visitors: BTreeMap<VisitorId, Visitor>,
    next: VisitorId,
    scratch: Box<[u8]>,
    said: PhantomData<T>,
}

impl<T: DeserializeOwned, H: FnMut(Heard<T>)> Loop<T, H> {
    fn run(mut self, wake: &OwnedFd, orders: &Receiver<Order>) {
        loop {
            let now = Instant::now();
            let mut fds = vec![PollFd::from_borrowed_fd(wake.as_fd(), PollFlags::IN)];
            self.gate.poll_fds(now, &mut fds);
            let gate_end = fds.len();
            fds.extend(
                self.visitors
                    .values()
                    .map(|v| PollFd::from_borrowed_fd(v.socket.as_fd(), v.socket.interest(!v.output.is_empty()))),
            );
            if let Err(e) = wait(&mut fds, self.timeout(now)) {
                tracing::warn!(error = %e, "the thread of an elastic job's driver");
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
            drop(fds);
            let with_events = self.visitors.keys().zip(&events[gate_end..]);
            let ready: Vec<VisitorId> = with_events.filter(|(_, e)| !e.is_empty()).map(|(id, _)| *id).collect();
            for id in ready {
                self.serve(id);
            }
            if !events[0].is_empty() {
                let _ = rustix::io::read(wake, &mut [0; 8]);
            }
            while let Ok(order) = orders.try_recv() {
                match order {
                    Order::Stop => return self.say_goodbye(),
                    Order::Close(id) => drop(self.visitors.remove(&id)),
                    Order::Tell(id, bytes) => self.tell(id, &bytes),
                }
            }
            let now = Instant::now();
            self.send_slow_ones_away(now);
            for proven in self.gate.turn(&events[1..gate_end], now) {
                if self.visitors.len() >= VISITORS {
                    tracing::warn!(remote = %proven.remote, "the driver of this elastic job takes no more connections");
                    continue;
                }
                let Some(socket) = proven.accept() else { continue };
                let id = self.next;
                self.next += 1;
                let visitor = Visitor { socket, input: Vec::new(), output: Vec::new(), moved: now };
                self.visitors.insert(id, visitor);
                (self.hear)(Heard::Came(id));
                // With TLS, the first message may have come along with the proof, and then no event will tell of it.
                self.serve(id);
            }
        }
    }

    fn timeout(&self, now: Instant) -> Option<Duration> {
        let unread = self.visitors.values().filter(|v| !v.output.is_empty());
        let until = unread.map(|v| (v.moved + UNREAD_TIME).saturating_duration_since(now)).min();
        [until, self.gate.timeout(now)].into_iter().flatten().min()
    }

    fn serve(&mut self, id: VisitorId) {
        if let Err(reason) = self.try_serve(id) {
            self.lose(id, reason);
        }
    }

    fn try_serve(&mut self, id: VisitorId) -> Result<(), String> {
        loop {
            let Some(visitor) = self.visitors.get_mut(&id) else { return Ok(()) };
            visitor.flush()?;
            let count = visitor.socket.stream().try_read(&mut self.scratch).map_err(|Broken(reason)| reason)?;
            if count == 0 {
                return Ok(());
            }
            visitor.input.extend_from_slice(&self.scratch[..count]);
            let mut taken = 0;
            while let Some((message, used)) =
                codec::take::<T>(&visitor.input[taken..], self.cap).map_err(|e| e.to_string())?
            {
                taken += used;
                (self.hear)(Heard::Said(id, message));
            }
            visitor.input.drain(..taken);
        }
    }

    fn tell(&mut self, id: VisitorId, bytes: &[u8]) {
        let Some(visitor) = self.visitors.get_mut(&id) else { return };
        if visitor.output.is_empty() {
            visitor.moved = Instant::now();
        }
        visitor.output.extend_from_slice(bytes);
        let full = visitor.output.len() > UNREAD_BYTES;
        match visitor.flush() {
            Err(reason) => self.lose(id, reason),
            Ok(()) if full => self.lose(id, "it does not read what it is told".into()),
            Ok(()) => {}
        }
    }

    /// What was told last is still sent, as far as it goes at once.
    fn say_goodbye(mut self) {
        for visitor in self.visitors.values_mut() {
            let _ = visitor.flush();
        }
    }

    fn send_slow_ones_away(&mut self, now: Instant) {
        let late = |v: &Visitor| !v.output.is_empty() && now >= v.moved + UNREAD_TIME;
        let late: Vec<VisitorId> = self.visitors.iter().filter(|(_, v)| late(v)).map(|(id, _)| *id).collect();
        for id in late {
            self.lose(id, format!("it has not read what it was told for {UNREAD_TIME:?}"));
        }
    }

    fn lose(&mut self, id: VisitorId, reason: String) {
        if self.visitors.remove(&id).is_some() {
            (self.hear)(Heard::Gone(id, reason));
        }
    }
}

impl Visitor {
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

/// A visitor's end of its connection to a desk.
pub struct Line {
    stream: Box<dyn Stream>,
    address: SocketAddr,
    input: Vec<u8>,
    output: Vec<u8>,
}

impl Line {
    /// Connects to a desk, which may be reachable by several addresses and may open later than we come.
    pub fn connect(addresses: &[SocketAddr], secret: &Secret, tls: bool, deadline: Deadline) -> Result<Self> {
        let tls = if tls { Some(Arc::new(TlsIdentity::new(secret)?)) } else { None };
        let dialer = Dialer { secret: Arc::new(secret.clone()), tls };
        let failed = |tried: &[dial::Tried]| {
            let how = if tried.is_empty() { "no address was given".into() } else { dial::list(tried) };
            let how = format!("not possible{}: {how}", dial::within(deadline));
            if tried.iter().any(|t| t.failure == dial::Failure::Impostor) {
                return Error::Unauthenticated(format!("connecting to the driver of this elastic job: {how}"));
            }
            Error::io("connecting to the driver of this elastic job", how)
        };
        let patience = deadline.into();
        loop {
            let proven = dialer.race(addresses, Purpose::Desk, false, &patience).map_err(|tried| failed(&tried))?;
            let Some(first) = proven.into_iter().next() else { continue };
            let address = first.address;
            match first.complete(&patience) {
                Ok(socket) => {
                    return Ok(Self { stream: socket.into_stream(), address, input: Vec::new(), output: Vec::new() });
                }
                Err(tried) if deadline.passed() => return Err(failed(&[tried])),
                Err(_) => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }

    /// Where the desk is.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Says something; it is on its way at the latest after some calls of [`Line::turn`].
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

impl std::fmt::Debug for Line {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Line").field("address", &self.address).finish_non_exhaustive()
    }
}

/// Something to poll that another thread can make readable, for [`Line::wait`].
#[derive(Clone, Debug)]
pub struct Bell(Arc<OwnedFd>);

impl Bell {
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

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    fn open(secret: &Secret, tls: bool) -> (Desk, Receiver<Heard<String>>) {
        let (sender, heard) = channel();
        let hear = move |h| drop(sender.send(h));
        (Desk::open("127.0.0.1:0".parse().unwrap(), secret, tls, 100, hear).unwrap(), heard)
    }

    fn hear(line: &mut Line) -> Result<Vec<String>, Broken> {
        let bell = Bell::new().unwrap();
        let until = Instant::now() + SOON;
        loop {
            let said = line.turn::<String>(100)?;
            if !said.is_empty() || Instant::now() > until {
                return Ok(said);
            }
            line.wait(bell.as_fd(), Duration::from_millis(50)).unwrap();
        }
    }

    #[test]
    fn both_ends_may_speak_first_and_the_end_is_heard() {
        for tls in [false, true] {
            let secret = Secret::from_bytes([3; 32]);
            let (desk, heard) = open(&secret, tls);
            let mut line = Line::connect(&[desk.address()], &secret, tls, Deadline::after(SOON)).unwrap();
            let Heard::Came(id) = heard.recv_timeout(SOON).unwrap() else { panic!() };
            desk.tell(id, &"welcome").unwrap();
            assert_eq!(hear(&mut line).unwrap(), ["welcome"]);
            line.say(&"hello").unwrap();
            assert!(
                matches!(heard.recv_timeout(SOON).unwrap(), Heard::Said(from, text) if from == id && text == "hello")
            );
            drop(line);
            assert!(matches!(heard.recv_timeout(SOON).unwrap(), Heard::Gone(gone, _) if gone == id));
        }
    }

    #[test]
    fn strangers_and_nonsense_are_sent_away() {
        let secret = Secret::from_bytes([3; 32]);
        let (desk, heard) = open(&secret, false);
        let other = Secret::from_bytes([4; 32]);
        let error = Line::connect(&[desk.address()], &other, false, Deadline::after(SOON)).unwrap_err();
        assert!(matches!(error, Error::Unauthenticated(_)), "{error}");
        let mut line = Line::connect(&[desk.address()], &secret, false, Deadline::after(SOON)).unwrap();
        line.say(&"x".repeat(1000)).unwrap();
        assert!(matches!(heard.recv_timeout(SOON).unwrap(), Heard::Came(_)));
        assert!(matches!(heard.recv_timeout(SOON).unwrap(), Heard::Gone(_, why) if why.contains("at most 100")));
        assert!(hear(&mut line).is_err());
    }

    #[test]
    fn last_words_are_heard_before_the_end() {
        let secret = Secret::from_bytes([3; 32]);
        let (desk, heard) = open(&secret, false);
        let mut line = Line::connect(&[desk.address()], &secret, false, Deadline::after(SOON)).unwrap();
        let Heard::Came(id) = heard.recv_timeout(SOON).unwrap() else { panic!() };
        desk.tell(id, &"over").unwrap();
        drop(desk);
        assert_eq!(hear(&mut line).unwrap(), ["over"]);
        assert!(hear(&mut line).is_err());
    }
}
