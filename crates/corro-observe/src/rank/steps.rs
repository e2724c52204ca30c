//! The ends of steps since the last note, a few of them if there were many.
//!
//! What a step is: where the front says so (an optimizer that has its gradients), that. Else a step has ended when a tensor comes
//! again, as in the agreement's own plans. Pure.

use std::collections::HashSet;
use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use crate::note::{MAX_MARKS, Mark};

/// More different tensors than this in one step, and steps are not found by them.
const MAX_TENSORS: usize = 65_536;

/// See the module.
#[derive(Debug, Default)]
pub struct Steps {
    count: u64,
    told: bool,
    marks: Vec<Mark>,
    /// Only every so many steps is marked: the same steps on all ranks, since this is a power of two.
    stride: u64,
    /// The tensors since the last step, where nobody tells.
    seen: HashSet<u64>,
}

impl Steps {
    /// The front says that a step has ended. `now` gives the rest of the mark.
    pub fn told(&mut self, now: Mark) {
        if !self.told {
            // What was guessed before is another kind of step.
            *self = Self { told: true, ..Self::default() };
        }
        self.ended(now);
    }

    /// A tensor has run, and this is how things stood before that. A step may have ended, if nobody tells.
    pub fn ran(&mut self, name: &str, before: Mark) {
        if self.told {
            return;
        }
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let tensor = hasher.finish();
        if !self.seen.insert(tensor) {
            self.seen.clear();
            self.seen.insert(tensor);
            self.ended(before);
        } else if self.seen.len() > MAX_TENSORS {
            self.seen.clear();
        }
    }

    fn ended(&mut self, now: Mark) {
        self.count += 1;
        let stride = self.stride.max(1);
        if !self.count.is_multiple_of(stride) {
            return;
        }
        if self.marks.len() == MAX_MARKS {
            self.stride = stride * 2;
            let stride = self.stride;
            self.marks.retain(|mark| mark.step.is_multiple_of(stride));
            if !self.count.is_multiple_of(stride) {
                return;
            }
        }
        self.marks.push(Mark { step: self.count, ..now });
    }

    /// Whether the front says when steps end.
    pub fn are_told(&self) -> bool {
        self.told
    }

    /// What has ended since the last time.
    pub fn take(&mut self) -> Vec<Mark> {
        if self.marks.len() < MAX_MARKS / 4 {
            self.stride = (self.stride / 2).max(1);
        }
        std::mem::take(&mut self.marks)
    }

    /// What was taken could not be told: it is told next time, if nothing newer takes its place.
    pub fn put_back(&mut self, mut marks: Vec<Mark>) {
        marks.append(&mut self.marks);
        let surplus = marks.len().saturating_sub(MAX_MARKS);
        marks.drain(..surplus);
        self.marks = marks;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(at: u64) -> Mark {
        Mark { at, ..Mark::default() }
    }

    #[test]
    fn a_step_ends_when_a_tensor_comes_again() {
        let mut steps = Steps::default();
        let names = ["broadcast", "a", "b", "a", "b", "a", "b"];
        for (time, name) in names.iter().enumerate() {
            steps.ran(name, at(time as u64));
        }
        let marks: Vec<(u64, u64)> = steps.take().iter().map(|mark| (mark.step, mark.at)).collect();
        assert_eq!(marks, [(1, 3), (2, 5)]);
    }

    #[test]
    fn what_a_front_says_counts_alone() {
        let mut steps = Steps::default();
        for time in 0..5 {
            steps.ran("a", at(time));
        }
        steps.told(at(7));
        steps.ran("a", at(8));
        steps.told(at(9));
        let marks: Vec<(u64, u64)> = steps.take().iter().map(|mark| (mark.step, mark.at)).collect();
        assert_eq!(marks, [(1, 7), (2, 9)]);
        assert!(steps.are_told());
    }

    #[test]
    fn many_steps_give_few_marks_and_the_same_ones_on_ranks_that_differ() {
        let (mut quick, mut slow) = (Steps::default(), Steps::default());
        let (mut of_quick, mut of_slow) = (Vec::new(), Vec::new());
        for step in 1..=10_000 {
            quick.told(at(step));
            slow.told(at(step));
            if step % 999 == 0 {
                of_quick.extend(quick.take());
            }
            if step % 100 == 0 {
                of_slow.extend(slow.take());
            }
        }
        let steps = |marks: &[Mark]| marks.iter().map(|mark| mark.step).collect::<Vec<_>>();
        assert!(of_quick.len() <= 11 * MAX_MARKS);
        let common = steps(&of_quick).iter().filter(|step| steps(&of_slow).contains(step)).count();
        assert!(common > 100, "{common}");
    }

    #[test]
    fn what_could_not_be_told_is_told_later() {
        let mut steps = Steps::default();
        steps.told(at(1));
        let taken = steps.take();
        steps.told(at(2));
        steps.put_back(taken);
        assert_eq!(steps.take().iter().map(|mark| mark.step).collect::<Vec<_>>(), [1, 2]);
    }
}
