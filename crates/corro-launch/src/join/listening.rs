//! The launcher's side: a port at which agents join, and who of them is there.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Error, Result, codec};
use corro_transport::listener::{self, Connection, Listener};
use corro_transport::secret::Secret;
use rustix::event::{PollFd, PollFlags};

use super::joined_agents::{JoinedAgents, is_meant};
use super::{Introduction, MAX_INTRODUCTION, join_key, relay};
use crate::event::Event;
use crate::hosts::Host;

/// How long one that has proven the secret may take to say who it is.
const INTRODUCTION_TIME: Duration = Duration::from_secs(10);
/// How often it is looked whether it is to close.
const LOOK: Duration = Duration::from_millis(100);
/// The most ranks that one agent may offer to take.
const MAX_SLOTS: u32 = 4096;

/// A port at which agents join, and those who have. Closed, and all agents sent away, when dropped.
pub(crate) struct AgentListener {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    closed: AtomicBool,
}

#[derive(Default)]
struct State {
    agents: JoinedAgents,
    /// The launcher's ends of those whom it has not asked for yet, by full name.
    ends: BTreeMap<String, UnixStream>,
    /// Those it has asked for and who are not there yet: their ends.
    awaited: Vec<(String, UnixStream)>,
    /// Who wants to know who is there.
    listener: Option<Sender<Event>>,
}

impl AgentListener {
    /// Opens it at `port`, for those who have the secret that this process was given.
    pub(crate) fn open(port: u16) -> Result<Self> {
        Self::open_with(port, &super::given_secret()?).map(|(listener, _)| listener)
    }

    fn open_with(port: u16, secret: &Secret) -> Result<(Self, Vec<SocketAddr>)> {
        let key = join_key(secret);
        // Encrypted in any case: orders hold the secret by which ranks talk to each other.
        let at = |address: SocketAddr| Listener::open("agents that join", address, &key, true);
        // A system without IPv6 has the other one.
        let listener =
            at((Ipv6Addr::UNSPECIFIED, port).into()).or_else(|_| at((Ipv4Addr::UNSPECIFIED, port).into()))?;
        let addresses = listener.addresses()?;
        let shared = Arc::new(Shared::default());
        let serve = {
            let shared = Arc::clone(&shared);
            move || accept_agents(listener, &shared)
        };
        let thread = std::thread::Builder::new()
            .name("corro-join".into())
            .spawn(serve)
            .map_err(|e| Error::io("starting a thread", e))?;
        Ok((Self { shared, thread: Some(thread) }, addresses))
    }

    /// Tells `listener` who is there, now and whenever that changes.
    pub(crate) fn watch(&self, listener: Sender<Event>) {
        let mut state = self.shared.state();
        state.listener = Some(listener);
        state.tell();
    }

    /// The connection to the agent of a host, which may join later.
    pub(crate) fn call(&self, host: &str) -> Result<UnixStream> {
        let mut state = self.shared.state();
        if let Some(end) = state.agents.claim(host).and_then(|full_name| state.ends.remove(&full_name)) {
            return Ok(end);
        }
        let (ours, theirs) = pair()?;
        state.awaited.push((host.to_owned(), theirs));
        Ok(ours)
    }

    /// A host will go: it is not among those who are there any more.
    pub(crate) fn leave(&self, host: &str) {
        let mut state = self.shared.state();
        if state.agents.leave(host) {
            state.tell();
        }
    }
}

impl Drop for AgentListener {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        // Their other ends close, and with them the connections.
        let mut state = self.shared.state();
        state.ends.clear();
        state.awaited.clear();
        state.listener = None;
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn tell(&self) {
        if let Some(listener) = &self.listener {
            let hosts: Vec<(Host, bool)> = self.agents.hosts().into_iter().map(|host| (host, false)).collect();
            let _ = listener.send(Event::Hosts(hosts));
        }
    }

    /// One has come: its full name, and the end that is joined to its connection.
    fn admit(&mut self, introduction: &Introduction) -> Result<(String, UnixStream)> {
        let full_name = self.agents.come(&introduction.name, introduction.slots as usize);
        let host = |wanted: &str| self.agents.hosts().iter().any(|h| h.full_name() == full_name && is_meant(h, wanted));
        let end = match self.awaited.iter().position(|(wanted, _)| host(wanted)) {
            Some(at) => {
                let _ = self.agents.claim(&full_name);
                self.awaited.remove(at).1
            }
            None => {
                let (ours, theirs) = pair()?;
                self.ends.insert(full_name.clone(), ours);
                theirs
            }
        };
        self.tell();
        Ok((full_name, end))
    }

    fn dismiss(&mut self, full_name: &str) {
        self.agents.go(full_name);
        self.ends.remove(full_name);
        self.tell();
    }
}

fn pair() -> Result<(UnixStream, UnixStream)> {
    UnixStream::pair().map_err(|e| Error::io("making a pair of sockets for an agent", e))
}

fn accept_agents(mut listener: Listener, shared: &Arc<Shared>) {
    while !shared.closed.load(Ordering::Acquire) {
        let now = Instant::now();
        let mut fds = Vec::new();
        listener.poll_fds(now, &mut fds);
        let limit = listener.timeout(now).map_or(LOOK, |limit| limit.min(LOOK));
        if let Err(e) = listener::sleep(&mut fds, Some(limit)) {
            tracing::warn!(error = %e, "the port at which agents join");
            std::thread::sleep(LOOK);
        }
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        drop(fds);
        for connection in listener.turn(&events, Instant::now()) {
            let (remote, shared) = (connection.remote, Arc::clone(shared));
            let host = move || {
                if let Err(e) = receive(connection, &shared) {
                    tracing::warn!(%remote, error = %e, "an agent that joins");
                }
            };
            if let Err(e) = std::thread::Builder::new().name("corro-joined".into()).spawn(host) {
                tracing::warn!(%remote, error = %e, "no thread for an agent that joins");
            }
        }
    }
}

/// From an agent's introduction to the end of its connection.
fn receive(mut connection: Connection, shared: &Shared) -> Result<()> {
    let (introduction, rest) = listen(&mut connection)?;
    check(&introduction)?;
    let (full_name, end) = shared.state().admit(&introduction)?;
    relay::run(connection.stream, rest, &end);
    shared.state().dismiss(&full_name);
    Ok(())
}

/// The introduction, and what has come behind it.
fn listen(connection: &mut Connection) -> Result<(Introduction, Vec<u8>)> {
    let until = Instant::now() + INTRODUCTION_TIME;
    let (mut heard, mut bytes) = (Vec::new(), [0; 4096]);
    loop {
        let count = connection.stream.try_read(&mut bytes).map_err(|broken| Error::io("hearing its name", broken))?;
        heard.extend_from_slice(&bytes[..count]);
        if let Some((introduction, used)) = codec::take::<Introduction>(&heard, MAX_INTRODUCTION)? {
            return Ok((introduction, heard.split_off(used)));
        }
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(Error::io("hearing its name", format!("it said none within {INTRODUCTION_TIME:?}")));
        }
        if count == 0 {
            let mut fds = [PollFd::from_borrowed_fd(connection.stream.fd(), PollFlags::IN)];
            listener::sleep(&mut fds, Some(left))?;
        }
    }
}

/// Names are shown to people, and are names of hosts.
fn check(introduction: &Introduction) -> Result<()> {
    let Introduction { name, slots } = introduction;
    let letter = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
    if !(1..=253).contains(&name.len()) || !name.bytes().all(letter) || !(1..=MAX_SLOTS).contains(slots) {
        return Err(Error::Malformed(format!("an agent called {name:?} with {slots} slots")));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::sync::mpsc::channel;

    use corro_core::Deadline;

    use super::*;

    const SOON: Duration = Duration::from_secs(20);

    /// An agent's end of its connection.
    fn join(at: &[SocketAddr], secret: &Secret, name: &str) -> Result<UnixStream> {
        let connection =
            listener::connect("a test", at, &join_key(secret), true, Deadline::after(Duration::from_secs(5)))?;
        let (mine, theirs) = pair()?;
        std::thread::spawn(move || relay::run(connection.stream, Vec::new(), &theirs));
        let introduction = codec::encode(&Introduction { name: name.into(), slots: 2 })?;
        (&mine).write_all(&introduction).unwrap();
        mine.set_read_timeout(Some(SOON)).unwrap();
        Ok(mine)
    }

    fn names(events: &std::sync::mpsc::Receiver<Event>) -> Vec<String> {
        match events.recv_timeout(SOON).unwrap() {
            Event::Hosts(hosts) => {
                hosts.iter().map(|(host, _)| format!("{}:{}", host.full_name(), host.slots)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn agents_come_and_go_and_talk_to_whoever_has_called_them() {
        let secret = Secret::from_bytes([5; 32]);
        let (listener, at) = AgentListener::open_with(0, &secret).unwrap();
        let (sender, events) = channel();
        listener.watch(sender);
        assert_eq!(names(&events), [""; 0]);
        // One is called before it comes, one after.
        let mut early = listener.call("w-0.workers").unwrap();
        let mut first = join(&at, &secret, "w-0").unwrap();
        assert_eq!(names(&events), ["w-0:2"]);
        let second = join(&at, &secret, "w-1").unwrap();
        assert_eq!(names(&events), ["w-0:2", "w-1:2"]);
        let mut late = listener.call("w-1").unwrap();
        for (launcher, agent, text) in
            [(&mut early, &mut first, b"to w-0"), (&mut late, &mut second.try_clone().unwrap(), b"to w-1")]
        {
            launcher.write_all(text).unwrap();
            let mut heard = [0; 6];
            agent.read_exact(&mut heard).unwrap();
            assert_eq!(&heard, text);
            agent.write_all(b"back").unwrap();
            launcher.set_read_timeout(Some(SOON)).unwrap();
            launcher.read_exact(&mut heard[..4]).unwrap();
            assert_eq!(&heard[..4], b"back");
        }
        listener.leave("w-1");
        assert_eq!(names(&events), ["w-0:2"]);
        second.shutdown(std::net::Shutdown::Both).unwrap();
        drop(second);
        assert_eq!(names(&events), ["w-0:2"]);
        assert_eq!(late.read(&mut [0; 8]).unwrap(), 0, "the end of a connection is heard");
        let _again = join(&at, &secret, "w-1").unwrap();
        assert_eq!(names(&events), ["w-0:2", "2@w-1:2"]);
        drop(listener);
        drop(early);
        assert_eq!(first.read(&mut [0; 8]).unwrap(), 0, "a launcher that ends is heard");
    }

    #[test]
    fn who_has_another_secret_or_a_strange_name_is_nobody() {
        let secret = Secret::from_bytes([5; 32]);
        let (listener, at) = AgentListener::open_with(0, &secret).unwrap();
        let (sender, events) = channel();
        listener.watch(sender);
        assert_eq!(names(&events), [""; 0]);
        assert!(join(&at, &Secret::from_bytes([6; 32]), "w-0").is_err());
        let mut strange = join(&at, &secret, "w 0\u{1b}[2J").unwrap();
        assert_eq!(strange.read(&mut [0; 8]).unwrap(), 0, "it is sent away");
        assert!(events.try_recv().is_err());
    }
}
