//! `corro` as a whole: its commands, their help, and completion for shells.
//!
//! The command line itself is read elsewhere (`flags` for `run`, whose words clap alone cannot read); this tree is what is
//! shown of it: in help, in completions, in the man pages (`make gen`).

use std::ffi::OsString;

use clap::{Arg, Command, ValueHint};
use clap_complete::Shell;

use super::exit::{self, USAGE_ERROR};
use super::knobs::LEVELS;
use super::{doctor, flags, jobs, kubernetes, slurm_script, timeline, watching};

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];
/// What there is help for.
const COMMANDS: [&str; 12] =
    ["run", "ps", "top", "stacks", "record", "page", "report", "timeline", "doctor", "slurm", "k8s", "completion"];

/// The commands and their flags.
pub fn program() -> Command {
    let file = |arg: Arg| arg.value_hint(ValueHint::FilePath);
    // Its usage names the whole program, as in its own help.
    let mut run = flags::command("corro run").name("run");
    for name in ["hostfile", "config-file", "host-discovery-script", "ssh-identity-file", "record", "report"] {
        run = run.mut_arg(name, file);
    }
    // The help says them already.
    run = run.mut_arg("log-level", |arg| arg.value_parser(LEVELS).ignore_case(true).hide_possible_values(true));
    let command = |arg: Arg| {
        arg.last(false)
            .trailing_var_arg(true)
            .hide(false)
            .value_hint(ValueHint::CommandWithArguments)
            .help("What to run")
    };
    Command::new("corro")
        .about("Data-parallel training on several processes, here and on other hosts")
        .version(env!("CARGO_PKG_VERSION"))
        .disable_help_subcommand(true)
        .subcommand(run.mut_arg("command", command))
        .subcommands(jobs::commands())
        .subcommand(watching::page_command().name("page").mut_arg("file", file))
        .subcommand(watching::report_command().name("report").mut_args(|arg| arg.value_hint(ValueHint::FilePath)))
        .subcommand(timeline::command().name("timeline"))
        .subcommand(doctor::command().name("doctor").mut_arg("hostfile", file).mut_arg("ssh-identity-file", file))
        .subcommand(slurm_script::command().name("slurm"))
        .subcommand(kubernetes::command().name("k8s"))
        .subcommand(completion_command().name("completion"))
        .subcommand(
            Command::new("help").about("Shows the flags of a command").arg(Arg::new("command").value_parser(COMMANDS)),
        )
        .after_help("`corro help run` says more. As `horovodrun`, this program takes Horovod's flags.")
}

fn completion_command() -> Command {
    Command::new("corro completion")
        .about("Prints a script that completes commands and flags in your shell")
        .disable_version_flag(true)
        .arg(Arg::new("shell").required(true).value_parser(SHELLS))
        .after_help(
            "bash: corro completion bash > ~/.local/share/bash-completion/completions/corro\n\
             zsh:  corro completion zsh > ~/.zfunc/_corro   (with `fpath+=~/.zfunc` before compinit)\n\
             fish: corro completion fish > ~/.config/fish/completions/corro.fish",
        )
}

/// `corro help [COMMAND]`.
pub(super) fn help(words: &[OsString]) -> u8 {
    let mut command = match words.first().and_then(|w| w.to_str()) {
        None => program(),
        Some("run") => flags::command("corro run"),
        Some(name @ ("ps" | "top" | "stacks" | "record")) => match jobs::command(name) {
            Some(command) => command,
            None => return unknown(name),
        },
        Some("page") => watching::page_command(),
        Some("report") => watching::report_command(),
        Some("timeline") => timeline::command(),
        Some("doctor") => doctor::command(),
        Some("slurm") => slurm_script::command(),
        Some("k8s") => kubernetes::command(),
        Some("completion") => completion_command(),
        Some(other) => return unknown(other),
    };
    print!("{}", command.render_help());
    0
}

/// `corro completion SHELL`.
pub(super) fn completion(words: &[OsString]) -> u8 {
    let matches = match completion_command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let shell = match matches.get_one::<String>("shell").map(String::as_str) {
        Some("zsh") => Shell::Zsh,
        Some("fish") => Shell::Fish,
        _ => Shell::Bash,
    };
    print!("{}", script(shell));
    0
}

fn script(shell: Shell) -> String {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut program(), "corro", &mut script);
    let mut script = String::from_utf8_lossy(&script).into_owned();
    if shell == Shell::Fish {
        // clap knows nothing but files where fish is to complete a word without dashes.
        let line = |(command, words): (&str, &[&str])| {
            format!("complete -c corro -n \"__fish_corro_using_subcommand {command}\" -f -a \"{}\"\n", words.join(" "))
        };
        script.extend([("completion", SHELLS.as_slice()), ("help", COMMANDS.as_slice())].map(line));
    }
    script
}

/// What is no command of ours.
pub(super) fn unknown(word: &str) -> u8 {
    eprintln!("corro: {word:?} is not a command; known: {}, help", COMMANDS.join(", "));
    if word.starts_with('-') || std::path::Path::new(word).is_file() {
        eprintln!("corro: to start a job, write `corro run`, as in `corro run -np 2 train.py`");
    }
    USAGE_ERROR
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tree_is_consistent() {
        program().debug_assert();
    }

    #[test]
    fn every_shell_gets_flags_and_commands() {
        for (name, shell) in [("bash", Shell::Bash), ("zsh", Shell::Zsh), ("fish", Shell::Fish)] {
            let script = script(shell);
            for word in ["doctor", "hostfile", "num-proc", "completion"] {
                assert!(script.contains(word), "{word} in {name}");
            }
            assert!(SHELLS.contains(&name));
        }
    }
}
