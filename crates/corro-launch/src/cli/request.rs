//! What the user asks for: flags and config file turned into a job, checked as a whole before anything is started.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::ArgMatches;
use corro_core::{Error, Result, config};

use super::config_file::{self, ConfigFile};
use super::{flags, knobs};
use crate::hosts::{self, Host};
use crate::job::Job;
use crate::placement;
use crate::remote::{HostKeys, Remote};

/// A run, as asked for.
pub(super) struct Request {
    pub(super) job: Job,
    pub(super) timestamps: bool,
    pub(super) directory: Option<PathBuf>,
    pub(super) color: String,
    /// What the user should know before it starts.
    pub(super) remarks: Vec<String>,
}

/// Reads the flags, and the files they name.
pub(super) fn understand(matches: &ArgMatches, agent: Option<&[OsString]>) -> Result<Request> {
    let text = |flag: &str| matches.get_one::<String>(flag).cloned();
    let file = match text("config-file") {
        Some(path) => config_file::parse(&read(&path, "--config-file")?, &path)?,
        None => ConfigFile::default(),
    };
    let mut remarks: Vec<String> = file
        .unknown
        .iter()
        .map(|key| format!("the config file's {key:?} means nothing to corro and is left out"))
        .collect();
    let variables = knobs::variables(&flags::settings(matches), &file.given)?;
    refuse_elastic(matches)?;
    if matches.get_flag("jsrun") && config::foreign("LSB_JOBID").is_none() {
        return Err(Error::Usage("--jsrun is for jobs of LSF, and this is none: LSB_JOBID is not set".into()));
    }
    remark_on_others(matches, file.controller.as_deref(), &mut remarks);

    let command: Vec<OsString> = matches.get_many::<OsString>("command").unwrap_or_default().cloned().collect();
    if command.is_empty() {
        return Err(Error::Usage(
            "no command to run: put it behind the flags, as in `corro run -np 2 python train.py`".into(),
        ));
    }
    let (size, hosts) = size_and_hosts(matches)?;
    let mut job = Job::new(command, placement::place(size, &hosts)?)?;
    job.variables = variables;
    if let Some(agent) = agent {
        job.agent = agent.to_vec();
    }
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
    job.remote = remote(matches)?;
    Ok(Request {
        job,
        timestamps: matches.get_flag("prefix-output-with-timestamp"),
        directory: text("output-filename").map(Into::into),
        color: text("color").unwrap_or_else(|| "auto".into()),
        remarks,
    })
}

fn size_and_hosts(matches: &ArgMatches) -> Result<(usize, Vec<Host>)> {
    let size: Option<usize> = number(matches, "num-proc")?;
    let given = match given_hosts(matches)? {
        None => hosts_of_lsf()?,
        given => given,
    };
    match (size, given) {
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

/// The hosts that LSF has given to the job this process is in, if it is in one.
fn hosts_of_lsf() -> Result<Option<Vec<Host>>> {
    if config::foreign("LSB_JOBID").is_none() {
        return Ok(None);
    }
    if let Some(path) = config::foreign("LSB_DJOB_HOSTFILE") {
        return hosts::parse_file(&read(&path, "LSB_DJOB_HOSTFILE")?, &path).map(Some);
    }
    config::foreign("LSB_MCPU_HOSTS").map(|text| hosts::parse_pairs(&text)).transpose()
}

/// How other hosts are to be reached.
pub(super) fn remote(matches: &ArgMatches) -> Result<Remote> {
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
    })
}

fn interfaces(matches: &ArgMatches) -> Vec<String> {
    let all = ["network-interfaces", "network-interface"];
    let given = all.iter().flat_map(|flag| matches.get_many::<String>(flag).unwrap_or_default());
    given.flat_map(|list| list.split(',')).map(|n| n.trim().to_owned()).filter(|n| !n.is_empty()).collect()
}

/// Checks the flags of elastic jobs, and says that they can't be run yet.
fn refuse_elastic(matches: &ArgMatches) -> Result<()> {
    let min: Option<usize> = number(matches, "min-num-proc")?;
    let max: Option<usize> = number(matches, "max-num-proc")?;
    let size: Option<usize> = number(matches, "num-proc")?;
    let _: Option<usize> = number(matches, "slots-per-host")?;
    let _: Option<u64> = number(matches, "reset-limit")?;
    let _ = seconds(matches, "elastic-timeout")?;
    let wrong = |text: String| Err(Error::Usage(text));
    if let (Some(min), Some(max)) = (min, max)
        && min > max
    {
        return wrong(format!("--min-np {min} is above --max-np {max}"));
    }
    if let Some(size) = size
        && (min.is_some_and(|min| size < min) || max.is_some_and(|max| size > max))
    {
        return wrong(format!("-np {size} is not between --min-np and --max-np"));
    }
    if let Some(range) = matches.get_many::<String>("blacklist-cooldown-range") {
        let range: Vec<Option<f64>> = range.map(|text| text.parse().ok()).collect();
        let [Some(low), Some(high)] = range[..] else {
            return wrong("--blacklist-cooldown-range wants two numbers of seconds".into());
        };
        if !(1.0..=3600.0).contains(&low) || !(low..=3600.0).contains(&high) {
            return wrong(format!("--blacklist-cooldown-range {low} {high}: from 1 to 3600, the smaller one first"));
        }
    }
    if min.is_some() || max.is_some() || matches.contains_id("host-discovery-script") {
        return wrong(
            "elastic jobs (--min-np, --max-np, --host-discovery-script) are not yet possible in this release: give -np and \
             -H for a job of fixed size"
                .into(),
        );
    }
    Ok(())
}

fn remark_on_others(matches: &ArgMatches, controller: Option<&str>, remarks: &mut Vec<String>) {
    let mpi = matches.get_flag("mpi") || (controller == Some("mpi") && !matches.get_flag("gloo"));
    if mpi {
        remarks.push(
            "--mpi: corro needs no MPI; its own transports are used, and `mpirun ... python train.py` works too".into(),
        );
    }
    if matches.get_flag("jsrun") {
        remarks.push("--jsrun: corro starts the ranks itself; `jsrun ... python train.py` works too".into());
    }
    for flag in ["mpi-args", "binding-args"] {
        if matches.contains_id(flag) {
            remarks.push(format!("--{flag} is for MPI and has no effect"));
        }
    }
    if matches.get_flag("disable-cache") && matches.get_flag("verbose") {
        remarks.push("--disable-cache: nothing is cached anyway".into());
    }
}

fn number<T: std::str::FromStr>(matches: &ArgMatches, flag: &str) -> Result<Option<T>> {
    let wrong = |text: &String| Error::Usage(format!("--{flag} is {text:?}, which is not a number it takes"));
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
        understand(&matches, None)
    }

    fn why(line: &str) -> String {
        ask(line).err().map_or_else(|| format!("{line} was understood"), |e| e.to_string())
    }

    #[test]
    fn a_whole_command_line() {
        let request =
            ask("-np 3 -H a:2,b:2 --tls --tcp --network-interfaces eth0,eth1 --grace-seconds 0.5 -p 22 python x")
                .unwrap();
        let job = &request.job;
        assert_eq!((job.size(), job.placement.len(), job.tls), (3, 2, true));
        assert_eq!(job.interfaces, ["eth0", "eth1"]);
        assert_eq!((job.grace, job.remote.port), (Duration::from_millis(500), Some(22)));
        assert!(job.variables.contains(&("NCCL_IB_DISABLE".into(), "1".into())));
        assert_eq!(ask("-H a:2,b:2 x").unwrap().job.size(), 4);
        assert_eq!(ask("-np 2 x").unwrap().job.placement[0].host, Host::local(2));
    }

    #[test]
    fn what_cannot_be_done_is_said() {
        for (line, word) in [
            ("x", "give -np"),
            ("-np 2", "no command"),
            ("-np two x", "--num-proc"),
            ("-np 3 -H a:2 x", "Requested more processes (3) than there are available slots (2)"),
            ("-np 2 --min-np 1 x", "not yet"),
            ("-np 2 --host-discovery-script s x", "not yet"),
            ("-np 1 --min-np 2 x", "not between"),
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
        ] {
            assert!(why(line).contains(word), "{line}: {}", why(line));
        }
    }

    #[test]
    fn mpis_flags_get_a_word() {
        let request = ask("-np 1 --mpi --mpi-args=-x --binding-args=y true").unwrap();
        assert_eq!(request.remarks.len(), 3);
        assert!(ask("-np 1 --gloo true").unwrap().remarks.is_empty());
    }
}
