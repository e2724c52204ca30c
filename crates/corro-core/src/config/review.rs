//! A look at the whole environment for what would otherwise be silent: names that nobody knows, values that cannot be
//! read, and knobs of Horovod's that do nothing here.
//!
//! Pure: the environment is an argument. Whoever starts first (the launcher, else rank 0) tells the user, once.

use super::{Kind, LOG_LEVEL, REPORTED, VARIABLES, Variable};

/// Knobs of Horovod's that have no effect in Corro, and why.
pub static WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("HOROVOD_HIERARCHICAL_ALLGATHER", "there is one way to gather over several hosts"),
    ("HOROVOD_TORUS_ALLREDUCE", "Corro has no torus allreduce"),
    ("HOROVOD_NUM_NCCL_STREAMS", "Corro has one stream for each process set"),
    ("HOROVOD_BATCH_D2D_MEMCOPIES", "Corro packs tensors in its own way"),
    ("HOROVOD_ENABLE_ASYNC_COMPLETION", "operations always complete asynchronously"),
    ("HOROVOD_ENABLE_XLA_OPS", "XLA operations are always there"),
    ("HOROVOD_MPI_THREADS_DISABLE", "where Corro uses MPI, it does so from threads of its own"),
    ("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "Adasum goes over Corro's own connections"),
    ("HOROVOD_CCL_CACHE", "Corro does not use oneCCL"),
];

/// Names that are none of our knobs and not worth a word. The launcher sets the first for scripts that look at them; the
/// others are for building or packaging Horovod, and many container images have them. A name that ends with `_` stands
/// for all that begin with it.
const QUIET: &[&str] = &[
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "HOROVOD_ALLOW_MIXED_GPU_IMPL",
    "HOROVOD_BUILD_",
    "HOROVOD_CMAKE",
    "HOROVOD_CUDA_",
    "HOROVOD_DEBUG",
    "HOROVOD_GPU",
    "HOROVOD_GPU_",
    "HOROVOD_LOCAL_VERSION",
    "HOROVOD_NCCL_",
    "HOROVOD_NVTX_INCLUDE",
    "HOROVOD_ROCM_",
    "HOROVOD_SKIP_COMPILE",
    "HOROVOD_SPARK_PYTHONPATH",
    "HOROVOD_SPARK_WORK_DIR",
    "HOROVOD_VERSION",
    "HOROVOD_WITH_",
    "HOROVOD_WITHOUT_",
    // Our own tests and scripts.
    "CORRO_TEST_",
    "CORRO_BENCH_",
    "CORRO_FUZZ_",
    "CORRO_CHAOS_SEED",
    "CORRO_SIM_SEED",
    "CORRO_GLIBC",
];

/// Why a setting has no effect, if it is known and has none.
pub fn why_without_effect(name: &str) -> Option<&'static str> {
    WITHOUT_EFFECT.iter().find(|(known, _)| *known == name).map(|(_, why)| *why)
}

/// One thing to tell the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The variable, as the user wrote it.
    pub name: String,
    /// The whole sentence.
    pub text: String,
    /// Its value can't be read: whoever reads it will fail.
    pub unreadable: bool,
}

/// What there is to say about these variables, by name. Those that were reported before (see [`REPORTED`]) are left out.
pub fn review(environment: impl Iterator<Item = (String, String)>) -> Vec<Remark> {
    let mut ours: Vec<(String, String)> =
        environment.filter(|(name, value)| !value.is_empty() && has_our_prefix(name)).collect();
    ours.sort();
    let reported = ours.iter().find(|(name, _)| name == REPORTED.name).map(|(_, names)| names.clone());
    let was_reported = |name: &str| reported.as_deref().unwrap_or_default().split(',').any(|n| n == name);
    let tell = |(name, value): &(String, String)| {
        let (text, unreadable) = remark(name, value).filter(|_| !was_reported(name))?;
        Some(Remark { name: name.clone(), text, unreadable })
    };
    ours.iter().filter_map(tell).collect()
}

fn has_our_prefix(name: &str) -> bool {
    name.starts_with("CORRO_") || name.starts_with("HOROVOD_")
}

/// The sentence, and whether the value can't be read.
fn remark(name: &str, value: &str) -> Option<(String, bool)> {
    if let Some(variable) = VARIABLES.iter().find(|v| v.name == name || v.horovod == Some(name)) {
        return (!variable.kind.takes(value)).then(|| not_taken(variable, name, value));
    }
    if let Some(why) = why_without_effect(name) {
        return Some((format!("{name} is set, but has no effect: {why}"), false));
    }
    let is_quiet = |quiet: &&str| name == *quiet || (quiet.ends_with('_') && name.starts_with(*quiet));
    if QUIET.iter().any(is_quiet) {
        return None;
    }
    let hint = closest(name).map(|known| format!(" (did you mean {known}?)")).unwrap_or_default();
    Some((format!("{name} is set, but Corro knows no such variable{hint}"), false))
}

fn not_taken(variable: &Variable, name: &str, value: &str) -> (String, bool) {
    let text = format!("{name} is {value:?}, which is not {}", variable.kind);
    match variable.kind {
        // Horovod's rule: whatever is not yes is no.
        Kind::Flag | Kind::FlagOrAuto => (format!("{text}; it counts as 0"), false),
        // No reason to end a job.
        _ if variable.name == LOG_LEVEL.name => (format!("{text}; the default is {}", variable.default), false),
        _ => (text, true),
    }
}

/// The known name with the same prefix that looks most like `name`, if one does.
fn closest(name: &str) -> Option<&'static str> {
    let (prefix, rest) = name.split_once('_')?;
    let known = VARIABLES.iter().flat_map(|v| [Some(v.name), v.horovod]).flatten();
    let same = known.chain(WITHOUT_EFFECT.iter().map(|(n, _)| *n)).filter(|n| n.split('_').next() == Some(prefix));
    let likeness = |known: &str| {
        let known = known.split_once('_').map_or(known, |(_, rest)| rest);
        strsim::jaro_winkler(&rest.to_ascii_uppercase(), known)
    };
    let best = same.map(|known| (likeness(known), known)).max_by(|a, b| a.0.total_cmp(&b.0))?;
    (best.0 > 0.85).then_some(best.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn say(pairs: &[(&str, &str)]) -> Vec<String> {
        let all = pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned()));
        review(all).into_iter().map(|r| r.text).collect()
    }

    #[test]
    fn what_is_right_is_not_worth_a_word() {
        let fine = [
            ("PATH", "x"),
            ("CORRO_TIMEOUT", "10"),
            ("HOROVOD_LOG_LEVEL", "INFO"),
            ("HOROVOD_WITH_PYTORCH", "1"),
            ("HOROVOD_GPU_OPERATIONS", "NCCL"),
            ("CORRO_TEST_SEED", "3"),
            ("HOROVOD_AUTOTUNE", ""),
        ];
        assert_eq!(say(&fine), [""; 0]);
    }

    #[test]
    fn names_are_those_the_user_wrote() {
        for (pair, words) in [
            (("HOROVOD_AUTOTUNE", "ture"), "HOROVOD_AUTOTUNE is \"ture\", which is not 1 or 0; it counts as 0"),
            (("CORRO_LOG_LEVEL", "loud"), "CORRO_LOG_LEVEL is \"loud\", which is not trace, debug, info"),
            (("HOROVOD_FUSION_THRESHOLD", "18446744073709551615"), "HOROVOD_FUSION_THRESHOLD is"),
            (("HOROVOD_CYCEL_TIME", "1"), "did you mean HOROVOD_CYCLE_TIME?"),
            (("CORRO_FUSION_TRESHOLD", "1"), "did you mean CORRO_FUSION_THRESHOLD?"),
            (("CORRO_TIME_OUT", "1"), "did you mean CORRO_TIMEOUT?"),
            (("HOROVOD_NUM_NCCL_STREAMS", "2"), "has no effect: Corro has one stream"),
        ] {
            let said = say(&[pair]);
            assert!(said.len() == 1 && said[0].contains(words), "{pair:?}: {said:?}");
        }
        assert_eq!(say(&[("CORRO_XYZZY", "1")]), ["CORRO_XYZZY is set, but Corro knows no such variable"]);
    }

    /// Off is off in whatever words; and a default that is on does not come back because of a slip.
    #[test]
    fn a_value_is_refused_only_where_nobody_could_read_it() {
        let refused = |name: &str, value: &str| {
            let said = review(std::iter::once((name.to_owned(), value.to_owned())));
            said.first().map(|remark| remark.unreadable)
        };
        for (name, value, want) in [
            ("CORRO_TIMEOUT", "soon", Some(true)),
            ("HOROVOD_LOG_LEVEL", "loud", Some(false)),
            ("CORRO_CHECKS", "off", None),
            ("CORRO_CHECKS", "ON", None),
            ("CORRO_CHECKS", "2", None),
            ("CORRO_CHECKS", "3", Some(true)),
            ("CORRO_PLAN", "ture", Some(false)),
            ("CORRO_XYZZY", "1", Some(false)),
        ] {
            assert_eq!(refused(name, value), want, "{name}={value}");
        }
        assert_eq!(say(&[("CORRO_PLAN", "ture")]), ["CORRO_PLAN is \"ture\", which is not 1 or 0; it counts as 0"]);
        let said = say(&[("HOROVOD_GLOO_TIMEOUT_SECONDS", "soon")]);
        assert_eq!(said, ["HOROVOD_GLOO_TIMEOUT_SECONDS is \"soon\", which is not a number of seconds"]);
    }

    #[test]
    fn nothing_is_reported_twice() {
        let told = [("CORRO_XYZZY", "1"), ("HOROVOD_AUTOTUNE", "ture"), ("CORRO_REPORTED", "CORRO_XYZZY")];
        let said = say(&told);
        assert!(said.len() == 1 && said[0].starts_with("HOROVOD_AUTOTUNE"), "{said:?}");
    }
}
