//! `corro k8s`: a job for Kubernetes, run here, or printed to be read, changed and given to `kubectl apply -f -`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Arg, ArgAction, ArgMatches, Command};
use corro_core::config::MAX_RANKS;
use corro_core::{Error, Result};
use corro_transport::secret::Secret;

use super::exit::{self, complain};
use super::flags;
use super::kubernetes_run::Run;
use crate::kubernetes::kubectl::Kubectl;
use crate::kubernetes::{Elastic, Job, JobSecret, documents, names, objects};

pub(super) fn command() -> Command {
    let manifest = Command::new("manifest")
        .about(
            "Prints a job's objects for `kubectl apply -f -`: Secret, Service, Job; if it is elastic, a StatefulSet of workers too",
        )
        .args(job());
    let run = Command::new("run")
        .about(
            "Runs a job: creates it with kubectl, shows what its ranks write, removes it, and exits with its exit code",
        )
        .args(job())
        .args([
            value("context", "NAME", "The context of kubectl's configuration [the current one]"),
            value("kubectl", "PATH", "The kubectl to use").default_value("kubectl"),
            value("start-timeout", "S", "Seconds within which all pods must have started").default_value("600"),
            flag("keep", "Leave the job's objects in the cluster when it is over"),
        ]);
    Command::new("corro k8s")
        .about("Runs jobs in Kubernetes, or prints their objects")
        .disable_version_flag(true)
        .subcommand_required(true)
        .subcommands([run, manifest].map(|command| command.disable_version_flag(true).arg(program())))
}

fn value(name: &'static str, shape: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).value_name(shape).action(ArgAction::Set).help(help)
}

fn flag(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn program() -> Arg {
    Arg::new("command")
        .num_args(1..)
        .required(true)
        .trailing_var_arg(true)
        .allow_hyphen_values(true)
        .help("What to run in each pod, e.g. `python train.py`")
}

/// What a job may be told.
fn job() -> [Arg; 20] {
    [
        value("num-proc", "N", "How many ranks; each has a pod of its own")
            .short('n')
            .visible_alias("np")
            .required(true),
        value("image", "IMAGE", "The container image, with your program and Corro in it").required(true),
        value("name", "NAME", "The job's name").default_value("corro"),
        value("namespace", "NAME", "The namespace [the one that kubectl uses]"),
        value("min-np", "N", "Elastic job: goes on with as few as N ranks, and replaces lost pods"),
        value("max-np", "N", "Elastic job: `kubectl scale statefulset NAME-worker` can grow it to N ranks"),
        value("cpus", "AMOUNT", "CPUs of each rank, e.g. 4 or 500m"),
        value("memory", "AMOUNT", "Memory of each rank, e.g. 8Gi"),
        value("gpus-per-rank", "N", "GPUs of each rank (nvidia.com/gpu)").default_value("0"),
        value("shm-size", "AMOUNT", "Size limit of /dev/shm").default_value("1Gi"),
        value("env", "NAME=VALUE", "An environment variable for all ranks; may be given several times")
            .action(ArgAction::Append),
        value("node-selector", "LABEL=VALUE", "Only nodes with this label; may be given several times")
            .action(ArgAction::Append),
        value("secret", "NAME", "An existing Secret that has 64 hexadecimal digits under the key `secret` [a new one]"),
        value("run-as-user", "ID", "User ID in the pods [the image's user, which must not be root]"),
        value("image-pull-policy", "POLICY", "When the image is pulled").value_parser([
            "Always",
            "IfNotPresent",
            "Never",
        ]),
        value("priority-class", "NAME", "The pods' priority class"),
        value("queue", "NAME", "Kueue's local queue that the job waits in"),
        value("time", "SECONDS", "Time limit of the job"),
        flag("read-only-root", "Make the root file system read-only: ranks can write to /tmp and /dev/shm only"),
        flag("network-policy", "Only pods of the job may connect to its pods (where the cluster enforces that)"),
    ]
}

/// Reads a command line: what to do, then flags as `corro run` has them (`-np 4`).
fn parse(words: &[OsString]) -> std::result::Result<ArgMatches, clap::Error> {
    let mut command = command();
    command.build();
    let mut all = words.to_vec();
    if let Some((first, rest)) = words.split_first()
        && let Some(known) = command.find_subcommand(first)
    {
        all.truncate(1);
        all.extend(flags::normalise(known, rest));
    }
    command.no_binary_name(true).try_get_matches_from(all)
}

/// `corro k8s ...`.
pub(super) fn main(words: &[OsString]) -> u8 {
    let matches = match parse(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let Some((word, matches)) = matches.subcommand() else { return exit::USAGE_ERROR };
    let name = format!("corro k8s {word}");
    let asked = Secret::random().and_then(|secret| understand(matches, &secret));
    let done = match word {
        "run" => asked.and_then(|job| run(matches)?.job(job)),
        _ => asked.map(|job| {
            print!("{}", documents(&objects(&job)));
            0
        }),
    };
    done.unwrap_or_else(|e| complain(&name, &e))
}

/// How it is to be run.
fn run(matches: &ArgMatches) -> Result<Run> {
    let text = |name: &str| matches.get_one::<String>(name).map(String::as_str);
    Ok(Run {
        kubectl: Kubectl::new(text("kubectl").unwrap_or("kubectl").into(), text("context"), text("namespace")),
        start_timeout: Duration::from_secs(number(matches, "start-timeout")?.unwrap_or(600).max(1)),
        keep: matches.get_flag("keep"),
    })
}

/// The job that was asked for. It has this secret, unless a Secret was named.
fn understand(matches: &ArgMatches, secret: &Secret) -> Result<Job> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let all = |name: &str| matches.get_many::<String>(name).unwrap_or_default().cloned().collect::<Vec<_>>();
    let pairs = |name: &str| all(name).iter().map(|text| names::pair(name, text)).collect::<Result<Vec<_>>>();
    let amount = |name: &str| text(name).map(|text| names::quantity(name, &text)).transpose();
    let object = |name: &str| text(name).map(|text| names::object_name(name, &text)).transpose();
    let ranks = number(matches, "num-proc")?.unwrap_or(0);
    if !(1..=MAX_RANKS).contains(&ranks) {
        return Err(Error::Usage(format!("--num-proc is {ranks}: give 1 to {MAX_RANKS}")));
    }
    let elastic = elastic(matches, ranks as usize)?;
    Ok(Job {
        name: names::job_name("name", &text("name").unwrap_or_default(), elastic.is_some())?,
        namespace: object("namespace")?,
        image: text("image").unwrap_or_default(),
        command: all("command"),
        ranks: ranks as usize,
        elastic,
        secret: object("secret")?.map_or_else(|| JobSecret::Made(secret.to_hex()), JobSecret::There),
        cpus: amount("cpus")?,
        memory: amount("memory")?,
        gpus: number(matches, "gpus-per-rank")?.unwrap_or(0) as usize,
        shared_memory: amount("shm-size")?.unwrap_or_default(),
        variables: pairs("env")?,
        node_selector: pairs("node-selector")?,
        user: user(matches)?,
        read_only_root: matches.get_flag("read-only-root"),
        pull_policy: text("image-pull-policy"),
        priority_class: object("priority-class")?,
        queue: object("queue")?,
        seconds: number(matches, "time")?,
        keep_seconds: None,
        network_policy: matches.get_flag("network-policy"),
    })
}

/// Whether ranks may come and go, and how many there may be.
fn elastic(matches: &ArgMatches, ranks: usize) -> Result<Option<Elastic>> {
    let (min, max) = (number(matches, "min-np")?, number(matches, "max-np")?);
    if min.is_none() && max.is_none() {
        return Ok(None);
    }
    let limits = Elastic { min: min.map_or(ranks, |n| n as usize), max: max.map_or(ranks, |n| n as usize) };
    if limits.min == 0 || limits.min > ranks || limits.max < ranks || limits.max > MAX_RANKS as usize {
        return Err(Error::Usage(format!(
            "--min-np {}, -n {ranks}, --max-np {}: give 1 <= min <= n <= max <= {MAX_RANKS}",
            limits.min, limits.max
        )));
    }
    Ok(Some(limits))
}

fn number(matches: &ArgMatches, name: &str) -> Result<Option<u64>> {
    let parse = |text: &String| {
        text.parse().map_err(|_| Error::Usage(format!("--{name} is {text:?}, which is not a whole number")))
    };
    matches.get_one::<String>(name).map(parse).transpose()
}

fn user(matches: &ArgMatches) -> Result<Option<u32>> {
    match number(matches, "run-as-user")? {
        Some(0) => Err(Error::Usage("--run-as-user is 0: ranks do not run as root".into())),
        Some(id) => u32::try_from(id).map(Some).map_err(|_| Error::Usage(format!("--run-as-user is {id}: too large"))),
        None => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(line: &str) -> Result<Job> {
        let matches = parse(&line.split_whitespace().map(OsString::from).collect::<Vec<_>>()).unwrap();
        understand(matches.subcommand().unwrap().1, &Secret::from_bytes([7; 32]))
    }

    #[test]
    fn flags_become_a_job_and_the_command_keeps_its_own() {
        let job =
            asked("manifest -n 4 --image i --gpus-per-rank 1 --env A=1 --env B=2 python train.py --name x").unwrap();
        assert_eq!((job.ranks, job.gpus, job.name.as_str(), job.shared_memory.as_str()), (4, 1, "corro", "1Gi"));
        assert_eq!(job.command, ["python", "train.py", "--name", "x"]);
        assert_eq!(job.variables.len(), 2);
        assert!(matches!(job.secret, JobSecret::Made(digits) if digits == "07".repeat(32)));
        let job = asked("manifest -np 3 --image i python -np 5").unwrap();
        assert_eq!((job.ranks, job.command.join(" ").as_str()), (3, "python -np 5"));
        let job = asked("manifest --np 1 --image i --secret ours --time 60 true").unwrap();
        assert!(matches!(job.secret, JobSecret::There(name) if name == "ours"));
        assert_eq!((job.seconds, job.elastic), (Some(60), None));
        let job = asked("run -n 2 --min-np 1 --max-np 8 --image i --keep true").unwrap();
        assert_eq!(job.elastic, Some(Elastic { min: 1, max: 8 }));
        assert_eq!(asked("run -n 2 --max-np 8 --image i true").unwrap().elastic, Some(Elastic { min: 2, max: 8 }));
    }

    #[test]
    fn what_kubernetes_would_refuse_is_refused_with_the_flags_name() {
        for (flags, named) in [
            ("-n 0", "--num-proc"),
            ("-n x", "--num-proc"),
            ("-n 2 --name A", "--name"),
            ("-n 2 --memory 4GB", "--memory"),
            ("-n 2 --env A", "--env"),
            ("-n 2 --queue a/b", "--queue"),
            ("-n 2 --run-as-user 0", "--run-as-user"),
            ("-n 2 --min-np 3", "--min-np"),
            ("-n 2 --max-np 1", "--max-np"),
        ] {
            let error = asked(&format!("manifest {flags} --image i true")).err().unwrap().to_string();
            assert!(error.contains(named), "{flags}: {error}");
        }
    }
}
