//! An agent on another host by ssh, and what ssh's complaints mean.
//!
//! The command line given to ssh holds the path of the `corro` program and the word `agent`, nothing else: everything
//! about the job goes through its standard input.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use super::starter::{Reach, Starter, advice_on_missing_program, line};
use crate::hosts::Host;

/// What to do about hosts whose key ssh does not know.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostKeys {
    /// As the user's ssh is set up; unless that says otherwise, refuse.
    #[default]
    Known,
    /// Take the key of a host never seen before; refuse one that has changed.
    AcceptNew,
    /// Believe anyone. For throw-away networks only.
    Ignore,
}

/// Starts agents by ssh.
pub(super) struct Ssh {
    /// Its port, if not the usual one.
    pub(super) port: Option<u16>,
    /// Its key file, if not the usual one.
    pub(super) identity: Option<PathBuf>,
    pub(super) host_keys: HostKeys,
}

/// What ssh is told about what the user wants of it.
pub(super) fn options(port: Option<u16>, identity: Option<&Path>, host_keys: HostKeys) -> Vec<OsString> {
    let mut words: Vec<OsString> = Vec::new();
    if let Some(port) = port {
        words.extend(["-p".into(), port.to_string().into()]);
    }
    if let Some(identity) = identity {
        words.extend(["-i".into(), identity.into()]);
    }
    let options: &[&str] = match host_keys {
        HostKeys::Known => &[],
        HostKeys::AcceptNew => &["StrictHostKeyChecking=accept-new"],
        HostKeys::Ignore => &["StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR"],
    };
    words.extend(options.iter().flat_map(|option| ["-o".into(), option.into()]));
    words
}

impl Starter for Ssh {
    fn command(&self, host: &Host, agent: &[OsString], limit: Duration) -> Command {
        let mut command = Command::new("ssh");
        // No terminal, no questions: nobody is there to answer for every host.
        command.args(["-T", "-o", "BatchMode=yes"]);
        command.arg("-o").arg(format!("ConnectTimeout={}", limit.as_secs().max(1)));
        command.args(options(self.port, self.identity.as_deref(), self.host_keys));
        // What comes after the two dashes is never an option, whatever it looks like.
        command.arg("--").arg(host.full_name()).arg(line(agent));
        command
    }
}

impl Reach for Ssh {
    fn name(&self) -> String {
        "ssh".into()
    }

    fn advice(&self, host: &str, stderr: &str) -> Option<String> {
        let table = [
            (
                "Host key verification failed",
                format!("check its key and add it with `ssh {host}`, or give --ssh-host-keys accept-new"),
            ),
            (
                "REMOTE HOST IDENTIFICATION HAS CHANGED",
                "its key is not the one you know: find out why before you go on".into(),
            ),
            (
                "Permission denied",
                format!("make `ssh {host} true` work without a password (ssh-copy-id), or give -i KEY or user@{host}"),
            ),
            (
                "Could not resolve hostname",
                "is the name right? give an address if it is not in DNS or /etc/hosts".into(),
            ),
            ("Connection refused", "is sshd running there, and at this port (-p)?".into()),
            ("timed out", "is it up, and does a firewall let ssh through?".into()),
            ("No route to host", "is it up, and does a firewall let ssh through?".into()),
            ("Network is unreachable", "this host has no route to it".into()),
        ];
        let known = table.into_iter().find(|(complaint, _)| stderr.contains(complaint)).map(|(_, advice)| advice);
        known.or_else(|| advice_on_missing_program(stderr))
    }

    fn advice_on_silence(&self) -> String {
        "is it up and reachable?".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ssh() -> Ssh {
        Ssh { port: None, identity: None, host_keys: HostKeys::Known }
    }

    #[test]
    fn host_keys_are_checked_unless_told_otherwise() {
        let line = |host_keys| {
            let command = Ssh { host_keys, ..ssh() }.command(&Host::local(1), &["corro".into()], Duration::ZERO);
            command.get_args().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert!(!line(HostKeys::Known).contains("StrictHostKeyChecking"));
        assert!(line(HostKeys::AcceptNew).contains("accept-new"));
        assert!(line(HostKeys::Ignore).contains("StrictHostKeyChecking=no"));
    }

    #[test]
    fn complaints_have_advice() {
        assert!(ssh().advice("n", "ssh: connect to host n port 22: Connection refused").unwrap().contains("sshd"));
        assert!(ssh().advice("n", "bash: /x/corro: No such file or directory").unwrap().contains("--remote-corro"));
        assert_eq!(ssh().advice("n", "something else"), None);
    }
}
