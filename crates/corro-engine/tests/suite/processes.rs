//! Ranks as real processes: what happens to those that are left when one dies, stops, leaves or ends the job.
//!
//! Unless a test says otherwise ranks may wait 30 s for each other, so an error that comes within [`PROMPT`] has not come
//! from waiting.

use std::process::Command;
use std::time::{Duration, Instant};

use crate::support::{numbers, sum};
use corro_core::{Error, Result};
use corro_engine::{Engine, GLOBAL, Gear, Outcome};
use corro_testing::job::{Job, Plan, role, say, say_result, wait_for_go};
use rustix::process::Signal;

/// Well before any limit of 30 s, and well after one of 4 s.
const PROMPT: Duration = Duration::from_secs(20);

/// What the processes that the tests below start do: `role`, `role:victim` or `role:victim:gear`.
#[test]
#[ignore = "a rank that other tests start"]
fn rank_process() {
    let Some(role) = role() else { return };
    let mut words = role.split(':');
    let role = words.next().unwrap_or_default();
    let victim = words.next().and_then(|v| v.parse::<usize>().ok());
    if role == "again" {
        return again();
    }
    let engine = Engine::from_env(0).expect("joining the job");
    let is_victim = victim == Some(engine.rank().index());
    match role {
        "wait" => {
            let gear = words.next().expect("a gear");
            warm(&engine, gear);
            wait(&engine, is_victim, gear != "plan");
        }
        // Something new, for which the plan is left.
        "stray" => {
            warm(&engine, "plan");
            wait(&engine, is_victim, true);
        }
        "leave" => {
            let gear = words.next().expect("a gear");
            warm(&engine, gear);
            if is_victim {
                say("in");
                wait_for_go();
                // Neither drops the engine nor says goodbye.
                std::process::exit(0);
            }
            wait(&engine, false, gear != "plan");
        }
        // All wait for the victim, which comes.
        "late" => {
            warm(&engine, words.next().expect("a gear"));
            say("in");
            wait_for_go();
            say_result(&engine.run(sum("x", &[1.0; 100])));
        }
        // All wait for the same tensor, but for the victim.
        "apart" => {
            warm(&engine, words.next().expect("a gear"));
            say("in");
            wait_for_go();
            say_result(&engine.run(sum(if is_victim { "own" } else { "common" }, &[1.0; 100])));
        }
        "busy" => busy(&engine),
        "end" => end(&engine, is_victim),
        other => panic!("no such role: {other}"),
    }
}

/// Steps until ranks agree by `gear`.
fn warm(engine: &Engine, gear: &str) {
    let steps = if gear == "announce" { 0 } else { 8 };
    for _ in 0..steps {
        engine.run(sum("x", &[1.0; 100])).expect("a step");
    }
    let plan = engine.gear(GLOBAL).expect("the gear") == Gear::Plan;
    assert_eq!(plan, gear == "plan", "{gear}");
}

/// All but the victim wait for tensors that the victim does not submit, until something happens to it.
fn wait(engine: &Engine, is_victim: bool, another: bool) {
    say("in");
    wait_for_go();
    if is_victim {
        // Told to go on, it comes late. What the others had left for it, it may still find.
        let result = (0..3).try_for_each(|_| engine.run(sum("x", &[1.0; 100])).map(drop));
        return say_result(&result);
    }
    // One is driven by the program that waits, one is nobody's business for now.
    let other = another.then(|| engine.submit(sum("y", &[1.0; 100])));
    let first = engine.run(sum("x", &[1.0; 100])).map(drop);
    say_result(&first);
    let start = Instant::now();
    let wait = |ticket: Result<corro_engine::Ticket>| ticket.and_then(corro_engine::Ticket::wait).map(drop);
    let other = other.map_or_else(|| first.clone(), wait);
    let later = [other, engine.run(sum("z", &[1.0])).map(drop), engine.submit(sum("w", &[1.0])).map(drop)];
    let at_once = start.elapsed() < PROMPT;
    say(if at_once && later.iter().all(|l| *l == first) {
        "the same later".into()
    } else {
        format!("{later:?} later")
    });
    assert_eq!(engine.over(), first.err());
}

/// Works with large and small tensors in flight until something happens.
fn busy(engine: &Engine) {
    let sizes = [16_384, 2_000_000, 100, 300_000];
    let step = || -> Result<()> {
        let submit = |(i, len): (usize, &usize)| engine.submit(sum(format!("t{i}"), &vec![1.0; *len]));
        let tickets: Vec<_> = sizes.iter().enumerate().map(submit).collect::<Result<_>>()?;
        let results: Vec<Result<Outcome>> = tickets.into_iter().map(corro_engine::Ticket::wait).collect();
        for (result, len) in results.into_iter().zip(sizes) {
            assert_eq!(numbers(result?), vec![engine.size() as f32; len]);
        }
        Ok(())
    };
    step().expect("a first step");
    say("in");
    let error = loop {
        if let Err(error) = step() {
            break error;
        }
    };
    say_result::<()>(&Err(error));
}

/// The victim ends the job while others compute.
fn end(engine: &Engine, is_victim: bool) {
    engine.run(sum("x", &[1.0])).expect("a first step");
    say("in");
    wait_for_go();
    if is_victim {
        engine.shutdown();
    } else {
        let (start, mut sink) = (Instant::now(), 0u64);
        while start.elapsed() < Duration::from_millis(500) {
            sink = std::hint::black_box(sink + 1);
        }
    }
    let result = engine.run(sum("x", &[1.0]));
    say(matches!(result, Err(Error::Shutdown(_))));
}

/// Joins the job again and again.
fn again() {
    for epoch in 0..5 {
        let engine = Engine::from_env(epoch).expect("joining the job");
        for step in 0..8 {
            let total = numbers(engine.run(sum("x", &[epoch as f32])).expect("a step"));
            assert_eq!(total, [epoch as f32 * engine.size() as f32], "epoch {epoch}, step {step}");
        }
        // Not all at the same time, and not always by hand.
        std::thread::sleep(Duration::from_millis(20 * (engine.rank().index() as u64)));
        if epoch % 2 == 0 {
            engine.shutdown();
        }
    }
    say("ok");
}

type Layout = fn(usize, &mut Command);

const LAYOUTS: [(&str, Layout); 3] = [
    ("on one host", |_, _| {}),
    ("each on its own host", |rank, command| {
        command.env("CORRO_HOSTNAME", format!("host{rank}"));
    }),
    ("two a host", |rank, command| {
        command.env("CORRO_HOSTNAME", format!("host{}", rank / 2));
    }),
];

/// Tests `act` in each layout, side by side: most of the time all wait for a limit to pass.
fn side_by_side(layouts: &[(&str, Layout)], act: impl Fn(&str, Layout) + Sync) {
    std::thread::scope(|scope| {
        for (layout, adapt) in layouts {
            scope.spawn(|| act(layout, *adapt));
        }
    });
}

fn in_gear(gear: &str, command: &mut Command) {
    if gear == "bits" {
        command.env("CORRO_PLAN", "0");
    }
}

fn survivors(job: &Job, victim: usize) -> Vec<usize> {
    (0..job.len()).filter(|i| *i != victim).collect()
}

/// Starts ranks of which all but the victim wait for the victim.
fn waiting(role: &str, size: usize, victim: usize, gear: &str, adapt: impl Fn(usize, &mut Command)) -> Job {
    let role = format!("{role}:{victim}:{gear}");
    let plan = Plan::new(rank_process, &role, size).adapt(|rank, command| {
        in_gear(gear, command);
        adapt(rank, command);
    });
    let mut job = plan.start();
    job.expect(0..size, "in");
    for i in survivors(&job, victim) {
        job.go(i);
    }
    // Time to get into the wait; it works just as well if they are not there yet.
    std::thread::sleep(Duration::from_millis(200));
    job
}

/// All others say soon, and in the same words whatever they do next, that the victim is lost.
fn all_name(job: &mut Job, victim: usize, since: Instant, case: &str) {
    for i in survivors(job, victim) {
        let text = job.hear(i);
        assert!(text.starts_with(&format!("lost {victim}: lost rank {victim} on ")), "{case}, rank {i}: {text}");
        assert!(since.elapsed() < PROMPT, "{case}, rank {i} took {:?}: {text}", since.elapsed());
    }
    println!("{case}: all knew after {:?}", since.elapsed());
    job.expect(survivors(job, victim), "the same later");
    for i in survivors(job, victim) {
        assert!(job.ended_well(i), "{case}, rank {i} did not end well");
    }
}

fn killed_while_others_wait(gear: &str) {
    for (layout, adapt) in LAYOUTS {
        for victim in [0, 1, 3] {
            let mut job = waiting("wait", 4, victim, gear, adapt);
            let killed = Instant::now();
            job.signal(victim, Signal::KILL);
            all_name(&mut job, victim, killed, &format!("{layout}, {gear}, {victim} killed"));
        }
    }
}

#[test]
fn a_killed_rank_is_named_by_all_others_when_tensors_are_announced() {
    killed_while_others_wait("announce");
}

#[test]
fn a_killed_rank_is_named_by_all_others_when_tensors_are_bits() {
    killed_while_others_wait("bits");
}

#[test]
fn a_killed_rank_is_named_by_all_others_in_a_plan() {
    killed_while_others_wait("plan");
}

/// Ranks that leave a plan open new connections: whoever is in the middle of that must hear that a rank was lost.
#[test]
fn a_rank_killed_while_a_plan_is_left_is_named_by_all_others() {
    for (round, (layout, adapt)) in (0..6).zip(LAYOUTS.into_iter().cycle()) {
        for victim in [0, 3] {
            let role = format!("stray:{victim}");
            let mut job = Plan::new(rank_process, &role, 4).adapt(adapt).start();
            job.expect(0..4, "in");
            for i in survivors(&job, victim) {
                job.go(i);
            }
            std::thread::sleep(Duration::from_millis(5 * round));
            let killed = Instant::now();
            job.signal(victim, Signal::KILL);
            all_name(&mut job, victim, killed, &format!("{layout}, round {round}, {victim} killed"));
        }
    }
}

#[test]
fn a_rank_killed_at_work_is_named_by_all_others() {
    for (layout, adapt) in LAYOUTS {
        for (gear, victim) in [("plan", 0), ("plan", 3), ("bits", 1)] {
            let plan = Plan::new(rank_process, "busy", 4).adapt(|rank, command| {
                in_gear(gear, command);
                adapt(rank, command);
            });
            let mut job = plan.start();
            job.expect(0..4, "in");
            std::thread::sleep(Duration::from_millis(300 + 37 * victim as u64));
            let killed = Instant::now();
            job.signal(victim, Signal::KILL);
            for i in survivors(&job, victim) {
                let (text, case) = (job.hear(i), format!("{layout}, {gear}, {victim} killed, rank {i}"));
                assert!(text.starts_with(&format!("lost {victim}: lost rank {victim} on ")), "{case}: {text}");
                assert!(killed.elapsed() < PROMPT, "{case} took {:?}", killed.elapsed());
                assert!(job.ended_well(i), "{case}");
            }
        }
    }
}

#[test]
fn a_rank_that_exits_without_a_word_is_named_by_all_others() {
    for (layout, adapt) in LAYOUTS {
        for (gear, victim) in [("announce", 0), ("bits", 2), ("plan", 1)] {
            let mut job = waiting("leave", 4, victim, gear, adapt);
            let left = Instant::now();
            job.go(victim);
            all_name(&mut job, victim, left, &format!("{layout}, {gear}, {victim} left"));
        }
    }
}

/// How long ranks may wait for each other where some are stopped.
const PATIENCE: Duration = Duration::from_secs(4);

fn impatient(command: &mut Command) {
    command.env("CORRO_TIMEOUT", PATIENCE.as_secs().to_string());
}

/// A stopped process is not gone, no connection breaks: nothing but its silence tells.
fn stopped_while_others_wait(layouts: &[(&str, Layout)], cases: &[(&str, usize)]) {
    side_by_side(layouts, |layout, adapt| {
        for (gear, victim) in cases {
            let mut job = waiting("wait", 4, *victim, gear, |rank, command| {
                adapt(rank, command);
                impatient(command);
            });
            let stopped = Instant::now();
            job.signal(*victim, Signal::STOP);
            all_name(&mut job, *victim, stopped, &format!("{layout}, {gear}, {victim} stopped"));
            // Who comes back finds that the job has gone on without it.
            job.go(*victim);
            job.signal(*victim, Signal::CONT);
            let text = job.hear(*victim);
            assert!(text.starts_with("lost "), "{layout}, {gear}, {victim} came back: {text}");
        }
    });
}

#[test]
fn a_stopped_rank_is_named_by_all_others() {
    // Ranks that nobody hears the others through.
    stopped_while_others_wait(&LAYOUTS, &[("announce", 1), ("bits", 3), ("plan", 3)]);
}

#[test]
fn a_stopped_rank_0_is_named_by_all_others() {
    // What others said, and that the job is over, is only heard through it.
    stopped_while_others_wait(&LAYOUTS, &[("announce", 0), ("bits", 0), ("plan", 0)]);
}

#[test]
fn a_stopped_speaker_of_a_host_is_named_by_all_others() {
    // Rank 2 speaks and hears for rank 3, which is on its host.
    stopped_while_others_wait(&LAYOUTS[2..], &[("announce", 2), ("bits", 2), ("plan", 2)]);
}

/// In a ring all wait for a neighbour, which waits itself: only one of them is to blame.
#[test]
fn a_rank_stopped_at_work_is_named_by_all_others() {
    side_by_side(&LAYOUTS, |layout, adapt| {
        for (gear, victim) in [("plan", 0), ("plan", 2), ("bits", 1), ("bits", 3)] {
            let plan = Plan::new(rank_process, "busy", 4).adapt(|rank, command| {
                in_gear(gear, command);
                adapt(rank, command);
                impatient(command);
            });
            let job = plan.start();
            job.expect(0..4, "in");
            std::thread::sleep(Duration::from_millis(300 + 37 * victim as u64));
            let stopped = Instant::now();
            job.signal(victim, Signal::STOP);
            for i in survivors(&job, victim) {
                let (text, case) = (job.hear(i), format!("{layout}, {gear}, {victim} stopped, rank {i}"));
                assert!(text.starts_with(&format!("lost {victim}: lost rank {victim} on ")), "{case}: {text}");
                assert!(stopped.elapsed() < PROMPT, "{case} took {:?}", stopped.elapsed());
            }
        }
    });
}

/// A stall is another thing: that rank's engine answers, but its program does not come.
#[test]
fn a_rank_whose_program_withholds_a_tensor_counts_as_lost_after_the_timeout() {
    side_by_side(&LAYOUTS, |layout, adapt| {
        for (gear, victim, stall_shutdown) in [("bits", 1, None), ("plan", 3, None), ("announce", 0, Some("5"))] {
            let mut job = waiting("wait", 4, victim, gear, |rank, command| {
                adapt(rank, command);
                if let Some(seconds) = stall_shutdown {
                    // Horovod's own variable wins.
                    command.env("CORRO_STALL_CHECK_TIME_SECONDS", "1").env("CORRO_TIMEOUT", "600");
                    command.env("CORRO_STALL_SHUTDOWN_TIME_SECONDS", seconds);
                } else {
                    impatient(command);
                }
            });
            let since = Instant::now();
            for i in survivors(&job, victim) {
                let text = job.hear(i);
                let case = format!("{layout}, {gear}, rank {i}: {text}");
                assert!(text.starts_with(&format!("lost {victim}: lost rank {victim} on ")), "{case}");
                assert!(text.contains(&format!("Missing ranks: {victim}!")), "{case}");
                assert!(since.elapsed() < PROMPT, "{case} after {:?}", since.elapsed());
            }
            job.expect(survivors(&job, victim), "the same later");
            // When it comes after all, it finds its job over.
            job.go(victim);
            let text = job.hear(victim);
            assert!(text.starts_with(&format!("lost {victim}: ")), "{layout}, {gear}: {text}");
        }
    });
}

/// Nobody has to wait for a limit where it is certain that nothing can come.
#[test]
fn ranks_that_wait_for_different_tensors_fail_at_once_with_who_waits_for_what() {
    side_by_side(&LAYOUTS, |layout, adapt| {
        for (size, gear) in [(2, "announce"), (4, "plan")] {
            let role = format!("apart:1:{gear}");
            let plan = Plan::new(rank_process, &role, size).adapt(|rank, command| {
                adapt(rank, command);
                command.env("CORRO_STALL_SHUTDOWN_TIME_SECONDS", "0");
            });
            let mut job = plan.start();
            job.expect(0..size, "in");
            let since = Instant::now();
            job.go_all();
            let texts: Vec<String> = (0..size).map(|i| job.hear(i)).collect();
            println!("{layout}, {gear}: known to all after {:?}", since.elapsed());
            assert!(since.elapsed() < PROMPT, "{layout}, {gear}: after {:?}", since.elapsed());
            assert!(texts.iter().all(|t| *t == texts[0]), "{layout}, {gear}: {texts:?}");
            assert!(texts[0].contains("waits for 'common', which rank 1 has not submitted"), "{texts:?}");
            assert!(texts[0].contains("rank 1 on") && texts[0].contains("waits for 'own', which rank"), "{texts:?}");
            job.all_end_well();
        }
    });
}

#[test]
fn a_rank_is_not_lost_because_its_program_is_busy_or_it_was_stopped_for_a_moment() {
    side_by_side(&LAYOUTS, |layout, adapt| {
        for (gear, victim) in [("announce", 0), ("bits", 2), ("plan", 0), ("plan", 3)] {
            let role = format!("late:{victim}:{gear}");
            let plan = Plan::new(rank_process, &role, 4).adapt(|rank, command| {
                in_gear(gear, command);
                adapt(rank, command);
                impatient(command);
                command.env("CORRO_STALL_SHUTDOWN_TIME_SECONDS", "0");
            });
            let mut job = plan.start();
            job.expect(0..4, "in");
            for i in survivors(&job, victim) {
                job.go(i);
            }
            // For longer than any rank may be silent; stopped, for less.
            std::thread::sleep(PATIENCE);
            job.signal(victim, Signal::STOP);
            std::thread::sleep(PATIENCE / 8);
            job.signal(victim, Signal::CONT);
            job.go(victim);
            for i in 0..4 {
                assert_eq!(job.hear(i), "ok", "{layout}, {gear}, {victim} comes late, rank {i}");
            }
            job.all_end_well();
        }
    });
}

#[test]
fn a_rank_may_end_the_job_while_others_compute() {
    for (layout, adapt) in LAYOUTS {
        for victim in [0, 2] {
            let role = format!("end:{victim}");
            let mut job = Plan::new(rank_process, &role, 4).adapt(adapt).start();
            job.expect(0..4, "in");
            job.go_all();
            for i in 0..4 {
                assert_eq!(job.hear(i), "true", "{layout}, {victim} ends the job, rank {i}");
            }
            job.all_end_well();
        }
    }
}

#[test]
fn a_process_may_join_again_and_again() {
    for (_, adapt) in LAYOUTS {
        let mut job = Plan::new(rank_process, "again", 3).adapt(adapt).start();
        job.expect(0..3, "ok");
        job.all_end_well();
    }
}
