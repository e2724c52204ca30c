//! Better plans: entries that could as well have run as one are merged.
//!
//! A plan is made of batches as they happened to form, and the first of a burst of tensors are small: the first tensor runs
//! alone because it was alone when it came. Members therefore watch the first passes of a plan ([`Observer`]) and tell the
//! root what they saw ([`Seen`], put together on the way up), which merges what is worth it ([`merge`]). Pure, like
//! everything that decides.
//!
//! Two entries may become one only if that neither blocks nor delays anybody:
//!
//! 1. *Nobody may wait in vain.* If a program waits for a tensor of one entry before it submits one of another, then merging
//!    them would stop it for ever. So a program must, in all passes that were watched, have submitted both without
//!    having learned of any result in between (a *look*: a ticket waited for or found done, a callback).
//! 2. *Overlap must not be lost.* Gradients come spread over the backward pass; to wait for the last of them would hide
//!    nothing behind the computation. An entry may wait for those behind it only as long as an entry of its own would cost,
//!    for each that is saved ([`crate::node::Rules::entry_cost`]). Bursts pass that; layers that take their time don't.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::coordinator::Time;
use crate::fusion;
use crate::matching::Agreed;

/// Passes that are watched before the first refinement. For each further one twice as many: what is merged changes the
/// times, so there is more to merge, but sooner or later it must be good.
const PASSES: usize = 4;

/// Refinements of one plan.
pub const ROUNDS: u32 = 4;

/// What a member, or all members of a part of the tree, have seen of a plan. One number for each boundary between entries.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// Whether nobody looked at a result between the first submit of the entry before and the last of the one after.
    pub blind: Vec<bool>,
    /// Microseconds from when an entry could have begun until the next could: the longest of all members.
    pub pace: Vec<u32>,
    /// Microseconds from when an entry could have begun until it did, since others ran: the shortest of all members.
    pub late: Vec<u32>,
}

impl Seen {
    /// Whether it is about a plan of so many entries.
    pub fn fits(&self, entries: usize) -> bool {
        [self.blind.len(), self.pace.len(), self.late.len()].iter().all(|len| len + 1 == entries)
    }

    /// What both have seen.
    pub fn and(&mut self, other: &Self) {
        self.blind.iter_mut().zip(&other.blind).for_each(|(mine, theirs)| *mine &= theirs);
        self.pace.iter_mut().zip(&other.pace).for_each(|(mine, theirs)| *mine = (*mine).max(*theirs));
        self.late.iter_mut().zip(&other.late).for_each(|(mine, theirs)| *mine = (*mine).min(*theirs));
    }
}

/// How an entry came to be ready in a pass.
#[derive(Clone, Copy, Debug, Default)]
struct Coming {
    /// How often the program had looked when it submitted the first tensor, and the last.
    looks: Option<(u64, u64)>,
    ready: Option<Time>,
}

/// A member's eyes on the first passes of a plan.
#[derive(Debug)]
pub struct Observer {
    /// By entry: as it comes, for the pass that has not begun it.
    coming: Vec<Coming>,
    /// The entry before, as it came, and when it began.
    before: Option<(Coming, Time)>,
    blind: Vec<bool>,
    /// By boundary, of each pass.
    pace: Vec<Vec<u32>>,
    late: Vec<Vec<u32>>,
    passes: usize,
}

impl Observer {
    /// For a plan of so many entries, the `round`th time that it is watched. `None` if there is nothing to merge.
    pub fn new(entries: usize, round: u32) -> Option<Self> {
        (entries > 1 && round < ROUNDS).then(|| Self {
            coming: vec![Coming::default(); entries],
            before: None,
            blind: vec![true; entries - 1],
            pace: vec![Vec::new(); entries - 1],
            late: vec![Vec::new(); entries - 1],
            passes: PASSES << round,
        })
    }

    /// The program has submitted a tensor that this entry needs; `complete`: the last one.
    pub fn submitted(&mut self, now: Time, looks: u64, entry: usize, complete: bool) {
        let coming = &mut self.coming[entry];
        let (first, _) = coming.looks.unwrap_or((looks, looks));
        coming.looks = Some((first, looks));
        if complete {
            coming.ready = Some(now);
        }
    }

    /// An entry begins. When enough was seen: what.
    pub fn begins(&mut self, now: Time, entry: usize) -> Option<Seen> {
        let this = std::mem::take(&mut self.coming[entry]);
        let before = self.before.replace((this, now)).filter(|_| entry > 0);
        if let Some((before, began)) = before {
            let boundary = entry - 1;
            let same = |(a, b): ((u64, u64), (u64, u64))| a.0 == a.1 && a == b;
            // What came before the plan began is not known. It does not count, neither for nor against.
            if let (Some(looks), Some(was_ready), Some(is_ready)) =
                (before.looks.zip(this.looks), before.ready, this.ready)
            {
                self.blind[boundary] &= same(looks);
                self.pace[boundary].push(micros(is_ready.saturating_sub(was_ready)));
                self.late[boundary].push(micros(began.saturating_sub(was_ready)));
            }
        }
        let watched = self.pace.iter().map(Vec::len).min().unwrap_or(0);
        (entry + 1 == self.coming.len() && watched >= self.passes).then(|| Seen {
            blind: std::mem::take(&mut self.blind),
            pace: self.pace.drain(..).map(median).collect(),
            late: self.late.drain(..).map(median).collect(),
        })
    }
}

fn micros(time: Duration) -> u32 {
    u32::try_from(time.as_micros()).unwrap_or(u32::MAX)
}

fn median(mut of: Vec<u32>) -> u32 {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or(0)
}

/// The places (entry, tensor) of what an entry of the new plan had in the old one.
pub type Merged = Vec<(usize, usize)>;

/// The plan's entries, merged where that pays. `None` if nothing is to be gained.
pub fn merge(
    entries: &[Vec<Arc<Agreed>>],
    seen: &Seen,
    entry_cost: Duration,
    limits: fusion::Limits,
) -> Option<Vec<Merged>> {
    if !seen.fits(entries.len()) {
        return None;
    }
    let as_is = |entry: usize| (0..entries[entry].len()).map(|tensor| (entry, tensor)).collect::<Vec<_>>();
    let mut merged = Vec::new();
    let mut first = 0;
    while first < entries.len() {
        let (taken, window) = widest(entries, seen, entry_cost, limits, first).unwrap_or((1, vec![as_is(first)]));
        merged.extend(window);
        first += taken;
    }
    (merged.len() < entries.len()).then_some(merged)
}

/// The most entries from `first` on that are worth running as fewer ones: how many, and as which.
fn widest(
    entries: &[Vec<Arc<Agreed>>],
    seen: &Seen,
    entry_cost: Duration,
    limits: fusion::Limits,
    first: usize,
) -> Option<(usize, Vec<Merged>)> {
    let mut best = None;
    let mut waited = Duration::ZERO;
    // It would not have begun earlier anyway.
    let late = Duration::from_micros(u64::from(seen.late.get(first).copied()?));
    for last in first + 1..entries.len() {
        waited += Duration::from_micros(u64::from(seen.pace[last - 1]));
        let most = entry_cost.saturating_mul((last - first) as u32);
        if !seen.blind[last - 1] || waited.saturating_sub(late) > most {
            break;
        }
        let places: Vec<(usize, usize)> =
            (first..=last).flat_map(|e| (0..entries[e].len()).map(move |t| (e, t))).collect();
        let agreed: Vec<&Agreed> = places.iter().map(|(e, t)| &*entries[*e][*t]).collect();
        let batches = fusion::batches(&agreed, limits);
        let saved = (last + 1 - first).saturating_sub(batches.len());
        if saved > 0 && waited.saturating_sub(late) <= entry_cost.saturating_mul(saved as u32) {
            let window = batches.into_iter().map(|b| b.tensors.into_iter().map(|i| places[i]).collect()).collect();
            best = Some((last + 1 - first, window));
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use corro_core::DType;

    use super::*;
    use crate::request::MemoryPlace;
    use crate::simulator::allreduce;

    const COST: Duration = Duration::from_micros(30);
    const LIMITS: fusion::Limits = fusion::Limits { threshold: 1000, only_groups: false };

    fn micro(time: u64) -> Time {
        Duration::from_micros(time)
    }

    fn tensor(bytes: usize, dtype: DType) -> Arc<Agreed> {
        let request = allreduce("x", 0);
        let shapes = vec![corro_core::Shape(vec![bytes / dtype.size()])];
        Arc::new(Agreed {
            name: request.name,
            kind: request.kind,
            dtype,
            shapes,
            splits: vec![],
            place: MemoryPlace::Host,
            group: None,
        })
    }

    fn entries(sizes: &[usize]) -> Vec<Vec<Arc<Agreed>>> {
        sizes.iter().map(|s| vec![tensor(*s, DType::F32)]).collect()
    }

    fn seen(pace: &[u32], late: &[u32]) -> Seen {
        Seen { blind: vec![true; pace.len()], pace: pace.to_vec(), late: late.to_vec() }
    }

    /// How many entries of before each entry has.
    fn sizes(entries: &[Vec<Arc<Agreed>>], seen: &Seen) -> Option<Vec<usize>> {
        merge(entries, seen, COST, LIMITS).map(|merged| merged.iter().map(Vec::len).collect())
    }

    #[test]
    fn a_burst_becomes_one_entry_and_what_takes_its_time_stays() {
        let four = entries(&[4, 4, 4, 4]);
        assert_eq!(sizes(&four, &seen(&[5, 5, 5], &[0, 0, 0])), Some(vec![4]));
        assert_eq!(sizes(&four, &seen(&[500, 500, 500], &[0, 0, 0])), None);
        assert_eq!(sizes(&four, &seen(&[5, 500, 5], &[0, 0, 0])), Some(vec![2, 2]));
        assert_eq!(sizes(&four, &seen(&[50, 5, 5], &[40, 0, 0])), Some(vec![4]), "it was late anyway");
        assert_eq!(merge(&four, &seen(&[5, 5, 5], &[0, 0, 0]), Duration::ZERO, LIMITS), None);
    }

    #[test]
    fn what_was_looked_at_in_between_stays_apart() {
        let mut looked = seen(&[0, 0, 0], &[0, 0, 0]);
        looked.blind[1] = false;
        assert_eq!(sizes(&entries(&[4, 4, 4, 4]), &looked), Some(vec![2, 2]));
    }

    #[test]
    fn entries_stay_below_the_threshold_and_of_one_kind() {
        assert_eq!(
            sizes(&entries(&[600, 600, 300]), &seen(&[0, 0], &[0, 0])),
            Some(vec![2, 1]),
            "the third with the first"
        );
        assert_eq!(sizes(&entries(&[600, 600]), &seen(&[0], &[0])), None);
        let mixed: Vec<Vec<Arc<Agreed>>> =
            (0..6).map(|i| vec![tensor(8, if i % 2 == 0 { DType::F32 } else { DType::F64 })]).collect();
        let merged = merge(&mixed, &seen(&[0; 5], &[0; 5]), COST, LIMITS).unwrap();
        assert_eq!(merged, [vec![(0, 0), (2, 0), (4, 0)], vec![(1, 0), (3, 0), (5, 0)]]);
    }

    #[test]
    fn what_does_not_fit_the_plan_is_not_believed() {
        assert_eq!(sizes(&entries(&[4, 4, 4]), &seen(&[0], &[0])), None);
        assert_eq!(sizes(&entries(&[4]), &seen(&[], &[])), None);
    }

    /// Passes over a plan of two entries with one tensor each; `look`: whether the program looks between them.
    fn watch(passes: usize, pace: u64, look: bool) -> Option<Seen> {
        let mut observer = Observer::new(2, 0).unwrap();
        let mut looks = 0;
        (0..passes as u64).find_map(|pass| {
            let start = pass * 10_000;
            observer.submitted(micro(start), looks, 0, true);
            looks += u64::from(look);
            assert_eq!(observer.begins(micro(start + 3), 0), None);
            observer.submitted(micro(start + pace), looks, 1, true);
            looks += 1;
            observer.begins(micro(start + pace + 1), 1)
        })
    }

    #[test]
    fn a_few_passes_are_watched_and_then_told() {
        assert_eq!(watch(PASSES - 1, 7, false), None);
        assert_eq!(watch(PASSES, 7, false), Some(Seen { blind: vec![true], pace: vec![7], late: vec![3] }));
        assert_eq!(watch(PASSES, 7, true).unwrap().blind, [false]);
        assert!(Observer::new(1, 0).is_none() && Observer::new(2, ROUNDS).is_none());
    }

    #[test]
    fn the_most_careful_member_decides() {
        let mut seen = seen(&[5, 9], &[4, 2]);
        seen.and(&Seen { blind: vec![false, true], pace: vec![7, 1], late: vec![9, 1] });
        assert_eq!(seen, Seen { blind: vec![false, true], pace: vec![7, 9], late: vec![4, 1] });
    }
}
