//! A job: its ranks on their hosts, from the first to the last.
//!
//! Owns the rendezvous store and the processes of the agents. [`Job::run`] is what `corro run` does after it has understood
//! its flags, and what other programs call to start ranks of their own.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Rank, Result, config};
use corro_transport::secret::Secret;
use corro_transport::{nic, store};
use serde_bytes::ByteBuf;

use crate::agent::message::{Order, Report, Start};
use crate::agent::{self, BEAT};
use crate::agent_process::{AgentProcess, Event, SharedOutput, lock_soon};
use crate::lifecycle::{EndAll, Failure, Happening, Lifecycle, listed};
use crate::output::Output;
use crate::placement::Assignment;
use crate::remote::{self, Remote};
use crate::variables::{self, Common};
use crate::worker;

/// How many times longer the silence of the launcher is borne than that of a host: it may be stopped by hand for a while.
pub(crate) const LAUNCHER_PATIENCE: u32 = 6;

/// How long an agent that says no more may take to end and to give its reason.
pub(crate) const GOODBYE: Duration = Duration::from_millis(500);

/// What to run, where, and how.
#[derive(Clone, Debug)]
pub struct Job {
    /// The command and its arguments; the same on all ranks.
    pub command: Vec<OsString>,
    /// Who runs where, from [`crate::placement::place`].
    pub placement: Vec<Assignment>,
    /// Where ranks run; the same path on every host.
    pub directory: PathBuf,
    /// Variables for all ranks, on top of this process's environment.
    pub variables: Vec<(String, String)>,
    /// Encrypt everything between hosts.
    pub tls: bool,
    /// Network interfaces to use between hosts; none: whatever works.
    pub interfaces: Vec<String>,
    /// The store's port; 0: any free one.
    pub rendezvous_port: u16,
    /// How other hosts are reached.
    pub remote: Remote,
    /// The command that starts an agent on this host, and on others unless [`Remote::corro`] says otherwise.
    pub agent: Vec<OsString>,
    /// Within this time all hosts must have been reached.
    pub start_timeout: Duration,
    /// A host that has been silent for so long is lost.
    pub host_timeout: Duration,
    /// What ranks get between being asked to end and being killed.
    pub grace: Duration,
    /// What every rank can ask for with [`crate::worker::payload`].
    pub payload: Option<Vec<u8>>,
    /// Say what is being done.
    pub verbose: bool,
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// Why it failed, if it did.
    pub failure: Option<Failure>,
    /// What each rank gave back with [`crate::worker::give_result`], in the order of ranks.
    pub results: Vec<Option<Vec<u8>>>,
    /// The last lines the failing rank wrote to standard error.
    pub last_lines: Vec<String>,
}

/// Lets another thread end a job that runs.
#[derive(Clone, Debug)]
pub struct Control {
    pub(crate) events: Sender<Event>,
}

impl Control {
    /// Sends `signal` to every process of the job, as Ctrl-C does. Asked twice, kills them.
    pub fn interrupt(&self, signal: i32) {
        let _ = self.events.send(Event::Interrupt(signal));
    }
}

impl Job {
    /// `command` on this host's `placement`, with the usual limits.
    pub fn new(command: Vec<OsString>, placement: Vec<Assignment>) -> Result<Self> {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        let directory = std::env::current_dir().map_err(|e| Error::io("finding the working directory", e))?;
        Ok(Self {
            command,
            placement,
            directory,
            variables: Vec::new(),
            tls: config::TLS.flag(false),
            interfaces: Vec::new(),
            rendezvous_port: config::RENDEZVOUS_PORT.number(0)?,
            remote: Remote::default(),
            agent: vec![program.into(), "agent".into()],
            start_timeout: config::START_TIMEOUT.seconds(Duration::from_secs(30))?,
            host_timeout: Duration::from_secs(10),
            grace: Duration::from_millis(1500),
            payload: None,
            verbose: false,
        })
    }

    /// How many ranks it has.
    pub fn size(&self) -> usize {
        self.placement.iter().map(|a| a.slots.len()).sum()
    }

    /// Reaches all hosts and starts nothing: for each, whether it could be reached.
    pub fn reach(&self, output: Output) -> Result<Vec<(String, Result<(), String>)>> {
        let (sender, events) = channel();
        let mut running = Running::start(self, output, &sender, events)?;
        running.wait_for_hellos();
        let hosts = 0..running.hosts.len();
        let reached = hosts.map(|at| (running.hosts[at].name.clone(), running.reached(at))).collect();
        running.release();
        Ok(reached)
    }

    /// Runs the job to its end. `ready` is given the means to interrupt it.
    pub fn run(&self, output: Output, ready: impl FnOnce(Control)) -> Result<Outcome> {
        let (sender, events) = channel();
        ready(Control { events: sender.clone() });
        let mut running = Running::start(self, output, &sender, events)?;
        let outcome = running.follow();
        running.release();
        let results = running.results();
        let failure = outcome?;
        let mut last_lines = Vec::new();
        if let Some(mut output) = lock_soon(&running.output) {
            if let Some(Failure::Rank { rank, .. }) = &failure {
                last_lines = output.last_lines(*rank);
            }
            output.close();
        }
        Ok(Outcome { failure, results, last_lines })
    }
}

/// A host of a running job.
struct HostState {
    name: String,
    local: bool,
    process: AgentProcess,
    /// When it last gave a sign of life.
    heard: Instant,
    /// Its answer to being reached: the launcher's address as it sees it, or why it can't be reached.
    hello: Option<Result<Option<String>, String>>,
    over: bool,
}

struct Running<'a> {
    job: &'a Job,
    secret: Secret,
    store: store::Server,
    output: SharedOutput,
    events: Receiver<Event>,
    hosts: Vec<HostState>,
    lifecycle: Lifecycle,
}

impl<'a> Running<'a> {
    fn start(job: &'a Job, output: Output, sender: &Sender<Event>, events: Receiver<Event>) -> Result<Self> {
        let output: SharedOutput = Arc::new(Mutex::new(output));
        let secret = Secret::random()?;
        let local = which_are_local(job)?;
        let store = start_store(job, &secret, local.iter().all(|l| *l))?;
        let mut hosts = Vec::new();
        for (at, (assignment, &local)) in job.placement.iter().zip(&local).enumerate() {
            let command = if local {
                let mut command = Command::new(&job.agent[0]);
                command.args(&job.agent[1..]);
                command
            } else {
                remote::agent_command(&job.remote, &assignment.host, &job.agent, job.start_timeout)
            };
            let process = AgentProcess::start(command, at, sender, &output)?;
            let name = assignment.host.name.clone();
            hosts.push(HostState { name, local, process, heard: Instant::now(), hello: None, over: false });
        }
        let ranks = |a: &Assignment| a.slots.iter().map(|s| s.rank).collect::<Vec<Rank>>();
        let lifecycle =
            Lifecycle::new(job.placement.iter().map(|a| (a.host.name.clone(), ranks(a))).collect(), job.grace);
        Ok(Self { job, secret, store, output, events, hosts, lifecycle })
    }

    /// From reaching all hosts to the end of the last rank.
    fn follow(&mut self) -> Result<Option<Failure>> {
        if self.job.verbose {
            let names: Vec<&str> = self.hosts.iter().map(|h| h.name.as_str()).collect();
            self.say(&format!("corro: reaching {}", names.join(", ")));
        }
        if let Some(signal) = self.reach_all()? {
            return Ok(Some(Failure::Interrupted { signal }));
        }
        self.leave_payload()?;
        self.start_ranks()?;
        let mut last_beat = Instant::now();
        loop {
            let now = Instant::now();
            if self.lifecycle.is_over(now) {
                break;
            }
            if now >= last_beat + BEAT {
                last_beat = now;
                self.beat_and_listen(now)?;
            }
            // Events wake us; only the end has moments at which nothing may happen.
            let nap = if self.lifecycle.is_ending() { Duration::from_millis(20) } else { BEAT };
            match self.events.recv_timeout(nap) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Bug("no agent is left to be heard".into())),
            }
        }
        let unfinished: Vec<&str> = self.lifecycle.unfinished().collect();
        if !unfinished.is_empty() {
            let text = format!("corro: {} did not confirm that everything there has ended", unfinished.join(", "));
            self.say(&text);
        }
        Ok(self.lifecycle.failure().cloned())
    }

    /// Waits until every host has said hello, or can't, or the time is up. A signal ends it.
    fn wait_for_hellos(&mut self) -> Option<i32> {
        let deadline = Instant::now() + self.job.start_timeout;
        while self.hosts.iter().any(|h| h.hello.is_none()) {
            match self.events.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(Event::Report(host, Report::Hello { release, caller })) => {
                    let ours = env!("CARGO_PKG_VERSION");
                    let differs =
                        || format!("it has corro {release} where this host has {ours}: install the same release");
                    self.hosts[host].heard = Instant::now();
                    self.hosts[host].hello = Some(if release == ours { Ok(caller) } else { Err(differs()) });
                }
                Ok(Event::Silent(host, reason)) => self.hosts[host].hello = Some(Err(self.why_silent(host, reason))),
                Ok(Event::Interrupt(signal)) => return Some(signal),
                Ok(_) => {}
                Err(_) => break,
            }
        }
        None
    }

    /// Whether a host has said hello, or why not.
    fn reached(&self, host: usize) -> Result<(), String> {
        match &self.hosts[host].hello {
            Some(hello) => hello.as_ref().map(drop).map_err(Clone::clone),
            None => Err(format!(
                "Timed out waiting for its agent to answer. Timeout after {} seconds (--start-timeout). Is it up and reachable?",
                self.job.start_timeout.as_secs_f64()
            )),
        }
    }

    /// Reaches every host. All that can't be reached are named in one error. A signal ends it.
    fn reach_all(&mut self) -> Result<Option<i32>> {
        if let Some(signal) = self.wait_for_hellos() {
            return Ok(Some(signal));
        }
        let mut failed = Vec::new();
        for (at, assignment) in self.job.placement.iter().enumerate() {
            if let Err(cause) = self.reached(at) {
                let ranks: Vec<Rank> = assignment.slots.iter().map(|s| s.rank).collect();
                failed.push(format!("\n  {} (rank {}): {cause}", self.hosts[at].name, listed(&ranks)));
            }
        }
        if failed.is_empty() {
            return Ok(None);
        }
        Err(Error::Io {
            doing: "could not connect to some hosts via ssh, so nothing was started".into(),
            cause: failed.concat(),
        })
    }

    /// Why nothing more comes from a host.
    fn why_silent(&mut self, host: usize, reason: Option<String>) -> String {
        let state = &mut self.hosts[host];
        let status = state.process.status(GOODBYE);
        let words = state.process.last_words(GOODBYE);
        let last = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>();
        let mut text = last[last.len().saturating_sub(3)..].join(" | ");
        if text.is_empty() {
            let how = status.map_or_else(|| "it closed the connection".to_owned(), |s| format!("it ended with {s}"));
            text = reason.unwrap_or(how);
        }
        match remote::advice(&state.name, &words) {
            Some(advice) if !state.local => format!("{text} ({advice})"),
            _ => text,
        }
    }

    fn leave_payload(&mut self) -> Result<()> {
        let Some(payload) = &self.job.payload else { return Ok(()) };
        let deadline = Deadline::after(self.job.start_timeout);
        worker::put(&mut self.client(deadline)?, worker::PAYLOAD, payload, deadline)
    }

    fn client(&self, deadline: Deadline) -> Result<store::Client> {
        let port = self.store.address().port();
        let own = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
        store::Client::connect(&own, &self.secret, self.job.tls, deadline)
    }

    fn start_ranks(&mut self) -> Result<()> {
        let common = Common {
            rendezvous: self.addresses()?,
            secret: self.secret.to_hex(),
            tls: self.job.tls,
            interfaces: self.job.interfaces.clone(),
            settings: self.job.variables.clone(),
        };
        let bytes = |text: &OsString| ByteBuf::from(text.as_bytes());
        let environment: Vec<(ByteBuf, ByteBuf)> =
            agent::passed_on(std::env::vars_os()).iter().map(|(name, value)| (bytes(name), bytes(value))).collect();
        for (state, assignment) in self.hosts.iter().zip(&self.job.placement) {
            let rank_variables = |slot| variables::of_rank(&common, slot, &state.name);
            let start = Start {
                directory: ByteBuf::from(self.job.directory.as_os_str().as_bytes()),
                command: self.job.command.iter().map(bytes).collect(),
                environment: environment.clone(),
                ranks: assignment.slots.iter().map(|s| (s.rank, rank_variables(s))).collect(),
                silence_ms: (!state.local).then_some((self.job.host_timeout * LAUNCHER_PATIENCE).as_millis() as u64),
                orphan_ms: None,
            };
            state.process.order(&Order::Start(start))?;
        }
        if self.job.verbose {
            self.say(&format!("corro: started {} ranks, which meet at {:?}", self.job.size(), common.rendezvous));
        }
        Ok(())
    }

    /// Where ranks can reach the store. Addresses that lead nowhere do no harm: ranks try them all, and whoever answers
    /// must prove the secret.
    fn addresses(&self) -> Result<Vec<SocketAddr>> {
        let port = self.store.address().port();
        let mut addresses = self.store.addresses()?;
        if !self.job.interfaces.is_empty() {
            let chosen = nic::addresses(Some(&self.job.interfaces))?;
            addresses.retain(|a| a.ip().is_loopback() || chosen.iter().any(|n| n.address == a.ip()));
        }
        // The address by which another host sees us is known to work, at least for ssh.
        let seen = self.hosts.iter().filter_map(|h| h.hello.as_ref()?.as_ref().ok()?.as_ref());
        for ip in seen.filter_map(|caller| caller.parse::<IpAddr>().ok()) {
            let address = SocketAddr::new(ip.to_canonical(), port);
            if self.job.interfaces.is_empty() && !addresses.contains(&address) {
                addresses.insert(0, address);
            }
        }
        Ok(addresses)
    }

    fn beat_and_listen(&mut self, now: Instant) -> Result<()> {
        let limit = self.job.host_timeout;
        let mut lost = Vec::new();
        for (at, state) in self.hosts.iter_mut().enumerate().filter(|(_, h)| !h.local && !h.over) {
            state.process.order(&Order::Beat)?;
            if state.process.is_showing() {
                // We do not listen to it now, because nobody reads what we show: that is no silence of the host.
                state.heard = now;
            }
            if now >= state.heard + limit {
                lost.push(at);
            }
        }
        for host in lost {
            let cause =
                format!("nothing was heard from it for {limit:?} (--host-timeout): the host or its network is down");
            self.lose(host, cause)?;
        }
        Ok(())
    }

    fn lose(&mut self, host: usize, cause: String) -> Result<()> {
        self.hosts[host].over = true;
        self.note(Happening::HostLost(host, cause))
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Report(host, report) => {
                self.hosts[host].heard = Instant::now();
                match report {
                    Report::Exited { rank, ending } => self.note(Happening::Exited(rank, ending)),
                    Report::NotStarted { rank, code, cause } => self.note(Happening::NotStarted(rank, code, cause)),
                    Report::Done => {
                        self.hosts[host].over = true;
                        self.note(Happening::HostDone(host))
                    }
                    Report::Hello { .. } | Report::Started { .. } | Report::Output { .. } | Report::Beat => Ok(()),
                }
            }
            Event::Alive(host) => {
                self.hosts[host].heard = Instant::now();
                Ok(())
            }
            Event::Silent(host, _) if self.hosts[host].over => Ok(()),
            Event::Silent(host, reason) => {
                let why = self.why_silent(host, reason);
                self.lose(host, format!("its agent is gone: {why}"))
            }
            Event::Membership(_) | Event::Hosts(_) | Event::NoHosts(_) | Event::Complaint(_) => Ok(()),
            Event::OutputClosed => self.note(Happening::Interrupt(libc::SIGPIPE)),
            Event::Interrupt(signal) => self.note(Happening::Interrupt(signal)),
        }
    }

    fn note(&mut self, happening: Happening) -> Result<()> {
        let Some(EndAll { signal, grace }) = self.lifecycle.note(happening, Instant::now()) else { return Ok(()) };
        // Nobody handles SIGPIPE; it is only our own way to say that nobody reads us.
        let signal = if signal == libc::SIGPIPE { libc::SIGTERM } else { signal };
        if self.job.verbose {
            self.say(&format!("corro: ending all ranks with signal {signal}"));
        }
        let order = Order::End { signal, grace_ms: grace.as_millis() as u64 };
        self.hosts.iter().try_for_each(|state| state.process.order(&order))
    }

    fn release(&mut self) {
        // All at once: each may need the whole time.
        for state in &mut self.hosts {
            if state.over {
                state.process.release(Duration::from_millis(500));
            }
        }
        for state in &mut self.hosts {
            state.process.release(Duration::from_secs(3));
        }
    }

    /// What ranks have given back. A rank that failed may have given its reason.
    fn results(&self) -> Vec<Option<Vec<u8>>> {
        if self.job.payload.is_none() {
            return Vec::new();
        }
        let deadline = Deadline::after(Duration::from_secs(10));
        let Ok(mut client) = self.client(deadline) else { return Vec::new() };
        let take = |rank| worker::take(&mut client, &worker::result_key(rank), deadline).ok().flatten();
        (0..self.job.size()).map(take).collect()
    }

    fn say(&self, text: &str) {
        if let Some(mut output) = lock_soon(&self.output) {
            output.say(text);
        }
    }
}

/// For each host whether it is this one. Names are looked up all at once, since a name server may take its time.
fn which_are_local(job: &Job) -> Result<Vec<bool>> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = job.placement.iter().map(|a| scope.spawn(|| remote::is_local(&a.host))).collect();
        let panicked = |_| Error::Bug("looking up a host panicked".into());
        asked.into_iter().map(|a| a.join().map_err(panicked)?).collect()
    })
}

pub(crate) fn start_store(job: &Job, secret: &Secret, all_here: bool) -> Result<store::Server> {
    let port = job.rendezvous_port;
    let limits = store::Limits::default();
    if all_here {
        return store::Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), secret, job.tls, limits);
    }
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    store::Server::start(everywhere, secret, job.tls, limits).or_else(|_| {
        // A system without IPv6.
        store::Server::start(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), secret, job.tls, limits)
    })
}
