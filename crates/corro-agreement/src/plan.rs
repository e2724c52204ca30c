//! The third gear: training repeats itself, so members can follow a plan without a word.
//!
//! The root *learns*: it cuts what runs into steps (a step ends when a tensor comes again) and, when the same tensors came
//! several times over, makes a plan of the step that took the fewest collectives. Tensors share an entry of the plan only if
//! they once ran as one, so no rank waits for one of them before it submits another.
//!
//! Members *follow*: entry after entry, over and over, each as soon as its own tensors are there, waiting for its peers
//! inside the collective. An entry can only complete once every member has begun it, so when the plan is left, members are
//! at most one entry apart. A plan may be refined (see [`crate::refine`]): from an agreed entry on, the same tensors run in
//! fewer entries.

use std::sync::Arc;

use crate::cache::Cached;
use crate::coordinator::Time;
use crate::hash::{HashMap, HashSet};
use crate::matching::Agreed;
use crate::message::Slot;
use crate::refine::{Observer, Seen};
use crate::request::Kind;

/// The tensors of an entry.
pub type Tensors = Arc<[Arc<Agreed>]>;

/// Whether no member can finish this before all have begun it, which plans rely on.
pub fn is_plannable(agreed: &Agreed, members: usize) -> bool {
    let all_have_bytes = || agreed.shapes.iter().all(|s| s.bytes(agreed.dtype).is_ok_and(|b| b > 0));
    match &agreed.kind {
        Kind::Allreduce { .. } | Kind::Allgather => all_have_bytes(),
        Kind::Reducescatter { .. } => {
            all_have_bytes() && agreed.shapes.iter().all(|s| s.0.first().is_some_and(|rows| *rows >= members))
        }
        Kind::Barrier => true,
        Kind::Broadcast { .. } | Kind::Alltoall { .. } | Kind::AddSet { .. } | Kind::RemoveSet { .. } => false,
    }
}

/// Steps that must be alike before the first plan.
const STEPS: u32 = 3;

/// Steps that must be alike after a plan was left for a good reason: something came between, and it will likely go on.
const STEPS_AGAIN: u32 = 2;

/// After members waited in vain, they take this many times longer to try again, up to [`STEPS_MOST`].
const BACK_OFF: u32 = 8;
const STEPS_MOST: u32 = 4096;

/// The root's part, see the module.
#[derive(Debug)]
pub struct Learner {
    needed: u32,
    /// Steps alike so far.
    alike: u32,
    /// The lists that ran in this step.
    step: Vec<Vec<Slot>>,
    seen: HashSet<Slot>,
    /// The step before: its slots, and the shortest way to run them of all steps alike.
    before: HashSet<Slot>,
    shortest: Vec<Vec<Slot>>,
}

impl Default for Learner {
    fn default() -> Self {
        Self {
            needed: STEPS,
            alike: 0,
            step: Vec::new(),
            seen: HashSet::default(),
            before: HashSet::default(),
            shortest: Vec::new(),
        }
    }
}

impl Learner {
    /// Takes note that `slots` are to run as one list. If it is time for a plan: how many of them still belong to the
    /// step before and must run, and the lists that the plan consists of.
    pub fn observe(&mut self, slots: &[Slot]) -> Option<(usize, Vec<Vec<Slot>>)> {
        let mut list = Vec::new();
        for (i, slot) in slots.iter().enumerate() {
            if !self.seen.insert(*slot) {
                self.step.push(std::mem::take(&mut list));
                self.end_step();
                if self.alike >= self.needed {
                    return Some((i, std::mem::take(&mut self.shortest)));
                }
                self.seen.insert(*slot);
            }
            list.push(*slot);
        }
        self.step.push(list);
        None
    }

    /// Something ran that can't be part of a plan: begins again. So that steps never end inside a group of tensors, which
    /// run in one list, not even its remains are kept.
    pub fn disturb(&mut self) {
        *self = Self { needed: self.needed, ..Self::default() };
    }

    /// The plan was left; `futile`: since members waited for each other in vain.
    pub fn left(&mut self, futile: bool) {
        self.needed = if futile { (self.needed.max(STEPS) * BACK_OFF).min(STEPS_MOST) } else { STEPS_AGAIN };
        self.disturb();
    }

    fn end_step(&mut self) {
        self.step.retain(|list| !list.is_empty());
        let (step, seen) = (std::mem::take(&mut self.step), std::mem::take(&mut self.seen));
        let same = seen == self.before;
        self.alike = if same { self.alike + 1 } else { 0 };
        if !same || step.len() < self.shortest.len() || self.shortest.is_empty() {
            self.shortest = step;
        }
        self.before = seen;
    }
}

/// A member's part, see the module.
#[derive(Debug)]
pub struct Following {
    batches: Vec<Vec<Slot>>,
    /// What each entry gives when it begins; made once.
    agreed: Vec<Tensors>,
    /// For each entry, how many tensors it needs, and how many of those this member has not submitted.
    needs: Vec<usize>,
    missing: Vec<usize>,
    tensors: HashMap<Slot, Tensor>,
    /// Submitted, and not begun.
    ready: usize,
    begun: u64,
    /// The place of the entry that begins next: [`Following::place`] of `begun`, kept since a division takes a while.
    next_place: usize,
    /// How many were begun when these entries came to be followed: a whole number of passes over those before.
    since: u64,
    halted: bool,
    /// What is followed in place of these entries once so many have begun.
    next: Option<(u64, Box<Following>)>,
    /// How often the plan was refined.
    round: u32,
    observer: Option<Observer>,
}

#[derive(Debug)]
struct Tensor {
    cached: Arc<Cached>,
    /// The entries that need it. Its own is the last; those before have tensors of its group, which runs only if all of
    /// it is there.
    needed_by: Vec<usize>,
    ready: bool,
}

impl Following {
    /// A plan of these entries. `None` if it names a slot that is not known, or none, or one twice.
    pub fn new(batches: Vec<Vec<Slot>>, known: impl Fn(Slot) -> Option<Arc<Cached>>) -> Option<Self> {
        let mut tensors = HashMap::default();
        let mut needs = vec![0; batches.len()];
        let mut groups: HashMap<u64, Vec<usize>> = HashMap::default();
        for (batch, slots) in batches.iter().enumerate() {
            for slot in slots {
                let cached = known(*slot)?;
                let mut needed_by = match cached.agreed.group {
                    Some((number, _)) => {
                        let with_it = groups.entry(number).or_default();
                        with_it.push(batch);
                        with_it.clone()
                    }
                    None => vec![batch],
                };
                needed_by.dedup();
                for entry in &needed_by {
                    needs[*entry] += 1;
                }
                if tensors.insert(*slot, Tensor { cached, needed_by, ready: false }).is_some() {
                    return None;
                }
            }
        }
        let of = |slot: &Slot| tensors.get(slot).map(|t: &Tensor| Arc::clone(&t.cached.agreed));
        let agreed = batches.iter().map(|slots| slots.iter().filter_map(of).collect()).collect();
        let sound = !needs.is_empty() && !needs.contains(&0);
        sound.then(|| Self {
            batches,
            agreed,
            missing: needs.clone(),
            needs,
            tensors,
            ready: 0,
            begun: 0,
            next_place: 0,
            since: 0,
            halted: false,
            next: None,
            round: 0,
            observer: None,
        })
    }

    /// Watches what could be merged.
    pub fn observe(&mut self) {
        self.observer = Observer::new(self.batches.len(), self.round);
    }

    /// How often the plan was refined.
    pub fn round(&self) -> u32 {
        self.round
    }

    /// The entries.
    pub fn batches(&self) -> &[Vec<Slot>] {
        &self.batches
    }

    /// The first entry at which a new pass begins, if so many have begun.
    pub fn pass_after(&self, begun: u64) -> u64 {
        self.since + (begun - self.since).next_multiple_of(self.batches.len() as u64)
    }

    /// Goes on, and from entry `at` on, with which a pass begins, in these entries. False if they are not of the same
    /// tensors, or it is too late.
    pub fn refine(&mut self, at: u64, batches: Vec<Vec<Slot>>, in_entry: bool) -> bool {
        let next = Self::new(batches, |slot| self.tensors.get(&slot).map(|t| Arc::clone(&t.cached)));
        let Some(mut next) = next.filter(|n| n.tensors.len() == self.tensors.len()) else { return false };
        if at < self.begun || at != self.pass_after(at) || self.next.is_some() {
            return false;
        }
        self.round += 1;
        self.halted = false;
        self.observer = None;
        (next.round, next.since) = (self.round, at);
        self.next = Some((at, Box::new(next)));
        if !in_entry {
            self.switch();
        }
        true
    }

    /// No entry is under way any more: if it is time, follows the refined plan.
    pub fn switch(&mut self) {
        if let Some((_, next)) = self.next.take_if(|(at, _)| *at == self.begun) {
            let before = std::mem::replace(self, *next);
            (self.begun, self.halted) = (before.begun, before.halted);
            for (slot, _) in before.tensors.iter().filter(|(_, t)| t.ready) {
                self.note(*slot);
            }
            self.observe();
        }
    }

    /// The place of the entry that is begun when so many have.
    fn place(&self, begun: u64) -> usize {
        (begun.saturating_sub(self.since) % self.batches.len() as u64) as usize
    }

    /// Takes note that this member has submitted `slot`, having looked at results so many times. False if the plan does
    /// not have it.
    pub fn submit(&mut self, now: Time, looks: u64, slot: Slot) -> bool {
        let Some(is_new) = self.note(slot) else { return false };
        if let (true, Some(observer)) = (is_new, &mut self.observer) {
            for entry in self.tensors.get(&slot).iter().flat_map(|t| &t.needed_by) {
                observer.submitted(now, looks, *entry, self.missing[*entry] == 0);
            }
        }
        true
    }

    /// Whether it was not there before; `None` if the plan does not have it.
    fn note(&mut self, slot: Slot) -> Option<bool> {
        let tensor = self.tensors.get_mut(&slot)?;
        let is_new = !std::mem::replace(&mut tensor.ready, true);
        if is_new {
            tensor.needed_by.iter().for_each(|entry| self.missing[*entry] -= 1);
            self.ready += 1;
        }
        Some(is_new)
    }

    /// Whether the next entry is this tensor and nothing else, and nobody has submitted it yet.
    pub fn is_next_alone(&self, slot: Slot) -> bool {
        let next = self.next_place;
        !self.halted && self.batches[next] == [slot] && self.missing[next] == 1 && self.needs[next] == 1
    }

    /// Begins the next entry if all its tensors are there: gives them. And once enough was seen of the plan, what.
    pub fn begin(&mut self, now: Time) -> Option<(Tensors, Option<Seen>)> {
        let next = self.next_place;
        if self.halted || self.missing[next] > 0 {
            return None;
        }
        debug_assert_eq!(next, self.place(self.begun), "kept up with what has begun");
        self.begun += 1;
        self.next_place = if next + 1 == self.batches.len() { 0 } else { next + 1 };
        self.missing[next] = self.needs[next];
        self.ready -= self.batches[next].len();
        for slot in &self.batches[next] {
            if let Some(tensor) = self.tensors.get_mut(slot) {
                tensor.ready = false;
            }
        }
        let seen = self.observer.as_mut().and_then(|o| o.begins(now, next));
        if seen.is_some() {
            self.observer = None;
        }
        Some((Arc::clone(&self.agreed[next]), seen))
    }

    /// Whether this member has some of the next entry's tensors, and not all.
    pub fn is_torn(&self) -> bool {
        let next = self.next_place;
        self.missing[next] > 0 && self.missing[next] < self.needs[next]
    }

    /// Whether the next entry could begin.
    pub fn can_begin(&self) -> bool {
        let next = self.next_place;
        !self.halted && self.missing[next] == 0
    }

    /// Begins nothing any more; gives how many entries were begun.
    pub fn halt(&mut self) -> u64 {
        self.halted = true;
        self.begun
    }

    /// Whether it was halted.
    pub fn is_halted(&self) -> bool {
        self.halted
    }

    /// How many entries were begun.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Whether tensors wait for their turn.
    pub fn has_ready(&self) -> bool {
        self.ready > 0
    }

    /// The tensors of the pass at hand, without the entries from `begun` on: what has run of what the program does over
    /// and over.
    pub fn ran(&self, begun: u64) -> impl Iterator<Item = &Arc<Agreed>> {
        let done = self.place(begun);
        self.batches[..done].iter().flatten().filter_map(|slot| Some(&self.tensors.get(slot)?.cached.agreed))
    }

    /// The names of the entry that members wait for: the one this member is in, or else the next.
    pub fn awaited(&self, in_entry: bool) -> Vec<String> {
        let at = self.place(self.begun.saturating_sub(u64::from(in_entry)));
        let tensors = self.batches[at].iter().filter_map(|slot| self.tensors.get(slot));
        tensors.map(|t| t.cached.request.name.clone()).collect()
    }

    /// Tensors submitted and not begun, and those of the last entry begun if that is `withdrawn`.
    pub fn outstanding(self, withdrawn: bool) -> Vec<Arc<Cached>> {
        let last = withdrawn.then(|| self.place(self.begun.saturating_sub(1)));
        let mut outstanding: Vec<Arc<Cached>> = self
            .tensors
            .into_values()
            .filter(|t| t.ready || t.needed_by.last() == last.as_ref())
            .map(|t| t.cached)
            .collect();
        // The same for every run.
        outstanding.sort_unstable_by_key(|c| c.slot);
        outstanding
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What [`Learner::observe`] gives.
    type Plan = (usize, Vec<Vec<Slot>>);

    /// Feeds lists until there is a plan; gives how many lists that took.
    fn learn(learner: &mut Learner, lists: &[&[Slot]]) -> Option<(usize, Plan)> {
        lists.iter().enumerate().find_map(|(i, list)| Some((i, learner.observe(list)?)))
    }

    #[test]
    fn the_same_tensors_several_times_over_make_a_plan() {
        let step: [&[Slot]; 2] = [&[1, 2], &[3]];
        let lists: Vec<&[Slot]> = step.iter().copied().cycle().take(20).collect();
        let (at, (run, plan)) = learn(&mut Learner::default(), &lists).unwrap();
        assert_eq!((at, run), (8, 0), "after one step to compare with and three alike");
        assert_eq!(plan, [vec![1, 2], vec![3]]);
    }

    #[test]
    fn a_plan_takes_the_step_with_the_fewest_lists_whatever_the_order() {
        let lists: [&[Slot]; 9] = [&[1], &[2], &[3], &[2, 1], &[3], &[3, 1, 2], &[1], &[2, 3], &[1]];
        let (_, (run, plan)) = learn(&mut Learner::default(), &lists).unwrap();
        assert_eq!((run, plan), (0, vec![vec![3, 1, 2]]));
    }

    #[test]
    fn what_still_belongs_to_the_step_before_is_run_first() {
        let lists: [&[Slot]; 4] = [&[1, 2], &[1, 2], &[1, 2], &[1, 2]];
        let mut learner = Learner::default();
        assert!(learn(&mut learner, &lists).is_none());
        let mut learner = Learner::default();
        let lists: [&[Slot]; 5] = [&[1, 2], &[1, 2], &[1, 2], &[1], &[2, 1]];
        assert_eq!(learn(&mut learner, &lists).unwrap().1.0, 1);
    }

    #[test]
    fn disturbances_and_changes_start_the_count_again() {
        let mut learner = Learner::default();
        for i in 0..50 {
            if i % 3 == 0 {
                learner.disturb();
            }
            assert_eq!(learner.observe(&[1]), None);
        }
        let mut learner = Learner::default();
        for i in 0..50u64 {
            assert_eq!(learner.observe(&[1, 2 + i / 3 % 2]), None);
        }
    }

    #[test]
    fn after_waiting_in_vain_it_takes_much_longer_to_try_again() {
        let steps_until_plan = |learner: &mut Learner| (0..1000).find(|_| learner.observe(&[1]).is_some()).unwrap();
        let mut learner = Learner::default();
        assert_eq!(steps_until_plan(&mut learner), 4);
        learner.left(false);
        assert_eq!(steps_until_plan(&mut learner), 3);
        learner.left(true);
        assert_eq!(steps_until_plan(&mut learner), 25);
        learner.left(true);
        assert_eq!(steps_until_plan(&mut learner), 193);
    }
}
