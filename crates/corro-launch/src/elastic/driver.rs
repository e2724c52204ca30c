//! The driver of an elastic job: does what the machine decides, and tells it what happens.
//!
//! Owns the machine, the server to which workers talk, the discovery of hosts, and by its [`Launcher`] the agents of hosts,
//! which come and go. Decides nothing about membership itself.

mod workers;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use corro_core::{Rank, Result};
use corro_membership::fleet::HostSlots;
use corro_membership::message::{DRIVER, MAX_TO_DRIVER, ToDriver};
use corro_membership::{Decision, Exit, Input, Machine, Verdict, WorkerId};
use corro_transport::Bind;
use corro_transport::messages::{MessageEvent, MessageServer};

use super::discovery::Discovery;
use super::job::{ElasticJob, Hosts};
use crate::agent::message::{Ending, Report};
use crate::agent_process::lock_soon;
use crate::culprit::Deaths;
use crate::event::{Control, Event};
use crate::failure::Failure;
use crate::hosts::Host;
use crate::job::Outcome;
use crate::launcher::{Hello, Launcher};
use crate::lifecycle::{INTERRUPT_GRACE, LAST_REPORTS};
use crate::output::Output;
use crate::process_id::ProcessId;
use crate::start;

/// How often the machine looks at the clock when nothing happens.
const TICK: Duration = Duration::from_millis(50);

impl ElasticJob {
    /// Runs the job to its end. `ready` is given the means to interrupt it.
    pub fn run(&self, output: Output, ready: impl FnOnce(Control)) -> Result<Outcome> {
        let (sender, events) = channel();
        ready(Control::new(sender.clone()));
        let mut driver = Driver::start(self, output, &sender, events)?;
        let followed = driver.follow();
        // No list of hosts is wanted any more, and whatever script makes one is to end.
        drop(driver.discovery.take());
        driver.launcher.release();
        let failure = followed?;
        let failed = if let Some(Failure::Elastic { worker, .. }) = &failure { *worker } else { None };
        let last_lines = driver.launcher.close_output(failed.map(ProcessId::of_worker));
        Ok(Outcome { failure, results: driver.launcher.results(driver.size), last_lines })
    }
}

struct Driver<'a> {
    elastic: &'a ElasticJob,
    launcher: Launcher<'a>,
    messages: MessageServer,
    discovery: Option<Discovery>,
    machine: Machine,
    begin: Instant,
    /// Hosts as they were last discovered, and whether each is this one.
    hosts: BTreeMap<String, (Host, bool)>,
    /// Those of them that are in the last list.
    listed: BTreeSet<String>,
    /// The agent of each worker that may be there.
    workers: BTreeMap<WorkerId, usize>,
    /// Workers that an agent is to start once it is there.
    waiting: BTreeMap<usize, Vec<WorkerId>>,
    /// Those who have died since the last epoch was made.
    deaths: Deaths,
    /// The workers of the last epoch, by rank.
    members: Vec<WorkerId>,
    /// Whether the user was told how ranks share the cores of a host.
    told_threads: bool,
    /// How many ranks the last epoch has, and how many epochs there were.
    size: usize,
    epochs: u64,
    verdict: Option<Verdict>,
    interrupted: Option<i32>,
    not_started: Option<Failure>,
    /// When everything will have been killed, once all is being ended.
    kill_at: Option<Instant>,
}

impl<'a> Driver<'a> {
    fn start(elastic: &'a ElasticJob, output: Output, sender: &Sender<Event>, events: Receiver<Event>) -> Result<Self> {
        let all_here = match &elastic.hosts {
            Hosts::Fixed(hosts) | Hosts::Slurm { hosts, .. } => {
                hosts.iter().all(|h| start::is_local(h).unwrap_or(false))
            }
            Hosts::Script { .. } | Hosts::Joined => false,
        };
        let discovery = Discovery::start(elastic.hosts.clone(), sender.clone())?;
        let launcher = Launcher::new(&elastic.job, output, all_here, (sender.clone(), events))?;
        let messages = open_server(&launcher, all_here, sender)?;
        if let (Hosts::Joined, Some(joining)) = (&elastic.hosts, &launcher.joining) {
            joining.watch(sender.clone());
        }
        Ok(Self {
            elastic,
            launcher,
            messages,
            discovery: Some(discovery),
            machine: Machine::new(elastic.rules.clone(), Duration::ZERO),
            begin: Instant::now(),
            hosts: BTreeMap::new(),
            listed: BTreeSet::new(),
            workers: BTreeMap::new(),
            waiting: BTreeMap::new(),
            deaths: Deaths::default(),
            members: Vec::new(),
            told_threads: false,
            size: 0,
            epochs: 0,
            verdict: None,
            interrupted: None,
            not_started: None,
            kill_at: None,
        })
    }

    /// From the first host to the end of the last process.
    fn follow(&mut self) -> Result<Option<Failure>> {
        self.launcher.leave_payload()?;
        loop {
            let now = Instant::now();
            if let Some(kill_at) = self.kill_at
                && (self.launcher.agents.iter().all(|a| a.over) || now >= kill_at + LAST_REPORTS)
            {
                break;
            }
            for (at, why) in self.launcher.beat(now)? {
                self.lose_host(at, &why)?;
            }
            match self.launcher.next_event(TICK)? {
                Some(event) => self.handle(event)?,
                None => self.note(Input::Tick)?,
            }
        }
        self.launcher.tell_unconfirmed();
        Ok(self.failure())
    }

    fn failure(&mut self) -> Option<Failure> {
        if let Some(signal) = self.interrupted {
            return Some(Failure::Interrupted { signal });
        }
        if let Some(failure) = self.not_started.take() {
            return Some(failure);
        }
        let verdict = self.verdict.take().filter(|v| !v.success || v.early)?;
        if verdict.early {
            return Some(Failure::Early { why: verdict.why });
        }
        let culprit = self.deaths.culprit();
        let code = culprit.as_ref().map_or(1, |culprit| culprit.code);
        Some(Failure::Elastic { why: verdict.why, worker: culprit.map(|culprit| culprit.process.worker()), code })
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            // No rank of an elastic job has the terminal.
            Event::Membership(MessageEvent::Connected(_)) | Event::Typed(_) => Ok(()),
            Event::Membership(MessageEvent::Received(link, message)) => self.note(Input::Said(link, message)),
            Event::Membership(MessageEvent::Disconnected(link, why)) => self.note(Input::Lost(link, why)),
            Event::Hosts(found) => self.discovered(found),
            Event::NoHosts(why) => {
                let decisions = self.machine.stop(&why);
                self.carry_out(decisions)
            }
            Event::Complaint(text) => {
                self.launcher.say(&format!("corro: {text}"));
                Ok(())
            }
            Event::Report(at, report) => self.report(at, report),
            Event::Alive(at) => {
                self.launcher.heard(at);
                Ok(())
            }
            Event::Silent(at, _) if self.launcher.agents[at].over => Ok(()),
            Event::Silent(at, reason) => {
                let why = self.launcher.silent(at, reason);
                self.lose_host(at, &format!("its agent is gone: {why}"))
            }
            Event::Asked(question) => self.launcher.ask(question),
            Event::Notice(why) => self.wind_down(&why),
            Event::OutputClosed => self.interrupt(libc::SIGPIPE),
            Event::Interrupt(signal) => self.interrupt(signal),
        }
    }

    fn discovered(&mut self, found: Vec<(Host, bool)>) -> Result<()> {
        let slots = |(host, _): &(Host, bool)| HostSlots { name: host.full_name(), slots: host.slots };
        let list: Vec<HostSlots> = found.iter().map(slots).collect();
        self.listed = list.iter().map(|host| host.name.clone()).collect();
        self.hosts.extend(found.into_iter().map(|(host, local)| (host.full_name(), (host, local))));
        self.note(Input::Hosts(list))?;
        self.leave_empty_hosts()
    }

    fn report(&mut self, at: usize, report: Report) -> Result<()> {
        if self.launcher.agents[at].over {
            return Ok(());
        }
        self.launcher.heard(at);
        match report {
            Report::Hello { release, caller, cores } => {
                let hello = Hello { release: &release, caller: caller.as_deref(), cores };
                match self.launcher.hello(at, &hello) {
                    Ok(()) => self.begin_at(at),
                    Err(why) => self.lose_host(at, &why),
                }
            }
            Report::Stated { process, statement } => {
                let known = |rank: Rank| self.members.get(rank.index()).copied().map(ProcessId::of_worker);
                self.deaths.stated(process, statement, known);
                Ok(())
            }
            Report::Exited { process, ending } => self.exited(process, ending),
            Report::NotStarted { process, code, cause } => self.not_started(at, process, code, &cause),
            Report::Ending { signal } => {
                // It ends its ranks by itself, in good order.
                let why = format!("its agent was ended by {}", Ending::Signal(signal));
                self.forget_host(at, &why)
            }
            Report::Notice { signal } => {
                let host = self.launcher.agents[at].host.clone();
                self.wind_down(&format!("the batch system has sent {} to {host}", Ending::Signal(signal)))
            }
            Report::Leaving { signal } => {
                let host = self.launcher.agents[at].host.clone();
                self.launcher.say(&format!("corro: {host} leaves: its system has sent {}", Ending::Signal(signal)));
                // As if a list of hosts had dropped it: its processes go at their next commit.
                if let Some(joining) = &self.launcher.joining {
                    joining.leave(&host);
                }
                Ok(())
            }
            Report::Done => {
                self.launcher.agents[at].over = true;
                if self.kill_at.is_none() {
                    return self.lose_host(at, "its agent has ended");
                }
                Ok(())
            }
            Report::Started { .. }
            | Report::Output { .. }
            | Report::Told { .. }
            | Report::Stacks { .. }
            | Report::Logged(_)
            | Report::Beat => Ok(()),
        }
    }

    fn exited(&mut self, process: ProcessId, ending: Ending) -> Result<()> {
        if let Some(mut output) = lock_soon(&self.launcher.output) {
            output.forget(process);
        }
        self.workers.remove(&process.worker());
        self.deaths.note(process, ending, Instant::now());
        let after = self.deaths.exception_of(process).map_or_else(String::new, |text| format!(", after {text}"));
        let words = match ending {
            Ending::Code(0) => "ended".to_owned(),
            Ending::Code(_) => format!("exited with non-zero status: {ending}{after}"),
            Ending::Signal(_) => format!("was killed by {ending}{after}"),
        };
        let exit = Exit {
            code: ending.code(),
            killed: ending.is_from_outside(),
            victim: self.deaths.is_victim(process),
            words,
        };
        self.note(Input::Exited(process.worker(), exit))?;
        self.leave_empty_hosts()
    }

    fn not_started(&mut self, at: usize, process: ProcessId, code: i32, cause: &str) -> Result<()> {
        self.workers.remove(&process.worker());
        let words = format!("could not be started: {cause}");
        if self.epochs == 0 && self.not_started.is_none() {
            // The others would fail in the same way.
            let host = self.launcher.agents[at].host.clone();
            let why = format!("worker {process} on {host} {words}");
            self.not_started = Some(Failure::Elastic { why, worker: Some(process.worker()), code });
            let decisions = self.machine.stop(&words);
            return self.carry_out(decisions);
        }
        self.deaths.note(process, Ending::Code(code), Instant::now());
        self.note(Input::Exited(process.worker(), Exit { code, killed: false, victim: false, words }))
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
                Decision::Kill { worker, .. } => self.kill_worker(worker)?,
                Decision::Say(text) => self.launcher.say(&format!("corro: {text}")),
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
        self.deaths.forgive();
        self.members = members.iter().map(|(worker, _)| *worker).collect();
        let before = std::mem::replace(&mut self.size, members.len());
        if let Some(mut output) = lock_soon(&self.launcher.output) {
            for (rank, (worker, _)) in members.iter().enumerate() {
                output.label(ProcessId::of_worker(*worker), rank.to_string());
            }
        }
        if self.epochs > 1 {
            let why = if why.is_empty() { String::new() } else { format!(", because {why}") };
            self.launcher.say(&format!("corro: epoch {epoch}: {} ranks after {before}{why}", members.len()));
        } else if self.elastic.job.verbose {
            self.launcher.say(&format!("corro: epoch {epoch}: {} ranks", members.len()));
        }
    }

    /// The job ends at its next commit.
    fn wind_down(&mut self, why: &str) -> Result<()> {
        let decisions = self.machine.wind_down(why, self.begin.elapsed());
        self.carry_out(decisions)
    }

    fn interrupt(&mut self, signal: i32) -> Result<()> {
        if self.interrupted.is_some() {
            // Asked twice: at once.
            return self.end_all(signal, Duration::ZERO);
        }
        self.interrupted = Some(signal);
        let decisions = self.machine.stop(&format!("the launcher got signal {signal}"));
        self.end_all(signal, self.elastic.job.grace.max(INTERRUPT_GRACE))?;
        self.carry_out(decisions)
    }

    fn end_all(&mut self, signal: i32, grace: Duration) -> Result<()> {
        let now = Instant::now();
        self.kill_at = Some(self.kill_at.map_or(now + grace, |at| at.min(now + grace)));
        self.deaths.launcher_ends_all(now + grace);
        self.launcher.end_all(signal, grace)
    }
}

/// Opens the place where workers talk to the driver.
fn open_server(launcher: &Launcher<'_>, all_here: bool, sender: &Sender<Event>) -> Result<MessageServer> {
    let open_at = |bind: &Bind| {
        let sender = sender.clone();
        let hear = move |heard: MessageEvent<ToDriver>| drop(sender.send(Event::Membership(heard)));
        MessageServer::open_at(DRIVER, bind, &launcher.secret, launcher.job.tls, MAX_TO_DRIVER, hear)
    };
    let open = |address: IpAddr| open_at(&SocketAddr::new(address, 0).into());
    if all_here {
        return open(Ipv4Addr::LOCALHOST.into());
    }
    if !launcher.job.interfaces.is_empty() {
        return open_at(&Bind::interfaces(&launcher.job.interfaces, 0)?);
    }
    // A system without IPv6 has the other one.
    open(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| open(Ipv4Addr::UNSPECIFIED.into()))
}
