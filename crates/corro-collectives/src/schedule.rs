//! What one rank sends and receives, in program order: the plan of an algorithm, with no I/O in it.
//!
//! An algorithm writes its steps as if they ran one after the other. The schedule works out which step must wait for
//! which: a send waits for what was received into its bytes, a receive for whoever still needs or fills them. Nothing
//! else waits, so the executor runs steps as early as the data allow, and long messages, cut into segments, flow
//! through several steps at once.
//!
//! Between two ranks, messages in one direction are matched by their order, so both ends must list them alike.
//! `tests::play` plays the schedules of all ranks against each other without a network.

use std::collections::BTreeMap;
use std::ops::Range;

/// Longest message: a pipeline wants many, the header and the wake-ups want few. A multiple of every element's size.
pub(crate) const SEGMENT: usize = 256 << 10;

/// What to do with bytes that arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Put them in place.
    Store,
    /// `mine = op(mine, theirs)`.
    Reduce,
    /// `mine = op(theirs, mine)`: where two ranks compute the same value, both must do so in the same order.
    ReduceUnder,
}

/// One thing to do. Peers are member numbers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Send a part of the main buffer.
    Send { peer: usize, range: Range<usize> },
    /// Send a part of the input, which never changes.
    SendInput { peer: usize, range: Range<usize> },
    /// Receive into the main buffer; `last`: the value is complete then, and is scaled.
    Receive { peer: usize, range: Range<usize>, action: Action, last: bool },
}

/// The steps between this rank and one peer, in each direction, as indices.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) peer: usize,
    pub(crate) sends: Vec<usize>,
    pub(crate) receives: Vec<usize>,
}

/// A finished plan.
#[derive(Debug)]
pub(crate) struct Schedule {
    pub(crate) steps: Vec<Step>,
    /// `waits[i]`: the steps that must be done before step `i` starts.
    pub(crate) waits: Vec<Vec<usize>>,
    pub(crate) lanes: Vec<Lane>,
}

/// Writes a [`Schedule`].
#[derive(Default)]
pub(crate) struct Builder {
    steps: Vec<Step>,
    waits: Vec<Vec<usize>>,
    /// The bytes touched so far, as intervals that do not overlap: who filled them last, who has to read them since.
    touched: BTreeMap<usize, Touched>,
}

#[derive(Clone)]
struct Touched {
    end: usize,
    writer: Option<usize>,
    readers: Vec<usize>,
}

impl Builder {
    /// Sends `range` of the main buffer to `peer`.
    pub(crate) fn send(&mut self, peer: usize, range: Range<usize>) {
        for part in segments(range) {
            let step = self.steps.len();
            let mut waits = Vec::new();
            self.visit(&part, |touched| {
                waits.extend(touched.writer);
                touched.readers.push(step);
            });
            self.push(Step::Send { peer, range: part }, waits);
        }
    }

    /// Sends `range` of the input to `peer`.
    pub(crate) fn send_input(&mut self, peer: usize, range: Range<usize>) {
        for part in segments(range) {
            self.push(Step::SendInput { peer, range: part }, Vec::new());
        }
    }

    /// Receives `range` of the main buffer from `peer`.
    pub(crate) fn receive(&mut self, peer: usize, range: Range<usize>, action: Action, last: bool) {
        for part in segments(range) {
            let step = self.steps.len();
            let mut waits = Vec::new();
            self.visit(&part, |touched| {
                waits.extend(touched.writer.replace(step));
                waits.append(&mut touched.readers);
            });
            self.push(Step::Receive { peer, range: part, action, last }, waits);
        }
    }

    pub(crate) fn finish(self) -> Schedule {
        let mut lanes: Vec<Lane> = Vec::new();
        for (i, step) in self.steps.iter().enumerate() {
            let (Step::Send { peer, .. } | Step::SendInput { peer, .. } | Step::Receive { peer, .. }) = step;
            let lane = match lanes.iter().position(|l| l.peer == *peer) {
                Some(at) => at,
                None => {
                    lanes.push(Lane { peer: *peer, sends: vec![], receives: vec![] });
                    lanes.len() - 1
                }
            };
            match step {
                Step::Receive { .. } => lanes[lane].receives.push(i),
                _ => lanes[lane].sends.push(i),
            }
        }
        Schedule { steps: self.steps, waits: self.waits, lanes }
    }

    fn push(&mut self, step: Step, mut waits: Vec<usize>) {
        waits.sort_unstable();
        waits.dedup();
        self.steps.push(step);
        self.waits.push(waits);
    }

    /// Calls `touch` for each interval of `range`, after cutting intervals so that they fit.
    fn visit(&mut self, range: &Range<usize>, mut touch: impl FnMut(&mut Touched)) {
        self.cut(range.start);
        self.cut(range.end);
        let mut at = range.start;
        while at < range.end {
            let next = self.touched.range(at..range.end).next().map_or(range.end, |(start, _)| *start);
            if next > at {
                self.touched.insert(at, Touched { end: next, writer: None, readers: vec![] });
            }
            let Some(interval) = self.touched.get_mut(&at) else { break };
            touch(interval);
            at = interval.end;
        }
    }

    fn cut(&mut self, at: usize) {
        if let Some((_, interval)) = self.touched.range_mut(..at).next_back()
            && interval.end > at
        {
            let right = interval.clone();
            interval.end = at;
            self.touched.insert(at, right);
        }
    }
}

/// `range` cut into messages. Both ends of a message cut ranges of equal length, so they cut alike.
fn segments(range: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(SEGMENT).map(move |start| start..(start + SEGMENT).min(end))
}

impl Schedule {
    /// Bytes this rank sends.
    #[cfg(test)]
    pub(crate) fn bytes_sent(&self) -> usize {
        self.steps
            .iter()
            .map(|s| match s {
                Step::Send { range, .. } | Step::SendInput { range, .. } => range.len(),
                Step::Receive { .. } => 0,
            })
            .sum()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::collections::VecDeque;

    use super::*;

    /// Plays the schedules of all ranks on vectors of bytes (reduce = wrapping add), picking runnable steps in an order
    /// that `seed` decides, and gives the main buffers at the end. Panics if they get stuck: they would hang.
    pub(crate) fn play(schedules: &[Schedule], inputs: &[Vec<u8>], mains: &mut [Vec<u8>], seed: u64) {
        let n = schedules.len();
        let mut random = seed | 1;
        let mut next = move |below: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % below as u64) as usize
        };
        let mut done: Vec<Vec<bool>> = schedules.iter().map(|s| vec![false; s.steps.len()]).collect();
        let mut wires: Vec<Vec<VecDeque<Vec<u8>>>> = vec![vec![VecDeque::new(); n]; n];
        let total: usize = schedules.iter().map(|s| s.steps.len()).sum();
        for _ in 0..total {
            let mut runnable = Vec::new();
            for (rank, schedule) in schedules.iter().enumerate() {
                for lane in &schedule.lanes {
                    for (queue, receives) in [(&lane.sends, false), (&lane.receives, true)] {
                        let Some(step) = queue.iter().find(|s| !done[rank][**s]) else { continue };
                        let ready = schedule.waits[*step].iter().all(|w| done[rank][*w]);
                        if ready && (!receives || !wires[lane.peer][rank].is_empty()) {
                            runnable.push((rank, *step));
                        }
                    }
                }
            }
            assert!(!runnable.is_empty(), "stuck: seed {seed}");
            let (rank, step) = runnable[next(runnable.len())];
            match &schedules[rank].steps[step] {
                Step::Send { peer, range } => wires[rank][*peer].push_back(mains[rank][range.clone()].to_vec()),
                Step::SendInput { peer, range } => wires[rank][*peer].push_back(inputs[rank][range.clone()].to_vec()),
                Step::Receive { peer, range, action, .. } => {
                    let bytes = wires[*peer][rank].pop_front().unwrap();
                    assert_eq!(bytes.len(), range.len(), "lengths differ: seed {seed}");
                    for (mine, theirs) in mains[rank][range.clone()].iter_mut().zip(bytes) {
                        *mine = if *action == Action::Store { theirs } else { mine.wrapping_add(theirs) };
                    }
                }
            }
            done[rank][step] = true;
        }
        assert!(wires.iter().flatten().all(VecDeque::is_empty), "messages nobody received: seed {seed}");
    }

    #[test]
    fn a_send_waits_for_what_it_sends_and_a_receive_for_who_reads() {
        let mut b = Builder::default();
        b.receive(1, 0..10, Action::Store, false); // 0
        b.receive(2, 10..20, Action::Store, false); // 1
        b.send(3, 5..15); // 2
        b.receive(1, 0..6, Action::Reduce, false); // 3
        b.send(3, 16..20); // 4
        let s = b.finish();
        assert_eq!(s.waits, [vec![], vec![], vec![0, 1], vec![0, 2], vec![1]]);
        assert_eq!(s.lanes.len(), 3);
    }

    #[test]
    fn long_ranges_are_cut_alike_at_both_ends() {
        let mut a = Builder::default();
        a.send(1, 100..100 + 3 * SEGMENT + 5);
        let mut b = Builder::default();
        b.receive(0, 0..3 * SEGMENT + 5, Action::Store, false);
        assert_eq!(a.finish().steps.len(), 4);
        assert_eq!(b.finish().steps.len(), 4);
    }
}
