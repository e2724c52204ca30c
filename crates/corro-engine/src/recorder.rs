//! The flight recorder: the last operations of this rank, always kept, read when something went wrong.
//!
//! A ring of fixed size; recording never allocates once a slot has held a name as long. Operations are numbered from 0
//! in the order in which they were submitted; those of different ranks are told apart by name, not by number.

use std::collections::VecDeque;
use std::time::Duration;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Submitted, not yet agreed on.
    Submitted,
    /// Agreed on, waiting for its turn.
    Agreed,
    /// Under way.
    Running,
    /// Ended well.
    Done,
    /// Ended with an error.
    Failed,
}

/// One operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number on this rank.
    pub sequence: u64,
    /// Its name.
    pub name: String,
    /// What it is, in one word.
    pub kind: &'static str,
    /// Bytes of the tensor.
    pub bytes: usize,
    /// How far it has come.
    pub state: State,
    /// When it was submitted.
    pub submitted: Duration,
    /// When its state last changed.
    pub changed: Duration,
}

/// The last operations of this rank.
#[derive(Debug)]
pub struct Recorder {
    entries: VecDeque<Entry>,
    capacity: usize,
    next: u64,
}

impl Recorder {
    /// Keeps the last `capacity` operations (at least one).
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1);
        Self { entries: VecDeque::with_capacity(capacity), capacity, next: 0 }
    }

    /// An operation was submitted; gives its number.
    pub fn submitted(&mut self, name: &str, kind: &'static str, bytes: usize, now: Duration) -> u64 {
        let sequence = self.next;
        self.next += 1;
        // The oldest entry is used again, with its string.
        let recycled = if self.entries.len() == self.capacity { self.entries.pop_front() } else { None };
        let mut text = recycled.map(|e| e.name).unwrap_or_default();
        text.clear();
        text.push_str(name);
        let state = State::Submitted;
        self.entries.push_back(Entry { sequence, name: text, kind, bytes, state, submitted: now, changed: now });
        sequence
    }

    /// An operation has come further. Nothing happens if it is no longer kept.
    pub fn came_to(&mut self, sequence: u64, state: State, now: Duration) {
        let oldest = self.next - self.entries.len() as u64;
        if let Some(entry) = sequence.checked_sub(oldest).and_then(|i| self.entries.get_mut(i as usize)) {
            entry.state = state;
            entry.changed = now;
        }
    }

    /// The operations kept, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter()
    }

    /// What this rank did last, in one line for a stall report.
    pub fn last(&self, now: Duration) -> String {
        match self.entries.back() {
            None => "has submitted nothing yet".into(),
            Some(e) => format!(
                "last submitted {} {} ({:?}) {:.1} s ago",
                e.kind.to_lowercase(),
                e.name,
                e.state,
                now.saturating_sub(e.submitted).as_secs_f64()
            ),
        }
    }

    /// All of it as text, for a file or a log.
    pub fn dump(&self, rank: usize, now: Duration) -> String {
        use std::fmt::Write;
        let mut text = format!("rank {rank}: the last {} of {} operations\n", self.entries.len(), self.next);
        for e in &self.entries {
            let _ = writeln!(
                text,
                "{:>8}  {:>10.6} s ago  {:?} for {:.6} s  {} {} ({} bytes)",
                e.sequence,
                now.saturating_sub(e.submitted).as_secs_f64(),
                e.state,
                now.saturating_sub(e.changed).as_secs_f64(),
                e.kind,
                e.name,
                e.bytes
            );
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn keeps_the_last_ones_and_their_states() {
        let mut r = Recorder::new(3);
        assert_eq!(r.last(ms(0)), "has submitted nothing yet");
        let numbers: Vec<u64> = (0..5).map(|i| r.submitted(&format!("t{i}"), "ALLREDUCE", 8, ms(i))).collect();
        assert_eq!(numbers, [0, 1, 2, 3, 4]);
        r.came_to(0, State::Failed, ms(9)); // gone: nothing happens
        r.came_to(3, State::Done, ms(10));
        let kept: Vec<_> = r.entries().map(|e| (e.sequence, e.name.as_str(), e.state)).collect();
        assert_eq!(kept, [(2, "t2", State::Submitted), (3, "t3", State::Done), (4, "t4", State::Submitted)]);
        r.came_to(99, State::Done, ms(11)); // not yet: nothing happens
    }

    #[test]
    fn says_what_a_rank_did_last() {
        let mut r = Recorder::new(8);
        let n = r.submitted("grad.7", "ALLREDUCE", 40_000, ms(1000));
        r.came_to(n, State::Running, ms(1500));
        assert_eq!(r.last(ms(3000)), "last submitted allreduce grad.7 (Running) 2.0 s ago");
        let dump = r.dump(3, ms(3000));
        assert!(
            dump.starts_with("rank 3: the last 1 of 1 operations\n") && dump.contains("grad.7 (40000 bytes)"),
            "{dump}"
        );
    }
}
