//! The command line: which of our programs is meant, and what its exit code is.
//!
//! | exit code | of `corro run` |
//! | --- | --- |
//! | 0 | every rank ended with 0 |
//! | 1 | a host could not be reached or was lost, or the launcher itself failed |
//! | 2 | the command line is wrong |
//! | 75 | an elastic job has ended at a commit because it was told to (SIGUSR1, a batch system): start it again to go on |
//! | 126, 127 | the command can't be run, or is not there |
//! | 128 + n | a rank, or the launcher, was ended by signal n |
//! | other | that of the first rank that failed |
//!
//! `horovodrun` gives 1 for every failure of a rank, as Horovod does.

mod check_build;
mod config_file;
mod doctor;
mod doctor_gpu;
mod elsewhere;
mod exit;
mod finding;
mod flags;
mod handover;
mod jobs;
mod knobs;
mod kubernetes;
mod kubernetes_run;
mod launchers;
mod program;
mod request;
mod script;
mod signals;
mod slurm_script;
mod timeline;
mod top;
mod watching;

use std::ffi::{OsStr, OsString};
use std::io::IsTerminal;
use std::path::Path;

use corro_core::{Error, Result, config};

use exit::{USAGE_ERROR, complain};
pub use program::program;
pub use request::Plan;

use watching::Watching;

use crate::event::Control;
use crate::failure::Failure;
use crate::job::Outcome;
use crate::join;
use crate::output::{Output, Style};
use crate::process_id::ProcessId;

/// The program: takes its words, the first of which is its own name, and gives its exit code. `agent` is the command that
/// starts an agent where that is not this very program with the word `agent` behind it (in Python, say).
pub fn main(words: &[OsString], agent: Option<&[OsString]>) -> u8 {
    let (name, rest) =
        words.split_first().map_or((OsStr::new("corro"), words), |(name, rest)| (name.as_os_str(), rest));
    let called = Path::new(name).file_name().and_then(OsStr::to_str).unwrap_or("corro");
    if called.starts_with("horovodrun") {
        return run("horovodrun", rest, agent);
    }
    let word = rest.first().and_then(|w| w.to_str()).unwrap_or_default();
    let rest = rest.get(1..).unwrap_or_default();
    match word {
        "run" => run("corro run", rest, agent),
        "horovodrun" => run("horovodrun", rest, agent),
        "ps" => jobs::ps(rest),
        "top" => jobs::top(rest),
        "stacks" => jobs::stacks(rest),
        "record" => jobs::record(rest),
        "page" => watching::page(rest),
        "report" => watching::report(rest),
        "timeline" => timeline::main(rest),
        "slurm" => slurm_script::main(rest),
        "k8s" => kubernetes::main(rest),
        "doctor" => doctor::main(rest, agent),
        "agent" => match agent_of(rest) {
            Ok(code) => code as u8,
            Err(e) => complain("corro agent", &e),
        },
        "server" => crate::servers::serve().map_or_else(|e| complain("corro server", &e), |()| 0),
        "completion" => program::completion(rest),
        "--version" | "-V" | "-v" => {
            println!("corro {}", env!("CARGO_PKG_VERSION"));
            0
        }
        "--help" | "-h" => program::help(&[]),
        "help" => program::help(rest),
        "" => {
            eprint!("{}", program().render_help());
            USAGE_ERROR
        }
        other => program::unknown(other),
    }
}

/// Serves a launcher as these words say, and gives the exit code.
fn agent_of(words: &[OsString]) -> Result<i32> {
    match join::JoinTarget::understand(words) {
        Some(target) => join::serve(&target?),
        None => crate::agent::serve(crate::agent::Home::understand(words)?),
    }
}

/// A run as asked for on a command line, for programs that start jobs themselves.
pub struct Asked {
    /// What to run.
    pub plan: Plan,
    /// Where the user sees what ranks write.
    pub output: Output,
    /// What the user should know before it starts.
    pub remarks: Vec<String>,
    watching: Watching,
}

impl Asked {
    /// Runs it to its end, watched as it was asked for; `ready` gets what ends it before. `name` is what speaks to the user.
    pub fn run(mut self, name: &str, ready: impl FnOnce(Control)) -> Result<Outcome> {
        let watched = self.watching.start(name, self.plan.job())?;
        let outcome = self.plan.run(self.output, ready);
        watched.end(&outcome);
        outcome
    }
}

/// Understands `words` (flags, and the command behind them) as `corro run` does. See [`main`] for `agent`.
pub fn understand(words: &[OsString], agent: Option<&[OsString]>) -> Result<Asked> {
    let wrong = |e: clap::Error| Error::Usage(e.to_string().trim_start_matches("error: ").trim_end().to_owned());
    let matches = flags::parse("corro run", words).map_err(wrong)?;
    let mut request = request::understand(&matches, agent, &reviewed()?)?;
    if request.handover.is_some() {
        request.remarks.push(
            "use_mpi has no effect on a function: its processes are started by Corro itself. To have mpirun start them, put the \
             function into a script, and use `corro run --mpi`"
                .into(),
        );
    }
    let output = output(&request)?;
    Ok(Asked { plan: request.plan, output, remarks: request.remarks, watching: request.watching })
}

/// What there is to say about the environment. A value that can't be read is an error: each rank would fail at it, after all of
/// them have started.
fn reviewed() -> Result<Vec<config::Remark>> {
    let (unreadable, remarks): (Vec<_>, Vec<_>) =
        config::review_own().into_iter().partition(|remark| remark.unreadable);
    if unreadable.is_empty() {
        return Ok(remarks);
    }
    let texts: Vec<String> = unreadable.into_iter().map(|remark| remark.text).collect();
    Err(Error::Usage(texts.join("\n")))
}

fn run(name: &'static str, words: &[OsString], agent: Option<&[OsString]>) -> u8 {
    let matches = match flags::parse(name, words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    if matches.get_flag("version") {
        println!("{} (corro {})", check_build::HOROVOD, env!("CARGO_PKG_VERSION"));
        return 0;
    }
    if matches.get_flag("check-build") {
        print!("{}", check_build::table());
        return 0;
    }
    reviewed()
        .and_then(|remarks| request::understand(&matches, agent, &remarks))
        .and_then(|request| start(name, request))
        .unwrap_or_else(|e| complain(name, &e))
}

fn output(request: &request::Request) -> Result<Output> {
    let (stdout, stderr) = (std::io::stdout(), std::io::stderr());
    let colour = match request.color.as_str() {
        "always" => true,
        "never" => false,
        _ => stdout.is_terminal() && config::foreign("NO_COLOR").is_none(),
    };
    let style = Style {
        timestamps: request.timestamps,
        bare: request.bare,
        only: request.only.clone(),
        terminal: request.plan.debugged().map(ProcessId::of_rank),
        colour,
        same_place: is_same_place(&stdout, &stderr),
        directory: request.directory.clone(),
    };
    Output::new(style, request.plan.size(), [Box::new(stdout), Box::new(stderr)])
}

fn start(name: &str, mut request: request::Request) -> Result<u8> {
    for remark in &request.remarks {
        exit::tell(&format!("{name}: {remark}"));
    }
    if let Some(handover) = &request.handover {
        return Err(handover::hand_over(handover, |text| exit::tell(&format!("{name}: {text}"))));
    }
    let output = output(&request)?;
    corro_log::init_with(request.log(), "launcher");
    let signals = signals::block()?;
    let watching = request.watching.start(name, request.plan.job())?;
    let ready = |control| signals::pass_on(signals, control);
    let outcome = request.plan.run(output, ready);
    watching.end(&outcome);
    let outcome = outcome?;
    let horovod = name == "horovodrun";
    Ok(match &outcome.failure {
        None => 0,
        Some(failure) => {
            exit::tell(&epitaph(name, failure, &outcome.last_lines));
            if horovod && !matches!(failure, Failure::Interrupted { .. } | Failure::Early { .. }) {
                1
            } else {
                exit_code(failure)
            }
        }
    })
}

fn exit_code(failure: &Failure) -> u8 {
    // What a shell would make of it; never 0 for a failure.
    u8::try_from(failure.code() & 0xff).ok().filter(|c| *c != 0).unwrap_or(1)
}

/// What is shown last.
fn epitaph(name: &str, failure: &Failure, last_lines: &[String]) -> String {
    let mut lines = Vec::new();
    if let Failure::Rank { rank, .. } | Failure::Stuck { rank, .. } = failure {
        if !last_lines.is_empty() {
            lines.push(format!("{name}: the last that rank {rank} wrote to stderr:"));
            lines.extend(last_lines.iter().map(|line| format!("    {line}")));
        }
        if name == "horovodrun" {
            lines.push(format!("Process {rank} exit with status code {}.", failure.code()));
            lines.push(format!("Terminating remaining workers after failure of Process {rank}."));
        }
    }
    if let Failure::Elastic { worker: Some(worker), .. } = failure
        && !last_lines.is_empty()
    {
        lines.push(format!("{name}: the last that worker {worker} wrote to stderr:"));
        lines.extend(last_lines.iter().map(|line| format!("    {line}")));
    }
    lines.push(format!("{name}: {failure}"));
    lines.join("\n")
}

/// Whether both end up in one terminal or file.
fn is_same_place(stdout: &std::io::Stdout, stderr: &std::io::Stderr) -> bool {
    match (rustix::fs::fstat(stdout), rustix::fs::fstat(stderr)) {
        (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
        _ => false,
    }
}
