//! The lifecycle of a job, from its first rank to its last: who failed first, when all must end, when it is over.
//!
//! Pure: events and times in, orders out. It starts nothing and sends nothing.

use std::time::{Duration, Instant};

use corro_core::Rank;

use crate::agent::message::Ending;

/// How long hosts may take to tell that nothing is left, once everything there was killed.
const LAST_REPORTS: Duration = Duration::from_secs(2);
/// Whoever interrupts a job by hand gets at least so much time for it to save what it has.
const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// Why a job failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// A rank ended badly.
    Rank {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// How.
        ending: Ending,
    },
    /// A rank could not be started.
    NotStarted {
        /// Which.
        rank: Rank,
        /// Where.
        host: String,
        /// What a shell would exit with.
        code: i32,
        /// Why.
        cause: String,
    },
    /// A host is gone.
    Host {
        /// Which.
        host: String,
        /// Its ranks.
        ranks: Vec<Rank>,
        /// How we know.
        cause: String,
    },
    /// An elastic job could not go on.
    Elastic {
        /// Why.
        why: String,
        /// The process whose failure ended it, if one's did.
        worker: Option<Rank>,
        /// What a shell would exit with.
        code: i32,
    },
    /// The user, or a batch system, ended the job.
    Interrupted {
        /// By this signal.
        signal: i32,
    },
}

impl Failure {
    /// The exit code that fits.
    pub fn code(&self) -> i32 {
        match self {
            Self::Rank { ending, .. } => ending.code(),
            Self::NotStarted { code, .. } | Self::Elastic { code, .. } => *code,
            Self::Host { .. } => 1,
            Self::Interrupted { signal } => 128 + signal,
        }
    }
}

/// Ranks as people read them: all if they are few, else the first and the last. They are in ascending order.
pub(crate) fn listed(ranks: &[Rank]) -> String {
    const FEW: usize = 16;
    match ranks {
        [first, .., last] if ranks.len() > FEW => format!("{first} to {last} ({} of them)", ranks.len()),
        _ => ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    }
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Rank { rank, host, ending } => {
                write!(f, "rank {rank} on {host} exited with non-zero status: {ending}; all other ranks were ended")
            }
            Self::NotStarted { rank, host, cause, .. } => {
                write!(f, "rank {rank} on {host} could not be started: {cause}")
            }
            Self::Host { host, ranks, cause } => {
                write!(f, "lost host {host} with rank {}: {cause}; all other ranks were ended", listed(ranks))
            }
            Self::Elastic { why, .. } => f.write_str(why),
            Self::Interrupted { signal } => write!(f, "ended by signal {signal}, and all ranks with it"),
        }
    }
}

/// What happens.
#[derive(Debug)]
pub(crate) enum Happening {
    Exited(Rank, Ending),
    NotStarted(Rank, i32, String),
    HostDone(usize),
    HostLost(usize, String),
    Interrupt(i32),
}

/// End everything: this signal, and SIGKILL after this time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndAll {
    pub(crate) signal: i32,
    pub(crate) grace: Duration,
}

/// How far a job has come.
pub(crate) struct Lifecycle {
    /// Names of hosts and their ranks.
    hosts: Vec<(String, Vec<Rank>)>,
    over: Vec<bool>,
    grace: Duration,
    failure: Option<Failure>,
    /// Since when everything is being ended, and when it will have been killed.
    ending: Option<(Instant, Instant)>,
}

impl Lifecycle {
    pub(crate) fn new(hosts: Vec<(String, Vec<Rank>)>, grace: Duration) -> Self {
        let over = vec![false; hosts.len()];
        Self { hosts, over, grace, failure: None, ending: None }
    }

    /// Takes note of what happened at `now`, and says whether everything must be ended for it.
    pub(crate) fn note(&mut self, happening: Happening, now: Instant) -> Option<EndAll> {
        match happening {
            Happening::Exited(_, ending) if ending.is_success() => None,
            Happening::Exited(rank, ending) => {
                let failure = Failure::Rank { rank, host: self.host_of(rank), ending };
                self.fail(failure, now)
            }
            Happening::NotStarted(rank, code, cause) => {
                let failure = Failure::NotStarted { rank, host: self.host_of(rank), code, cause };
                self.fail(failure, now)
            }
            Happening::HostDone(host) => {
                self.over[host] = true;
                None
            }
            Happening::HostLost(host, _) if self.over[host] => None,
            Happening::HostLost(host, cause) => {
                self.over[host] = true;
                let (name, ranks) = self.hosts[host].clone();
                self.fail(Failure::Host { host: name, ranks, cause }, now)
            }
            Happening::Interrupt(signal) if self.ending.is_some() => {
                // Asked twice: at once.
                self.ending = Some((now, now));
                Some(EndAll { signal, grace: Duration::ZERO })
            }
            Happening::Interrupt(signal) => {
                self.failure = Some(Failure::Interrupted { signal });
                Some(self.end(signal, self.grace.max(INTERRUPT_GRACE), now))
            }
        }
    }

    fn fail(&mut self, failure: Failure, now: Instant) -> Option<EndAll> {
        if self.ending.is_none() {
            self.failure = Some(failure);
            return Some(self.end(libc::SIGTERM, self.grace, now));
        }
        // A rank that was killed takes its peers with it, and word of one of them may come first. It was not us as long
        // as we have sent nothing but SIGTERM.
        let before_we_kill = self.ending.is_some_and(|(_, kill_at)| now < kill_at);
        let killed = matches!(&failure, Failure::Rank { ending: Ending::Signal(n), .. } if *n != libc::SIGTERM);
        let blamed_for_its_code = matches!(self.failure, Some(Failure::Rank { ending: Ending::Code(_), .. }));
        if before_we_kill && killed && blamed_for_its_code {
            self.failure = Some(failure);
        }
        None
    }

    fn end(&mut self, signal: i32, grace: Duration, now: Instant) -> EndAll {
        self.ending = Some((now, now + grace));
        EndAll { signal, grace }
    }

    fn host_of(&self, rank: Rank) -> String {
        let host = self.hosts.iter().find(|(_, ranks)| ranks.contains(&rank));
        host.map_or_else(|| "an unknown host".into(), |(name, _)| name.clone())
    }

    /// Whether everything is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.ending.is_some()
    }

    /// Why the job failed, if it did.
    pub(crate) fn failure(&self) -> Option<&Failure> {
        self.failure.as_ref()
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.over.iter().all(|over| *over) || self.ending.is_some_and(|(_, kill_at)| now >= kill_at + LAST_REPORTS)
    }

    /// Hosts that have not told that nothing is left there.
    pub(crate) fn unfinished(&self) -> impl Iterator<Item = &str> {
        self.hosts.iter().zip(&self.over).filter(|(_, over)| !**over).map(|((name, _), _)| name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifecycle() -> Lifecycle {
        Lifecycle::new(vec![("a".into(), vec![0, 1]), ("b".into(), vec![2, 3])], Duration::from_millis(1500))
    }

    #[test]
    fn a_job_that_goes_well_ends_when_all_hosts_are_done() {
        let (mut c, now) = (lifecycle(), Instant::now());
        for rank in 0..4 {
            assert_eq!(c.note(Happening::Exited(rank, Ending::Code(0)), now), None);
        }
        assert_eq!(c.note(Happening::HostDone(0), now), None);
        assert!(!c.is_over(now));
        c.note(Happening::HostDone(1), now);
        assert!(c.is_over(now) && c.failure().is_none());
    }

    #[test]
    fn the_first_failure_ends_all_and_is_the_one_told() {
        let (mut c, now) = (lifecycle(), Instant::now());
        let end = c.note(Happening::Exited(2, Ending::Code(3)), now);
        assert_eq!(end, Some(EndAll { signal: libc::SIGTERM, grace: Duration::from_millis(1500) }));
        assert_eq!(c.note(Happening::Exited(0, Ending::Signal(15)), now), None);
        assert_eq!(c.note(Happening::HostLost(0, "x".into()), now), None);
        assert_eq!(c.failure(), Some(&Failure::Rank { rank: 2, host: "b".into(), ending: Ending::Code(3) }));
        assert!(!c.is_over(now + Duration::from_secs(3)));
        assert!(c.is_over(now + Duration::from_secs(4)));
        assert_eq!(c.unfinished().collect::<Vec<_>>(), ["b"]);
    }

    #[test]
    fn a_killed_rank_is_blamed_before_the_peers_it_took_along() {
        let (mut c, now) = (lifecycle(), Instant::now());
        c.note(Happening::Exited(0, Ending::Code(1)), now);
        c.note(Happening::Exited(3, Ending::Signal(9)), now + Duration::from_millis(100));
        assert_eq!(c.failure().unwrap().code(), 137);
        // Our own SIGTERM, and our SIGKILL later on, blame nobody.
        let mut c = lifecycle();
        c.note(Happening::Exited(0, Ending::Code(1)), now);
        c.note(Happening::Exited(1, Ending::Signal(15)), now);
        c.note(Happening::Exited(3, Ending::Signal(9)), now + Duration::from_millis(1600));
        assert_eq!(c.failure().unwrap().code(), 1);
    }

    #[test]
    fn interrupts_are_passed_on_and_the_second_one_kills() {
        let (mut c, now) = (lifecycle(), Instant::now());
        let end = c.note(Happening::Interrupt(2), now).unwrap();
        assert_eq!((end.signal, end.grace), (2, INTERRUPT_GRACE));
        c.note(Happening::Exited(0, Ending::Code(1)), now);
        assert_eq!(c.note(Happening::Interrupt(2), now).unwrap().grace, Duration::ZERO);
        assert_eq!(c.failure().unwrap().code(), 130);
    }

    #[test]
    fn many_ranks_are_not_all_listed() {
        assert_eq!((listed(&[2, 3]), listed(&[])), ("2, 3".into(), String::new()));
        assert_eq!(listed(&(4..1004).collect::<Vec<_>>()), "4 to 1003 (1000 of them)");
    }

    #[test]
    fn a_lost_host_is_named_with_its_ranks() {
        let (mut c, now) = (lifecycle(), Instant::now());
        assert!(c.note(Happening::HostLost(1, "silent".into()), now).is_some());
        let want = Failure::Host { host: "b".into(), ranks: vec![2, 3], cause: "silent".into() };
        assert_eq!(c.failure(), Some(&want));
        c.note(Happening::HostDone(0), now);
        assert!(c.is_over(now));
    }
}
