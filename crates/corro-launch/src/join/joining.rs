//! The agent's side: `corro agent --join=HOST:PORT` finds the launcher, serves it, and waits for the next when its job is over.

use std::ffi::OsString;
use std::io::Write;
use std::net::ToSocketAddrs;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use corro_core::{Deadline, Error, Result, codec};
use corro_transport::listener::{self, Connection};
use corro_transport::secret::Secret;
use nix::sys::signal::Signal;
use nix::sys::signalfd::SignalFd;
use tracing::level_filters::LevelFilter;

use super::{Introduction, given_secret, join_key, relay};
use crate::agent::{self, Home, log};

/// How long one attempt to reach the launcher may take: signals are heard between two.
const ATTEMPT: Duration = Duration::from_secs(2);
/// The pause after a name that nobody knows yet.
const PAUSE: Duration = Duration::from_millis(300);

/// Whom to join, as whom.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct JoinTarget {
    address: String,
    name: String,
    slots: u32,
}

impl JoinTarget {
    /// From the words behind `corro agent`, if they say that it is to join somebody.
    pub(crate) fn understand(words: &[OsString]) -> Option<Result<Self>> {
        let value = |flag: &str| words.iter().find_map(|word| word.to_str()?.strip_prefix(flag)).map(str::to_owned);
        let address = value("--join=")?;
        Some(Self::read(address, value("--name="), value("--slots="), words.len()))
    }

    fn read(address: String, name: Option<String>, slots: Option<String>, words: usize) -> Result<Self> {
        let known = 1 + usize::from(name.is_some()) + usize::from(slots.is_some());
        let port =
            address.rsplit_once(':').and_then(|(host, port)| port.parse::<u16>().ok().filter(|_| !host.is_empty()));
        let slots: Option<u32> = slots.map_or(Some(1), |text| text.parse().ok().filter(|slots| *slots > 0));
        match (port, slots) {
            (Some(_), Some(slots)) if known == words => {
                Ok(Self { address, name: name.unwrap_or_else(own_name), slots })
            }
            _ => Err(Error::Usage("an agent that joins is told --join=HOST:PORT [--name=NAME] [--slots=N]".into())),
        }
    }

    /// A connection to the launcher, however long that takes; nothing if a signal has asked us to go.
    fn reach(&self, key: &Secret, signals: &SignalFd) -> Result<Option<Connection>> {
        let mut told = false;
        loop {
            while let Ok(Some(info)) = signals.read_signal() {
                if info.ssi_signo != Signal::SIGCHLD as u32 {
                    return Ok(None);
                }
            }
            let found: Vec<_> = self.address.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
            let why = if found.is_empty() {
                std::thread::sleep(PAUSE);
                "its name is not known yet".to_owned()
            } else {
                match listener::connect("the launcher", &found, key, true, Deadline::after(ATTEMPT)) {
                    Ok(connection) => return Ok(Some(connection)),
                    // Another secret will be another one the next time as well.
                    Err(e @ Error::Unauthenticated(_)) => return Err(e),
                    Err(e) => e.to_string(),
                }
            };
            if !std::mem::replace(&mut told, true) {
                log::on_stderr(LevelFilter::INFO, || {
                    tracing::warn!("waits for the launcher at {}: {why}", self.address);
                });
            }
        }
    }
}

/// Joins one launcher after the other, until a signal asks it to go; gives the exit code.
pub(crate) fn serve(target: &JoinTarget) -> Result<i32> {
    let key = join_key(&given_secret()?);
    let signals = agent::signals()?;
    while let Some(Connection { stream, remote }) = target.reach(&key, &signals)? {
        log::on_stderr(LevelFilter::INFO, || tracing::info!("has joined the launcher at {remote} as {}", target.name));
        let failed = |e: std::io::Error| Error::io("joining the launcher", e);
        let (mine, theirs) = UnixStream::pair().map_err(failed)?;
        let introduction = codec::encode(&Introduction { name: target.name.clone(), slots: target.slots })?;
        (&mine).write_all(&introduction).map_err(failed)?;
        let relay = std::thread::Builder::new()
            .name("corro-relay".into())
            .spawn(move || relay::run(stream, Vec::new(), &theirs))
            .map_err(failed)?;
        let home = Home::Joined(remote.ip().to_canonical().to_string());
        let asked_to_go = agent::serve_at((mine.as_fd(), mine.as_fd()), &signals, home)?;
        // The last reports are on their way.
        drop(mine);
        let _ = relay.join();
        if asked_to_go {
            break;
        }
        log::on_stderr(LevelFilter::INFO, || tracing::info!("the launcher has let it go"));
    }
    Ok(0)
}

fn own_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn understand(line: &str) -> Option<Result<JoinTarget>> {
        JoinTarget::understand(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>())
    }

    #[test]
    fn whom_to_join_is_said_by_flags() {
        let target = |name: &str, slots| JoinTarget { address: "driver:29401".into(), name: name.into(), slots };
        assert_eq!(understand("--join=driver:29401 --name=w-0 --slots=4").unwrap().unwrap(), target("w-0", 4));
        assert_eq!(understand("--join=driver:29401").unwrap().unwrap(), target(&own_name(), 1));
        assert!(understand("").is_none() && understand("--in-step").is_none());
        for line in ["--join=driver", "--join=:1", "--join=a:x", "--join=a:1 --slots=0", "--join=a:1 --other"] {
            assert!(understand(line).unwrap().unwrap_err().to_string().contains("--join=HOST:PORT"), "{line}");
        }
    }
}
