//! Ranks as processes of this host.

use std::net::{Ipv4Addr, SocketAddr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use corro_core::{Error, Rank, Result, config};
use corro_transport::secret::Secret;
use corro_transport::store;

/// How long ranks may take to end after another one failed, before they are killed.
const GRACE: Duration = Duration::from_secs(2);

/// Starts `ranks` processes, each as `command(rank)` says, with all they need to find each other, and waits for them.
/// If one fails, the others are ended too, and the error names it.
pub fn run_local(ranks: usize, mut command: impl FnMut(Rank) -> Command) -> Result<()> {
    let secret = Secret::random()?;
    let tls = config::TLS.flag(false);
    let store =
        store::Server::start(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), &secret, tls, store::Limits::default())?;
    let mut children = Children(Vec::new());
    for rank in Rank::all(ranks) {
        let mut command = command(rank);
        command
            .env(config::RANK.name, rank.to_string())
            .env(config::SIZE.name, ranks.to_string())
            .env(config::RENDEZVOUS.name, store.address().to_string())
            // The environment of a process is readable by its own user only, unlike its command line.
            .env(config::SECRET.name, secret.to_hex());
        let child = command.spawn().map_err(|e| Error::io(format!("starting rank {rank} ({command:?})"), e))?;
        children.0.push(Some(child));
    }
    children.wait()
}

/// Running ranks; whoever is left is killed at the end.
struct Children(Vec<Option<Child>>);

impl Children {
    fn wait(&mut self) -> Result<()> {
        let mut failure: Option<(Error, Instant)> = None;
        while self.0.iter().any(Option::is_some) {
            let mut ended = false;
            for (rank, slot) in Rank::all(self.0.len()).zip(&mut self.0) {
                let Some(child) = slot else { continue };
                let status = child.try_wait().map_err(|e| Error::io(format!("waiting for rank {rank}"), e))?;
                let Some(status) = status else { continue };
                *slot = None;
                ended = true;
                if !status.success() && failure.is_none() {
                    failure = Some((
                        Error::Shutdown(format!("rank {rank} ended with {status}").into()),
                        Instant::now() + GRACE,
                    ));
                }
            }
            if let Some((error, until)) = &failure
                && Instant::now() >= *until
            {
                return Err(error.clone());
            }
            if !ended {
                std::thread::sleep(Duration::from_millis(2));
            }
        }
        failure.map_or(Ok(()), |(error, _)| Err(error))
    }
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in self.0.iter_mut().flatten() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
