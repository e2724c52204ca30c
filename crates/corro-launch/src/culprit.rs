//! Whose end made a job fail: the one place that decides it, for jobs of fixed size and for elastic ones.
//!
//! Pure: what is known about ends of processes goes in, the one to name comes out. When one process fails, its peers fail with
//! it, and so do those whom the launcher ends; the first that is heard is not always the first that failed.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::agent::message::Ending;

/// A process that ended badly.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Death {
    /// Its rank, or its number in an elastic job.
    pub(crate) process: usize,
    pub(crate) host: String,
    pub(crate) ending: Ending,
    /// When it was heard of.
    pub(crate) at: Instant,
}

/// All that is known about the ends of a job's processes.
#[derive(Debug, Default)]
pub(crate) struct Deaths {
    /// In the order in which they were heard of.
    all: Vec<Death>,
    /// When processes were started that came later than the others.
    starts: BTreeMap<usize, Instant>,
    /// Since when the launcher sends SIGTERM, and since when SIGKILL.
    terminated: Option<Instant>,
    killed: Option<Instant>,
}

impl Deaths {
    /// A process is started while others run or have run.
    pub(crate) fn started(&mut self, process: usize, now: Instant) {
        self.starts.insert(process, now);
    }

    /// A process has ended; one that did so in good order is nobody's death.
    pub(crate) fn note(&mut self, process: usize, host: &str, ending: Ending, now: Instant) {
        let start = self.starts.remove(&process);
        if !ending.is_success() {
            // Those who died before it was started had been replaced when it failed. (Not if it was us who ended it.)
            if let Some(start) = start.filter(|_| self.terminated.is_none()) {
                self.all.retain(|death| death.at >= start);
            }
            self.all.push(Death { process, host: host.to_owned(), ending, at: now });
        }
    }

    /// The launcher ends everything from `now` on, and kills what is left at `kill_at`.
    pub(crate) fn launcher_ends_all(&mut self, now: Instant, kill_at: Instant) {
        self.terminated = Some(self.terminated.map_or(now, |at| at.min(now)));
        self.killed = Some(self.killed.map_or(kill_at, |at| at.min(kill_at)));
    }

    /// The job goes on without those who died until now: none of them is to blame for what comes.
    pub(crate) fn forgive(&mut self) {
        self.all.clear();
    }

    /// Who is to be named, if anybody died.
    ///
    /// The first that was heard of, with one exception: a process killed by a signal that the launcher has not sent comes before
    /// exit codes, for a killed one takes its peers along, and word of one of them may come first.
    pub(crate) fn culprit(&self) -> Option<&Death> {
        let first = self.all.first()?;
        if !matches!(first.ending, Ending::Code(_)) {
            return Some(first);
        }
        Some(self.all.iter().find(|death| self.was_killed_by_others(death)).unwrap_or(first))
    }

    fn was_killed_by_others(&self, death: &Death) -> bool {
        let Ending::Signal(signal) = death.ending else { return false };
        let by_our_kill = self.killed.is_some_and(|at| death.at >= at);
        let by_our_term = signal == libc::SIGTERM && self.terminated.is_some_and(|at| death.at >= at);
        !by_our_kill && !by_our_term
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn named(ends: &[(usize, Ending, u32)], ended_at: Option<u32>) -> Option<usize> {
        let start = Instant::now();
        let mut deaths = Deaths::default();
        if let Some(at) = ended_at {
            deaths.launcher_ends_all(start + MS * at, start + MS * (at + 1500));
        }
        for (process, ending, at) in ends {
            deaths.note(*process, "h", *ending, start + MS * *at);
        }
        deaths.culprit().map(|death| death.process)
    }

    #[test]
    fn the_first_that_failed_is_named() {
        assert_eq!(named(&[], None), None);
        assert_eq!(named(&[(1, Ending::Code(0), 0)], None), None);
        assert_eq!(
            named(&[(1, Ending::Code(0), 0), (2, Ending::Code(3), 1), (0, Ending::Code(1), 2)], Some(1)),
            Some(2)
        );
    }

    #[test]
    fn a_killed_process_comes_before_the_peers_it_took_along() {
        assert_eq!(named(&[(0, Ending::Code(1), 0), (3, Ending::Signal(9), 100)], Some(0)), Some(3));
        assert_eq!(named(&[(0, Ending::Signal(11), 0), (3, Ending::Signal(9), 100)], Some(0)), Some(0));
        // The launcher's own SIGTERM, and its SIGKILL later on, blame nobody.
        let ends = [(0, Ending::Code(1), 0), (1, Ending::Signal(15), 2), (3, Ending::Signal(9), 1600)];
        assert_eq!(named(&ends, Some(0)), Some(0));
    }

    #[test]
    fn those_who_were_replaced_are_not_named_when_the_replacement_fails() {
        let start = Instant::now();
        let mut deaths = Deaths::default();
        deaths.note(2, "h", Ending::Signal(9), start);
        deaths.started(3, start + MS);
        deaths.note(3, "h", Ending::Code(9), start + 2 * MS);
        assert_eq!(deaths.culprit().map(|death| death.process), Some(3));
        // But one that was there all the time may have died of the same cause, and one that we end replaces nobody.
        deaths.note(1, "h", Ending::Code(1), start + 3 * MS);
        deaths.started(4, start + 4 * MS);
        deaths.launcher_ends_all(start + 5 * MS, start + 50 * MS);
        deaths.note(4, "h", Ending::Signal(15), start + 6 * MS);
        assert_eq!(deaths.culprit().map(|death| death.process), Some(3));
    }

    #[test]
    fn those_without_whom_the_job_went_on_are_not_named() {
        let mut deaths = Deaths::default();
        deaths.note(1, "h", Ending::Signal(9), Instant::now());
        deaths.forgive();
        assert_eq!(deaths.culprit(), None);
        deaths.note(4, "h", Ending::Code(2), Instant::now());
        assert_eq!(deaths.culprit().map(|death| death.process), Some(4));
    }
}
