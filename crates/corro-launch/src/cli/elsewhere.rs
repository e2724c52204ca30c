//! Which flags of `corro run` do something where another launcher starts the ranks: `mpirun` or `jsrun`.
//!
//! Pure. One table has every flag, so that none is dropped without a word: a test compares it with the command.

use clap::ArgMatches;
use clap::parser::ValueSource;

use super::launchers::{Launcher, Mpi};

/// Launchers of one kind, as far as flags go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kin {
    Open,
    Hydra,
    Jsrun,
}

impl Kin {
    const ALL: &[Self] = &[Self::Open, Self::Hydra, Self::Jsrun];
    const MPI: &[Self] = &[Self::Open, Self::Hydra];
    const OPEN: &[Self] = &[Self::Open];
    const NONE: &[Self] = &[];

    fn of(launcher: Launcher) -> Self {
        match launcher {
            Launcher::Mpi(_, Mpi::Open | Mpi::Prrte) => Self::Open,
            Launcher::Mpi(_, Mpi::Hydra) => Self::Hydra,
            Launcher::Jsrun => Self::Jsrun,
        }
    }
}

/// Every flag but the settings of the ranks (those are variables, which all ranks get), and whose ranks it reaches.
static FLAGS: &[(&str, &[Kin])] = &[
    ("num-proc", Kin::ALL),
    ("hosts", Kin::MPI),
    ("hostfile", Kin::MPI),
    ("start-timeout", Kin::NONE),
    ("output-filename", Kin::OPEN),
    ("ranks", Kin::NONE),
    // They have no prefix of ours there.
    ("no-prefix", Kin::ALL),
    ("debug", Kin::NONE),
    ("prefix-output-with-timestamp", Kin::OPEN),
    ("color", Kin::NONE),
    ("grace-seconds", Kin::NONE),
    ("config-file", Kin::ALL),
    // What is run is told in any case.
    ("verbose", Kin::ALL),
    ("check-build", Kin::ALL),
    ("version", Kin::ALL),
    // Has no effect anywhere, and a word of its own about that.
    ("disable-cache", Kin::ALL),
    // These are refused.
    ("servers", Kin::ALL),
    ("server-hosts", Kin::ALL),
    ("page", Kin::NONE),
    ("watch", Kin::NONE),
    ("record", Kin::NONE),
    ("report", Kin::NONE),
    ("logdir", Kin::NONE),
    ("network-interfaces", Kin::ALL),
    ("network-interface", Kin::ALL),
    ("rendezvous-port", Kin::ALL),
    ("tls", Kin::ALL),
    ("tcp", Kin::ALL),
    ("ssh-port", Kin::MPI),
    ("ssh-identity-file", Kin::MPI),
    ("ssh-host-keys", Kin::MPI),
    ("remote-corro", Kin::NONE),
    ("remote-shell", Kin::OPEN),
    ("join-port", Kin::NONE),
    ("host-timeout", Kin::NONE),
    // With these the job is elastic, and Corro's own launcher starts it.
    ("host-discovery-script", Kin::ALL),
    ("min-num-proc", Kin::ALL),
    ("max-num-proc", Kin::ALL),
    ("spares", Kin::ALL),
    // These have a word of their own unless the job is elastic.
    ("slots-per-host", Kin::ALL),
    ("elastic-timeout", Kin::ALL),
    ("reset-limit", Kin::ALL),
    ("blacklist-cooldown-range", Kin::ALL),
    ("gloo", Kin::ALL),
    ("mpi", Kin::ALL),
    ("jsrun", Kin::ALL),
    ("mpi-args", Kin::ALL),
    ("binding-args", Kin::ALL),
    ("command", Kin::ALL),
];

/// One sentence that names the flags which were given and do nothing there.
pub(super) fn remark(matches: &ArgMatches, launcher: Launcher) -> Option<String> {
    let kin = Kin::of(launcher);
    let given = |flag: &str| matches.value_source(flag) == Some(ValueSource::CommandLine);
    let lost: Vec<String> = FLAGS
        .iter()
        .filter(|(flag, works)| !works.contains(&kin) && given(flag))
        .map(|(flag, _)| format!("--{flag}"))
        .collect();
    let names = match lost.split_last()? {
        (only, []) => format!("{only} has"),
        (end, rest) => format!("{} and {end} have", rest.join(", ")),
    };
    Some(format!("{names} no effect where {} starts the ranks, and not corro", launcher.program()))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::super::flags;
    use super::super::knobs::KNOBS;
    use super::*;

    fn said(line: &str, launcher: Launcher) -> String {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        remark(&flags::parse("corro run", &words).unwrap(), launcher).unwrap_or_default()
    }

    /// A flag that is missing here would be dropped silently.
    #[test]
    fn every_flag_of_the_command_is_in_the_table() {
        let is_setting = |id: &str| {
            let known = |flag: &str| id == flag || id.strip_prefix("no-") == Some(flag);
            KNOBS.iter().any(|knob| known(knob.flag)) || id == "log-without-timestamp"
        };
        let mut have: Vec<String> =
            flags::command("corro run").get_arguments().map(|arg| arg.get_id().to_string()).collect();
        have.retain(|id| !is_setting(id));
        let mut listed: Vec<String> = FLAGS.iter().map(|(flag, _)| (*flag).to_owned()).collect();
        have.sort();
        listed.sort();
        assert_eq!(have, listed);
    }

    #[test]
    fn what_is_lost_is_named_and_nothing_else() {
        let open = Launcher::Mpi("mpirun", Mpi::Open);
        let all = "--tls --network-interfaces lo --output-filename d --ranks 0 --no-prefix --page --record f --report \
                   --debug 1 -p 22 --rendezvous-port 1 --grace-seconds 1 --start-timeout 9 --log-level debug \
                   --prefix-output-with-timestamp -np 2 x";
        assert_eq!(
            said(all, open),
            "--start-timeout, --ranks, --debug, --grace-seconds, --page, --record and --report have no effect where \
             mpirun starts the ranks, and not corro"
        );
        assert_eq!(said("-np 2 -H a:2 --tls --fusion-threshold-mb 3 x --ranks 0", open), "");
        let hydra = said("-np 2 --output-filename d x", Launcher::Mpi("mpiexec", Mpi::Hydra));
        assert_eq!(hydra, "--output-filename has no effect where mpiexec starts the ranks, and not corro");
        assert!(said("-np 2 -H a:2 x", Launcher::Jsrun).starts_with("--hosts has no effect where jsrun"));
    }
}
