//! What an elastic job is to be.

use std::path::PathBuf;
use std::time::Duration;

use corro_membership::Rules;

use crate::hosts::Host;
use crate::job::Job;

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
    /// Those of these that a job of Slurm has now.
    Slurm {
        /// The job's number.
        job: String,
        /// Its hosts at the beginning.
        hosts: Vec<Host>,
        /// How often Slurm is asked.
        every: Duration,
    },
    /// Those whose agents have joined ([`crate::start::Remote::join_port`]).
    Joined,
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
