//! Ranks that train nothing, for tests of what watches them: `train STEPS MS KB [SLOW_RANK FACTOR]` computes so many milliseconds a
//! step, adds up so many kilobytes, and says and logs something. One rank may take longer. More words make a job slow in other ways:
//! `tensors=N` adds up N tensors of that size, one after the other; `uneven` makes another rank the slow one in each step; `changing`
//! changes the tensors every 15 steps; `hang=STEP` lets rank 0 stop there for a while.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use corro_core::{DType, Error, ReduceOp, Result, Shape};
use corro_engine::{Engine, Submission};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("train: {e}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let words: Vec<f64> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let said = |word: &str| std::env::args().any(|argument| argument == word);
    let number = |name: &str| std::env::args().find_map(|word| word.strip_prefix(name)?.parse::<u64>().ok());
    let (tensors, hang) = (number("tensors=").unwrap_or(1), number("hang="));
    let [steps, milliseconds, kilobytes, ref slow @ ..] = words[..] else {
        return Err(Error::Usage("train STEPS MS KB [SLOW_RANK FACTOR]".into()));
    };
    let engine = Engine::from_env(0)?;
    let rank = engine.rank().index();
    let (mut began, mut computed) = (Instant::now(), Duration::ZERO);
    for step in 1..=steps as u64 {
        let slow_rank = if said("uneven") { Some((step % engine.size() as u64) as f64) } else { slow.first().copied() };
        let factor = if slow_rank == Some(rank as f64) { slow.get(1).copied().unwrap_or(1.0) } else { 1.0 };
        let begins = Instant::now();
        compute(Duration::from_secs_f64(milliseconds * factor / 1000.0));
        computed += begins.elapsed();
        if hang == Some(step) && rank == 0 {
            compute(Duration::from_secs(600));
        }
        let count = (kilobytes * 250.0) as usize + if said("changing") { step as usize / 15 % 7 } else { 0 };
        for tensor in 0..tensors {
            let name = if tensor == 0 { "gradient".to_owned() } else { format!("gradient.{tensor}") };
            let gradient = vec![1u8; count * 4];
            let sum = Submission::allreduce(&name, ReduceOp::Sum, DType::F32, Shape(vec![count]), gradient.into());
            engine.run(sum)?;
        }
        engine.mark_step();
        if step == 1 {
            // As those who watch count: from the end of a step to the end of another.
            (began, computed) = (Instant::now(), Duration::ZERO);
        }
        engine.log_value(step, "loss", 1.0 / step as f64 + rank as f64);
        if step % 50 == 0 {
            println!("step {step} <b>of</b> {steps}");
        }
    }
    let each = |length: Duration| length.as_secs_f64() * 1000.0 / (steps - 1.0).max(1.0);
    println!("a step takes {:.3} ms, of which {:.3} ms computing", each(began.elapsed()), each(computed));
    engine.shutdown();
    Ok(())
}

/// Sleeps: tests share few cores, and a slow rank must be slow because it is told to be.
fn compute(length: Duration) {
    let until = Instant::now() + length;
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}
