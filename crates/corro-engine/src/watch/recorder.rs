//! The flight recorder: the last operations of this rank in one process set, always kept, read when something went wrong.
//!
//! Owns a ring of fixed size. It never reads a clock, takes a lock or writes a file: the engine calls it under the lock it
//! holds anyway, with the time it has read once for all that happened, and prints the dump. Recording allocates nothing
//! once a slot has held a name as long.
//!
//! Operations are numbered from 0 in the order in which they were submitted on this rank; those of different ranks are
//! told apart by name, not by number. An operation that is still unfinished when the ring comes round to it is what a
//! reader will look for first, so it is put aside, not overwritten.

use std::collections::VecDeque;
use std::fmt::Write;
use std::time::Duration;

use corro_core::{Error, Rank};
use corro_planes::HOST;

use super::timeline::escape;

/// How many operations are kept unless told otherwise.
pub const CAPACITY: usize = 1024;

/// How many errors are kept.
const ERRORS: usize = 16;

/// How far an operation has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

impl State {
    /// Whether nothing more will come.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Done | Self::Failed)
    }

    /// Its name in dumps.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Submitted => "submitted",
            Self::Agreed => "agreed",
            Self::Running => "running",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }
}

/// One operation. Times are nanoseconds on the engine's clock: half as long as a [`Duration`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number on this rank.
    pub sequence: u64,
    /// Its name.
    pub name: String,
    /// What it is, in one word.
    pub kind: &'static str,
    /// Which plane it was last run by; empty if it never was.
    pub plane: &'static str,
    /// Bytes of the tensor.
    pub bytes: usize,
    /// How far it has come.
    pub state: State,
    /// When it was submitted.
    pub submitted: u64,
    /// When it was agreed on, began to run and ended; 0 for what has not happened.
    pub agreed: u64,
    /// See `agreed`.
    pub running: u64,
    /// See `agreed`.
    pub ended: u64,
}

impl Entry {
    fn come_to(&mut self, state: State, now: u64) {
        self.state = state;
        match state {
            State::Submitted => self.submitted = now,
            State::Agreed => self.agreed = now,
            // Whoever runs it elsewhere says so next.
            State::Running => (self.running, self.plane) = (now, HOST),
            State::Done | State::Failed => self.ended = now,
        }
    }

    /// When it came to the state it is in.
    pub const fn changed(&self) -> u64 {
        match self.state {
            State::Submitted => self.submitted,
            State::Agreed => self.agreed,
            State::Running => self.running,
            State::Done | State::Failed => self.ended,
        }
    }
}

/// The last operations of this rank in one process set.
#[derive(Debug)]
pub struct Recorder {
    set: u32,
    /// Operation n is at n modulo the capacity, which is a power of two.
    ring: Vec<Entry>,
    capacity: usize,
    next: u64,
    /// What was unfinished when the ring came round, by ascending number.
    aside: VecDeque<Entry>,
    /// How many of those have ended since.
    aside_over: usize,
    /// Why the last ones failed, by number.
    errors: VecDeque<(u64, String)>,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::new(CAPACITY)
    }
}

impl Recorder {
    /// Keeps the last `capacity` operations, rounded up to a power of two, and as many older ones that are unfinished.
    pub fn new(capacity: usize) -> Self {
        let capacity = capacity.max(1).next_power_of_two();
        let (aside, errors) = (VecDeque::new(), VecDeque::new());
        Self { set: 0, ring: Vec::with_capacity(capacity), capacity, next: 0, aside, aside_over: 0, errors }
    }

    /// The same, of another process set than the global one; dumps say so.
    #[must_use]
    pub fn of_set(self, set: u32) -> Self {
        Self { set, ..self }
    }

    /// An operation was submitted; gives its number.
    pub fn submitted(&mut self, name: &str, kind: &'static str, bytes: usize, now: Duration) -> u64 {
        let sequence = self.next;
        self.next += 1;
        let place = sequence as usize & (self.capacity - 1);
        if self.ring.get(place).is_some_and(|old| !old.state.is_over()) {
            self.put_aside(place);
        }
        let (state, submitted) = (State::Submitted, nanos(now));
        match self.ring.get_mut(place) {
            Some(slot) => {
                // Written over field by field: the name keeps its memory, and has often been the same tensor's before.
                slot.name.clear();
                slot.name.push_str(name);
                (slot.sequence, slot.kind, slot.plane, slot.bytes, slot.state) = (sequence, kind, "", bytes, state);
                (slot.submitted, slot.agreed, slot.running, slot.ended) = (submitted, 0, 0, 0);
            }
            None => {
                let (name, agreed, running, ended) = (name.to_owned(), 0, 0, 0);
                let entry = Entry { sequence, name, kind, plane: "", bytes, state, submitted, agreed, running, ended };
                self.ring.push(entry);
            }
        }
        sequence
    }

    /// An operation has come further. Nothing happens if it is no longer kept.
    pub fn came_to(&mut self, sequence: u64, state: State, now: Duration) {
        match self.ring.get_mut(sequence as usize & (self.capacity - 1)) {
            Some(entry) if entry.sequence == sequence => entry.come_to(state, nanos(now)),
            _ => self.came_to_aside(sequence, state, nanos(now)),
        }
    }

    /// An operation that is under way runs on this plane. Nothing happens if it is no longer kept among the last ones.
    pub fn runs_on(&mut self, sequence: u64, plane: &'static str) {
        let entry = self.ring.get_mut(sequence as usize & (self.capacity - 1));
        if let Some(entry) = entry.filter(|entry| entry.sequence == sequence) {
            entry.plane = plane;
        }
    }

    /// An operation has failed, and why: the dump tells, as long as it is among the last that did.
    pub fn failed(&mut self, sequence: u64, error: &Error, now: Duration) {
        self.came_to(sequence, State::Failed, now);
        if self.errors.len() == ERRORS {
            self.errors.pop_front();
        }
        self.errors.push_back((sequence, error.to_string()));
    }

    #[cold]
    fn put_aside(&mut self, place: usize) {
        if self.aside.len() == self.capacity {
            // Clearing up costs a walk, so it waits until it frees a quarter; the oldest unfinished ones tell most.
            if self.aside_over * 4 < self.capacity {
                return;
            }
            self.aside.retain(|e| !e.state.is_over());
            self.aside_over = 0;
        }
        self.aside.push_back(self.ring[place].clone());
    }

    #[cold]
    fn came_to_aside(&mut self, sequence: u64, state: State, now: u64) {
        let Ok(found) = self.aside.binary_search_by_key(&sequence, |e| e.sequence) else { return };
        self.aside_over += usize::from(state.is_over() && !self.aside[found].state.is_over());
        self.aside[found].come_to(state, now);
        while self.aside.front().is_some_and(|e| e.state.is_over()) {
            self.aside.pop_front();
            self.aside_over -= 1;
        }
    }

    /// The operations kept, oldest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        let oldest = self.next as usize & (self.capacity - 1);
        // Until the ring is full the oldest is the first.
        let (newer, older) = self.ring.split_at(if self.ring.len() < self.capacity { 0 } else { oldest });
        self.aside.iter().chain(older).chain(newer)
    }

    /// What is unfinished, oldest first; then what has ended, newest first.
    pub fn by_interest(&self) -> Vec<&Entry> {
        let (over, mut all): (Vec<_>, Vec<_>) = self.entries().partition(|e| e.state.is_over());
        all.extend(over.into_iter().rev());
        all
    }

    /// What this rank did last and is in, in one line for other ranks' stall reports.
    pub fn last(&self, now: Duration) -> String {
        let Some(last) = self.entries().last() else { return "has submitted nothing yet".into() };
        let told = |e: &Entry, since: u64| {
            format!("{} {} {:.1} s ago", e.kind.to_lowercase(), e.name.escape_debug(), seconds(since, now))
        };
        let open = self.entries().filter(|e| !e.state.is_over());
        // The oldest of those that came furthest: what runs, or else what waits for others.
        let at = open.reduce(|a, b| if b.state > a.state { b } else { a });
        let mut text = format!("last submitted {} ({})", told(last, last.submitted), last.state.name());
        if let Some(at) = at
            && at.sequence != last.sequence
        {
            let _ = write!(text, ", is at {} ({})", told(at, at.changed()), at.state.name());
        }
        text
    }

    fn error(&self, sequence: u64) -> Option<&str> {
        self.errors.iter().find(|e| e.0 == sequence).map(|e| e.1.as_str())
    }

    /// All of it as a table, for a log: what is unfinished first.
    pub fn dump(&self, rank: Rank, now: Duration) -> String {
        let all = self.by_interest();
        let open = all.iter().filter(|e| !e.state.is_over()).count();
        let (kept, made, set) = (all.len(), self.next, self.set);
        let mut text = format!(
            "rank {rank}, process set {set}: {kept} of {made} operations are kept, {open} of them unfinished\n\
             {:>10} {:>9} {:>12} {:>15} {:>14} {:>13} {:>8} name\n",
            "sequence", "state", "for s", "submitted s ago", "bytes", "kind", "plane",
        );
        for e in all {
            let (state, since) = (seconds(e.changed(), now), seconds(e.submitted, now));
            // A name is the user's: a line break in it must not look like another operation.
            let name = e.name.escape_debug();
            let _ = write!(
                text,
                "{:>10} {:>9} {state:>12.6} {since:>15.6} {:>14} {:>13} {:>8} {name}",
                e.sequence,
                e.state.name(),
                e.bytes,
                e.kind,
                if e.plane.is_empty() { "-" } else { e.plane },
            );
            if let Some(error) = self.error(e.sequence) {
                let _ = write!(text, ": {}", error.escape_debug());
            }
            text.push('\n');
        }
        text
    }

    /// All of it for programs, one JSON object a line: what is unfinished first. Times as the engine's clock gave them;
    /// those that have not come are left out.
    pub fn json_lines(&self, rank: Rank) -> String {
        let mut text = String::new();
        for e in self.by_interest() {
            let (set, sequence, bytes, kind, state) = (self.set, e.sequence, e.bytes, e.kind, e.state.name());
            let _ = write!(
                text,
                r#"{{"rank":{rank},"set":{set},"sequence":{sequence},"state":"{state}","kind":"{kind}","bytes":{bytes},"name":"{}","submitted_ns":{}"#,
                escape(&e.name),
                e.submitted
            );
            for (what, time) in [("agreed", e.agreed), ("running", e.running), ("ended", e.ended)] {
                if time != 0 {
                    let _ = write!(text, r#","{what}_ns":{time}"#);
                }
            }
            if !e.plane.is_empty() {
                let _ = write!(text, r#","plane":"{}""#, e.plane);
            }
            if let Some(error) = self.error(e.sequence) {
                let _ = write!(text, r#","error":"{}""#, escape(error));
            }
            text.push_str("}\n");
        }
        text
    }
}

/// 584 years are enough.
const fn nanos(time: Duration) -> u64 {
    time.as_secs().wrapping_mul(1_000_000_000).wrapping_add(time.subsec_nanos() as u64)
}

fn seconds(from: u64, to: Duration) -> f64 {
    nanos(to).saturating_sub(from) as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn submit(r: &mut Recorder, name: &str, now: Duration) -> u64 {
        r.submitted(name, "ALLGATHER", 40_000, now)
    }

    fn kept(r: &Recorder) -> Vec<(u64, &str, State)> {
        r.entries().map(|e| (e.sequence, e.name.as_str(), e.state)).collect()
    }

    #[test]
    fn keeps_the_last_ones_and_their_states() {
        let mut r = Recorder::new(4);
        assert_eq!(r.last(ms(0)), "has submitted nothing yet");
        for i in 0..6 {
            assert_eq!(submit(&mut r, &format!("t{i}"), ms(i)), i);
            r.came_to(i, State::Done, ms(10 + i));
        }
        r.came_to(0, State::Failed, ms(99)); // gone: nothing happens
        r.came_to(99, State::Failed, ms(99)); // not yet: nothing happens
        r.came_to(4, State::Failed, ms(20));
        let done = State::Done;
        assert_eq!(kept(&r), [(2, "t2", done), (3, "t3", done), (4, "t4", State::Failed), (5, "t5", done)]);
    }

    #[test]
    fn what_is_stuck_stays_however_much_comes_after() {
        let mut r = Recorder::new(4);
        let stuck = submit(&mut r, "stuck", ms(1));
        for i in 0..100 {
            let n = submit(&mut r, "later", ms(2 + i));
            r.came_to(n, State::Done, ms(3 + i));
        }
        assert_eq!(kept(&r)[0], (stuck, "stuck", State::Submitted));
        assert_eq!(r.by_interest()[0].sequence, stuck);
        r.came_to(stuck, State::Agreed, ms(150));
        assert_eq!(
            r.last(ms(250)),
            "last submitted allgather later 0.1 s ago (done), is at allgather stuck 0.1 s ago (agreed)"
        );
        r.came_to(stuck, State::Done, ms(200));
        assert!(kept(&r).iter().all(|e| e.1 == "later"));
    }

    #[test]
    fn dumps_say_what_is_unfinished_first() {
        let mut r = Recorder::new(8).of_set(3);
        for (name, state) in [("a", State::Done), ("b", State::Running), ("c\n\"", State::Failed), ("d", State::Agreed)]
        {
            let n = submit(&mut r, name, ms(1000));
            r.came_to(n, state, ms(1500));
        }
        r.runs_on(1, "nccl");
        r.failed(2, &Error::Usage("no \"c\"".into()), ms(1600));
        let dump = r.dump(Rank::new(7), ms(3000));
        assert!(
            dump.starts_with("rank 7, process set 3: 4 of 4 operations are kept, 2 of them unfinished\n"),
            "{dump}"
        );
        let rows: Vec<Vec<&str>> = dump.lines().skip(2).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(rows[0], ["1", "running", "1.500000", "2.000000", "40000", "ALLGATHER", "nccl", "b"]);
        assert_eq!(rows[1][6..], ["-", "d"]);
        assert_eq!(rows[2][7..], ["c\\n\\\":", "no", "\\\"c\\\""]);
        assert_eq!(rows[3][7], "a");
        let lines: Vec<serde_json::Value> =
            r.json_lines(Rank::new(7)).lines().map(|l| serde_json::from_str(l).expect("valid JSON")).collect();
        assert_eq!((&lines[2]["name"], &lines[2]["error"]), (&"c\n\"".into(), &"no \"c\"".into()));
        assert_eq!((&lines[0]["running_ns"], &lines[0]["set"]), (&1_500_000_000.into(), &3.into()));
        assert!(lines[0].get("ended_ns").is_none());
        assert_eq!((&lines[0]["plane"], lines[1].get("plane")), (&"nccl".into(), None));
    }

    proptest! {
        /// Against the plain idea: a list of everything, of which the last `capacity` and the oldest unfinished matter.
        #[test]
        fn it_is_the_tail_of_a_full_log(
            capacity in 1usize..20,
            steps in proptest::collection::vec((any::<bool>(), 0u64..80, 1usize..5), 0..300),
        ) {
            let states = [State::Submitted, State::Agreed, State::Running, State::Done, State::Failed];
            let mut recorder = Recorder::new(capacity);
            let mut log: Vec<State> = Vec::new();
            for (now, (submits, which, state)) in (0..).map(ms).zip(steps) {
                if submits {
                    submit(&mut recorder, &format!("t{}", log.len()), now);
                    log.push(State::Submitted);
                } else if let Some(known) = log.get_mut(which as usize)
                    && !known.is_over()
                {
                    *known = states[state];
                    recorder.came_to(which, states[state], now);
                }
            }
            let capacity = capacity.next_power_of_two();
            let entries: Vec<_> = recorder.entries().collect();
            prop_assert!(entries.iter().map(|e| e.sequence).is_sorted());
            prop_assert!(entries.iter().all(|e| e.state == log[e.sequence as usize]));
            let own_name = |e: &&Entry| e.name[1..] == e.sequence.to_string();
            prop_assert!(entries.iter().all(own_name));
            prop_assert!(entries.len() <= 2 * capacity);
            let keeps = |n: u64| entries.iter().any(|e| e.sequence == n);
            prop_assert!((log.len().saturating_sub(capacity) as u64..log.len() as u64).all(keeps));
            if log.len() <= 2 * capacity {
                prop_assert!(log.iter().zip(0..).all(|(state, n)| state.is_over() || keeps(n)));
            }
        }
    }
}
