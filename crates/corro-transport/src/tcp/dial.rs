//! Reaching a peer that may have many addresses, some of which lead nowhere or to somebody else.
//!
//! All addresses are tried in parallel, a little apart; the first behind which a process *proves* that it belongs to
//! the job wins. Owns the attempts while they run; holds nothing between calls. Waits only until its caller's limit.

use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, Result};
use rustix::event::{PollFd, PollFlags};

use super::socket::{PumpError, Socket, wait};
use crate::handshake::{Client, Purpose, Side};
use crate::secret::Secret;
use crate::tls::TlsIdentity;
use crate::wait_limit::WaitLimit;

/// How long an address has the field to itself before the next one is tried as well.
const STAGGER: Duration = Duration::from_millis(75);
/// How long the others may still prove themselves once one has, when all that work are wanted.
const GRACE: Duration = Duration::from_millis(50);
/// How long one attempt may take until the server has proven itself.
const ATTEMPT_TIME: Duration = Duration::from_secs(5);
/// For how long nothing must listen at any of a rank's addresses until that rank counts as gone.
const EXITED: Duration = Duration::from_secs(1);
/// Pauses between attempts at the same address, doubling from the first to the second.
const RETRY: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(1));

/// What every attempt needs to know.
#[derive(Clone)]
pub(crate) struct Dialer {
    pub(crate) secret: Arc<Secret>,
    pub(crate) tls: Option<Arc<TlsIdentity>>,
}

/// An address and why it did not work.
#[derive(Clone, Debug)]
pub(crate) struct Tried {
    pub(crate) address: SocketAddr,
    pub(crate) reason: String,
    pub(crate) failure: Failure,
}

/// Whether trying again may help.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Failure {
    MayPass,
    /// The host answers, and has no such port open.
    NothingListens,
    /// Somebody else answers there.
    Impostor,
}

/// A connection whose server has proven itself and waits for our proof. Withdraws when dropped.
pub(crate) struct Verified {
    pub(crate) address: SocketAddr,
    purpose: Purpose,
    connection: Option<(Socket, Box<Client>)>,
}

enum Stage {
    Connecting(socket2::Socket),
    Tunnel(Socket),
    Handshake(Socket, Box<Client>),
}

struct Attempt {
    stage: Stage,
    since: Instant,
}

/// One address of a race.
struct Candidate {
    address: SocketAddr,
    attempt: Option<Attempt>,
    verified: Option<Verified>,
    failure: Option<Tried>,
    start_at: Instant,
    pause: Duration,
}

impl Dialer {
    /// Tries `addresses` until one is proven to lead to a member of the job. Gives the first one, or with `wide` all
    /// that answer about as fast, in the order given. The error tells what happened at each address.
    pub(crate) fn race(
        &self,
        addresses: &[SocketAddr],
        purpose: Purpose,
        wide: bool,
        limit: &WaitLimit,
    ) -> Result<Vec<Verified>, Vec<Tried>> {
        let begin = Instant::now();
        let stagger = if wide { Duration::ZERO } else { STAGGER };
        let mut candidates: Vec<Candidate> = (0u32..)
            .zip(addresses)
            .map(|(i, address)| Candidate {
                address: *address,
                attempt: None,
                verified: None,
                failure: None,
                start_at: begin + stagger * i,
                pause: RETRY.0,
            })
            .collect();
        let mut first_proven = None;
        loop {
            let now = Instant::now();
            Self::start_due(&mut candidates, now);
            for candidate in &mut candidates {
                candidate.expire(now);
            }
            if first_proven.is_none() && candidates.iter().any(|l| l.verified.is_some()) {
                first_proven = Some(now);
            }
            if let Some(first) = first_proven {
                let settled = candidates.iter().all(|l| l.verified.is_some() || l.failure.is_some());
                if !wide || settled || now >= first + GRACE {
                    return Ok(candidates.into_iter().filter_map(|l| l.verified).collect());
                }
            }
            let all = |hopeless: &[Failure]| {
                candidates.iter().all(|l| l.failure.as_ref().is_some_and(|f| hopeless.contains(&f.failure)))
            };
            // A rank publishes its addresses once it listens there; whoever does so no more has exited.
            let exited = matches!(purpose, Purpose::Link { .. })
                && now >= begin + EXITED
                && all(&[Failure::NothingListens, Failure::Impostor]);
            let hopeless = exited || all(&[Failure::Impostor]);
            if limit.is_over() || hopeless {
                return Err(candidates.into_iter().map(Candidate::into_tried).collect());
            }
            let until =
                candidates.iter().filter_map(Candidate::next_moment).chain(first_proven.map(|f| f + GRACE)).min();
            let pause = until.map_or(Duration::MAX, |at| at.saturating_duration_since(now));
            self.step(&mut candidates, purpose, pause.min(limit.nap()));
        }
    }

    fn start_due(candidates: &mut [Candidate], now: Instant) {
        for i in 0..candidates.len() {
            if candidates[i].attempt.is_some() || candidates[i].verified.is_some() || candidates[i].start_at > now {
                continue;
            }
            match begin_connect(candidates[i].address) {
                Ok(socket) => candidates[i].attempt = Some(Attempt { stage: Stage::Connecting(socket), since: now }),
                Err(e) => fail(candidates, i, &connect_words(&e), connect_failure(&e)),
            }
        }
    }

    /// Sleeps until something happens on a candidate, and goes on with those where it did.
    fn step(&self, candidates: &mut [Candidate], purpose: Purpose, pause: Duration) {
        let running: Vec<usize> = (0..candidates.len()).filter(|i| candidates[*i].attempt.is_some()).collect();
        let mut fds: Vec<PollFd<'_>> = running
            .iter()
            .filter_map(|i| candidates[*i].attempt.as_ref())
            .map(|a| PollFd::from_borrowed_fd(a.fd(), a.interest()))
            .collect();
        if let Err(e) = wait(&mut fds, Some(pause)) {
            // Out of memory, most likely: let others breathe, and try again until the deadline.
            tracing::warn!(error = %e, "dialling");
            std::thread::sleep(RETRY.0);
        }
        let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        for (candidate, ready) in running.into_iter().zip(ready) {
            if !ready {
                continue;
            }
            let Some(attempt) = candidates[candidate].attempt.take() else { continue };
            match self.advance(attempt, candidates[candidate].address, purpose) {
                Ok(Progress::Waits(attempt)) => candidates[candidate].attempt = Some(attempt),
                Ok(Progress::Verified(verified)) => candidates[candidate].verified = Some(verified),
                Err(tried) => fail(candidates, candidate, &tried.reason, tried.failure),
            }
        }
    }

    fn advance(&self, attempt: Attempt, address: SocketAddr, purpose: Purpose) -> Result<Progress, Tried> {
        let tried = |reason: String, failure: Failure| Tried { address, reason, failure };
        let since = attempt.since;
        let mut stage = attempt.stage;
        loop {
            stage = match stage {
                Stage::Connecting(socket) => {
                    if let Some(e) = socket.take_error().unwrap_or_else(Some) {
                        return Err(tried(connect_words(&e), connect_failure(&e)));
                    }
                    let socket = Socket::client(socket.into(), self.tls.as_ref());
                    Stage::Tunnel(socket.map_err(|e| tried(e.to_string(), Failure::MayPass))?)
                }
                Stage::Tunnel(mut socket) => match socket.tunnel() {
                    Err(broken) => {
                        let failure = if socket.found_impostor() { Failure::Impostor } else { Failure::MayPass };
                        return Err(tried(broken.0, failure));
                    }
                    Ok(None) => return Ok(Progress::Waits(Attempt { stage: Stage::Tunnel(socket), since })),
                    Ok(Some(binding)) => {
                        let client = Client::new(self.secret.clone(), purpose, binding);
                        Stage::Handshake(socket, Box::new(client.map_err(|e| tried(e.to_string(), Failure::MayPass))?))
                    }
                },
                Stage::Handshake(mut socket, mut client) => {
                    pump(&mut socket, &mut client, address)?;
                    if client.server_is_proven() {
                        return Ok(Progress::Verified(Verified {
                            address,
                            purpose,
                            connection: Some((socket, client)),
                        }));
                    }
                    return Ok(Progress::Waits(Attempt { stage: Stage::Handshake(socket, client), since }));
                }
            };
        }
    }
}

/// What is said of one who accepts and is silent.
const TAKEN: &str = "the connection was taken, but nobody of this job answered (another program's port?)";

enum Progress {
    Waits(Attempt),
    Verified(Verified),
}

impl Attempt {
    fn fd(&self) -> BorrowedFd<'_> {
        match &self.stage {
            Stage::Connecting(socket) => socket.as_fd(),
            Stage::Tunnel(socket) | Stage::Handshake(socket, _) => socket.as_fd(),
        }
    }

    /// Whether somebody has taken the connection.
    fn is_taken(&self) -> bool {
        !matches!(self.stage, Stage::Connecting(_))
    }

    fn interest(&self) -> PollFlags {
        match &self.stage {
            Stage::Connecting(_) => PollFlags::OUT,
            Stage::Tunnel(socket) => socket.interest(false),
            Stage::Handshake(socket, client) => socket.interest(!client.output().is_empty()),
        }
    }
}

impl Candidate {
    /// When this candidate needs attention even if nothing happens on its socket.
    fn next_moment(&self) -> Option<Instant> {
        match (&self.attempt, &self.verified) {
            (_, Some(_)) => None,
            (Some(attempt), _) => Some(attempt.since + ATTEMPT_TIME),
            (None, None) => Some(self.start_at),
        }
    }

    fn expire(&mut self, now: Instant) {
        if let Some(attempt) = self.attempt.take_if(|a| now >= a.since + ATTEMPT_TIME) {
            self.start_at = now;
            let reason = if attempt.is_taken() {
                format!("{TAKEN} within {ATTEMPT_TIME:?}")
            } else {
                format!("no answer within {ATTEMPT_TIME:?} (a firewall, or a network that does not lead there?)")
            };
            self.failure = Some(Tried { address: self.address, reason, failure: Failure::MayPass });
        }
    }

    fn into_tried(self) -> Tried {
        let reason = match &self.attempt {
            Some(attempt) if attempt.is_taken() => TAKEN,
            Some(_) => "no answer yet",
            None => "not tried yet",
        };
        self.failure.unwrap_or(Tried { address: self.address, reason: reason.into(), failure: Failure::MayPass })
    }
}

/// Notes a failure; the candidate tries again later, and the next one that has not started yet does so now.
fn fail(candidates: &mut [Candidate], index: usize, reason: &str, failure: Failure) {
    let now = Instant::now();
    let candidate = &mut candidates[index];
    if failure == Failure::Impostor && candidate.failure.as_ref().is_none_or(|f| f.failure != failure) {
        tracing::warn!(address = %candidate.address, reason, "an address of a peer leads to somebody else");
    }
    candidate.failure = Some(Tried { address: candidate.address, reason: reason.into(), failure });
    candidate.start_at = now + candidate.pause;
    candidate.pause = (candidate.pause * 2).min(RETRY.1);
    if let Some(next) =
        candidates.iter_mut().find(|l| l.attempt.is_none() && l.verified.is_none() && l.failure.is_none())
    {
        next.start_at = next.start_at.min(now);
    }
}

impl Verified {
    /// Where from.
    pub(crate) fn local_address(&self) -> Option<SocketAddr> {
        self.connection.as_ref().and_then(|(socket, _)| socket.local_address())
    }

    /// Sends our proof and waits until the server has taken the connection.
    pub(crate) fn complete(mut self, limit: &WaitLimit) -> Result<Socket, Tried> {
        let address = self.address;
        let tried = |reason: String| Tried { address, reason, failure: Failure::MayPass };
        let Some((mut socket, mut client)) = self.connection.take() else {
            return Err(tried("the connection is gone".into()));
        };
        client.prove().map_err(|e| tried(e.to_string()))?;
        loop {
            pump(&mut socket, &mut client, address)?;
            if client.is_accepted() {
                let sealed = self.purpose.must_be_sealed();
                return Ok(if sealed { socket.seal(client.session(), true) } else { socket });
            }
            if limit.is_over() {
                let granted = limit.deadline().granted();
                return Err(tried(format!("it did not take the connection within {granted:?}")));
            }
            let interest = socket.interest(!client.output().is_empty());
            let mut fds = [PollFd::from_borrowed_fd(socket.as_fd(), interest)];
            wait(&mut fds, Some(limit.nap())).map_err(|e| tried(e.to_string()))?;
        }
    }
}

impl Drop for Verified {
    fn drop(&mut self) {
        if let Some((socket, client)) = &mut self.connection {
            // A courtesy: if it does not fit into the socket at once, the server just sees the end.
            if client.withdraw().is_ok() {
                let _ = socket.pump(&mut **client);
            }
        }
    }
}

fn pump(socket: &mut Socket, client: &mut Client, address: SocketAddr) -> Result<(), Tried> {
    socket.pump(client).map(|_| ()).map_err(|e| match e {
        PumpError::Wrong(e) => {
            let impostor = matches!(e, Error::Unauthenticated(_));
            let failure = if impostor { Failure::Impostor } else { Failure::MayPass };
            Tried { address, reason: e.to_string(), failure }
        }
        PumpError::Broken(broken) => Tried {
            address,
            reason: format!(
                "{} (during the handshake: does this address belong to that rank, and is CORRO_TLS the same on every rank?)",
                broken.0
            ),
            failure: Failure::MayPass,
        },
    })
}

fn begin_connect(address: SocketAddr) -> std::io::Result<socket2::Socket> {
    let kind = socket2::Type::STREAM.nonblocking();
    let socket = socket2::Socket::new(socket2::Domain::for_address(address), kind, Some(socket2::Protocol::TCP))?;
    match socket.connect(&address.into()) {
        Ok(()) => Ok(socket),
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(socket),
        Err(e) => Err(e),
    }
}

fn connect_failure(error: &std::io::Error) -> Failure {
    match error.kind() {
        std::io::ErrorKind::ConnectionRefused => Failure::NothingListens,
        _ => Failure::MayPass,
    }
}

fn connect_words(error: &std::io::Error) -> String {
    use std::io::ErrorKind as Kind;
    let meaning = match error.kind() {
        Kind::ConnectionRefused => "nothing listens there; the process may not have started, or has exited",
        Kind::TimedOut => "no answer; a firewall, or a network that does not lead there?",
        Kind::HostUnreachable | Kind::NetworkUnreachable => "there is no route to it from this host",
        _ => return error.to_string(),
    };
    format!("{meaning} ({error})")
}

/// Each address and what happened there, for error texts.
pub(crate) fn list(tried: &[Tried]) -> String {
    let texts: Vec<String> = tried.iter().map(|t| format!("at {}: {}", t.address, t.reason)).collect();
    texts.join("; ")
}

/// " within 30s" if the time is up; some failures are certain before that.
pub(crate) fn within(deadline: Deadline) -> String {
    if deadline.passed() { format!(" within {:?}", deadline.granted()) } else { String::new() }
}
