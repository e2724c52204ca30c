//! An agent on another host by a program of the user's choice, run as `PROGRAM HOST COMMAND` in place of ssh.

use std::ffi::OsString;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::starter::{Reach, Starter, advice_on_missing_program, line};
use crate::hosts::Host;

/// Starts agents by another program than ssh.
pub(super) struct RemoteShell {
    pub(super) program: OsString,
}

impl Starter for RemoteShell {
    fn command(&self, host: &Host, agent: &[OsString], _limit: Duration) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(host.full_name()).arg(line(agent));
        command
    }
}

impl Reach for RemoteShell {
    fn name(&self) -> String {
        let path = Path::new(&self.program);
        path.file_name().unwrap_or(&self.program).to_string_lossy().into_owned()
    }

    fn advice(&self, _host: &str, stderr: &str) -> Option<String> {
        advice_on_missing_program(stderr)
    }

    fn advice_on_silence(&self) -> String {
        format!(
            "does `{} HOST COMMAND` run the command there, and pass its output on at once? (srun needs --unbuffered)",
            self.name()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_speaks_of_ssh() {
        let shell = RemoteShell { program: "/opt/bin/srun.sh".into() };
        assert_eq!(shell.name(), "srun.sh");
        assert_eq!(shell.advice("n", "srun: error: Permission denied"), None);
        let advice = shell.advice("n", "bash: corro: command not found").unwrap();
        assert!(advice.contains("--remote-corro") && !advice.contains("ssh"));
        assert!(shell.advice_on_silence().contains("--unbuffered") && !shell.advice_on_silence().contains("ssh"));
    }
}
