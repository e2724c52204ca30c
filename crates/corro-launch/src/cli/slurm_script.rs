//! `corro slurm script`: a batch file for Slurm, to be read, changed and given to `sbatch`.

use std::ffi::OsString;

use clap::{Arg, ArgAction, ArgMatches, Command};
use corro_core::{Error, Result};

use super::exit::{self, complain};

/// How long before its time is up an elastic job is told so, in seconds.
const NOTICE: u32 = 120;

pub(super) fn command() -> Command {
    let value = |name: &'static str, shape: &'static str, help: &'static str| {
        Arg::new(name).long(name).value_name(shape).action(ArgAction::Set).help(help)
    };
    let script = Command::new("script")
        .about("Prints a batch file for `sbatch`")
        .disable_version_flag(true)
        .args([
            value("nodes", "N", "Number of nodes").short('N').default_value("1"),
            value("ntasks-per-node", "N", "Number of ranks on each node [one for each GPU, else 1]"),
            value("gpus-per-node", "N", "Number of GPUs on each node"),
            value("time", "TIME", "Time limit, in sbatch's format").default_value("01:00:00"),
            value("partition", "NAME", "The partition"),
            value("job-name", "NAME", "The job's name").default_value("corro"),
            value(
                "min-np",
                "N",
                "Elastic job: goes on with as few as N ranks; when its time is up, it ends at a commit and is queued again",
            ),
        ])
        .arg(
            Arg::new("command")
                .num_args(1..)
                .required(true)
                .trailing_var_arg(true)
                .allow_hyphen_values(true)
                .help("What to run, e.g. `python train.py`"),
        );
    Command::new("corro slurm")
        .about("Makes batch files for Slurm")
        .disable_version_flag(true)
        .subcommand_required(true)
        .subcommand(script)
}

/// `corro slurm ...`.
pub(super) fn main(words: &[OsString]) -> u8 {
    let matches = match command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let Some(("script", matches)) = matches.subcommand() else { return exit::USAGE_ERROR };
    match script(matches) {
        Ok(text) => {
            print!("{text}");
            0
        }
        Err(e) => complain("corro slurm script", &e),
    }
}

fn script(matches: &ArgMatches) -> Result<String> {
    let text = |name: &str| matches.get_one::<String>(name).cloned();
    let number = |name: &str| -> Result<Option<usize>> {
        let parse = |text: String| match text.parse() {
            Ok(0) | Err(_) => Err(Error::Usage(format!("--{name} is {text:?}; it must be 1 or more"))),
            Ok(number) => Ok(number),
        };
        text(name).map(parse).transpose()
    };
    let plain = |name: &str| -> Result<Option<String>> {
        match text(name) {
            Some(word) if !word.bytes().all(|b| b.is_ascii_alphanumeric() || b"._:,@-".contains(&b)) => {
                Err(Error::Usage(format!(
                    "--{name} is {word:?}, which sbatch can't read: only letters, digits and . _ : , @ - are allowed"
                )))
            }
            word => Ok(word),
        }
    };
    let nodes = number("nodes")?.unwrap_or(1);
    let gpus = number("gpus-per-node")?;
    let ranks = number("ntasks-per-node")?.or(gpus).unwrap_or(1);
    let min = number("min-np")?;
    if min.is_some_and(|min| min > nodes * ranks) {
        return Err(Error::Usage(format!("--min-np is above the {} ranks of this job", nodes * ranks)));
    }
    let mut lines = vec!["#!/bin/bash".to_owned()];
    let mut option = |name: &str, value: String| lines.push(format!("#SBATCH --{name}={value}"));
    option("job-name", plain("job-name")?.unwrap_or_default());
    option("nodes", nodes.to_string());
    option("ntasks-per-node", ranks.to_string());
    if let Some(gpus) = gpus {
        option("gpus-per-node", gpus.to_string());
    }
    option("time", plain("time")?.unwrap_or_default());
    if let Some(partition) = plain("partition")? {
        option("partition", partition);
    }
    option("output", "%x-%j.out".to_owned());
    let words = matches.get_many::<String>("command").unwrap_or_default();
    let run: Vec<String> = words.map(|word| quoted(word)).collect();
    let run = run.join(" ");
    match min {
        None => lines.extend([String::new(), format!("exec corro run {run}")]),
        Some(min) => lines.extend(elastic(nodes * ranks, min, &run)),
    }
    Ok(lines.join("\n") + "\n")
}

/// What an elastic job needs besides: it outlives a node, hears that its time is up, and is queued again.
fn elastic(ranks: usize, min: usize, run: &str) -> Vec<String> {
    let text = format!(
        "#SBATCH --no-kill\n#SBATCH --requeue\n#SBATCH --open-mode=append\n#SBATCH --signal=B:USR1@{NOTICE}\n\n\
         # Slurm tells this shell {NOTICE} seconds before the time is up; corro run then ends the job at its next commit.\n\
         corro run -np {ranks} --min-np {min} {run} &\n\
         job=$!\n\
         trap 'kill -USR1 $job' USR1\n\
         trap 'kill -TERM $job' TERM\n\
         # A trap ends the first wait; the job is still there then.\n\
         while kill -0 $job 2>/dev/null; do wait $job; code=$?; done\n\
         # 75: it has ended early, and there is work left.\n\
         if [ \"$code\" = 75 ]; then scontrol requeue \"$SLURM_JOB_ID\"; fi\n\
         exit \"$code\""
    );
    text.lines().map(str::to_owned).collect()
}

/// A word that a shell reads as itself.
fn quoted(word: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"/._-+=:@%,".contains(&b);
    if !word.is_empty() && word.bytes().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(line: &str) -> Result<String> {
        let words = line.split_whitespace().map(|w| w.replace('~', " "));
        let matches = command().no_binary_name(true).try_get_matches_from(words).unwrap();
        script(matches.subcommand().unwrap().1)
    }

    #[test]
    fn a_plain_job_is_one_command() {
        let text = written("script -N 2 --gpus-per-node 4 --partition big python train.py --lr 0.1 it's~me").unwrap();
        assert!(text.starts_with("#!/bin/bash\n#SBATCH --job-name=corro\n#SBATCH --nodes=2\n"), "{text}");
        assert!(text.contains("#SBATCH --ntasks-per-node=4\n#SBATCH --gpus-per-node=4\n"), "{text}");
        assert!(text.ends_with("\nexec corro run python train.py --lr 0.1 'it'\\''s me'\n"), "{text}");
    }

    #[test]
    fn an_elastic_one_is_queued_again() {
        let text = written("script -N 2 --ntasks-per-node 2 --min-np 2 python train.py").unwrap();
        for part in
            ["--no-kill", "--signal=B:USR1@120", "corro run -np 4 --min-np 2 python train.py &", "scontrol requeue"]
        {
            assert!(text.contains(part), "{text}");
        }
        // No shell is needed to know whether it can be read.
        let read = std::process::Command::new("bash").args(["-n", "-c", &text]).output().unwrap();
        assert!(read.status.success(), "{read:?}");
    }

    #[test]
    fn what_sbatch_could_not_read_is_refused() {
        for line in ["script --nodes 0 x", "script --time 1h;rm x", "script --min-np 3 x", "script --partition a~b x"] {
            assert!(matches!(written(line), Err(Error::Usage(_))), "{line}");
        }
    }
}
