//! Jobs that another launcher starts: `corro run --mpi` becomes `mpirun`, `--jsrun` becomes LSF's `jsrun`, as Horovod's
//! launcher does. Ranks then meet by the variables of that launcher, and find their places through it.
//!
//! What flags come to there is said by [`elsewhere`]. Pure but for [`Handover::new`],
//! which looks at the environment and the cores of this host, and [`hand_over`], which becomes one of the programs.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::ArgMatches;
use corro_core::{Error, Result, config};
use corro_transport::cores;

use super::elsewhere;
use super::launchers::{Launcher, Mpi};
use crate::agent::passed_to_another_host;
use crate::fixed;
use crate::hosts::Host;
use crate::job::Job;
use crate::threads::{self, Share};

/// What it is to start.
#[derive(Clone, Debug)]
pub(super) struct Handover {
    pub(super) launcher: Launcher,
    pub(super) size: usize,
    /// Where; nothing: here, or where a batch system says.
    pub(super) hosts: Vec<Host>,
    /// Variables for the ranks, on top of this process's.
    pub(super) variables: Vec<(String, String)>,
    /// The names of this process's variables that ranks on other hosts are to have too.
    pub(super) exported: Vec<String>,
    /// `--network-interfaces`.
    pub(super) interfaces: Vec<String>,
    /// For ssh, which this launcher calls itself.
    pub(super) ssh: Vec<String>,
    /// What to call in its place.
    pub(super) shell: Option<String>,
    /// `--output-filename`.
    pub(super) directory: Option<String>,
    /// Lines of output begin with the time.
    pub(super) timestamps: bool,
    /// `--binding-args`, in place of ours.
    pub(super) binding: Option<Vec<String>>,
    /// `--mpi-args`: words for the launcher.
    pub(super) words: Vec<String>,
    pub(super) command: Vec<OsString>,
    /// What the user should know when it happens.
    pub(super) remarks: Vec<String>,
}

impl Handover {
    /// `job` by another launcher, on these hosts. In an allocation it asks the batch system itself.
    pub(super) fn new(matches: &ArgMatches, launcher: Launcher, hosts: Vec<Host>, job: &Job) -> Result<Self> {
        let text = |flag: &str| matches.get_one::<String>(flag).cloned();
        let mut remarks = Vec::from_iter(elsewhere::remark(matches, launcher));
        let mut variables = job.variables.clone();
        if job.tls {
            variables.push((config::TLS.name.into(), "1".into()));
        }
        if launcher != Launcher::Jsrun {
            match config::CPU_OPERATIONS.value() {
                None if job.tls => remarks.push(
                    "--tls: Corro moves the tensors itself, encrypted, since MPI encrypts nothing; CORRO_CPU_OPERATIONS=mpi \
                     has MPI move them as they are"
                        .into(),
                ),
                None => variables.push((config::CPU_OPERATIONS.name.into(), "mpi".into())),
                Some(who) if job.tls && who.eq_ignore_ascii_case("mpi") => remarks.push(
                    "--tls encrypts Corro's own connections, and not the tensors: MPI moves them, as CORRO_CPU_OPERATIONS says"
                        .into(),
                ),
                Some(_) => {}
            }
            let (share, told) = threads(job)?;
            variables.extend(share);
            remarks.extend(told);
        }
        if matches!(launcher, Launcher::Mpi(_, Mpi::Open | Mpi::Prrte)) && config::SECRET.value().is_some() {
            remarks.push(
                "CORRO_SECRET stays on this host: mpirun would send it to others unencrypted. If they may have it that way, add \
                 --mpi-args=\"-x CORRO_SECRET\""
                    .into(),
            );
        }
        if !job.interfaces.is_empty() {
            let list = job.interfaces.join(",");
            let names = [Some(config::INTERFACE.name), config::INTERFACE.horovod, Some("NCCL_SOCKET_IFNAME")];
            variables.extend(names.into_iter().flatten().map(|name| (name.to_owned(), list.clone())));
        }
        if job.rendezvous_port != 0 {
            variables.push((config::RENDEZVOUS_PORT.name.into(), job.rendezvous_port.to_string()));
        }
        let directory = text("output-filename");
        if directory.is_some() && matches!(launcher, Launcher::Mpi(_, Mpi::Prrte)) {
            remarks.push(
                "--output-filename: Open MPI writes the ranks' output into files, and shows none of it here".into(),
            );
        }
        let of_flags: Vec<String> = variables.iter().map(|(name, _)| name.clone()).collect();
        let mut exported: Vec<String> =
            passed_to_another_host(std::env::vars_os()).filter_map(|name| name.into_string().ok()).collect();
        exported.retain(|name| !of_flags.contains(name) && !is_set_by_a_launcher(name));
        exported.sort();
        Ok(Self {
            launcher,
            size: job.size(),
            hosts,
            variables,
            exported,
            interfaces: job.interfaces.clone(),
            ssh: job.remote.ssh_words(),
            shell: job.remote.shell.as_ref().map(|shell| shell.display().to_string()),
            directory,
            timestamps: matches.get_flag("prefix-output-with-timestamp"),
            binding: text("binding-args").map(|text| cut(&text)).transpose()?,
            words: text("mpi-args").map(|text| cut(&text)).transpose()?.unwrap_or_default(),
            command: job.command.clone(),
            remarks,
        })
    }

    /// The words of `mpirun`.
    fn of_mpirun(&self, mpi: Mpi) -> Result<Vec<OsString>> {
        let list = |hosts: &[Host]| {
            let each: Vec<String> = hosts.iter().map(|h| format!("{}:{}", h.full_name(), h.slots)).collect();
            each.join(",")
        };
        let mut words: Vec<String> = Vec::new();
        let mut add = |more: &[&str]| words.extend(more.iter().map(|&word| word.to_owned()));
        let size = self.size.to_string();
        match mpi {
            Mpi::Open | Mpi::Prrte => {
                add(&["--allow-run-as-root"]);
                match &self.binding {
                    Some(binding) => binding.iter().for_each(|word| add(&[word])),
                    // Ranks that are bound to one core each can't use the threads of their libraries.
                    None => add(&["--bind-to", "none", "--map-by", "slot"]),
                }
                add(&["-np", &size]);
                match self.hosts.as_slice() {
                    [] => add(&["--oversubscribe"]),
                    hosts => add(&["-H", &list(hosts)]),
                }
                if !self.interfaces.is_empty() {
                    add(&["--mca", "btl_tcp_if_include", &self.interfaces.join(",")]);
                }
                if let Some(shell) = &self.shell {
                    add(&["--mca", "plm_rsh_agent", shell]);
                } else if !self.ssh.is_empty() {
                    add(&["--mca", "plm_rsh_args", &self.ssh.join(" ")]);
                }
                if let Some(directory) = &self.directory {
                    let option = if mpi == Mpi::Prrte { "--output-directory" } else { "--output-filename" };
                    add(&[option, directory]);
                }
                if self.timestamps {
                    add(&["--timestamp-output"]);
                }
                // It passes no variable to other hosts by itself.
                for name in self.variables.iter().map(|(name, _)| name).chain(&self.exported) {
                    add(&["-x", name]);
                }
            }
            Mpi::Hydra => {
                add(&["-np", &size]);
                if let [first, rest @ ..] = self.hosts.as_slice() {
                    if rest.iter().any(|host| host.slots != first.slots) {
                        return Err(Error::Usage(
                            "this mpirun starts equally many processes on each host: give all hosts the same number of slots"
                                .into(),
                        ));
                    }
                    let names: Vec<String> = self.hosts.iter().map(Host::full_name).collect();
                    add(&["-ppn", &first.slots.to_string(), "-hosts", &names.join(",")]);
                }
                match self.interfaces.as_slice() {
                    [] => {}
                    [one] => add(&["-iface", one]),
                    _ => {
                        return Err(Error::Usage("this mpirun takes only one of the --network-interfaces".into()));
                    }
                }
                self.binding.iter().flatten().for_each(|word| add(&[word]));
                add(&["-genvall"]);
            }
        }
        Ok(self.complete(words))
    }

    /// The words of `jsrun`: a resource set a rank.
    fn of_jsrun(&self) -> Vec<OsString> {
        let mut words = vec!["--nrs".to_owned(), self.size.to_string(), "--tasks_per_rs=1".into()];
        match &self.binding {
            Some(binding) => words.extend(binding.iter().cloned()),
            None if self.words.is_empty() => {
                words.extend(["--cpu_per_rs=1".into(), "--gpu_per_rs=1".into(), "--bind=none".into()]);
            }
            None => {}
        }
        self.complete(words)
    }

    /// The words as they are shown: the names of the environment's variables would be most of them.
    fn shown(&self, words: &[OsString]) -> String {
        let mut shown: Vec<String> = Vec::new();
        let is_exported = |word: &OsString| self.exported.iter().any(|name| word == name.as_str());
        for (word, before) in words.iter().zip(std::iter::once(None).chain(words.iter().map(Some))) {
            if before.is_some_and(|before| before == "-x") && is_exported(word) {
                shown.pop();
                if shown.last().is_none_or(|last| last != "...") {
                    shown.extend(["-x".into(), "...".into()]);
                }
                continue;
            }
            shown.push(word.display().to_string());
        }
        shown.join(" ")
    }

    fn complete(&self, mut words: Vec<String>) -> Vec<OsString> {
        words.extend(self.words.iter().cloned());
        words.into_iter().map(OsString::from).chain(self.command.iter().cloned()).collect()
    }
}

/// Variables by which launchers and batch systems speak to their own processes.
fn is_set_by_a_launcher(name: &str) -> bool {
    let families = ["OMPI_", "PMI", "PRTE_", "HYDRA_", "I_MPI_", "SLURM_", "LSB_", "JSM_", "PBS_", "KUBERNETES_"];
    families.iter().any(|family| name.starts_with(family)) || places().any(|place| place == name)
}

/// The names of what is another on each rank.
fn places() -> impl Iterator<Item = &'static str> {
    let own = [
        &config::RANK,
        &config::SIZE,
        &config::LOCAL_RANK,
        &config::LOCAL_SIZE,
        &config::CROSS_RANK,
        &config::CROSS_SIZE,
        &config::HOSTNAME,
        &config::WORKER,
        &config::STATEMENTS,
        &config::FEED,
        &config::STACKS,
        &config::REQUESTS,
    ];
    own.into_iter().flat_map(|variable| [Some(variable.name), variable.horovod]).flatten()
}

/// Names and values.
type Variables = Vec<(String, String)>;

/// How many threads the libraries of a rank compute with, and what the user is told about it. All hosts are taken to have as
/// many cores as this one, if it is among them: nobody looks at the others before MPI starts the ranks there.
fn threads(job: &Job) -> Result<(Variables, Option<String>)> {
    if !fixed::which_are_local(job)?.contains(&true) {
        return Ok((Vec::new(), None));
    }
    let is_set = |name: &str| {
        job.variables.iter().any(|(n, _)| n == name)
            || std::env::vars_os().any(|(n, value)| n == *name && !value.is_empty())
    };
    let most = job.placement.iter().map(|assignment| assignment.slots.len()).max().unwrap_or_default();
    let share = |host: &Host| Share { host: host.name.clone(), cores: cores::usable(), ranks: most };
    let shares: Vec<Share> = job.placement.iter().map(|assignment| share(&assignment.host)).collect();
    let variables = shares.first().map(|share| share.variables(is_set)).unwrap_or_default();
    Ok((variables, threads::sentence(&shares, is_set)))
}

/// Becomes the other launcher. Gives back only why not.
pub(super) fn hand_over(handover: &Handover, say: impl Fn(&str)) -> Error {
    let program = handover.launcher.program();
    let words = match handover.launcher {
        Launcher::Jsrun => Ok(handover.of_jsrun()),
        Launcher::Mpi(_, mpi) => handover.of_mpirun(mpi),
    };
    let words = match words {
        Ok(words) => words,
        Err(error) => return error,
    };
    handover.remarks.iter().for_each(|remark| say(remark));
    say(&format!("runs {program} {}", handover.shown(&words)));
    let mut command = Command::new(program);
    command.args(words).envs(handover.variables.iter().cloned());
    if handover.launcher != Launcher::Jsrun && !handover.ssh.is_empty() {
        // MPICH's launcher and Intel's have no option that both know. Open MPI's does not look at these.
        for name in ["HYDRA_LAUNCHER_EXTRA_ARGS", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS"] {
            command.env(name, handover.ssh.join(" "));
        }
    }
    Error::io(format!("running {program}"), command.exec())
}

/// `--mpi-args="--mca btl tcp,self"` as words, as a shell would cut them; an error if a quote is left open.
pub(super) fn cut(text: &str) -> Result<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for letter in text.chars() {
        match (quote, letter) {
            (Some(open), _) if open == letter => quote = None,
            (None, '\'' | '"') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            _ => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err(Error::Usage(format!("{text:?} ends inside quotes")));
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    fn handover(hosts: &str) -> Handover {
        Handover {
            launcher: Launcher::Mpi("mpirun", Mpi::Open),
            size: 4,
            hosts: if hosts.is_empty() { Vec::new() } else { hosts::parse_list(hosts).unwrap() },
            variables: vec![("CORRO_LOG_LEVEL".into(), "debug".into())],
            exported: vec!["CORRO_TIMEOUT".into()],
            interfaces: Vec::new(),
            ssh: Vec::new(),
            shell: None,
            directory: None,
            timestamps: false,
            binding: None,
            words: cut("--mca btl 'tcp,self'").unwrap(),
            command: vec!["python".into(), "train.py".into()],
            remarks: Vec::new(),
        }
    }

    fn line(words: &[OsString]) -> String {
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_gets_its_own_words() {
        let open = line(&handover("a:2,b:2").of_mpirun(Mpi::Open).unwrap());
        assert!(open.starts_with("--allow-run-as-root --bind-to none --map-by slot -np 4 -H a:2,b:2 -x"), "{open}");
        assert!(open.ends_with("-x CORRO_LOG_LEVEL -x CORRO_TIMEOUT --mca btl tcp,self python train.py"), "{open}");
        let hydra = line(&handover("a:2,b:2").of_mpirun(Mpi::Hydra).unwrap());
        assert!(hydra.starts_with("-np 4 -ppn 2 -hosts a,b -genvall --mca"), "{hydra}");
        assert!(handover("a:2,b:1").of_mpirun(Mpi::Hydra).unwrap_err().to_string().contains("same number of slots"));
        let js = line(&Handover { words: Vec::new(), ..handover("") }.of_jsrun());
        assert!(js.starts_with("--nrs 4 --tasks_per_rs=1 --cpu_per_rs=1 --gpu_per_rs=1"), "{js}");
    }

    #[test]
    fn flags_that_mpirun_has_too_become_its_own() {
        let given = Handover {
            interfaces: vec!["eth0".into()],
            ssh: vec!["-p".into(), "12".into()],
            directory: Some("out".into()),
            timestamps: true,
            binding: Some(cut("--bind-to core").unwrap()),
            ..handover("a:2")
        };
        let (four, five) = (line(&given.of_mpirun(Mpi::Open).unwrap()), line(&given.of_mpirun(Mpi::Prrte).unwrap()));
        for words in
            ["--mca btl_tcp_if_include eth0", "--mca plm_rsh_args -p 12", "--timestamp-output", "--bind-to core -np"]
        {
            assert!(four.contains(words) && five.contains(words), "{four} {five}");
        }
        // Twice is an error to Open MPI.
        assert!(!four.contains("--bind-to none"), "{four}");
        assert!(four.contains("--output-filename out") && five.contains("--output-directory out"), "{four} {five}");
        let hydra = line(&given.of_mpirun(Mpi::Hydra).unwrap());
        assert!(hydra.contains("-iface eth0 --bind-to core"), "{hydra}");
        let two = Handover { interfaces: vec!["a".into(), "b".into()], ..given };
        assert!(two.of_mpirun(Mpi::Hydra).unwrap_err().to_string().contains("--network-interfaces"));
        let shell = Handover { shell: Some("kubexec.sh".into()), ..two };
        let words = line(&shell.of_mpirun(Mpi::Open).unwrap());
        assert!(words.contains("--mca plm_rsh_agent kubexec.sh") && !words.contains("plm_rsh_args"), "{words}");
    }

    #[test]
    fn what_is_exported_is_not_spelt_out() {
        let all = handover("a:4");
        let shown = all.shown(&all.of_mpirun(Mpi::Open).unwrap());
        assert!(shown.contains("-x CORRO_LOG_LEVEL -x ... --mca") && !shown.contains("CORRO_TIMEOUT"), "{shown}");
    }

    #[test]
    fn words_are_cut_as_a_shell_does() {
        assert_eq!(cut(" a  'b c' d\"e f\"g '' ").unwrap(), ["a", "b c", "de fg", ""]);
        assert!(cut("'a").is_err());
    }
}
