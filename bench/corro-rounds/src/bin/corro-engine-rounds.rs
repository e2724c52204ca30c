//! The engine beside the raw collectives it runs, in alternating rounds of one job.
//!
//! ```text
//! corro-engine-rounds [--ranks N] [--rounds N] [--only WORDS+WORDS]
//! ```
//! Prints a table: the median over rounds of each contestant's time, slowest rank; and how that stands to the raw
//! collective that ran last before it, round by round: median, best, worst. `--only` keeps the contestants whose names
//! have one of these words.

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use corro_collectives::{DType, Error, Group, ReduceOp, Result};
use corro_core::{GroupId, Rank, Shape, config};
use corro_engine::{Engine, GLOBAL, Memory, Options, Submission};
use corro_transport::{Fabric, Place, Settings};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corro-engine-rounds: {error}");
            ExitCode::FAILURE
        }
    }
}

fn words(name: &str) -> Option<String> {
    let words: Vec<String> = std::env::args().collect();
    words.windows(2).find(|w| w[0] == name).map(|w| w[1].clone())
}

fn option(name: &str, default: usize) -> usize {
    words(name).and_then(|word| word.parse().ok()).unwrap_or(default)
}

fn run() -> Result<()> {
    if config::RANK.value().is_none() {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        return corro_launch::run_local(option("--ranks", 2), |_| {
            let mut command = Command::new(&program);
            command.args(std::env::args().skip(1));
            command
        });
    }
    let settings = Settings { timeout: Duration::from_secs(120), ..Settings::from_env()? };
    let place = Place::from_env()?.ok_or_else(|| Error::Usage("no place in a job".into()))?;
    let fabric = Fabric::at(&place, settings)?;
    let all: Vec<Rank> = Rank::all(fabric.size()).collect();
    let mut raw = Group::open(&fabric, GroupId(7), &all)?;
    let engine = Engine::start(fabric, Options::from_env()?)?;
    compare(&mut raw, &engine, option("--rounds", 15))
}

/// What is measured: a name, iterations in a round, and one iteration.
type Contestant<'a> = (&'a str, usize, Iteration);
type Iteration = Box<dyn FnMut(&mut Group, &Engine) -> Result<()>>;

fn compare(group: &mut Group, engine: &Engine, rounds: usize) -> Result<()> {
    let mut contestants: Vec<Contestant<'_>> = vec![
        ("raw, 4 B", 20_000, raw(1)),
        ("engine, waited for at once, 4 B", 20_000, waited("small", 1)),
        ("engine, submitted and then waited for, 4 B", 2000, submitted(1, 1)),
        ("raw, 4 MB", 50, raw(1_000_000)),
        ("engine, 100 tensors of 40 KB one by one", 50, submitted(100, 10_000)),
        ("engine, 100 tensors of 40 KB as a group", 50, grouped(100, 10_000)),
        ("engine, 100 tensors of 40 KB without names", 50, unnamed(100, 10_000)),
        ("raw, 16 MB", 20, raw(4_000_000)),
        ("engine, waited for at once, 16 MB", 20, waited("large", 4_000_000)),
    ];
    if let Some(only) = words("--only") {
        contestants.retain(|(name, ..)| only.split('+').any(|word| name.contains(word)));
    }
    let mut times: Vec<Vec<f64>> = contestants.iter().map(|_| Vec::new()).collect();
    let mut gears = vec![None; contestants.len()];
    for round in 0..=rounds {
        for (i, (_, iterations, act)) in contestants.iter_mut().enumerate() {
            // The engine gets into gear, caches get warm; in the round that does not count, plans come to be as they stay.
            let warm_up = if round == 0 { (*iterations).max(200) } else { (*iterations / 10).max(10) };
            for _ in 0..warm_up {
                act(group, engine)?;
            }
            group.barrier()?;
            let start = Instant::now();
            for _ in 0..*iterations {
                act(group, engine)?;
            }
            let mine = start.elapsed().as_secs_f64() * 1e6 / *iterations as f64;
            let mut slowest = [mine];
            group.allreduce(&mut slowest, ReduceOp::Max)?;
            if round > 0 {
                times[i].push(slowest[0]);
                gears[i] = Some(engine.gear(GLOBAL)?);
            }
        }
    }
    if engine.rank() != Rank::ZERO {
        return Ok(());
    }
    println!(
        "{} ranks, {rounds} rounds\n\n| what | median us | least us | times the raw one | gear |\n| --- | --- | --- | --- | --- |",
        engine.size()
    );
    let mut raw: Vec<f64> = Vec::new();
    for (((name, ..), mut times), gear) in contestants.iter().zip(times).zip(gears) {
        let mut ratios: Vec<f64> = times.iter().zip(&raw).map(|(mine, raw)| mine / raw).collect();
        let (mut beside, mut in_gear) = (String::new(), String::new());
        if name.starts_with("raw") {
            raw.clone_from(&times);
        } else {
            in_gear = format!("{:?}", gear.unwrap_or_default());
            ratios.sort_by(f64::total_cmp);
            if let (Some(best), Some(worst)) = (ratios.first(), ratios.last()) {
                beside = format!("{:.2} ({best:.2}-{worst:.2})", ratios[ratios.len() / 2]);
            }
        }
        times.sort_by(f64::total_cmp);
        println!("| {name} | {:.2} | {:.2} | {beside} | {in_gear} |", times[times.len() / 2], times[0]);
    }
    Ok(())
}

fn raw(elements: usize) -> Iteration {
    let mut data = vec![0f32; elements];
    Box::new(move |group, _| group.allreduce(&mut data, ReduceOp::Sum))
}

fn waited(name: &'static str, elements: usize) -> Iteration {
    let mut buffer = Some(Memory::from(vec![0u8; elements * 4]));
    Box::new(move |_, engine| {
        let data = buffer.take().unwrap_or_else(|| vec![0; elements * 4].into());
        let shape = Shape(vec![elements]);
        buffer = engine.run(Submission::allreduce(name, ReduceOp::Sum, DType::F32, shape, data))?.output;
        Ok(())
    })
}

/// As Python programs do that give no names.
fn unnamed(tensors: usize, elements: usize) -> Iteration {
    let mut buffers: Vec<Option<Memory>> = (0..tensors).map(|_| Some(vec![0u8; elements * 4].into())).collect();
    Box::new(move |_, engine| {
        let mut tickets = Vec::with_capacity(tensors);
        for buffer in &mut buffers {
            let data = buffer.take().unwrap_or_else(|| vec![0; elements * 4].into());
            let shape = Shape(vec![elements]);
            let name = engine.name(GLOBAL, "allreduce")?;
            tickets.push(engine.submit(Submission::allreduce(name, ReduceOp::Sum, DType::F32, shape, data))?);
        }
        for (ticket, buffer) in tickets.into_iter().zip(&mut buffers) {
            *buffer = ticket.wait()?.output;
        }
        Ok(())
    })
}

/// All at once: what submitting one by one can hope to come near to.
fn grouped(tensors: usize, elements: usize) -> Iteration {
    let mut buffers: Vec<Option<Memory>> = (0..tensors).map(|_| Some(vec![0u8; elements * 4].into())).collect();
    let names: Vec<String> = (0..tensors).map(|t| format!("grouped/{tensors}/layer{t}/weight")).collect();
    Box::new(move |_, engine| {
        let submission = |(name, buffer): (&String, &mut Option<Memory>)| {
            let data = buffer.take().unwrap_or_else(|| vec![0; elements * 4].into());
            Submission::allreduce(name.clone(), ReduceOp::Sum, DType::F32, Shape(vec![elements]), data)
        };
        let submissions = names.iter().zip(&mut buffers).map(submission).collect();
        for (ticket, buffer) in engine.submit_group(submissions)?.into_iter().zip(&mut buffers) {
            *buffer = ticket.wait()?.output;
        }
        Ok(())
    })
}

fn submitted(tensors: usize, elements: usize) -> Iteration {
    let mut buffers: Vec<Option<Memory>> = (0..tensors).map(|_| Some(vec![0u8; elements * 4].into())).collect();
    let names: Vec<String> = (0..tensors).map(|t| format!("gradient/{tensors}/layer{t}/weight")).collect();
    Box::new(move |_, engine| {
        let mut tickets = Vec::with_capacity(tensors);
        for (name, buffer) in names.iter().zip(&mut buffers) {
            let data = buffer.take().unwrap_or_else(|| vec![0; elements * 4].into());
            let shape = Shape(vec![elements]);
            let submission = Submission::allreduce(name.clone(), ReduceOp::Sum, DType::F32, shape, data);
            tickets.push(engine.submit(submission)?);
        }
        for (ticket, buffer) in tickets.into_iter().zip(&mut buffers) {
            *buffer = ticket.wait()?.output;
        }
        Ok(())
    })
}
