//! The commands about jobs of this user that run on this host: `corro ps`, `corro top`, `corro stacks`, `corro record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use corro_core::{Error, Result};
use corro_observe::{job_socket, recording};
use serde_json::Value;

use super::exit::{self, complain};
use super::top::{self, plain};

/// No lines of ranks' output.
const NO_LINES: &str = "lines=18446744073709551615";

fn job_argument() -> Arg {
    Arg::new("job")
        .value_name("JOB")
        .help("The job's number that `corro ps` shows (its launcher's process ID) [the only job]")
}

/// One of the commands.
pub(super) fn command(name: &str) -> Option<Command> {
    commands().into_iter().find(|command| command.get_name() == name)
}

/// The commands.
pub(super) fn commands() -> [Command; 4] {
    let about = |name: &'static str, text: &'static str| Command::new(name).about(text).disable_version_flag(true);
    [
        about("ps", "Lists your jobs on this host that can be watched (`corro run --watch`, `--page`, ...)"),
        about("top", "Shows a running job in the terminal").arg(job_argument()),
        about("stacks", "Shows where in its code each thread of a running job's ranks is").arg(job_argument()),
        about(
            "record",
            "Writes a running job's recording, with its ranks' flight records, for `corro page` and `corro report`",
        )
        .arg(Arg::new("file").required(true).value_name("FILE").help("The recording to write"))
        .arg(job_argument()),
    ]
}

/// Reads the words of a command and carries it out.
fn with(name: &'static str, words: &[OsString], act: impl FnOnce(&ArgMatches) -> Result<()>) -> u8 {
    let Some(command) = command(name) else { return exit::USAGE_ERROR };
    match command.no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => act(&matches).map_or_else(|e| complain(&format!("corro {name}"), &e), |()| 0),
        Err(e) => exit::show(&e),
    }
}

/// The job that is meant.
fn chosen(matches: &ArgMatches) -> Result<PathBuf> {
    let jobs = job_socket::jobs(&job_socket::folder()?);
    let numbers: Vec<String> = jobs.iter().map(|(number, _)| number.to_string()).collect();
    match (matches.get_one::<String>("job"), jobs.as_slice()) {
        (Some(wanted), _) => {
            let found = jobs.iter().find(|(number, _)| number.to_string() == *wanted).map(|(_, path)| path.clone());
            let known = if numbers.is_empty() { "none can".into() } else { format!("{} can", numbers.join(", ")) };
            found.ok_or_else(|| Error::Usage(format!("no job {wanted} of yours can be watched on this host; {known}")))
        }
        (None, [(_, only)]) => Ok(only.clone()),
        (None, []) => {
            Err(Error::Usage("no job of yours can be watched on this host: start one with `corro run --watch`".into()))
        }
        (None, _) => Err(Error::Usage(format!("which job? there are {}", numbers.join(", ")))),
    }
}

/// How a job stands.
fn view(socket: &Path) -> Result<Value> {
    let text = job_socket::ask(socket, &format!("/view?{NO_LINES}"))?;
    recording::parse(&text).map_err(Error::Malformed)
}

/// `corro ps`.
pub(super) fn ps(words: &[OsString]) -> u8 {
    with("ps", words, |_| {
        println!("{:>8}  {:>5}  {:>9}  {:>9}  COMMAND", "JOB", "RANKS", "TIME", "STEP");
        for (number, path) in job_socket::jobs(&job_socket::folder()?) {
            // It may end at this moment.
            if let Ok(view) = view(&path) {
                println!("{}", line(number, &view));
            }
        }
        Ok(())
    })
}

fn line(number: u32, view: &Value) -> String {
    let ranks = view["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let running = ranks.iter().filter(|rank| rank["state"] == "running").count();
    let step = ranks.iter().filter_map(|rank| rank["step"].as_u64()).max().unwrap_or(0);
    let time = top::clock(view["now"].as_u64().unwrap_or(0));
    format!("{number:>8}  {running:>5}  {time:>9}  {step:>9}  {}", plain(view["command"].as_str().unwrap_or_default()))
}

/// `corro stacks`.
pub(super) fn stacks(words: &[OsString]) -> u8 {
    with("stacks", words, |matches| {
        let text = job_socket::ask(&chosen(matches)?, "/stacks")?;
        text.lines().for_each(|line| println!("{}", plain(line)));
        Ok(())
    })
}

/// `corro record`.
pub(super) fn record(words: &[OsString]) -> u8 {
    with("record", words, |matches| {
        let file = matches.get_one::<String>("file").map(PathBuf::from).unwrap_or_default();
        let text = job_socket::ask(&chosen(matches)?, "/record")?;
        recording::parse(&text).map_err(Error::Malformed)?;
        recording::write(&file, &text)
    })
}

/// `corro top`.
pub(super) fn top(words: &[OsString]) -> u8 {
    with("top", words, |matches| {
        let socket = chosen(matches)?;
        top::show(|| view(&socket))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_one_line() {
        let view = json!({"now": 3_725_000, "command": "train.py\u{1b}[2J",
                          "ranks": [{"state": "running", "step": 7}, {"state": "failed", "step": 9}]});
        assert_eq!(line(42, &view), "      42      1    1:02:05          9  train.py [2J");
        assert_eq!(line(42, &json!({})), "      42      0    0:00:00          0  ");
    }
}
