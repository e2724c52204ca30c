//! What the user asks for: flags and config file turned into a job, checked as a whole before anything is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use corro_core::{Error, Rank, Result, config};
use corro_membership::Rules;

use super::config_file::{self, ConfigFile};
use super::handover::Handover;
use super::watching::Watching;
use super::{flags, knobs, launchers, script};
use crate::allocation::{self, Allocation, System};
use crate::elastic::{ElasticJob, Hosts};
use crate::event::Control;
use crate::hosts::{self, Host};
use crate::job::{Job, Outcome};
use crate::output::{Output, Ranks};
use crate::placement;
use crate::server_plan::ServerPlan;
use crate::start::{HostKeys, Remote};

/// For waits that cannot be switched off.
const WEEK_SECONDS: &str = "604800";

/// How often Slurm is asked which nodes a job has: its controller serves a whole cluster.
const SLURM_QUESTIONS: Duration = Duration::from_secs(5);

/// A run, as asked for.
pub(super) struct Request {
    pub(super) plan: Plan,
    /// Another launcher that is to start the job.
    pub(super) handover: Option<Handover>,
    pub(super) timestamps: bool,
    pub(super) bare: bool,
    pub(super) only: Option<Ranks>,
    pub(super) directory: Option<PathBuf>,
    pub(super) color: String,
    /// How it is watched.
    pub(super) watching: Watching,
    /// What the user should know before it starts.
    pub(super) remarks: Vec<String>,
}

impl Request {
    /// The launcher's own log: as loud as that of the ranks.
    pub(super) fn log(&self) -> corro_log::Options {
        let job = match &self.plan {
            Plan::Fixed(job) => job,
            Plan::Elastic(elastic) => &elastic.job,
        };
        let flag = |variable: &config::Variable| {
            job.variables.iter().find(|(name, _)| name == variable.name).map(|(_, value)| value.as_str())
        };
        let mut log = corro_log::Options::from_env();
        log.least = flag(&config::LOG_LEVEL).and_then(corro_log::level).unwrap_or(log.least);
        log.with_time = flag(&config::LOG_HIDE_TIME).map_or(log.with_time, |hide| hide == "0");
        log
    }
}

/// What kind of job it is.
pub enum Plan {
    /// One whose processes are there from the beginning to the end.
    Fixed(Box<Job>),
    /// One whose processes come and go.
    Elastic(Box<ElasticJob>),
}

impl Plan {
    /// What to run and how.
    pub fn job(&mut self) -> &mut Job {
        match self {
            Self::Fixed(job) => job,
            Self::Elastic(elastic) => &mut elastic.job,
        }
    }

    /// Runs it to its end. `ready` is given the means to interrupt it.
    pub fn run(&self, output: Output, ready: impl FnOnce(Control)) -> Result<Outcome> {
        match self {
            Self::Fixed(job) => job.run(output, ready),
            Self::Elastic(elastic) => elastic.run(output, ready),
        }
    }

    /// The rank that has the user's terminal.
    pub(super) fn debugged(&self) -> Option<Rank> {
        match self {
            Self::Fixed(job) => job.debug,
            Self::Elastic(_) => None,
        }
    }

    /// How many processes there are. Those of an elastic job are counted, and given their files, as they come.
    pub(super) fn size(&self) -> usize {
        match self {
            Self::Fixed(job) => job.size(),
            Self::Elastic(_) => 0,
        }
    }
}

/// Reads the flags, and the files they name. `reviewed` is what there is to say about the environment.
pub(super) fn understand(
    matches: &ArgMatches,
    agent: Option<&[OsString]>,
    reviewed: &[config::Remark],
) -> Result<Request> {
    let text = |flag: &str| matches.get_one::<String>(flag).cloned();
    let file = match text("config-file") {
        Some(path) => config_file::parse(&read(&path, "--config-file")?, &path)?,
        None => ConfigFile::default(),
    };
    let mut remarks: Vec<String> = file
        .unknown
        .iter()
        .map(|key| format!("corro does not know the config file's {key:?} and ignores it"))
        .collect();
    let settings = knobs::settings(&flags::settings(matches), &file.given)?;
    remarks.extend(settings.remarks);
    if matches.get_flag("jsrun") && config::foreign("LSB_JOBID").is_none() {
        return Err(Error::Usage(
            "--jsrun works only in a job of LSF, and this is not one: LSB_JOBID is not set".into(),
        ));
    }
    let rules = elastic_rules(matches)?;
    let launcher = launchers::asked(matches, file.controller.as_deref(), rules.is_some(), &mut remarks)?;
    remark_on_others(matches, launcher.is_some(), rules.is_some(), &mut remarks);

    let command: Vec<OsString> = matches.get_many::<OsString>("command").unwrap_or_default().cloned().collect();
    if command.is_empty() {
        return Err(Error::Usage(
            "no command to run: put it behind the flags, as in `corro run -np 2 python train.py`".into(),
        ));
    }
    let allocation = allocation()?;
    let placement = match rules {
        Some(_) => Vec::new(),
        None => {
            size_and_hosts(matches, allocation.as_ref()).and_then(|(size, hosts)| placement::place(size, &hosts))?
        }
    };
    let mut job = Job::new(script::with_python(command), placement)?;
    job.variables = settings.variables;
    if !reviewed.is_empty() {
        // Ranks need not say it again.
        let names: Vec<&str> = reviewed.iter().map(|remark| remark.name.as_str()).collect();
        job.variables.push((config::REPORTED.name.into(), names.join(",")));
        remarks.extend(reviewed.iter().map(|remark| remark.text.clone()));
    }
    if let Some(agent) = agent {
        job.agent = agent.to_vec();
    }
    fill_in(matches, allocation.as_ref(), &mut job)?;
    let handover = match launcher {
        Some(launcher) => Some(Handover::new(matches, launcher, given_hosts(matches)?.unwrap_or_default(), &job)?),
        None => None,
    };
    if handover.is_some() && !job.servers.hosts.is_empty() {
        return Err(Error::Usage(
            "--servers is for jobs that corro starts itself, not mpirun or jsrun: there every rank has a server of its own".into(),
        ));
    }
    let only = wanted_ranks(matches, rules.is_none().then(|| job.size()))?;
    debug(matches, rules.is_some(), &mut job)?;
    let plan = match rules {
        Some(rules) => Plan::Elastic(Box::new(elastic(matches, allocation.as_ref(), job, rules)?)),
        None => Plan::Fixed(Box::new(job)),
    };
    Ok(Request {
        plan,
        handover,
        timestamps: matches.get_flag("prefix-output-with-timestamp"),
        bare: matches.get_flag("no-prefix"),
        only,
        directory: text("output-filename").or_else(|| text("logdir")).map(Into::into),
        watching: Watching::asked(matches)?,
        color: text("color").unwrap_or_else(|| "auto".into()),
        remarks,
    })
}

/// The settings of a job that are flags alone.
fn fill_in(matches: &ArgMatches, allocation: Option<&Allocation>, job: &mut Job) -> Result<()> {
    if matches.get_flag("tcp") {
        job.variables.push(("NCCL_IB_DISABLE".into(), "1".into()));
    }
    job.tls |= matches.get_flag("tls");
    job.interfaces = interfaces(matches);
    job.verbose = matches.get_flag("verbose");
    if let Some(port) = number(matches, "rendezvous-port")? {
        job.rendezvous_port = port;
    }
    for (flag, field) in [
        ("start-timeout", &mut job.start_timeout),
        ("host-timeout", &mut job.host_timeout),
        ("grace-seconds", &mut job.grace),
    ] {
        if let Some(length) = seconds(matches, flag)? {
            *field = length;
        }
    }
    job.remote = Remote { join_port: join_port(matches)?, ..remote(matches, allocation)? };
    job.servers = servers(matches, job)?;
    if !job.servers.hosts.is_empty() {
        job.variables.push((config::SERVERS.name.into(), job.servers.setting()));
    }
    Ok(())
}

/// The job's parameter servers: dealt to the hosts that were named for them, or to those of the ranks.
fn servers(matches: &ArgMatches, job: &Job) -> Result<ServerPlan> {
    let named = match matches.get_one::<String>("server-hosts") {
        Some(list) => hosts::parse_list(list)?,
        None => Vec::new(),
    };
    let apart = !named.is_empty();
    let here = || vec![Host::local(1)];
    let hosts: Vec<Host> = match named {
        named if !named.is_empty() => named,
        _ => job.placement.iter().map(|assignment| assignment.host.clone()).collect(),
    };
    // The hosts of an elastic job come later.
    let hosts = if hosts.is_empty() { here() } else { hosts };
    let count = number(matches, "servers")?.unwrap_or(if apart { hosts.len() } else { 0 });
    Ok(ServerPlan { hosts: hosts.into_iter().cycle().take(count).collect(), apart })
}

/// Whose output is shown. `size` is how many ranks there are, if that is known.
fn wanted_ranks(matches: &ArgMatches, size: Option<usize>) -> Result<Option<Ranks>> {
    let Some(list) = matches.get_one::<String>("ranks") else { return Ok(None) };
    let ranks = Ranks::parse(list, "--ranks")?;
    match size {
        Some(size) if ranks.highest().index() >= size => Err(Error::Usage(format!(
            "--ranks names rank {}, but this job has ranks 0 to {}",
            ranks.highest(),
            size - 1
        ))),
        _ => Ok(Some(ranks)),
    }
}

fn size_and_hosts(matches: &ArgMatches, allocation: Option<&Allocation>) -> Result<(usize, Vec<Host>)> {
    let size: Option<usize> = number(matches, "num-proc")?;
    let given = match given_hosts(matches)? {
        None => allocation.map(|allocation| allocation.hosts_for(size)),
        given => given,
    };
    match (size, given) {
        (_, None) if join_port(matches)?.is_some() => Err(Error::Usage(
            "which hosts will join? name them by -H or --hostfile, or make the job elastic (--min-np): then all may"
                .into(),
        )),
        (None, None) => Err(Error::Usage("how many processes? give -np N".into())),
        (Some(size), None) => Ok((size, vec![Host::local(size)])),
        (Some(size), Some(hosts)) => Ok((size, hosts)),
        (None, Some(hosts)) => Ok((hosts.iter().map(|h| h.slots).sum(), hosts)),
    }
}

/// The hosts of `-H` or of the hostfile.
pub(super) fn given_hosts(matches: &ArgMatches) -> Result<Option<Vec<Host>>> {
    let text = |flag: &str| matches.get_one::<String>(flag);
    match (text("hosts"), text("hostfile")) {
        (Some(list), _) => hosts::parse_list(list).map(Some),
        (_, Some(path)) => hosts::parse_file(&read(path, "--hostfile")?, path).map(Some),
        (None, None) => Ok(None),
    }
}

/// What a batch system has given to the job this process is in.
pub(super) fn allocation() -> Result<Option<Allocation>> {
    allocation::find(&config::foreign, &read)
}

/// How other hosts are to be reached.
pub(super) fn remote(matches: &ArgMatches, allocation: Option<&Allocation>) -> Result<Remote> {
    let text = |flag: &str| matches.get_one::<String>(flag).cloned();
    // Kubeflow's MPI operator sets this to a program that reaches its pods, which have no ssh.
    let kubeflow = || config::foreign("OMPI_MCA_plm_rsh_agent").filter(|program| program.ends_with("kubexec.sh"));
    Ok(Remote {
        port: number(matches, "ssh-port")?,
        identity: text("ssh-identity-file").map(Into::into),
        host_keys: match text("ssh-host-keys").as_deref() {
            Some("accept-new") => HostKeys::AcceptNew,
            Some("ignore") => HostKeys::Ignore,
            _ => HostKeys::Known,
        },
        corro: text("remote-corro").or_else(|| config::REMOTE_CORRO.value()).map(Into::into),
        shell: text("remote-shell").or_else(|| config::REMOTE_SHELL.value()).or_else(kubeflow).map(Into::into),
        // Who names hosts may name others than those of the allocation: srun says so, and what to do.
        system: allocation.map(|allocation| allocation.system).filter(|_| !asks_for_ssh(matches)),
        join_port: None,
    })
}

/// Where agents join by themselves.
fn join_port(matches: &ArgMatches) -> Result<Option<u16>> {
    Ok(match number(matches, "join-port")? {
        None => Some(config::JOIN_PORT.number(0)?).filter(|port| *port != 0),
        given => given,
    })
}

/// Whether flags were given that mean something to ssh only.
fn asks_for_ssh(matches: &ArgMatches) -> bool {
    ["ssh-port", "ssh-identity-file", "ssh-host-keys"].iter().any(|flag| matches.contains_id(flag))
}

/// Gives the terminal to a rank. While a person looks at it, all others wait, and none of them may lose patience.
fn debug(matches: &ArgMatches, elastic: bool, job: &mut Job) -> Result<()> {
    let Some(rank) = number::<Rank>(matches, "debug")? else { return Ok(()) };
    if elastic {
        return Err(Error::Usage("--debug is for jobs of fixed size, and this one is elastic".into()));
    }
    if rank.index() >= job.size() {
        let last = job.size() - 1;
        return Err(Error::Usage(format!("--debug names rank {rank}, but this job has ranks 0 to {last}")));
    }
    job.debug = Some(rank);
    for (variable, value) in [
        (&config::TIMEOUT, "0"),
        (&config::CONNECT_TIMEOUT, WEEK_SECONDS),
        (&config::STALL_CHECK_DISABLE, "1"),
        (&config::STALL_SHUTDOWN_TIME, "0"),
    ] {
        let names = [Some(variable.name), variable.horovod].into_iter().flatten();
        job.variables.extend(names.map(|name| (name.to_owned(), value.to_owned())));
    }
    Ok(())
}

fn interfaces(matches: &ArgMatches) -> Vec<String> {
    let all = ["network-interfaces", "network-interface"];
    let given = all.iter().flat_map(|flag| matches.get_many::<String>(flag).unwrap_or_default());
    given.flat_map(|list| list.split(',')).map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect()
}

/// The flags of elastic jobs, checked; `None` if none of those was given that make a job elastic.
fn elastic_rules(matches: &ArgMatches) -> Result<Option<Rules>> {
    let min: Option<usize> = number(matches, "min-num-proc")?;
    let max: Option<usize> = number(matches, "max-num-proc")?;
    let size: Option<usize> = number(matches, "num-proc")?;
    let spares: Option<usize> = number(matches, "spares")?;
    let slots: Option<usize> = number(matches, "slots-per-host")?;
    let wrong = |text: String| Err(Error::Usage(text));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return wrong(format!("--min-np {min} is above --max-np {max}"));
    }
    if let (Some(size), Some(min)) = (size, min)
        && size < min
    {
        return wrong(format!("-np {size} is below --min-np {min}: the job could not begin"));
    }
    if let (Some(size), Some(max)) = (size, max)
        && size > max
    {
        return wrong(format!("-np {size} is above --max-np {max}"));
    }
    if min == Some(0) || slots == Some(0) {
        return wrong("--min-np and --slots-per-host are at least 1".into());
    }
    let mut cooldown = None;
    if let Some(range) = matches.get_many::<String>("blacklist-cooldown-range") {
        let range: Vec<Option<f64>> = range.map(|text| text.parse().ok()).collect();
        let [Some(low), Some(high)] = range[..] else {
            return wrong("--blacklist-cooldown-range wants two numbers of seconds".into());
        };
        if !(1.0..=3600.0).contains(&low) || !(low..=3600.0).contains(&high) {
            return wrong(format!("--blacklist-cooldown-range {low} {high}: from 1 to 3600, the smaller one first"));
        }
        cooldown = Some((Duration::from_secs_f64(low), Duration::from_secs_f64(high)));
    }
    let patience = match seconds(matches, "elastic-timeout")? {
        Some(patience) => patience,
        None => config::ELASTIC_TIMEOUT.seconds(Duration::from_secs(600))?,
    };
    let reset_limit: Option<u64> = number(matches, "reset-limit")?;
    let script = matches.contains_id("host-discovery-script");
    let joins = join_port(matches)?.is_some() && given_hosts(matches)?.is_none();
    if min.is_none() && max.is_none() && spares.is_none() && !script {
        return Ok(None);
    }
    let Some(start) = size.or(min) else {
        return wrong("how many processes does this elastic job begin with? give -np N, or --min-np N".into());
    };
    let timeout = config::TIMEOUT.seconds(Duration::from_secs(60))?;
    let defaults = Rules::default();
    Ok(Some(Rules {
        start,
        min: min.unwrap_or(start),
        max: max.unwrap_or(if script || joins { usize::MAX } else { start }),
        spares: spares.unwrap_or(0),
        hosts_change: script || joins,
        patience,
        silence: config::ELASTIC_SILENCE.seconds(defaults.silence)?,
        return_time: Rules::return_time(config::TIMEOUT.value().map(|_| timeout)),
        reset_limit,
        cooldown,
        seed: u64::from(std::process::id()),
        ..defaults
    }))
}

fn elastic(matches: &ArgMatches, allocation: Option<&Allocation>, job: Job, mut rules: Rules) -> Result<ElasticJob> {
    let every = Duration::from_secs(1);
    let size = if rules.max == usize::MAX { rules.start } else { rules.max };
    let hosts = match (matches.get_one::<String>("host-discovery-script"), given_hosts(matches)?, allocation) {
        (Some(command), _, _) => {
            Hosts::Script { command: command.into(), slots_per_host: number(matches, "slots-per-host")?, every }
        }
        (None, Some(hosts), _) => Hosts::Fixed(hosts),
        (None, None, _) if job.remote.join_port.is_some() => Hosts::Joined,
        (None, None, Some(found)) if found.system == System::Slurm => {
            // A node that is lost leaves the job's list, and comes back into none.
            rules.hosts_change = true;
            Hosts::Slurm { job: found.job.clone(), hosts: found.hosts_for(Some(size)), every: SLURM_QUESTIONS }
        }
        (None, None, Some(found)) => Hosts::Fixed(found.hosts_for(Some(size))),
        (None, None, None) => Hosts::Fixed(vec![Host::local(size)]),
    };
    if let Hosts::Fixed(hosts) | Hosts::Slurm { hosts, .. } = &hosts {
        placement::place(rules.start, hosts)?;
    }
    Ok(ElasticJob { job, rules, hosts, orphan_time: config::ELASTIC_ORPHAN_TIME.seconds(Duration::from_secs(60))? })
}

fn remark_on_others(matches: &ArgMatches, handed_over: bool, elastic: bool, remarks: &mut Vec<String>) {
    for flag in ["mpi-args", "binding-args"] {
        if !handed_over && matches.contains_id(flag) {
            remarks.push(format!("--{flag} has no effect without --mpi or --jsrun"));
        }
    }
    if matches.get_flag("disable-cache") {
        remarks.push("--disable-cache has no effect: nothing is cached between runs".into());
    }
    if matches.get_flag("tcp") {
        remarks.push(
            "--tcp has no effect on Corro, which uses TCP between hosts anyway; NCCL_IB_DISABLE=1 is set for the ranks"
                .into(),
        );
    }
    if !elastic {
        for flag in ["elastic-timeout", "reset-limit", "blacklist-cooldown-range"] {
            if matches.contains_id(flag) {
                remarks.push(format!(
                    "--{flag} has no effect: it is for elastic jobs (--min-np, --host-discovery-script)"
                ));
            }
        }
    }
    if matches.contains_id("slots-per-host") && !matches.contains_id("host-discovery-script") {
        remarks.push("--slots-per-host has no effect without --host-discovery-script".into());
    }
}

fn number<T: std::str::FromStr>(matches: &ArgMatches, flag: &str) -> Result<Option<T>> {
    let wrong = |text: &String| Error::Usage(format!("--{flag} is {text:?}, which is not a number that it accepts"));
    matches.get_one::<String>(flag).map(|text| text.trim().parse().map_err(|_| wrong(text))).transpose()
}

fn seconds(matches: &ArgMatches, flag: &str) -> Result<Option<Duration>> {
    let Some(text) = matches.get_one::<String>(flag) else { return Ok(None) };
    let length = text.trim().parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok());
    length.map(Some).ok_or_else(|| Error::Usage(format!("--{flag} is {text:?}, which is not a number of seconds")))
}

fn read(path: &str, flag: &str) -> Result<String> {
    std::fs::read_to_string(path).map_err(|e| Error::io(format!("reading {path} ({flag})"), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(line: &str) -> Result<Request> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        let matches = flags::parse("corro run", &words).map_err(|e| Error::Usage(e.to_string()))?;
        understand(&matches, None, &[])
    }

    fn why(line: &str) -> String {
        ask(line).err().map_or_else(|| format!("{line} was understood"), |e| e.to_string())
    }

    #[test]
    fn a_whole_command_line() {
        let request =
            ask("-np 3 -H a:2,b:2 --tls --tcp --network-interfaces eth0,eth1 --grace-seconds 0.5 -p 22 python x")
                .unwrap();
        let job = fixed(&request);
        assert_eq!((job.size(), job.placement.len(), job.tls), (3, 2, true));
        assert_eq!(job.interfaces, ["eth0", "eth1"]);
        assert_eq!((job.grace, job.remote.port), (Duration::from_millis(500), Some(22)));
        assert!(job.variables.contains(&("NCCL_IB_DISABLE".into(), "1".into())));
        assert_eq!(fixed(&ask("-H a:2,b:2 x").unwrap()).size(), 4);
        assert_eq!(fixed(&ask("-np 2 x").unwrap()).placement[0].host, Host::local(2));
    }

    fn fixed(request: &Request) -> &Job {
        let Plan::Fixed(job) = &request.plan else { panic!("an elastic job") };
        job
    }

    #[test]
    fn servers_are_dealt_to_hosts() {
        let servers = |line: &str| {
            let request = ask(line).unwrap();
            let plan = &fixed(&request).servers;
            let names: Vec<String> = plan.hosts.iter().map(|host| host.name.clone()).collect();
            (names.join(","), plan.apart)
        };
        assert_eq!(servers("-np 2 x"), (String::new(), false));
        assert_eq!(servers("-np 4 -H a:2,b:2 --servers 3 x"), ("a,b,a".into(), false));
        assert_eq!(servers("-np 2 -H a:1,b:1 --server-hosts c,d x"), ("c,d".into(), true));
        assert_eq!(servers("-np 2 -H a:1,b:1 --server-hosts c --servers 2 x"), ("c,c".into(), true));
        let request = ask("-np 1 --servers 2 x").unwrap();
        let told = &fixed(&request).variables;
        assert!(told.contains(&("CORRO_SERVERS".into(), "2".into())));
    }

    fn rules(line: &str) -> (usize, usize, usize, usize) {
        let Plan::Elastic(elastic) = ask(line).unwrap().plan else { panic!("{line}: no elastic job") };
        let Rules { start, min, max, spares, .. } = elastic.rules;
        (start, min, max, spares)
    }

    #[test]
    fn elastic_command_lines() {
        assert_eq!(rules("-np 4 --min-np 2 x"), (4, 2, 4, 0));
        assert_eq!(rules("-np 4 --min-np 2 --max-np 8 --spares 1 -H a:4,b:4 x"), (4, 2, 8, 1));
        assert_eq!(rules("-np 4 --host-discovery-script ./s x"), (4, 4, usize::MAX, 0));
        assert_eq!(rules("--min-np 2 --host-discovery-script ./s x"), (2, 2, usize::MAX, 0));
        assert_eq!(rules("-np 2 --spares 1 x"), (2, 2, 2, 1));
    }

    #[test]
    fn the_launchers_log_is_as_loud_as_the_ranks() {
        let log = ask("-np 1 --log-level debug --log-without-timestamp x").unwrap().log();
        assert_eq!(log.least, corro_log::level("debug").unwrap());
        assert!(!log.with_time);
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (line, word) in [
            ("x", "give -np"),
            ("-np 2", "no command"),
            ("-np two x", "--num-proc"),
            ("-np 3 -H a:2 x", "Requested more processes (3) than there are available slots (2)"),
            ("--host-discovery-script s x", "begin with"),
            ("-np 4 --min-np 2 -H a:2 x", "Requested more processes (4) than there are available slots (2)"),
            ("-np 1 --min-np 2 x", "-np 1 is below --min-np 2"),
            ("--min-np 3 --max-np 2 x", "above"),
            ("-np 2 --blacklist-cooldown-range 0 5 x", "from 1 to 3600"),
            ("-np 2 --start-timeout soon x", "--start-timeout"),
            ("-np 2 --hostfile /no/such/file x", "/no/such/file"),
            ("-np 2 --fusion-threshold-mb -1 x", "fusion-threshold-mb"),
            ("-np 2 -p 99999 x", "--ssh-port"),
            ("-np 2 --jsrun x", "LSB_JOBID"),
            ("-np -1 x", "--num-proc is \"-1\""),
            ("-np 2 --start-timeout -3 x", "--start-timeout is \"-3\""),
            ("-np 100000 x", "at most 16384"),
            ("-np 2 --ranks x x", "--ranks is \"x\""),
            ("-np 2 --ranks 0,2 x", "--ranks names rank 2, but this job has ranks 0 to 1"),
        ] {
            assert!(why(line).contains(word), "{line}: {}", why(line));
        }
    }

    #[test]
    fn mpis_flags_get_a_word() {
        let request = ask("-np 1 --mpi --mpi-args=-x --binding-args=y true").unwrap();
        assert_eq!(request.remarks.len(), 3);
        assert!(ask("-np 1 --gloo true").unwrap().remarks.is_empty());
        for flag in ["--tcp", "--disable-cache", "--reset-limit 3", "--slots-per-host 2", "--num-nccl-streams 2"] {
            let remarks = ask(&format!("-np 1 {flag} true")).unwrap().remarks;
            let name = flag.split(' ').next().unwrap();
            assert!(remarks.len() == 1 && remarks[0].contains(name), "{flag}: {remarks:?}");
        }
        assert!(ask("-np 1 --min-np 1 --reset-limit 3 true").unwrap().remarks.is_empty());
    }

    #[test]
    fn ranks_need_not_repeat_what_was_said_about_the_environment() {
        let matches = flags::parse("corro run", &["-n", "1", "true"].map(Into::into)).unwrap();
        let remark =
            |name: &str| config::Remark { name: name.into(), text: format!("{name} is odd"), unreadable: false };
        let request = understand(&matches, None, &[remark("CORRO_A"), remark("HOROVOD_B")]).unwrap();
        assert_eq!(request.remarks, ["CORRO_A is odd", "HOROVOD_B is odd"]);
        assert!(fixed(&request).variables.contains(&("CORRO_REPORTED".into(), "CORRO_A,HOROVOD_B".into())));
    }
}
