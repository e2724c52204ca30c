//! One rank as a process: how it is started, its two pipes or its terminal, and the pipe through which it states why it ends.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, PipeReader, PipeWriter, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::Instant;

use corro_core::departure::MAX_STATEMENT;
use corro_core::{Statement, config};
use corro_observe::Note;
use corro_observe::note::MAX_NOTE;
use corro_transport::statements;
use nix::sys::signal::{SigHandler, SigSet, Signal as Number};
use rustix::event::PollFlags;
use rustix::process::{Pid, Signal};
use serde::de::DeserializeOwned;

use super::message::{Ending, Inbox, MAX_OUTPUT, Start};
use super::terminal::{self, Terminal};
use crate::process_id::ProcessId;
use crate::process_tree::{self, kill_with_parent};

/// How many statements of one process are passed on. In an elastic job it makes some in each epoch.
const MAX_STATEMENTS: usize = 10_000;

/// Real-time signals that programs may use, with the C library of Linux.
const REAL_TIME: std::ops::RangeInclusive<u8> = 34..=64;

/// A rank that was started.
pub(super) struct Process {
    pub(super) id: ProcessId,
    pub(super) pid: Pid,
    pub(super) pipes: [Pipe; 2],
    pub(super) statements: Inlet<Statement, MAX_STATEMENT>,
    /// What it tells of how it gets on, if somebody wants to know.
    pub(super) notes: Option<Inlet<Note, MAX_NOTE>>,
    /// Where it writes down where its threads are, and upon which signal; 0: it has not said so.
    pub(super) stacks: Option<PipeReader>,
    pub(super) dumps: u8,
    /// By a byte in here it is asked for its flight record.
    requests: Option<PipeWriter>,
    pub(super) ending: Option<Ending>,
    /// When it is killed, should it not have ended by then.
    pub(super) kill_at: Option<Instant>,
    /// Whether its end was told.
    pub(super) told: bool,
}

/// Why a rank could not be started, and what a shell would exit with.
pub(super) struct NotStarted {
    pub(super) code: i32,
    pub(super) cause: String,
}

/// A pipe that a rank writes to; `None` once nobody can write to it any more.
pub(super) enum Pipe {
    Out(Option<ChildStdout>),
    Error(Option<ChildStderr>),
    /// Both at once, and what the rank reads.
    Terminal(Option<Terminal>),
}

impl Pipe {
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Out(pipe) => pipe.as_ref().map(AsFd::as_fd),
            Self::Error(pipe) => pipe.as_ref().map(AsFd::as_fd),
            Self::Terminal(terminal) => terminal.as_ref().map(Terminal::fd),
        }
    }

    /// What the agent waits for.
    pub(super) fn interest(&self) -> PollFlags {
        match self {
            Self::Terminal(Some(terminal)) if terminal.has_typed() => PollFlags::IN | PollFlags::OUT,
            _ => PollFlags::IN,
        }
    }

    /// Takes what the user has typed, if this is where it goes.
    pub(super) fn type_in(&mut self, bytes: &[u8]) {
        if let Self::Terminal(Some(terminal)) = self {
            terminal.type_in(bytes);
        }
    }

    pub(super) fn is_error(&self) -> bool {
        matches!(self, Self::Error(_))
    }

    /// What was written, without waiting for more. Empty: nothing for now, or never again.
    pub(super) fn read(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; MAX_OUTPUT];
        let outcome = match self {
            Self::Out(Some(pipe)) => pipe.read(&mut bytes),
            Self::Error(Some(pipe)) => pipe.read(&mut bytes),
            Self::Terminal(terminal) => {
                let Some(open) = terminal else { return Vec::new() };
                open.flush();
                let read = open.read();
                if read.is_none() {
                    *terminal = None;
                }
                return read.unwrap_or_default();
            }
            Self::Out(None) | Self::Error(None) => return Vec::new(),
        };
        match outcome {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                return bytes;
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(_) | Err(_) => match self {
                Self::Out(pipe) => *pipe = None,
                Self::Error(pipe) => *pipe = None,
                Self::Terminal(_) => {}
            },
        }
        Vec::new()
    }
}

/// Messages of a rank, each of at most `LONGEST` bytes, through a pipe of its own.
pub(super) struct Inlet<T, const LONGEST: usize> {
    pipe: PipeReader,
    inbox: Inbox,
    /// How many more are listened to: it may be any program, which talks nonsense or without end.
    left: usize,
    message: std::marker::PhantomData<T>,
}

impl<T: DeserializeOwned, const LONGEST: usize> Inlet<T, LONGEST> {
    fn new(pipe: PipeReader, left: usize) -> Self {
        Self { pipe, inbox: Inbox::default(), left, message: std::marker::PhantomData }
    }

    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        (self.left > 0).then(|| self.pipe.as_fd())
    }

    /// The next one, without waiting for it.
    pub(super) fn next(&mut self) -> Option<T> {
        let mut bytes = [0; LONGEST];
        while self.left > 0 {
            match self.inbox.next::<T>(LONGEST) {
                Ok(Some(message)) => {
                    self.left -= 1;
                    return Some(message);
                }
                Ok(None) => {}
                Err(_) => self.left = 0,
            }
            match self.pipe.read(&mut bytes) {
                Ok(0) => self.left = 0,
                Ok(count) => self.inbox.receive(&bytes[..count]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => self.left = 0,
            }
        }
        None
    }
}

fn failed(code: i32, cause: String) -> NotStarted {
    NotStarted { code, cause }
}

fn no_program(program: &str, error: &std::io::Error) -> NotStarted {
    match error.kind() {
        ErrorKind::NotFound => failed(127, format!("the command {program:?} was not found")),
        ErrorKind::PermissionDenied => failed(126, format!("the command {program:?} may not be run: {error}")),
        _ => failed(126, format!("the command {program:?} could not be started: {error}")),
    }
}

/// Starts one rank.
pub(super) fn start(
    order: &Start,
    id: ProcessId,
    environment: &[(OsString, OsString)],
    own: &[(String, String)],
) -> Result<Process, NotStarted> {
    let directory = Path::new(OsStr::from_bytes(&order.directory));
    if !directory.is_dir() {
        let cause =
            format!("there is no directory {} here: start the job from one that every host has", directory.display());
        return Err(failed(126, cause));
    }
    let Some((program, arguments)) = order.command.split_first() else {
        return Err(failed(127, "no command was given".into()));
    };
    let no_pipe = |e: std::io::Error| failed(126, format!("making a pipe: {e}"));
    let (pipe, for_rank) = std::io::pipe().map_err(no_pipe)?;
    let word = statements::describe(&for_rank).map_err(no_pipe)?;
    let mut command = Command::new(OsStr::from_bytes(program));
    command
        .args(arguments.iter().map(|a| OsStr::from_bytes(a)))
        .current_dir(directory)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .envs(own.iter().map(|(name, value)| (name, value)))
        .env(config::STATEMENTS.name, word)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let mut kept = vec![OwnedFd::from(for_rank)];
    let watched = if order.feed { Some(Watched::prepare(&mut command, &mut kept).map_err(no_pipe)?) } else { None };
    let terminal = match order.terminal {
        Some((its, window)) if its == id => {
            let attached = terminal::attach(&mut command, window);
            Some(attached.map_err(|e| failed(126, format!("it could not be given a terminal: {e}")))?)
        }
        _ => {
            // A group of its own, so that a signal reaches what the rank has started as well.
            command.process_group(0);
            None
        }
    };
    prepare(&mut command, kept);
    let mut child = command.spawn().map_err(|e| no_program(&String::from_utf8_lossy(program), &e))?;
    let mut pipes = [Pipe::Out(child.stdout.take()), Pipe::Error(child.stderr.take())];
    if terminal.is_some() {
        pipes[0] = Pipe::Terminal(terminal);
    }
    let own = watched.iter().flat_map(|w| [w.notes.as_fd(), w.stacks.as_fd(), w.requests.as_fd()]);
    for fd in pipes.iter().filter_map(Pipe::fd).chain(own).chain([pipe.as_fd()]) {
        // Reading must never keep the agent from hearing the launcher.
        rustix::io::ioctl_fionbio(fd, true).map_err(|e| failed(126, format!("setting up its pipes: {e}")))?;
    }
    let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| failed(126, "it has no process id".into()))?;
    let statements = Inlet::new(pipe, MAX_STATEMENTS);
    let (notes, stacks, requests) = match watched {
        Some(w) => (Some(Inlet::new(w.notes, usize::MAX)), Some(w.stacks), Some(w.requests)),
        None => (None, None, None),
    };
    Ok(Process {
        id,
        pid,
        pipes,
        statements,
        notes,
        stacks,
        dumps: 0,
        requests,
        ending: None,
        kill_at: None,
        told: false,
    })
}

/// Our ends of the pipes by which a process is watched.
struct Watched {
    notes: PipeReader,
    stacks: PipeReader,
    requests: PipeWriter,
}

impl Watched {
    /// Makes them; the command finds its own ends by its environment, and they are `kept` for it.
    fn prepare(command: &mut Command, kept: &mut Vec<OwnedFd>) -> std::io::Result<Self> {
        let ((notes, told), (stacks, dumped)) = (std::io::pipe()?, std::io::pipe()?);
        let (asked, requests) = std::io::pipe()?;
        let theirs: [(&config::Variable, OwnedFd); 3] =
            [(&config::FEED, told.into()), (&config::STACKS, dumped.into()), (&config::REQUESTS, asked.into())];
        for (variable, pipe) in theirs {
            command.env(variable.name, statements::describe(&pipe)?);
            kept.push(pipe);
        }
        Ok(Self { notes, stacks, requests })
    }
}

impl Process {
    /// Asks it where its threads are, if it knows how to say so; gives what the system knows.
    #[expect(unsafe_code, reason = "real-time signals have no names")]
    pub(super) fn ask_stacks(&self) -> String {
        // Which it has said it expects; no other may be asked for.
        if REAL_TIME.contains(&self.dumps) {
            // SAFETY: these are no signals that the C library keeps for itself, and none is handled here.
            let signal = unsafe { Signal::from_raw_unchecked(i32::from(self.dumps)) };
            let _ = rustix::process::kill_process(self.pid, signal);
        }
        process_tree::threads(self.pid)
    }

    /// Asks it for its flight record, which comes in notes. One that does not listen is not waited for.
    pub(super) fn ask_record(&self) {
        if let Some(mut pipe) = self.requests.as_ref() {
            let _ = pipe.write(b"?");
        }
    }

    /// What it has written down of that, without waiting for more.
    pub(super) fn read_stacks(&mut self) -> Vec<u8> {
        let mut bytes = vec![0; MAX_OUTPUT];
        let count = self.stacks.as_mut().and_then(|pipe| pipe.read(&mut bytes).ok()).unwrap_or(0);
        bytes.truncate(count);
        bytes
    }
}

/// Should the agent be killed, the rank is killed with it. And signals reach the rank: it would inherit that the agent has
/// blocked them for itself, and that a shell's background jobs ignore SIGINT, and never hear of Ctrl-C or of being asked to
/// end. It keeps its ends of the pipes for statements and notes, which the agent closes once the command is gone.
#[expect(unsafe_code, reason = "only the child itself can ask for these")]
fn prepare(command: &mut Command, kept: Vec<OwnedFd>) {
    kill_with_parent(command);
    let ask = move || {
        for pipe in &kept {
            rustix::io::fcntl_setfd(pipe, rustix::io::FdFlags::empty())?;
        }
        for heard in [Number::SIGINT, Number::SIGTERM] {
            // SAFETY: the default needs no handler.
            unsafe { nix::sys::signal::signal(heard, SigHandler::SigDfl) }.map_err(std::io::Error::from)?;
        }
        SigSet::empty().thread_set_mask().map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}
