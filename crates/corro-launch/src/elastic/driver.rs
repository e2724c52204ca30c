//! The driver of an elastic job: does what the machine decides, and tells it what happens.
//!
//! Owns the agents of hosts, which come and go, the server to which workers talk, the store for what the starter of the
//! job wants to give and get, and the machine. Decides nothing about membership itself.

mod agents;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use corro_membership::fleet;
use corro_membership::message::{DRIVER, MAX_TO_DRIVER, ToDriver};
use corro_membership::{Decision, Exit, Input, Machine, Verdict, WorkerId};
use corro_transport::messages::{MessageEvent, MessageServer};
use corro_transport::secret::Secret;
use corro_transport::store;

use self::agents::Agent;
use super::discovery::Discovery;
use super::{ElasticJob, Hosts};
use crate::agent::BEAT;
use crate::agent::message::{Ending, Order, Report};
use crate::agent_process::{Event, SharedOutput, lock_soon};
use crate::hosts::Host;
use crate::job::{Outcome, start_store};
use crate::lifecycle::Failure;
use crate::output::Output;
use crate::{remote, worker};

/// How often the machine looks at the clock when nothing happens.
const TICK: Duration = Duration::from_millis(50);
/// How long hosts may take to tell that nothing is left, once everything there was killed.
const LAST_REPORTS: Duration = Duration::from_secs(2);
/// Whoever interrupts a job by hand gets at least so much time for it to save what it has.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// A host's name among all: with the user, if one was given.
pub(super) fn key(host: &Host) -> String {
    match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    }
}

pub(super) struct Driver<'a> {
    elastic: &'a ElasticJob,
    secret: Secret,
    store: store::Server,
    messages: MessageServer,
    _discovery: Discovery,
    output: SharedOutput,
    sender: Sender<Event>,
    events: Receiver<Event>,
    machine: Machine,
    begin: Instant,
    /// Hosts as they were last discovered, and whether each is this one.
    hosts: BTreeMap<String, (Host, bool)>,
    /// Those of them that are in the last list.
    listed: BTreeSet<String>,
    agents: Vec<Agent>,
    /// The agent of each worker that may be there.
    workers: BTreeMap<WorkerId, usize>,
    size: usize,
    epochs: u64,
    verdict: Option<Verdict>,
    interrupted: Option<i32>,
    not_started: Option<Failure>,
    /// When everything will have been killed.
    kill_at: Option<Instant>,
    last_beat: Instant,
}

impl<'a> Driver<'a> {
    pub(super) fn start(
        elastic: &'a ElasticJob,
        output: Output,
        sender: Sender<Event>,
        events: Receiver<Event>,
    ) -> Result<Self> {
        let job = &elastic.job;
        let secret = Secret::random()?;
        let all_here = match &elastic.hosts {
            Hosts::Fixed(hosts) => hosts.iter().all(|h| remote::is_local(h).unwrap_or(false)),
            Hosts::Script { .. } => false,
        };
        let store = start_store(job, &secret, all_here)?;
        let open = |address: IpAddr| {
            let sender = sender.clone();
            let hear = move |heard: MessageEvent<ToDriver>| drop(sender.send(Event::Membership(heard)));
            MessageServer::open(DRIVER, SocketAddr::new(address, 0), &secret, job.tls, MAX_TO_DRIVER, hear)
        };
        let messages = if all_here {
            open(Ipv4Addr::LOCALHOST.into())?
        } else {
            // A system without IPv6 has the other one.
            open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open(Ipv4Addr::UNSPECIFIED.into()))?
        };
        let discovery = Discovery::start(elastic.hosts.clone(), sender.clone())?;
        let begin = Instant::now();
        Ok(Self {
            elastic,
            secret,
            store,
            messages,
            _discovery: discovery,
            output: Arc::new(Mutex::new(output)),
            sender,
            events,
            machine: Machine::new(elastic.rules.clone(), Duration::ZERO),
            begin,
            hosts: BTreeMap::new(),
            listed: BTreeSet::new(),
            agents: Vec::new(),
            workers: BTreeMap::new(),
            size: 0,
            epochs: 0,
            verdict: None,
            interrupted: None,
            not_started: None,
            kill_at: None,
            last_beat: begin,
        })
    }

    /// From the first host to the end of the last process.
    pub(super) fn follow(&mut self) -> Result<Option<Failure>> {
        self.leave_payload()?;
        loop {
            let now = Instant::now();
            if let Some(kill_at) = self.kill_at
                && (self.agents.iter().all(|a| a.over) || now >= kill_at + LAST_REPORTS)
            {
                break;
            }
            if now >= self.last_beat + BEAT {
                self.beat_and_listen(now)?;
                self.last_beat = now;
            }
            match self.events.recv_timeout(TICK) {
                Ok(event) => self.handle(event)?,
                Err(RecvTimeoutError::Timeout) => self.note(Input::Tick)?,
                Err(RecvTimeoutError::Disconnected) => return Err(Error::Bug("nobody is left to be heard".into())),
            }
        }
        let unfinished: Vec<&str> = self.agents.iter().filter(|a| !a.over).map(|a| a.host.as_str()).collect();
        if !unfinished.is_empty() {
            self.say(&format!("corro: {} did not confirm that everything there has ended", unfinished.join(", ")));
        }
        Ok(self.failure())
    }

    fn failure(&mut self) -> Option<Failure> {
        if let Some(signal) = self.interrupted {
            return Some(Failure::Interrupted { signal });
        }
        if let Some(failure) = self.not_started.take() {
            return Some(failure);
        }
        let verdict = self.verdict.take().filter(|v| !v.success)?;
        let worker = verdict.failed.as_ref().map(|(worker, _)| *worker as usize);
        let code = verdict.failed.map_or(1, |(_, exit)| exit.code);
        Some(Failure::Elastic { why: verdict.why, worker, code })
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Membership(MessageEvent::Connected(_)) => Ok(()),
            Event::Membership(MessageEvent::Received(link, message)) => self.note(Input::Said(link, message)),
            Event::Membership(MessageEvent::Disconnected(link, why)) => self.note(Input::Lost(link, why)),
            Event::Hosts(found) => {
                let list = found.iter().map(|(h, _)| fleet::HostSlots { name: key(h), slots: h.slots }).collect();
                self.listed = found.iter().map(|(h, _)| key(h)).collect();
                self.hosts.extend(found.into_iter().map(|(host, local)| (key(&host), (host, local))));
                self.note(Input::Hosts(list))?;
                self.leave_empty_hosts()
            }
            Event::NoHosts(why) => {
                let decisions = self.machine.stop(&why);
                self.carry_out(decisions)
            }
            Event::Complaint(text) => {
                self.say(&format!("corro: {text}"));
                Ok(())
            }
            Event::Report(at, report) => self.report(at, report),
            Event::Alive(at) => {
                self.agents[at].heard = Instant::now();
                Ok(())
            }
            Event::Silent(at, _) if self.agents[at].over => Ok(()),
            Event::Silent(at, reason) => {
                let why = self.why_silent(at, reason);
                self.lose_host(at, &why)
            }
            Event::OutputClosed => self.interrupt(libc::SIGPIPE),
            Event::Interrupt(signal) => self.interrupt(signal),
        }
    }

    fn report(&mut self, at: usize, report: Report) -> Result<()> {
        if self.agents[at].over {
            return Ok(());
        }
        self.agents[at].heard = Instant::now();
        match report {
            Report::Hello { release, caller } => {
                if release != env!("CARGO_PKG_VERSION") {
                    let ours = env!("CARGO_PKG_VERSION");
                    let why = format!("it has corro {release} where this host has {ours}: install the same release");
                    return self.lose_host(at, &why);
                }
                let agent = &mut self.agents[at];
                (agent.greeted, agent.caller) =
                    (true, caller.and_then(|c| c.parse::<IpAddr>().ok()).map(|ip| ip.to_canonical()));
                self.begin_at(at)
            }
            Report::Exited { rank, ending } => {
                if let Some(mut output) = lock_soon(&self.output) {
                    output.forget(rank);
                }
                self.workers.remove(&(rank as WorkerId));
                let words = match ending {
                    Ending::Code(0) => "ended".to_owned(),
                    Ending::Code(_) => format!("exited with non-zero status: {ending}"),
                    Ending::Signal(_) => format!("was killed by {ending}"),
                };
                let by_signal = matches!(ending, Ending::Signal(_));
                self.note(Input::Exited(rank as WorkerId, Exit { code: ending.code(), by_signal, words }))?;
                self.leave_empty_hosts()
            }
            Report::NotStarted { rank, code, cause } => {
                self.workers.remove(&(rank as WorkerId));
                let words = format!("could not be started: {cause}");
                if self.epochs == 0 && self.not_started.is_none() {
                    // The others would fail in the same way.
                    let host = self.agents[at].host.clone();
                    self.not_started = Some(Failure::NotStarted { rank, host, code, cause });
                    let decisions = self.machine.stop(&words);
                    return self.carry_out(decisions);
                }
                self.note(Input::Exited(rank as WorkerId, Exit { code, by_signal: false, words }))
            }
            Report::Done => {
                self.agents[at].over = true;
                if self.kill_at.is_none() {
                    return self.lose_host(at, "its agent has ended");
                }
                Ok(())
            }
            Report::Started { .. } | Report::Output { .. } | Report::Beat => Ok(()),
        }
    }

    fn note(&mut self, input: Input) -> Result<()> {
        let decisions = self.machine.handle(input, self.begin.elapsed());
        self.carry_out(decisions)
    }

    fn carry_out(&mut self, decisions: Vec<Decision>) -> Result<()> {
        for decision in decisions {
            match decision {
                Decision::Tell(link, message) => self.messages.tell(link, &message)?,
                Decision::Close(link) => self.messages.close(link),
                Decision::Start { worker, host } => self.start_worker(worker, &host)?,
                Decision::Kill { worker, .. } => {
                    if let Some(at) = self.workers.get(&worker) {
                        self.agents[*at].waiting.retain(|w| *w != worker);
                        self.agents[*at].process.order(&Order::Kill { rank: worker as usize })?;
                    }
                }
                Decision::Say(text) => self.say(&format!("corro: {text}")),
                Decision::Formed { epoch, members, why } => self.formed(epoch, &members, &why),
                Decision::Finished(verdict) => {
                    self.verdict = Some(verdict);
                    self.end_all(libc::SIGTERM, self.elastic.job.grace)?;
                }
            }
        }
        Ok(())
    }

    fn formed(&mut self, epoch: u64, members: &[(WorkerId, String)], why: &str) {
        self.epochs += 1;
        let before = std::mem::replace(&mut self.size, members.len());
        if let Some(mut output) = lock_soon(&self.output) {
            for (rank, (worker, _)) in members.iter().enumerate() {
                output.label(*worker as usize, rank.to_string());
            }
        }
        if self.epochs > 1 {
            let why = if why.is_empty() { String::new() } else { format!(", because {why}") };
            self.say(&format!("corro: epoch {epoch}: {} ranks after {before}{why}", members.len()));
        } else if self.elastic.job.verbose {
            self.say(&format!("corro: epoch {epoch}: {} ranks", members.len()));
        }
    }

    fn start_worker(&mut self, worker: WorkerId, host: &str) -> Result<()> {
        let label = if self.epochs == 0 { worker.to_string() } else { format!("w{worker}") };
        if let Some(mut output) = lock_soon(&self.output) {
            output.add(worker as usize, label)?;
        }
        let at = match self.agents.iter().position(|a| a.host == host && !a.over) {
            Some(at) => at,
            None => self.start_agent(host)?,
        };
        self.workers.insert(worker, at);
        self.agents[at].waiting.push(worker);
        if self.agents[at].greeted { self.launch_waiting(at) } else { Ok(()) }
    }

    fn interrupt(&mut self, signal: i32) -> Result<()> {
        if self.interrupted.is_some() {
            // Asked twice: at once.
            return self.end_all(signal, Duration::ZERO);
        }
        self.interrupted = Some(signal);
        let decisions = self.machine.stop(&format!("the launcher got signal {signal}"));
        // Nobody handles SIGPIPE; it is only our own way to say that nobody reads us.
        let signal = if signal == libc::SIGPIPE { libc::SIGTERM } else { signal };
        self.end_all(signal, self.elastic.job.grace.max(INTERRUPT_GRACE))?;
        self.carry_out(decisions)
    }

    fn end_all(&mut self, signal: i32, grace: Duration) -> Result<()> {
        let kill_at = Instant::now() + grace;
        self.kill_at = Some(self.kill_at.map_or(kill_at, |at| at.min(kill_at)));
        let order = Order::End { signal, grace_ms: grace.as_millis() as u64 };
        for agent in self.agents.iter_mut().filter(|a| !a.over) {
            agent.process.order(&order)?;
            if !agent.greeted {
                // Nothing was started there.
                agent.over = true;
            }
        }
        Ok(())
    }

    pub(super) fn release(&mut self) {
        for over in [true, false] {
            for agent in self.agents.iter_mut().filter(|a| a.over == over) {
                agent.process.release(if over { Duration::from_millis(500) } else { Duration::from_secs(3) });
            }
        }
    }

    pub(super) fn outcome(&self, failure: Option<Failure>) -> Outcome {
        let mut last_lines = Vec::new();
        if let Some(mut output) = lock_soon(&self.output) {
            if let Some(Failure::Elastic { worker: Some(worker), .. }) = &failure {
                last_lines = output.last_lines(*worker);
            }
            output.close();
        }
        Outcome { failure, results: self.results(), last_lines }
    }

    fn client(&self, deadline: Deadline) -> Result<store::Client> {
        let port = self.store.address().port();
        let own = [SocketAddr::from((Ipv4Addr::LOCALHOST, port)), SocketAddr::from((Ipv6Addr::LOCALHOST, port))];
        store::Client::connect(&own, &self.secret, self.elastic.job.tls, deadline)
    }

    fn leave_payload(&mut self) -> Result<()> {
        let Some(payload) = &self.elastic.job.payload else { return Ok(()) };
        let deadline = Deadline::after(self.elastic.job.start_timeout);
        worker::put(&mut self.client(deadline)?, worker::PAYLOAD, payload, deadline)
    }

    /// What the ranks of the last epoch have given back.
    fn results(&self) -> Vec<Option<Vec<u8>>> {
        if self.elastic.job.payload.is_none() {
            return Vec::new();
        }
        let deadline = Deadline::after(Duration::from_secs(10));
        let Ok(mut client) = self.client(deadline) else { return Vec::new() };
        let take = |rank| worker::take(&mut client, &worker::result_key(rank), deadline).ok().flatten();
        (0..self.size).map(take).collect()
    }

    fn say(&self, text: &str) {
        if let Some(mut output) = lock_soon(&self.output) {
            output.say(text);
        }
    }
}
