//! The settings of a job that its ranks read from the environment: one table that makes the flags, the keys of the
//! config file and the variables.
//!
//! Pure. A value given on the command line beats the config file; what neither gives is left as the environment has it.

use std::collections::BTreeMap;

use corro_core::{Error, Result, config};

/// One setting.
#[derive(Clone, Copy)]
pub(super) struct Knob {
    /// The flag's name, without dashes.
    pub(super) flag: &'static str,
    /// Section and key of the config file.
    pub(super) key: (&'static str, &'static str),
    /// Horovod's variable. Where Corro has its own name for it, both are set.
    variable: &'static str,
    /// What values it takes.
    pub(super) kind: Kind,
    /// The switch without which it is left out.
    needs: Option<&'static str>,
    /// For `--help`.
    pub(super) help: &'static str,
}

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// `--x` or `--no-x`; what the second does, for `--help`.
    Switch(&'static str),
    /// A switch whose variable says the opposite; the name of its `off` flag, and what that does.
    Inverted(&'static str, &'static str),
    /// A whole number from 0.
    Count,
    /// Whole numbers from 0, with commas between them.
    Counts,
    /// MiB, told to the ranks in bytes.
    Mebibytes,
    /// A number from 0.
    Amount,
    /// A number from 0 to 1.
    Share,
    /// Any text.
    Text,
    /// A log level.
    Level,
}

const fn knob(
    flag: &'static str,
    key: (&'static str, &'static str),
    variable: &'static str,
    kind: Kind,
    help: &'static str,
) -> Knob {
    Knob { flag, key, variable, kind, needs: None, help }
}

const fn with(needs: &'static str, knob: Knob) -> Knob {
    Knob { needs: Some(needs), ..knob }
}

/// What can be logged, from the least important on.
pub(super) const LEVELS: [&str; 6] = ["TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL"];

/// All settings.
#[rustfmt::skip]
pub(super) static KNOBS: &[Knob] = &[
    knob("fusion-threshold-mb", ("params", "fusion_threshold_mb"), "HOROVOD_FUSION_THRESHOLD", Kind::Mebibytes,
        "Size of the fusion buffer in MiB"),
    knob("cycle-time-ms", ("params", "cycle_time_ms"), "HOROVOD_CYCLE_TIME", Kind::Amount,
        "Longest time in ms that a ready tensor waits for others to join it"),
    knob("cache-capacity", ("params", "cache_capacity"), "HOROVOD_CACHE_CAPACITY", Kind::Count,
        "Number of entries in the response cache"),
    knob("hierarchical-allreduce", ("params", "hierarchical_allreduce"), "HOROVOD_HIERARCHICAL_ALLREDUCE",
        Kind::Switch("Reduce among all ranks alike, whatever host they are on"),
        "Reduce inside each host first; on by default"),
    knob("hierarchical-allgather", ("params", "hierarchical_allgather"), "HOROVOD_HIERARCHICAL_ALLGATHER",
        Kind::Switch("No effect: there is one way to gather"),
        "No effect: there is one way to gather"),
    knob("torus-allreduce", ("params", "torus_allreduce"), "HOROVOD_TORUS_ALLREDUCE",
        Kind::Switch("No effect: there is no torus allreduce"),
        "No effect: there is no torus allreduce"),
    knob("autotune", ("autotune", "enabled"), "HOROVOD_AUTOTUNE",
        Kind::Switch("Keep the settings as they are, which is the default"),
        "Search for the best settings while training"),
    with("autotune", knob("autotune-log-file", ("autotune", "log_file"), "HOROVOD_AUTOTUNE_LOG", Kind::Text,
        "Where autotuning writes what it tried (CSV)")),
    with("autotune", knob("autotune-warmup-samples", ("autotune", "warmup_samples"), "HOROVOD_AUTOTUNE_WARMUP_SAMPLES",
        Kind::Count, "Number of samples at the beginning that are thrown away")),
    with("autotune", knob("autotune-steps-per-sample", ("autotune", "steps_per_sample"),
        "HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE", Kind::Count, "Training steps per sample")),
    with("autotune", knob("autotune-bayes-opt-max-samples", ("autotune", "bayes_opt_max_samples"),
        "HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", Kind::Count, "Number of samples after which the search ends")),
    with("autotune", knob("autotune-gaussian-process-noise", ("autotune", "gaussian_process_noise"),
        "HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", Kind::Share, "How much noise to assume in the samples, from 0 to 1")),
    knob("timeline-filename", ("timeline", "filename"), "HOROVOD_TIMELINE", Kind::Text,
        "Where the timeline is written"),
    with("timeline-filename", knob("timeline-mark-cycles", ("timeline", "mark_cycles"), "HOROVOD_TIMELINE_MARK_CYCLES",
        Kind::Switch("Leave cycles out of the timeline, which is the default"), "Mark cycles in the timeline")),
    knob("stall-check", ("stall_check", "enabled"), "HOROVOD_STALL_CHECK_DISABLE",
        Kind::Inverted("no-stall-check", "Don't warn when ranks wait for others"),
        "Warn when ranks wait for others; on by default"),
    knob("stall-check-warning-time-seconds", ("stall_check", "warning_time_seconds"),
        "HOROVOD_STALL_CHECK_TIME_SECONDS", Kind::Count, "Seconds of waiting before a warning"),
    knob("stall-check-shutdown-time-seconds", ("stall_check", "shutdown_time_seconds"),
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", Kind::Count, "Seconds of waiting before the job is ended; 0: never"),
    knob("mpi-threads-disable", ("library_options", "mpi_threads_disable"), "HOROVOD_MPI_THREADS_DISABLE",
        Kind::Switch("No effect: see --mpi-threads-disable"),
        "Accepted without effect; Corro prints a note: where it uses MPI, it does so from its own threads"),
    knob("num-nccl-streams", ("library_options", "num_nccl_streams"), "HOROVOD_NUM_NCCL_STREAMS", Kind::Count,
        "Accepted without effect; Corro prints a note: each process set has one stream"),
    knob("thread-affinity", ("library_options", "thread_affinity"), "HOROVOD_THREAD_AFFINITY", Kind::Counts,
        "Cores for the engine's threads, one for each rank of a host, e.g. 0,2,4,6"),
    knob("gloo-timeout-seconds", ("library_options", "gloo_timeout_seconds"), "HOROVOD_GLOO_TIMEOUT_SECONDS",
        Kind::Count, "Seconds within which ranks must connect to each other"),
    knob("log-level", ("logging", "level"), "HOROVOD_LOG_LEVEL", Kind::Level,
        "Lowest level to log: TRACE, DEBUG, INFO, WARNING, ERROR or FATAL"),
    knob("log-with-timestamp", ("logging", "with_timestamp"), "HOROVOD_LOG_HIDE_TIME",
        Kind::Inverted("log-without-timestamp", "Begin log lines without the time"), "Begin log lines with the time"),
];

/// What was given: flag to text, not yet checked. Switches hold `1` or `0`.
pub(super) type Given = BTreeMap<&'static str, String>;

/// What settings come to.
#[derive(Debug, Default)]
pub(super) struct Settings {
    /// The variables they set.
    pub(super) variables: Vec<(String, String)>,
    /// What was asked for in vain.
    pub(super) remarks: Vec<String>,
}

/// What `flags` and `file` ask for, `flags` first.
pub(super) fn settings(flags: &Given, file: &Given) -> Result<Settings> {
    let given = |flag: &str| flags.get(flag).or_else(|| file.get(flag));
    let mut settings = Settings::default();
    for knob in KNOBS {
        let Some(text) = given(knob.flag) else { continue };
        let value = knob.check(text)?;
        let asked = if flags.contains_key(knob.flag) {
            format!("--{}", knob.flag)
        } else {
            format!("the config file's {}.{}", knob.key.0, knob.key.1)
        };
        if let Some(why) = config::why_without_effect(knob.variable) {
            // Who switches off what is not there has got it.
            if !matches!(knob.kind, Kind::Switch(_)) || value != "0" {
                settings.remarks.push(format!("{asked} has no effect: {why}"));
            }
            continue;
        }
        if let Some(switch) = knob.needs.filter(|switch| given(switch).is_none_or(|v| v == "0")) {
            settings.remarks.push(format!("{asked} has no effect without --{switch}"));
            continue;
        }
        // Both names, so that the flag beats whichever of them is already set.
        settings.variables.extend(config::names_of(knob.variable).map(|name| (name.to_owned(), value.clone())));
    }
    Ok(settings)
}

impl Knob {
    /// What the variable is to hold, if `text` is a value this setting takes.
    fn check(&self, text: &str) -> Result<String> {
        let value = self.convert(text)?;
        let known = config::find(self.variable);
        // The variable's own limits hold for the flag, whose units may be others.
        if known.is_some_and(|variable| !variable.kind.takes(&value)) {
            let limits = known.map(|variable| variable.kind.to_string()).unwrap_or_default();
            return Err(Error::Usage(format!(
                "--{} is {text:?}, which is too much or too little: {} is {limits}",
                self.flag, self.variable
            )));
        }
        Ok(value)
    }

    fn convert(&self, text: &str) -> Result<String> {
        let wrong = |wanted: &str| Error::Usage(format!("--{} is {text:?}, which is not {wanted}", self.flag));
        let count = |t: &str| t.trim().parse::<u64>().ok();
        let amount = |t: &str| t.trim().parse::<f64>().ok().filter(|n| *n >= 0.0 && n.is_finite());
        match self.kind {
            Kind::Switch(_) | Kind::Text => Ok(text.into()),
            Kind::Inverted(..) => Ok(if text == "0" { "1" } else { "0" }.into()),
            Kind::Count => count(text).map(|n| n.to_string()).ok_or_else(|| wrong("a whole number from 0")),
            Kind::Counts => {
                let all: Option<Vec<u64>> = text.split(',').map(count).collect();
                let all = all.ok_or_else(|| wrong("a list of core numbers such as 0,2,4,6"))?;
                Ok(all.iter().map(ToString::to_string).collect::<Vec<_>>().join(","))
            }
            Kind::Mebibytes => {
                let bytes = count(text).and_then(|n| n.checked_mul(1 << 20));
                bytes.map(|n| n.to_string()).ok_or_else(|| wrong("a whole number of MiB from 0"))
            }
            Kind::Amount => amount(text).map(|n| n.to_string()).ok_or_else(|| wrong("a number from 0")),
            Kind::Share => {
                amount(text).filter(|n| *n <= 1.0).map(|n| n.to_string()).ok_or_else(|| wrong("a number from 0 to 1"))
            }
            Kind::Level => {
                let level = text.trim().to_ascii_uppercase();
                let known = LEVELS.contains(&level.as_str());
                if known { Ok(level) } else { Err(wrong(&format!("one of {}", LEVELS.join(", ")))) }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given(pairs: &[(&'static str, &str)]) -> Given {
        pairs.iter().map(|(flag, text)| (*flag, (*text).to_owned())).collect()
    }

    fn horovod(flags: &[(&'static str, &str)], file: &[(&'static str, &str)]) -> Vec<(String, String)> {
        let all = settings(&given(flags), &given(file)).unwrap().variables;
        all.into_iter().filter(|(name, _)| name.starts_with("HOROVOD_")).collect()
    }

    #[test]
    fn flags_beat_the_file_and_units_are_converted() {
        for (flags, file, want) in [
            (
                &[("fusion-threshold-mb", "32")][..],
                &[("fusion-threshold-mb", "1")][..],
                "HOROVOD_FUSION_THRESHOLD=33554432",
            ),
            (&[], &[("cycle-time-ms", "2.5")], "HOROVOD_CYCLE_TIME=2.5"),
            (&[("stall-check", "0")], &[], "HOROVOD_STALL_CHECK_DISABLE=1"),
            (&[("log-with-timestamp", "1")], &[("log-with-timestamp", "0")], "HOROVOD_LOG_HIDE_TIME=0"),
            (&[("thread-affinity", "0, 2")], &[], "HOROVOD_THREAD_AFFINITY=0,2"),
            (&[("log-level", "debug")], &[], "HOROVOD_LOG_LEVEL=DEBUG"),
            (&[("hierarchical-allreduce", "0")], &[], "HOROVOD_HIERARCHICAL_ALLREDUCE=0"),
            (&[("timeline-mark-cycles", "1")], &[], ""),
            (&[("autotune", "0"), ("autotune-log-file", "x")], &[], "HOROVOD_AUTOTUNE=0"),
            (&[("autotune-log-file", "x")], &[("autotune", "1")], "HOROVOD_AUTOTUNE=1 HOROVOD_AUTOTUNE_LOG=x"),
        ] {
            let got: Vec<String> = horovod(flags, file).iter().map(|(name, value)| format!("{name}={value}")).collect();
            assert_eq!(got.join(" "), want);
        }
    }

    #[test]
    fn our_name_is_set_as_well_because_it_wins() {
        let all = settings(&given(&[("fusion-threshold-mb", "1")]), &Given::new()).unwrap().variables;
        assert!(all.contains(&("CORRO_FUSION_THRESHOLD".into(), "1048576".into())), "{all:?}");
    }

    #[test]
    fn wrong_values_name_the_flag() {
        for (flag, text) in [
            ("fusion-threshold-mb", "-1"),
            ("cycle-time-ms", "-0.5"),
            ("cycle-time-ms", "inf"),
            ("cache-capacity", "x"),
            ("autotune-gaussian-process-noise", "1.1"),
            ("log-level", "loud"),
            ("thread-affinity", "0,,1"),
            ("fusion-threshold-mb", "99999999999999999"),
            // Fits a number, but no memory: 65 GiB.
            ("fusion-threshold-mb", "66560"),
            ("autotune-steps-per-sample", "0"),
        ] {
            let error = settings(&given(&[(flag, text)]), &Given::new()).unwrap_err().to_string();
            assert!(error.contains(flag) && error.contains(text), "{error}");
        }
    }

    #[test]
    fn what_has_no_effect_is_said_once_and_not_passed_on() {
        for (flags, file, want) in [
            (&[("torus-allreduce", "1")][..], &[][..], "--torus-allreduce has no effect: Corro has no torus allreduce"),
            (&[], &[("num-nccl-streams", "2")], "the config file's library_options.num_nccl_streams has no effect: "),
            (&[("timeline-mark-cycles", "1")], &[], "--timeline-mark-cycles has no effect without --timeline-filename"),
            (
                &[("autotune", "0"), ("autotune-log-file", "x")],
                &[],
                "--autotune-log-file has no effect without --autotune",
            ),
        ] {
            let settings = settings(&given(flags), &given(file)).unwrap();
            assert!(settings.remarks.len() == 1 && settings.remarks[0].starts_with(want), "{:?}", settings.remarks);
            assert!(!settings.variables.iter().any(|(name, _)| name.contains("TORUS") || name.contains("NCCL")));
        }
        assert!(settings(&given(&[("torus-allreduce", "0")]), &Given::new()).unwrap().remarks.is_empty());
    }

    /// A flag whose variable nobody reads and nobody calls without effect would be silent.
    #[test]
    fn every_knob_works_or_is_known_not_to() {
        for knob in KNOBS {
            let known = config::find(knob.variable).is_some();
            assert!(known != config::why_without_effect(knob.variable).is_some(), "--{}", knob.flag);
        }
    }
}
