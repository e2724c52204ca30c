//! A worker's end of its store: the [`Session`] with its connections, and the thread that serves them.
//!
//! Whoever waits, works: a call that waits for an answer sends and receives itself, as waking a thread takes longer than a small push and pull.
//! The thread serves the connections while nobody waits. Calls that wait have a deadline; when it passes, servers are asked for
//! whom they wait, and the error says so.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use corro_transport::Broken;
use corro_transport::listener;
use corro_transport::messages::Waker;
use corro_transport::secret::Secret;
use rustix::event::{PollFd, PollFlags};

use crate::frame::{Request, Response, StoreSetup};
use crate::optimizer::Optimizer;
use crate::protocol::{Consistency, Payload, ServerId, WorkerId};
use crate::saving;
use crate::session::{Answer, KeySpec, Session};
use crate::shard::WAITS;
use crate::wire::Wire;

/// How much may wait to be sent before a push waits, too.
const QUEUED_BYTES: usize = 512 << 20;
/// How much is handed to a connection at once: what is there can't be overtaken any more.
const HANDED_BYTES: usize = 256 * 1024;
/// For how long after a wait the thread leaves the connections to whoever waits next.
const LEFT_ALONE: Duration = Duration::from_millis(1);
/// How often one who waits is asked whether it shall go on.
const LOOK: Duration = Duration::from_millis(100);
/// How long servers may take to say for whom they wait.
const EXPLAIN_TIME: Duration = Duration::from_secs(2);
/// How long goodbyes may take.
const BYE_TIME: Duration = Duration::from_secs(2);

/// One server, as its workers know it.
#[derive(Clone, Debug)]
pub struct ServerAddress {
    /// Where it can be reached.
    pub addresses: Vec<SocketAddr>,
    /// How much of the parameters it is to have, beside the others.
    pub share: f64,
}

/// What a store is, for one of its workers. All but `me` must be the same on every worker.
#[derive(Clone, Debug)]
pub struct StoreConfig {
    /// Which store of the job.
    pub store: u64,
    /// This worker.
    pub me: WorkerId,
    /// How many there are.
    pub workers: u32,
    /// How far they may drift apart.
    pub consistency: Consistency,
    /// In the same order everywhere.
    pub servers: Vec<ServerAddress>,
    /// The job's secret.
    pub secret: Secret,
    /// Whether everything goes through TLS.
    pub tls: bool,
    /// How long to wait for others; zero: for ever.
    pub timeout: Duration,
    /// How long connecting may take.
    pub connect_timeout: Duration,
    /// Asked now and then while a call waits: whether it shall give up, because the user wants to go.
    pub interrupted: fn() -> bool,
}

/// A value that was asked for.
#[derive(Debug)]
pub struct Pull {
    name: String,
    ids: Vec<u64>,
}

/// Rows that were asked for, and where each goes.
#[derive(Debug)]
pub struct PullRows {
    width: usize,
    ids: Vec<(u64, Vec<usize>)>,
}

/// A worker's end of its store. Says goodbye when dropped.
#[derive(Debug)]
pub struct Client {
    shared: Arc<Shared>,
    config: StoreConfig,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Never locked before the connections by one who wants both.
    state: Mutex<State>,
    connections: Mutex<Connections>,
    /// Something was heard, or the connections are free.
    changed: Condvar,
    waker: Waker,
    /// How many wait and have found the connections taken.
    waiting: AtomicUsize,
    begin: Instant,
    /// Until when (in microseconds since `begin`) callers serve the connections themselves.
    left_alone: AtomicU64,
}

#[derive(Debug)]
struct State {
    session: Session,
    /// Nothing more will be asked.
    closing: bool,
    /// Bytes that came and went.
    moved: (u64, u64),
}

impl Shared {
    // A panic elsewhere leaves the session whole enough to fail with words.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The connections, if nobody else serves them.
    fn take(&self) -> Option<MutexGuard<'_, Connections>> {
        match self.connections.try_lock() {
            Ok(connections) => Some(connections),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_micros() as u64
    }

    /// The thread is not to serve the connections for a moment.
    fn leave_alone(&self) {
        self.left_alone.store(self.now() + LEFT_ALONE.as_micros() as u64, Ordering::Relaxed);
    }

    /// For how long the thread is still to leave the connections alone.
    fn pause(&self) -> Option<Duration> {
        let left = self.left_alone.load(Ordering::Relaxed).checked_sub(self.now())?;
        (left > 0).then(|| Duration::from_micros(left))
    }
}

impl Client {
    /// Connects to all servers of a store.
    pub fn connect(config: StoreConfig) -> Result<Self> {
        let setup = StoreSetup {
            store: config.store,
            workers: config.workers,
            consistency: config.consistency,
            servers: config.servers.iter().map(|server| server.addresses.clone()).collect(),
            you: ServerId::FIRST,
        };
        let portions = config.servers.iter().map(|server| server.share).collect();
        let session = Session::new(config.me, setup, portions);
        let deadline = Deadline::after(config.connect_timeout);
        let mut wires = BTreeMap::new();
        for (server, place) in (0..).map(ServerId).zip(&config.servers) {
            let name = format!("parameter server {server} of {}", config.servers.len());
            let mut wire =
                Wire::new(listener::connect(&name, &place.addresses, &config.secret, config.tls, deadline)?.stream);
            wire.say(&session.hello(server), Payload::default())?;
            wires.insert(server, wire);
        }
        let state = Mutex::new(State { session, closing: false, moved: (0, 0) });
        let shared = Arc::new(Shared {
            state,
            connections: Mutex::new(Connections { wires, unfinished: false }),
            changed: Condvar::new(),
            waker: Waker::new()?,
            waiting: AtomicUsize::new(0),
            begin: Instant::now(),
            left_alone: AtomicU64::new(0),
        });
        let serving = shared.clone();
        let thread = std::thread::Builder::new()
            .name("corro-store-client".into())
            .spawn(move || serve(&serving))
            .map_err(|e| Error::io("starting the thread that talks to parameter servers", e))?;
        Ok(Self { shared, config, thread: Some(thread) })
    }

    /// Does something with the session, and has what follows from it sent: at once by the thread, or in a moment by whoever waits
    /// next.
    fn with<T>(&self, work: impl FnOnce(&mut Session) -> Result<T>) -> Result<T> {
        let mut state = self.shared.lock();
        let result = work(&mut state.session);
        let much = state.session.queued_bytes() > HANDED_BYTES;
        drop(state);
        if much || self.shared.pause().is_none() || self.shared.take().is_none() {
            self.shared.waker.ring();
        }
        result
    }

    /// Names a key, and waits until it has its first value: worker 0's (none: zeros).
    pub fn init(&self, spec: KeySpec, value: Option<&[u8]>) -> Result<()> {
        let what = format!("the first value of {:?}", spec.name);
        let ids = self.with(|session| session.init(spec, value))?;
        self.wait(&ids, &what).map(drop)
    }

    /// Pushes all of a key. The value may be changed at once.
    pub fn push(&self, name: &str, value: &[u8], priority: i64, rate: Option<f32>) -> Result<()> {
        self.wait_for_room()?;
        self.with(|session| session.push(name, value, priority, rate))
    }

    /// Pushes some rows of a key.
    pub fn push_rows(&self, name: &str, rows: &[u64], elements: &[u8], priority: i64, rate: Option<f32>) -> Result<()> {
        self.wait_for_room()?;
        self.with(|session| session.push_rows(name, rows, elements, priority, rate))
    }

    /// Asks for all of a key.
    pub fn pull(&self, name: &str, priority: i64) -> Result<Pull> {
        let ids = self.with(|session| session.pull(name, priority))?;
        Ok(Pull { name: name.to_owned(), ids })
    }

    /// Waits for a value; gives how many workers are in it, in rounds.
    pub fn value(&self, pull: &Pull, into: &mut [u8]) -> Result<u32> {
        let answers = self.wait(&pull.ids, &format!("the value of {:?}", pull.name))?;
        let state = self.shared.lock();
        let named = state.session.named(&pull.name)?;
        named.fits(into.len())?;
        let mut least = u32::MAX;
        for (part, answer) in answers.into_iter().enumerate() {
            if let Answer::Value(value, contributors) = answer {
                named.put(part, &value, into);
                least = least.min(contributors);
            }
        }
        Ok(least)
    }

    /// Whether a value has come.
    pub fn has_come(&self, pull: &Pull) -> bool {
        let state = self.shared.lock();
        pull.ids.iter().all(|id| state.session.is_answered(*id))
    }

    /// Asks for some rows of a key.
    pub fn pull_rows(&self, name: &str, rows: &[u64], priority: i64) -> Result<PullRows> {
        let width = self.shared.lock().session.named(name)?.layout.row_bytes();
        Ok(PullRows { width, ids: self.with(|session| session.pull_rows(name, rows, priority))? })
    }

    /// Waits for rows, which come in the order in which they were asked for.
    pub fn rows(&self, pull: &PullRows, into: &mut [u8]) -> Result<()> {
        let ids: Vec<u64> = pull.ids.iter().map(|(id, _)| *id).collect();
        let answers = self.wait(&ids, "rows")?;
        let count: usize = pull.ids.iter().map(|(_, places)| places.len()).sum();
        if into.len() != count * pull.width {
            return Err(Error::Usage(format!("{} bytes for {count} rows of {} bytes", into.len(), pull.width)));
        }
        for (answer, (_, places)) in answers.into_iter().zip(&pull.ids) {
            let Answer::Value(value, _) = answer else { continue };
            for (row, place) in value.chunks_exact(pull.width.max(1)).zip(places) {
                into[place * pull.width..(place + 1) * pull.width].copy_from_slice(row);
            }
        }
        Ok(())
    }

    /// A step is over.
    pub fn clock(&self) -> Result<()> {
        self.with(Session::clock)
    }

    /// Waits until all workers have come here, and everything that they pushed before is in what is read after.
    pub fn barrier(&self) -> Result<()> {
        let deadline = Deadline::after(self.config.timeout);
        self.wait_until(deadline, "its own pushes to be acknowledged", |session| {
            session.check().map(|()| (session.unacknowledged() == 0).then_some(()))
        })?;
        let id = self.with(Session::barrier)?;
        self.wait(&[id], "all workers to come to the barrier").map(drop)
    }

    /// Servers update with this from now on.
    pub fn set_optimizer(&self, optimizer: Optimizer) -> Result<()> {
        if optimizer.has_momentum() && matches!(self.config.consistency, Consistency::Async { staleness_lr: false }) {
            tracing::warn!(
                "asynchronous updates act like momentum of their own, and this optimizer adds to it: lower it, bound the \
                 staleness, or let the learning rate follow it"
            );
        }
        let ids = self.with(|session| session.optimize(optimizer))?;
        self.wait(&ids, "servers to take the optimizer").map(drop)
    }

    /// What each server has counted; those that are lost have nothing to say.
    pub fn stats(&self) -> Result<Vec<Vec<(String, u64)>>> {
        let ids = self.with(|session| session.ask_all(|id| Request::Stats { id }))?;
        let answers = self.wait(&ids, "servers to tell how they do")?;
        let counts = |answer| if let Answer::Stats(counts) = answer { counts } else { Vec::new() };
        Ok(answers.into_iter().map(counts).collect())
    }

    /// Bytes that came from and went to servers.
    pub fn bytes_moved(&self) -> (u64, u64) {
        self.shared.lock().moved
    }

    /// Which servers are lost.
    pub fn lost(&self) -> Vec<ServerId> {
        self.shared.lock().session.lost().iter().copied().collect()
    }

    /// Writes all that servers own to a file; worker 0 does, and all must call it.
    pub fn save(&self, file: &Path) -> Result<()> {
        self.barrier()?;
        let outcome = if self.config.me == WorkerId::FIRST { self.dump(file) } else { Ok(()) };
        self.barrier()?;
        outcome
    }

    fn dump(&self, file: &Path) -> Result<()> {
        let ids = self.with(|session| session.ask_all(|id| Request::Dump { id }))?;
        let answers = self.wait(&ids, "servers to tell what they own")?;
        let parts =
            answers.into_iter().flat_map(|answer| if let Answer::Dump(parts) = answer { parts } else { Vec::new() });
        saving::write(file, parts.collect())
    }

    /// Gives servers what a file has, however many there were then; all workers must call it, after the same inits.
    pub fn load(&self, file: &Path) -> Result<()> {
        self.barrier()?;
        let outcome = if self.config.me == WorkerId::FIRST { self.restore(file) } else { Ok(()) };
        self.with(|session| {
            session.begin_anew();
            Ok(())
        })?;
        self.barrier()?;
        outcome
    }

    fn restore(&self, file: &Path) -> Result<()> {
        let saved = saving::read(file)?;
        let ids = self.with(|session| session.restore(saved))?;
        self.wait(&ids, "servers to take what was saved").map(drop)
    }

    /// Leaves when all do. One who leaves earlier (by being dropped) is not there to help if a server is lost just then.
    pub fn close(self) -> Result<()> {
        self.barrier()
    }

    fn wait_for_room(&self) -> Result<()> {
        let deadline = Deadline::after(self.config.timeout);
        self.wait_until(deadline, "servers to take what was pushed", |session| {
            session.check().map(|()| (session.queued_bytes() < QUEUED_BYTES).then_some(()))
        })
    }

    /// Waits for answers, in the order of `ids`.
    fn wait(&self, ids: &[u64], what: &str) -> Result<Vec<Answer>> {
        let deadline = Deadline::after(self.config.timeout);
        let mut answers = Vec::with_capacity(ids.len());
        for id in ids {
            answers.push(self.wait_until(deadline, what, |session| session.answer(*id).transpose())?);
        }
        Ok(answers)
    }

    fn wait_until<T>(
        &self,
        deadline: Deadline,
        what: &str,
        mut look: impl FnMut(&mut Session) -> Result<Option<T>>,
    ) -> Result<T> {
        let mut asked = Instant::now();
        loop {
            let mut state = self.shared.lock();
            if let Some(found) = look(&mut state.session)? {
                return Ok(found);
            }
            let nap = deadline.left().unwrap_or(Duration::MAX).min(LOOK);
            if deadline.passed() {
                drop(state);
                return Err(self.late(deadline, what));
            }
            if let Some(mut connections) = self.shared.take() {
                drop(state);
                connections.turn(&self.shared, nap);
                drop(connections);
                self.shared.leave_alone();
                // Another one who waits may go on with them.
                self.shared.changed.notify_all();
            } else {
                self.shared.waiting.fetch_add(1, Ordering::AcqRel);
                self.shared.waker.ring();
                drop(self.shared.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0);
                self.shared.waiting.fetch_sub(1, Ordering::AcqRel);
            }
            if asked.elapsed() >= LOOK {
                asked = Instant::now();
                if (self.config.interrupted)() {
                    return Err(Error::Withdrawn);
                }
            }
        }
    }

    /// The error of one who has waited for too long, with what servers say to it.
    fn late(&self, deadline: Deadline, what: &str) -> Error {
        let explain = Deadline::after(EXPLAIN_TIME);
        let mut reasons = Vec::new();
        let asked = self.with(|session| session.ask_all(|id| Request::Stats { id })).unwrap_or_default();
        let mut state = self.shared.lock();
        self.shared.waker.ring();
        while !explain.passed() && !asked.iter().all(|id| state.session.is_answered(*id)) {
            let nap = explain.left().unwrap_or_default();
            state = self.shared.changed.wait_timeout(state, nap).unwrap_or_else(PoisonError::into_inner).0;
        }
        for id in asked {
            if let Some(Ok(Answer::Stats(counts))) = state.session.answer(id) {
                reasons.extend(counts.into_iter().filter_map(|(line, _)| line.strip_prefix(WAITS).map(str::to_owned)));
            }
        }
        reasons.sort();
        reasons.dedup();
        let reasons = if reasons.is_empty() { "servers say nothing".into() } else { reasons.join("; ") };
        Error::Shutdown(
            format!(
                "worker {} has waited {:?} for {what}: {reasons}. Look at the logs of those workers; CORRO_TIMEOUT sets how long to \
                 wait",
                self.config.me,
                deadline.granted()
            )
            .into(),
        )
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.session.bye();
        state.closing = true;
        drop(state);
        self.shared.waker.ring();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the thread that talks to parameter servers has panicked; please report it");
        }
    }
}

/// The thread: serves the connections while nobody waits, until the client is dropped and all is said.
fn serve(shared: &Shared) {
    let mut ending: Option<Instant> = None;
    loop {
        let pause = shared.pause().or_else(|| (shared.waiting.load(Ordering::Acquire) > 0).then_some(LEFT_ALONE));
        if let Some(pause) = pause.filter(|_| ending.is_none() && !shared.lock().closing) {
            // Whoever has much to send rings, and somebody has to send it.
            let mut fds = [PollFd::from_borrowed_fd(shared.waker.as_fd(), PollFlags::IN)];
            if listener::sleep(&mut fds, Some(pause)).is_err() {
                std::thread::sleep(LEFT_ALONE);
            }
        }
        let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if connections.hand_over(shared) {
            let until = *ending.get_or_insert_with(|| Instant::now() + BYE_TIME);
            if connections.wires.values().all(|wire| wire.waiting() == 0) || Instant::now() >= until {
                return;
            }
        }
        // While somebody waits, it may have them as soon as nothing more is to be read just now.
        let nap = match (ending, shared.waiting.load(Ordering::Acquire)) {
            (Some(_), _) => Duration::from_millis(20),
            (None, 0) => Duration::from_secs(3600),
            (None, _) => Duration::ZERO,
        };
        connections.turn(shared, nap);
        drop(connections);
        shared.changed.notify_all();
    }
}

/// The connections to all servers; served by one at a time.
struct Connections {
    wires: BTreeMap<ServerId, Wire<Response>>,
    unfinished: bool,
}

impl std::fmt::Debug for Connections {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Connections").field("servers", &self.wires.len()).finish_non_exhaustive()
    }
}

impl Connections {
    /// Sends what there is to send, waits up to `nap` for something to happen, and hears what has come.
    fn turn(&mut self, shared: &Shared, nap: Duration) {
        self.hand_over(shared);
        // What is broken is noticed when it is read.
        for wire in self.wires.values_mut() {
            let _ = wire.flush();
        }
        let mut fds = vec![PollFd::from_borrowed_fd(shared.waker.as_fd(), PollFlags::IN)];
        fds.extend(self.wires.values().map(|wire| PollFd::from_borrowed_fd(wire.fd(), wire.interest())));
        let nap = if self.unfinished { Duration::ZERO } else { nap };
        if listener::sleep(&mut fds, Some(nap)).is_err() {
            std::thread::sleep(Duration::from_millis(20));
        }
        let rung = !fds[0].revents().is_empty();
        drop(fds);
        if rung {
            shared.waker.silence();
        }
        self.read(shared);
    }

    /// Hands frames to connections that have room. True when nothing more will come.
    fn hand_over(&mut self, shared: &Shared) -> bool {
        let mut state = shared.lock();
        let lost = state.session.lost().clone();
        self.wires.retain(|server, _| !lost.contains(server));
        let mut all = true;
        for (server, wire) in &mut self.wires {
            while wire.waiting() < HANDED_BYTES {
                let Some((request, payload)) = state.session.take(*server) else { break };
                if let Err(e) = wire.say(&request, payload) {
                    state.session.fail(e);
                }
            }
            all &= !state.session.has_output(*server);
        }
        state.moved = self.wires.values().fold(state.moved, |(i, o), wire| (i + wire.moved.0, o + wire.moved.1));
        self.wires.values_mut().for_each(|wire| wire.moved = (0, 0));
        state.closing && all
    }

    fn read(&mut self, shared: &Shared) {
        let mut heard = Vec::new();
        let mut broken = Vec::new();
        self.unfinished = false;
        for (server, wire) in &mut self.wires {
            let outcome = wire.flush().and_then(|()| {
                wire.read(|response, payload| {
                    heard.push((*server, response, payload));
                    Ok(())
                })
            });
            match outcome {
                Ok(more) => self.unfinished |= more,
                Err(reason) => broken.push((*server, reason)),
            }
        }
        if heard.is_empty() && broken.is_empty() {
            return;
        }
        let mut state = shared.lock();
        for (server, response, payload) in heard {
            if let Response::Refused { id: 0, why } = &response {
                state.session.fail(Error::Usage(format!("parameter server {server} refused this worker: {why}")));
            } else if let Err(e) = state.session.hear(server, response, payload) {
                broken.push((server, Broken(e.to_string())));
            }
        }
        for (server, Broken(reason)) in broken {
            self.wires.remove(&server);
            if !state.closing && !state.session.lost().contains(&server) {
                tracing::warn!(%server, reason, "a parameter server is lost; its heir takes over");
                state.session.lose(server);
                // What is to be said again may be much, and nobody may be waiting.
                shared.waker.ring();
            }
        }
    }
}
