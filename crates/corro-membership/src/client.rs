//! The worker's end of membership: one connection to the driver, kept by a thread, for the life of the process.
//!
//! Owns the connection, made again when it breaks, and one [`Member`], which knows what to say and to believe.

use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Rank, Result, config};
use corro_transport::messages::{MessageClient, Waker};
use corro_transport::secret::Secret;
use corro_transport::{Fabric, Place, Rendezvous, Settings, first_free, hold, look_up, look_up_ports};
use serde_bytes::ByteBuf;

use crate::embedded::EmbeddedDriver;
use crate::machine::Rules;
use crate::member::{Joined, Member};
use crate::message::{Cause, DRIVER, MAX_TO_WORKER, Seat, ToDriver, ToWorker, WorkerId};

/// How often a worker says that it lives.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// How long a launcher that does not answer is sought before it is taken for gone. (One that was killed leaves nobody at
/// its port.)
const SEEK_LAUNCHER: Duration = Duration::from_secs(5);
/// One attempt to reach the driver, after which its name is looked up again.
const ONE_TRY: Duration = Duration::from_secs(2);
/// How long saying goodbye may take.
const GOODBYE: Duration = Duration::from_secs(1);
/// How long the process that holds the driver waits for the others to finish.
const LINGER: Duration = Duration::from_secs(10);
/// After so long a wait is worth a line.
const LONG: Duration = Duration::from_secs(10);

/// What a process brings along when it asks for a seat.
#[derive(Clone, Copy, Debug, Default)]
pub struct JoinRequest<'a> {
    /// How far its state is: commits since the job began. 0: it has none. The one with the most becomes rank 0, and the
    /// others take the state from there.
    pub progress: u64,
    /// The error that ended its last epoch, if one did.
    pub cause: Option<&'a Error>,
}

/// What a process should know while it works.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Grows with each change of membership that is wanted. One is pending if this is above the seat's own number.
    pub number: u64,
    /// Processes wait to come in.
    pub added: bool,
    /// Processes are to leave.
    pub removed: bool,
    /// All are to leave at their next commit: the job goes on another time.
    pub ending: bool,
    /// The epoch is over, and why.
    pub over: Option<String>,
    /// The driver is gone, and why.
    pub driver_gone: Option<String>,
}

/// A process's membership in an elastic job. Clones are the same one.
#[derive(Clone)]
pub struct Client(Arc<Shared>);

struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
    bell: Waker,
    route: Route,
    /// The driver itself, where this process holds it.
    host: Option<EmbeddedDriver>,
}

/// How the driver is reached.
struct Route {
    driver: Driver,
    secret: Secret,
    tls: bool,
    connect_timeout: Duration,
    /// How long it is sought once it was there.
    seek: Duration,
}

enum Driver {
    At(Vec<SocketAddr>),
    /// By name, at one of these ports.
    Named(String, Vec<u16>),
}

type WhenLost = Box<dyn Fn(Error) + Send>;

struct Inner {
    member: Member,
    to_say: Vec<ToDriver>,
    /// The last description of this rank, until everybody's has come.
    card: Option<ToDriver>,
    /// Where the ranks of the last seat's epoch meet: called off when that epoch is over.
    fabric: Weak<Fabric>,
    /// What is to be done when a member of that epoch is lost.
    when_lost: Option<WhenLost>,
    connected: bool,
    running: bool,
    /// Nobody will be heard any more, for this reason.
    gone: Option<String>,
}

impl Client {
    /// As the environment says; `None` if this process is not part of an elastic job.
    pub fn from_env() -> Result<Option<Self>> {
        if !config::ELASTIC.flag(false) {
            return Ok(None);
        }
        let settings = Settings::from_env()?;
        let patience = config::ELASTIC_TIMEOUT.seconds(Duration::from_secs(600))?;
        let lacks = |what: &str| Error::Usage(format!("{} is set but {what} is not: {ADVICE}", config::ELASTIC.name));
        if let Some(text) = config::DRIVER.value() {
            let secret = config::SECRET.value().ok_or_else(|| lacks(config::SECRET.name))?;
            let route = Route {
                driver: Driver::At(look_up(&text)?),
                secret: Secret::parse(&secret)?,
                tls: settings.tls,
                connect_timeout: settings.connect_timeout,
                seek: SEEK_LAUNCHER,
            };
            let worker = worker_number()?;
            // What this worker starts has its number, too, but is no worker.
            hold(&route.secret.prove("worker", &[&worker.0.to_le_bytes()]), &format!("worker {worker}"))?;
            return Self::new(worker, host_name(&settings), route, None).map(Some);
        }
        let Some(place) = Place::from_env()? else { return Ok(None) };
        if place.launchers_store().is_some() {
            // Started by `corro run` with a fixed size: the variable is the user's own.
            return Ok(None);
        }
        let (host, ports, secret) = place.told().ok_or_else(|| lacks("CORRO_SECRET, MASTER_ADDR or MASTER_PORT"))?;
        hold(&place.claim(), &format!("rank {}", place.rank))?;
        let min = config::ELASTIC_MIN_NP.number(place.size)?.clamp(1, place.size);
        let rules = Rules {
            start: place.size,
            min,
            max: place.size,
            supply: false,
            patience,
            silence: config::ELASTIC_SILENCE.seconds(Duration::from_secs(10))?,
            return_time: Rules::return_time(config::TIMEOUT.value().map(|_| settings.timeout)),
            gather: Duration::from_secs(3),
            // Above those of whoever held the driver before us.
            first_epoch: std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(1, |t| t.as_secs()),
            ..Rules::default()
        };
        let hosted = if place.rank == Rank::ZERO {
            Some(first_free(ports, |port| EmbeddedDriver::start(port, secret, settings.tls, rules.clone()))?)
        } else {
            None
        };
        let driver = match &hosted {
            Some(hosted) => Driver::At(hosted.own_addresses()),
            None => Driver::Named(host.to_owned(), ports.to_vec()),
        };
        let route = Route {
            driver,
            secret: secret.clone(),
            tls: settings.tls,
            connect_timeout: settings.connect_timeout.max(patience),
            seek: patience,
        };
        Self::new(worker_number()?, host_name(&settings), route, hosted).map(Some)
    }

    /// As [`Client::from_env`], by hand: the driver's addresses, the job's secret, this process's number and host.
    pub fn with(addresses: Vec<SocketAddr>, secret: Secret, tls: bool, worker: WorkerId, host: String) -> Result<Self> {
        let connect_timeout = Settings::default().connect_timeout;
        let route = Route { driver: Driver::At(addresses), secret, tls, connect_timeout, seek: SEEK_LAUNCHER };
        Self::new(worker, host, route, None)
    }

    fn new(worker: WorkerId, host: String, route: Route, hosted: Option<EmbeddedDriver>) -> Result<Self> {
        let member = Member::new(worker, host);
        let inner = Inner {
            member,
            to_say: Vec::new(),
            card: None,
            fabric: Weak::new(),
            when_lost: None,
            connected: false,
            running: false,
            gone: None,
        };
        let (inner, changed) = (Mutex::new(inner), Condvar::new());
        Ok(Self(Arc::new(Shared { inner, changed, bell: Waker::new()?, route, host: hosted })))
    }

    /// Asks for a seat in the next epoch, and waits for it. How long is the driver's decision; this process must not give
    /// up before.
    pub fn join(&self, request: JoinRequest<'_>) -> Result<Joined> {
        let shared = &self.0;
        let mut inner = shared.lock();
        if !std::mem::replace(&mut inner.running, true) {
            let shared = Arc::clone(&self.0);
            std::thread::Builder::new()
                .name("corro-member".into())
                .spawn(move || shared.keep_connected())
                .map_err(|e| Error::io("starting a thread", e))?;
        }
        let cause = request.cause.map(|error| {
            let culprit = if let Error::PeerLost { rank, .. } = error { Some(*rank) } else { None };
            Cause { culprit, text: error.to_string() }
        });
        let hello = inner.member.ask(request.progress, cause);
        (inner.card, inner.fabric, inner.when_lost) = (None, Weak::new(), None);
        inner.to_say.push(hello);
        shared.bell.ring();
        let since = Instant::now();
        let mut said = false;
        loop {
            if let Some(answer) = inner.member.answer() {
                return Ok(answer);
            }
            if let Some(why) = &inner.gone {
                return Err(Error::io("asking the driver of this elastic job for a seat", why));
            }
            if !said && since.elapsed() >= LONG {
                said = true;
                tracing::warn!("still waiting for a seat in this elastic job: for {}", inner.member.waits_for());
            }
            let wait = shared.changed.wait_timeout(inner, BEAT);
            inner = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Meets the other members of `seat`'s epoch. Fails as soon as it is known that one of them is lost, and so does whatever
    /// is opened on the fabric.
    pub fn fabric(&self, seat: &Seat, settings: Settings) -> Result<Arc<Fabric>> {
        // A key for each epoch: whoever is left over from another one can't get in, and can't be mistaken.
        let secret = Secret::from_bytes(self.0.route.secret.derive(&format!("epoch {}", seat.epoch)));
        let host = settings.host.clone().or_else(|| seat.hosts.get(seat.rank.index()).cloned());
        let one_host = seat.local_size == seat.size;
        let settings = Settings { epoch: seat.epoch, host, one_host, ..settings };
        let mut meeting = EpochRendezvous { shared: &self.0, seat };
        let joined = Fabric::join(seat.rank, seat.size, &secret, &mut meeting, settings);
        let mut inner = self.0.lock();
        let fabric = joined.map_err(|error| inner.lost(seat).unwrap_or(error))?;
        inner.fabric = Arc::downgrade(&fabric);
        inner.call_off();
        Ok(fabric)
    }

    /// Has `act` called once if a member of `seat`'s epoch is lost before this process asks for another seat. Where a host has
    /// vanished nothing else tells until the network's patience is over.
    pub fn when_lost(&self, seat: &Seat, act: impl Fn(Error) + Send + 'static) {
        let mut inner = self.0.lock();
        if inner.member.seat().is_some_and(|s| s.epoch == seat.epoch) {
            inner.when_lost = Some(Box::new(act));
        }
        let news = inner.news_of_loss();
        drop(inner);
        if let Some((act, lost)) = news {
            act(lost);
        }
    }

    /// What this process should know. Never waits.
    pub fn changes(&self) -> Changes {
        let inner = self.0.lock();
        let change = inner.member.change();
        Changes {
            number: change.number,
            added: change.added,
            removed: change.removed,
            ending: change.ending,
            over: inner.member.over().map(|over| over.text.clone()),
            driver_gone: inner.gone.clone(),
        }
    }

    /// The last seat.
    pub fn seat(&self) -> Option<Seat> {
        self.0.lock().member.seat().cloned()
    }

    /// Says that this process has done its work and will end with success; or, if `early`, that it ends because it was told
    /// that the job does ([`Changes::ending`]).
    pub fn leave(&self, early: bool) {
        let shared = &self.0;
        let until = Instant::now() + GOODBYE;
        let mut inner = shared.lock();
        if !inner.running {
            return;
        }
        inner.to_say.push(ToDriver::Leave { early });
        shared.bell.ring();
        while !inner.to_say.is_empty() && inner.gone.is_none() && Instant::now() < until {
            let wait = shared.changed.wait_timeout(inner, Duration::from_millis(20));
            inner = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(inner);
        if let Some(host) = &shared.host {
            host.wait_for_the_others(LINGER);
        }
    }
}

const ADVICE: &str = "start the job with `corro run --min-np N ...`; under a scheduler that restarts processes set, to the same on \
                      all of them, CORRO_SECRET (64 random hexadecimal digits), MASTER_ADDR (rank 0's host) and MASTER_PORT";

fn worker_number() -> Result<WorkerId> {
    if config::WORKER.value().is_some() {
        return config::WORKER.number(0).map(WorkerId);
    }
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(|e| Error::io("asking the system for random bytes", e))?;
    Ok(WorkerId(u64::from_le_bytes(bytes)))
}

fn host_name(settings: &Settings) -> String {
    settings.host.clone().unwrap_or_else(corro_transport::host_name)
}

impl Inner {
    /// The error for an epoch that is over, if `seat`'s is.
    fn lost(&self, seat: &Seat) -> Option<Error> {
        let over = self.member.over().filter(|_| self.member.seat().is_some_and(|s| s.epoch == seat.epoch))?;
        let rank = over.culprit.unwrap_or(seat.rank);
        let host = seat.hosts.get(rank.index()).map_or("an unknown host", String::as_str);
        Some(Error::peer_lost(rank, host, over.text.clone()))
    }

    /// Ends waiting for ranks that won't come. One that died before it met anybody is known to the driver alone.
    fn call_off(&self) {
        if let Some(fabric) = self.fabric.upgrade()
            && let Some(lost) = self.member.seat().and_then(|seat| self.lost(seat))
        {
            fabric.give_up(lost);
        }
    }

    /// What to do about a lost member. (That an epoch is over because others left it in good order is none of this: this
    /// process is about to leave it as well.)
    fn news_of_loss(&mut self) -> Option<(WhenLost, Error)> {
        self.member.over()?.culprit?;
        let lost = self.lost(self.member.seat()?)?;
        Some((self.when_lost.take()?, lost))
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The thread's life: one connection after the other, until the driver can't be found any more.
    fn keep_connected(&self) {
        let mut patience = Deadline::after(self.route.connect_timeout);
        loop {
            let why = match self.connect(patience) {
                Err(error) => Some(error.to_string()),
                Ok(line) => {
                    let why = self.talk(line);
                    self.lock().connected = false;
                    tracing::debug!(why, "lost the driver of this elastic job");
                    patience = Deadline::after(self.route.seek);
                    None
                }
            };
            if let Some(why) = why {
                self.lock().gone = Some(format!("the driver of this elastic job (its launcher) is gone: {why}"));
                self.changed.notify_all();
                return;
            }
            self.changed.notify_all();
        }
    }

    fn connect(&self, patience: Deadline) -> Result<MessageClient> {
        loop {
            let one_try = patience.left().map_or(ONE_TRY, |left| left.min(ONE_TRY)).max(Duration::from_millis(1));
            let one_try = Deadline::after(one_try);
            let addresses = match &self.route.driver {
                Driver::At(addresses) => Ok(addresses.clone()),
                // The process that held it may come back elsewhere, under the same name.
                Driver::Named(host, ports) => look_up_ports(host, ports),
            };
            let tried =
                addresses.and_then(|a| MessageClient::connect(DRIVER, &a, &self.route.secret, self.route.tls, one_try));
            match tried {
                Ok(line) => return Ok(line),
                // Nobody but strangers at all of its addresses: no use waiting for more.
                Err(error @ Error::Unauthenticated(_)) if !one_try.passed() => return Err(error),
                Err(error) if patience.passed() => return Err(error),
                Err(_) => std::thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// Talks until the connection ends, and says why it did.
    fn talk(&self, mut line: MessageClient) -> String {
        let mut first = {
            let mut inner = self.lock();
            inner.connected = true;
            // What was to be said on the last connection is in these words, or of no more use.
            inner.to_say.retain(|message| matches!(message, ToDriver::Leave { .. }));
            let card = inner.card.clone().filter(|_| inner.member.cards().is_none());
            inner.member.again().into_iter().chain(card).collect::<Vec<_>>()
        };
        let mut last_beat = Instant::now();
        loop {
            let mut to_say = std::mem::take(&mut first);
            to_say.append(&mut self.lock().to_say);
            if last_beat.elapsed() >= BEAT {
                last_beat = Instant::now();
                to_say.push(ToDriver::Beat);
            }
            for message in &to_say {
                if let Err(broken) = line.say(message) {
                    return broken.0;
                }
            }
            let heard = match line.turn::<ToWorker>(MAX_TO_WORKER) {
                Ok(heard) => heard,
                Err(broken) => return broken.0,
            };
            if !heard.is_empty() || !to_say.is_empty() {
                let mut inner = self.lock();
                for message in heard {
                    inner.member.hear(message);
                }
                inner.call_off();
                let news = inner.news_of_loss();
                drop(inner);
                self.changed.notify_all();
                if let Some((act, lost)) = news {
                    act(lost);
                }
            }
            if let Err(error) = line.wait(self.bell.as_fd(), BEAT.saturating_sub(last_beat.elapsed())) {
                return error.to_string();
            }
            self.bell.silence();
        }
    }
}

/// The rendezvous of one epoch: the driver passes on how each rank can be reached.
struct EpochRendezvous<'a> {
    shared: &'a Shared,
    seat: &'a Seat,
}

impl Rendezvous for EpochRendezvous<'_> {
    fn publish(&mut self, _key: &str, value: Vec<u8>, _deadline: Deadline) -> Result<()> {
        let card = ToDriver::Card { epoch: self.seat.epoch, card: ByteBuf::from(value) };
        let mut inner = self.shared.lock();
        inner.card = Some(card.clone());
        inner.to_say.push(card);
        self.shared.bell.ring();
        Ok(())
    }

    fn collect(&mut self, keys: &[String], deadline: Deadline) -> Result<Vec<Vec<u8>>> {
        let mut inner = self.shared.lock();
        loop {
            if let Some(lost) = inner.lost(self.seat) {
                return Err(lost);
            }
            if inner.member.dismissed().is_some() {
                return Err(Error::HostsChanged("this process has no place in it any more".into()));
            }
            if let Some(cards) = inner.member.cards() {
                let rank = |key: &String| key.rsplit('/').next().and_then(|r| r.parse::<Rank>().ok());
                let card = |key| Some(cards.get(rank(key)?.index())?.to_vec());
                let missing = || Error::Malformed("the driver gave too few descriptions of ranks".into());
                return keys.iter().map(card).collect::<Option<_>>().ok_or_else(missing);
            }
            if let Some(why) = &inner.gone {
                return Err(Error::io("waiting for the other ranks of this epoch", why));
            }
            if deadline.passed() {
                let within = format!(
                    "not all have told how to reach them within {:?} (CORRO_CONNECT_TIMEOUT)",
                    deadline.granted()
                );
                return Err(Error::io("waiting for the other ranks of this epoch", within));
            }
            let nap = deadline.left().map_or(BEAT, |left| left.min(BEAT));
            let wait = self.shared.changed.wait_timeout(inner, nap);
            inner = wait.unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl std::fmt::Debug for Client {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").field("worker", &self.0.lock().member.worker()).finish_non_exhaustive()
    }
}
