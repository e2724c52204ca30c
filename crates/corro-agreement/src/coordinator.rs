//! The one member of a process set that knows when all have submitted a tensor, and says what runs next.
//!
//! Pure: state, input and the time go in, decisions come out, with the reason where there is one to tell. It does no I/O
//! and never looks at a clock, so the same code runs in production, in the simulator and under property tests.
//!
//! What it keeps per name: who has asked for what, and since when the first has waited. A name is decided once every
//! member that has not joined is in. Tensors of a group run together once all of them are decided; if one of them fails,
//! so do the others, each as soon as it is decided.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use corro_core::{Error, Rank};
use serde::{Deserialize, Serialize};

use crate::hash::HashMap;
use crate::matching::{Agreed, match_requests};
use crate::request::Request;

/// What stands for a join where tensors are named.
pub const JOIN: &str = "join";

/// Moments, counted from wherever the caller likes.
pub type Time = Duration;

/// What reaches the coordinator.
#[derive(Clone, Debug)]
pub enum Input {
    /// A member has submitted these.
    Announce {
        /// Its rank.
        rank: Rank,
        /// In its own order.
        requests: Vec<Request>,
        /// How long ago.
        waited: Duration,
    },
    /// A member has run out of data and stands aside until all have.
    Join {
        /// Its rank.
        rank: Rank,
    },
    /// Time has passed.
    Tick,
}

/// What all members are to do, in this order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Run these; fusion cuts them into batches.
    Run(Vec<Arc<Agreed>>),
    /// These tensors fail on every member, with this error; nothing else is affected.
    Fail {
        /// The tensors' names.
        names: Vec<String>,
        /// Why: which ranks differ and how.
        error: Error,
    },
    /// Everyone has joined; joins return this rank, and standing aside is over.
    AllJoined {
        /// Who came last.
        last: Rank,
    },
    /// Some members wait for others for longer than they should.
    Stalled(StallReport),
}

/// Who is waiting for whom.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StallReport {
    /// The longest wait.
    pub waiting: Duration,
    /// For each rank that is missing, what it has not submitted, oldest first.
    pub missing: BTreeMap<Rank, Vec<String>>,
    /// What others have waited for longest, where that is known.
    pub longest: Option<String>,
    /// What missing ranks were doing when they were asked.
    pub doing: BTreeMap<Rank, String>,
    /// Those of them that wait for others themselves.
    pub waits: BTreeSet<Rank>,
    /// Whether this was waited for so long that the job is to end.
    pub fatal: bool,
}

/// When waiting becomes worth a word, or the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StallLimits {
    /// A report after this long, and again each time it has passed; zero: never.
    pub warn: Duration,
    /// The end after this long; zero: never.
    pub shutdown: Duration,
}

impl StallLimits {
    /// What comes first of a word and the end.
    pub fn first(self) -> Option<Duration> {
        [self.warn, self.shutdown].into_iter().filter(|d| !d.is_zero()).min()
    }

    /// Whether waiting for so long is the end.
    pub fn end(self, waiting: Duration) -> bool {
        !self.shutdown.is_zero() && waiting >= self.shutdown
    }

    /// When to look for stalls, if somebody waits since `since` and a word was said at `warned`.
    pub fn next_look(self, since: Time, warned: Option<Warned>) -> Option<Time> {
        let Self { warn, shutdown } = self;
        let again = warned.map_or(Time::ZERO, |warned| warned.next(since, warn));
        let warning = (!warn.is_zero()).then(|| (since + warn).max(again));
        let end = (!shutdown.is_zero()).then(|| since + shutdown);
        warning.into_iter().chain(end).min()
    }
}

/// When a word was said about a stall, and for which time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Warned {
    at: Time,
    times: u32,
}

impl Warned {
    /// Another word is said about what waits since `since`.
    pub fn again(before: Option<Self>, since: Time, now: Time) -> Self {
        let times = before.filter(|before| since <= before.at).map_or(0, |before| before.times);
        Self { at: now, times: times + 1 }
    }

    /// When to say more. Who has read of a stall need not read of it every minute: pauses become longer.
    fn next(self, since: Time, pause: Duration) -> Time {
        let known = since <= self.at;
        self.at + if known { pause * (1 << (self.times - 1).min(4)) } else { Duration::ZERO }
    }
}

/// One name that somebody has submitted.
#[derive(Debug)]
struct Pending {
    since: Time,
    /// In the order of members; `None`: not yet. Those like the first are the first, or thousands of ranks would fill the
    /// memory with copies.
    requests: Vec<Option<Arc<Request>>>,
    first: Arc<Request>,
    /// How many are neither in nor have joined.
    missing: usize,
}

/// A group on its way.
#[derive(Debug, Default)]
struct Group {
    decided: usize,
    /// Ready, and waiting for the rest of the group.
    held: Vec<Arc<Agreed>>,
    /// Why the group fails, if it does.
    failed: Option<Error>,
}

/// What became of one name.
struct Verdict {
    name: String,
    group: Option<(u64, usize)>,
    result: Result<Arc<Agreed>, Error>,
}

/// See the module.
#[derive(Debug)]
pub struct Coordinator {
    members: Vec<Rank>,
    pending: HashMap<String, Pending>,
    /// Groups of which some tensors are decided and others not.
    groups: HashMap<u64, Group>,
    joined: Vec<bool>,
    /// How many of them have joined.
    aside: usize,
    /// When somebody last asked for something.
    stirred: Time,
    limits: StallLimits,
    warned: Option<Warned>,
}

impl Coordinator {
    /// For these members (ranks, ascending).
    pub fn new(members: Vec<Rank>, limits: StallLimits) -> Self {
        let joined = vec![false; members.len()];
        Self {
            members,
            pending: HashMap::default(),
            groups: HashMap::default(),
            joined,
            aside: 0,
            stirred: Time::ZERO,
            limits,
            warned: None,
        }
    }

    /// The members, ascending.
    pub fn members(&self) -> &[Rank] {
        &self.members
    }

    /// How many names are waiting for somebody.
    pub fn waiting(&self) -> usize {
        self.pending.len()
    }

    /// Takes an input at the time `now` and says what follows from it.
    pub fn step(&mut self, now: Time, input: Input) -> Vec<Output> {
        if !matches!(input, Input::Tick) {
            self.stirred = now;
        }
        match input {
            Input::Announce { rank, requests, waited } => self.announce(now.saturating_sub(waited), rank, requests),
            Input::Join { rank } => self.join(rank),
            Input::Tick => self.look_for_stalls(now).into_iter().map(Output::Stalled).collect(),
        }
    }

    fn announce(&mut self, since: Time, rank: Rank, requests: Vec<Request>) -> Vec<Output> {
        let Ok(member) = self.members.binary_search(&rank) else {
            let names = requests.into_iter().map(|r| r.name).collect();
            let error = Error::Usage(format!("rank {rank} is not a member of the provided process set"));
            return vec![Output::Fail { names, error }];
        };
        let mut decided = Vec::new();
        for request in requests {
            let (name, request) = (request.name.clone(), Arc::new(request));
            let (size, aside, joined) = (self.members.len(), self.aside, &self.joined);
            let pending = self.pending.entry(name.clone()).or_insert_with(|| Pending {
                since,
                requests: vec![None; size],
                first: Arc::clone(&request),
                missing: size - aside,
            });
            pending.since = pending.since.min(since);
            let request = if *pending.first == *request { Arc::clone(&pending.first) } else { request };
            // A member checks its own names; one that asks twice anyway gets the later request.
            if pending.requests[member].replace(request).is_none() && !joined[member] {
                pending.missing -= 1;
            }
            decided.extend(self.decide(&name));
        }
        self.emit(decided)
    }

    /// All members are in with a tensor they had agreed on before.
    pub fn complete(&mut self, agreed: Vec<Arc<Agreed>>) -> Vec<Output> {
        let verdict = |a: Arc<Agreed>| Verdict { name: a.name.clone(), group: a.group, result: Ok(a) };
        self.emit(agreed.into_iter().map(verdict))
    }

    /// These ran in a plan that was left before all tensors of their groups had: the rest waits only for the rest.
    pub fn already_ran<'a>(&mut self, agreed: impl Iterator<Item = &'a Arc<Agreed>>) {
        for (number, size) in agreed.filter_map(|a| a.group) {
            let group = self.groups.entry(number).or_default();
            group.decided += 1;
            if group.decided >= size {
                self.groups.remove(&number);
            }
        }
    }

    /// Members will say this tensor again: takes it back if it is held until the rest of its group is decided.
    pub fn recall(&mut self, agreed: &Arc<Agreed>) {
        let Some((number, _)) = agreed.group else { return };
        let Some(group) = self.groups.get_mut(&number) else { return };
        let Some(at) = group.held.iter().position(|held| Arc::ptr_eq(held, agreed)) else { return };
        group.held.remove(at);
        group.decided -= 1;
        if group.decided == 0 {
            self.groups.remove(&number);
        }
    }

    /// Whether nobody waits for anybody, as far as announcements tell.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.groups.is_empty() && !self.is_joining()
    }

    /// Whether some have joined and not all.
    pub fn is_joining(&self) -> bool {
        self.aside > 0
    }

    fn join(&mut self, rank: Rank) -> Vec<Output> {
        let Ok(member) = self.members.binary_search(&rank) else { return vec![] };
        if !std::mem::replace(&mut self.joined[member], true) {
            self.aside += 1;
            for pending in self.pending.values_mut().filter(|p| p.requests[member].is_none()) {
                pending.missing -= 1;
            }
        }
        if self.aside == self.members.len() {
            self.joined.fill(false);
            self.aside = 0;
            // Nobody stands aside while it waits for a tensor, so there are none.
            self.pending.clear();
            return vec![Output::AllJoined { last: rank }];
        }
        // Whatever waited only for this member goes ahead. Oldest first, then by name: the same for every run.
        let mut names: Vec<(Time, String)> = self.pending.iter().map(|(name, p)| (p.since, name.clone())).collect();
        names.sort_unstable();
        let decided: Vec<Verdict> = names.iter().filter_map(|(_, name)| self.decide(name)).collect();
        self.emit(decided)
    }

    /// The verdict on `name`, if everyone who takes part is in.
    fn decide(&mut self, name: &str) -> Option<Verdict> {
        if self.pending.get(name)?.missing > 0 {
            return None;
        }
        let (name, pending) = self.pending.remove_entry(name)?;
        let joined: Vec<Rank> = self.members.iter().zip(&self.joined).filter(|(_, j)| **j).map(|(m, _)| *m).collect();
        let requests: Vec<(Rank, Arc<Request>)> =
            self.members.iter().zip(pending.requests).filter_map(|(m, r)| Some((*m, r?))).collect();
        let group = requests.iter().find_map(|(_, r)| r.group);
        Some(Verdict { name, group, result: match_requests(&requests, &joined).map(Arc::new) })
    }

    /// Turns verdicts into outputs, in their order; tensors of groups wait for each other.
    fn emit(&mut self, verdicts: impl IntoIterator<Item = Verdict>) -> Vec<Output> {
        let mut outputs = Vec::new();
        let mut run = Vec::new();
        for Verdict { name, group, result } in verdicts {
            let Some((number, size)) = group else {
                match result {
                    Ok(agreed) => run.push(agreed),
                    Err(error) => outputs.push(Output::Fail { names: vec![name], error }),
                }
                continue;
            };
            let group = self.groups.entry(number).or_default();
            group.decided += 1;
            match (result, &group.failed) {
                (Ok(agreed), None) => group.held.push(agreed),
                (Ok(_), Some(error)) => outputs.push(Output::Fail { names: vec![name], error: error.clone() }),
                (Err(error), _) => {
                    let names = std::iter::once(name).chain(group.held.drain(..).map(|a| a.name.clone())).collect();
                    group.failed = Some(error.clone());
                    outputs.push(Output::Fail { names, error });
                }
            }
            if group.decided >= size {
                run.extend(self.groups.remove(&number).unwrap_or_default().held);
            }
        }
        if !run.is_empty() {
            outputs.push(Output::Run(run));
        }
        outputs
    }

    /// When to look for stalls next, if nothing else happens.
    pub fn next_look(&self) -> Option<Time> {
        self.limits.next_look(self.waits_since()?, self.warned)
    }

    /// Since when the first has waited: for a tensor, or, where nobody asks for any, for the others to join.
    fn waits_since(&self) -> Option<Time> {
        let oldest = self.pending.values().map(|p| p.since).min();
        oldest.or_else(|| self.is_joining().then_some(self.stirred))
    }

    fn look_for_stalls(&mut self, now: Time) -> Option<StallReport> {
        if self.next_look().is_none_or(|at| now < at) {
            return None;
        }
        let (late_after, since) = (self.limits.first()?, self.waits_since()?);
        let mut late: Vec<(Time, &String)> =
            self.pending.iter().filter(|(_, p)| now >= p.since + late_after).map(|(name, p)| (p.since, name)).collect();
        late.sort_unstable();
        let waiting = now.saturating_sub(since);
        let longest = late.first().map(|(_, name)| (*name).clone());
        let mut missing: BTreeMap<Rank, Vec<String>> = BTreeMap::new();
        for (_, name) in late {
            for (i, request) in self.pending[name].requests.iter().enumerate() {
                if request.is_none() && !self.joined[i] {
                    missing.entry(self.members[i]).or_default().push(name.clone());
                }
            }
        }
        if self.pending.is_empty() {
            let absent = self.members.iter().zip(&self.joined).filter(|(_, joined)| !**joined);
            missing.extend(absent.map(|(rank, _)| (*rank, vec![JOIN.to_owned()])));
        }
        self.warned = Some(Warned::again(self.warned, since, now));
        let fatal = self.limits.end(waiting);
        Some(StallReport { waiting, missing, longest, doing: BTreeMap::new(), waits: BTreeSet::new(), fatal })
    }
}

impl StallReport {
    /// Who makes the others wait: of those that are missing somewhere, one that does not wait itself; of several, one
    /// that is missing where others have waited longest.
    pub fn culprit(&self) -> Option<Rank> {
        let waits = |rank: &Rank| self.waits.contains(rank);
        let not_first = |names: &[String]| self.longest.as_ref().is_some_and(|longest| !names.contains(longest));
        self.missing.iter().min_by_key(|(rank, names)| (waits(rank), not_first(names))).map(|(rank, _)| *rank)
    }
}

impl std::fmt::Display for StallReport {
    /// Laid out as people know it from Horovod; in brackets, what the missing ranks are doing.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        const SHOWN: usize = 6;
        write!(
            f,
            "stalled: some ranks have waited for {} seconds for tensors that other ranks have not submitted. Either \
             those are slow, or the ranks' programs have taken different ways.",
            self.waiting.as_secs()
        )?;
        if self.fatal {
            write!(f, " Will shutdown.")?;
        }
        write!(f, "\nMissing ranks:")?;
        for (rank, names) in &self.missing {
            let shown: Vec<&str> = names.iter().take(SHOWN).map(String::as_str).collect();
            let mark = if self.fatal { "!" } else { "" };
            let more = if names.len() > SHOWN { " ..." } else { "" };
            write!(f, "\n{rank}{mark}: [{}{more}]", shown.join(", "))?;
            if let Some(doing) = self.doing.get(rank) {
                write!(f, " ({doing})")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use corro_core::{DType, ReduceOp, Shape};
    use proptest::prelude::*;

    use super::*;
    use crate::request::{Device, Kind};

    const NO_LIMITS: StallLimits = StallLimits { warn: Duration::ZERO, shutdown: Duration::ZERO };

    fn request(name: &str) -> Request {
        let one = 1f64.to_bits();
        Request {
            name: name.into(),
            kind: Kind::Allreduce { op: ReduceOp::Sum, prescale: one, postscale: one, compression: None },
            dtype: DType::F32,
            shape: Shape(vec![4]),
            device: Device::Cpu,
            group: None,
            room: None,
        }
    }

    fn announce(rank: usize, requests: Vec<Request>) -> Input {
        Input::Announce { rank: Rank::new(rank), requests, waited: Duration::ZERO }
    }

    fn join(rank: usize) -> Input {
        Input::Join { rank: Rank::new(rank) }
    }

    fn coordinator<const N: usize>(members: [usize; N], limits: StallLimits) -> Coordinator {
        Coordinator::new(members.map(Rank::new).to_vec(), limits)
    }

    fn seconds(s: u64) -> Time {
        Duration::from_secs(s)
    }

    /// The names that run, in order; panics on anything else.
    fn ran(outputs: &[Output]) -> Vec<String> {
        let names = |output: &Output| match output {
            Output::Run(agreed) => agreed.iter().map(|a| a.name.clone()).collect::<Vec<_>>(),
            other => panic!("not a run: {other:?}"),
        };
        outputs.iter().flat_map(names).collect()
    }

    #[test]
    fn who_makes_others_wait_is_found_by_who_waits_and_for_how_long() {
        let rank = Rank::new;
        let mut report = StallReport {
            waiting: Duration::from_secs(60),
            missing: BTreeMap::from([(rank(0), vec!["own".into()]), (rank(1), vec!["late".into(), "own".into()])]),
            longest: Some("late".into()),
            doing: BTreeMap::new(),
            waits: BTreeSet::new(),
            fatal: true,
        };
        assert_eq!(report.culprit(), Some(rank(1)), "nobody has answered: who is missing where it began");
        report.waits = BTreeSet::from([rank(1)]);
        assert_eq!(report.culprit(), Some(rank(0)), "who waits is somebody's victim");
        report.waits = BTreeSet::from([rank(0), rank(1)]);
        assert_eq!(report.culprit(), Some(rank(1)));
        report.missing.clear();
        assert_eq!(report.culprit(), None);
    }

    #[test]
    fn a_tensor_runs_when_the_last_member_is_in() {
        let mut c = coordinator([0, 1, 2], NO_LIMITS);
        assert!(c.step(seconds(0), announce(0, vec![request("a"), request("b")])).is_empty());
        assert!(c.step(seconds(0), announce(2, vec![request("b"), request("a")])).is_empty());
        assert_eq!(ran(&c.step(seconds(1), announce(1, vec![request("b")]))), ["b"]);
        assert_eq!(ran(&c.step(seconds(1), announce(1, vec![request("a")]))), ["a"]);
        assert_eq!(c.waiting(), 0);
    }

    #[test]
    fn a_mismatch_fails_that_tensor_and_nothing_else() {
        let mut c = coordinator([0, 1], NO_LIMITS);
        c.step(seconds(0), announce(0, vec![request("a"), request("b")]));
        let odd = Request { dtype: DType::F64, ..request("a") };
        let outputs = c.step(seconds(0), announce(1, vec![odd, request("b")]));
        let [Output::Fail { names, error }, rest] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert_eq!(names, &["a"]);
        assert!(error.to_string().contains("Mismatched data types"), "{error}");
        assert_eq!(ran(std::slice::from_ref(rest)), ["b"]);
    }

    #[test]
    fn groups_run_together_and_fail_together() {
        let of = |name: &str, dtype| Request { dtype, group: Some((5, 3)), ..request(name) };
        let all = |dtype| ["x", "y", "z"].map(|n| of(n, dtype)).to_vec();
        let mut c = coordinator([0, 1], NO_LIMITS);
        c.step(seconds(0), announce(0, all(DType::F32)));
        assert!(c.step(seconds(0), announce(1, vec![of("y", DType::F32), of("x", DType::F32)])).is_empty());
        assert_eq!(ran(&c.step(seconds(0), announce(1, vec![of("z", DType::F32)]))), ["y", "x", "z"]);

        c.step(seconds(0), announce(0, all(DType::F32)));
        c.step(seconds(0), announce(1, vec![of("x", DType::F32)]));
        let outputs = c.step(seconds(0), announce(1, vec![of("y", DType::F64), of("z", DType::F32)]));
        let failed: Vec<&String> = outputs
            .iter()
            .flat_map(|o| match o {
                Output::Fail { names, .. } => names,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(failed, ["y", "x", "z"]);
        // The group's number can be used again.
        c.step(seconds(0), announce(0, all(DType::F32)));
        assert_eq!(ran(&c.step(seconds(0), announce(1, all(DType::F32)))), ["x", "y", "z"]);
    }

    #[test]
    fn what_is_said_again_does_not_count_twice_for_its_group() {
        let of = |name: &str| Request { group: Some((5, 2)), ..request(name) };
        let mut c = coordinator([0], NO_LIMITS);
        let agreed = |name: &str| Arc::new(match_requests(&[(Rank::ZERO, of(name))], &[]).unwrap());
        let x = agreed("x");
        assert!(c.complete(vec![Arc::clone(&x)]).is_empty(), "held until y is there");
        c.recall(&x);
        assert!(c.is_idle());
        assert!(c.step(seconds(0), announce(0, vec![of("x")])).is_empty());
        assert_eq!(ran(&c.complete(vec![agreed("y")])), ["x", "y"]);
        // What ran before counts as there.
        c.already_ran([&x].into_iter());
        assert_eq!(ran(&c.complete(vec![agreed("y")])), ["y"]);
        assert!(c.is_idle());
    }

    #[test]
    fn the_joined_are_not_waited_for_until_all_have_joined() {
        let mut c = coordinator([0, 1, 2], NO_LIMITS);
        c.step(seconds(0), announce(0, vec![request("a")]));
        c.step(seconds(0), announce(1, vec![request("a")]));
        assert_eq!(ran(&c.step(seconds(1), join(2))), ["a"]);
        c.step(seconds(2), announce(0, vec![request("b")]));
        assert_eq!(ran(&c.step(seconds(2), announce(1, vec![request("b")]))), ["b"]);
        assert!(c.step(seconds(3), join(0)).is_empty());
        assert_eq!(c.step(seconds(3), join(1)), [Output::AllJoined { last: Rank::new(1) }]);
        // Everyone takes part again.
        c.step(seconds(4), announce(0, vec![request("c")]));
        c.step(seconds(4), announce(1, vec![request("c")]));
        assert_eq!(ran(&c.step(seconds(4), announce(2, vec![request("c")]))), ["c"]);
    }

    #[test]
    fn stalls_name_who_is_missing_and_what() {
        let limits = StallLimits { warn: seconds(60), shutdown: seconds(150) };
        let mut c = coordinator([3, 5, 8], limits);
        c.step(seconds(0), announce(3, vec![request("a")]));
        c.step(seconds(10), announce(5, vec![request("b"), request("a")]));
        assert!(c.step(seconds(59), Input::Tick).is_empty());
        let outputs = c.step(seconds(75), Input::Tick);
        let [Output::Stalled(report)] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert_eq!(report.waiting, seconds(75));
        assert_eq!(report.missing[&Rank::new(8)], ["a", "b"]);
        assert_eq!(report.missing[&Rank::new(3)], ["b"]);
        assert!(!report.missing.contains_key(&Rank::new(5)) && !report.fatal);
        // Once a warning period, and fatal at last.
        assert!(c.step(seconds(100), Input::Tick).is_empty());
        let outputs = c.step(seconds(160), Input::Tick);
        assert!(matches!(outputs.as_slice(), [Output::Stalled(StallReport { fatal: true, .. })]), "{outputs:?}");
    }

    #[test]
    fn strangers_are_told_so() {
        let mut c = coordinator([0, 1], NO_LIMITS);
        let outputs = c.step(seconds(0), announce(7, vec![request("a")]));
        let [Output::Fail { error, .. }] = outputs.as_slice() else { panic!("{outputs:?}") };
        assert!(error.to_string().contains("is not a member of the provided process set"));
    }

    proptest! {
        /// Whatever the orders in which members submit and their announcements arrive: every tensor runs exactly once,
        /// never before the last member is in, and nothing is left waiting.
        #[test]
        fn any_order_runs_everything_once(
            members in 1usize..9,
            tensors in 1usize..20,
            seed in any::<u64>(),
        ) {
            let mut random = seed | 1;
            let mut below = |n: usize| {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                (random % n as u64) as usize
            };
            let mut left: Vec<Vec<String>> = (0..members).map(|_| (0..tensors).map(|t| format!("t{t}")).collect()).collect();
            let mut c = Coordinator::new(Rank::all(members).collect(), NO_LIMITS);
            let mut seen: HashMap<String, usize> = HashMap::default();
            let mut done: Vec<String> = Vec::new();
            while left.iter().any(|l| !l.is_empty()) {
                let rank = below(members);
                if left[rank].is_empty() {
                    continue;
                }
                let at = below(left[rank].len());
                let name = left[rank].swap_remove(at);
                *seen.entry(name.clone()).or_default() += 1;
                for output in c.step(Duration::ZERO, announce(rank, vec![request(&name)])) {
                    let Output::Run(agreed) = output else { return Err(TestCaseError::fail("not a run")) };
                    for a in agreed {
                        prop_assert_eq!(seen[&a.name], members, "ran before all were in");
                        done.push(a.name.clone());
                    }
                }
            }
            prop_assert_eq!(c.waiting(), 0);
            done.sort();
            done.dedup();
            prop_assert_eq!(done.len(), tensors);
        }
    }
}
