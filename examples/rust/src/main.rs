//! Data-parallel training in plain Rust: several processes fit one small network to one data set.
//!
//! ```text
//! cargo run --release -p corro-example -- [--ranks N] [--threads] [--steps N]
//! ```
//!
//! Each rank sees only its share of the data (every N-th sample), computes the gradient of its own mini-batch by hand,
//! and one allreduce averages the gradients of all ranks. All ranks start from rank 0's weights and so end with the same
//! ones, bit for bit, which is checked at the end. By default ranks are processes that find each other through a
//! rendezvous; with `--threads` they are threads of this one.

mod model;
mod spiral;

use std::process::{Command, ExitCode};
use std::time::Instant;

use corro_collectives::{Error, Group, ReduceOp, Result};
use corro_transport::{Fabric, Place, Settings};
use model::Model;

const SAMPLES: usize = 3000;
const BATCH: usize = 96;
const LEARNING_RATE: f32 = 0.5;

struct Options {
    ranks: usize,
    threads: bool,
    steps: usize,
}

fn main() -> ExitCode {
    match options().and_then(|options| run(&options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corro-example: {error}");
            ExitCode::FAILURE
        }
    }
}

fn options() -> Result<Options> {
    let mut options = Options { ranks: 2, threads: false, steps: 1500 };
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let mut number = || {
            let value = words.next().unwrap_or_default();
            value
                .parse()
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| Error::Usage(format!("{word} wants a number above 0, not {value:?}")))
        };
        match word.as_str() {
            "--ranks" => options.ranks = number()?,
            "--steps" => options.steps = number()?,
            "--threads" => options.threads = true,
            other => {
                return Err(Error::Usage(format!("unknown option {other:?}; known: --ranks N, --steps N, --threads")));
            }
        }
    }
    Ok(options)
}

fn run(options: &Options) -> Result<()> {
    // A launcher (this program itself, below) has given us a place: be that rank.
    if Place::from_env()?.is_some() {
        return train(&mut Group::world(&Fabric::from_env()?)?, options.steps);
    }
    if options.threads {
        let ranks = Fabric::threads(&vec![0; options.ranks], &Settings::from_env()?);
        return std::thread::scope(|scope| {
            let threads: Vec<_> =
                ranks.iter().map(|fabric| scope.spawn(|| train(&mut Group::world(fabric)?, options.steps))).collect();
            threads.into_iter().try_for_each(|t| t.join().unwrap_or_else(|_| Err(Error::Bug("a rank panicked".into()))))
        });
    }
    let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
    corro_launch::run_local(options.ranks, |_| {
        let mut command = Command::new(&program);
        command.arg("--steps").arg(options.steps.to_string());
        command
    })
}

/// What every rank does.
fn train(world: &mut Group, steps: usize) -> Result<()> {
    let (rank, size) = (world.rank(), world.size());
    let shard = spiral::samples(SAMPLES, 1).into_iter().skip(rank).step_by(size).collect::<Vec<_>>();

    // Ranks make different weights on purpose: the broadcast is what makes them agree.
    let mut model = Model::random(rank as u64);
    world.broadcast(&mut model.weights, 0)?;

    let start = Instant::now();
    let mut gradient = vec![0.0; model.weights.len()];
    let batch = (BATCH / size).max(1);
    for step in 0..steps {
        let samples = (0..batch).map(|i| &shard[(step * batch + i) % shard.len()]);
        let mut loss = [model.gradient(samples, &mut gradient)];
        world.allreduce(&mut gradient, ReduceOp::Average)?;
        for (weight, slope) in model.weights.iter_mut().zip(&gradient) {
            *weight -= LEARNING_RATE * slope;
        }
        if step % (steps / 5).max(1) == 0 {
            world.allreduce(&mut loss, ReduceOp::Average)?;
            if rank == 0 {
                println!("step {step:5}  loss {:.4}", loss[0]);
            }
        }
    }
    report(world, &model, start.elapsed().as_secs_f64(), steps)
}

/// Accuracy on fresh data, shared out over the ranks, and proof that all ranks hold the same weights.
fn report(world: &mut Group, model: &Model, seconds: f64, steps: usize) -> Result<()> {
    let fresh = spiral::samples(SAMPLES, 2);
    let mine = fresh.iter().skip(world.rank()).step_by(world.size());
    let mut right = [mine.filter(|s| model.predict(s) == s.class).count() as f64];
    world.allreduce(&mut right, ReduceOp::Sum)?;

    let everyones = world.allgather(&model.weights)?;
    if everyones
        .chunks(model.weights.len())
        .any(|w| w.iter().zip(&model.weights).any(|(a, b)| a.to_bits() != b.to_bits()))
    {
        return Err(Error::Bug("the ranks ended with different weights".into()));
    }
    if world.rank() == 0 {
        println!(
            "{} ranks: accuracy {:.1} % on {SAMPLES} fresh samples, {:.0} steps/s, weights equal on all ranks",
            world.size(),
            100.0 * right[0] / SAMPLES as f64,
            steps as f64 / seconds
        );
    }
    world.barrier()
}
