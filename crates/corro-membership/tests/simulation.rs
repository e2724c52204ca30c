//! Ten thousand elastic jobs in a world that goes wrong. `CORRO_TEST_SEED=N` replays one of them and tells its story.

use std::sync::atomic::{AtomicU64, Ordering};

use corro_membership::simulator;
use corro_testing::number;

const RUNS: u64 = 12_000;

#[test]
fn elastic_jobs_survive_a_world_that_goes_wrong() {
    if let Some(seed) = number("CORRO_TEST_SEED") {
        let report = simulator::run(seed, true).unwrap_or_else(|broken| panic!("{broken}"));
        println!("{}\n{report:#?}", report.log.join("\n"));
        return;
    }
    let runs = number("CORRO_TEST_RUNS").unwrap_or(RUNS);
    let [finished, epochs, losses, next] = [const { AtomicU64::new(0) }; 4];
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
    std::thread::scope(|scope| {
        let work = || loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= runs {
                return;
            }
            match simulator::run(seed, false) {
                Ok(report) => {
                    finished.fetch_add(u64::from(report.finished), Ordering::Relaxed);
                    epochs.fetch_add(report.epochs, Ordering::Relaxed);
                    losses.fetch_add(report.losses, Ordering::Relaxed);
                }
                Err(broken) => panic!(
                    "{broken}\nreplay: CORRO_TEST_SEED={seed} cargo test -p corro-membership --test simulation -- --nocapture"
                ),
            }
        };
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let [finished, epochs, losses] = [&finished, &epochs, &losses].map(|n| n.load(Ordering::Relaxed));
    eprintln!("{runs} jobs: {finished} finished, {epochs} epochs, {losses} processes lost");
    // Not vacuous: most jobs get through, and through a lot.
    assert!(finished * 10 >= runs * 6, "only {finished} of {runs} jobs were finished");
    assert!(epochs >= 2 * runs && losses >= runs, "{epochs} epochs, {losses} losses");
}
