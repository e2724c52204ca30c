//! An agent on a host of LSF's or Grid Engine's, by the program with which these reach the hosts of a job.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::starter::{Reach, Starter, advice_on_missing_program, line};
use crate::hosts::Host;

/// Starts agents by a batch system's own program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Batch {
    /// LSF's, for a host of the job.
    Blaunch,
    /// Grid Engine's, in a parallel environment with `control_slaves TRUE`.
    Qrsh,
}

impl Starter for Batch {
    fn command(&self, host: &Host, agent: &[OsString], _limit: Duration) -> Command {
        let mut command = Command::new(self.name());
        if *self == Self::Qrsh {
            command.arg("-inherit");
        }
        // Both join their words and have them read by a shell again.
        command.arg(&host.name).arg(line(agent));
        command
    }
}

impl Reach for Batch {
    fn name(&self) -> String {
        match self {
            Self::Blaunch => "blaunch".into(),
            Self::Qrsh => "qrsh".into(),
        }
    }

    fn advice(&self, _host: &str, stderr: &str) -> Option<String> {
        let slaves = "the parallel environment needs control_slaves TRUE (`qconf -sp NAME`)";
        stderr.contains("control_slaves").then(|| slaves.into()).or_else(|| advice_on_missing_program(stderr))
    }

    fn advice_on_silence(&self) -> String {
        let test = match self {
            Self::Blaunch => "blaunch HOST true",
            Self::Qrsh => "qrsh -inherit HOST true",
        };
        format!("does `{test}` work in this job? `--remote-shell ssh` reaches hosts by ssh instead")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    #[test]
    fn each_has_its_own_words() {
        let words = |batch: Batch| {
            let host = hosts::parse_list("h1:4").unwrap().remove(0);
            let command = batch.command(&host, &["/my corro".into(), "agent".into()], Duration::from_secs(1));
            let all = std::iter::once(command.get_program()).chain(command.get_args());
            all.map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(Batch::Blaunch), "blaunch h1 '/my corro' agent");
        assert_eq!(words(Batch::Qrsh), "qrsh -inherit h1 '/my corro' agent");
        assert!(Batch::Qrsh.advice_on_silence().contains("qrsh -inherit"));
        assert!(Batch::Qrsh.advice("h", "error: control_slaves is FALSE").unwrap().contains("qconf"));
    }
}
