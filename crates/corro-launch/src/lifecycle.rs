//! The life of a job of fixed size, from its first rank to its last: when all must end, when it is over, why it failed.
//!
//! Pure: events and times in, orders out. It starts nothing and sends nothing.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use corro_core::{Rank, Statement};

use crate::agent::message::Ending;
use crate::culprit::Deaths;
use crate::failure::Failure;
use crate::process_id::ProcessId;

/// How long hosts may take to tell that nothing is left, once everything there was killed.
pub(crate) const LAST_REPORTS: Duration = Duration::from_secs(2);
/// Whoever interrupts a job by hand gets at least so much time for it to save what it has.
pub(crate) const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// How long a rank may take to end by itself after others have failed because of it. It may still write its traceback, and how
/// it ends should be its own doing.
const CAUSE_TIME: Duration = Duration::from_secs(2);

/// What happens. Hosts are named by their place in the list of hosts.
#[derive(Debug)]
pub(crate) enum Happening {
    /// A rank has said why it ends, or that it can't go on because of another.
    Stated(Rank, Statement),
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
    /// Why hosts are gone, of those that are.
    lost: BTreeMap<usize, String>,
    grace: Duration,
    deaths: Deaths,
    reason: Option<Reason>,
    /// A rank because of which others have failed, and until when it may end by itself.
    awaited: Option<(Rank, Instant)>,
    /// When everything will have been killed, once all is being ended.
    kill_at: Option<Instant>,
}

impl Lifecycle {
    pub(crate) fn new(hosts: Vec<(String, Vec<Rank>)>, grace: Duration) -> Self {
        let over = vec![false; hosts.len()];
        Self {
            hosts,
            over,
            lost: BTreeMap::new(),
            grace,
            deaths: Deaths::default(),
            reason: None,
            awaited: None,
            kill_at: None,
        }
    }

    /// Takes note of what happened at `now`, and says whether everything must be ended for it.
    pub(crate) fn note(&mut self, happening: Happening, now: Instant) -> Option<EndAll> {
        match happening {
            Happening::Stated(rank, statement) => {
                let hosts = &self.hosts;
                let is_known = |rank: &Rank| hosts.iter().any(|(_, ranks)| ranks.contains(rank));
                let known = |rank| Some(rank).filter(is_known).map(ProcessId::of_rank);
                self.deaths.stated(ProcessId::of_rank(rank), statement, known);
                None
            }
            Happening::Exited(rank, ending) => {
                self.deaths.note(ProcessId::of_rank(rank), ending, now);
                self.after_exit(rank, ending, now)
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

    /// The failure of the host on which a rank ran, if it was lost: then that was the cause of the rank's end.
    fn lost_host_of(&self, rank: Rank) -> Option<Failure> {
        let at = self.hosts.iter().position(|(_, ranks)| ranks.contains(&rank))?;
        let (host, ranks) = self.hosts[at].clone();
        Some(Failure::Host { host, ranks, cause: self.lost.get(&at)?.clone() })
    }

    fn after_exit(&mut self, rank: Rank, ending: Ending, now: Instant) -> Option<EndAll> {
        if self.awaited.is_some_and(|(awaited, _)| awaited == rank) {
            return self.fail(Reason::Death, now);
        }
        if ending.is_success() {
            return None;
        }
        match self.deaths.awaited_cause(ProcessId::of_rank(rank)) {
            Some(cause) if !self.is_ending() => {
                self.reason.get_or_insert(Reason::Death);
                self.awaited.get_or_insert((cause.rank(), now + CAUSE_TIME));
                None
            }
            _ if self.awaited.is_some() => None,
            _ => self.fail(Reason::Death, now),
        }
    }

    /// Says whether everything must be ended because a rank that was waited for did not end by itself.
    pub(crate) fn look(&mut self, now: Instant) -> Option<EndAll> {
        self.awaited.filter(|(_, until)| now >= *until)?;
        self.fail(Reason::Death, now)
    }

    fn fail_host(&mut self, host: usize, cause: String, now: Instant) -> Option<EndAll> {
        self.lost.insert(host, cause.clone());
        let (name, ranks) = self.hosts[host].clone();
        self.fail(Reason::Other(Failure::Host { host: name, ranks, cause }), now)
    }

    fn fail(&mut self, reason: Reason, now: Instant) -> Option<EndAll> {
        if self.is_ending() {
            return None;
        }
        self.reason.get_or_insert(reason);
        Some(self.end(libc::SIGTERM, self.grace, now))
    }

    fn end(&mut self, signal: i32, grace: Duration, now: Instant) -> EndAll {
        self.kill_at = Some(now + grace);
        self.deaths.launcher_ends_all(now + grace);
        EndAll { signal, grace }
    }

    fn host_of(&self, rank: Rank) -> String {
        let host = self.hosts.iter().find(|(_, ranks)| ranks.contains(&rank));
        host.map_or_else(|| "an unknown host".into(), |(name, _)| name.clone())
    }

    /// Whether a moment may come at which something must be done although nothing happens.
    pub(crate) fn is_watching_the_clock(&self) -> bool {
        self.is_ending() || self.awaited.is_some()
    }

    /// Whether everything is being ended.
    fn is_ending(&self) -> bool {
        self.kill_at.is_some()
    }

    /// Why the job failed, if it did. Known for sure when it is over.
    pub(crate) fn failure(&self) -> Option<Failure> {
        match self.reason.as_ref()? {
            Reason::Other(failure) => Some(failure.clone()),
            Reason::Death => {
                let culprit = self.deaths.culprit()?;
                let rank = culprit.process.rank();
                let host = self.host_of(rank);
                Some(match culprit.ending() {
                    Some(ending) => Failure::Rank { rank, host, ending, exception: culprit.exception() },
                    None => self.lost_host_of(rank).unwrap_or_else(|| {
                        let cause = culprit.accusation.unwrap_or_else(|| "it did not end by itself".into());
                        Failure::Stuck { rank, host, cause, code: culprit.code }
                    }),
                })
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

    fn ranks(numbers: &[usize]) -> Vec<Rank> {
        numbers.iter().copied().map(Rank::new).collect()
    }

    fn exited(rank: usize, ending: Ending) -> Happening {
        Happening::Exited(Rank::new(rank), ending)
    }

    fn told(rank: usize, from: usize, text: &str) -> Happening {
        Happening::Stated(Rank::new(rank), Statement::suffers(Rank::new(from), text))
    }

    fn job() -> Lifecycle {
        Lifecycle::new(vec![("a".into(), ranks(&[0, 1])), ("b".into(), ranks(&[2, 3]))], Duration::from_millis(1500))
    }

    #[test]
    fn a_job_that_goes_well_ends_when_all_hosts_are_done() {
        let (mut job, now) = (job(), Instant::now());
        for rank in 0..4 {
            assert_eq!(job.note(exited(rank, Ending::Code(0)), now), None);
        }
        assert_eq!(job.note(Happening::HostDone(0), now), None);
        assert!(!job.is_over(now));
        job.note(Happening::HostDone(1), now);
        assert!(job.is_over(now) && job.failure().is_none());
    }

    #[test]
    fn the_first_failure_ends_all_and_is_the_one_told() {
        let (mut job, now) = (job(), Instant::now());
        let end = job.note(exited(2, Ending::Code(3)), now);
        assert_eq!(end, Some(EndAll { signal: libc::SIGTERM, grace: Duration::from_millis(1500) }));
        assert_eq!(job.note(exited(0, Ending::Signal(15)), now), None);
        assert_eq!(job.note(Happening::HostLost(0, "x".into()), now), None);
        assert_eq!(
            job.failure(),
            Some(Failure::Rank { rank: Rank::new(2), host: "b".into(), ending: Ending::Code(3), exception: None })
        );
        assert!(!job.is_over(now + Duration::from_secs(3)));
        assert!(job.is_over(now + Duration::from_secs(4)));
    }

    #[test]
    fn a_killed_rank_is_blamed_before_the_peers_it_took_along() {
        let (mut job, now) = (job(), Instant::now());
        job.note(exited(0, Ending::Code(1)), now);
        job.note(exited(3, Ending::Signal(9)), now + Duration::from_millis(100));
        assert_eq!(job.failure().unwrap().code(), 137);
    }

    #[test]
    fn the_cause_may_end_by_itself_before_all_are_ended() {
        let (mut job, now) = (job(), Instant::now());
        let exited = |rank, code| exited(rank, Ending::Code(code));
        let told = |rank, from| told(rank, from, "lost rank");
        job.note(told(0, 3), now);
        assert_eq!(job.note(exited(0, 1), now), None);
        assert!(job.is_watching_the_clock() && job.look(now).is_none());
        // Whatever else happens meanwhile.
        job.note(told(1, 3), now);
        assert_eq!((job.note(exited(1, 1), now), job.note(exited(2, 1), now)), (None, None));
        assert!(job.note(exited(3, 0), now).is_some());
        let failure = job.failure().unwrap().to_string();
        assert!(failure.starts_with("rank 3 on b has ended (exit code 0)"), "{failure}");
    }

    #[test]
    fn a_cause_that_does_not_end_is_not_waited_for_for_long() {
        let (mut job, now) = (job(), Instant::now());
        job.note(told(0, 3, "rank 3 did not come"), now);
        assert_eq!(job.note(exited(0, Ending::Code(4)), now), None);
        assert!(job.look(now + CAUSE_TIME).is_some());
        job.note(exited(3, Ending::Signal(15)), now + CAUSE_TIME);
        let failure = job.failure().unwrap();
        assert_eq!(failure.code(), 4);
        assert!(failure.to_string().contains("rank 3 on b made the others fail: rank 3 did not come"), "{failure}");
        // Unless its host is gone, as it turns out.
        job.note(Happening::HostLost(1, "no power".into()), now + CAUSE_TIME);
        assert_eq!(
            job.failure().unwrap().to_string(),
            "lost host b with rank 2, 3: no power; all other ranks were ended"
        );
    }

    #[test]
    fn interrupts_are_passed_on_and_the_second_one_kills() {
        let (mut job, now) = (job(), Instant::now());
        let end = job.note(Happening::Interrupt(2), now).unwrap();
        assert_eq!((end.signal, end.grace), (2, INTERRUPT_GRACE));
        job.note(exited(0, Ending::Code(1)), now);
        assert_eq!(job.note(Happening::Interrupt(2), now).unwrap().grace, Duration::ZERO);
        assert_eq!(job.failure().unwrap().code(), 130);
    }

    #[test]
    fn a_lost_host_is_named_with_its_ranks() {
        let (mut job, now) = (job(), Instant::now());
        assert!(job.note(Happening::HostLost(1, "silent".into()), now).is_some());
        let want = Failure::Host { host: "b".into(), ranks: ranks(&[2, 3]), cause: "silent".into() };
        assert_eq!(job.failure(), Some(want));
        job.note(Happening::HostDone(0), now);
        assert!(job.is_over(now));
    }

    #[test]
    fn an_agent_that_was_ended_is_named_and_not_its_ranks() {
        let (mut job, now) = (job(), Instant::now());
        assert!(job.note(Happening::AgentEnded(1, 15), now).is_some());
        job.note(exited(2, Ending::Signal(15)), now);
        job.note(exited(0, Ending::Code(1)), now);
        let text = job.failure().unwrap().to_string();
        assert!(text.contains("lost host b") && text.contains("its agent was ended by signal 15 (SIGTERM)"), "{text}");
        // It still tells when nothing is left there.
        job.note(Happening::HostDone(0), now);
        assert!(!job.is_over(now));
    }
}
