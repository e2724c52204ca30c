//! How an engine behaves. [`Options::from_env`] is what programs use; tests make their own.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use corro_agreement::coordinator::StallLimits;
use corro_agreement::fusion;
use corro_agreement::node::Rules;
use corro_core::{Result, config};
use corro_planes::Table;
use corro_transport::Fabric;

use crate::tuning::autotune;

/// See the module.
#[derive(Clone, Debug)]
pub struct Options {
    /// Bytes that run as one.
    pub fusion_threshold: usize,
    /// Whether tensors fuse only with others of their own group.
    pub only_groups: bool,
    /// How long submitted tensors may be held back to gather more; `None`: not at all.
    pub cycle_time: Option<Duration>,
    /// How many tensors are remembered by number; 0: none.
    pub cache_capacity: usize,
    /// Whether repeated steps are run by a plan.
    pub plans: bool,
    /// When waiting is worth a word, or the end.
    pub stalls: StallLimits,
    /// What is written down about the job.
    pub watching: Watching,
    /// Whether and how the engine looks for better settings by itself.
    pub tuning: Option<Tuning>,
    /// Cores for the engine's own threads, one for each rank of a host; none: wherever the system puts them.
    pub cores: Vec<usize>,
    /// How many operations the flight recorder keeps.
    pub recorded: usize,
    /// Who may move tensors that lie in the memory of GPUs. The same on all ranks.
    pub planes: Table,
}

impl Default for Options {
    fn default() -> Self {
        let rules = Rules::default();
        Self {
            fusion_threshold: rules.fusion.threshold,
            only_groups: rules.fusion.only_groups,
            cycle_time: None,
            cache_capacity: rules.cache_capacity,
            plans: rules.plans,
            stalls: rules.stalls,
            watching: Watching::default(),
            tuning: None,
            cores: Vec::new(),
            recorded: 1024,
            planes: Table::default(),
        }
    }
}

impl Options {
    /// What the environment says, see [`corro_core::config`].
    pub fn from_env() -> Result<Self> {
        let default = Self::default();
        let warn = if config::STALL_CHECK_DISABLE.flag(false) {
            Duration::ZERO
        } else {
            config::STALL_CHECK_TIME.seconds(default.stalls.warn)?
        };
        let if_set = |knob: &config::Variable| knob.value().map(|_| knob.seconds(Duration::ZERO)).transpose();
        let (shutdown, ignored) = longest_stall(warn, if_set(&config::STALL_SHUTDOWN_TIME)?, if_set(&config::TIMEOUT)?);
        if ignored {
            tracing::warn!("the stall shutdown time is below the stall warning time and is ignored");
        }
        let cycle = config::CYCLE_TIME.number(0.0f64)?;
        Ok(Self {
            fusion_threshold: config::FUSION_THRESHOLD.number(default.fusion_threshold)?,
            only_groups: config::DISABLE_GROUP_FUSION.flag(false),
            cycle_time: Duration::try_from_secs_f64(cycle / 1000.0).ok().filter(|d| !d.is_zero()),
            cache_capacity: config::CACHE_CAPACITY.number(default.cache_capacity)?,
            plans: config::PLAN.flag(true),
            stalls: StallLimits { warn, shutdown },
            planes: Table::from_env()?,
            watching: Watching::from_env()?,
            tuning: if config::AUTOTUNE.flag(false) { Some(Tuning::from_env()?) } else { None },
            cores: config::THREAD_AFFINITY.numbers()?,
            recorded: config::RECORDER.number(default.recorded)?,
        })
    }

    pub(crate) fn rules(&self) -> Rules {
        Rules {
            stalls: self.stalls,
            cache_capacity: self.cache_capacity,
            // While the settings are being tuned, plans would hide what they do.
            plans: self.plans && self.tuning.is_none(),
            fusion: fusion::Limits { threshold: self.fusion_threshold, only_groups: self.only_groups },
            entry_cost: Rules::default().entry_cost,
            ticks: self.watching.on_request || self.watching.timeline.is_some(),
            ..Rules::default()
        }
    }
}

/// How long ranks wait for another rank's program before it counts as lost; and whether what the user said about it is
/// ignored, as Horovod ignores it. Horovod's own variable (`stall`) wins over `CORRO_TIMEOUT` (`timeout`).
fn longest_stall(warn: Duration, stall: Option<Duration>, timeout: Option<Duration>) -> (Duration, bool) {
    match (stall, timeout) {
        (Some(stall), _) if !stall.is_zero() && stall < warn => (Duration::ZERO, true),
        (None, Some(timeout)) => (timeout, false),
        // Who wants to hear nothing of stalls knows that there are some.
        _ if warn.is_zero() => (Duration::ZERO, false),
        (Some(stall), _) => (stall, false),
        (None, None) => (Rules::default().stalls.shutdown, false),
    }
}

/// What is written down about a job.
#[derive(Clone, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Watching {
    /// Horovod's timeline, written by rank 0.
    pub timeline: Option<PathBuf>,
    /// Whether a timeline may be started while the job runs.
    pub on_request: bool,
    /// Whether the timeline marks each round of agreement.
    pub mark_cycles: bool,
    /// Whether NVIDIA's profilers are told what happens, where one watches.
    pub ranges: bool,
    /// The trace of all ranks, each with a file beside this path.
    pub trace: Option<PathBuf>,
    /// Bytes that a file may have.
    pub cap: u64,
    /// Into which folder the last operations are written if the job fails; `None`: nowhere.
    pub records: Option<PathBuf>,
    /// Whether the launcher wants to hear how this rank gets on.
    pub feed: bool,
}

impl Default for Watching {
    fn default() -> Self {
        let cap = crate::watch::timeline::CAP;
        Self {
            timeline: None,
            on_request: false,
            mark_cycles: false,
            ranges: true,
            trace: None,
            cap,
            records: None,
            feed: false,
        }
    }
}

impl Watching {
    fn from_env() -> Result<Self> {
        let timeline = config::TIMELINE.value();
        Ok(Self {
            on_request: timeline.is_some(),
            timeline: timeline.filter(|t| t != "DYNAMIC").map(PathBuf::from),
            mark_cycles: config::TIMELINE_MARK_CYCLES.flag(false),
            ranges: !config::DISABLE_NVTX_RANGES.flag(false),
            trace: config::TRACE.value().map(PathBuf::from),
            cap: config::TIMELINE_CAP.number(crate::watch::timeline::CAP)?,
            records: match config::RECORDS.value() {
                Some(word) if word == "none" => None,
                Some(folder) => Some(PathBuf::from(folder)),
                None => Some(std::env::temp_dir()),
            },
            feed: config::FEED.value().is_some(),
        })
    }
}

/// How the engine looks for better settings, see [`crate::tuning::autotune`].
#[derive(Clone, Debug, Default)]
pub struct Tuning {
    /// How to search.
    pub search: autotune::Options,
    /// What the user has set, and therefore stays.
    pub fixed: autotune::Fixed,
    /// Where each trial is written down.
    pub log: Option<PathBuf>,
    /// Where the search begins.
    pub fusion_threshold: usize,
}

impl Tuning {
    fn from_env() -> Result<Self> {
        let default = autotune::Options::default();
        let search = autotune::Options {
            warmup_trials: config::AUTOTUNE_WARMUP.number(default.warmup_trials)?,
            steps_per_sample: config::AUTOTUNE_STEPS.number(default.steps_per_sample)?,
            max_trials: config::AUTOTUNE_SAMPLES.number(default.max_trials)?,
            noise: config::AUTOTUNE_NOISE.number(default.noise)?,
            rounding_may_change: config::AUTOTUNE_ROUNDING.flag(false),
            ..default
        };
        let fixed = autotune::Fixed {
            fusion_threshold: config::FUSION_THRESHOLD.value().is_some(),
            crossover: config::ALGORITHM.value().is_some(),
            ..autotune::Fixed::default()
        };
        let fusion_threshold = config::FUSION_THRESHOLD.number(Rules::default().fusion.threshold)?;
        Ok(Self { search, fixed, log: config::AUTOTUNE_LOG.value().map(PathBuf::from), fusion_threshold })
    }

    /// Whether the crossover sizes of reductions may change: if last bits may, or no order is another with two ranks.
    pub(crate) fn may_tune_reductions(&self, fabric: &Fabric) -> bool {
        self.search.rounding_may_change || fabric.size() == 2
    }

    /// The tuner of a job on this fabric.
    pub(crate) fn tuner(&self, fabric: &Fabric) -> autotune::Tuner {
        let hosts: BTreeSet<&str> = fabric.cards().iter().map(|c| c.locality.as_str()).collect();
        let start = autotune::Parameters {
            fusion_threshold: self.fusion_threshold,
            pieces: autotune::PIECES,
            crossover: 0,
            cycle_time_ms: 0.0,
            cache_enabled: true,
            hierarchical_allreduce: hosts.len() > 1,
            hierarchical_allgather: false,
            torus_allreduce: false,
        };
        // Inside a host values are summed in the order of ranks, wherever they lie in a batch.
        let search = autotune::Options { place_moves_rounding: hosts.len() > 2, ..self.search };
        // On one host all goes through shared memory: there are no messages to cut, and there is one algorithm.
        let alone = hosts.len() == 1;
        let fixed = autotune::Fixed {
            pieces: alone || self.fixed.pieces,
            crossover: alone || self.fixed.crossover,
            ..self.fixed
        };
        autotune::Tuner::new(start, fixed, search)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_limits_the_wait_for_another_ranks_program() {
        let seconds = Duration::from_secs;
        let limit = |warn, stall: Option<u64>, timeout: Option<u64>| {
            longest_stall(seconds(warn), stall.map(seconds), timeout.map(seconds))
        };
        assert_eq!(limit(60, None, None), (seconds(1800), false), "as long as other systems wait by default");
        assert_eq!(limit(60, None, Some(10)), (seconds(10), false), "what is documented is true");
        assert_eq!(limit(60, None, Some(0)), (seconds(0), false), "never");
        assert_eq!(limit(60, Some(90), Some(10)), (seconds(90), false), "Horovod's variable wins");
        assert_eq!(limit(60, Some(0), Some(10)), (seconds(0), false));
        assert_eq!(limit(60, Some(30), None), (seconds(0), true), "as in Horovod");
        assert_eq!(limit(0, None, None), (seconds(0), false));
        assert_eq!(limit(0, None, Some(10)), (seconds(10), false));
    }
}
