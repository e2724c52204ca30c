//! Elastic jobs of `examples/elastic.rs`, and what their workers print.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{HANG_LIMIT, Ran, Running, marked, run_command, wait_until};

pub(crate) fn worker() -> String {
    super::example("elastic")
}

/// A mark in the environment of all processes of a job, so that they are found again.
fn mark() -> String {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    // It ends with something that is no digit: the first is not to be found in the tenth.
    format!("corro-elastic-{}-{}.", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) struct Job {
    pub(crate) running: Running,
    pub(crate) mark: String,
}

impl Job {
    /// Starts `corro run` with `flags` on the worker, with `steps` to make.
    pub(crate) fn start(flags: &[&str], variables: &[(&str, &str)], steps: u64) -> Self {
        let (worker, steps) = (worker(), steps.to_string());
        Self::start_command(flags, variables, &[&worker, &steps])
    }

    pub(crate) fn start_command(flags: &[&str], variables: &[(&str, &str)], words: &[&str]) -> Self {
        let mut command = run_command(&[flags, words].concat());
        Self::of(command.envs(variables.iter().copied()))
    }

    /// Any `corro run` on the worker.
    pub(crate) fn of(command: &mut Command) -> Self {
        let mark = mark();
        Self { running: Running::start(command.env("TEST_MARK", &mark)), mark }
    }

    pub(crate) fn text(&self) -> String {
        self.running.out_so_far()
    }

    /// Waits until `rank` has a place in an epoch of `size` ranks not before `epoch`, and gives its process.
    pub(crate) fn process(&self, rank: usize, size: usize, epoch: u64) -> i32 {
        let mut found = None;
        wait_until(&format!("rank {rank} of {size} is there in epoch {epoch}:\n{}", self.text()), HANG_LIMIT, || {
            found = places(&self.text()).into_iter().rev().find(|p| p.1 == rank && p.2 == size && p.3 >= epoch);
            found.is_some()
        });
        found.map(|p| p.0).unwrap()
    }

    /// Waits for a step in `epoch` or later.
    pub(crate) fn steps_in(&self, epoch: u64) -> u64 {
        let mut found = 0;
        wait_until(&format!("a step is made in epoch {epoch}"), HANG_LIMIT, || {
            let text = self.text();
            let epochs =
                text.lines().filter(|l| l.contains(">:step ")).filter_map(|l| l.rsplit(' ').next()?.parse().ok());
            found = epochs.max().unwrap_or(0);
            found >= epoch
        });
        found
    }

    /// Waits for the end: nothing is left, and every process that finished has made each step once.
    pub(crate) fn finish(self, steps: u64) -> Ran {
        let mark = self.mark.clone();
        let ran = self.end(steps);
        assert_eq!(marked(&mark), [0; 0]);
        ran
    }

    /// As [`Job::finish`], where something may be left for a while.
    pub(crate) fn end(self, steps: u64) -> Ran {
        let ran = self.running.end();
        assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
        let sum = steps * (steps - 1) / 2;
        let finished: Vec<&str> = ran.out.lines().filter(|l| l.contains("finished at")).collect();
        assert!(!finished.is_empty(), "{}\n{}", ran.out, ran.err);
        for line in finished {
            assert!(line.contains(&format!("step {steps} sum {sum} ")), "{line}");
        }
        ran
    }
}

/// (process, rank, size, epoch) of each place that was told.
pub(crate) fn places(text: &str) -> Vec<(i32, usize, usize, u64)> {
    let place = |line: &str| {
        let words: Vec<&str> = line.split(">:pid ").nth(1)?.split([' ', ',']).collect();
        Some((words[0].parse().ok()?, words[3].parse().ok()?, words[5].parse().ok()?, words[8].parse().ok()?))
    };
    text.lines().filter_map(place).collect()
}
