//! One log for every process of a job. All crates speak through [`tracing`]; this crate writes what they say to standard
//! error, in Horovod's format with who says it in front, or as JSON.
//!
//! [`init`] is called by what owns a process: the `corro` program, `corro._native`, `libcorro.so`. Libraries never call
//! it: a Rust program that embeds them keeps whatever subscriber it has, and may call [`init`] if it has none.
//!
//! | module | holds |
//! | --- | --- |
//! | [`line`](mod@line) | what a line looks like (pure) |
//! | `flood` | how often the same line is written (pure) |

#![forbid(unsafe_code)]

mod flood;
pub mod line;

use std::fmt::{self, Write as _};
use std::io::{IsTerminal, Write as _};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::{Instant, SystemTime};

use corro_core::{Rank, config};
use flood::{Floods, Verdict};
use line::Line;
use tracing::callsite::Identifier;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// What the log of a process is like.
#[derive(Clone, Debug)]
pub struct Options {
    /// Lines that matter less are left out.
    pub least: LevelFilter,
    /// Whether lines carry the time.
    pub with_time: bool,
    /// Whether they are coloured.
    pub colour: bool,
    /// Whether each is a JSON object, for programs that collect logs.
    pub json: bool,
}

impl Options {
    /// What the environment says.
    pub fn from_env() -> Self {
        let colour = std::io::stderr().is_terminal() && config::foreign("NO_COLOR").is_none();
        let with_time = !config::LOG_HIDE_TIME.flag(false);
        Self { with_time, colour, ..Self::of(config::Variable::value) }
    }

    /// What another process's environment says, whose variables `value` gives. Its lines are for others to show: no colours.
    pub fn of(value: impl Fn(&config::Variable) -> Option<String>) -> Self {
        let least = value(&config::LOG_LEVEL).and_then(|text| level(&text)).unwrap_or(LevelFilter::WARN);
        let json = value(&config::LOG_FORMAT).is_some_and(|format| format.trim().eq_ignore_ascii_case("json"));
        let hidden = value(&config::LOG_HIDE_TIME).is_some_and(|text| !matches!(text.trim(), "" | "0" | "false"));
        Self { least, with_time: !hidden, colour: false, json }
    }
}

/// A level by its name in Horovod. Nothing is fatal to a library, so `fatal` writes nothing.
pub fn level(text: &str) -> Option<LevelFilter> {
    Some(match text.trim().to_ascii_lowercase().as_str() {
        "trace" => LevelFilter::TRACE,
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warning" => LevelFilter::WARN,
        "error" => LevelFilter::ERROR,
        "fatal" => LevelFilter::OFF,
        _ => return None,
    })
}

/// How the names of our crates begin. As a library, corro-python has the name that Python imports.
const OURS: [&str; 2] = ["corro", "_native"];

/// Takes each line, without its end.
pub type Sink = Box<dyn Fn(&str) + Send + Sync>;

/// Who speaks in this process.
#[derive(Clone, Debug, Default)]
struct Speaker {
    name: String,
    /// Whether it is the rank that this process is. Else a line says itself whose it is, where ranks are threads.
    is_rank: bool,
}

/// A log, to be installed as a subscriber.
pub struct Log {
    options: Options,
    speaker: RwLock<Speaker>,
    floods: Mutex<Floods<(Identifier, Option<u64>)>>,
    sink: Sink,
}

static OF_THIS_PROCESS: OnceLock<Arc<Log>> = OnceLock::new();

/// Makes this process's log, as the environment says, and lets `speaker` speak. A second call changes nothing, and neither
/// does a first one where the program has a subscriber of its own.
pub fn init(speaker: &str) {
    init_with(Options::from_env(), speaker);
}

/// As [`init`], for a process that may become a rank: who it is it learns later, see [`identify`].
pub fn init_rank() {
    let rank = config::RANK.value().unwrap_or_else(|| format!("process {}", std::process::id()));
    init(&rank);
}

/// As [`init`], with options from elsewhere.
pub fn init_with(options: Options, speaker: &str) {
    init_to(options, speaker, Box::new(pass_on));
}

/// As [`init_with`], for a process whose lines go elsewhere.
pub fn init_to(options: Options, speaker: &str, sink: Sink) {
    OF_THIS_PROCESS.get_or_init(|| {
        let log = Arc::new(Log::new(options, sink));
        log.speak_as(speaker, false);
        let _ = tracing::subscriber::set_global_default(Arc::clone(&log));
        log
    });
}

/// From now on lines of this process begin with its rank, its host and, in an elastic job, its epoch.
pub fn identify(rank: Rank, host: &str, epoch: Option<u64>) {
    if let Some(log) = OF_THIS_PROCESS.get() {
        let epoch = epoch.map(|epoch| format!(" epoch {epoch}")).unwrap_or_default();
        log.speak_as(&format!("{rank} {host}{epoch}"), true);
    }
}

/// Writes a line as it is, this process's or one that another has sent. One write for a line, so that those of several processes do
/// not tear each other.
pub fn pass_on(line: &str) {
    // Where nobody reads it there is nobody to tell.
    let _ = std::io::stderr().lock().write_all(format!("{line}\n").as_bytes());
}

impl Log {
    /// A log that hands its lines to `sink`.
    pub fn new(options: Options, sink: Sink) -> Self {
        Self { options, speaker: RwLock::default(), floods: Mutex::default(), sink }
    }

    /// Its lines begin with this name.
    #[must_use]
    pub fn named(self, speaker: &str) -> Self {
        self.speak_as(speaker, false);
        self
    }

    fn speak_as(&self, name: &str, is_rank: bool) {
        let speaker = Speaker { name: name.to_owned(), is_rank };
        *self.speaker.write().unwrap_or_else(PoisonError::into_inner) = speaker;
    }

    fn write(&self, event: &Event<'_>) {
        let metadata = event.metadata();
        let mut words = Words::default();
        event.record(&mut words);
        // Who wants every detail gets every detail.
        let left_out = if *metadata.level() <= Level::INFO {
            let mut floods = self.floods.lock().unwrap_or_else(PoisonError::into_inner);
            match floods.judge((metadata.callsite(), words.rank), Instant::now()) {
                Verdict::Say { left_out } => left_out,
                Verdict::Hold => return,
            }
        } else {
            0
        };
        let speaker = self.speaker.read().unwrap_or_else(PoisonError::into_inner).clone();
        let speaker = match words.rank {
            Some(rank) if !speaker.is_rank => rank.to_string(),
            _ => speaker.name,
        };
        let mut text = words.message;
        text.push_str(&words.others);
        if left_out > 0 {
            let _ = write!(text, " (and {left_out} like it before, left out)");
        }
        let file = metadata.file().unwrap_or_else(|| metadata.target());
        let line = Line {
            at: self.options.with_time.then(SystemTime::now),
            level: *metadata.level(),
            file: file.rsplit('/').next().unwrap_or(file),
            number: metadata.line().unwrap_or(0),
            speaker: &speaker,
            text: &text,
        };
        let Options { json, colour, .. } = self.options;
        (self.sink)(&if json {
            line.json()
        } else if colour {
            line.coloured()
        } else {
            line.to_string()
        });
    }
}

/// Spans are not kept: nothing of ours opens one.
impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        let is_ours = OURS.iter().any(|name| metadata.target().starts_with(name));
        metadata.is_event() && *metadata.level() <= self.options.least && is_ours
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(self.options.least)
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.write(event);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// What an event says: its message, then its fields. The field `rank` is who says it, in processes that hold several.
#[derive(Default)]
struct Words {
    message: String,
    others: String,
    rank: Option<u64>,
}

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.others, ", {name} {value:?}"),
        };
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        let _ = match field.name() {
            "message" => self.message.write_str(value),
            name => write!(self.others, ", {name} {value}"),
        };
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rank" {
            self.rank = Some(value);
        } else {
            let _ = write!(self.others, ", {} {value}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(least: LevelFilter, speak: impl FnOnce()) -> Vec<String> {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let copy = Arc::clone(&lines);
        let sink = Box::new(move |line: &str| copy.lock().unwrap().push(line.to_owned()));
        let log = Log::new(Options { least, with_time: false, colour: false, json: false }, sink);
        log.speak_as("launcher here", false);
        tracing::subscriber::with_default(log, speak);
        let lines = lines.lock().unwrap();
        // The number of the line changes with every edit of this file.
        lines.iter().map(|line| line.replace(|c: char| c.is_ascii_digit(), "#")).collect()
    }

    #[test]
    fn lines_carry_who_and_where_and_what() {
        let lines = said(LevelFilter::INFO, || {
            tracing::warn!(reason = "no secret", remote = ?"a", "refused");
            tracing::info!(rank = 7usize, "gear {}", "up");
            tracing::debug!("detail");
            tracing::error!(target: "other_crate", "not ours");
            tracing::warn!(target: "_native::elastic", "this process ends");
        });
        assert_eq!(
            lines,
            [
                "[W lib.rs:###] [launcher here]: refused, reason no secret, remote \"a\"",
                "[I lib.rs:###] [#]: gear up",
                "[W lib.rs:###] [launcher here]: this process ends",
            ]
        );
    }

    #[test]
    fn a_loop_does_not_flood() {
        let lines = said(LevelFilter::DEBUG, || {
            for _ in 0..1000 {
                tracing::warn!("again");
            }
            (0..50).for_each(|_| tracing::debug!("every one"));
        });
        assert_eq!(lines.iter().filter(|l| l.contains("again")).count(), flood::PER_SECOND as usize);
        assert_eq!(lines.iter().filter(|l| l.contains("every one")).count(), 50);
    }

    #[test]
    fn a_process_that_is_a_rank_says_so_with_its_host() {
        let lines = Arc::new(Mutex::new(Vec::new()));
        let copy = Arc::clone(&lines);
        let sink = Box::new(move |line: &str| copy.lock().unwrap().push(line.to_owned()));
        let log = Log::new(Options { least: LevelFilter::WARN, with_time: false, colour: false, json: false }, sink);
        log.speak_as("1 node", true);
        tracing::subscriber::with_default(log, || tracing::warn!(rank = 1usize, "slow"));
        assert!(lines.lock().unwrap()[0].ends_with("] [1 node]: slow"));
    }

    #[test]
    fn levels_are_horovods() {
        assert_eq!(level("WARNING"), Some(LevelFilter::WARN));
        assert_eq!(level("fatal"), Some(LevelFilter::OFF));
        assert_eq!(level("loud"), None);
        assert!(said(LevelFilter::OFF, || tracing::error!("x")).is_empty());
    }
}
