//! Ranks that train nothing, for tests of what watches them: `train STEPS MS KB [SLOW_RANK FACTOR]` computes so many milliseconds a
//! step, adds up so many kilobytes, and says and logs something. One rank may take longer.

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
    let [steps, milliseconds, kilobytes, ref slow @ ..] = words[..] else {
        return Err(Error::Usage("train STEPS MS KB [SLOW_RANK FACTOR]".into()));
    };
    let engine = Engine::from_env(0)?;
    let rank = engine.rank().index();
    let factor = if slow.first() == Some(&(rank as f64)) { slow.get(1).copied().unwrap_or(1.0) } else { 1.0 };
    let count = (kilobytes * 250.0) as usize;
    for step in 1..=steps as u64 {
        compute(Duration::from_secs_f64(milliseconds * factor / 1000.0));
        let gradient = vec![1u8; count * 4];
        let sum = Submission::allreduce("gradient", ReduceOp::Sum, DType::F32, Shape(vec![count]), gradient.into());
        engine.run(sum)?;
        engine.mark_step();
        engine.log_value(step, "loss", 1.0 / step as f64 + rank as f64);
        if step % 50 == 0 {
            println!("step {step} <b>of</b> {steps}");
        }
    }
    engine.shutdown();
    Ok(())
}

/// Sleeps: tests share few cores, and a slow rank must be slow because it is told to be.
fn compute(length: Duration) {
    let until = Instant::now() + length;
    std::thread::sleep(until.saturating_duration_since(Instant::now()));
}
