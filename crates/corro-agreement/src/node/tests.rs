//! Nodes of a few ranks, told what to hear, and asked what they say.

use std::collections::BTreeSet;
use std::time::Duration;

use corro_core::{Error, Exception, Rank, Reason};

use super::parts::PATIENCE;
use super::watching::VERDICT_TIME;
use super::*;
use crate::coordinator::{StallLimits, Time};
use crate::deadlock::{Awaited, InSet, Standing};
use crate::fusion;
use crate::message::{Decision, Up};
use crate::request::Request;
use crate::simulator::allreduce;
use crate::tree::neighbours;

/// Ranks whose messages arrive at once; what they were told to do; how many messages that took.
struct Ranks {
    nodes: Vec<Node>,
    actions: Vec<Vec<Action>>,
    messages: usize,
    now: Time,
}

impl Ranks {
    fn new(count: usize, rules: Rules) -> Self {
        let hosts = [(0..count).collect()];
        let node = |rank| Node::new(Rank::new(rank), Rank::all(count).collect(), neighbours(&hosts, 2, rank), rules);
        let nodes = (0..count).map(node).collect();
        Self { nodes, actions: (0..count).map(|_| Vec::new()).collect(), messages: 0, now: Time::ZERO }
    }

    fn submit(&mut self, rank: usize, request: Request) {
        self.nodes[rank].submit(self.now, request);
        self.settle();
    }

    fn submit_on_all(&mut self, request: &Request) {
        (0..self.nodes.len()).for_each(|rank| self.submit(rank, request.clone()));
    }

    /// Delivers messages until nobody has anything to say.
    fn settle(&mut self) {
        let mut quiet = false;
        while !std::mem::replace(&mut quiet, true) {
            for rank in 0..self.nodes.len() {
                let (up, down) = self.nodes[rank].flush(self.now);
                let actions = self.nodes[rank].take_actions();
                if actions.iter().any(|a| matches!(a, Action::Asked)) {
                    self.nodes[rank].answer("thinking".into(), false);
                }
                quiet &= up.is_empty() && down.is_empty() && actions.is_empty();
                self.actions[rank].extend(actions);
                let near = self.nodes[rank].neighbours().clone();
                if let Some(parent) = near.parent.filter(|_| !up.is_empty()) {
                    self.messages += 1;
                    for message in up {
                        self.nodes[parent].hear_child(self.now, message);
                    }
                }
                for child in near.children.into_iter().filter(|_| !down.is_empty()) {
                    self.messages += 1;
                    self.nodes[child].hear_parent(self.now, down.clone());
                }
            }
        }
    }

    fn pass(&mut self, time: Duration) {
        self.now += time;
        for rank in 0..self.nodes.len() {
            self.nodes[rank].tick(self.now);
        }
        self.settle();
    }

    /// What the root alone was told about stalls since the last call.
    fn stalls(&mut self) -> Vec<String> {
        let is_on_stall = |action: &mut Action| matches!(action, Action::Stalled(_) | Action::Overdue(_));
        let words = |action| match action {
            Action::Stalled(report) => format!("stalled by {:?}", report.missing.keys().collect::<Vec<_>>()),
            Action::Overdue(report) => report.to_string(),
            other => format!("{other:?}"),
        };
        let mut told: Vec<Vec<String>> =
            self.actions.iter_mut().map(|a| a.extract_if(.., is_on_stall).map(words).collect()).collect();
        assert!(told[1..].iter().all(Vec::is_empty), "one report is enough: {told:?}");
        told.swap_remove(0)
    }

    /// What the ranks were told since the last call: it must be the same for all.
    fn told(&mut self) -> Vec<String> {
        let words = |action: Action| match action {
            Action::Run(agreed) => {
                let names: Vec<&str> = agreed.iter().map(|a| a.name.as_str()).collect();
                format!("run {}", names.join(" "))
            }
            Action::Fail(names, _) => format!("fail {}", names.join(" ")),
            Action::AllJoined(last) => format!("joined, {last} last"),
            Action::Planned => "plan".into(),
            Action::Refined { from, to } => format!("{to} entries in place of {from}"),
            Action::PlanLeft { renew, .. } => format!("plan left, renew {renew}"),
            Action::Stalled(report) => format!("stalled by {:?}", report.missing.keys().collect::<Vec<_>>()),
            Action::Tune(bytes, _) => format!("tune {bytes}"),
            Action::Over(error) => format!("over: {error}"),
            Action::Silent(member, _) => format!("{member} is silent"),
            Action::Overdue(report) => format!("overdue: {report}"),
            Action::Deadlocked(error) => format!("deadlock: {error}"),
            Action::Asked | Action::AskedStanding(_) | Action::Heard(..) => String::new(),
        };
        let told: BTreeSet<Vec<String>> =
            self.actions.iter_mut().map(|a| a.drain(..).map(words).filter(|w| !w.is_empty()).collect()).collect();
        assert_eq!(told.len(), 1, "{told:?}");
        told.into_iter().next().unwrap()
    }

    /// Runs entry after entry of the plan on one rank; gives their names.
    fn follow(&mut self, rank: usize) -> Vec<String> {
        let mut ran = Vec::new();
        while let Some(agreed) = self.nodes[rank].begin(self.now) {
            ran.extend(agreed.iter().map(|a| a.name.clone()));
            self.nodes[rank].finished(self.now);
        }
        ran
    }

    /// Ranks that train on these tensors until they follow a plan.
    fn in_plan(count: usize, rules: Rules, step: &[Request]) -> Self {
        let mut ranks = Self::new(count, rules);
        while ranks.nodes[0].gear() != Gear::Plan {
            for request in step {
                ranks.submit_on_all(request);
            }
            assert!(ranks.messages < 10_000, "no plan");
        }
        (0..count).for_each(|rank| drop(ranks.follow(rank)));
        ranks.told();
        ranks.messages = 0;
        ranks
    }
}

fn a() -> Request {
    allreduce("a", 4)
}

fn b() -> Request {
    allreduce("b", 4)
}

fn second(s: u64) -> Duration {
    Duration::from_secs(s)
}

#[test]
fn what_is_new_is_announced_and_then_said_by_number() {
    let mut ranks = Ranks::new(7, Rules::default());
    ranks.submit_on_all(&a());
    assert_eq!((ranks.told(), ranks.nodes[3].gear()), (vec!["run a".to_owned()], Gear::Announce));
    ranks.submit_on_all(&a());
    assert_eq!((ranks.told(), ranks.nodes[3].gear()), (vec!["run a".to_owned()], Gear::Bits));
    assert_eq!(ranks.nodes[5].known(), [(0, "a")]);
}

#[test]
fn by_number_each_rank_speaks_to_its_parent_once_and_hears_once() {
    let mut ranks = Ranks::new(7, Rules { plans: false, ..Rules::default() });
    ranks.submit_on_all(&a());
    ranks.messages = 0;
    ranks.submit_on_all(&a());
    assert_eq!(ranks.messages, 2 * 6);
}

#[test]
fn what_has_changed_loses_its_number() {
    let mut ranks = Ranks::new(3, Rules::default());
    ranks.submit_on_all(&a());
    ranks.submit(0, a());
    ranks.submit(1, a());
    ranks.submit(2, allreduce("a", 5));
    assert_eq!(ranks.told(), ["run a", "fail a"], "all say it in full, and differ");
    ranks.submit_on_all(&allreduce("a", 5));
    assert_eq!((ranks.told(), ranks.nodes[2].known()), (vec!["run a".to_owned()], vec![(1, "a")]));
}

#[test]
fn in_a_plan_nothing_is_said() {
    let mut ranks = Ranks::in_plan(4, Rules { entry_cost: Duration::ZERO, ..Rules::default() }, &[a(), b()]);
    let pass = |ranks: &mut Ranks| {
        ranks.submit_on_all(&b());
        ranks.submit_on_all(&a());
        (0..4).for_each(|rank| assert_eq!(ranks.follow(rank), ["a", "b"]));
        ranks.settle();
    };
    (0..50).for_each(|_| pass(&mut ranks));
    assert_eq!((ranks.messages, ranks.told()), (0, vec![]));
}

/// One pass over `a` and `b`, submitted at once; gives how many entries that took.
fn pass(ranks: &mut Ranks) -> usize {
    ranks.submit_on_all(&b());
    ranks.submit_on_all(&a());
    let mut entries = Vec::new();
    for rank in 0..ranks.nodes.len() {
        let node = &mut ranks.nodes[rank];
        let begun = std::iter::from_fn(|| node.begin(ranks.now).inspect(|_| node.finished(ranks.now)));
        entries.push(begun.count());
    }
    ranks.settle();
    assert!(entries.windows(2).all(|w| w[0] == w[1]), "{entries:?}");
    entries[0]
}

#[test]
fn what_comes_at_once_is_merged_and_then_not_a_word_is_said() {
    let mut ranks = Ranks::in_plan(5, Rules::default(), &[a(), b()]);
    let entries: Vec<usize> = (0..6).map(|_| pass(&mut ranks)).collect();
    assert_eq!((entries[0], entries[5]), (2, 1), "{entries:?}");
    assert_eq!(ranks.told(), ["1 entries in place of 2"]);
    ranks.messages = 0;
    (0..50).for_each(|_| assert_eq!(pass(&mut ranks), 1));
    assert_eq!((ranks.messages, ranks.told()), (0, vec![]));
    // Left for a good reason, it comes back as it was.
    ranks.submit_on_all(&allreduce("new", 1));
    while ranks.nodes[0].gear() != Gear::Plan {
        ranks.submit_on_all(&a());
        ranks.submit_on_all(&b());
    }
    (0..5).for_each(|rank| drop(ranks.follow(rank)));
    ranks.told();
    assert_eq!(pass(&mut ranks), 1);
    assert_eq!(ranks.told(), [""; 0]);
}

#[test]
fn a_program_that_looks_in_between_is_never_made_to_wait() {
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
    for step in 0..50 {
        ranks.submit_on_all(&a());
        ranks.nodes[1].note_looks(step);
        ranks.submit_on_all(&b());
        (0..3).for_each(|rank| assert_eq!(ranks.follow(rank), ["a", "b"]));
        ranks.settle();
    }
    assert_eq!(ranks.told(), [""; 0]);
}

#[test]
fn whoever_wants_to_leave_while_a_plan_is_refined_does() {
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
    // Rank 2 is slow to hear of it.
    let mut halted = None;
    for _ in 0..5 {
        for request in [a(), b()] {
            (0..3).for_each(|rank| ranks.nodes[rank].submit(ranks.now, request.clone()));
        }
        for rank in 0..3 {
            while ranks.nodes[rank].begin(ranks.now).is_some() {
                ranks.nodes[rank].finished(ranks.now);
            }
            if rank > 0 {
                for said in ranks.nodes[rank].flush(ranks.now).0 {
                    ranks.nodes[0].hear_child(ranks.now, said);
                }
            }
        }
        let (_, down) = ranks.nodes[0].flush(ranks.now);
        if !down.is_empty() {
            halted = Some(down);
            break;
        }
    }
    let halted = halted.expect("it is to be refined");
    assert!(matches!(halted[..], [Decision::Halt { .. }]), "{halted:?}");
    ranks.nodes[1].hear_parent(ranks.now, halted.clone());
    ranks.nodes[2].submit(ranks.now, allreduce("new", 1));
    ranks.nodes[2].hear_parent(ranks.now, halted);
    ranks.settle();
    let told = ranks.told();
    assert_eq!(told, ["plan left, renew false"]);
    ranks.submit(0, allreduce("new", 1));
    ranks.submit(1, allreduce("new", 1));
    assert_eq!(ranks.told(), ["run new"]);
}

#[test]
fn tensors_without_names_come_into_the_plan_whatever_their_number() {
    let mut ranks = Ranks::new(3, Rules::default());
    // Five in a step, of different sizes: 256 names would mean something else in each.
    let mut steps = 0;
    while ranks.nodes[0].gear() != Gear::Plan {
        for tensor in 0..5 {
            for rank in 0..3 {
                let name = ranks.nodes[rank].name("allreduce");
                ranks.submit(rank, allreduce(&name, 1 + tensor));
            }
        }
        steps += 1;
        (0..3).for_each(|rank| ranks.nodes[rank].note_looks(steps));
        assert!(steps < 1000, "no plan");
    }
    (0..3).for_each(|rank| drop(ranks.follow(rank)));
    ranks.told();
    for step in 0..500 {
        if step == 300 {
            ranks.messages = 0;
        }
        for tensor in 0..5 {
            for rank in 0..3 {
                let name = ranks.nodes[rank].name("allreduce");
                ranks.submit(rank, allreduce(&name, 1 + tensor));
            }
        }
        (0..3).for_each(|rank| ranks.nodes[rank].note_looks(1000 + step));
        let ran: Vec<Vec<String>> = (0..3).map(|rank| ranks.follow(rank)).collect();
        assert!(ran[0].len() == 5 && ran[0] == ran[1] && ran[1] == ran[2], "{ran:?}");
        ranks.settle();
    }
    let told = ranks.told();
    assert_eq!(ranks.messages, 0, "{told:?}");
}

#[test]
fn after_a_join_all_count_from_the_beginning() {
    let mut ranks = Ranks::new(2, Rules::default());
    assert_eq!((ranks.nodes[1].name("x"), ranks.nodes[1].name("x")), ("x.noname.0".into(), "x.noname.1".into()));
    (0..2).for_each(|rank| ranks.nodes[rank].join(ranks.now));
    ranks.settle();
    assert_eq!(ranks.nodes[0].name("x"), ranks.nodes[1].name("x"));
}

#[test]
fn what_was_merged_wrongly_is_not_merged_again() {
    let mut ranks = Ranks::in_plan(2, Rules::default(), &[a(), b()]);
    for _ in 0..6 {
        pass(&mut ranks);
    }
    assert_eq!(ranks.told(), ["1 entries in place of 2"]);
    // From here on the program waits for `a` before it submits `b`.
    ranks.submit_on_all(&a());
    ranks.pass(PATIENCE);
    assert_eq!(ranks.told(), ["plan left, renew false", "run a"]);
    ranks.submit_on_all(&b());
    for _ in 0..200 {
        ranks.submit_on_all(&a());
        (0..2).for_each(|rank| drop(ranks.follow(rank)));
        ranks.submit_on_all(&b());
        (0..2).for_each(|rank| drop(ranks.follow(rank)));
    }
    let told = ranks.told();
    assert!(told.contains(&"plan".to_owned()) && !told.iter().any(|t| t.contains("in place")), "{told:?}");
}

#[test]
fn whoever_is_an_entry_ahead_when_a_plan_is_left_withdraws() {
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a(), b()]);
    ranks.submit(1, a());
    assert!(ranks.nodes[1].begin(ranks.now).is_some(), "waits inside for the others");
    ranks.submit(2, allreduce("new", 1));
    let withdraws = |a: &Action| matches!(a, Action::PlanLeft { withdraw: true, .. });
    assert_eq!([0, 1, 2].map(|rank: usize| ranks.actions[rank].iter().any(withdraws)), [false, true, false]);
    ranks.nodes[1].finished(ranks.now);
    assert_eq!(ranks.told(), ["plan left, renew true"]);
    // What it withdrew from is said by number as if there had been no plan.
    ranks.submit(0, a());
    ranks.submit(2, a());
    ranks.submit(0, allreduce("new", 1));
    ranks.submit(1, allreduce("new", 1));
    assert_eq!(ranks.told(), ["run a", "run new"]);
}

#[test]
fn the_rest_of_a_group_does_not_wait_for_what_a_plan_has_run() {
    let grouped = |name| Request { group: Some((1, 2)), ..allreduce(name, 4) };
    let unfused = Rules { fusion: fusion::Limits { threshold: 0, only_groups: false }, ..Rules::default() };
    let mut ranks = Ranks::in_plan(2, unfused, &[grouped("x"), grouped("y")]);
    ranks.submit(0, grouped("x"));
    assert!(!ranks.nodes[0].can_begin(), "nothing of a group runs before all of it is there");
    ranks.submit(0, grouped("y"));
    ranks.submit(1, grouped("x"));
    ranks.submit(1, grouped("y"));
    for rank in 0..2 {
        assert_eq!(ranks.nodes[rank].begin(ranks.now).unwrap()[0].name, "x");
        ranks.nodes[rank].finished(ranks.now);
    }
    ranks.submit_on_all(&allreduce("new", 1));
    assert_eq!(ranks.told(), ["plan left, renew false", "run y", "run new"]);
}

#[test]
fn a_plan_in_which_ranks_wait_in_vain_is_left() {
    let mut ranks = Ranks::in_plan(2, Rules::default(), &[a()]);
    ranks.submit(0, a());
    assert!(ranks.nodes[0].begin(ranks.now).is_some());
    ranks.pass(PATIENCE);
    assert_eq!(ranks.told(), ["plan left, renew true"]);
}

#[test]
fn a_rank_joins_once_all_it_submitted_has_run() {
    let mut ranks = Ranks::new(3, Rules::default());
    ranks.submit_on_all(&a());
    ranks.submit(2, a());
    ranks.nodes[2].join(ranks.now);
    ranks.settle();
    ranks.submit(0, a());
    ranks.submit(1, a());
    assert_eq!(ranks.told(), ["run a", "run a"], "with the data of rank 2");
    ranks.submit(0, a());
    ranks.submit(1, a());
    assert_eq!(ranks.told(), ["run a"], "without it");
    // What it submits while it stands aside waits until all have joined.
    ranks.submit(2, b());
    ranks.nodes[1].join(ranks.now);
    ranks.submit(0, b());
    assert_eq!(ranks.told(), ["run b"], "of rank 0 alone");
    ranks.nodes[0].join(ranks.now);
    ranks.submit(0, b());
    ranks.submit(1, b());
    assert_eq!(ranks.told(), ["joined, 0 last", "run b"]);
}

#[test]
fn a_join_or_a_shutdown_leaves_the_plan_first() {
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a()]);
    ranks.nodes[1].join(ranks.now);
    ranks.settle();
    assert_eq!(ranks.told(), ["plan left, renew false"]);
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a()]);
    let bad = Exception::new("ValueError", "bad batch", vec![]);
    ranks.nodes[2].shut_down("node7", Reason::Raised(bad));
    ranks.settle();
    let over = "over: Horovod has been shut down: rank 2 on node7 failed: ValueError: bad batch";
    assert_eq!(ranks.told(), ["plan left, renew false", over]);
    assert!(ranks.nodes.iter().all(Node::may_close), "all below have said goodbye");
}

#[test]
fn a_number_said_long_ago_is_said_in_full_so_that_the_missing_are_known() {
    let limits = StallLimits { warn: second(10), shutdown: second(30) };
    let mut ranks = Ranks::new(4, Rules { stalls: limits, ..Rules::default() });
    ranks.submit_on_all(&a());
    (0..3).for_each(|rank| ranks.submit(rank, a()));
    ranks.told();
    ranks.pass(second(5));
    assert!(ranks.told().is_empty());
    ranks.pass(second(5));
    assert_eq!(ranks.stalls(), ["stalled by [3]"], "at ten seconds, though it was announced at five");
    ranks.pass(second(20));
    let told = ranks.stalls();
    assert!(told.len() == 1 && told[0].contains("3!: [a] (thinking)"), "{told:?}");
    ranks.pass(second(20));
    assert!(ranks.stalls().is_empty(), "once it is too much, it is said once");
    let error = Error::peer_lost(Rank::new(3), "here", "it has made others wait");
    ranks.nodes[0].give_up(ranks.now, error.clone());
    ranks.settle();
    assert_eq!(ranks.told(), [format!("over: {error}")]);
}

#[test]
fn who_waits_for_a_join_that_does_not_come_is_told() {
    let limits = StallLimits { warn: second(10), shutdown: second(30) };
    let mut ranks = Ranks::new(3, Rules { stalls: limits, ..Rules::default() });
    ranks.nodes[1].join(ranks.now);
    ranks.settle();
    ranks.pass(second(6));
    ranks.submit(0, a());
    ranks.submit(2, a());
    ranks.pass(second(6));
    assert!(ranks.stalls().is_empty(), "the others go on");
    ranks.pass(second(4));
    assert_eq!(ranks.stalls(), ["stalled by [0, 2]"]);
    ranks.pass(second(20));
    let told = ranks.stalls();
    assert!(told.len() == 1 && told[0].contains("2!: [join]"), "{told:?}");
}

/// Says that all ranks are blocked: each waits for what it is said to wait for, and has submitted only that.
fn block(ranks: &mut Ranks, waits: &[&str]) -> Vec<Action> {
    for rank in 0..waits.len() {
        ranks.nodes[rank].blocked(ranks.now, true);
    }
    loop {
        ranks.settle();
        let mut asked = false;
        for (rank, name) in waits.iter().enumerate() {
            for action in std::mem::take(&mut ranks.actions[rank]) {
                match action {
                    Action::AskedStanding(round) => {
                        let decisions = ranks.nodes[rank].decisions();
                        let submitted = vec![(*name).to_owned()];
                        let in_set = InSet { set: 0, decisions, joined: false, submitted, complete: true };
                        let waits = vec![Awaited { set: 0, name: (*name).into() }];
                        let standing = Standing { stirred: 3, host: "here".into(), waits, sets: vec![in_set] };
                        ranks.nodes[rank].stands(ranks.now, round, Some(standing));
                        asked = true;
                    }
                    action => ranks.actions[rank].push(action),
                }
            }
        }
        if !asked {
            return ranks.actions.iter_mut().flat_map(std::mem::take).collect();
        }
    }
}

#[test]
fn ranks_that_wait_for_different_tensors_are_found_and_others_are_not() {
    let mut ranks = Ranks::new(5, Rules::default());
    ["a", "b", "a", "a", "b"].iter().enumerate().for_each(|(rank, name)| ranks.submit(rank, allreduce(name, 4)));
    let told = block(&mut ranks, &["a", "b", "a", "a", "b"]);
    let [Action::Deadlocked(error)] = told.as_slice() else { panic!("{told:?}") };
    let text = error.to_string();
    assert!(text.contains("rank 1 on here waits for 'b', which ranks 0, 2, 3 have not submitted"), "{text}");
    let mut ranks = Ranks::new(5, Rules::default());
    assert!(block(&mut ranks, &["a"; 5]).is_empty());
}

#[test]
fn who_is_blocked_says_so_to_its_parent_and_no_further_while_others_work() {
    let mut ranks = Ranks::new(7, Rules::default());
    ranks.nodes[3].blocked(ranks.now, true);
    ranks.settle();
    ranks.nodes[3].blocked(ranks.now, true);
    ranks.settle();
    assert_eq!(ranks.messages, 1);
    ranks.nodes[3].blocked(ranks.now, false);
    ranks.settle();
    assert_eq!(ranks.messages, 2);
    let mut ranks = Ranks::in_plan(3, Rules::default(), &[a()]);
    (0..3).for_each(|rank| ranks.nodes[rank].blocked(ranks.now, true));
    ranks.settle();
    assert_eq!(ranks.messages, 0, "in a plan nothing is said");
}

#[test]
fn what_the_root_hears_of_first_is_why_all_end() {
    let mut ranks = Ranks::new(7, Rules::default());
    ranks.nodes[5].fail(ranks.now, Error::Bug("first".into()));
    ranks.settle();
    ranks.nodes[6].fail(ranks.now, Error::Bug("second".into()));
    ranks.settle();
    assert!(ranks.told()[0].ends_with("first"));
}

#[test]
fn without_the_roots_word_a_member_goes_by_what_it_sees() {
    let mut ranks = Ranks::new(3, Rules::default());
    let error = Error::peer_lost(Rank::new(0), "here", "gone");
    ranks.nodes[1].fail(ranks.now, Error::Bug("mine".into()));
    ranks.nodes[1].heard_from(ranks.now, 0);
    ranks.nodes[1].tick(VERDICT_TIME);
    assert_eq!(ranks.nodes[1].over(), Some(&Error::Bug("mine".into())));
    ranks.nodes[2].lost(ranks.now, 0, error.clone());
    assert_eq!(ranks.nodes[2].over(), Some(&error), "nobody is left to tell it more");
}

#[test]
fn if_the_parent_does_not_answer_either_it_is_the_one_to_blame() {
    let mut ranks = Ranks::new(3, Rules::default());
    ranks.nodes[1].fail(ranks.now, Error::peer_lost(Rank::new(2), "here", "it has left"));
    assert_eq!(ranks.nodes[1].flush(ranks.now).0[0], Up::AreYouThere);
    ranks.nodes[1].tick(VERDICT_TIME);
    assert!(ranks.nodes[1].take_actions().is_empty(), "it may be slow");
    let last = ranks.nodes[1].next_tick().unwrap();
    assert!(last > VERDICT_TIME && last < Rules::default().timeout / 4, "{last:?}");
    ranks.nodes[1].tick(last);
    assert!(matches!(ranks.nodes[1].take_actions()[..], [Action::Silent(0, _)]));
}

#[test]
fn who_left_because_a_child_of_the_root_is_silent_is_not_to_blame() {
    let Rules { timeout, .. } = Rules::default();
    let mut ranks = Ranks::new(7, Rules::default());
    let root = &mut ranks.nodes[0];
    root.waits(Some(Time::ZERO));
    root.tick(timeout / 4);
    assert_eq!(root.flush(timeout / 4).1, [Decision::AreYouThere]);
    root.heard_from(timeout / 4, 1);
    // Rank 6 has seen that rank 2, through which it speaks, is silent: it has left, and another has seen that.
    let later = timeout / 4 + timeout / 8;
    root.tick(later);
    root.hear_child(later, Up::Failed(Rank::new(5), Error::peer_lost(Rank::new(6), "here", "it has left")));
    root.tick(later + VERDICT_TIME / 2);
    assert!(matches!(root.take_actions()[..], [Action::Silent(2, _)]));
}

#[test]
fn what_is_seen_in_the_tree_counts_more_than_what_is_seen_in_a_collective() {
    let mut ranks = Ranks::new(7, Rules::default());
    ranks.nodes[5].fail(ranks.now, Error::peer_lost(Rank::new(4), "here", "it has left"));
    ranks.settle();
    assert!(ranks.told().is_empty(), "the root listens");
    ranks.nodes[2].lost(ranks.now, 6, Error::peer_lost(Rank::new(6), "here", "gone"));
    ranks.settle();
    assert_eq!(ranks.told(), ["over: lost rank 6 on here: gone"]);
    let mut ranks = Ranks::new(7, Rules::default());
    ranks.nodes[5].fail(ranks.now, Error::peer_lost(Rank::new(4), "here", "it has left"));
    ranks.nodes[4].fail(ranks.now, Error::peer_lost(Rank::new(3), "here", "stuck"));
    ranks.settle();
    ranks.pass(VERDICT_TIME / 2);
    assert_eq!(ranks.told(), ["over: lost rank 3 on here: stuck"], "who accuses another is not the cause");
}

#[test]
fn a_dead_child_is_not_waited_for_at_the_end() {
    let mut ranks = Ranks::new(3, Rules::default());
    ranks.nodes[0].lost(ranks.now, 2, Error::peer_lost(Rank::new(2), "here", "gone"));
    assert!(!ranks.nodes[0].may_close(), "rank 1 has not been told yet");
    ranks.settle();
    assert!(ranks.nodes[0].may_close());
}
