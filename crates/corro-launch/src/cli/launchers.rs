//! Other launchers that can start a job: which one the user asks for, and whose it is.
//!
//! Pure but for [`asked`], which looks for the programs.

use std::process::Command;

use clap::ArgMatches;
use corro_core::{Error, Result};

/// Whose `mpirun` it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mpi {
    /// Open MPI up to 4, and IBM's Spectrum MPI, which comes of it.
    Open,
    /// Open MPI from 5 on, whose launcher is PRRTE.
    Prrte,
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

impl Launcher {
    pub(super) fn program(self) -> &'static str {
        match self {
            Self::Mpi(program, _) => program,
            Self::Jsrun => "jsrun",
        }
    }
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

/// What `mpirun --version` says.
pub(super) fn whose(version: &str) -> Option<Mpi> {
    let has = |words: &[&str]| words.iter().any(|word| version.contains(word));
    // The release that comes behind this name; those from 5 on have another launcher, with other options for output.
    let release = version.split_once("(Open MPI) ").and_then(|(_, rest)| rest.split('.').next()?.parse().ok());
    if has(&["PRRTE"]) || release.is_some_and(|major: u32| major >= 5) {
        Some(Mpi::Prrte)
    } else if has(&["Open MPI", "OpenRTE", "Spectrum MPI"]) {
        Some(Mpi::Open)
    } else if has(&["HYDRA", "Intel(R) MPI", "MPICH"]) {
        Some(Mpi::Hydra)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first lines of `mpirun --version`.
    #[test]
    fn launchers_are_told_apart() {
        assert_eq!(whose("mpirun (Open MPI) 5.0.11\n\nReport bugs to"), Some(Mpi::Prrte));
        assert_eq!(whose("mpirun (Open MPI) 4.1.6\n\nReport bugs to"), Some(Mpi::Open));
        assert_eq!(whose("mpirun (IBM Spectrum MPI) 10.3.1.2rtm0"), Some(Mpi::Open));
        assert_eq!(whose("HYDRA build details:\n    Version:   5.0.2"), Some(Mpi::Hydra));
        assert_eq!(whose("Intel(R) MPI Library for Linux* OS, Version 2021.18"), Some(Mpi::Hydra));
        assert_eq!(whose("slurm 22.05"), None);
    }
}
