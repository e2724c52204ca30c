//! What is gathered for those who watch the job, between two notes to the launcher: there only if somebody does.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use corro_observe::note::{MAX_NAME, Mark, Tensor, Value, shortened};
use corro_observe::rank::{Costs, Steps, Waiting};

use super::observers::{Ran, bytes_of};

/// Values that wait for the next note; more are lost, and counted.
const MAX_VALUES: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Life {
    /// The program's threads that wait for tensors.
    pub(crate) waiting: Waiting,
    /// Tensors for which nobody waits, because a call-back was left.
    pub(crate) flying: Waiting,
    steps: Mutex<Found>,
    /// What tensors cost.
    costs: Mutex<Costs>,
    values: Mutex<VecDeque<Value>>,
    lost: AtomicU64,
    /// The signal upon which the program writes down where its threads are; 0: none.
    pub(crate) dumps: AtomicU8,
}

#[derive(Debug, Default)]
struct Found {
    steps: Steps,
    /// How things stood when the last batch had ended: all ranks are there at the same moment.
    before: Mark,
}

impl Life {
    /// Whether nothing of the program waits, so that it can't be said how much of the communication computing hides.
    pub(crate) fn is_hidden(&self, now: u64) -> bool {
        let flying = self.flying.total(now);
        flying > 0 && self.waiting.total(now) < flying / 2
    }

    fn mark(&self, at: u64, collective: u64) -> Mark {
        let waited = self.waiting.total(at);
        let waited = if self.is_hidden(at) { self.flying.total(at) } else { waited };
        Mark { step: 0, at, waited, collective }
    }

    /// The program says that a step has ended.
    pub(crate) fn step_ended(&self, now: u64, collective: u64) {
        lock(&self.steps).steps.told(self.mark(now, collective));
    }

    /// A batch of the global set has run; `collective` is the time in collectives, with its own.
    pub(crate) fn ran(&self, ran: &Ran<'_>, collective: u64) {
        let nanos = ran.ended.saturating_sub(ran.began).as_nanos() as u64;
        lock(&self.costs).ran(ran.agreed.iter().map(|tensor| (tensor.name.as_str(), bytes_of(tensor))), nanos);
        let mut found = lock(&self.steps);
        if found.steps.are_told() {
            return;
        }
        let before = found.before;
        for tensor in ran.agreed {
            found.steps.ran(&tensor.name, before);
        }
        found.before = self.mark(ran.ended.as_nanos() as u64, collective);
    }

    /// The tensors that cost most so far.
    pub(crate) fn costliest(&self, count: usize) -> Vec<Tensor> {
        lock(&self.costs).most(count)
    }

    /// The program has logged a value.
    pub(crate) fn log(&self, step: u64, name: &str, value: f64) {
        let mut values = lock(&self.values);
        if values.len() == MAX_VALUES {
            values.pop_front();
            self.lost.fetch_add(1, Relaxed);
        }
        values.push_back(Value { step, name: shortened(name, MAX_NAME), value });
    }

    /// The ends of steps since the last time, and whether the program says when those are.
    pub(crate) fn take_steps(&self) -> (Vec<Mark>, bool) {
        let mut found = lock(&self.steps);
        (found.steps.take(), found.steps.are_told())
    }

    /// They could not be told.
    pub(crate) fn put_back(&self, marks: Vec<Mark>) {
        lock(&self.steps).steps.put_back(marks);
    }

    /// The first of the values that wait, and how many were lost.
    pub(crate) fn values(&self, most: usize) -> (Vec<Value>, u64) {
        (lock(&self.values).iter().take(most).cloned().collect(), self.lost.load(Relaxed))
    }

    /// So many of them were told.
    pub(crate) fn told_values(&self, count: usize) {
        let mut values = lock(&self.values);
        let count = count.min(values.len());
        values.drain(..count);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_only_leaves_call_backs_hides_how_long_it_waits() {
        let life = Life::default();
        life.waiting.begins(0);
        life.waiting.ends(10);
        assert!(!life.is_hidden(20));
        life.flying.begins(20);
        life.flying.ends(100);
        assert!(life.is_hidden(100));
        life.step_ended(110, 7);
        let (marks, told) = life.take_steps();
        assert_eq!((marks[0].waited, marks[0].at, marks[0].collective, told), (80, 110, 7, true));
    }

    #[test]
    fn values_wait_until_they_are_told() {
        let life = Life::default();
        for step in 0..5000 {
            life.log(step, "loss", 1.0);
        }
        let (values, lost) = life.values(3);
        assert_eq!((values[0].step, values.len(), lost), (904, 3, 904));
        life.told_values(2);
        assert_eq!(life.values(1).0[0].step, 906);
    }
}
