//! Every environment variable Corro reads, once: name, meaning, default.
//!
//! Nothing else in the project reads the environment (`clippy.toml` forbids it). `docs/environment.md` is made from
//! [`VARIABLES`] by `make gen`. A knob that Horovod has keeps Horovod's name as well; ours wins where both are set.

mod kind;
mod review;

use std::time::Duration;

pub use kind::Kind;
pub use review::{Remark, WITHOUT_EFFECT, review, why_without_effect};

use crate::{Error, Result};

/// The most ranks a job may have.
pub const MAX_RANKS: u64 = 16_384;

/// One knob.
#[derive(Debug)]
pub struct Variable {
    /// Our name.
    pub name: &'static str,
    /// Horovod's name for the same knob, if it has one.
    pub horovod: Option<&'static str>,
    /// What it holds when it is not set, in words a user would type.
    pub default: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// What it does, in one or two sentences.
    pub meaning: &'static str,
}

impl Variable {
    /// What the user set, if anything. An empty value counts as not set.
    pub fn value(&self) -> Option<String> {
        self.written().map(|(_, value)| value)
    }

    /// What the user set, and under which of the two names.
    fn written(&self) -> Option<(&'static str, String)> {
        [Some(self.name), self.horovod].into_iter().flatten().find_map(|name| Some((name, read(name)?)))
    }

    /// What the user set, as a number; an error that names the variable if it is not one that it takes.
    pub fn number<T: std::str::FromStr>(&self, default: T) -> Result<T> {
        let Some((name, text)) = self.written() else { return Ok(default) };
        let number = text.trim().parse().ok().filter(|_| self.kind.takes(&text));
        number.ok_or_else(|| self.bad(name, &text))
    }

    /// What the user set, as a length of time in seconds (a fraction is fine).
    pub fn seconds(&self, default: Duration) -> Result<Duration> {
        let Some((name, text)) = self.written() else { return Ok(default) };
        kind::seconds(&text).ok_or_else(|| self.bad(name, &text))
    }

    /// What the user set, as whole numbers with commas between them; none if nothing was set.
    pub fn numbers(&self) -> Result<Vec<usize>> {
        let Some((name, text)) = self.written() else { return Ok(Vec::new()) };
        let all: Option<Vec<usize>> = text.split(',').map(|n| n.trim().parse().ok()).collect();
        all.ok_or_else(|| self.bad(name, &text))
    }

    /// Yes or no. What is neither is no, which is Horovod's rule; [`review`] tells the user.
    pub fn flag(&self, default: bool) -> bool {
        let Some(text) = self.value() else { return default };
        if self.kind == Kind::FlagOrAuto && text.trim().eq_ignore_ascii_case("auto") {
            return default;
        }
        kind::flag(&text).unwrap_or(false)
    }

    /// Whether `text` is a value that this knob takes; an error if not, in which `whose` names where it was given.
    pub fn check(&self, text: &str, whose: &str) -> Result<()> {
        if self.kind.takes(text) {
            return Ok(());
        }
        Err(Error::Usage(format!("{whose} is {text:?}, which is not {}", self.kind)))
    }

    fn bad(&self, name: &str, text: &str) -> Error {
        Error::Usage(format!("environment variable {name} is {text:?}, which is not {}", self.kind))
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads the environment")]
fn read(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|v| !v.is_empty())
}

/// What there is to say about the environment of this process, see [`review`].
pub fn review_own() -> Vec<Remark> {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.to_string_lossy().into_owned()))
    };
    review(std::env::vars_os().filter_map(text))
}

macro_rules! variables {
    ($($(#[doc = $doc:literal])* $ident:ident = $name:literal, horovod: $horovod:expr, default: $default:literal,
        kind: $kind:expr, $meaning:literal;)*) => {
        $(#[doc = $meaning] pub static $ident: Variable =
            Variable { name: $name, horovod: $horovod, default: $default, kind: $kind, meaning: $meaning };)*

        /// All of them, in the order of this file.
        pub static VARIABLES: &[&Variable] = &[$(&$ident),*];
    };
}

variables! {
    RANK = "CORRO_RANK", horovod: Some("HOROVOD_RANK"), default: "0", kind: Kind::Count(0, MAX_RANKS),
        "This process's rank. Set by the launcher.";
    SIZE = "CORRO_SIZE", horovod: Some("HOROVOD_SIZE"), default: "1", kind: Kind::Count(1, MAX_RANKS),
        "How many ranks the job has. Set by the launcher.";
    LOCAL_RANK = "CORRO_LOCAL_RANK", horovod: Some("HOROVOD_LOCAL_RANK"), default: "0", kind: Kind::Count(0, MAX_RANKS),
        "This process's place among the ranks of its host. Set by the launcher.";
    LOCAL_SIZE = "CORRO_LOCAL_SIZE", horovod: Some("HOROVOD_LOCAL_SIZE"), default: "1", kind: Kind::Count(1, MAX_RANKS),
        "How many ranks this host has. Set by the launcher.";
    CROSS_RANK = "CORRO_CROSS_RANK", horovod: Some("HOROVOD_CROSS_RANK"), default: "0", kind: Kind::Count(0, MAX_RANKS),
        "This process's place among the ranks with the same local rank, one per host. Set by the launcher.";
    CROSS_SIZE = "CORRO_CROSS_SIZE", horovod: Some("HOROVOD_CROSS_SIZE"), default: "1", kind: Kind::Count(1, MAX_RANKS),
        "How many hosts have a rank with this local rank. Set by the launcher.";
    HOSTNAME = "CORRO_HOSTNAME", horovod: Some("HOROVOD_HOSTNAME"), default: "the system's host name", kind: Kind::Text,
        "The name of this host in messages. Ranks with different names never share memory.";
    RENDEZVOUS = "CORRO_RENDEZVOUS", horovod: None, default: "none", kind: Kind::Text,
        "Addresses (host:port, commas between them) of the job's rendezvous store. Set by the launcher.";
    SECRET = "CORRO_SECRET", horovod: None, default: "none", kind: Kind::Text,
        "The job's secret in hexadecimal. Every connection proves it both ways. Set by the launcher; never put it on a command line.";
    STATEMENTS = "CORRO_STATEMENTS", horovod: None, default: "none", kind: Kind::Text,
        "The pipe through which this process tells its launcher why it ends: its number, device and inode. Set by the launcher.";
    FEED = "CORRO_FEED", horovod: None, default: "none", kind: Kind::Text,
        "The pipe through which this process tells its launcher how it gets on: its number, device and inode. Set by the launcher if somebody watches.";
    STACKS = "CORRO_STACKS", horovod: None, default: "none", kind: Kind::Text,
        "The pipe through which this process tells its launcher where its threads are: its number, device and inode. Set by the launcher if somebody watches.";
    REQUESTS = "CORRO_REQUESTS", horovod: None, default: "none", kind: Kind::Text,
        "The pipe through which the launcher asks this process for its flight record: its number, device and inode. Set by the launcher if somebody watches.";
    JOB_ID = "CORRO_JOB_ID", horovod: None, default: "what the launcher around us calls the job", kind: Kind::Text,
        "Names the job where ranks meet without `corro run`. The same on all ranks, different from all other jobs of the user.";
    MEET_DIR = "CORRO_MEET_DIR", horovod: None, default: "$XDG_RUNTIME_DIR/corro on one host, ~/.corro/meet on several", kind: Kind::Text,
        "Where rank 0 writes a file (address and secret, readable by the user only) for the others where ranks meet without `corro run`. On several hosts they must share it.";
    RENDEZVOUS_PORT = "CORRO_RENDEZVOUS_PORT", horovod: None, default: "MASTER_PORT + 1 (or + 11, + 101, + 1001 where that is taken), else any free one", kind: Kind::Count(0, 65_535),
        "The port of the rendezvous store, in the launcher or in rank 0.";
    ELASTIC = "CORRO_ELASTIC", horovod: Some("HOROVOD_ELASTIC"), default: "0", kind: Kind::Flag,
        "1: this process belongs to an elastic job. Set by the launcher; by hand only where a scheduler restarts processes by itself.";
    DRIVER = "CORRO_DRIVER", horovod: None, default: "none", kind: Kind::Text,
        "Addresses (host:port, commas between them) of an elastic job's driver. Set by the launcher.";
    WORKER = "CORRO_WORKER", horovod: None, default: "a random one", kind: Kind::Count(0, u64::MAX),
        "The number of this process in an elastic job, never used for another. Set by the launcher.";
    ELASTIC_TIMEOUT = "CORRO_ELASTIC_TIMEOUT", horovod: Some("HOROVOD_ELASTIC_TIMEOUT"), default: "600", kind: Kind::Seconds,
        "Seconds an elastic job waits for enough processes.";
    ELASTIC_MIN_NP = "CORRO_ELASTIC_MIN_NP", horovod: None, default: "CORRO_SIZE", kind: Kind::Count(1, MAX_RANKS),
        "With how few processes an elastic job goes on, where there is no launcher to be told by --min-np.";
    ELASTIC_SILENCE = "CORRO_ELASTIC_SILENCE", horovod: None, default: "10", kind: Kind::Seconds,
        "Seconds after which a process of an elastic job that gives no sign of life (stopped, or cut off) is ended and replaced.";
    ELASTIC_ORPHAN_TIME = "CORRO_ELASTIC_ORPHAN_TIME", horovod: None, default: "60", kind: Kind::Seconds,
        "Seconds for which the processes of an elastic job go on when their launcher is gone, before they are ended.";
    SERVERS = "CORRO_SERVERS", horovod: None, default: "none", kind: Kind::Text,
        "How many parameter servers the job has, and whether they have hosts of their own. Set by `corro run --servers`.";
    START_TIMEOUT = "CORRO_START_TIMEOUT", horovod: Some("HOROVOD_START_TIMEOUT"), default: "30", kind: Kind::Seconds,
        "Seconds within which the launcher must have reached every host.";
    SPARK_START_TIMEOUT = "CORRO_SPARK_START_TIMEOUT", horovod: Some("HOROVOD_SPARK_START_TIMEOUT"), default: "600", kind: Kind::Seconds,
        "Seconds within which Spark must have started all tasks of `corro.spark.run`.";
    SPARK_DEVICES = "CORRO_SPARK_DEVICES", horovod: None, default: "none", kind: Kind::Text,
        "The GPUs that Spark has given to this rank's task, with commas between them. Set by `corro.spark`.";
    SPARK_USE_LOCAL_RANK_GPU_INDEX = "CORRO_SPARK_USE_LOCAL_RANK_GPU_INDEX", horovod: Some("HOROVOD_SPARK_USE_LOCAL_RANK_GPU_INDEX"), default: "0", kind: Kind::Flag,
        "1: estimators on Spark take the GPU of their local rank, and not the one that Spark has given to their task.";
    RAY_FOLDER = "CORRO_RAY_FOLDER", horovod: None, default: "none", kind: Kind::Text,
        "Where the actor that this rank lives in says how ranks are started. Set by `corro.ray`.";
    REMOTE_CORRO = "CORRO_REMOTE_CORRO", horovod: None, default: "the path of the one that is running", kind: Kind::Text,
        "The `corro` program on the other hosts.";
    JOIN_PORT = "CORRO_JOIN_PORT", horovod: None, default: "none", kind: Kind::Count(0, 65_535),
        "The port of `corro run` at which agents of other hosts join by themselves (`--join-port`); they and it have the same `CORRO_SECRET`.";
    REMOTE_SHELL = "CORRO_REMOTE_SHELL", horovod: None, default: "ssh", kind: Kind::Text,
        "A program that is run as `PROGRAM HOST COMMAND` in place of ssh.";
    TLS = "CORRO_TLS", horovod: None, default: "0", kind: Kind::Flag,
        "1: all traffic between hosts goes through TLS 1.3. By default tensors travel as they are; what ranks agree on and Python objects can't be changed unnoticed either way.";
    TIMEOUT = "CORRO_TIMEOUT", horovod: None, default: "60", kind: Kind::Seconds,
        "Seconds without progress after which a collective, a connection or an engine that does not answer fails, and the error names who is missing. If it is set, it also limits how long ranks wait for another rank's program to submit a tensor: that rank is then named and counts as lost, and an elastic job replaces it. If it is not set, ranks wait 30 minutes for a program whose engine answers. 0: no limit at all.";
    CONNECT_TIMEOUT = "CORRO_CONNECT_TIMEOUT", horovod: Some("HOROVOD_GLOO_TIMEOUT_SECONDS"), default: "600 for all ranks to come, then 30", kind: Kind::Seconds,
        "Seconds within which all ranks must have come to the rendezvous, and within which they must then have connected to each other.";
    INTERFACE = "CORRO_INTERFACE", horovod: Some("HOROVOD_GLOO_IFACE"), default: "any that is reachable", kind: Kind::Text,
        "Comma-separated names of the network interfaces to use between hosts.";
    STREAMS = "CORRO_STREAMS", horovod: None, default: "1", kind: Kind::Count(1, 64),
        "TCP connections between each pair of ranks on different hosts. More than one helps where a single connection is held back: clouds that limit each flow, long delays, several network cards.";
    FUSION_THRESHOLD = "CORRO_FUSION_THRESHOLD", horovod: Some("HOROVOD_FUSION_THRESHOLD"), default: "134217728", kind: Kind::Count(0, 64 << 30),
        "Bytes of the fusion buffer, which lives in memory shared by the ranks of a host. Pages are used only once touched.";
    CYCLE_TIME = "CORRO_CYCLE_TIME", horovod: Some("HOROVOD_CYCLE_TIME"), default: "0", kind: Kind::Amount(0.0, 3_600_000.0),
        "Milliseconds for which submitted tensors may be held back so that more of them run as one. 0: not at all; they gather by themselves while others are under way.";
    CACHE_CAPACITY = "CORRO_CACHE_CAPACITY", horovod: Some("HOROVOD_CACHE_CAPACITY"), default: "1024", kind: Kind::Count(0, 1 << 24),
        "How many tensors per process set are remembered, so that repetitions are announced by number. 0: none.";
    PLAN = "CORRO_PLAN", horovod: None, default: "1", kind: Kind::Flag,
        "0: steps that repeat themselves are agreed on each time instead of being run by a plan.";
    DISABLE_GROUP_FUSION = "CORRO_DISABLE_GROUP_FUSION", horovod: Some("HOROVOD_DISABLE_GROUP_FUSION"), default: "0", kind: Kind::Flag,
        "1: tensors run as one only within their own group.";
    STALL_CHECK_DISABLE = "CORRO_STALL_CHECK_DISABLE", horovod: Some("HOROVOD_STALL_CHECK_DISABLE"), default: "0", kind: Kind::Flag,
        "1: no reports about ranks that make others wait.";
    STALL_CHECK_TIME = "CORRO_STALL_CHECK_TIME_SECONDS", horovod: Some("HOROVOD_STALL_CHECK_TIME_SECONDS"), default: "60", kind: Kind::Seconds,
        "Seconds after which a tensor that some ranks have not submitted is reported, by one rank for all; then again after ever longer pauses.";
    STALL_SHUTDOWN_TIME = "CORRO_STALL_SHUTDOWN_TIME_SECONDS", horovod: Some("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"), default: "CORRO_TIMEOUT if that is set, else 1800", kind: Kind::Seconds,
        "Seconds after which such a tensor ends the job: the rank that has not submitted it counts as lost. 0: never.";
    LOG_LEVEL = "CORRO_LOG_LEVEL", horovod: Some("HOROVOD_LOG_LEVEL"), default: "warning", kind: Kind::OneOf(&["trace", "debug", "info", "warning", "error", "fatal"]),
        "Least important lines that are written: trace, debug, info, warning, error or fatal.";
    LOG_HIDE_TIME = "CORRO_LOG_HIDE_TIME", horovod: Some("HOROVOD_LOG_HIDE_TIME"), default: "0", kind: Kind::Flag,
        "1: lines of the log carry no time.";
    LOG_FORMAT = "CORRO_LOG_FORMAT", horovod: None, default: "text", kind: Kind::OneOf(&["text", "json"]),
        "json: each line of the log is a JSON object with time, level, place, speaker and text, for programs that collect logs.";
    TIMELINE = "CORRO_TIMELINE", horovod: Some("HOROVOD_TIMELINE"), default: "none", kind: Kind::Text,
        "File for a timeline in Horovod's format, written by rank 0; `DYNAMIC`: none yet, but the program may start one.";
    DISABLE_NVTX_RANGES = "CORRO_DISABLE_NVTX_RANGES", horovod: Some("HOROVOD_DISABLE_NVTX_RANGES"), default: "0", kind: Kind::Flag,
        "1: no ranges for NVIDIA's profilers. They are made where a profiler watches a rank, and only there.";
    TIMELINE_MARK_CYCLES = "CORRO_TIMELINE_MARK_CYCLES", horovod: Some("HOROVOD_TIMELINE_MARK_CYCLES"), default: "0", kind: Kind::Flag,
        "1: the timeline marks each round of agreement.";
    TIMELINE_CAP = "CORRO_TIMELINE_CAP", horovod: None, default: "1073741824", kind: Kind::Count(0, 1 << 50),
        "Bytes after which a timeline or trace is no longer written to.";
    TRACE = "CORRO_TRACE", horovod: None, default: "none", kind: Kind::Text,
        "Path beside which every rank writes its part of a trace of all ranks with aligned clocks.";
    AUTOTUNE = "CORRO_AUTOTUNE", horovod: Some("HOROVOD_AUTOTUNE"), default: "0", kind: Kind::Flag,
        "1: the engine looks for better settings while the job runs.";
    AUTOTUNE_LOG = "CORRO_AUTOTUNE_LOG", horovod: Some("HOROVOD_AUTOTUNE_LOG"), default: "none", kind: Kind::Text,
        "File in which each trial of the autotuner is written down, as comma-separated values.";
    AUTOTUNE_WARMUP = "CORRO_AUTOTUNE_WARMUP_SAMPLES", horovod: Some("HOROVOD_AUTOTUNE_WARMUP_SAMPLES"), default: "3", kind: Kind::Count(0, 1 << 20),
        "Trials that do not count, while the job warms up.";
    AUTOTUNE_STEPS = "CORRO_AUTOTUNE_STEPS_PER_SAMPLE", horovod: Some("HOROVOD_AUTOTUNE_STEPS_PER_SAMPLE"), default: "10", kind: Kind::Count(1, 1 << 20),
        "Steps of training in one measurement; a trial is the median of five.";
    AUTOTUNE_SAMPLES = "CORRO_AUTOTUNE_BAYES_OPT_MAX_SAMPLES", horovod: Some("HOROVOD_AUTOTUNE_BAYES_OPT_MAX_SAMPLES"), default: "20", kind: Kind::Count(1, 1 << 20),
        "Trials before the best settings are kept for good.";
    AUTOTUNE_NOISE = "CORRO_AUTOTUNE_GAUSSIAN_PROCESS_NOISE", horovod: Some("HOROVOD_AUTOTUNE_GAUSSIAN_PROCESS_NOISE"), default: "0.8", kind: Kind::Amount(0.0, 1.0),
        "How noisy measurements are taken to be, from 0 to 1.";
    AUTOTUNE_ROUNDING = "CORRO_AUTOTUNE_ROUNDING", horovod: None, default: "0", kind: Kind::Flag,
        "1: the autotuner may also try settings that change the order in which floats are summed, and so their last bits.";
    RECORDER = "CORRO_RECORDER", horovod: None, default: "1024", kind: Kind::Count(0, 1 << 24),
        "How many operations the flight recorder of a rank keeps.";
    RECORDS = "CORRO_FLIGHT_RECORD_DIR", horovod: None, default: "the system's folder for temporary files", kind: Kind::Text,
        "Folder into which each rank writes its last operations if the job fails; the error in the log says where. `none`: nowhere.";
    SPIN = "CORRO_SPIN", horovod: None, default: "auto", kind: Kind::FlagOrAuto,
        "1 or 0: whether waiting ranks of one host may spin before they sleep. By default they do only while every rank has a core of its own.";
    ALGORITHM = "CORRO_ALGORITHM", horovod: None, default: "chosen by size, ranks and hosts", kind: Kind::OneOf(&["direct", "ring", "halving_doubling", "tree", "hierarchical", "pairwise"]),
        "Forces an algorithm (`direct`, `ring`, `halving_doubling`, `tree`, `hierarchical`, `pairwise`) wherever it can run, for experiments.";
    HIERARCHICAL_ALLREDUCE = "CORRO_HIERARCHICAL_ALLREDUCE", horovod: Some("HOROVOD_HIERARCHICAL_ALLREDUCE"), default: "1", kind: Kind::Flag,
        "0: an allreduce over several hosts does not reduce inside each host first.";
    THREAD_AFFINITY = "CORRO_THREAD_AFFINITY", horovod: Some("HOROVOD_THREAD_AFFINITY"), default: "none", kind: Kind::Counts,
        "Cores for the engine's own threads: one for each rank of a host, in their order, with commas between them. The program's threads stay free.";
    REPORTED = "CORRO_REPORTED", horovod: None, default: "none", kind: Kind::Text,
        "Variables about which the launcher has told the user already. Set by the launcher.";
    DYNAMIC_PROCESS_SETS = "CORRO_DYNAMIC_PROCESS_SETS", horovod: Some("HOROVOD_DYNAMIC_PROCESS_SETS"), default: "0", kind: Kind::Flag,
        "1: Python programs may add and remove process sets after `init`.";
    CHECKS = "CORRO_CHECKS", horovod: None, default: "1", kind: Kind::Degree(2),
        "0, 1 or 2: whether training is checked for mistakes that otherwise only show as a bad model: parameters that nobody broadcast or that drift apart, different learning rates or steps; with torch also different models, and ranks on the same data. 1: a few facts in a few rounds, which costs next to nothing, and a warning. 2: everything in every round, and an error. Each front's page says what it can't see; compiled steps of JAX are checked with 2 only.";
    SHARED_GRADIENTS = "CORRO_SHARED_GRADIENTS", horovod: None, default: "0", kind: Kind::Flag,
        "1: `corro.torch.DistributedOptimizer` lets the gradients of dense models on the CPU live in memory that the ranks of a host share, where they are reduced without a copy. `zero_grad` then fills them with zeros and never drops them.";
    OVERLAP = "CORRO_OVERLAP", horovod: None, default: "auto", kind: Kind::FlagOrAuto,
        "1 or 0: whether gradients are reduced while the backward pass makes others. By default they are where the ranks' own threads leave cores free.";
    COMPRESS_INSIDE = "CORRO_COMPRESS_INSIDE", horovod: None, default: "0", kind: Kind::Flag,
        "1: also ranks of one host compress what they tell each other, where a program asks for compression. For tests: inside a host bytes cost less than compression does. The same on all ranks.";
    NCCL_LIBRARY = "CORRO_NCCL_LIBRARY", horovod: None, default: "the one that is loaded already, else the framework's, else the system's", kind: Kind::Text,
        "The file of NCCL (`libnccl.so.2`, 2.14 or newer) that ranks with GPUs use.";
    CPU_OPERATIONS = "CORRO_CPU_OPERATIONS", horovod: Some("HOROVOD_CPU_OPERATIONS"), default: "corro", kind: Kind::OneOf(&["corro", "gloo", "ccl", "mpi"]),
        "Who moves tensors of the host: `corro` (its own connections and shared memory; `gloo` and `ccl` mean the same) or `mpi` (an MPI library that is found at run time; the job must be started by its `mpiexec`).";
    CONTROLLER = "CORRO_CONTROLLER", horovod: Some("HOROVOD_CONTROLLER"), default: "corro", kind: Kind::OneOf(&["corro", "gloo", "mpi"]),
        "Who tells ranks who they are: whoever started them (`corro`; `gloo` means the same), or `mpi`: MPI's own world, by way of mpi4py where that is installed.";
    MPI_LIBRARY = "CORRO_MPI_LIBRARY", horovod: None, default: "the one that is loaded already, else what fits who started this process", kind: Kind::Text,
        "The file of the MPI library (`libmpi_abi.so.1`, `libmpi.so.12`, `libmpi.so.40`) that ranks use where MPI moves their tensors.";
    GPU_PLANE = "CORRO_GPU_PLANE", horovod: None, default: "the first of them that can serve a tensor", kind: Kind::OneOf(&["cuda-ipc", "hierarchical", "nccl", "staged", "mpi"]),
        "Who moves tensors of GPUs: `cuda-ipc` (memory of GPUs of one host), `hierarchical` (that inside a host, and NCCL across), `nccl`, `staged` (through host memory). The same on all ranks. What it can't serve is an error. Or `mpi`: a GPU-aware MPI library where it can, and the others where it can't.";
}

/// The knob called `name`, with or without one of its prefixes.
pub fn find(name: &str) -> Option<&'static Variable> {
    let is_meant =
        |v: &&&Variable| v.name == name || v.horovod == Some(name) || v.name.strip_prefix("CORRO_") == Some(name);
    VARIABLES.iter().find(is_meant).copied()
}

/// Every name of the knob that Horovod calls `horovod`: ours first where we have one. Setting all of them is how a flag
/// beats whatever is set already.
pub fn names_of(horovod: &'static str) -> impl Iterator<Item = &'static str> {
    let ours = VARIABLES.iter().find(|v| v.horovod == Some(horovod)).map(|v| v.name);
    ours.into_iter().chain([horovod])
}

/// Variables that others set and Corro reads: launchers that know nothing of us, and the system. By who sets them.
pub static FOREIGN: &[(&str, &[&str])] = &[
    (
        "Open MPI",
        &[
            "OMPI_COMM_WORLD_RANK",
            "OMPI_COMM_WORLD_SIZE",
            "OMPI_COMM_WORLD_LOCAL_SIZE",
            "OMPI_MCA_ess_base_jobid",
            "OMPI_MCA_plm_rsh_agent",
        ],
    ),
    ("PMIx", &["PMIX_NAMESPACE"]),
    ("MPICH and its kin", &["PMI_RANK", "PMI_SIZE", "MPI_LOCALNRANKS"]),
    (
        "Slurm",
        &[
            "SLURM_PROCID",
            "SLURM_NTASKS",
            "SLURM_JOB_ID",
            "SLURM_STEP_ID",
            "SLURM_STEP_NUM_TASKS",
            "SLURM_JOB_NUM_NODES",
            "SLURM_STEP_NUM_NODES",
            "SLURM_RESTART_COUNT",
            "SLURM_JOB_NODELIST",
            "SLURM_TASKS_PER_NODE",
            "SLURM_NTASKS_PER_NODE",
            "SLURM_GPUS_ON_NODE",
            "SLURM_LAUNCH_NODE_IPADDR",
        ],
    ),
    (
        "torchrun",
        &[
            "RANK",
            "WORLD_SIZE",
            "LOCAL_WORLD_SIZE",
            "MASTER_ADDR",
            "MASTER_PORT",
            "TORCHELASTIC_RUN_ID",
            "TORCHELASTIC_RESTART_COUNT",
        ],
    ),
    (
        "LSF",
        &[
            "LSB_JOBID",
            "LSB_DJOB_HOSTFILE",
            "LSB_MCPU_HOSTS",
            "JSM_NAMESPACE_RANK",
            "JSM_NAMESPACE_SIZE",
            "JSM_NAMESPACE_LOCAL_SIZE",
            "JSM_NAMESPACE_ID",
        ],
    ),
    ("PBS", &["PBS_JOBID", "PBS_NODEFILE"]),
    ("Grid Engine", &["JOB_ID", "PE_HOSTFILE"]),
    ("the user, for libraries", &["OMP_NUM_THREADS", "NCCL_HOSTID"]),
    ("Kubernetes", &["JOB_COMPLETION_INDEX"]),
    ("Databricks", &["DATABRICKS_RUNTIME_VERSION"]),
    ("TensorFlow and Keras users", &["KERAS_BACKEND", "TF_USE_LEGACY_KERAS"]),
    (
        "Kubeflow's Trainer",
        &["PET_NODE_RANK", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MASTER_ADDR", "PET_MASTER_PORT"],
    ),
    ("NVIDIA's profilers", &["NVTX_INJECTION64_PATH"]),
    ("the system", &["XDG_RUNTIME_DIR", "HOME", "SSH_CONNECTION", "NO_COLOR"]),
];

/// Whether [`FOREIGN`] has this variable.
pub fn is_foreign(name: &str) -> bool {
    FOREIGN.iter().any(|(_, names)| names.contains(&name))
}

/// A variable of [`FOREIGN`], if it is set. An empty value counts as not set.
pub fn foreign(name: &str) -> Option<String> {
    debug_assert!(is_foreign(name), "{name} is not in the table");
    read(name)
}

/// `docs/environment.md`, made from the tables above.
pub fn markdown() -> String {
    use std::fmt::Write;
    let mut page = String::from(
        "# Environment variables\n\nMade from `crates/corro-core/src/config.rs` by `make gen`; change it there.\n\n\
         A variable that Horovod knows too is read under both names; Corro's own name wins.\n\n\
         | variable | Horovod's name | value | default | meaning |\n| --- | --- | --- | --- | --- |\n",
    );
    for v in VARIABLES {
        let horovod = v.horovod.map_or_else(|| "-".into(), |h| format!("`{h}`"));
        let _ = writeln!(page, "| `{}` | {horovod} | {} | {} | {} |", v.name, v.kind, v.default, v.meaning);
    }
    page.push_str(
        "\n`corro run` refuses a value that cannot be read. What is neither yes nor no counts as 0; that, a name that Corro does \
         not know, and a knob without effect are reported once when a job starts.\n\n## Horovod's, without effect\n\n| variable | why |\n| --- | --- |\n",
    );
    for (name, why) in WITHOUT_EFFECT {
        let _ = writeln!(page, "| `{name}` | {why} |");
    }
    page.push_str("\n## Read, but set by others\n\n| set by | variables |\n| --- | --- |\n");
    for (who, names) in FOREIGN {
        let names: Vec<String> = names.iter().map(|n| format!("`{n}`")).collect();
        let _ = writeln!(page, "| {who} | {} |", names.join(", "));
    }
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    // Reads variables that no other test sets; the environment of a process is shared by its tests.
    fn with(value: &str) -> Variable {
        static NEXT: std::sync::atomic::AtomicUsize = std::sync::atomic::AtomicUsize::new(0);
        let n = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name: &'static str = format!("CORRO_TEST_{n}").leak();
        set(name, value);
        Variable { name, horovod: None, default: "", kind: Kind::Count(0, 9), meaning: "" }
    }

    #[expect(unsafe_code, reason = "tests of the environment must write it")]
    fn set(name: &str, value: &str) {
        static LOCK: std::sync::Mutex<()> = std::sync::Mutex::new(());
        let _guard = LOCK.lock().unwrap();
        // SAFETY: names are unique to one test each, and nothing in this test binary reads the environment through C.
        unsafe { std::env::set_var(name, value) };
    }

    #[test]
    fn names_are_unique_and_prefixed() {
        let mut names: Vec<_> = VARIABLES.iter().map(|v| v.name).collect();
        assert!(names.iter().all(|n| n.starts_with("CORRO_")));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), VARIABLES.len());
    }

    #[test]
    fn a_knob_is_found_by_all_its_names() {
        for name in ["TIMELINE", "CORRO_TIMELINE", "HOROVOD_TIMELINE"] {
            assert_eq!(find(name).map(|v| v.name), Some("CORRO_TIMELINE"), "{name}");
        }
        assert!(find("NO_SUCH_KNOB").is_none() && find("").is_none());
    }

    #[test]
    fn booleans_follow_horovods_rule() {
        for (text, want) in [
            ("1", true),
            ("0", false),
            ("2x", true),
            ("x", false),
            ("true", true),
            ("off", false),
            ("99999999999999999999", true),
        ] {
            assert_eq!(with(text).flag(!want), want, "{text}");
        }
    }

    #[test]
    fn bad_numbers_name_the_variable() {
        let v = with("many");
        let text = v.number::<usize>(1).unwrap_err().to_string();
        assert!(text.contains(v.name) && text.contains("many"), "{text}");
        assert_eq!(with("9").number::<usize>(1), Ok(9));
        assert!(with("10").number::<usize>(1).unwrap_err().to_string().contains("a whole number from 0 to 9"));
        assert_eq!(with("2.5").seconds(Duration::ZERO), Ok(Duration::from_millis(2500)));
        assert!(with("-1").seconds(Duration::ZERO).is_err());
        assert!(with("1e300").seconds(Duration::ZERO).is_err());
        assert_eq!((with("0, 2").numbers(), with("").numbers()), (Ok(vec![0, 2]), Ok(Vec::new())));
        assert!(with("0,,2").numbers().is_err());
    }

    #[test]
    fn errors_name_the_variable_that_the_user_wrote() {
        let written = with("many");
        let horovods = Variable { name: "CORRO_TEST_NOT_SET", horovod: Some(written.name), ..with("") };
        let text = horovods.number::<usize>(1).unwrap_err().to_string();
        assert!(text.contains(written.name) && !text.contains("NOT_SET"), "{text}");
    }

    #[test]
    fn defaults_are_values_that_are_taken() {
        let in_words = |v: &&&Variable| v.kind == Kind::Text || v.default.contains(' ') || v.default == "none";
        for v in VARIABLES.iter().filter(|v| !in_words(v) && find(v.default).is_none()) {
            assert!(v.kind.takes(v.default), "{} {}", v.name, v.default);
        }
    }

    #[test]
    fn the_page_in_docs_is_current() {
        let page = include_str!("../../../docs/environment.md");
        assert!(page == markdown(), "docs/environment.md is stale: run `make gen`");
    }
}
