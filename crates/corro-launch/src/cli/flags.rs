//! The command line of `corro run` and `horovodrun`, word for word as Horovod's users type it.
//!
//! Owns names and shapes of flags; what they mean together is `request`'s business.

use std::ffi::{OsStr, OsString};

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::knobs::{Given, KNOBS, Kind};

/// Flags of several letters behind one dash, and what they stand for.
const SINGLE_DASH: &[(&str, &str)] = &[
    ("-np", "--num-proc"),
    ("-n", "--num-proc"),
    ("-cb", "--check-build"),
    ("-hostfile", "--hostfile"),
    ("-prefix-timestamp", "--prefix-output-with-timestamp"),
];

fn switch(name: &'static str, help: &'static str) -> Arg {
    Arg::new(name).long(name).action(ArgAction::SetTrue).help(help)
}

fn value(name: &'static str, shape: &'static str, help: &'static str) -> Arg {
    let number = ["N", "S"].contains(&shape);
    // A number below zero is told what is wrong with it, not taken for a flag.
    Arg::new(name).long(name).value_name(shape).action(ArgAction::Set).help(help).allow_negative_numbers(number)
}

/// Reads a command line; `name` is what the user called us.
pub(super) fn parse(name: &'static str, words: &[OsString]) -> Result<ArgMatches, clap::Error> {
    let mut command = command(name);
    command.build();
    let words = normalise(&command, words);
    command.no_binary_name(true).try_get_matches_from(words)
}

/// Flags that Horovod has and that hardly matter here.
fn horovods_others() -> [Arg; 5] {
    [
        switch("gloo", "Start the ranks by Corro itself, which is the default"),
        switch("mpi", "Let mpirun start the ranks, and MPI move host tensors"),
        switch("jsrun", "Let LSF's jsrun start the ranks"),
        value("mpi-args", "ARGS", "Extra arguments for mpirun or jsrun, as one quoted string")
            .allow_hyphen_values(true),
        value("binding-args", "ARGS", "Binding arguments that replace Corro's defaults").allow_hyphen_values(true),
    ]
}

/// For jobs with parameter servers.
fn servers() -> [Arg; 2] {
    [
        value("servers", "N", "Also start N parameter servers, on the hosts of the ranks"),
        value("server-hosts", "H1,H2", "Extra hosts that run only parameter servers"),
    ]
}

/// The flags for those who watch a job.
fn watching() -> [Arg; 5] {
    let optional = |arg: Arg| arg.num_args(0..=1).default_missing_value("").require_equals(true);
    [
        optional(value(
            "page",
            "ADDRESS:PORT",
            "Serve a live page about the job, and print its link [a free port of 127.0.0.1]",
        )),
        switch("watch", "Let `corro top`, `corro stacks` and `corro ps` see the job; all flags of this group do so"),
        value("record", "FILE", "Record the job, for `corro page FILE` and `corro report FILE`"),
        optional(value(
            "report",
            "FILE.html",
            "Print at the end where the time went and what to do; also write it to FILE.html if that is given",
        )),
        value(
            "logdir",
            "DIR",
            "Write the ranks' output and training values into this folder (JSON lines, TensorBoard)",
        ),
    ]
}

/// How other hosts are reached.
fn remote() -> [Arg; 7] {
    [
        value("ssh-port", "N", "Port of ssh").short('p'),
        value("ssh-identity-file", "FILE", "Private key for ssh").short('i'),
        value(
            "ssh-host-keys",
            "RULE",
            "Which host keys to accept: known (as your ssh is set up), accept-new, or ignore (dangerous)",
        )
        .value_parser(["known", "accept-new", "ignore"]),
        value("remote-corro", "PATH", "The corro program on the other hosts [the path of this one]"),
        value("remote-shell", "PROGRAM", "Program to use instead of ssh; it is run as `PROGRAM HOST COMMAND`"),
        value(
            "join-port",
            "N",
            "Port where other hosts join by `corro agent --join=HOST:N`; all need the same CORRO_SECRET",
        ),
        value("host-timeout", "S", "Seconds of silence after which a host counts as lost [10]"),
    ]
}

/// For elastic jobs.
fn elastic() -> [Arg; 8] {
    [
        value("host-discovery-script", "FILE", "Script that prints the hosts that are available now"),
        value("min-num-proc", "N", "Least number of processes to go on with").alias("min-np"),
        value("max-num-proc", "N", "Largest number of processes to grow to").alias("max-np"),
        value("spares", "N", "Extra processes that wait, to replace lost ones at once [0]"),
        value("slots-per-host", "N", "Slots per host if the discovery script gives none"),
        value("elastic-timeout", "S", "Seconds to wait for enough hosts [600]"),
        value("reset-limit", "N", "How often the job may start over"),
        value("blacklist-cooldown-range", "MIN", "Seconds before a failed host is tried again")
            .value_names(["MIN", "MAX"])
            .num_args(2),
    ]
}

/// The flags of a run.
pub(super) fn command(name: &'static str) -> Command {
    let job = [
        value("num-proc", "N", "How many processes to start (also -np N)").short('n'),
        value("hosts", "H1:N,H2:N", "Hosts and how many processes each takes").short('H'),
        value("hostfile", "FILE", "A file with one `host slots=N` a line (also -hostfile FILE)"),
        value("start-timeout", "S", "Seconds within which all hosts must be reached [30]"),
        value("output-filename", "DIR", "Also write each rank's output to DIR/rank.N/stdout and stderr"),
        value("ranks", "LIST", "Show only what these ranks write, e.g. 0 or 0,2-3"),
        switch("no-prefix", "Show lines as they were written, without [rank]<stream>: in front"),
        value("debug", "RANK", "Give this terminal to one rank, for breakpoint(); nothing times out meanwhile")
            .allow_negative_numbers(true),
        switch("prefix-output-with-timestamp", "Begin each line of output with the time (also -prefix-timestamp)"),
        value("color", "WHEN", "Colour the prefixes: auto, always or never").value_parser(["auto", "always", "never"]),
        value("grace-seconds", "S", "Seconds that ranks get to end by themselves before they are killed [1.5]"),
        value("config-file", "FILE", "Settings in YAML"),
        switch("verbose", "Print what is being done"),
        switch("check-build", "Show what this installation can do, and exit (also -cb)"),
        switch("version", "Show the version, and exit").short('v'),
        switch("disable-cache", "No effect: nothing is cached between runs"),
    ];
    let network = [
        value("network-interfaces", "A,B", "Network interfaces to use between hosts"),
        value("network-interface", "A", "One network interface to use; may be given several times")
            .action(ArgAction::Append),
        value("rendezvous-port", "N", "Port of the rendezvous store [any free one]"),
        switch("tls", "Encrypt everything between hosts (TLS 1.3)"),
        switch("tcp", "Tells NCCL not to use InfiniBand; no effect on Corro itself, which uses TCP between hosts"),
    ];
    let mut command = Command::new(name)
        .about("Starts a job of several processes, here and on other hosts")
        .override_usage(format!("{name} -np N [-H host:slots,...] [flags] command [arguments]"))
        .after_help("A command that ends in .py is run by the Python beside this program.")
        .disable_version_flag(true)
        .infer_long_args(true)
        .args_override_self(true)
        .next_help_heading("Job")
        .args(job)
        .next_help_heading("Parameter servers")
        .args(servers())
        .next_help_heading("Watching")
        .args(watching())
        .next_help_heading("Network")
        .args(network)
        .next_help_heading("Other hosts")
        .args(remote())
        .next_help_heading("Elastic jobs")
        .args(elastic())
        .next_help_heading("Horovod's other flags")
        .args(horovods_others())
        .next_help_heading("Settings of the ranks")
        .group(clap::ArgGroup::new("where").args(["hosts", "hostfile", "host-discovery-script"]))
        .group(clap::ArgGroup::new("controller").args(["gloo", "mpi", "jsrun"]));
    for knob in KNOBS {
        command = command.args(knob_args(knob.flag, knob.kind, knob.help));
    }
    command.arg(Arg::new("command").num_args(0..).last(true).value_parser(clap::value_parser!(OsString)).hide(true))
}

fn knob_args(flag: &'static str, kind: Kind, help: &'static str) -> Vec<Arg> {
    let pair = |off: &'static str, off_help: &'static str| {
        vec![switch(flag, help).overrides_with(off), switch(off, off_help).overrides_with(flag)]
    };
    match kind {
        Kind::Switch(off_help) => {
            // Names must live as long as the program; there are a handful.
            pair(Box::leak(format!("no-{flag}").into_boxed_str()), off_help)
        }
        Kind::Inverted(off, off_help) => {
            let mut args = pair(off, off_help);
            if flag == "log-with-timestamp" {
                args[0] = args[0].clone().alias("no-log-hide-timestamp");
                args[1] = args[1].clone().alias("log-hide-timestamp");
            }
            args
        }
        Kind::Count | Kind::Counts | Kind::Mebibytes | Kind::Amount | Kind::Share | Kind::Text | Kind::Level => {
            vec![value(flag, "X", help).allow_hyphen_values(true)]
        }
    }
}

/// The settings among the flags that were given.
pub(super) fn settings(matches: &ArgMatches) -> Given {
    let mut given = Given::new();
    for knob in KNOBS {
        let off = match knob.kind {
            Kind::Switch(_) => format!("no-{}", knob.flag),
            Kind::Inverted(off, _) => off.to_owned(),
            _ => {
                if let Some(text) = matches.get_one::<String>(knob.flag) {
                    given.insert(knob.flag, text.clone());
                }
                continue;
            }
        };
        if matches.get_flag(knob.flag) {
            given.insert(knob.flag, "1".into());
        } else if matches.get_flag(&off) {
            given.insert(knob.flag, "0".into());
        }
    }
    given
}

/// Rewrites what clap can't read: flags of several letters behind one dash, and where the user's command begins. Words
/// of that command are never touched.
pub(super) fn normalise(command: &Command, words: &[OsString]) -> Vec<OsString> {
    let mut out = Vec::with_capacity(words.len() + 1);
    let mut rest = words.iter();
    while let Some(word) = rest.next() {
        let text = word.to_str().unwrap_or_default();
        if text == "--" || !text.starts_with('-') {
            out.push("--".into());
            out.extend((text != "--").then(|| word.clone()));
            out.extend(rest.cloned());
            return out;
        }
        let (name, inline) = match text.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (text, None),
        };
        let long = SINGLE_DASH.iter().find(|(short, _)| *short == name).map(|(_, long)| *long);
        match (long, inline) {
            (Some(long), Some(value)) => out.push(format!("{long}={value}").into()),
            (Some(long), None) => out.push(long.into()),
            (None, _) => out.push(word.clone()),
        }
        let values = if inline.is_some() { 0 } else { values_after(command, OsStr::new(long.unwrap_or(name))) };
        out.extend(rest.by_ref().take(values).cloned());
    }
    out
}

/// How many of the words after `flag` belong to it.
fn values_after(command: &Command, flag: &OsStr) -> usize {
    let Some(flag) = flag.to_str() else { return 0 };
    let takes = |arg: &Arg| match arg.get_action() {
        ArgAction::Set | ArgAction::Append => arg.get_num_args().map_or(1, |n| n.min_values()),
        _ => 0,
    };
    if let Some(long) = flag.strip_prefix("--") {
        let names = |arg: &Arg| {
            let aliases = arg.get_all_aliases().unwrap_or_default();
            arg.get_long().into_iter().chain(aliases).map(str::to_owned).collect::<Vec<_>>()
        };
        let exact = command.get_arguments().find(|a| names(a).iter().any(|n| n == long));
        let begun = || command.get_arguments().find(|a| names(a).iter().any(|n| n.starts_with(long)));
        return exact.or_else(begun).map_or(0, takes);
    }
    // `-p 22` takes the next word, `-p22` does not.
    let mut letters = flag.chars().skip(1);
    let (Some(letter), None) = (letters.next(), letters.next()) else { return 0 };
    command.get_arguments().find(|a| a.get_short() == Some(letter)).map_or(0, takes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ArgMatches, String> {
        let words: Vec<OsString> = line.split_whitespace().map(Into::into).collect();
        super::parse("horovodrun", &words).map_err(|e| e.to_string())
    }

    fn text(matches: &ArgMatches, flag: &str) -> String {
        matches.get_one::<String>(flag).cloned().unwrap_or_default()
    }

    fn words(matches: &ArgMatches) -> String {
        let all: Vec<&str> =
            matches.get_many::<OsString>("command").unwrap_or_default().filter_map(|w| w.to_str()).collect();
        all.join(" ")
    }

    #[test]
    fn the_words_horovods_users_type() {
        let m = parse("-np 16 -H server1:4,server2:4 -p 12 -i key python train.py -np 3 --verbose -- x").unwrap();
        assert_eq!((text(&m, "num-proc"), text(&m, "hosts")), ("16".into(), "server1:4,server2:4".into()));
        assert_eq!((text(&m, "ssh-port"), text(&m, "ssh-identity-file")), ("12".into(), "key".into()));
        assert_eq!(words(&m), "python train.py -np 3 --verbose -- x");
        assert!(!m.get_flag("verbose"));
        let m = parse("-np=2 -hostfile hosts -prefix-timestamp --min-np 2 --max-np 4 --slots 2 -- -odd").unwrap();
        assert_eq!((text(&m, "num-proc"), text(&m, "hostfile")), ("2".into(), "hosts".into()));
        assert_eq!((text(&m, "min-num-proc"), text(&m, "slots-per-host")), ("2".into(), "2".into()));
        assert!(m.get_flag("prefix-output-with-timestamp"));
        assert_eq!(words(&m), "-odd");
        for line in ["-n 3 x", "-n3 x", "-n=3 x", "-np=3 x", "--num-proc=3 x"] {
            let m = parse(line).unwrap();
            assert_eq!((text(&m, "num-proc"), words(&m)), ("3".into(), "x".into()), "{line}");
        }
        let m = parse("-cb").unwrap();
        assert!(m.get_flag("check-build"));
        let m = parse("--blacklist-cooldown-range 1 2 --mpi-args -x --network-interface a --network-interface b true")
            .unwrap();
        assert_eq!(text(&m, "mpi-args"), "-x");
        assert_eq!(m.get_many::<String>("network-interface").unwrap().count(), 2);
        assert_eq!(words(&m), "true");
    }

    #[test]
    fn settings_keep_their_three_states() {
        let m =
            parse("--no-stall-check --autotune --no-hierarchical-allreduce --log-hide-timestamp --cycle-time-ms 2 x")
                .unwrap();
        let got: Vec<String> = settings(&m).iter().map(|(k, v)| format!("{k}={v}")).collect();
        let want =
            ["autotune=1", "cycle-time-ms=2", "hierarchical-allreduce=0", "log-with-timestamp=0", "stall-check=0"];
        assert_eq!(got, want);
        assert_eq!(settings(&parse("--autotune --no-autotune x").unwrap())["autotune"], "0");
    }

    #[test]
    fn what_excludes_each_other_is_refused() {
        for line in ["-H a:1 -hostfile f x", "--gloo --mpi x", "--no-such-flag x", "--hosts"] {
            assert!(parse(line).is_err(), "{line}");
        }
    }

    #[test]
    fn every_flag_is_consistent() {
        command("corro run").debug_assert();
    }
}
