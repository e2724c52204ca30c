//! What every launcher has, whether its job has a fixed size or is elastic: the store, the output, and the agents of hosts, which
//! it starts, tells what to do, listens to, and ends.
//!
//! Decides nothing about the job: [`crate::fixed`] and [`crate::elastic`] do.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Rank, Result};
use corro_observe::watcher::Question;
use corro_transport::secret::Secret;
use corro_transport::{Bind, nic, store};
use serde_bytes::ByteBuf;

use crate::agent::message::{Order, Start};
use crate::agent::{self, BEAT};
use crate::agent_process::{AgentProcess, SharedOutput, lock_soon};
use crate::event::Event;
use crate::hosts::Host;
use crate::job::Job;
use crate::join::AgentListener;
use crate::keyboard::{self, Keyboard};
use crate::output::Output;
use crate::process_id::ProcessId;
use crate::servers::Servers;
use crate::start::{Joined, Local, Reach, Starter};
use crate::threads::{self, Share};
use crate::variables::Common;
use crate::watch::Watch;
use crate::worker;

/// How many times longer the silence of the launcher is borne than that of a host: it may be stopped by hand for a while.
const LAUNCHER_PATIENCE: u32 = 6;
/// How long an agent that says no more may take to end and to give its reason.
const GOODBYE: Duration = Duration::from_millis(500);
/// If the launcher has not looked at its clock for so long, it was stopped itself.
const OWN_ABSENCE: Duration = Duration::from_secs(5);
/// How long agents may take to go when all is over: those that have said so, and the others.
const RELEASE_FINISHED: Duration = Duration::from_millis(500);
const RELEASE_OTHERS: Duration = Duration::from_secs(3);
/// How long one rank's result may take to be read from the store, which is in this process.
const RESULT_TIME: Duration = Duration::from_secs(120);

/// The agent of a host. A host that comes back gets a new one.
pub(crate) struct HostAgent {
    /// The host's name.
    pub(crate) host: String,
    pub(crate) local: bool,
    reach: Box<dyn Reach>,
    process: AgentProcess,
    started: Instant,
    /// When it last gave a sign of life.
    heard: Instant,
    /// Its answer to being started: the launcher's address as it sees it, or why it can't be used.
    hello: Option<Result<Option<IpAddr>, String>>,
    /// How many cores ranks may use there.
    cores: usize,
    /// Nothing more is expected of it.
    pub(crate) over: bool,
}

impl HostAgent {
    /// Whether it is there and may be told what to do.
    pub(crate) fn is_ready(&self) -> bool {
        matches!(self.hello, Some(Ok(_)))
    }

    /// Whether it has said whether it can be used.
    pub(crate) fn has_answered(&self) -> bool {
        self.hello.is_some()
    }

    /// Sends an order. An agent that is gone tells so by its silence, not here.
    pub(crate) fn order(&self, order: &Order) -> Result<()> {
        self.process.order(order)
    }

    fn caller(&self) -> Option<IpAddr> {
        self.hello.as_ref()?.as_ref().ok().copied().flatten()
    }
}

/// What an agent says when it is there.
pub(crate) struct Hello<'a> {
    pub(crate) release: &'a str,
    pub(crate) caller: Option<&'a str>,
    pub(crate) cores: u32,
}

pub(crate) struct Launcher<'a> {
    pub(crate) job: &'a Job,
    pub(crate) secret: Secret,
    pub(crate) agents: Vec<HostAgent>,
    pub(crate) output: SharedOutput,
    store: store::Server,
    /// Where agents of other hosts join, if they come by themselves.
    pub(crate) joining: Option<AgentListener>,
    /// Parameter servers, which end with us.
    servers: Option<Servers>,
    sender: Sender<Event>,
    events: Receiver<Event>,
    last_beat: Instant,
}

impl<'a> Launcher<'a> {
    /// A launcher without agents. `all_here`: nobody on another host will need the store.
    pub(crate) fn new(
        job: &'a Job,
        output: Output,
        all_here: bool,
        (sender, events): (Sender<Event>, Receiver<Event>),
    ) -> Result<Self> {
        let secret = Secret::random()?;
        let store = start_store(job, &secret, all_here)?;
        let output = Arc::new(Mutex::new(output));
        if let Some(watcher) = &job.watcher {
            let sender = sender.clone();
            watcher.ask_by(move |question| drop(sender.send(Event::Asked(question))));
        }
        let (agents, last_beat) = (Vec::new(), Instant::now());
        let joining = job.remote.join_port.map(AgentListener::open).transpose()?;
        let mut launcher =
            Self { job, secret, agents, output, store, joining, servers: None, sender, events, last_beat };
        launcher.start_servers(all_here)?;
        Ok(launcher)
    }

    /// Starts the job's parameter servers, and leaves in the store where they are.
    fn start_servers(&mut self, all_here: bool) -> Result<()> {
        if self.job.servers.hosts.is_empty() {
            return Ok(());
        }
        let (running, addresses) = Servers::start(self.job, &self.secret, all_here)?;
        self.servers = Some(running);
        let deadline = Deadline::after(self.job.start_timeout);
        let mut client = self.client(deadline)?;
        for (server, addresses) in addresses.iter().enumerate() {
            client.set(&corro_server::launched::key(server), addresses.as_str(), deadline)?;
        }
        Ok(())
    }

    /// The next that happens, if anything does within `limit`.
    pub(crate) fn next_event(&self, limit: Duration) -> Result<Option<Event>> {
        match self.events.recv_timeout(limit) {
            Ok(event) => Ok(Some(event)),
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(Error::Bug("nobody is left to be heard".into())),
        }
    }

    // Agents.

    /// Starts the agent of `host`, which is called `name` from now on. It is this place in all events.
    pub(crate) fn start_agent(&mut self, name: &str, host: &Host, local: bool) -> Result<usize> {
        let job = self.job;
        let at = self.agents.len();
        let watch = Watch::new(job.watcher.as_ref(), name);
        let start = |starter: &dyn Starter, agent: &[OsString], watch| {
            let command = starter.command(host, agent, job.start_timeout);
            AgentProcess::start(command, at, &self.sender, &self.output, watch)
        };
        let (reach, process): (Box<dyn Reach>, _) = match &self.joining {
            _ if local => (Box::new(Local), start(&Local, &job.agent, watch)?),
            Some(joining) => {
                let connection = joining.call(name)?;
                (Box::new(Joined), AgentProcess::joined(connection, at, &self.sender, &self.output, watch)?)
            }
            None => {
                let starter = job.remote.starter();
                let process = start(starter.as_ref(), &job.remote.agent(&job.agent), watch)?;
                (starter, process)
            }
        };
        let now = Instant::now();
        let host = name.to_owned();
        self.agents.push(HostAgent {
            host,
            local,
            reach,
            process,
            started: now,
            heard: now,
            hello: None,
            cores: 1,
            over: false,
        });
        Ok(at)
    }

    /// An agent has given a sign of life.
    pub(crate) fn heard(&mut self, at: usize) {
        self.agents[at].heard = Instant::now();
    }

    /// An agent is there, or is of no use for the reason given.
    pub(crate) fn hello(&mut self, at: usize, hello: &Hello<'_>) -> Result<(), String> {
        let Hello { release, caller, cores } = *hello;
        let ours = env!("CARGO_PKG_VERSION");
        let answer = if release == ours {
            Ok(caller.and_then(|c| c.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()))
        } else {
            Err(format!("it has corro {release} where this host has {ours}: install the same release"))
        };
        let outcome = answer.as_ref().map(drop).map_err(Clone::clone);
        self.agents[at].hello = Some(answer);
        self.agents[at].cores = cores as usize;
        outcome
    }

    /// Whether an agent is there, or why not, now that it was waited for long enough.
    pub(crate) fn reached(&self, at: usize) -> Result<(), String> {
        let agent = &self.agents[at];
        match &agent.hello {
            Some(hello) => hello.as_ref().map(drop).map_err(Clone::clone),
            None => Err(format!(
                "Timed out waiting for its agent to answer. Timeout after {} seconds (--start-timeout): {}",
                self.job.start_timeout.as_secs_f64(),
                agent.reach.advice_on_silence()
            )),
        }
    }

    /// What agents are started with on other hosts, for error texts: "ssh".
    pub(crate) fn ways(&self) -> String {
        let mut ways: Vec<String> = self.agents.iter().filter(|a| !a.local).map(|a| a.reach.name()).collect();
        ways.dedup();
        if ways.is_empty() { Local.name() } else { ways.join(", ") }
    }

    /// An agent says no more: it is of no use, for the reason that comes back.
    pub(crate) fn silent(&mut self, at: usize, reason: Option<String>) -> String {
        let agent = &mut self.agents[at];
        let status = agent.process.status(GOODBYE);
        let words = agent.process.last_words(GOODBYE);
        let last = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>();
        let mut text = last[last.len().saturating_sub(3)..].join(" | ");
        if text.is_empty() {
            let how = status.map_or_else(|| "it closed the connection".to_owned(), |s| format!("it ended with {s}"));
            text = reason.unwrap_or(how);
        }
        if let Some(advice) = agent.reach.advice(&agent.host, &words) {
            text = format!("{text} ({advice})");
        }
        if agent.hello.is_none() {
            agent.hello = Some(Err(text.clone()));
        }
        text
    }

    /// Tells agents, about once a second, that the launcher lives. Gives those that are lost: they did not answer in time, or
    /// have been silent for too long. (Those of this very host too: a stopped agent passes on nothing, not even that its
    /// ranks have ended.)
    pub(crate) fn beat(&mut self, now: Instant) -> Result<Vec<(usize, String)>> {
        let mut lost = Vec::new();
        if now < self.last_beat + BEAT {
            return Ok(lost);
        }
        if now >= self.last_beat + OWN_ABSENCE {
            // We were stopped; that is no silence of the hosts.
            for agent in &mut self.agents {
                agent.started += now - self.last_beat;
                agent.heard = now;
            }
        }
        self.last_beat = now;
        let limit = self.job.host_timeout;
        for at in 0..self.agents.len() {
            let agent = &mut self.agents[at];
            if agent.over {
                continue;
            }
            if !agent.is_ready() {
                if now >= agent.started + self.job.start_timeout
                    && let Err(why) = self.reached(at)
                {
                    lost.push((at, why));
                }
                continue;
            }
            agent.process.order(&Order::Beat)?;
            if agent.process.is_showing() {
                // We do not listen to it now, because nobody reads what we show: that is no silence of the host.
                agent.heard = now;
            }
            if now >= agent.heard + limit {
                let why = if agent.local { "its agent is stopped" } else { "the host or its network is down" };
                lost.push((at, format!("nothing was heard from it for {limit:?} (--host-timeout): {why}")));
            }
        }
        Ok(lost)
    }

    /// Asks all processes.
    pub(crate) fn ask(&self, question: Question) -> Result<()> {
        let order = match question {
            Question::Stacks => Order::Stacks,
            Question::Records => Order::Records,
        };
        let mut ready = self.agents.iter().filter(|agent| agent.is_ready() && !agent.over);
        ready.try_for_each(|agent| agent.order(&order))
    }

    /// Passes a signal on to all processes, which they may handle.
    pub(crate) fn pass_on(&self, signal: i32) -> Result<()> {
        let mut ready = self.agents.iter().filter(|agent| agent.is_ready() && !agent.over);
        ready.try_for_each(|agent| agent.order(&Order::Pass { signal }))
    }

    /// Nothing more is expected of an agent that is lost; should it still be there, all that it has started is ended.
    pub(crate) fn give_up(&mut self, at: usize) {
        self.agents[at].over = true;
        self.agents[at].process.release(Duration::ZERO);
    }

    /// Ends everything: `signal` now, SIGKILL after `grace`.
    pub(crate) fn end_all(&mut self, signal: i32, grace: Duration) -> Result<()> {
        // Nobody handles SIGPIPE; it is only our own way to say that nobody reads us.
        let signal = if signal == libc::SIGPIPE { libc::SIGTERM } else { signal };
        if self.job.verbose {
            self.say(&format!("corro: ending all ranks with signal {signal}"));
        }
        let order = Order::End { signal, grace_ms: grace.as_millis() as u64 };
        for agent in self.agents.iter_mut().filter(|a| !a.over) {
            agent.process.order(&order)?;
            // Nothing was started where nobody has answered.
            agent.over = !agent.is_ready();
        }
        Ok(())
    }

    /// Lets agents go. Those that have said that nothing is left go by themselves; others may be gone, or still ending things.
    pub(crate) fn release(&mut self) {
        for over in [true, false] {
            for agent in self.agents.iter_mut().filter(|a| a.over == over) {
                agent.process.release(if over { RELEASE_FINISHED } else { RELEASE_OTHERS });
            }
        }
    }

    /// Says whose agents did not confirm that nothing is left.
    pub(crate) fn tell_unconfirmed(&self) {
        let unfinished: Vec<&str> = self.agents.iter().filter(|a| !a.over).map(|a| a.host.as_str()).collect();
        if !unfinished.is_empty() {
            self.say(&format!("corro: {} did not confirm that everything there has ended", unfinished.join(", ")));
        }
    }

    // What agents and ranks are told.

    /// The order by which an agent learns what it is to start: `processes` now, and in an elastic job others later, which go on for
    /// `orphan_time` without a launcher.
    pub(crate) fn start_order(
        &self,
        at: usize,
        processes: Vec<(ProcessId, Vec<(String, String)>)>,
        orphan_time: Option<Duration>,
    ) -> Order {
        let bytes = |text: &OsString| ByteBuf::from(text.as_bytes());
        let milliseconds = |length: Duration| length.as_millis() as u64;
        let local = self.agents[at].local;
        let debugged = self.job.debug.map(ProcessId::of_rank);
        let terminal = debugged.filter(|debugged| processes.iter().any(|(process, _)| process == debugged));
        Order::Start(Start {
            terminal: terminal.map(|process| (process, keyboard::window())),
            directory: ByteBuf::from(self.job.directory.as_os_str().as_bytes()),
            command: self.job.command.iter().map(bytes).collect(),
            environment: agent::passed_on(std::env::vars_os()).iter().map(|(n, v)| (bytes(n), bytes(v))).collect(),
            processes,
            another_host: !local,
            // On our own host the end of the launcher is known at once, and a stopped one does no harm.
            silence_ms: (!local).then_some(milliseconds(self.job.host_timeout * LAUNCHER_PATIENCE)),
            orphan_ms: orphan_time.map(milliseconds),
            feed: self.job.watcher.is_some(),
        })
    }

    /// How the `ranks` ranks on the host of this agent share its cores.
    pub(crate) fn share(&self, at: usize, ranks: usize) -> Share {
        Share { host: self.agents[at].host.clone(), cores: self.agents[at].cores, ranks }
    }

    /// Says how cores are shared, if that is for us to say.
    pub(crate) fn tell_threads(&self, shares: &[Share]) {
        if let Some(text) = threads::sentence(shares, |name| self.has_set(name)) {
            self.say(&format!("corro: {text}"));
        }
    }

    /// Whether the user has set a variable for the ranks.
    fn has_set(&self, name: &str) -> bool {
        self.job.variables.iter().any(|(n, _)| n == name) || std::env::vars_os().any(|(n, _)| n == *name)
    }

    /// What all ranks on the host of this agent are told; they share its cores as `share` says.
    pub(crate) fn common(&self, at: usize, share: &Share) -> Result<Common> {
        Ok(Common {
            threads: share.variables(|name| self.has_set(name)),
            rendezvous: self.reachable(at, self.store.addresses()?)?,
            secret: self.secret.to_hex(),
            tls: self.job.tls,
            interfaces: self.job.interfaces.clone(),
            settings: self.job.variables.clone(),
        })
    }

    /// Addresses of ours as the host of an agent can use them. Those that lead nowhere do no harm: ranks try them all, and
    /// whoever answers must prove the secret.
    pub(crate) fn reachable(&self, at: usize, mut addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>> {
        let agent = &self.agents[at];
        if !self.job.interfaces.is_empty() {
            let chosen = nic::addresses(Some(&self.job.interfaces))?;
            addresses.retain(|a| a.ip().is_loopback() || chosen.iter().any(|n| n.address == a.ip()));
        } else if let Some(port) = addresses.first().map(SocketAddr::port) {
            // An address by which a host sees us is known to work, at least for ssh; this host's own comes first.
            let others = self.agents.iter().filter_map(HostAgent::caller);
            for ip in others.chain(agent.caller()) {
                let seen = SocketAddr::new(ip, port);
                addresses.retain(|a| *a != seen);
                addresses.insert(0, seen);
            }
        }
        if agent.local {
            addresses.sort_by_key(|a| !a.ip().is_loopback());
        }
        Ok(addresses)
    }

    // What the starter of the job gives and gets.

    pub(crate) fn leave_payload(&self) -> Result<()> {
        let Some(payload) = &self.job.payload else { return Ok(()) };
        let deadline = Deadline::after(self.job.start_timeout);
        worker::put(&mut self.client(deadline)?, worker::PAYLOAD, payload, deadline)
    }

    /// What the first `count` ranks have given back. A rank that failed may have given its reason.
    pub(crate) fn results(&self, count: usize) -> Vec<Option<Vec<u8>>> {
        if self.job.payload.is_none() {
            return Vec::new();
        }
        let deadline = || Deadline::after(RESULT_TIME);
        let Ok(mut client) = self.client(deadline()) else { return Vec::new() };
        let take = |rank| worker::take(&mut client, &worker::result_key(rank), deadline()).ok().flatten();
        Rank::all(count).map(take).collect()
    }

    fn client(&self, deadline: Deadline) -> Result<store::Client> {
        let port = self.store.address().port();
        let own = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
        store::Client::connect(&own, &self.secret, self.job.tls, deadline)
    }

    // What the user types, and sees.

    /// From now on, what the user types is for the rank that has the terminal.
    pub(crate) fn take_keyboard(&self) -> Result<Keyboard> {
        Keyboard::take(self.sender.clone())
    }

    pub(crate) fn say(&self, text: &str) {
        if let Some(watcher) = &self.job.watcher {
            watcher.with(|story, now| story.event(now, "info", text.trim_start_matches("corro: ")));
        }
        if let Some(mut output) = lock_soon(&self.output) {
            output.say(text);
        }
    }

    /// Ends the output; gives the last lines of `process`.
    pub(crate) fn close_output(&self, process: Option<ProcessId>) -> Vec<String> {
        let Some(mut output) = lock_soon(&self.output) else { return Vec::new() };
        let last_lines = process.map(|process| output.last_lines(process)).unwrap_or_default();
        output.close();
        last_lines
    }
}

fn start_store(job: &Job, secret: &Secret, all_here: bool) -> Result<store::Server> {
    let port = job.rendezvous_port;
    let limits = store::Limits::default();
    if all_here {
        return store::Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), secret, job.tls, limits);
    }
    if !job.interfaces.is_empty() {
        return store::Server::start_at(&Bind::interfaces(&job.interfaces, port)?, secret, job.tls, limits);
    }
    let everywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, port));
    store::Server::start(everywhere, secret, job.tls, limits).or_else(|_| {
        // A system without IPv6.
        store::Server::start(SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)), secret, job.tls, limits)
    })
}
