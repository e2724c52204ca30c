//! The life of a job of fixed size, from its first rank to its last: when all must end, when it is over, why it failed.
//!
//! Pure: events and times in, orders out. It starts nothing and sends nothing.

use std::time::{Duration, Instant};

use corro_core::Rank;

use crate::agent::message::Ending;
use crate::culprit::Deaths;
use crate::failure::Failure;

/// How long hosts may take to tell that nothing is left, once everything there was killed.
pub(crate) const LAST_REPORTS: Duration = Duration::from_secs(2);
/// Whoever interrupts a job by hand gets at least so much time for it to save what it has.
pub(crate) const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// What happens. Hosts are named by their place in the list of hosts.
#[derive(Debug)]
pub(crate) enum Happening {
    Exited(Rank, Ending),
    NotStarted(Rank, i32, String),
    HostDone(usize),
    HostLost(usize, String),
    /// Somebody has sent this signal to the agent of a host, which ends its ranks for that.
    AgentEnded(usize, i32),
    Interrupt(i32),
}

/// End everything: this signal, and SIGKILL after this time.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct EndAll {
    pub(crate) signal: i32,
    pub(crate) grace: Duration,
}

/// What made a job fail first.
#[derive(Debug)]
enum Reason {
    /// The end of a rank; whose, is asked when all is over.
    Death,
    Other(Failure),
}

/// How far a job has come.
pub(crate) struct Lifecycle {
    /// Names of hosts and their ranks.
    hosts: Vec<(String, Vec<Rank>)>,
    over: Vec<bool>,
    grace: Duration,
    deaths: Deaths,
    reason: Option<Reason>,
    /// When everything will have been killed, once all is being ended.
    kill_at: Option<Instant>,
}

impl Lifecycle {
    pub(crate) fn new(hosts: Vec<(String, Vec<Rank>)>, grace: Duration) -> Self {
        let over = vec![false; hosts.len()];
        Self { hosts, over, grace, deaths: Deaths::default(), reason: None, kill_at: None }
    }

    /// Takes note of what happened at `now`, and says whether everything must be ended for it.
    pub(crate) fn note(&mut self, happening: Happening, now: Instant) -> Option<EndAll> {
        match happening {
            Happening::Exited(rank, ending) => {
                let host = self.host_of(rank);
                self.deaths.note(rank, &host, ending, now);
                if ending.is_success() { None } else { self.fail(Reason::Death, now) }
            }
            Happening::NotStarted(rank, code, cause) => {
                let failure = Failure::NotStarted { rank, host: self.host_of(rank), code, cause };
                self.fail(Reason::Other(failure), now)
            }
            Happening::HostDone(host) => {
                self.over[host] = true;
                None
            }
            Happening::HostLost(host, _) if self.over[host] => None,
            Happening::HostLost(host, cause) => {
                self.over[host] = true;
                self.fail_host(host, cause, now)
            }
            Happening::AgentEnded(host, signal) => {
                let cause = format!("its agent was ended by {}", Ending::Signal(signal));
                self.fail_host(host, cause, now)
            }
            Happening::Interrupt(signal) if self.is_ending() => {
                // Asked twice: at once.
                Some(self.end(signal, Duration::ZERO, now))
            }
            Happening::Interrupt(signal) => {
                self.reason = Some(Reason::Other(Failure::Interrupted { signal }));
                Some(self.end(signal, self.grace.max(INTERRUPT_GRACE), now))
            }
        }
    }

    fn fail_host(&mut self, host: usize, cause: String, now: Instant) -> Option<EndAll> {
        let (name, ranks) = self.hosts[host].clone();
        self.fail(Reason::Other(Failure::Host { host: name, ranks, cause }), now)
    }

    fn fail(&mut self, reason: Reason, now: Instant) -> Option<EndAll> {
        if self.is_ending() {
            return None;
        }
        self.reason = Some(reason);
        Some(self.end(libc::SIGTERM, self.grace, now))
    }

    fn end(&mut self, signal: i32, grace: Duration, now: Instant) -> EndAll {
        self.kill_at = Some(now + grace);
        self.deaths.launcher_ends_all(now, now + grace);
        EndAll { signal, grace }
    }

    fn host_of(&self, rank: Rank) -> String {
        let host = self.hosts.iter().find(|(_, ranks)| ranks.contains(&rank));
        host.map_or_else(|| "an unknown host".into(), |(name, _)| name.clone())
    }

    /// Whether everything is being ended.
    pub(crate) fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Why the job failed, if it did. Known for sure when it is over.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.reason.as_ref()? {
            Reason::Other(failure) => Some(failure.clone()),
            Reason::Death => {
                let death = self.deaths.culprit()?;
                Some(Failure::Rank { rank: death.process, host: death.host.clone(), ending: death.ending })
            }
        }
    }

    /// Whether nothing is left to wait for.
    pub(crate) fn is_over(&self, now: Instant) -> bool {
        self.over.iter().all(|over| *over) || self.kill_at.is_some_and(|kill_at| now >= kill_at + LAST_REPORTS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Lifecycle {
        Lifecycle::new(vec![("a".into(), vec![0, 1]), ("b".into(), vec![2, 3])], Duration::from_millis(1500))
    }

    #[test]
    fn a_job_that_goes_well_ends_when_all_hosts_are_done() {
        let (mut job, now) = (job(), Instant::now());
        for rank in 0..4 {
            assert_eq!(job.note(Happening::Exited(rank, Ending::Code(0)), now), None);
        }
        assert_eq!(job.note(Happening::HostDone(0), now), None);
        assert!(!job.is_over(now));
        job.note(Happening::HostDone(1), now);
        assert!(job.is_over(now) && job.failure().is_none());
    }

    #[test]
    fn the_first_failure_ends_all_and_is_the_one_told() {
        let (mut job, now) = (job(), Instant::now());
        let end = job.note(Happening::Exited(2, Ending::Code(3)), now);
        assert_eq!(end, Some(EndAll { signal: libc::SIGTERM, grace: Duration::from_millis(1500) }));
        assert_eq!(job.note(Happening::Exited(0, Ending::Signal(15)), now), None);
        assert_eq!(job.note(Happening::HostLost(0, "x".into()), now), None);
        assert_eq!(job.failure(), Some(Failure::Rank { rank: 2, host: "b".into(), ending: Ending::Code(3) }));
        assert!(!job.is_over(now + Duration::from_secs(3)));
        assert!(job.is_over(now + Duration::from_secs(4)));
    }

    #[test]
    fn a_killed_rank_is_blamed_before_the_peers_it_took_along() {
        let (mut job, now) = (job(), Instant::now());
        job.note(Happening::Exited(0, Ending::Code(1)), now);
        job.note(Happening::Exited(3, Ending::Signal(9)), now + Duration::from_millis(100));
        assert_eq!(job.failure().unwrap().code(), 137);
    }

    #[test]
    fn interrupts_are_passed_on_and_the_second_one_kills() {
        let (mut job, now) = (job(), Instant::now());
        let end = job.note(Happening::Interrupt(2), now).unwrap();
        assert_eq!((end.signal, end.grace), (2, INTERRUPT_GRACE));
        job.note(Happening::Exited(0, Ending::Code(1)), now);
        assert_eq!(job.note(Happening::Interrupt(2), now).unwrap().grace, Duration::ZERO);
        assert_eq!(job.failure().unwrap().code(), 130);
    }

    #[test]
    fn a_lost_host_is_named_with_its_ranks() {
        let (mut job, now) = (job(), Instant::now());
        assert!(job.note(Happening::HostLost(1, "silent".into()), now).is_some());
        let want = Failure::Host { host: "b".into(), ranks: vec![2, 3], cause: "silent".into() };
        assert_eq!(job.failure(), Some(want));
        job.note(Happening::HostDone(0), now);
        assert!(job.is_over(now));
    }

    #[test]
    fn an_agent_that_was_ended_is_named_and_not_its_ranks() {
        let (mut job, now) = (job(), Instant::now());
        assert!(job.note(Happening::AgentEnded(1, 15), now).is_some());
        job.note(Happening::Exited(2, Ending::Signal(15)), now);
        job.note(Happening::Exited(0, Ending::Code(1)), now);
        let text = job.failure().unwrap().to_string();
        assert!(text.contains("lost host b") && text.contains("its agent was ended by signal 15 (SIGTERM)"), "{text}");
        // It still tells when nothing is left there.
        job.note(Happening::HostDone(0), now);
        assert!(!job.is_over(now));
    }
}
