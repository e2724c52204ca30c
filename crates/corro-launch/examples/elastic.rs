//! An elastic job in plain Rust, without a framework: what the Python fronts do, in one page. The tests of the launcher run
//! it as workers.
//!
//! `corro run -np 4 --min-np 2 target/debug/examples/elastic STEPS [PAUSE_MS] [HANG_STEP]`: each step adds one number per rank, checks the
//! sum, and commits. Every worker prints its place when it gets one, and each tenth step. At `HANG_STEP` it sleeps for ever, as a
//! program does that hangs in its own code.

use std::process::ExitCode;
use std::time::Duration;

use corro_core::{DType, Error, Rank, ReduceOp, Result, Shape};
use corro_engine::{Engine, Options, Submission};
use corro_membership::{Client, JoinRequest, Joined, Seat};
use corro_transport::Settings;

/// What must not be lost.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    step: u64,
    /// Grows by the step's number in each step: tells a repeated or a left out one.
    sum: u64,
}

/// How one epoch ended for us.
enum Ended {
    Finished,
    HostsChanged,
    /// The job ends at this commit, and goes on another time.
    Early,
    Failed(Error),
}

/// What this worker is to do.
struct Plan {
    steps: u64,
    /// How long a step takes.
    pause: Duration,
    hang_at: Option<u64>,
}

fn main() -> ExitCode {
    let words: Vec<u64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let word = |at: usize, default| words.get(at).copied().unwrap_or(default);
    let plan = Plan { steps: word(0, 100), pause: Duration::from_millis(word(1, 10)), hang_at: words.get(2).copied() };
    match work(&plan) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("elastic: {error}");
            ExitCode::FAILURE
        }
    }
}

fn work(plan: &Plan) -> Result<ExitCode> {
    let alone = || Error::Usage("this is no elastic job: start it with `corro run -np 4 --min-np 2`".into());
    let client = Client::from_env()?.ok_or_else(alone)?;
    let mut committed = State::default();
    let mut cause = None;
    loop {
        let seat = match client.join(JoinRequest { progress: committed.step, cause: cause.as_ref() })? {
            Joined::Seat(seat) => seat,
            Joined::Removed(why) => {
                println!("removed: {why}");
                return Ok(ExitCode::SUCCESS);
            }
            Joined::Ended { success, why } => {
                println!("ended: {why}");
                return Ok(if success { ExitCode::SUCCESS } else { ExitCode::FAILURE });
            }
        };
        match epoch(&client, &seat, &mut committed, plan) {
            Ended::Finished => {
                println!(
                    "finished at step {} sum {} as rank {} of {}",
                    committed.step, committed.sum, seat.rank, seat.size
                );
                client.leave(false);
                return Ok(ExitCode::SUCCESS);
            }
            Ended::Early => {
                println!(
                    "saved at step {} sum {} as rank {} of {}",
                    committed.step, committed.sum, seat.rank, seat.size
                );
                client.leave(true);
                return Ok(ExitCode::SUCCESS);
            }
            Ended::HostsChanged => cause = None,
            Ended::Failed(error @ Error::Usage(_)) => return Err(error),
            Ended::Failed(error) => cause = Some(error),
        }
    }
}

fn epoch(client: &Client, seat: &Seat, committed: &mut State, plan: &Plan) -> Ended {
    let engine = match client.fabric(seat, settings()).and_then(|fabric| Engine::start(fabric, Options::from_env()?)) {
        Ok(engine) => engine,
        Err(error) => return Ended::Failed(error),
    };
    client.when_lost(seat, engine.ender());
    println!(
        "pid {} is rank {} of {} in epoch {}, local {}/{} after step {}",
        std::process::id(),
        seat.rank,
        seat.size,
        seat.epoch,
        seat.local_rank,
        seat.local_size,
        committed.step
    );
    let ended = train(client, seat, &engine, committed, plan);
    engine.shutdown();
    ended.unwrap_or_else(Ended::Failed)
}

fn train(client: &Client, seat: &Seat, engine: &Engine, committed: &mut State, plan: &Plan) -> Result<Ended> {
    // The state of rank 0 is the furthest: everybody takes it.
    let mine = if seat.rank == Rank::ZERO { [committed.step, committed.sum] } else { [0, 0] };
    let [step, sum] = reduce(engine, "state", ReduceOp::Sum, mine)?;
    *committed = State { step, sum };
    while committed.step < plan.steps {
        if plan.hang_at == Some(committed.step) {
            println!("hangs at step {}", committed.step);
            std::thread::sleep(Duration::MAX);
        }
        let size = engine.size() as u64;
        let changes = client.changes();
        let pending = if changes.ending { 2 } else { u64::from(changes.number > seat.changes) };
        let [count, numbers] = reduce(engine, "step", ReduceOp::Sum, [1, committed.step])?;
        if count != size || numbers != size * committed.step {
            return Err(Error::Usage(format!("step {}: {count} ranks of {size}, {numbers}", committed.step)));
        }
        std::thread::sleep(plan.pause);
        *committed = State { step: committed.step + 1, sum: committed.sum + committed.step };
        if committed.step.is_multiple_of(10) {
            println!("step {} rank {} of {} epoch {}", committed.step, seat.rank, size, seat.epoch);
        }
        // Everybody must see the change at the same step.
        let [pending, _] = reduce(engine, "changes", ReduceOp::Max, [pending, 0])?;
        if pending > 1 {
            return Ok(Ended::Early);
        }
        if pending > 0 {
            return Ok(Ended::HostsChanged);
        }
    }
    Ok(Ended::Finished)
}

fn reduce(engine: &Engine, name: &str, op: ReduceOp, numbers: [u64; 2]) -> Result<[u64; 2]> {
    let bytes: Vec<u8> = numbers.iter().flat_map(|n| n.to_le_bytes()).collect();
    let submission = Submission::allreduce(name, op, DType::I64, Shape(vec![2]), bytes.into());
    let outcome = engine.submit(submission)?.wait()?;
    let bytes = outcome.into_bytes()?;
    let number = |at: usize| bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_le_bytes);
    match (number(0), number(8)) {
        (Some(a), Some(b)) => Ok([a, b]),
        _ => Err(Error::Bug("an allreduce without a result".into())),
    }
}

fn settings() -> Settings {
    Settings { area: 1 << 20, ..Settings::from_env().unwrap_or_default() }
}
