//! The control plane under chaos: hundreds of seeds, each a job of its own.
//!
//! When a seed fails, the test says which and how to see what happened:
//! `CORRO_SIM_SEED=17 cargo test -p corro-agreement --test simulation replay -- --nocapture`.

use std::collections::BTreeSet;
use std::time::Duration;

use corro_agreement::coordinator::StallLimits;
use corro_agreement::simulator::chaos::{End, scenario};
use corro_agreement::simulator::{Report, Scenario, Step, World, allreduce};
use corro_core::{Error, Rank};

/// Runs seeds; panics with the first that fails, what failed, and how to see more.
fn run(seeds: impl Iterator<Item = u64>) -> Vec<Report> {
    seeds
        .map(|seed| {
            World::run(&scenario(seed, End::of(seed)), seed, false).unwrap_or_else(|violation| {
                panic!(
                    "seed {seed}, {}\nto see what led to it: CORRO_SIM_SEED={seed} cargo test -p corro-agreement --test \
                     simulation replay -- --nocapture",
                    violation.what
                )
            })
        })
        .collect()
}

/// Seeds that end like this.
fn seeds(end: End, count: u64) -> impl Iterator<Item = u64> {
    (0..).filter(move |seed| End::of(*seed) == end).take(count as usize)
}

#[test]
fn replay() {
    let Some(seed) = corro_testing::number("CORRO_SIM_SEED") else { return };
    let scenario = scenario(seed, End::of(seed));
    let Scenario { ranks, per_host, fan_out, sets, rules, deaths, freezes, stops, .. } = &scenario;
    println!("{ranks} ranks on hosts of {per_host}, fan-out {fan_out}, sets {sets:?}\n{rules:?}");
    println!("dies: {deaths:?}, freezes: {freezes:?}, stops: {stops:?}");
    match World::run(&scenario, seed, true) {
        Ok(report) => println!("all is well: {} events, {} plans", report.events, report.plans),
        Err(violation) => {
            violation.trace.iter().for_each(|line| println!("{line}"));
            panic!("{}", violation.what);
        }
    }
}

#[test]
fn any_order_any_delay_any_sets() {
    let reports = run(seeds(End::Finished, 160));
    // The chaos must reach the places it is meant for.
    assert!(reports.iter().map(|r| r.plans).sum::<u64>() > 500);
    assert!(reports.iter().map(|r| r.withdrawals).sum::<u64>() > 50);
    assert!(reports.iter().map(|r| r.refinements).sum::<u64>() > 20);
    assert!(reports.iter().flat_map(|r| r.verdicts.values()).flatten().count() > 50, "mismatches");
}

#[test]
fn results_are_the_same_as_without_plans() {
    for seed in seeds(End::Finished, 60) {
        let with = scenario(seed, End::Finished);
        let mut without = with.clone();
        without.rules.plans = false;
        let verdicts =
            |s: &Scenario| World::run(s, seed, false).unwrap_or_else(|v| panic!("seed {seed}: {}", v.what)).verdicts;
        assert!(verdicts(&with) == verdicts(&without), "seed {seed}");
    }
}

#[test]
fn a_shutdown_anywhere_reaches_all() {
    run(seeds(End::Shutdown, 80));
}

#[test]
fn a_failure_anywhere_reaches_all() {
    run(seeds(End::Failure, 60));
}

#[test]
fn a_death_at_any_time_is_known_to_all_by_name() {
    run(seeds(End::Death, 80));
}

#[test]
fn a_standstill_at_any_time_is_known_by_name_to_all_who_wait() {
    let reports = run(seeds(End::Stop, 100));
    let lost = |r: &&Report| r.over.iter().flatten().flatten().any(|(e, _)| matches!(e, Error::PeerLost { .. }));
    assert!(reports.iter().filter(lost).count() > 50, "the chaos must reach the places it is meant for");
}

/// `steps` times: submit some tensors, wait for them, take a mark.
fn training(scenario: &mut Scenario, steps: usize) {
    let names: Vec<String> = (0..4).map(|i| format!("gradient{i}")).collect();
    for program in &mut scenario.programs {
        for tag in 0..steps as u64 {
            program.extend(names.iter().map(|n| Step::Submit { set: 0, request: allreduce(n, 100), tag, fails: None }));
            program.extend([Step::Wait { set: 0, names: names.clone() }, Step::Mark]);
        }
    }
}

fn ran_well(scenario: &Scenario) -> Report {
    World::run(scenario, 1, true).unwrap_or_else(|v| panic!("{}\n{}", v.trace.join("\n"), v.what))
}

#[test]
fn in_a_plan_not_a_word_is_said() {
    let mut scenario = Scenario::new(24, 4, 3);
    scenario.between.1 = Duration::from_micros(300);
    scenario.lane = Duration::from_micros(300);
    training(&mut scenario, 60);
    let report = ran_well(&scenario);
    assert_eq!(report.plans, 24, "every rank follows one plan");
    let late: BTreeSet<u64> = report.marks.iter().flat_map(|marks| &marks[20..]).copied().collect();
    assert_eq!(late.len(), 1, "messages in all, from the twentieth step on: {late:?}");
}

/// Ranks that submit one by one, with pauses between that let every tensor run by itself at first.
fn one_by_one(scenario: &mut Scenario, steps: usize, pause: Duration) {
    for program in &mut scenario.programs {
        for tag in 0..steps as u64 {
            for i in 0..6 {
                let request = allreduce(&format!("gradient{i}"), 100);
                program.push(Step::Submit { set: 0, request, tag, fails: None });
                program.push(Step::Compute(pause));
            }
            let names = (0..6).map(|i| format!("gradient{i}")).collect();
            program.extend([Step::Wait { set: 0, names }, Step::Mark]);
        }
    }
}

#[test]
fn a_refined_plan_is_as_silent_as_any() {
    let mut scenario = Scenario::new(24, 4, 3);
    one_by_one(&mut scenario, 120, Duration::from_micros(20));
    let report = ran_well(&scenario);
    assert_eq!((report.plans, report.withdrawals), (24, 0), "one plan, which nobody left or withdrew from");
    assert!(report.refinements >= 24, "{}", report.refinements);
    let late: BTreeSet<u64> = report.marks.iter().flat_map(|marks| &marks[100..]).copied().collect();
    assert_eq!(late.len(), 1, "messages in all, from the hundredth step on: {late:?}");
}

#[test]
fn what_overlaps_with_computing_stays_apart() {
    let mut scenario = Scenario::new(24, 4, 3);
    one_by_one(&mut scenario, 60, Duration::from_millis(2));
    assert_eq!(ran_well(&scenario).refinements, 0);
}

#[test]
fn leaving_a_plan_costs_one_round() {
    leaving_costs_one_round(10, training);
}

#[test]
fn leaving_a_refined_plan_costs_one_round() {
    leaving_costs_one_round(100, |scenario, steps| one_by_one(scenario, steps, Duration::from_micros(20)));
}

fn leaving_costs_one_round(steps: usize, train: impl Fn(&mut Scenario, usize)) {
    let messages = |odd: bool| {
        let mut scenario = Scenario::new(24, 4, 3);
        train(&mut scenario, steps);
        if odd {
            for program in &mut scenario.programs {
                let names = vec!["new".to_owned()];
                program.push(Step::Submit { set: 0, request: allreduce("new", 7), tag: 0, fails: None });
                program.push(Step::Wait { set: 0, names });
            }
        }
        let report = ran_well(&scenario);
        *report.sent[0].iter().max().expect("there are ranks")
    };
    // Per rank at most: ask, stop, announce; and for each child: halt, resume, run.
    let children = 6;
    assert!(messages(true) - messages(false) <= 3 + 4 * children, "{} {}", messages(true), messages(false));
}

#[test]
fn messages_by_number_do_not_depend_on_how_many_ranks_there_are() {
    let most = |ranks: usize, steps: usize| {
        let mut scenario = Scenario::new(ranks, 8, 32);
        scenario.rules.plans = false;
        training(&mut scenario, steps);
        let Report { sent, received, .. } = ran_well(&scenario);
        let leaf = ranks - 1;
        (sent[0][leaf] + received[0][leaf], (1..ranks).map(|r| sent[0][r]).max().unwrap_or(0))
    };
    let a_step = |ranks| {
        let ((leaf, any), (leaf_before, any_before)) = (most(ranks, 5), most(ranks, 4));
        (leaf - leaf_before, any - any_before)
    };
    assert_eq!(a_step(64).0, a_step(512).0);
    assert!(a_step(512).1 <= 4 * (1 + 7 + 32), "for each tensor: one to the parent, one to each child");
}

/// Trains, then withholds a tensor on rank 5 for a long time.
fn stalling(plans: bool, limits: StallLimits) -> Scenario {
    let mut scenario = Scenario::new(9, 3, 2);
    scenario.rules.plans = plans;
    scenario.rules.stalls = limits;
    training(&mut scenario, 10);
    for (rank, program) in scenario.programs.iter_mut().enumerate() {
        if rank == 5 {
            program.push(Step::Compute(Duration::from_secs(25)));
        }
    }
    let mut after = Scenario::new(9, 3, 2);
    training(&mut after, 3);
    for (program, more) in scenario.programs.iter_mut().zip(after.programs) {
        program.extend(more.into_iter().map(|step| match step {
            Step::Submit { set, request, tag, fails } => Step::Submit { set, request, tag: tag + 100, fails },
            other => other,
        }));
    }
    scenario
}

#[test]
fn a_rank_that_withholds_a_tensor_is_named_in_time() {
    for plans in [false, true] {
        let warn = Duration::from_secs(10);
        let report = ran_well(&stalling(plans, StallLimits { warn, shutdown: Duration::ZERO }));
        assert!(report.stalls[0][1..].iter().all(Vec::is_empty), "the root tells for all");
        {
            let stalls = &report.stalls[0][0];
            let (stall, at) = stalls.first().expect("the root tells");
            assert!(*at <= Duration::from_millis(10_500), "told at {at:?}");
            assert_eq!(stall.missing.keys().collect::<Vec<_>>(), [&Rank::new(5)], "{stall}");
            assert!(stall.doing[&Rank::new(5)].contains("rank 5 is in a test"), "{stall}");
            assert_eq!(stalls.len(), 2, "at ten and at twenty seconds");
        }
    }
}

#[test]
fn a_deadlock_at_the_end_of_any_job_is_found_at_once() {
    let mut found = 0;
    for seed in 0..150 {
        let scenario = scenario(seed, End::Deadlock);
        if !scenario.deadlock {
            continue;
        }
        let report = World::run(&scenario, seed, false).unwrap_or_else(|v| panic!("seed {seed}: {}", v.what));
        for over in &report.over[0] {
            let (error, at) = over.as_ref().unwrap_or_else(|| panic!("seed {seed}: somebody still waits"));
            let text = error.to_string();
            assert!(text.contains("waits for 'x'") && text.contains("waits for 'y'"), "seed {seed}: {text}");
            assert!(report.end.saturating_sub(*at) < Duration::from_secs(1), "seed {seed}");
        }
        found += 1;
    }
    assert!(found > 100, "{found}");
}

#[test]
fn a_deadlock_is_found_within_a_second_in_a_large_job_too() {
    let mut scenario = Scenario::new(300, 5, 2);
    scenario.between.1 = Duration::from_micros(500);
    scenario.deadlock = true;
    training(&mut scenario, 8);
    for (rank, program) in scenario.programs.iter_mut().enumerate() {
        let name = if rank == 133 { "own" } else { "late" };
        program.push(Step::Submit { set: 0, request: allreduce(name, 7), tag: 0, fails: None });
        program.push(Step::Wait { set: 0, names: vec![name.into()] });
    }
    let report = ran_well(&scenario);
    let (error, at) = report.over[0][7].as_ref().expect("it is over");
    assert!(error.to_string().contains("waits for 'late', which rank 133 has not submitted"), "{error}");
    assert!(*at < Duration::from_secs(1), "{at:?}");
}

#[test]
fn after_the_shutdown_time_all_fail_with_the_same_text() {
    for plans in [false, true] {
        for warn in [0, 3, 20] {
            let limits = StallLimits { warn: Duration::from_secs(warn), shutdown: Duration::from_secs(7) };
            let report = ran_well(&stalling(plans, limits));
            for over in &report.over[0] {
                let (error, at) = over.as_ref().expect("it is over for all");
                assert!(error.blames() == Some(Rank::new(5)) && error.to_string().contains("5!"), "{error}");
                assert!(*at <= Duration::from_secs(9), "{at:?}");
            }
        }
    }
}

#[test]
fn a_rank_that_stands_still_in_a_plan_is_named() {
    let mut scenario = Scenario::new(9, 9, 32);
    scenario.rules.stalls.warn = Duration::from_secs(10);
    training(&mut scenario, 40);
    for program in &mut scenario.programs {
        program.insert(100, Step::Compute(Duration::from_millis(20)));
    }
    scenario.freezes.push((Rank::new(5), Duration::from_millis(10), Duration::from_secs(25)));
    let report = ran_well(&scenario);
    let (stall, at) = report.stalls[0][0].first().expect("the root tells");
    assert_eq!(stall.missing.keys().collect::<Vec<_>>(), [&Rank::new(5)], "{stall}");
    assert!(!stall.missing[&Rank::new(5)].is_empty() && *at <= Duration::from_secs(13), "{stall} at {at:?}");
}

#[test]
fn a_rank_that_stands_still_for_good_is_lost_in_time_wherever_it_is() {
    for plans in [false, true] {
        // The root, the first of a host, one in the middle of the tree, a leaf.
        for stops in [0, 6, 1, 20].map(Rank::new) {
            let mut scenario = Scenario::new(21, 3, 2);
            scenario.rules.plans = plans;
            scenario.rules.timeout = Duration::from_secs(40);
            training(&mut scenario, 40);
            for program in &mut scenario.programs {
                program.insert(100, Step::Compute(Duration::from_millis(20)));
            }
            scenario.stops.push((stops, Duration::from_millis(10)));
            let report = ran_well(&scenario);
            for (rank, over) in report.over[0].iter().enumerate().filter(|(rank, _)| *rank != stops.index()) {
                let (error, at) = over.as_ref().unwrap_or_else(|| panic!("rank {rank} waits for {stops}"));
                assert_eq!(error.blames(), Some(stops), "{error}");
                assert!(*at <= Duration::from_secs(31), "{rank} knows at {at:?}");
            }
        }
    }
}

#[test]
fn a_busy_program_is_never_lost() {
    for plans in [false, true] {
        let mut scenario = stalling(plans, StallLimits { warn: Duration::ZERO, shutdown: Duration::ZERO });
        scenario.rules.timeout = Duration::from_secs(1);
        let report = ran_well(&scenario);
        assert!(report.over[0].iter().all(Option::is_none));
    }
}

#[test]
fn a_large_job_with_a_deep_tree() {
    let mut scenario = Scenario::new(300, 5, 2);
    scenario.between.1 = Duration::from_micros(500);
    scenario.dither = Duration::from_micros(50);
    training(&mut scenario, 8);
    assert_eq!(ran_well(&scenario).verdicts.len(), 32);
}
