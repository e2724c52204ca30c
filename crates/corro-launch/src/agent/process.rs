//! One rank as a process: how it is started, and its two pipes.

use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStderr, ChildStdout, Command, Stdio};
use std::time::Instant;

use corro_core::Rank;
use nix::sys::signal::{SigHandler, SigSet, Signal as Number};
use rustix::process::Pid;

use super::message::{Ending, MAX_OUTPUT, Start};
use crate::process_tree::kill_with_parent;

/// A rank that was started.
pub(super) struct Process {
    pub(super) rank: Rank,
    pub(super) pid: Pid,
    pub(super) pipes: [Pipe; 2],
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
}

impl Pipe {
    pub(super) fn fd(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Self::Out(pipe) => pipe.as_ref().map(AsFd::as_fd),
            Self::Error(pipe) => pipe.as_ref().map(AsFd::as_fd),
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
            },
        }
        Vec::new()
    }
}

/// Starts one rank.
pub(super) fn start(
    order: &Start,
    rank: Rank,
    environment: &[(OsString, OsString)],
    own: &[(String, String)],
) -> Result<Process, NotStarted> {
    let directory = Path::new(OsStr::from_bytes(&order.directory));
    let failed = |code, cause: String| NotStarted { code, cause };
    if !directory.is_dir() {
        let cause =
            format!("there is no directory {} here: start the job from one that every host has", directory.display());
        return Err(failed(126, cause));
    }
    let Some((program, arguments)) = order.command.split_first() else {
        return Err(failed(127, "no command was given".into()));
    };
    let mut command = Command::new(OsStr::from_bytes(program));
    command
        .args(arguments.iter().map(|a| OsStr::from_bytes(a)))
        .current_dir(directory)
        .env_clear()
        .envs(environment.iter().map(|(name, value)| (name, value)))
        .envs(own.iter().map(|(name, value)| (name, value)))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // A group of its own, so that a signal reaches what the rank has started as well.
        .process_group(0);
    prepare(&mut command);
    let mut child = command.spawn().map_err(|e| {
        let program = String::from_utf8_lossy(program);
        match e.kind() {
            ErrorKind::NotFound => failed(127, format!("the command {program:?} was not found")),
            ErrorKind::PermissionDenied => failed(126, format!("the command {program:?} may not be run: {e}")),
            _ => failed(126, format!("the command {program:?} could not be started: {e}")),
        }
    })?;
    let pipes = [Pipe::Out(child.stdout.take()), Pipe::Error(child.stderr.take())];
    for fd in pipes.iter().filter_map(Pipe::fd) {
        // Reading must never keep the agent from hearing the launcher.
        rustix::io::ioctl_fionbio(fd, true).map_err(|e| failed(126, format!("setting up its pipes: {e}")))?;
    }
    let pid = Pid::from_raw(child.id() as i32).ok_or_else(|| failed(126, "it has no process id".into()))?;
    Ok(Process { rank, pid, pipes, ending: None, kill_at: None, told: false })
}

/// Should the agent be killed, the rank is killed with it. And signals reach the rank: it would inherit that the agent has
/// blocked them for itself, and that a shell's background jobs ignore SIGINT, and never hear of Ctrl-C or of being asked to
/// end.
#[expect(unsafe_code, reason = "only the child itself can ask for these")]
fn prepare(command: &mut Command) {
    kill_with_parent(command);
    let hear_signals = || {
        for heard in [Number::SIGINT, Number::SIGTERM] {
            // SAFETY: the default needs no handler.
            unsafe { nix::sys::signal::signal(heard, SigHandler::SigDfl) }.map_err(std::io::Error::from)?;
        }
        SigSet::empty().thread_set_mask().map_err(std::io::Error::from)
    };
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(hear_signals) };
}
