//! Thousands of stores in a world that goes wrong. `CORRO_TEST_SEED=N` replays one of them.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use corro_server::simulator::{self, Report};
use corro_testing::number;

const RUNS: u64 = 2_100;

#[test]
fn stores_keep_their_promises_in_a_world_that_goes_wrong() {
    if let Some(seed) = number("CORRO_TEST_SEED") {
        let report = simulator::run(seed, simulator::setting(seed)).unwrap_or_else(|broken| panic!("{broken}"));
        println!("{:?}\n{report:#?}", simulator::setting(seed));
        return;
    }
    let runs = number("CORRO_TEST_RUNS").unwrap_or(RUNS);
    let next = AtomicU64::new(0);
    let total = Mutex::new(Report::default());
    std::thread::scope(|scope| {
        let work = || loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= runs {
                return;
            }
            let report = simulator::run(seed, simulator::setting(seed)).unwrap_or_else(|broken| {
                panic!("{broken}\nreplay: CORRO_TEST_SEED={seed} cargo test -p corro-server --test simulation -- --nocapture")
            });
            let mut total = total.lock().unwrap();
            total.reads += report.reads;
            total.servers_lost += report.servers_lost;
            total.workers_lost += report.workers_lost;
        };
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(8);
        let workers: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        for worker in workers {
            if let Err(panic) = worker.join() {
                std::panic::resume_unwind(panic);
            }
        }
    });
    let total = total.into_inner().unwrap();
    eprintln!("{runs} stores: {total:?}");
    // Not vacuous.
    assert!(total.reads > runs * 256 && total.servers_lost * 5 > runs && total.workers_lost * 5 > runs, "{total:?}");
}
