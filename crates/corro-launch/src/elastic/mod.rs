//! ElasticJob jobs: processes come and go, and the job goes on.
//!
//! All decisions are [`corro_membership::Machine`]'s. Here is what it decides about: hosts as they are discovered
//! (`discovery`), agents and processes on them, the connections of workers (`driver`).

mod discovery;
mod driver;

use std::path::PathBuf;
use std::sync::mpsc::channel;
use std::time::Duration;

use corro_core::Result;
use corro_membership::Rules;

use crate::hosts::Host;
use crate::job::{Control, Job, Outcome};
use crate::output::Output;

/// An elastic job.
#[derive(Clone, Debug)]
pub struct ElasticJob {
    /// What to run and how; its placement means nothing here.
    pub job: Job,
    /// How many processes, and how patient to be.
    pub rules: Rules,
    /// Where.
    pub hosts: Hosts,
    /// How long processes go on when the launcher is gone.
    pub orphan_time: Duration,
}

/// The hosts of an elastic job.
#[derive(Clone, Debug)]
pub enum Hosts {
    /// Always these.
    Fixed(Vec<Host>),
    /// Whatever a script prints.
    Script {
        /// The script, as a shell would be told.
        command: PathBuf,
        /// Slots of hosts for which it names none.
        slots_per_host: Option<usize>,
        /// How often it is asked.
        every: Duration,
    },
}

impl ElasticJob {
    /// Runs the job to its end. `ready` is given the means to interrupt it.
    pub fn run(&self, output: Output, ready: impl FnOnce(Control)) -> Result<Outcome> {
        let (sender, events) = channel();
        ready(Control { events: sender.clone() });
        let mut driver = driver::Driver::start(self, output, sender, events)?;
        let failure = driver.follow();
        driver.release();
        Ok(driver.outcome(failure?))
    }
}
