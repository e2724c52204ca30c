//! A terminal for one rank, so that a person can talk to it (`--debug`): the rank has one end as its standard input, output
//! and error, the agent has the other and passes on what goes through it.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::pty::OpenptFlags;
use rustix::termios::Winsize;

use super::message::{MAX_OUTPUT, Window};

/// Ctrl-D: no more is typed.
const END_OF_INPUT: u8 = 4;
/// What may wait to be read by the rank. Whoever types more than that has to wait.
const MAX_TYPED: usize = 1024 * 1024;

/// The agent's end.
pub(super) struct Terminal {
    master: File,
    /// What the rank has not read yet.
    typed: Vec<u8>,
}

/// Gives the rank that `command` starts a terminal, in a session of its own.
pub(super) fn attach(command: &mut Command, window: Window) -> std::io::Result<Terminal> {
    let master = rustix::pty::openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC)?;
    rustix::pty::grantpt(&master)?;
    rustix::pty::unlockpt(&master)?;
    let name = rustix::pty::ptsname(&master, Vec::new())?;
    let slave = rustix::fs::open(&name, OFlags::RDWR | OFlags::NOCTTY | OFlags::CLOEXEC, Mode::empty())?;
    rustix::termios::tcsetwinsize(
        &master,
        Winsize { ws_row: window.rows, ws_col: window.columns, ws_xpixel: 0, ws_ypixel: 0 },
    )?;
    rustix::io::ioctl_fionbio(&master, true)?;
    command.stdin(slave.try_clone()?).stdout(slave.try_clone()?).stderr(slave.try_clone()?);
    take_over(command, slave);
    Ok(Terminal { master: File::from(master), typed: Vec::new() })
}

/// A new session has no terminal, and its leader takes this one: then Ctrl-C is a signal to the rank. The leader of a
/// session leads a group as well, so signals to the group of the rank work as for all others.
#[expect(unsafe_code, reason = "only the child itself can do this")]
fn take_over(command: &mut Command, slave: OwnedFd) {
    let act = move || -> std::io::Result<()> {
        rustix::process::setsid()?;
        rustix::process::ioctl_tiocsctty(&slave)?;
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(act) };
}

impl Terminal {
    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.master.as_fd()
    }

    /// Whether something waits to be read by the rank.
    pub(super) fn has_typed(&self) -> bool {
        !self.typed.is_empty()
    }

    /// What the rank wrote, without waiting for more; `None` once it is gone.
    pub(super) fn read(&mut self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; MAX_OUTPUT];
        match self.master.read(&mut bytes) {
            Ok(count) if count > 0 => {
                bytes.truncate(count);
                Some(bytes)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Some(Vec::new()),
            // The system says EIO when nobody has the other end any more.
            Ok(_) | Err(_) => None,
        }
    }

    /// Takes what was typed; nothing means that no more will be.
    pub(super) fn type_in(&mut self, bytes: &[u8]) {
        if bytes.is_empty() {
            self.typed.push(END_OF_INPUT);
        } else if self.typed.len() + bytes.len() <= MAX_TYPED {
            self.typed.extend_from_slice(bytes);
        }
        self.flush();
    }

    /// Passes on as much as the rank's end takes.
    pub(super) fn flush(&mut self) {
        while !self.typed.is_empty() {
            match self.master.write(&self.typed) {
                Ok(count) if count > 0 => drop(self.typed.drain(..count)),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                _ => return,
            }
        }
    }
}
