//! How other hosts are reached, as the user said.

use std::ffi::OsString;
use std::path::PathBuf;

use super::batch::Batch;
use super::remote_shell::RemoteShell;
use super::srun::Srun;
use super::ssh::{self, HostKeys, Ssh};
use super::starter::Starter;
use crate::allocation::System;

/// How other hosts are reached.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    /// ssh's port, if not the usual one.
    pub port: Option<u16>,
    /// ssh's key file, if not the usual one.
    pub identity: Option<PathBuf>,
    /// What to do about host keys.
    pub host_keys: HostKeys,
    /// The `corro` program there; `None`: the path of the one that runs here.
    pub corro: Option<OsString>,
    /// A program to be run as `PROGRAM HOST COMMAND` in place of ssh.
    pub shell: Option<OsString>,
    /// The batch system whose hosts these are: its own program reaches them, unless there is a `shell`.
    pub system: Option<System>,
    /// The port at which agents of other hosts join by themselves; nothing else reaches them then.
    pub join_port: Option<u16>,
}

impl Remote {
    /// The way to start agents on other hosts.
    pub(crate) fn starter(&self) -> Box<dyn Starter> {
        match (&self.shell, self.system) {
            (Some(program), _) => Box::new(RemoteShell { program: program.clone() }),
            (None, Some(System::Slurm)) => Box::new(Srun),
            (None, Some(System::Lsf)) => Box::new(Batch::Blaunch),
            (None, Some(System::Sge)) => Box::new(Batch::Qrsh),
            // What PBS has (pbsdsh, pbs_tmrsh) does not join the output of a program to its own.
            (None, Some(System::Pbs) | None) => {
                Box::new(Ssh { port: self.port, identity: self.identity.clone(), host_keys: self.host_keys })
            }
        }
    }

    /// What ssh is told about port, key and host keys, for launchers that call it themselves.
    pub(crate) fn ssh_words(&self) -> Vec<String> {
        let words = ssh::options(self.port, self.identity.as_deref(), self.host_keys);
        words.iter().map(|word| word.display().to_string()).collect()
    }

    /// The command of an agent there, if `here` is the command of one on this host.
    pub(crate) fn agent(&self, here: &[OsString]) -> Vec<OsString> {
        match &self.corro {
            Some(path) => vec![path.clone(), "agent".into()],
            None => here.to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::time::Duration;

    use super::*;
    use crate::hosts;

    fn words(remote: &Remote, host: &str, limit: u64) -> String {
        let host = hosts::parse_list(host).unwrap().remove(0);
        let agent = remote.agent(&[OsString::from("/opt/my corro/corro"), "agent".into()]);
        let command = remote.starter().command(&host, &agent, Duration::from_secs(limit));
        let all: Vec<_> =
            std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
        all.join(" ")
    }

    #[test]
    fn ssh_is_told_where_and_nothing_about_the_job() {
        let remote = Remote { port: Some(2222), identity: Some("key".into()), ..Remote::default() };
        let want = "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -i key -- me@node '/opt/my corro/corro' agent";
        assert_eq!(words(&remote, "me@node:2", 10), want);
    }

    #[test]
    fn another_program_may_take_the_place_of_ssh() {
        let remote = Remote { shell: Some("kubexec".into()), corro: Some("corro".into()), ..Remote::default() };
        assert_eq!(words(&remote, "pod", 0), "kubexec pod corro agent");
        let remote = Remote { system: Some(System::Slurm), ..remote };
        assert_eq!(words(&remote, "pod", 0), "kubexec pod corro agent");
    }

    #[test]
    fn hosts_of_a_batch_system_are_reached_its_way() {
        for (system, program) in
            [(System::Slurm, "srun "), (System::Lsf, "blaunch "), (System::Sge, "qrsh "), (System::Pbs, "ssh ")]
        {
            let remote = Remote { system: Some(system), ..Remote::default() };
            assert!(words(&remote, "n1:2", 1).starts_with(program), "{system:?}");
        }
    }
}
