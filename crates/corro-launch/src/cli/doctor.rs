//! `corro doctor`: one screen about this machine and the hosts given, and an exit code that says whether jobs will run.
//!
//! Looks and reports; changes nothing, and imports no framework (that would take seconds and memory).

use std::ffi::OsString;
use std::time::Duration;

use clap::Arg;
use corro_core::{Result, config};
use corro_transport::{cores, nic};
use rustix::process::{Resource, getrlimit};

use super::finding::{Finding, Verdict, ask, finding};
use super::{doctor_gpu, exit, request, script};
use crate::job::Job;
use crate::output::{Output, Style};
use crate::placement;

const MIB: u64 = 1 << 20;

/// Its flags.
pub(super) fn command() -> clap::Command {
    let text = |name: &'static str| Arg::new(name).long(name);
    clap::Command::new("corro doctor")
        .about("Checks whether this machine, and any hosts given, have what jobs need")
        .disable_version_flag(true)
        .arg(text("hosts").short('H').value_name("H1:N,H2:N").help("Other hosts to check, over ssh"))
        .arg(text("hostfile").value_name("FILE").help("A file with the hosts to check, one `host slots=N` a line"))
        .arg(text("ssh-port").short('p').value_name("N").help("Port of ssh"))
        .arg(text("ssh-identity-file").short('i').value_name("FILE").help("Private key for ssh"))
        .arg(
            text("ssh-host-keys")
                .value_parser(["known", "accept-new", "ignore"])
                .help("Which host keys to accept: known (as your ssh is set up), accept-new, or ignore (dangerous)"),
        )
        .arg(
            text("remote-corro").value_name("PATH").help("The corro program on the other hosts [the path of this one]"),
        )
        .arg(
            text("remote-shell")
                .value_name("PROGRAM")
                .help("Program to use instead of ssh; it is run as `PROGRAM HOST COMMAND`"),
        )
}

/// The program; gives its exit code.
pub(super) fn main(words: &[OsString], agent: Option<&[OsString]>) -> u8 {
    let matches = match command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let mut findings = vec![python()];
    findings.extend(doctor_gpu::findings());
    findings.extend([mpi(), shared_memory(), memfd()]);
    findings.extend([limits(), cpu(), network()]);
    match reach(&matches, agent) {
        Ok(hosts) => findings.extend(hosts),
        Err(e) => return exit::complain("corro doctor", &e),
    }
    print!("{}", report(&findings));
    u8::from(findings.iter().any(|f| f.verdict == Verdict::Bad))
}

fn report(findings: &[Finding]) -> String {
    use std::fmt::Write;
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let mut page = format!("corro {} on {host}\n", env!("CARGO_PKG_VERSION"));
    for f in findings {
        let mark = match f.verdict {
            Verdict::Fine => "ok  ",
            Verdict::Note => "note",
            Verdict::Bad => "BAD ",
        };
        let _ = writeln!(page, "  {mark}  {:<14} {}", f.about, f.text);
    }
    let _ = match findings.iter().filter(|f| f.verdict == Verdict::Bad).count() {
        0 => writeln!(page, "all a job needs is here"),
        bad => writeln!(page, "{bad} of these will make jobs fail"),
    };
    page
}

const FRAMEWORKS: &str = "torch tensorflow keras jax mxnet pyspark ray mpi4py numpy corro horovod";

/// `find_spec` finds a package without running any of it.
const LOOK: &str = "
import importlib.util as u, importlib.metadata as m, sys
print(sys.version.split()[0], sys.executable)
for name in sys.argv[1:]:
    if u.find_spec(name):
        try: version = m.version(name)
        except Exception: version = '?'
        print(name, version)
    else: print(name, '-')
";

fn look_with_python() -> Option<Vec<(String, String)>> {
    let words: Vec<&str> = ["-c", LOOK].into_iter().chain(FRAMEWORKS.split(' ')).collect();
    // The one that runs scripts as ranks.
    let text = ask(script::python(), &words).or_else(|| ask("python", &words))?;
    let pair = |line: &str| line.split_once(' ').map(|(a, b)| (a.to_owned(), b.to_owned()));
    Some(text.lines().filter_map(pair).collect())
}

/// Which packages, frameworks most of them, can be imported here.
pub(super) fn frameworks() -> Vec<(String, bool)> {
    let found = look_with_python().unwrap_or_default();
    found.into_iter().skip(1).map(|(name, version)| (name, version != "-")).collect()
}

fn python() -> Finding {
    let Some(found) = look_with_python() else {
        return finding(Verdict::Note, "Python", "no python3 in PATH: Python programs can't run as ranks");
    };
    let Some((version, path)) = found.first() else {
        return finding(Verdict::Note, "Python", "python3 gives no answer");
    };
    let there: Vec<String> =
        found[1..].iter().filter(|(_, v)| v != "-").map(|(name, version)| format!("{name} {version}")).collect();
    let packages = if there.is_empty() { "no framework found".to_owned() } else { there.join(", ") };
    finding(Verdict::Fine, "Python", format!("{version} ({path}); {packages}"))
}

fn mpi() -> Finding {
    let found = ["mpiexec", "mpirun"].iter().find_map(|program| {
        ask(program, &["--version"])
            .map(|text| format!("{program}: {}", text.lines().next().unwrap_or_default().trim()))
    });
    match found {
        Some(text) => finding(Verdict::Fine, "MPI", text),
        None => finding(Verdict::Fine, "MPI", "not found; corro needs none"),
    }
}

fn shared_memory() -> Finding {
    let Ok(found) = rustix::fs::statvfs("/dev/shm") else {
        return finding(Verdict::Note, "/dev/shm", "not there; corro needs none, but data loaders of frameworks do");
    };
    let (free, all) = (found.f_bavail * found.f_frsize / MIB, found.f_blocks * found.f_frsize / MIB);
    let text = format!("{free} of {all} MiB free (corro itself uses none)");
    if free < 64 {
        return finding(
            Verdict::Note,
            "/dev/shm",
            format!("{text}; data loaders will fail: in Docker, give --shm-size=1g"),
        );
    }
    finding(Verdict::Fine, "/dev/shm", text)
}

fn memfd() -> Finding {
    match rustix::fs::memfd_create("corro-doctor", rustix::fs::MemfdFlags::CLOEXEC) {
        Ok(_) => finding(Verdict::Fine, "shared memory", "memory can be shared between ranks"),
        Err(e) => finding(
            Verdict::Bad,
            "shared memory",
            format!("memfd_create fails ({e}): ranks of one host can't share memory"),
        ),
    }
}

fn limits() -> Finding {
    let shown = |limit: Option<u64>| limit.map_or_else(|| "unlimited".to_owned(), |n| n.to_string());
    let files = getrlimit(Resource::Nofile).current;
    let locked = getrlimit(Resource::Memlock).current;
    let text = format!("{} open files, {} bytes of locked memory", shown(files), shown(locked));
    match files {
        Some(n) if n < 256 => finding(Verdict::Bad, "limits", format!("{text}: too few files, raise `ulimit -n`")),
        Some(n) if n < 1024 => {
            finding(Verdict::Note, "limits", format!("{text}: many ranks need more files (`ulimit -n`)"))
        }
        _ => finding(Verdict::Fine, "limits", text),
    }
}

fn cpu() -> Finding {
    let all = std::fs::read_to_string("/proc/cpuinfo")
        .map_or(0, |t| t.lines().filter(|l| l.starts_with("processor")).count());
    let usable = cores::usable();
    let text = format!("{usable} usable of {all} (affinity and cgroup quota)");
    finding(if usable < all { Verdict::Note } else { Verdict::Fine }, "cores", text)
}

fn network() -> Finding {
    let found = match nic::addresses(None) {
        Ok(found) => found,
        Err(e) => return finding(Verdict::Bad, "network", e.to_string()),
    };
    let list: Vec<String> = found.iter().map(|n| format!("{} {}", n.interface, n.address)).collect();
    if !found.iter().any(|n| n.address.is_loopback()) {
        return finding(Verdict::Bad, "network", "loopback is down: `ip link set lo up`");
    }
    let verdict = if found.iter().all(|n| n.address.is_loopback()) { Verdict::Note } else { Verdict::Fine };
    finding(verdict, "network", list.join(", "))
}

fn reach(matches: &clap::ArgMatches, agent: Option<&[OsString]>) -> Result<Vec<Finding>> {
    let Some(mut hosts) = request::given_hosts(matches)? else { return Ok(Vec::new()) };
    for host in &mut hosts {
        host.slots = host.slots.max(1);
    }
    let size = hosts.iter().map(|h| h.slots).sum();
    let mut job = Job::new(Vec::new(), placement::place(size, &hosts)?)?;
    job.remote = request::remote(matches, request::allocation()?.as_ref())?;
    if let Some(agent) = agent {
        job.agent = agent.to_vec();
    }
    job.start_timeout = config::START_TIMEOUT.seconds(Duration::from_secs(10))?;
    let output = Output::new(Style::default(), 0, [Box::new(std::io::sink()), Box::new(std::io::sink())])?;
    let reached = job.reach(output)?;
    Ok(reached
        .into_iter()
        .map(|(host, outcome)| match outcome {
            Ok(()) => finding(Verdict::Fine, "host", format!("{host}: reached, same release of corro")),
            Err(cause) => finding(Verdict::Bad, "host", format!("{host}: {cause}")),
        })
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_short_and_names_what_is_bad() {
        let text = report(&[finding(Verdict::Fine, "cores", "2"), finding(Verdict::Bad, "host", "b: refused")]);
        assert!(
            text.contains("  ok    cores          2\n") && text.contains("  BAD   host           b: refused\n"),
            "{text}"
        );
        assert!(text.ends_with("1 of these will make jobs fail\n"));
        assert!(report(&[]).ends_with("all a job needs is here\n"));
    }

    #[test]
    fn programs_that_fail_hang_or_are_missing_give_nothing() {
        assert_eq!(ask("false", &[]), None);
        assert_eq!(ask("/no/such/program", &[]), None);
        assert_eq!(ask("echo", &["x"]).as_deref(), Some("x"));
    }
}
