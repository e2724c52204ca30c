//! Running a job of fixed size: all its ranks on their hosts, from the first to the last.
//!
//! Owns the loop; what follows from what happens is [`Lifecycle`]'s decision. [`Job::run`] is what `corro run` does after it has
//! understood its flags, and what other programs call to start ranks of their own.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use corro_core::{Error, Rank, Result};

use crate::agent::BEAT;
use crate::agent::message::{Order, Report};
use crate::event::{Control, Event};
use crate::failure::{Failure, listed};
use crate::job::{Job, Outcome};
use crate::keyboard::Keyboard;
use crate::launcher::{Hello, Launcher};
use crate::lifecycle::{EndAll, Happening, Lifecycle};
use crate::output::Output;
use crate::placement::{Assignment, Slot};
use crate::process_id::ProcessId;
use crate::threads::Share;
use crate::{start, variables};

/// How often the clock is looked at while everything ends, or may have to: nothing may happen any more.
const LAST_LOOKS: Duration = Duration::from_millis(20);

impl Job {
    /// Reaches all hosts and starts nothing: for each, whether it could be reached.
    pub fn reach(&self, output: Output) -> Result<Vec<(String, Result<(), String>)>> {
        let mut running = Running::start(self, output, channel())?;
        running.wait_for_hellos()?;
        let agents = running.launcher.agents.iter().enumerate();
        let reached = agents.map(|(at, agent)| (agent.host.clone(), running.launcher.reached(at))).collect();
        running.launcher.release();
        Ok(reached)
    }

    /// Runs the job to its end. `ready` is given the means to interrupt it.
    pub fn run(&self, output: Output, ready: impl FnOnce(Control)) -> Result<Outcome> {
        let (sender, events) = channel();
        ready(Control::new(sender.clone()));
        let mut running = Running::start(self, output, (sender, events))?;
        let outcome = running.follow();
        running.launcher.release();
        let results = running.launcher.results(self.size());
        let failure = outcome?;
        let failed = match &failure {
            Some(Failure::Rank { rank, .. } | Failure::Stuck { rank, .. }) => Some(ProcessId::of_rank(*rank)),
            _ => None,
        };
        let last_lines = running.launcher.close_output(failed);
        Ok(Outcome { failure, results, last_lines })
    }
}

/// A job that runs. Its agents are in the order of its placement.
struct Running<'a> {
    job: &'a Job,
    launcher: Launcher<'a>,
    lifecycle: Lifecycle,
    /// While a rank has the terminal.
    keyboard: Option<Keyboard>,
}

impl<'a> Running<'a> {
    fn start(job: &'a Job, output: Output, events: (Sender<Event>, Receiver<Event>)) -> Result<Self> {
        let local = which_are_local(job)?;
        let mut launcher = Launcher::new(job, output, local.iter().all(|l| *l), events)?;
        if job.verbose {
            let names: Vec<&str> = job.placement.iter().map(|a| a.host.name.as_str()).collect();
            launcher.say(&format!("corro: reaching {}", names.join(", ")));
        }
        for (assignment, local) in job.placement.iter().zip(local) {
            launcher.start_agent(&assignment.host.name, &assignment.host, local)?;
        }
        let hosts = job.placement.iter().map(|a| (a.host.name.clone(), ranks_of(a))).collect();
        Ok(Self { job, launcher, lifecycle: Lifecycle::new(hosts, job.grace), keyboard: None })
    }

    /// From reaching all hosts to the end of the last rank.
    fn follow(&mut self) -> Result<Option<Failure>> {
        if let Some(signal) = self.reach_all()? {
            return Ok(Some(Failure::Interrupted { signal }));
        }
        self.launcher.leave_payload()?;
        self.start_ranks()?;
        if self.job.debug.is_some() {
            self.keyboard = Some(self.launcher.take_keyboard()?);
        }
        loop {
            let now = Instant::now();
            if self.lifecycle.is_over(now) {
                break;
            }
            for (at, cause) in self.launcher.beat(now)? {
                self.lose(at, cause)?;
            }
            if let Some(end) = self.lifecycle.look(now) {
                self.launcher.end_all(end.signal, end.grace)?;
            }
            let nap = if self.lifecycle.is_watching_the_clock() { LAST_LOOKS } else { BEAT };
            if let Some(event) = self.launcher.next_event(nap)? {
                self.handle(event)?;
            }
        }
        self.keyboard = None;
        self.launcher.tell_unconfirmed();
        Ok(self.lifecycle.failure())
    }

    /// Waits until every host has said hello, or can't, or the time is up. A signal ends it.
    fn wait_for_hellos(&mut self) -> Result<Option<i32>> {
        let deadline = Instant::now() + self.job.start_timeout;
        while self.launcher.agents.iter().any(|a| !a.has_answered()) {
            match self.launcher.next_event(deadline.saturating_duration_since(Instant::now()))? {
                Some(Event::Report(at, Report::Hello { release, caller, cores })) => {
                    self.launcher.heard(at);
                    // Why not is asked for when all have answered.
                    let hello = Hello { release: &release, caller: caller.as_deref(), cores };
                    let _ = self.launcher.hello(at, &hello);
                }
                Some(Event::Silent(at, reason)) => drop(self.launcher.silent(at, reason)),
                Some(Event::Interrupt(signal)) => return Ok(Some(signal)),
                Some(_) => {}
                None => break,
            }
        }
        Ok(None)
    }

    /// Reaches every host. All that can't be reached are named in one error. A signal ends it.
    fn reach_all(&mut self) -> Result<Option<i32>> {
        if let Some(signal) = self.wait_for_hellos()? {
            return Ok(Some(signal));
        }
        let failed: Vec<String> = self
            .job
            .placement
            .iter()
            .enumerate()
            .filter_map(|(at, assignment)| {
                let cause = self.launcher.reached(at).err()?;
                Some(format!("\n  {} (rank {}): {cause}", assignment.host.name, listed(&ranks_of(assignment))))
            })
            .collect();
        if failed.is_empty() {
            return Ok(None);
        }
        let way = self.launcher.ways();
        let doing = format!("could not connect to some hosts via {way}, so nothing was started");
        Err(Error::Io { doing, cause: failed.concat() })
    }

    fn start_ranks(&mut self) -> Result<()> {
        let ranks = |(at, a): (usize, &Assignment)| self.launcher.share(at, a.slots.len());
        let shares: Vec<Share> = self.job.placement.iter().enumerate().map(ranks).collect();
        self.launcher.tell_threads(&shares);
        for (at, assignment) in self.job.placement.iter().enumerate() {
            let common = self.launcher.common(at, &shares[at])?;
            let host = &assignment.host.name;
            let process = |s: &Slot| (ProcessId::of_rank(s.rank), variables::of_rank(&common, s, host));
            let processes = assignment.slots.iter().map(process).collect();
            self.launcher.agents[at].order(&self.launcher.start_order(at, processes, None))?;
            if self.job.verbose && at == 0 {
                let size = self.job.size();
                self.launcher.say(&format!("corro: starting {size} ranks, which meet at {:?}", common.rendezvous));
            }
        }
        Ok(())
    }

    fn lose(&mut self, at: usize, cause: String) -> Result<()> {
        self.launcher.give_up(at);
        self.note(Happening::HostLost(at, cause))
    }

    fn handle(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Report(at, report) => {
                self.launcher.heard(at);
                match report {
                    Report::Stated { process, statement } => self.note(Happening::Stated(process.rank(), statement)),
                    Report::Exited { process, ending } => {
                        if self.job.debug == Some(process.rank()) {
                            // Ctrl-C ends the job again.
                            self.keyboard = None;
                        }
                        self.note(Happening::Exited(process.rank(), ending))
                    }
                    Report::NotStarted { process, code, cause } => {
                        self.note(Happening::NotStarted(process.rank(), code, cause))
                    }
                    // Its ranks are to have the time that the batch system gives them.
                    Report::Notice { signal } | Report::Leaving { signal } => self.note(Happening::Interrupt(signal)),
                    Report::Ending { signal } => self.note(Happening::AgentEnded(at, signal)),
                    Report::Done => {
                        self.launcher.agents[at].over = true;
                        self.note(Happening::HostDone(at))
                    }
                    Report::Hello { .. }
                    | Report::Started { .. }
                    | Report::Output { .. }
                    | Report::Told { .. }
                    | Report::Stacks { .. }
                    | Report::Logged(_)
                    | Report::Beat => Ok(()),
                }
            }
            Event::Alive(at) => {
                self.launcher.heard(at);
                Ok(())
            }
            Event::Silent(at, _) if self.launcher.agents[at].over => Ok(()),
            Event::Silent(at, reason) => {
                let why = self.launcher.silent(at, reason);
                self.lose(at, format!("its agent is gone: {why}"))
            }
            Event::Asked(question) => self.launcher.ask(question),
            Event::Typed(bytes) => self.pass_on_keys(bytes),
            Event::Membership(_) | Event::Hosts(_) | Event::NoHosts(_) | Event::Complaint(_) => Ok(()),
            Event::Notice(_) => self.launcher.pass_on(libc::SIGUSR1),
            Event::OutputClosed => self.note(Happening::Interrupt(libc::SIGPIPE)),
            Event::Interrupt(signal) => self.note(Happening::Interrupt(signal)),
        }
    }

    fn pass_on_keys(&self, bytes: Vec<u8>) -> Result<()> {
        let has_it = |assignment: &Assignment| assignment.slots.iter().any(|s| Some(s.rank) == self.job.debug);
        match self.job.placement.iter().position(has_it) {
            Some(at) => self.launcher.agents[at].order(&Order::Type(bytes.into())),
            None => Ok(()),
        }
    }

    fn note(&mut self, happening: Happening) -> Result<()> {
        match self.lifecycle.note(happening, Instant::now()) {
            Some(EndAll { signal, grace }) => self.launcher.end_all(signal, grace),
            None => Ok(()),
        }
    }
}

fn ranks_of(assignment: &Assignment) -> Vec<Rank> {
    assignment.slots.iter().map(|slot| slot.rank).collect()
}

/// For each host whether it is this one. Names are looked up all at once, since a name server may take its time.
pub(crate) fn which_are_local(job: &Job) -> Result<Vec<bool>> {
    std::thread::scope(|scope| {
        let asked: Vec<_> = job.placement.iter().map(|a| scope.spawn(|| start::is_local(&a.host))).collect();
        let panicked = |_| Error::Bug("looking up a host panicked".into());
        asked.into_iter().map(|a| a.join().map_err(panicked)?).collect()
    })
}
