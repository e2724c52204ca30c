//! The agent of one host: starts its ranks, passes on what they write and how they end, and sees to it that nothing is
//! left of them.
//!
//! It is a process of its own (`corro agent`), started directly on the launcher's host and by ssh elsewhere, so there is
//! one way only in which ranks come and go. It ends everything it has started when the launcher says so, when its
//! standard input closes (the launcher is gone, also by kill -9), or when the launcher has been silent for too long (the
//! network is gone). The processes of an elastic job come and go one by one, and may go on for a while without a launcher.
//! One thread, which never blocks.

mod environment;
mod home;
pub(crate) mod log;
pub mod message;
mod process;
mod terminal;

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, Instant};

use corro_core::{Error, Result, codec};
use corro_transport::cores;
use nix::sys::signal::{SigSet, Signal as Number};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, WaitOptions, wait};
use serde_bytes::ByteBuf;
use tracing::level_filters::LevelFilter;

pub(crate) use environment::{passed_on, passed_to_another_host};
pub(crate) use home::Home;
use message::{Ending, Inbox, MAX_ORDER, Order, Report, Start};
use process::Process;

use crate::process_id::ProcessId;
use crate::process_tree;

/// How often a host says that it is alive.
pub(crate) const BEAT: Duration = Duration::from_secs(1);
/// Ranks are not read from while so much waits to be passed on.
const FULL_BYTES: usize = 1024 * 1024;
/// What a rank has left running may end by itself for so long after the last rank.
const LEFTOVERS: Duration = Duration::from_millis(300);
/// How long the launcher may take to say what to start: it waits for slower hosts in that time.
const PATIENCE: Duration = Duration::from_secs(600);
/// The time between SIGTERM and SIGKILL when nobody is there to say otherwise.
const GRACE: Duration = Duration::from_millis(1500);
/// How long the last reports may take to be read.
const LAST_WORDS: Duration = Duration::from_secs(5);

/// Serves the launcher at standard input and output, and gives the exit code.
pub(crate) fn serve(home: Home) -> Result<i32> {
    let signals = signals()?;
    let (stdin, stdout) = (std::io::stdin(), std::io::stdout());
    serve_at((stdin.as_fd(), stdout.as_fd()), &signals, home).map(|_| 0)
}

/// Keeps the signals that an agent answers, to be read.
pub(crate) fn signals() -> Result<SignalFd> {
    let number = |e: nix::errno::Errno| Error::io("setting up signals", e);
    let mut signals = SigSet::empty();
    for signal in [Number::SIGCHLD, Number::SIGTERM, Number::SIGINT, Number::SIGHUP] {
        signals.add(signal);
    }
    signals.thread_block().map_err(number)?;
    SignalFd::with_flags(&signals, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC).map_err(number)
}

/// Serves the launcher at these, until nothing of the job is left here. True if a signal has asked us to go.
pub(crate) fn serve_at(
    (input, output): (BorrowedFd<'_>, BorrowedFd<'_>),
    signals: &SignalFd,
    home: Home,
) -> Result<bool> {
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
        .map_err(|e| Error::io("becoming the parent of what ranks leave behind", e))?;
    let mut agent = Agent::new(input, output, signals, home)?;
    agent.greet()?;
    while !agent.turn()? {}
    Ok(agent.noticed)
}

struct Agent<'a> {
    input: BorrowedFd<'a>,
    output: BorrowedFd<'a>,
    signals: &'a SignalFd,
    home: Home,
    /// A signal has asked us to go, and the launcher knows it.
    noticed: bool,
    inbox: Inbox,
    outbox: Vec<u8>,
    processes: Vec<Process>,
    /// What it has to say itself.
    started: bool,
    /// In an elastic job: how to start more processes.
    template: Option<LaunchTemplate>,
    /// The launcher is gone, and its processes may go on until this.
    orphaned_until: Option<Instant>,
    /// When the launcher was last heard, and how long it may be silent.
    heard: Instant,
    silence: Option<Duration>,
    last_beat: Instant,
    shutdown: Option<Shutdown>,
    /// Whether the launcher still reads what is written.
    connected: bool,
}

/// What an agent remembers in an elastic job.
struct LaunchTemplate {
    order: Start,
    environment: Vec<(OsString, OsString)>,
    orphan_time: Duration,
}

/// How far the end of everything has come.
struct Shutdown {
    kill_at: Instant,
    killed: bool,
    /// No report is waited for after this.
    give_up: Instant,
    /// Whether the launcher was told that nothing is left here. What it has yet to read may take it as long as it likes: whoever
    /// reads its output may pause.
    told: bool,
}

impl<'a> Agent<'a> {
    fn new(input: BorrowedFd<'a>, output: BorrowedFd<'a>, signals: &'a SignalFd, home: Home) -> Result<Self> {
        for fd in [input, output] {
            let flags = rustix::fs::fcntl_getfl(fd).map_err(|e| Error::io("asking for the mode of a pipe", e))?;
            rustix::fs::fcntl_setfl(fd, flags | rustix::fs::OFlags::NONBLOCK)
                .map_err(|e| Error::io("setting the mode of a pipe", e))?;
        }
        let now = Instant::now();
        Ok(Self {
            input,
            output,
            signals,
            home,
            noticed: false,
            inbox: Inbox::default(),
            outbox: Vec::new(),
            processes: Vec::new(),
            started: false,
            template: None,
            orphaned_until: None,
            heard: now,
            silence: Some(PATIENCE),
            last_beat: now,
            shutdown: None,
            connected: true,
        })
    }

    fn greet(&mut self) -> Result<()> {
        self.outbox.extend_from_slice(message::GREETING);
        let caller = self.home.caller();
        let cores = u32::try_from(cores::usable()).unwrap_or(u32::MAX);
        self.tell(&Report::Hello { release: env!("CARGO_PKG_VERSION").into(), caller, cores })
    }

    fn tell(&mut self, report: &Report) -> Result<()> {
        if self.connected {
            self.outbox.extend_from_slice(&codec::encode(report)?);
        }
        Ok(())
    }

    /// Waits for something to happen and deals with it. True when all is over.
    fn turn(&mut self) -> Result<bool> {
        let room = self.outbox.len() < FULL_BYTES;
        let mut fds = vec![PollFd::new(self.signals, PollFlags::IN)];
        let talks = self.connected;
        if talks {
            fds.push(PollFd::from_borrowed_fd(self.input, PollFlags::IN));
            let interest = if self.outbox.is_empty() { PollFlags::empty() } else { PollFlags::OUT };
            fds.push(PollFd::from_borrowed_fd(self.output, interest));
        }
        if room {
            let pipes = self.processes.iter().flat_map(|r| &r.pipes).filter_map(|p| Some((p.fd()?, p.interest())));
            let statements = self.processes.iter().filter(|r| !r.told).filter_map(|r| r.statements.fd());
            let notes = self.processes.iter().filter(|r| !r.told).filter_map(|r| r.notes.as_ref()?.fd());
            let stacks = self.processes.iter().filter(|r| !r.told).filter_map(|r| Some(r.stacks.as_ref()?.as_fd()));
            let all = pipes.chain(statements.chain(notes).chain(stacks).map(|fd| (fd, PollFlags::IN)));
            fds.extend(all.map(|(fd, interest)| PollFd::from_borrowed_fd(fd, interest)));
        }
        let timeout = Timespec::try_from(self.timeout()).map_err(|e| Error::Bug(format!("a timeout: {e}")))?;
        match poll(&mut fds, Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(Error::io("waiting for the ranks", e)),
        }
        drop(fds);
        // Everything below looks for itself whether there is something to do, so no event can be missed.
        self.read_signals()?;
        if talks {
            self.read_orders();
        }
        self.read_ranks(room)?;
        self.reap()?;
        self.watch_the_clock()?;
        for line in log::take() {
            self.tell(&Report::Logged(line))?;
        }
        self.flush();
        self.is_over()
    }

    fn timeout(&self) -> Duration {
        let now = Instant::now();
        let mut until = now + Duration::from_secs(60);
        if let Some(silence) = self.silence {
            until = until.min(self.heard + silence);
        }
        if self.connected {
            until = until.min(self.last_beat + BEAT);
        }
        for kill_at in self.processes.iter().filter(|r| r.ending.is_none()).filter_map(|r| r.kill_at) {
            until = until.min(kill_at);
        }
        if let Some(orphaned) = self.orphaned_until {
            until = until.min(orphaned);
        }
        if let Some(shutdown) = self.shutdown.as_ref().filter(|shutdown| !shutdown.told) {
            let next = if shutdown.killed { now + Duration::from_millis(20) } else { shutdown.kill_at };
            until = until.min(next).min(shutdown.give_up.max(now));
            if self.processes.iter().all(|r| r.told) {
                // Orphans give no sign of their end except SIGCHLD, which may have come before this turn.
                until = until.min(now + Duration::from_millis(20));
            }
        }
        until.saturating_duration_since(now)
    }

    fn read_signals(&mut self) -> Result<()> {
        while let Ok(Some(info)) = self.signals.read_signal() {
            if info.ssi_signo == Number::SIGCHLD as u32 {
                continue;
            }
            let signal = info.ssi_signo as i32;
            if !std::mem::replace(&mut self.noticed, true) {
                let notice = match self.home {
                    Home::Step => Some(Report::Notice { signal }),
                    Home::Joined(_) if self.connected => Some(Report::Leaving { signal }),
                    _ => None,
                };
                if let Some(notice) = notice {
                    self.tell(&notice)?;
                    continue;
                }
            }
            if self.shutdown.is_none() {
                // The launcher ends us by other means: this was somebody else, and no rank is to blame for what follows.
                self.tell(&Report::Ending { signal })?;
            }
            self.end(Signal::TERM, GRACE);
        }
        Ok(())
    }

    fn read_orders(&mut self) {
        let mut bytes = [0; 16 * 1024];
        loop {
            match rustix::io::read(self.input, &mut bytes) {
                Ok(0) => return self.disconnect(),
                Ok(count) => {
                    self.heard = Instant::now();
                    self.inbox.receive(&bytes[..count]);
                    if let Err(e) = self.obey() {
                        log::on_stderr(LevelFilter::WARN, || {
                            tracing::error!("the launcher's orders can't be read: {e}");
                        });
                        return self.disconnect();
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => return self.disconnect(),
            }
        }
    }

    /// The launcher is gone: so must be everything else, at once or (in an elastic job) soon.
    fn disconnect(&mut self) {
        self.connected = false;
        self.outbox.clear();
        match &self.template {
            Some(template) if self.shutdown.is_none() && !template.orphan_time.is_zero() => {
                self.orphaned_until = Some(Instant::now() + template.orphan_time);
            }
            _ => self.end(Signal::TERM, GRACE),
        }
    }

    fn obey(&mut self) -> Result<()> {
        while let Some(order) = self.inbox.next::<Order>(MAX_ORDER)? {
            match order {
                Order::Beat => {}
                Order::Start(start) if !self.started => self.start(start)?,
                Order::Start(_) => return Err(Error::Malformed("a second order to start".into())),
                Order::Type(bytes) => {
                    self.processes.iter_mut().flat_map(|r| &mut r.pipes).for_each(|pipe| pipe.type_in(&bytes));
                }
                Order::Pass { signal } => {
                    if let Some(signal) = Signal::from_named_raw(signal) {
                        process_tree::signal_descendants(&self.living(), signal);
                    }
                }
                Order::Stacks => self.ask_stacks()?,
                Order::Records => self.processes.iter().for_each(Process::ask_record),
                Order::Launch { process, own } => self.launch(process, &own)?,
                Order::Kill { process, grace_ms } => self.kill(process, milliseconds(grace_ms)),
                Order::End { signal, grace_ms } => {
                    let signal = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
                    self.end(signal, milliseconds(grace_ms));
                }
            }
        }
        Ok(())
    }

    fn start(&mut self, mut order: Start) -> Result<()> {
        self.started = true;
        self.silence = order.silence_ms.map(Duration::from_millis);
        log::start(&order.environment);
        tracing::info!("starts {} processes", order.processes.len());
        if matches!(self.home, Home::Task(_) | Home::Joined(_)) {
            order.directory = home::directory()?;
        }
        let text = |bytes: &ByteBuf| OsStr::from_bytes(bytes).to_owned();
        let sent = order.environment.iter().map(|(name, value)| (text(name), text(value))).collect();
        let environment = self.home.environment(std::env::vars_os(), sent, order.another_host);
        for (id, own) in &order.processes {
            let report = match process::start(&order, *id, &environment, own) {
                Ok(process) => {
                    let pid = process.pid.as_raw_nonzero().get();
                    self.processes.push(process);
                    Report::Started { process: *id, pid }
                }
                Err(e) => Report::NotStarted { process: *id, code: e.code, cause: e.cause },
            };
            self.tell(&report)?;
            if matches!(report, Report::NotStarted { .. }) {
                // The others would fail in the same way, or wait for this one in vain.
                self.end(Signal::TERM, GRACE);
                break;
            }
        }
        if let Some(orphan_ms) = order.orphan_ms {
            let orphan_time = Duration::from_millis(orphan_ms.min(86_400_000));
            self.template = Some(LaunchTemplate { order, environment, orphan_time });
        }
        Ok(())
    }

    fn launch(&mut self, id: ProcessId, own: &[(String, String)]) -> Result<()> {
        let Some(template) = &self.template else {
            return Err(Error::Malformed("an order to start one process before the order to start".into()));
        };
        if self.shutdown.is_some() {
            return Ok(());
        }
        let report = match process::start(&template.order, id, &template.environment, own) {
            Ok(process) => {
                let pid = process.pid.as_raw_nonzero().get();
                self.processes.push(process);
                Report::Started { process: id, pid }
            }
            Err(e) => Report::NotStarted { process: id, code: e.code, cause: e.cause },
        };
        self.tell(&report)
    }

    /// Asks one process to end, and kills it later if it has not.
    fn kill(&mut self, id: ProcessId, grace: Duration) {
        let kill_at = Instant::now() + grace;
        for process in self.processes.iter_mut().filter(|p| p.id == id && p.ending.is_none()) {
            process.kill_at = Some(process.kill_at.map_or(kill_at, |at| at.min(kill_at)));
            let _ = rustix::process::kill_process_group(process.pid, Signal::TERM);
        }
    }

    fn read_ranks(&mut self, room: bool) -> Result<()> {
        if !room {
            return Ok(());
        }
        for at in 0..self.processes.len() {
            self.read_statements(at)?;
            self.read_notes(at, 1)?;
            self.read_stacks(at)?;
            self.read_rank(at, 1)?;
        }
        Ok(())
    }

    /// Passes on what a rank has stated about its own end. Not after that: what it has left running does not speak for it.
    fn read_statements(&mut self, at: usize) -> Result<()> {
        while let Some(process) = self.processes.get_mut(at).filter(|process| !process.told)
            && let Some(statement) = process.statements.next()
        {
            let id = process.id;
            self.tell(&Report::Stated { process: id, statement })?;
        }
        Ok(())
    }

    /// Passes on what a rank has told of how it gets on: at most so many notes.
    fn read_notes(&mut self, at: usize, most: usize) -> Result<()> {
        for _ in 0..most {
            let Some(process) = self.processes.get_mut(at).filter(|process| !process.told) else { break };
            let Some(note) = process.notes.as_mut().and_then(process::Inlet::next) else { break };
            process.dumps = note.dumps;
            let (id, (note, _)) = (process.id, note.encode()?);
            self.tell(&Report::Told { process: id, note: ByteBuf::from(note) })?;
        }
        Ok(())
    }

    /// Passes on what a rank has written down of where its threads are.
    fn read_stacks(&mut self, at: usize) -> Result<()> {
        let process = &mut self.processes[at];
        let (id, bytes) = (process.id, if process.told { Vec::new() } else { process.read_stacks() });
        if bytes.is_empty() {
            return Ok(());
        }
        self.tell(&Report::Stacks { process: id, bytes: ByteBuf::from(bytes) })
    }

    fn ask_stacks(&mut self) -> Result<()> {
        let living = self.processes.iter().filter(|process| process.ending.is_none());
        let told: Vec<_> = living.map(|process| (process.id, process.ask_stacks())).collect();
        for (process, text) in told {
            self.tell(&Report::Stacks { process, bytes: ByteBuf::from(text.into_bytes()) })?;
        }
        Ok(())
    }

    /// Passes on what a rank has written: at most `pieces` of each of its pipes.
    fn read_rank(&mut self, at: usize, pieces: usize) -> Result<()> {
        for pipe in 0..2 {
            for _ in 0..pieces {
                let process = &mut self.processes[at];
                let (id, error) = (process.id, process.pipes[pipe].is_error());
                let bytes = process.pipes[pipe].read();
                if bytes.is_empty() {
                    break;
                }
                self.tell(&Report::Output { process: id, error, bytes: ByteBuf::from(bytes) })?;
            }
        }
        Ok(())
    }

    /// Learns who has ended: ranks, and what was left to us by ranks that ended before.
    fn reap(&mut self) -> Result<()> {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let ending = match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Ending::Code(code),
                (_, Some(signal)) => Ending::Signal(signal),
                _ => continue,
            };
            if let Some(process) = self.processes.iter_mut().find(|p| p.pid == pid) {
                process.ending = Some(ending);
            }
        }
        for at in 0..self.processes.len() {
            let process = &self.processes[at];
            if let (Some(ending), false) = (process.ending, process.told) {
                let id = process.id;
                // What it wrote comes before how it ended; no more than a pipe can hold, for others may still write.
                self.read_rank(at, 17)?;
                self.read_statements(at)?;
                self.read_notes(at, 17)?;
                self.tell(&Report::Exited { process: id, ending })?;
                self.processes[at].told = true;
            }
        }
        Ok(())
    }

    /// Ranks that have not ended. The group of one that has may be gone and its number taken by others; whatever is left
    /// of it is found as a descendant.
    fn living(&self) -> Vec<Pid> {
        self.processes.iter().filter(|r| r.ending.is_none()).map(|r| r.pid).collect()
    }

    /// Begins the end of everything, or hurries it.
    fn end(&mut self, signal: Signal, grace: Duration) {
        let now = Instant::now();
        if self.shutdown.as_ref().is_some_and(|e| e.killed) {
            return;
        }
        process_tree::signal_descendants(&self.living(), signal);
        let kill_at = self.shutdown.as_ref().map_or(now + grace, |e| e.kill_at.min(now + grace));
        self.shutdown = Some(Shutdown { kill_at, killed: false, give_up: kill_at + LAST_WORDS, told: false });
    }

    fn watch_the_clock(&mut self) -> Result<()> {
        let now = Instant::now();
        if let Some(silence) = self.silence
            && self.connected
            && now >= self.heard + silence
        {
            log::on_stderr(LevelFilter::WARN, || {
                tracing::error!("the launcher has been silent for {silence:?}, so its ranks here are ended");
            });
            self.disconnect();
        }
        if now >= self.last_beat + BEAT {
            self.last_beat = now;
            if self.outbox.is_empty() {
                self.tell(&Report::Beat)?;
            }
        }
        for process in self.processes.iter().filter(|p| p.ending.is_none() && p.kill_at.is_some_and(|at| now >= at)) {
            // Also one that is stopped: this signal can't be held back. Again and again until its end is seen.
            let _ = rustix::process::kill_process_group(process.pid, Signal::KILL);
        }
        if self.orphaned_until.is_some_and(|until| now >= until) && self.shutdown.is_none() {
            self.end(Signal::TERM, GRACE);
        }
        if self.template.is_some() {
            // Many come and go in a long job.
            self.processes.retain(|r| !r.told || r.pipes.iter().any(|p| p.fd().is_some()));
        }
        let more_may_come = self.template.is_some() && self.orphaned_until.is_none();
        if self.started && !more_may_come && self.shutdown.is_none() && self.processes.iter().all(|r| r.told) {
            // What ranks leave behind may clean up after them (Python's resource tracker does), but not for ever.
            let kill_at = now + LEFTOVERS;
            self.shutdown = Some(Shutdown { kill_at, killed: false, give_up: kill_at + LAST_WORDS, told: false });
        }
        let living = self.living();
        if let Some(shutdown) = &mut self.shutdown
            && (shutdown.killed || now >= shutdown.kill_at)
        {
            if !shutdown.killed && !living.is_empty() {
                tracing::info!("kills {} processes that have not ended by themselves", living.len());
            }
            shutdown.killed = true;
            // Again and again, since a process may have started another one in between.
            process_tree::signal_descendants(&living, Signal::KILL);
        }
        Ok(())
    }

    fn flush(&mut self) {
        while !self.outbox.is_empty() && self.connected {
            match rustix::io::write(self.output, &self.outbox) {
                Ok(count) => drop(self.outbox.drain(..count)),
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::AGAIN) => return,
                Err(_) => self.disconnect(),
            }
        }
    }

    /// Whether nothing is left to be done, on this host or for the launcher.
    fn is_over(&mut self) -> Result<bool> {
        let Some(shutdown) = &self.shutdown else { return Ok(false) };
        if shutdown.told {
            return Ok(self.outbox.is_empty() || !self.connected);
        }
        let late = Instant::now() >= shutdown.give_up;
        // No child at all: then there is no descendant either, since orphans become our children.
        let childless = matches!(children(), Err(rustix::io::Errno::CHILD));
        let all_gone = childless && self.processes.iter().all(|r| r.told);
        if !all_gone && !late {
            return Ok(false);
        }
        for at in 0..self.processes.len() {
            self.read_rank(at, 17)?;
        }
        self.tell(&Report::Done)?;
        if let Some(shutdown) = &mut self.shutdown {
            shutdown.told = true;
        }
        self.flush();
        Ok(self.outbox.is_empty() || !self.connected)
    }
}

/// A time that the launcher has sent; no longer than an hour.
fn milliseconds(length: u64) -> Duration {
    Duration::from_millis(length.min(3_600_000))
}

/// Whether there are children, without taking a status that [`Agent::reap`] should see.
fn children() -> Result<(), rustix::io::Errno> {
    use rustix::process::{WaitId, WaitIdOptions, waitid};
    waitid(WaitId::All, WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT).map(drop)
}
