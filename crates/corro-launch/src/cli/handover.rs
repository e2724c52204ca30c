//! Jobs that another launcher starts: `corro run --mpi` becomes `mpirun`, `--jsrun` becomes LSF's `jsrun`, as Horovod's
//! launcher does. Ranks then meet by the variables of that launcher, and find their places through it.
//!
//! Pure but for [`asked`], which looks for the programs, and [`hand_over`], which becomes one.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;

use clap::ArgMatches;
use corro_core::{Error, Result, config};

use crate::hosts::Host;
use crate::job::Job;

/// Whose `mpirun` it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mpi {
    /// Open MPI, and IBM's Spectrum MPI, which comes of it.
    Open,
    /// MPICH and its kin: Intel's, Cray's. Their launcher is Hydra.
    Hydra,
}

/// Another launcher, which is installed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Launcher {
    /// MPI's, by this name.
    Mpi(&'static str, Mpi),
    /// LSF's on IBM's machines.
    Jsrun,
}

/// Which one the user asks for. One that is not here is remarked on: Corro's own launcher does without.
pub(super) fn asked(
    matches: &ArgMatches,
    controller: Option<&str>,
    elastic: bool,
    remarks: &mut Vec<String>,
) -> Result<Option<Launcher>> {
    let jsrun = matches.get_flag("jsrun");
    let mpi = matches.get_flag("mpi") || (controller == Some("mpi") && !matches.get_flag("gloo") && !jsrun);
    if !mpi && !jsrun {
        return Ok(None);
    }
    if elastic {
        remarks.push("--mpi and --jsrun have no effect on elastic jobs: MPI can't lose a process and go on".into());
        return Ok(None);
    }
    if jsrun {
        if said_by("jsrun").is_some() {
            return Ok(Some(Launcher::Jsrun));
        }
        remarks.push("--jsrun: there is no jsrun in PATH, so corro starts the ranks itself".into());
        return Ok(None);
    }
    let mut unknown = None;
    for program in ["mpirun", "mpiexec"] {
        let Some(said) = said_by(program) else { continue };
        match whose(&said) {
            Some(mpi) => return Ok(Some(Launcher::Mpi(program, mpi))),
            None => unknown = unknown.or_else(|| said.lines().next().map(str::to_owned)),
        }
    }
    if let Some(line) = unknown {
        return Err(Error::Usage(format!(
            "mpirun says {line:?}, which is none of Open MPI, Spectrum MPI, MPICH and Intel MPI: start the ranks by it \
             yourself (`mpirun ... python train.py`)"
        )));
    }
    remarks.push(
        "--mpi: there is no mpirun in PATH (your site may have a module for it), so corro starts the ranks itself, which needs no \
         MPI"
            .into(),
    );
    Ok(None)
}

/// What a launcher says of itself, if it is here.
fn said_by(program: &str) -> Option<String> {
    let out = Command::new(program).arg("--version").output().ok()?;
    Some(String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
}

/// What it is to start.
#[derive(Clone, Debug)]
pub(super) struct Handover {
    pub(super) launcher: Launcher,
    pub(super) size: usize,
    /// Where; nothing: here, or where a batch system says.
    pub(super) hosts: Vec<Host>,
    /// Variables for the ranks, on top of this process's.
    pub(super) variables: Vec<(String, String)>,
    /// `--mpi-args`, `--binding-args`: words for the launcher.
    pub(super) words: Vec<String>,
    pub(super) command: Vec<OsString>,
}

/// What `mpirun --version` says.
pub(super) fn whose(version: &str) -> Option<Mpi> {
    let has = |words: &[&str]| words.iter().any(|word| version.contains(word));
    if has(&["Open MPI", "OpenRTE", "PRRTE", "Spectrum MPI"]) {
        Some(Mpi::Open)
    } else if has(&["HYDRA", "Intel(R) MPI", "MPICH"]) {
        Some(Mpi::Hydra)
    } else {
        None
    }
}

impl Handover {
    /// `job` by another launcher, on these hosts. In an allocation it asks the batch system itself.
    pub(super) fn new(matches: &ArgMatches, launcher: Launcher, hosts: Vec<Host>, job: &Job) -> Result<Self> {
        let mut words = Vec::new();
        for flag in ["binding-args", "mpi-args"] {
            if let Some(text) = matches.get_one::<String>(flag) {
                words.extend(cut(text)?);
            }
        }
        let mut variables = job.variables.clone();
        if launcher != Launcher::Jsrun && config::CPU_OPERATIONS.value().is_none() {
            variables.push((config::CPU_OPERATIONS.name.into(), "mpi".into()));
        }
        Ok(Self { launcher, size: job.size(), hosts, variables, words, command: job.command.clone() })
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
            Mpi::Open => {
                // Ranks that are bound to one core each can't use the threads of their libraries.
                add(&["--allow-run-as-root", "--bind-to", "none", "--map-by", "slot", "-np", &size]);
                match self.hosts.as_slice() {
                    [] => add(&["--oversubscribe"]),
                    hosts => add(&["-H", &list(hosts)]),
                }
                for (name, _) in &self.variables {
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
                let names: Vec<&str> = self.variables.iter().map(|(name, _)| name.as_str()).collect();
                if !names.is_empty() {
                    add(&["-genvlist", &names.join(",")]);
                }
            }
        }
        Ok(self.complete(words))
    }

    /// The words of `jsrun`: a resource set a rank.
    fn of_jsrun(&self) -> Vec<OsString> {
        let mut words = vec!["--nrs".to_owned(), self.size.to_string(), "--tasks_per_rs=1".into()];
        if self.words.is_empty() {
            words.extend(["--cpu_per_rs=1".into(), "--gpu_per_rs=1".into(), "--bind=none".into()]);
        }
        self.complete(words)
    }

    fn complete(&self, mut words: Vec<String>) -> Vec<OsString> {
        words.extend(self.words.iter().cloned());
        words.into_iter().map(OsString::from).chain(self.command.iter().cloned()).collect()
    }
}

/// Becomes the other launcher. Gives back only why not.
pub(super) fn hand_over(handover: &Handover, say: impl Fn(&str)) -> Error {
    let (program, words) = match handover.launcher {
        Launcher::Jsrun => ("jsrun", Ok(handover.of_jsrun())),
        Launcher::Mpi(program, mpi) => (program, handover.of_mpirun(mpi)),
    };
    let words = match words {
        Ok(words) => words,
        Err(error) => return error,
    };
    let shown: Vec<String> = words.iter().map(|word| word.display().to_string()).collect();
    say(&format!("runs {program} {}", shown.join(" ")));
    let failed = Command::new(program).args(words).envs(handover.variables.iter().cloned()).exec();
    Error::io(format!("running {program}"), failed)
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
            words: cut("--mca btl 'tcp,self'").unwrap(),
            command: vec!["python".into(), "train.py".into()],
        }
    }

    fn line(words: &[OsString]) -> String {
        words.iter().map(|w| w.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    /// The first lines of `mpirun --version`.
    #[test]
    fn launchers_are_told_apart() {
        assert_eq!(whose("mpirun (Open MPI) 5.0.11\n\nReport bugs to"), Some(Mpi::Open));
        assert_eq!(whose("mpirun (IBM Spectrum MPI) 10.3.1.2rtm0"), Some(Mpi::Open));
        assert_eq!(whose("HYDRA build details:\n    Version:   5.0.2"), Some(Mpi::Hydra));
        assert_eq!(whose("Intel(R) MPI Library for Linux* OS, Version 2021.18"), Some(Mpi::Hydra));
        assert_eq!(whose("slurm 22.05"), None);
    }

    #[test]
    fn each_gets_its_own_words() {
        let open = line(&handover("a:2,b:2").of_mpirun(Mpi::Open).unwrap());
        assert!(open.contains("-np 4 -H a:2,b:2 -x CORRO_LOG_LEVEL --mca btl tcp,self python train.py"), "{open}");
        let hydra = line(&handover("a:2,b:2").of_mpirun(Mpi::Hydra).unwrap());
        assert!(hydra.starts_with("-np 4 -ppn 2 -hosts a,b -genvlist CORRO_LOG_LEVEL --mca"), "{hydra}");
        assert!(handover("a:2,b:1").of_mpirun(Mpi::Hydra).unwrap_err().to_string().contains("same number of slots"));
        let js = line(&Handover { words: Vec::new(), ..handover("") }.of_jsrun());
        assert!(js.starts_with("--nrs 4 --tasks_per_rs=1 --cpu_per_rs=1 --gpu_per_rs=1"), "{js}");
    }

    #[test]
    fn words_are_cut_as_a_shell_does() {
        assert_eq!(cut(" a  'b c' d\"e f\"g '' ").unwrap(), ["a", "b c", "de fg", ""]);
        assert!(cut("'a").is_err());
    }
}
