//! What a launcher with a page holds over a long job: a million steps of 64 ranks, told as ranks tell them, with lines and training
//! values. Prints the memory of this process as it goes: `cargo run --release -p corro-observe --example million_steps`.

use std::time::Instant;

use corro_observe::note::{Mark, Network, Note, Tensor, Totals, Usage, Value};
use corro_observe::view::Since;
use corro_observe::{Story, View};

const RANKS: u32 = 64;
const STEPS: u64 = 1_000_000;
/// Steps between two notes of a rank: 5 ms each.
const EACH: u64 = 100;

fn resident() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or("0");
    line.split_whitespace().next().and_then(|word| word.parse::<f64>().ok()).unwrap_or(0.0) / 1024.0
}

fn note(rank: u32, last: u64) -> Note {
    let mark = |step: u64| Mark { step, at: step * 5_000_000, waited: step * 400_000, collective: step * 300_000 };
    let value = |step: u64| Value { step, name: "loss".into(), value: 1.0 / step as f64 };
    let tensor =
        |n: u64| Tensor { name: format!("layer.{n}.weight"), times: last, bytes: last * 4000, nanos: last * 1000 };
    Note {
        rank,
        size: RANKS,
        host: format!("node{}", rank / 8),
        marks: (last - EACH + 1..=last).filter(|step| step % 4 == 0).map(mark).collect(),
        steps_are_told: true,
        totals: Totals { batches: last, tensors: last * 8, bytes: last * 1_000_000, ..Totals::default() },
        gear: "plan".into(),
        planes: vec![("host".into(), last)],
        usage: Usage { cpu: last * 5, memory: 1 << 30, gpu: None },
        network: vec![Network { name: "eth0".into(), sent: last * 1_000_000, received: last * 1_000_000, speed: 0 }],
        values: (last - EACH + 1..=last).map(value).collect(),
        tensors: if rank == 0 { (0..8).map(tensor).collect() } else { Vec::new() },
        ..Note::default()
    }
}

fn main() {
    let mut story = Story::new("train.py", 0);
    let (began, mut looked) = (Instant::now(), 0.0f64);
    println!("{:>10} {:>10} {:>14}", "steps", "MiB", "view in MB");
    for last in (EACH..=STEPS).step_by(EACH as usize) {
        let now = last * 5;
        for rank in 0..RANKS {
            story.heard(now, rank, "node", note(rank, last));
            story.wrote(now, rank, false, format!("step {last} of rank {rank}: all is well\n").as_bytes());
        }
        story.tick(now);
        // What a page asks for once a second, and files take.
        let since = Instant::now();
        let part =
            View::of(&story, now, Since { row: Some(now.saturating_sub(1000)), lines: u64::MAX, events: u64::MAX })
                .json();
        looked += since.elapsed().as_secs_f64();
        story.training.take();
        assert!(!part.is_empty());
        if last % (STEPS / 10) == 0 {
            let whole = View::of(&story, now, Since::default()).json();
            println!("{last:>10} {:>10.1} {:>14.2}", resident(), whole.len() as f64 / 1e6);
        }
    }
    let notes = STEPS / EACH * u64::from(RANKS);
    let each = (began.elapsed().as_secs_f64() - looked) / notes as f64 * 1e6;
    println!("{each:.1} us a note, {:.2} ms a look", looked / (STEPS / EACH) as f64 * 1e3);
}
