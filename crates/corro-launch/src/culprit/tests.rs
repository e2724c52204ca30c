//! Stories of jobs that fail, in every order in which they may be heard, and whom they must lead to.

use std::time::Duration;

use corro_core::Exception;
use proptest::prelude::*;

use super::*;

const GRACE: Duration = Duration::from_millis(1500);

fn raised() -> Statement {
    let reason = Reason::Raised(Exception::new("ValueError", "bad", vec![]));
    Statement::Leaves { reason, because_of: None }
}

/// A job of fixed size: a process is called by its rank.
fn process(number: usize) -> ProcessId {
    ProcessId::of_rank(Rank::new(number))
}

fn suffers(from: usize, text: &str) -> Statement {
    Statement::suffers(Rank::new(from), text)
}

fn victim(of: usize) -> Statement {
    let reason = Reason::Raised(Exception::new("HorovodInternalError", "shut down", vec![]));
    Statement::Leaves { reason, because_of: Some(Rank::new(of)) }
}

fn ended(code: Option<i32>) -> Statement {
    Statement::Leaves { reason: Reason::Ended { code, after: None }, because_of: None }
}

/// What is heard, and what the launcher does then.
enum Heard {
    Says(usize, Statement),
    Ends(usize, Ending),
    /// The launcher asks all to end.
    EndAll,
    /// And has killed those that did not.
    Kill,
}
use Heard::{EndAll, Ends, Kill, Says};

fn culprit(story: Vec<Heard>) -> Option<Culprit> {
    let (mut deaths, start) = (Deaths::default(), Instant::now());
    let mut now = start;
    for heard in story {
        match heard {
            Says(by, statement) => {
                let known = |rank: Rank| (rank.index() < 7).then_some(ProcessId::of_rank(rank));
                deaths.stated(process(by), statement, known);
            }
            Ends(by, ending) => deaths.note(process(by), ending, now),
            EndAll => deaths.launcher_ends_all(start + GRACE),
            Kill => now = start + GRACE,
        }
    }
    deaths.culprit()
}

fn named(story: Vec<Heard>) -> Option<usize> {
    culprit(story).map(|culprit| culprit.process.number())
}

const OK: Ending = Ending::Code(0);
const ONE: Ending = Ending::Code(1);
const TERM: Ending = Ending::Signal(15);
const KILLED: Ending = Ending::Signal(9);

#[test]
fn without_statements_the_first_that_failed_is_named() {
    assert_eq!(named(vec![]), None);
    assert_eq!(named(vec![Ends(1, OK)]), None);
    assert_eq!(named(vec![Ends(1, OK), Ends(2, Ending::Code(3)), EndAll, Ends(0, ONE)]), Some(2));
    assert_eq!(named(vec![Ends(0, Ending::Signal(11)), EndAll, Ends(3, KILLED)]), Some(0));
}

#[test]
fn a_killed_process_comes_before_the_peers_it_took_along() {
    assert_eq!(named(vec![Ends(0, ONE), EndAll, Ends(3, KILLED)]), Some(3));
    // The launcher's own SIGTERM, and its SIGKILL later on, blame nobody.
    assert_eq!(named(vec![Ends(0, ONE), EndAll, Ends(1, TERM), Kill, Ends(3, KILLED)]), Some(0));
}

#[test]
fn those_whom_the_launcher_has_ended_are_not_to_blame_for_what_follows() {
    let told = |by, of| Says(by, suffers(of, "lost"));
    let ends = vec![Ends(3, KILLED), EndAll, Ends(0, TERM), told(5, 0), Says(5, victim(0)), told(4, 0), Ends(5, ONE)];
    assert_eq!(named(ends), Some(3));
}

#[test]
fn a_chain_of_blame_is_followed_though_most_of_it_is_heard_late() {
    let told = |by, of| Says(by, suffers(of, "lost"));
    let first = vec![told(4, 3), Ends(4, ONE), EndAll, told(3, 2), Ends(3, ONE), told(2, 1), told(1, 0)];
    let ends = vec![Ends(2, ONE), Ends(1, ONE), Says(0, raised()), Ends(0, ONE)];
    assert_eq!(named(first.into_iter().chain(ends).collect()), Some(0));
}

#[test]
fn a_victim_names_the_cause_though_it_ends_first() {
    let told = suffers(1, "lost rank 1");
    let found =
        culprit(vec![Says(0, told), Says(0, victim(1)), Ends(0, ONE), EndAll, Says(1, raised()), Ends(1, TERM)]);
    let found = found.unwrap();
    assert_eq!((found.process.number(), found.code, found.ending), (1, 1, None));
    assert_eq!(found.accusation.as_deref(), Some("lost rank 1"));
    assert!(found.reason.unwrap().to_string().contains("ValueError"));
}

#[test]
fn who_ends_early_in_good_order_is_the_cause_of_those_that_needed_it() {
    let told = || suffers(1, "shut down by rank 1");
    let story = vec![Says(1, ended(None)), Ends(1, OK), Says(0, told()), Says(0, victim(1)), Ends(0, ONE), EndAll];
    assert_eq!(culprit(story).map(|c| (c.process.number(), c.ending, c.code)), Some((1, Some(OK), 1)));
    // But not of what another does wrong later on, for its own reasons.
    let story = vec![Says(1, ended(None)), Ends(1, OK), Says(0, told()), Says(0, raised()), Ends(0, ONE), EndAll];
    assert_eq!(named(story), Some(0));
}

#[test]
fn one_that_made_others_wait_in_vain_is_named_though_it_never_ended() {
    let told = suffers(2, "rank 2 did not come");
    let found = culprit(vec![Says(0, told), Ends(0, Ending::Code(4)), EndAll, Kill, Ends(2, KILLED)]).unwrap();
    assert_eq!((found.process.number(), found.ending, found.code), (2, None, 4));
}

#[test]
fn those_without_whom_the_job_went_on_are_not_named() {
    let mut deaths = Deaths::default();
    deaths.note(process(1), KILLED, Instant::now());
    deaths.forgive();
    assert_eq!(deaths.culprit(), None);
    deaths.note(process(4), Ending::Code(2), Instant::now());
    assert_eq!(deaths.culprit().map(|culprit| culprit.process.number()), Some(4));
    // Nor those who were replaced before another failed.
    deaths.started(process(5));
    assert_eq!(deaths.culprit().map(|culprit| culprit.process.number()), Some(4));
    deaths.note(process(5), ONE, Instant::now());
    assert_eq!(deaths.culprit().map(|culprit| culprit.process.number()), Some(5));
}

#[test]
fn what_was_said_before_a_return_is_over() {
    let told = Says(0, suffers(1, "lost"));
    assert_eq!(named(vec![told, Says(0, Statement::Returns), Says(0, raised()), Ends(0, ONE)]), Some(0));
}

#[test]
fn if_two_accuse_each_other_the_first_word_counts() {
    let says = |by, of| Says(by, suffers(of, "lost"));
    assert_eq!(named(vec![says(0, 1), says(1, 0), Ends(1, ONE), Ends(0, ONE), EndAll]), Some(1));
    assert_eq!(named(vec![says(1, 0), says(0, 1), Ends(1, ONE), Ends(0, ONE), EndAll]), Some(0));
}

/// How the cause may come to its end.
#[derive(Clone, Copy, Debug)]
enum Way {
    Raises,
    ExitsWithWords,
    ExitsSilently,
    IsKilled,
    EndsEarly,
    EndsEarlySilently,
    Hangs,
}

/// And the others.
#[derive(Clone, Copy, Debug)]
enum Fate {
    /// Blames the cause.
    Victim,
    /// Blames another victim, which it has lost in turn.
    VictimOfVictim,
    /// Learns of it, and takes no notice.
    Told,
    /// Ends without a word.
    Voiceless,
    /// The launcher ends it.
    Ended,
    /// Answers the launcher's SIGTERM with an exception.
    RaisesWhenEnded,
    /// Loses one that the launcher has ended, before it is ended itself.
    LosesEnded,
    Finishes,
}

fn own_story(cause: usize, way: Way) -> (Vec<Heard>, Vec<Heard>) {
    let alone = |story: Vec<Heard>| (story, vec![]);
    match way {
        Way::Raises => alone(vec![Says(cause, raised()), Ends(cause, ONE)]),
        Way::ExitsWithWords => alone(vec![Says(cause, ended(Some(3))), Ends(cause, Ending::Code(3))]),
        Way::ExitsSilently => alone(vec![Ends(cause, Ending::Code(3))]),
        Way::IsKilled => alone(vec![Ends(cause, Ending::Signal(11))]),
        Way::EndsEarly => alone(vec![Says(cause, ended(None)), Ends(cause, OK)]),
        Way::EndsEarlySilently => alone(vec![Ends(cause, OK)]),
        Way::Hangs => (vec![], vec![Ends(cause, TERM)]),
    }
}

/// What is heard of a process by itself, and after the launcher has asked all to end.
fn story(process: usize, fate: Fate, blamed: usize) -> (Vec<Heard>, Vec<Heard>) {
    let told = || Says(process, suffers(blamed, "lost"));
    match fate {
        Fate::Victim | Fate::VictimOfVictim => {
            (vec![told(), Says(process, victim(blamed)), Ends(process, ONE)], vec![])
        }
        Fate::Told => (vec![told(), Ends(process, ONE)], vec![]),
        Fate::Voiceless => (vec![Ends(process, ONE)], vec![]),
        Fate::Ended => (vec![], vec![Ends(process, TERM)]),
        Fate::LosesEnded => (vec![], vec![told(), Says(process, victim(blamed)), Ends(process, ONE)]),
        Fate::RaisesWhenEnded => (vec![], vec![Says(process, raised()), Ends(process, ONE)]),
        Fate::Finishes => (vec![Ends(process, OK)], vec![]),
    }
}

/// One order in which all of it may be heard: that of each process stays, and the launcher acts on the first bad end.
fn shuffled(stories: Vec<(Vec<Heard>, Vec<Heard>)>, mut seed: u64) -> Vec<Heard> {
    let mut below = move |limit: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 33) as usize % limit
    };
    let mut pending: Vec<_> =
        stories.into_iter().map(|(alone, asked)| (alone.into_iter(), Some(asked.into_iter()))).collect();
    let (mut heard, mut asked) = (Vec::new(), false);
    loop {
        pending.retain(|(alone, last)| alone.len() > 0 || last.as_ref().is_some_and(|l| l.len() > 0));
        let ready: Vec<usize> = (0..pending.len()).filter(|at| asked || pending[*at].0.len() > 0).collect();
        if ready.is_empty() {
            return heard;
        }
        let (alone, last) = &mut pending[ready[below(ready.len())]];
        let Some(next) = alone.next().or_else(|| last.as_mut().and_then(Iterator::next)) else { return heard };
        let bad = matches!(&next, Ends(_, ending) if !ending.is_success());
        heard.push(next);
        if bad && !std::mem::replace(&mut asked, true) {
            heard.push(EndAll);
        }
    }
}

fn is_suspected(process: usize, story: &[Heard]) -> bool {
    story.iter().take_while(|heard| !matches!(heard, EndAll)).any(|heard| match heard {
        Says(by, Statement::Suffers { from, .. }) => [*by, from.index()].contains(&process),
        Says(by, _) | Ends(by, _) => *by == process,
        EndAll | Kill => false,
    })
}

fn ways() -> impl Strategy<Value = Way> {
    prop::sample::select(vec![
        Way::Raises,
        Way::ExitsWithWords,
        Way::ExitsSilently,
        Way::IsKilled,
        Way::EndsEarly,
        Way::EndsEarlySilently,
        Way::Hangs,
    ])
}

fn fates() -> impl Strategy<Value = Vec<Fate>> {
    let fate = prop::sample::select(vec![
        Fate::Victim,
        Fate::VictimOfVictim,
        Fate::Told,
        Fate::Voiceless,
        Fate::Ended,
        Fate::RaisesWhenEnded,
        Fate::LosesEnded,
        Fate::Finishes,
    ]);
    proptest::collection::vec(fate, 1..7)
}

proptest! {
    // Stories in which nobody can tell who it was are left out.
    #![proptest_config(ProptestConfig { cases: 2000, max_global_rejects: 100_000, ..ProptestConfig::default() })]

    /// In whatever order the ends of processes are heard, the cause is named as long as one of its victims can speak, and
    /// something was heard of it or against it before the launcher ended all.
    #[test]
    fn the_cause_is_named(way in ways(), fates in fates(), cause in 0usize..7, seed in any::<u64>()) {
        let size = fates.len() + 1;
        let cause = cause % size;
        let others: Vec<usize> = (0..size).filter(|p| *p != cause).collect();
        let mut stories = vec![own_story(cause, way)];
        let (mut last_victim, mut last_ended) = (None, None);
        for (process, fate) in others.into_iter().zip(fates) {
            // Whom a victim of a victim blames has blamed somebody before; the first can only blame the cause. Who
            // does not say so in its last words is not believed later, if the cause has just finished.
            let blamed = match fate {
                Fate::VictimOfVictim => last_victim,
                Fate::LosesEnded => last_ended,
                _ => None,
            };
            let blamed = blamed.unwrap_or(cause);
            stories.push(story(process, fate, blamed));
            if matches!(fate, Fate::Victim | Fate::VictimOfVictim | Fate::Told) {
                last_victim = Some(process);
            }
            if matches!(fate, Fate::Ended | Fate::RaisesWhenEnded | Fate::LosesEnded) {
                last_ended = Some(process);
            }
        }
        let story = shuffled(stories, seed);
        prop_assume!(last_victim.is_some() && is_suspected(cause, &story));
        prop_assert_eq!(named(story), Some(cause));
    }

    /// Whatever is said, by whomever and of whomever: somebody who exists is named, or nobody.
    #[test]
    fn nonsense_does_no_harm(said in proptest::collection::vec((0usize..5, 0usize..9, 0u8..6), 0..40)) {
        let story = said.into_iter().map(|(by, of, what)| match what {
            0 => Says(by, suffers(of, "x")),
            1 => Says(by, victim(of)),
            2 => Says(by, raised()),
            3 => Ends(by, if of % 2 == 0 { Ending::Code(of as i32) } else { Ending::Signal(of as i32) }),
            4 => EndAll,
            _ => Kill,
        });
        if let Some(found) = culprit(story.collect()) {
            prop_assert!(found.process.number() < 7 && found.code != 0);
        }
    }
}
