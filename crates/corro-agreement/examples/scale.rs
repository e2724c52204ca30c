//! What agreement costs as jobs grow: prints the table of `docs/performance.md`.
//!
//! Messages and latency come from the simulator: every rank's node, 8 ranks on a host, fan-out 32, 10 us a hop inside a host and
//! 50 us between hosts, no other delays. CPU time and memory are those of the root's node alone, fed with exactly the
//! messages that its children send in a round; memory is what it holds, counted by the allocator.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::{Duration, Instant};

use corro_agreement::message::{Announcement, Up, ranges};
use corro_agreement::node::{Node, Rules};
use corro_agreement::simulator::{Report, Scenario, Step, World, allreduce};
use corro_agreement::tree::{FAN_OUT, neighbours};
use corro_core::Rank;

const PER_HOST: usize = 8;
/// Tensors of a step.
const TENSORS: usize = 4;
/// Rounds that are timed.
const ROUNDS: usize = 51;

/// Counts the bytes in use.
struct Counting;

static IN_USE: AtomicIsize = AtomicIsize::new(0);
static MOST: AtomicIsize = AtomicIsize::new(0);

#[expect(unsafe_code, reason = "an allocator is an unsafe trait; this one only counts")]
// SAFETY: everything is passed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = IN_USE.fetch_add(layout.size().cast_signed(), Ordering::Relaxed) + layout.size().cast_signed();
        MOST.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        IN_USE.fetch_sub(layout.size().cast_signed(), Ordering::Relaxed);
        // SAFETY: the caller keeps to the same contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() {
    println!(
        "| ranks | depth | gear | messages of a rank: most, mean | of the root | round | root's CPU | root's memory | a rank |"
    );
    println!("| --- | --- | --- | --- | --- | --- | --- | --- | --- |");
    for ranks in [64, 512, 4096, 16384] {
        let depth = depth(ranks);
        let first = simulate(ranks, 1, false);
        let third = simulate(ranks, 3, false);
        let root = measure_root(ranks);
        let none = Report { sent: vec![vec![0; ranks]], received: vec![vec![0; ranks]], ..Report::default() };
        row(ranks, depth, "announce", &Round::between(&none, &first, 1), root.announce, root.peak);
        row(ranks, depth, "bits", &Round::between(&first, &third, 2), root.bits, root.steady);
        let (before, after) = (simulate(ranks, 7, true), simulate(ranks, 9, true));
        assert_eq!(before.plans, ranks as u64, "all follow the plan");
        row(ranks, depth, "plan", &Round::between(&before, &after, 2), Duration::ZERO, root.steady);
    }
}

/// One round of agreement.
struct Round {
    most: u64,
    mean: f64,
    root: u64,
    latency: Duration,
}

impl Round {
    fn between(before: &Report, after: &Report, rounds: u32) -> Self {
        let messages = |r: &Report, rank: usize| r.sent[0][rank] + r.received[0][rank];
        let a_round = |rank| (messages(after, rank) - messages(before, rank)) / u64::from(rounds);
        let others: Vec<u64> = (1..after.sent[0].len()).map(a_round).collect();
        Self {
            most: others.iter().copied().max().unwrap_or(0),
            mean: others.iter().sum::<u64>() as f64 / others.len() as f64,
            root: a_round(0),
            latency: after.end.saturating_sub(before.end) / rounds,
        }
    }
}

fn row(ranks: usize, depth: usize, gear: &str, round: &Round, cpu: Duration, memory: isize) {
    let Round { most, mean, root, latency } = round;
    let kib = memory as f64 / 1024.0;
    println!(
        "| {ranks} | {depth} | {gear} | {most}, {mean:.2} | {root} | {latency:?} | {cpu:.1?} | {kib:.0} KiB | {:.1} B |",
        memory as f64 / ranks as f64
    );
}

fn hosts(ranks: usize) -> Vec<Vec<usize>> {
    (0..ranks / PER_HOST).map(|host| (host * PER_HOST..(host + 1) * PER_HOST).collect()).collect()
}

fn depth(ranks: usize) -> usize {
    let hosts = hosts(ranks);
    let mut up = neighbours(&hosts, FAN_OUT, ranks - 1).parent;
    let mut depth = 0;
    while let Some(parent) = up {
        depth += 1;
        up = neighbours(&hosts, FAN_OUT, parent).parent;
    }
    depth
}

/// Every rank submits some tensors and waits for them, several times.
fn simulate(ranks: usize, steps: u64, plans: bool) -> Report {
    let mut scenario = Scenario::new(ranks, PER_HOST, FAN_OUT);
    scenario.rules.plans = plans;
    // What is submitted together is said together.
    scenario.gather = true;
    let names: Vec<String> = (0..TENSORS).map(name).collect();
    for program in &mut scenario.programs {
        for tag in 0..steps {
            program.extend(names.iter().map(|n| Step::Submit { set: 0, request: allreduce(n, 100), tag, fails: None }));
            program.push(Step::Wait { set: 0, names: names.clone() });
        }
    }
    World::run(&scenario, 1, false).unwrap_or_else(|violation| panic!("{}", violation.what))
}

fn name(tensor: usize) -> String {
    format!("module.layer4.{tensor}.conv1.weight")
}

/// What the root's node takes.
struct Cost {
    announce: Duration,
    bits: Duration,
    /// Bytes at most while the first round comes in, and between rounds.
    peak: isize,
    steady: isize,
}

fn measure_root(ranks: usize) -> Cost {
    let hosts = hosts(ranks);
    // Who announces through which child of the root: a whole subtree each.
    let near = neighbours(&hosts, FAN_OUT, 0);
    let mut below: Vec<Vec<usize>> = vec![Vec::new(); ranks];
    for rank in 1..ranks {
        let (mut child, mut up) = (rank, neighbours(&hosts, FAN_OUT, rank).parent);
        while let Some(parent) = up.filter(|parent| *parent != 0) {
            (child, up) = (parent, neighbours(&hosts, FAN_OUT, parent).parent);
        }
        below[child].push(rank);
    }
    let requests: Vec<_> = (0..TENSORS).map(|t| allreduce(&name(t), 100)).collect();
    let waited = Duration::ZERO;
    let announcement =
        |rank| requests.iter().map(move |r| Announcement { rank: Rank::new(rank), request: r.clone(), waited });
    let announced: Vec<Up> =
        near.children.iter().map(|c| Up::Announce(below[*c].iter().flat_map(|r| announcement(*r)).collect())).collect();

    let empty = IN_USE.load(Ordering::Relaxed);
    let mut root =
        Node::new(Rank::ZERO, Rank::all(ranks).collect(), near.clone(), Rules { plans: false, ..Rules::default() });
    let mut round = |said: &[Up]| {
        let mut spent = Duration::ZERO;
        // Messages are handed over one by one, as they would be decoded, and are gone when they were heard.
        for request in &requests {
            root.submit(waited, request.clone());
        }
        for message in said {
            let message = message.clone();
            let start = Instant::now();
            root.hear_child(waited, message);
            spent += start.elapsed();
        }
        let start = Instant::now();
        drop((root.flush(waited), root.take_actions()));
        spent + start.elapsed()
    };
    MOST.store(empty, Ordering::Relaxed);
    let announce = round(&announced);
    let peak = MOST.load(Ordering::Relaxed) - empty;
    let bits: Vec<Up> =
        near.children.iter().map(|_| Up::Bits { era: 0, slots: ranges((0..TENSORS as u64).collect()) }).collect();
    let empty_after = IN_USE.load(Ordering::Relaxed);
    // The middle one: other processes may come between.
    let mut rounds: Vec<Duration> = (0..ROUNDS).map(|_| round(&bits)).collect();
    rounds.sort_unstable();
    let bits_time = rounds[rounds.len() / 2];
    let steady = empty_after - empty;
    Cost { announce, bits: bits_time, peak, steady }
}
