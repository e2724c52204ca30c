//! Whether ranks wait for each other so that none of them can ever go on. Pure: no I/O, no clock.
//!
//! A rank is *blocked* if every thread of its program that takes part in the job waits for a tensor, and nothing of it is
//! on its way. Such a rank submits nothing until something it waits for is done. So if blocked ranks wait only for tensors
//! that others of these ranks have not submitted, none of them will ever move: that is a deadlock, and there is no need to
//! wait for a time limit to say so.
//!
//! How it is found, in every process set by itself:
//! 1. A member says to its parent when it and all below it are blocked, and when no longer ([`Watch`]). So the root learns
//!    when all are, and hears nothing before.
//! 2. The root asks everyone how it stands ([`Standing`]), twice. Who has stirred between the two answers is not blocked.
//!    Since all second answers are given after all first ones, there was a moment at which all were blocked, as they say.
//! 3. [`deadlocked`] looks for ranks that wait for nobody but each other.
//!
//! Why an answer can be trusted although ranks answer at different times: *not submitted* might also mean *already done*,
//! on a rank that has heard more of the set's log than another. So answers count the decisions that they have seen, and
//! those that differ prove nothing. All doubt is on the side of waiting on: a program that is wrongly taken for one that
//! may go on is found by the time limits instead.

use std::collections::BTreeMap;
use std::time::Duration;

use corro_core::{Error, Rank};
use serde::{Deserialize, Serialize};

use crate::coordinator::Time;
use crate::hash::HashMap;

/// How many names an answer has at most; thousands of ranks may answer at once.
pub const NAMES: usize = 64;
/// After an inquiry that proved nothing, the next one waits so long: at first, and at most.
const PAUSES: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(60));
/// How long members may take to answer.
const ANSWER_TIME: Duration = Duration::from_secs(2);

/// How a blocked rank stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing {
    /// Counts what the rank's threads did: if it is the same later, they have done nothing.
    pub stirred: u64,
    /// Where it runs.
    pub host: String,
    /// What its threads wait for: all of it.
    pub waits: Vec<Awaited>,
    /// The process sets it is a member of.
    pub sets: Vec<InSet>,
}

/// A tensor somebody waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Awaited {
    /// Of which process set.
    pub set: u32,
    /// Its name.
    pub name: String,
}

/// How a rank stands in one process set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InSet {
    /// Its number.
    pub set: u32,
    /// How many decisions on tensors it has heard there.
    pub decisions: u64,
    /// Whether it has run out of data, and so is not missing anywhere.
    pub joined: bool,
    /// What it has submitted that nothing was decided on.
    pub submitted: Vec<String>,
    /// Whether that is all of it.
    pub complete: bool,
}

impl InSet {
    /// Whether a tensor may still come to run as far as this rank is concerned.
    fn may_have(&self, name: &str) -> bool {
        self.joined || !self.complete || self.submitted.iter().any(|n| n == name)
    }
}

/// A rank that waits in vain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InVain {
    /// Who.
    pub rank: Rank,
    /// Where.
    pub host: String,
    /// For what, and who of the others in the circle has not submitted that.
    pub waits: Vec<(String, Vec<Rank>)>,
}

/// Those of these ranks that wait for nobody but each other: the largest such circle, empty if there is none.
pub fn deadlocked(standings: &BTreeMap<Rank, Standing>) -> Vec<InVain> {
    let mut circle: BTreeMap<Rank, &Standing> =
        standings.iter().filter(|(_, s)| !s.waits.is_empty()).map(|(rank, s)| (*rank, s)).collect();
    loop {
        let census = Census::of(&circle);
        let before = circle.len();
        circle.retain(|_, standing| standing.waits.iter().all(|awaited| census.is_hopeless(awaited)));
        if circle.len() == before {
            return circle.iter().map(|(rank, standing)| in_vain(*rank, standing, &circle)).collect();
        }
    }
}

fn in_vain(rank: Rank, standing: &Standing, circle: &BTreeMap<Rank, &Standing>) -> InVain {
    let missing = |awaited: &Awaited| {
        let lacks = |other: &Standing| other.sets.iter().any(|s| s.set == awaited.set && !s.may_have(&awaited.name));
        circle.iter().filter(|(_, other)| lacks(other)).map(|(rank, _)| *rank).collect()
    };
    let waits = standing.waits.iter().map(|awaited| (awaited.name.clone(), missing(awaited))).collect();
    InVain { rank, host: standing.host.clone(), waits }
}

/// What a number of ranks have submitted, by process set.
#[derive(Default)]
struct Census<'a> {
    sets: HashMap<u32, Members<'a>>,
}

#[derive(Default)]
struct Members<'a> {
    count: usize,
    /// That can't be missing anywhere.
    excused: usize,
    decisions: Option<u64>,
    /// Whether they have heard different parts of the log.
    apart: bool,
    submitted: HashMap<&'a str, usize>,
}

impl<'a> Census<'a> {
    fn of(circle: &BTreeMap<Rank, &'a Standing>) -> Self {
        let mut census = Self::default();
        for in_set in circle.values().flat_map(|standing| &standing.sets) {
            let members = census.sets.entry(in_set.set).or_default();
            members.count += 1;
            members.apart |= members.decisions.replace(in_set.decisions).is_some_and(|d| d != in_set.decisions);
            if in_set.joined || !in_set.complete {
                members.excused += 1;
            } else {
                for name in &in_set.submitted {
                    *members.submitted.entry(name).or_default() += 1;
                }
            }
        }
        census
    }

    /// Whether one of these ranks has not submitted this.
    fn is_hopeless(&self, awaited: &Awaited) -> bool {
        self.sets.get(&awaited.set).is_some_and(|members| {
            let have = members.submitted.get(awaited.name.as_str()).copied().unwrap_or(0) + members.excused;
            !members.apart && have < members.count
        })
    }
}

/// What all are told.
pub fn verdict(circle: &[InVain]) -> Error {
    const SHOWN: usize = 8;
    let wait = |InVain { rank, host, waits }: &InVain| {
        let each = |(name, missing): &(String, Vec<Rank>)| format!("'{name}', which {} not submitted", have(missing));
        let shown: Vec<String> = waits.iter().take(3).map(each).collect();
        let more = if waits.len() > 3 { format!(" (and {} more)", waits.len() - 3) } else { String::new() };
        format!("rank {rank} on {host} waits for {}{more}", shown.join(" and for "))
    };
    let mut lines: Vec<String> = circle.iter().take(SHOWN).map(wait).collect();
    if circle.len() > SHOWN {
        lines.push(format!("{} more ranks wait in the same way", circle.len() - SHOWN));
    }
    Error::Mismatch(format!(
        "deadlock: these ranks wait for each other, and nothing can end that: {}. All ranks must submit the same tensors: \
         look for a branch that only some of them take",
        lines.join("; ")
    ))
}

fn have(ranks: &[Rank]) -> String {
    const SHOWN: usize = 8;
    let shown: Vec<String> = ranks.iter().take(SHOWN).map(ToString::to_string).collect();
    match ranks.len() {
        1 => format!("rank {} has", shown[0]),
        n if n > SHOWN => format!("ranks {} and {} more have", shown.join(", "), n - SHOWN),
        _ => format!("ranks {} have", shown.join(", ")),
    }
}

/// What a member knows of who is blocked below it, since the root last asked.
#[derive(Debug, Default)]
pub struct Watch {
    round: u64,
    blocked: bool,
    children: usize,
    said: bool,
}

impl Watch {
    /// Which inquiry was the last.
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Whether this member is blocked at present.
    pub fn blocked(&mut self, blocked: bool) {
        self.blocked = blocked;
    }

    /// A child says that it and all below it are blocked, or no longer.
    pub fn child(&mut self, round: u64, blocked: bool) {
        if round == self.round {
            self.children = if blocked { self.children + 1 } else { self.children.saturating_sub(1) };
        }
    }

    /// What is to be said, if that is something new: whether this member and all its children are blocked.
    pub fn news(&mut self, children: usize) -> Option<bool> {
        let all = self.blocked && self.children >= children;
        (std::mem::replace(&mut self.said, all) != all).then_some(all)
    }

    /// The root asks: from here on all is said anew.
    pub fn asked(&mut self, round: u64) {
        *self = Self { round, ..Self::default() };
    }
}

/// The root's part: asks twice, and judges.
#[derive(Debug, Default)]
pub struct Inquiry {
    round: u64,
    /// All members were blocked, and nobody has asked yet.
    wanted: bool,
    /// Answers of the round under way, and until when they may come.
    open: Option<(BTreeMap<Rank, Standing>, Time)>,
    /// Of the round before, if that was a first one.
    first: Option<BTreeMap<Rank, Standing>>,
    /// No sooner than then.
    next: Time,
    pause: Duration,
}

/// What the root does next.
#[derive(Debug, PartialEq, Eq)]
pub enum Next {
    /// Ask all, by this number.
    Ask(u64),
    /// All are to be told this.
    Tell(Error),
}

impl Inquiry {
    /// All members are blocked, as far as they have said; or somebody is not any more.
    pub fn all_blocked(&mut self, blocked: bool) {
        self.wanted = blocked;
        if !blocked {
            self.pause = Duration::ZERO;
        }
    }

    /// When to look, if nothing happens before.
    pub fn next_look(&self) -> Option<Time> {
        match &self.open {
            Some((_, until)) => Some(*until),
            None => self.wanted.then_some(self.next),
        }
    }

    /// Time has passed, or all are blocked: begins an inquiry if it is time to.
    pub fn look(&mut self, now: Time) -> Option<Next> {
        if self.open.as_ref().is_some_and(|(_, until)| now >= *until) {
            self.give_up(now);
        }
        let begins = self.open.is_none() && now >= self.next && std::mem::take(&mut self.wanted);
        begins.then(|| self.ask(now))
    }

    /// A member answers; `None`: it is not blocked.
    pub fn answered(
        &mut self,
        now: Time,
        round: u64,
        rank: Rank,
        standing: Option<Standing>,
        members: usize,
    ) -> Option<Next> {
        let (answers, _) = self.open.as_mut().filter(|_| round == self.round)?;
        let Some(standing) = standing else {
            self.give_up(now);
            return None;
        };
        answers.insert(rank, standing);
        if answers.len() < members {
            return None;
        }
        let (answers, _) = self.open.take()?;
        match self.first.take() {
            None if deadlocked(&answers).is_empty() => {
                self.give_up(now);
                None
            }
            None => {
                self.first = Some(answers);
                Some(self.ask(now))
            }
            Some(first) => {
                // Who has stirred is not blocked, whatever it says now.
                let same = |(rank, s): &(Rank, Standing)| answers.get(rank).is_some_and(|a| a.stirred == s.stirred);
                let still: BTreeMap<Rank, Standing> = first.into_iter().filter(same).collect();
                let circle = deadlocked(&still);
                if circle.is_empty() {
                    self.give_up(now);
                    return None;
                }
                Some(Next::Tell(verdict(&circle)))
            }
        }
    }

    fn ask(&mut self, now: Time) -> Next {
        self.round += 1;
        self.open = Some((BTreeMap::new(), now + ANSWER_TIME));
        Next::Ask(self.round)
    }

    /// It proved nothing. All may be blocked again at once, without being able to prove it: that must not go on for ever.
    fn give_up(&mut self, now: Time) {
        (self.open, self.first) = (None, None);
        self.pause = (self.pause * 2).clamp(PAUSES.0, PAUSES.1);
        self.next = now + self.pause;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_set(set: u32, submitted: &[&str]) -> InSet {
        let submitted = submitted.iter().map(ToString::to_string).collect();
        InSet { set, decisions: 5, joined: false, submitted, complete: true }
    }

    /// A rank whose threads wait for these, and that has submitted just them.
    fn waits(for_what: &[(u32, &str)], sets: &[u32]) -> Standing {
        let of = |set: u32| for_what.iter().filter(|(s, _)| *s == set).map(|(_, n)| *n).collect::<Vec<_>>();
        Standing {
            stirred: 1,
            host: "node7".into(),
            waits: for_what.iter().map(|(set, name)| Awaited { set: *set, name: (*name).into() }).collect(),
            sets: sets.iter().map(|set| in_set(*set, &of(*set))).collect(),
        }
    }

    fn by_rank(standings: &[Standing]) -> BTreeMap<Rank, Standing> {
        Rank::all(standings.len()).zip(standings.iter().cloned()).collect()
    }

    fn circle(standings: &[Standing]) -> Vec<usize> {
        deadlocked(&by_rank(standings)).into_iter().map(|v| v.rank.index()).collect()
    }

    #[test]
    fn two_ranks_that_wait_for_different_tensors() {
        assert_eq!(circle(&[waits(&[(0, "a")], &[0]), waits(&[(0, "b")], &[0])]), [0, 1]);
        assert!(circle(&[waits(&[(0, "a")], &[0]), waits(&[(0, "a")], &[0])]).is_empty(), "that one is about to run");
    }

    #[test]
    fn the_text_says_who_waits_for_what() {
        let standings = [waits(&[(0, "a")], &[0]), waits(&[(0, "b")], &[0])];
        let text = verdict(&deadlocked(&by_rank(&standings))).to_string();
        assert!(text.contains("rank 0 on node7 waits for 'a', which rank 1 has not submitted"), "{text}");
        assert!(text.contains("rank 1 on node7 waits for 'b', which rank 0 has not submitted"), "{text}");
    }

    #[test]
    fn one_that_can_go_on_frees_those_that_wait_for_it() {
        let busy = Standing { waits: vec![], ..waits(&[], &[0]) };
        assert!(circle(&[waits(&[(0, "a")], &[0]), busy, waits(&[(0, "b")], &[0])]).len() < 3);
        // Ranks 1 and 2 will run "c" and then go on; rank 0 may be next.
        let c = [(0, "c")];
        assert!(circle(&[waits(&[(0, "c"), (0, "a")], &[0]), waits(&c, &[0]), waits(&c, &[0])]).is_empty());
    }

    #[test]
    fn circles_through_several_process_sets() {
        // 0 waits for 1 in set 1, 1 for 2 in set 2, 2 for 0 in set 3.
        let ranks = [waits(&[(1, "a")], &[0, 1, 3]), waits(&[(2, "b")], &[0, 1, 2]), waits(&[(3, "c")], &[0, 2, 3])];
        assert_eq!(circle(&ranks), [0, 1, 2]);
        let open = [ranks[0].clone(), ranks[1].clone(), waits(&[(2, "b")], &[0, 2, 3])];
        assert!(circle(&open).is_empty(), "b is about to run");
    }

    #[test]
    fn doubt_proves_nothing() {
        let (a, b) = (waits(&[(0, "a")], &[0]), waits(&[(0, "b")], &[0]));
        let mut ahead = b.clone();
        ahead.sets[0].decisions += 1;
        assert!(circle(&[a.clone(), ahead]).is_empty(), "it may have run a, of which rank 0 has not heard");
        let mut joined = b.clone();
        joined.sets[0].joined = true;
        assert!(circle(&[a.clone(), joined]).is_empty(), "nobody waits for it");
        let mut cut = b;
        cut.sets[0].complete = false;
        assert!(circle(&[a, cut]).is_empty(), "it may have submitted a");
    }

    #[test]
    fn the_root_asks_twice_and_believes_only_who_has_not_stirred() {
        let at = Duration::from_secs;
        let (a, b) = (waits(&[(0, "a")], &[0]), waits(&[(0, "b")], &[0]));
        let stirred = Standing { stirred: 2, ..b.clone() };
        for (second, found) in [(b.clone(), true), (stirred, false)] {
            let mut inquiry = Inquiry::default();
            assert_eq!(inquiry.look(at(0)), None);
            inquiry.all_blocked(true);
            assert_eq!(inquiry.look(at(1)), Some(Next::Ask(1)));
            assert_eq!(inquiry.answered(at(1), 1, Rank::ZERO, Some(a.clone()), 2), None);
            assert_eq!(inquiry.answered(at(1), 1, Rank::new(1), Some(b.clone()), 2), Some(Next::Ask(2)));
            assert_eq!(inquiry.answered(at(1), 1, Rank::ZERO, Some(a.clone()), 2), None, "an old answer");
            assert_eq!(inquiry.answered(at(1), 2, Rank::new(1), Some(second), 2), None);
            let told = inquiry.answered(at(1), 2, Rank::ZERO, Some(a.clone()), 2);
            assert_eq!(matches!(told, Some(Next::Tell(Error::Mismatch(_)))), found, "{told:?}");
        }
    }

    #[test]
    fn what_proves_nothing_is_asked_ever_more_rarely() {
        let mut inquiry = Inquiry::default();
        let (mut now, mut asked) = (Time::ZERO, 0);
        while now < Duration::from_secs(600) {
            inquiry.all_blocked(true);
            if let Some(Next::Ask(round)) = inquiry.look(now) {
                asked += 1;
                inquiry.answered(now, round, Rank::ZERO, None, 2);
            }
            now += Duration::from_millis(50);
        }
        assert!((8..20).contains(&asked), "{asked}");
    }

    #[test]
    fn what_is_new_is_said_once() {
        let mut watch = Watch::default();
        watch.blocked(true);
        assert_eq!(watch.news(1), None, "the child is not");
        watch.child(0, true);
        assert_eq!((watch.news(1), watch.news(1)), (Some(true), None));
        watch.child(0, false);
        assert_eq!((watch.news(1), watch.news(1)), (Some(false), None));
        watch.asked(1);
        watch.child(0, true);
        watch.blocked(true);
        assert_eq!(watch.news(1), None, "the child said so before it was asked");
    }
}
