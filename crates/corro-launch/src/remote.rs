//! Other hosts: how their agent is started, whether a host is this one, and what ssh's complaints mean.
//!
//! The command line given to ssh holds the path of the `corro` program and the word `agent`, nothing else: everything
//! about the job goes through its standard input.

use std::ffi::{OsStr, OsString};
use std::net::{IpAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use corro_core::Result;
use corro_transport::nic;

use crate::hosts::Host;

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
}

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

/// The command that starts the agent of `host`; `agent` starts one here.
pub(crate) fn agent_command(remote: &Remote, host: &Host, agent: &[OsString], connect: Duration) -> Command {
    let target = match &host.user {
        Some(user) => format!("{user}@{}", host.name),
        None => host.name.clone(),
    };
    let mut words: Vec<OsString> = match &remote.corro {
        Some(path) => vec![path.clone(), "agent".into()],
        None => agent.to_vec(),
    };
    let line = words.drain(..).map(|w| quoted(&w)).collect::<Vec<_>>().join(OsStr::new(" "));
    if let Some(shell) = &remote.shell {
        let mut command = Command::new(shell);
        command.arg(target).arg(line);
        return command;
    }
    let mut command = Command::new("ssh");
    // No terminal, no questions: nobody is there to answer for every host.
    command.args(["-T", "-o", "BatchMode=yes"]);
    command.arg("-o").arg(format!("ConnectTimeout={}", connect.as_secs().max(1)));
    if let Some(port) = remote.port {
        command.arg("-p").arg(port.to_string());
    }
    if let Some(identity) = &remote.identity {
        command.arg("-i").arg(identity);
    }
    match remote.host_keys {
        HostKeys::Known => {}
        HostKeys::AcceptNew => drop(command.args(["-o", "StrictHostKeyChecking=accept-new"])),
        HostKeys::Ignore => {
            command.args([
                "-o",
                "StrictHostKeyChecking=no",
                "-o",
                "UserKnownHostsFile=/dev/null",
                "-o",
                "LogLevel=ERROR",
            ]);
        }
    }
    // What comes after the two dashes is never an option, whatever it looks like.
    command.arg("--").arg(target).arg(line);
    command
}

/// A word that any POSIX shell reads as itself.
fn quoted(word: &OsStr) -> OsString {
    let plain = |b: &u8| b.is_ascii_alphanumeric() || b"/._-+=:@%".contains(b);
    let bytes = word.as_encoded_bytes();
    if !bytes.is_empty() && bytes.iter().all(plain) {
        return word.to_owned();
    }
    let text = word.to_string_lossy().replace('\'', r"'\''");
    format!("'{text}'").into()
}

/// What to do about `stderr`, the last words of an ssh that could not start an agent.
pub(crate) fn advice(host: &str, stderr: &str) -> Option<String> {
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
        ("Could not resolve hostname", "is the name right? give an address if it is not in DNS or /etc/hosts".into()),
        ("Connection refused", "is sshd running there, and at this port (-p)?".into()),
        ("timed out", "is it up, and does a firewall let ssh through?".into()),
        ("No route to host", "is it up, and does a firewall let ssh through?".into()),
        ("Network is unreachable", "this host has no route to it".into()),
        ("not found", "install corro there at the same path, or give --remote-corro PATH".into()),
        ("No such file", "install corro there at the same path, or give --remote-corro PATH".into()),
    ];
    table.into_iter().find(|(complaint, _)| stderr.contains(complaint)).map(|(_, advice)| advice)
}

/// Whether `host` is the machine this runs on. A host with a user is reached by ssh in any case.
pub fn is_local(host: &Host) -> Result<bool> {
    if host.user.is_some() {
        return Ok(false);
    }
    if host.name == "localhost" || host.name.parse::<IpAddr>().is_ok_and(|a| a.is_loopback()) || host.name == own_name()
    {
        return Ok(true);
    }
    // A name that can't be looked up may still mean something to ssh (its configuration can hold names of its own).
    let Ok(found) = (host.name.as_str(), 0).to_socket_addrs() else { return Ok(false) };
    let own = nic::addresses(None)?;
    Ok(found.map(|a| a.ip().to_canonical()).any(|a| a.is_loopback() || own.iter().any(|n| n.address == a)))
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(command: &Command) -> String {
        let all: Vec<_> =
            std::iter::once(command.get_program()).chain(command.get_args()).map(OsStr::to_string_lossy).collect();
        all.join(" ")
    }

    fn host(text: &str) -> Host {
        crate::hosts::parse_list(text).unwrap().remove(0)
    }

    #[test]
    fn ssh_is_told_where_and_nothing_about_the_job() {
        let agent = [OsString::from("/opt/my corro/corro"), "agent".into()];
        let remote = Remote { port: Some(2222), identity: Some("key".into()), ..Remote::default() };
        let line = words(&agent_command(&remote, &host("me@node:2"), &agent, Duration::from_secs(10)));
        let want = "ssh -T -o BatchMode=yes -o ConnectTimeout=10 -p 2222 -i key -- me@node '/opt/my corro/corro' agent";
        assert_eq!(line, want);
        let remote = Remote { shell: Some("kubexec".into()), corro: Some("corro".into()), ..Remote::default() };
        assert_eq!(words(&agent_command(&remote, &host("pod"), &agent, Duration::ZERO)), "kubexec pod corro agent");
    }

    #[test]
    fn host_keys_are_checked_unless_told_otherwise() {
        let line = |host_keys| {
            let remote = Remote { host_keys, ..Remote::default() };
            words(&agent_command(&remote, &host("a"), &["corro".into(), "agent".into()], Duration::ZERO))
        };
        assert!(!line(HostKeys::Known).contains("StrictHostKeyChecking"));
        assert!(line(HostKeys::AcceptNew).contains("accept-new"));
        assert!(line(HostKeys::Ignore).contains("StrictHostKeyChecking=no"));
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        for name in ["localhost", "127.0.0.1", "127.0.1.1", "[::1]:2", &own_name()] {
            assert!(is_local(&host(name)).unwrap(), "{name}");
        }
        assert!(!is_local(&host("me@localhost")).unwrap());
        assert!(!is_local(&host("192.0.2.1")).unwrap());
    }

    #[test]
    fn complaints_have_advice() {
        assert!(advice("n", "ssh: connect to host n port 22: Connection refused").unwrap().contains("sshd"));
        assert!(advice("n", "bash: /x/corro: No such file or directory").unwrap().contains("--remote-corro"));
        assert_eq!(advice("n", "something else"), None);
    }

    #[test]
    fn quoting_survives_a_shell() {
        for word in ["plain/path", "with space", "it's", "$(x);`y`", "", "-dash"] {
            let out = Command::new("sh")
                .arg("-c")
                .arg(format!("printf %s {}", quoted(OsStr::new(word)).display()))
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(out.stdout).unwrap(), word);
        }
    }
}
