//! What the command line has for those who watch jobs: flags of `corro run`, and the commands that read recordings.

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Arg, ArgMatches, Command};
use corro_core::{Error, Result};
use corro_observe::job_socket::{self, JobSocket};
use corro_observe::page::{self, Page, Source};
use corro_observe::view::Since;
use corro_observe::watcher::Files;
use corro_observe::{Watcher, recording, report as reports};
use nix::sys::signal::SigSet;

use super::exit::{self, complain, tell};
use super::signals;
use crate::job::{Job, Outcome};

/// How a job is to be watched.
#[derive(Debug, Default)]
pub(super) struct Watching {
    page: Option<SocketAddr>,
    /// Somebody may look at it later.
    watch: bool,
    files: Files,
    /// A report is wanted at the end.
    report: bool,
    /// And in this file as well.
    html: Option<PathBuf>,
}

impl Watching {
    /// What the flags of `corro run` say.
    pub(super) fn asked(matches: &ArgMatches) -> Result<Self> {
        let text = |flag: &str| matches.get_one::<String>(flag).cloned();
        let page = text("page").map(|word| match word.as_str() {
            "" => Ok(page::default_address()),
            word => page::parse_address(word),
        });
        let (report, html) =
            (text("report").is_some(), text("report").filter(|file| !file.is_empty()).map(PathBuf::from));
        let files = Files { record: text("record").map(Into::into), values: text("logdir").map(Into::into) };
        Ok(Self { page: page.transpose()?, watch: matches.get_flag("watch"), files, report, html })
    }

    /// Begins to watch a job that is about to start, if that is wanted.
    pub(super) fn start(&self, name: &str, job: &mut Job) -> Result<Watched> {
        let wanted = self.watch
            || self.page.is_some()
            || self.report
            || self.files.record.is_some()
            || self.files.values.is_some();
        if !wanted {
            return Ok(Watched::default());
        }
        let words: Vec<_> = job.command.iter().map(|word| word.to_string_lossy()).collect();
        let watcher = Watcher::start(&words.join(" "), self.files.clone())?;
        job.watcher = Some(Arc::clone(&watcher));
        let page = self.page.map(|address| page::serve(address, Source::Live(Arc::clone(&watcher)))).transpose()?;
        // That this user's other programs can't ask the job is no reason not to run it.
        let socket = job_socket::folder().and_then(|folder| page::open_job_socket(&folder, Arc::clone(&watcher)));
        if let Err(error) = &socket {
            tell(&format!("{name}: `corro top` can't see this job: {error}"));
        }
        if let Some(page) = &page {
            tell(&format!("{name}: watch this job at {}", page.url));
        }
        Ok(Watched { watcher: Some(watcher), report: self.report, html: self.html.clone(), page, _socket: socket.ok() })
    }
}

/// A job that is watched, or nothing.
#[derive(Debug, Default)]
pub(super) struct Watched {
    watcher: Option<Arc<Watcher>>,
    report: bool,
    html: Option<PathBuf>,
    page: Option<Page>,
    _socket: Option<JobSocket>,
}

impl Watched {
    /// The job is over.
    pub(super) fn end(self, outcome: &Result<Outcome>) {
        let Some(watcher) = self.watcher else { return };
        let failure = match outcome {
            Ok(outcome) => outcome.failure.as_ref().map(ToString::to_string),
            Err(error) => Some(error.to_string()),
        };
        watcher.finish(failure);
        if self.report {
            let view = watcher.view(Since::default());
            if let Err(error) = show_report(&view, self.html.as_deref()) {
                tell(&format!("corro: {error}"));
            }
        }
        if let Some(page) = &self.page {
            page.farewell();
        }
    }
}

/// Shows a report, and writes it to a file if one is given.
fn show_report(view: &str, html: Option<&Path>) -> Result<()> {
    let value = recording::parse(view).map_err(Error::Bug)?;
    tell(&reports::text(&value, None));
    match html {
        Some(path) => std::fs::write(path, page::whole(view, None))
            .map_err(|e| Error::io(format!("writing the report {}", path.display()), e)),
        None => Ok(()),
    }
}

/// `corro report`.
pub(super) fn report_command() -> Command {
    Command::new("corro report")
        .about("Shows where the time of a recorded job went, and what to do about it")
        .disable_version_flag(true)
        .arg(
            Arg::new("file")
                .required(true)
                .value_name("FILE")
                .help("A recording made by `corro run --record FILE` or `corro record FILE`"),
        )
        .arg(
            Arg::new("html")
                .long("html")
                .value_name("FILE")
                .help("Also write the report, with charts, to one HTML file"),
        )
        .arg(
            Arg::new("against")
                .long("against")
                .value_name("FILE")
                .help("A recording of the same program on fewer ranks: shows how much faster more ranks make it"),
        )
}

/// `corro page`.
pub(super) fn page_command() -> Command {
    Command::new("corro page")
        .about("Shows recorded jobs side by side on a web page")
        .disable_version_flag(true)
        .arg(
            Arg::new("file")
                .required(true)
                .num_args(1..)
                .value_name("FILE")
                .help("A recording made by `corro run --record FILE` or `corro record FILE`"),
        )
        .arg(
            Arg::new("listen")
                .long("listen")
                .value_name("ADDRESS:PORT")
                .help("Address of the page [a free port of 127.0.0.1]"),
        )
}

/// `corro report FILE`.
pub(super) fn report(words: &[OsString]) -> u8 {
    let matches = match report_command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let file = matches.get_one::<String>("file").map(PathBuf::from).unwrap_or_default();
    let html = matches.get_one::<String>("html").map(PathBuf::from);
    let against = matches.get_one::<String>("against").map(|path| recording::read(Path::new(path))).transpose();
    let shown = against.and_then(|against| {
        let (view, value) = recording::read(&file)?;
        let against = against.as_ref();
        print!("{}", reports::text(&value, against.map(|(_, value)| value)));
        match html {
            Some(path) => std::fs::write(&path, page::whole(&view, against.map(|(view, _)| view.as_str())))
                .map_err(|e| Error::io(format!("writing the report {}", path.display()), e)),
            None => Ok(()),
        }
    });
    shown.map_or_else(|e| complain("corro report", &e), |()| 0)
}

/// `corro page FILE...`: serves until it is interrupted.
pub(super) fn page(words: &[OsString]) -> u8 {
    let matches = match page_command().no_binary_name(true).try_get_matches_from(words) {
        Ok(matches) => matches,
        Err(e) => return exit::show(&e),
    };
    let served = || -> Result<(Page, SigSet)> {
        // Also where a shell started this in its background, and had it ignore Ctrl-C.
        let interrupts = signals::block()?;
        let address = match matches.get_one::<String>("listen") {
            Some(word) => page::parse_address(word)?,
            None => page::default_address(),
        };
        let files = matches.get_many::<String>("file").unwrap_or_default();
        let read = |file: &String| Ok((file.clone(), recording::read(Path::new(file))?.0));
        let recordings = files.map(read).collect::<Result<Vec<_>>>()?;
        Ok((page::serve(address, Source::Files(Arc::new(recordings)))?, interrupts))
    };
    match served() {
        Ok((page, interrupts)) => {
            println!("{}", page.url);
            tell("corro page: open this link; Ctrl-C ends it");
            let _ = interrupts.wait();
            0
        }
        Err(e) => complain("corro page", &e),
    }
}
