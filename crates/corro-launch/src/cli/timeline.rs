//! `corro timeline`: what the files of `CORRO_TRACE` and `HOROVOD_TIMELINE` say, as text, as one file, as a page.

use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{Arg, ArgMatches, Command};
use corro_core::{Error, Result};
use corro_observe::timeline::{self, Trace};
use corro_observe::trace;

use super::exit::{self, complain, tell};

/// `corro timeline`.
pub(super) fn command() -> Command {
    let files =
        || {
            Arg::new("file").required(true).num_args(1..).value_name("FILE").help(
                "A timeline or trace file, or the value that CORRO_TRACE had: it stands for the files of all ranks",
            )
        };
    let output = |text: &'static str| Arg::new("output").long("output").short('o').value_name("FILE").help(text);
    Command::new("corro timeline")
        .about("Reads a job's timeline or trace: shows it, or merges its files")
        .disable_version_flag(true)
        .disable_help_subcommand(true)
        .subcommand_required(true)
        .arg_required_else_help(true)
        .subcommand(
            Command::new("summary")
                .about("Shows what took the time and which ranks were late, on one screen")
                .arg(files()),
        )
        .subcommand(
            Command::new("merge")
                .about("Merges all ranks' traces into one file")
                .arg(files())
                .arg(output("The file to write").required(true)),
        )
        .subcommand(
            Command::new("open")
                .about("Makes one HTML page for any browser; it needs no other files")
                .arg(files())
                .arg(output("The page to write [FILE.html]")),
        )
}

/// Carries it out.
pub(super) fn main(words: &[OsString]) -> u8 {
    let matches = match command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let done = match matches.subcommand() {
        Some(("summary", matches)) => summary(matches),
        Some(("merge", matches)) => merge(matches),
        Some(("open", matches)) => open(matches),
        _ => return exit::USAGE_ERROR,
    };
    done.map_or_else(|e| complain("corro timeline", &e), |()| 0)
}

fn summary(matches: &ArgMatches) -> Result<()> {
    print!("{}", timeline::summary(&read(&files(matches)?)?));
    Ok(())
}

fn open(matches: &ArgMatches) -> Result<()> {
    let asked = asked(matches);
    let first = asked.first().cloned().unwrap_or_default();
    let page = output(matches).unwrap_or_else(|| {
        let mut name = first.clone().into_os_string();
        name.push(".html");
        name.into()
    });
    let title = first.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let picture = timeline::picture(&read(&files(matches)?)?, &title);
    std::fs::write(&page, picture).map_err(|e| Error::io(format!("writing {}", page.display()), e))?;
    println!("{}", page.display());
    tell("corro timeline: open this file in a browser");
    Ok(())
}

fn merge(matches: &ArgMatches) -> Result<()> {
    let (files, path) = (files(matches)?, output(matches).unwrap_or_default());
    // A file that is read must not be written over.
    if files.contains(&path) {
        return Err(Error::Usage(format!("{} is one of the files to merge: write to another", path.display())));
    }
    let out = File::create(&path).map_err(|e| Error::io(format!("writing {}", path.display()), e))?;
    let merged = trace::merge(&files, out).map_err(|e| Error::io("merging traces", e))?;
    tell(&format!(
        "corro timeline: {} events of {} files in {}; clocks agree within {:.1} us",
        merged.events,
        files.len(),
        path.display(),
        merged.clock_error as f64 / 1000.0
    ));
    if merged.unreadable > 0 {
        tell(&format!("corro timeline: {} lines could not be read and are left out", merged.unreadable));
    }
    for path in &merged.unaligned {
        tell(&format!(
            "corro timeline: {} has no clock offset: its times may not fit those of the other files",
            path.display()
        ));
    }
    Ok(())
}

fn asked(matches: &ArgMatches) -> Vec<PathBuf> {
    matches.get_many::<String>("file").unwrap_or_default().map(PathBuf::from).collect()
}

fn output(matches: &ArgMatches) -> Option<PathBuf> {
    matches.get_one::<String>("output").map(PathBuf::from)
}

/// The files that are meant.
fn files(matches: &ArgMatches) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in asked(matches) {
        if path.is_file() {
            files.push(path);
            continue;
        }
        let shards = shards(&path);
        if shards.is_empty() {
            let text = format!("there is no file {0}, and none of a rank beside it ({0}.rank0.json)", path.display());
            return Err(Error::Usage(text));
        }
        files.extend(shards);
    }
    Ok(files)
}

/// The files of ranks beside a path, by rank.
fn shards(path: &Path) -> Vec<PathBuf> {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return Vec::new() };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let rank = |path: &Path| {
        let rest = path.file_name()?.to_str()?.strip_prefix(name)?;
        rest.strip_prefix(".rank")?.strip_suffix(".json")?.parse::<u32>().ok()
    };
    let found = entries.filter_map(|entry| entry.ok().map(|entry| entry.path()));
    let mut shards: Vec<(u32, PathBuf)> = found.filter_map(|path| Some((rank(&path)?, path))).collect();
    shards.sort_unstable();
    shards.into_iter().map(|(_, path)| path).collect()
}

/// Reads one file, or several on one clock.
fn read(files: &[PathBuf]) -> Result<Trace> {
    let failed = |e: std::io::Error| Error::io("reading the trace", e);
    let trace = match files {
        [only] => {
            let file = File::open(only).map_err(|e| Error::io(format!("reading {}", only.display()), e))?;
            Trace::read(BufReader::new(file)).map_err(failed)?
        }
        several => {
            let mut merged = Merged::default();
            trace::merge(several, &mut merged).map_err(failed)?;
            Trace::read(merged.0.as_slice()).map_err(failed)?
        }
    };
    if trace.spans.is_empty() && trace.unreadable > 0 {
        let names: Vec<_> = files.iter().map(|file| file.display().to_string()).collect();
        return Err(Error::Usage(format!("{} is not a timeline or trace", names.join(", "))));
    }
    Ok(trace)
}

/// A merged trace on its way to be read. Bounded: a trace of gigabytes is merged into a file first.
#[derive(Default)]
struct Merged(Vec<u8>);

impl Write for Merged {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > 2 << 30 {
            return Err(std::io::Error::other("they have more than 2 GB together: use `corro timeline merge` first"));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_ranks_are_found_in_order() {
        let folder = corro_testing::Folder::new("timeline");
        for name in ["t.rank10.json", "t.rank2.json", "t.rankx.json", "tt.rank1.json", "t.json"] {
            std::fs::write(folder.path().join(name), "[").unwrap();
        }
        let names: Vec<_> = shards(&folder.path().join("t"))
            .iter()
            .map(|path| path.file_name().unwrap().to_string_lossy().into_owned())
            .collect();
        assert_eq!(names, ["t.rank2.json", "t.rank10.json"]);
    }
}
