//! The trace of all ranks: one file a rank, and how they become one that a viewer opens, on one clock.
//!
//! Owns the format of a rank's file (a shard) and the merge. Every rank's engine calls [`Tracer::record`] when an operation
//! has ended, and [`Tracer::clock`] when it knows better how its clock stands to rank 0's; a thread writes. `corro timeline`
//! calls [`merge`] afterwards. Neither ever waits for a rank or a disk on the engine's thread: see [`super::timeline`].
//!
//! A shard is itself a trace that Chrome and Perfetto open: process = rank, thread = process set, one complete event per
//! operation and part of it, times by the rank's own clock. In between stand `clock_offset` records, which apply to what
//! follows. One event a line, so that the merge needs one line in memory and a shard cut short by a crash loses one event.

use std::collections::HashSet;
use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corro_core::Rank;

use super::clock::Estimate;
use super::timeline::{Background, QUEUE, Sink, TraceFile, dropped_record, escape};

/// Something that took time on this rank. Times are those of the engine's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// The tensor, or the first of a batch.
    pub name: String,
    /// What was done: an operation or an [`activity`](super::timeline::activity).
    pub what: &'static str,
    /// By which plane.
    pub plane: &'static str,
    /// The process set.
    pub set: u32,
    /// When it began.
    pub start: Duration,
    /// When it ended.
    pub end: Duration,
    /// Bytes of the tensor or batch.
    pub bytes: u64,
    /// Tensors in the batch.
    pub tensors: u32,
    /// The gear in which it was agreed on.
    pub gear: &'static str,
}

/// What goes to the writer.
#[derive(Debug)]
enum Note {
    Span(Span),
    Clock { at: Duration, estimate: Estimate },
}

/// The file of one rank, beside `path`.
pub fn shard(path: &Path, rank: Rank) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".rank{rank}.json"));
    name.into()
}

/// The trace of this rank: off, or being written.
#[derive(Debug, Default)]
pub struct Tracer {
    running: Option<Background<Note>>,
}

impl Tracer {
    /// Starts writing this rank's [`shard`] of `path`, which is replaced; one that is running is finished first. `label`
    /// tells the rank's row apart in a viewer, such as its host; the file holds at most `cap` bytes.
    pub fn start(&mut self, path: &Path, rank: Rank, label: &str, cap: u64) -> io::Result<()> {
        let _ = self.stop();
        let writer = ShardWriter::new(File::create(shard(path, rank))?, rank, label, cap)?;
        self.running = Some(Background::new("corro-trace", QUEUE, writer)?);
        Ok(())
    }

    /// Writes what is waiting and closes the file. An error if it could not be written to the end.
    pub fn stop(&mut self) -> io::Result<()> {
        self.running.take().map_or(Ok(()), Background::finish)
    }

    /// Whether it is being written.
    pub const fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Notes what `span` gives; it is not called when nobody listens.
    pub fn record(&self, span: impl FnOnce() -> Span) {
        if let Some(writer) = &self.running {
            writer.send(Note::Span(span()));
        }
    }

    /// From `at` on, this rank's clock is taken to stand to rank 0's as `estimate` says.
    pub fn clock(&self, at: Duration, estimate: Estimate) {
        if let Some(writer) = &self.running {
            writer.send(Note::Clock { at, estimate });
        }
    }
}

#[derive(Debug)]
struct ShardWriter<W> {
    file: TraceFile<W>,
    rank: Rank,
    named_sets: HashSet<u32>,
    last: u64,
}

/// How a span and a clock record begin: the merge knows them by it, and finds the time right behind.
const SPAN: &str = r#"{"ph":"X","ts":"#;
const CLOCK: &str = r#"{"ph":"M","name":"clock_offset","args":{"offset_ns":"#;
const INSTANT: &str = r#"{"ph":"i","#;
const METADATA: &str = r#"{"ph":"M","#;

impl<W: Write + Seek> ShardWriter<W> {
    fn new(out: W, rank: Rank, label: &str, cap: u64) -> io::Result<Self> {
        let mut file = TraceFile::new(out, cap)?;
        let label = escape(label);
        file.append(
            0,
            &format!(r#"{METADATA}"name":"process_name","pid":{rank},"args":{{"name":"rank {rank} {label}"}}}}"#),
        )?;
        file.append(
            0,
            &format!(r#"{METADATA}"name":"process_sort_index","pid":{rank},"args":{{"sort_index":{rank}}}}}"#),
        )?;
        file.flush()?;
        Ok(Self { file, rank, named_sets: HashSet::new(), last: 0 })
    }
}

impl<W: Write + Seek + Send> Sink<Note> for ShardWriter<W> {
    fn take(&mut self, note: Note) -> io::Result<()> {
        let rank = self.rank;
        match note {
            Note::Span(span) => {
                self.last = span.end.as_micros() as u64;
                if self.named_sets.insert(span.set) {
                    let set = span.set;
                    let name = format!(r#""name":"thread_name","pid":{rank},"tid":{set}"#);
                    let record = format!(r#"{METADATA}{name},"args":{{"name":"process set {set}"}}}}"#);
                    self.file.append(self.last, &record)?;
                }
                self.file.append(self.last, &span_record(&span, rank))
            }
            Note::Clock { at, estimate: Estimate { offset, error } } => {
                let nanos = at.as_nanos();
                let record = format!(r#"{CLOCK}{offset},"error_ns":{error},"at_ns":{nanos}}},"pid":{rank}}}"#);
                self.file.append(at.as_micros() as u64, &record)
            }
        }
    }

    fn dropped(&mut self, events: u64) -> io::Result<()> {
        self.file.append(self.last, &dropped_record(self.last, events))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn span_record(span: &Span, rank: Rank) -> String {
    let Span { name, what, plane, set, start, end, bytes, tensors, gear } = span;
    let (ts, dur) = (Micros(start.as_nanos() as i128), Micros(end.saturating_sub(*start).as_nanos() as i128));
    let name = escape(name);
    format!(
        r#"{SPAN}{ts},"dur":{dur},"pid":{rank},"tid":{set},"name":"{what}","args":{{"name":"{name}","bytes":{bytes},"tensors":{tensors},"gear":"{gear}","plane":"{plane}"}}}}"#
    )
}

/// Nanoseconds, shown as microseconds with all digits: the unit of trace events.
struct Micros(i128);

impl std::fmt::Display for Micros {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sign = if self.0 < 0 { "-" } else { "" };
        let nanos = self.0.unsigned_abs();
        write!(f, "{sign}{}.{:03}", nanos / 1000, nanos % 1000)
    }
}

impl Micros {
    /// What `Display` wrote; whole microseconds are fine as well.
    fn parse(text: &str) -> Option<Self> {
        let (whole, part) = text.split_once('.').unwrap_or((text, "000"));
        let part: i128 = if part.len() == 3 { part.parse().ok()? } else { return None };
        let nanos = whole.trim_start_matches('-').parse::<i128>().ok()?.checked_mul(1000)? + part;
        Some(Self(if text.starts_with('-') { -nanos } else { nanos }))
    }
}

/// What a merge has done.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Merged {
    /// Events written.
    pub events: u64,
    /// Lines of shards that could not be read: each shard of a killed rank may have one.
    pub unreadable: u64,
    /// How far the ranks' clocks may be apart in the result, at worst, in nanoseconds.
    pub clock_error: u64,
    /// Shards without a clock record, whose times are taken as they are.
    pub unaligned: Vec<PathBuf>,
}

/// Makes one trace of the shards, with all times on rank 0's clock and the first event at 0. Shards that were cut short
/// give what they have; one that cannot be opened is an error.
pub fn merge(shards: &[PathBuf], out: impl Write) -> io::Result<Merged> {
    let mut merged = Merged::default();
    // Twice through each shard, so that nothing need be kept: first for the earliest time, then for the events.
    let mut earliest = None;
    for path in shards {
        let mut aligned = false;
        for_each_line(path, |line| {
            match line {
                Line::Span { ts, .. } => earliest = Some(earliest.map_or(ts, |e: i128| e.min(ts))),
                Line::Clock { error } => {
                    aligned = true;
                    merged.clock_error = merged.clock_error.max(error);
                }
                Line::Other(_) => {}
                Line::Unreadable => merged.unreadable += 1,
            }
            Ok(())
        })?;
        if !aligned {
            merged.unaligned.push(path.clone());
        }
    }
    let mut out = io::BufWriter::new(out);
    out.write_all(b"[")?;
    for path in shards {
        for_each_line(path, |line| {
            let mut event = String::new();
            match line {
                Line::Span { ts, rest } => {
                    let _ = write!(event, "{SPAN}{}{rest}", Micros(ts - earliest.unwrap_or(0)));
                }
                Line::Other(text) => event.push_str(text),
                Line::Clock { .. } | Line::Unreadable => return Ok(()),
            }
            out.write_all(if merged.events == 0 { b"\n" } else { b",\n" })?;
            merged.events += 1;
            out.write_all(event.as_bytes())
        })?;
    }
    out.write_all(b"\n]\n")?;
    out.flush()?;
    Ok(merged)
}

/// A line of a shard.
enum Line<'a> {
    /// A span: when it began on rank 0's clock, in nanoseconds, and what follows that in the record.
    Span {
        ts: i128,
        rest: &'a str,
    },
    Clock {
        error: u64,
    },
    /// Names, and notes such as "the file is full", whose time is only roughly right.
    Other(&'a str),
    Unreadable,
}

fn for_each_line(path: &Path, mut each: impl FnMut(Line<'_>) -> io::Result<()>) -> io::Result<()> {
    let mut reader = BufReader::new(File::open(path)?);
    let (mut bytes, mut offset) = (Vec::new(), 0i128);
    loop {
        bytes.clear();
        if reader.read_until(b'\n', &mut bytes)? == 0 {
            return Ok(());
        }
        // What a crash left half-written need not be UTF-8 either.
        let text = String::from_utf8_lossy(&bytes);
        let line = text.trim_end().trim_end_matches(',');
        if matches!(line, "" | "[" | "]") {
            continue;
        }
        let number = |from: &str| from.split([',', '}']).next().and_then(|n| n.parse::<i128>().ok());
        let understood = if !is_whole_object(line) {
            None
        } else if let Some(span) = line.strip_prefix(SPAN) {
            let ts = span.find(',').and_then(|end| Some((Micros::parse(&span[..end])?, &span[end..])));
            ts.map(|(ts, rest)| Line::Span { ts: ts.0.saturating_add(offset), rest })
        } else if let Some(clock) = line.strip_prefix(CLOCK) {
            let error = clock.split_once(r#""error_ns":"#).and_then(|(_, e)| number(e));
            number(clock).zip(error).map(|(new, error)| {
                offset = new;
                Line::Clock { error: error.try_into().unwrap_or(u64::MAX) }
            })
        } else {
            let known = line.starts_with(METADATA) || line.starts_with(INSTANT);
            known.then_some(Line::Other(line))
        };
        each(understood.unwrap_or(Line::Unreadable))?;
    }
}

/// Whether the braces of a line close where it ends, and not before: a record that was cut off does not pass.
fn is_whole_object(line: &str) -> bool {
    let (mut depth, mut in_string, mut escaped) = (0usize, false, false);
    for (i, b) in line.bytes().enumerate() {
        match b {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            b'{' if !in_string => depth += 1,
            b'}' if !in_string => {
                let Some(left) = depth.checked_sub(1) else { return false };
                depth = left;
                if depth == 0 {
                    return i + 1 == line.len();
                }
            }
            _ => {}
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;
    use crate::watch::timeline::CAP;

    /// A folder for one test, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("corro-trace-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn span(name: &str, start: u64, end: u64) -> Span {
        let (name, start, end) = (name.into(), Duration::from_nanos(start), Duration::from_nanos(end));
        Span { name, what: "ALLREDUCE", plane: "host", set: 0, start, end, bytes: 40_000, tensors: 1, gear: "plan" }
    }

    fn merged(shards: &[PathBuf]) -> (Merged, Vec<Value>) {
        let mut out = Vec::new();
        let merged = merge(shards, &mut out).unwrap();
        (merged, serde_json::from_slice(&out).expect("valid JSON"))
    }

    #[test]
    fn what_happened_at_once_stands_at_one_place_whatever_the_clocks_said() {
        let folder = Folder::new("aligned");
        let path = folder.0.join("aligned");
        // Rank 1's clock is 5 ms ahead of rank 0's, later 5.002 ms.
        for (rank, ahead, later) in [(Rank::ZERO, 0, 0), (Rank::new(1), 5_000_000, 5_002_000)] {
            let mut tracer = Tracer::default();
            tracer.record(|| unreachable!("it is off"));
            tracer.start(&path, rank, "on host \"a\"", CAP).unwrap();
            tracer.clock(Duration::ZERO, Estimate { offset: -ahead, error: 700 });
            tracer.record(|| span("grad", (1_000_500 + ahead) as u64, (1_900_000 + ahead) as u64));
            tracer.clock(Duration::from_nanos(10), Estimate { offset: -later, error: 300 });
            tracer.record(|| span("grad", (2_000_500 + later) as u64, (2_900_000 + later) as u64));
            tracer.stop().unwrap();
        }
        let shards = Rank::all(2).map(|rank| shard(&path, rank)).collect::<Vec<_>>();
        assert!(shards[1].to_str().unwrap().ends_with("aligned.rank1.json"));
        let (result, events) = merged(&shards);
        assert_eq!((result.clock_error, result.unreadable, result.unaligned.len()), (700, 0, 0));
        for rank in [0, 1] {
            let of: Vec<_> = events.iter().filter(|e| e["pid"] == rank && e["ph"] == "X").collect();
            assert_eq!((of[0]["ts"].as_f64(), of[1]["ts"].as_f64()), (Some(0.0), Some(1000.0)));
            assert_eq!(of[0]["dur"].as_f64(), Some(899.5));
            assert_eq!((&of[0]["args"]["gear"], &of[0]["args"]["bytes"]), (&"plan".into(), &40_000.into()));
            assert!(events.iter().any(|e| e["pid"] == rank && e["args"]["name"] == "process set 0"));
        }
        // A shard alone is a valid trace, too.
        serde_json::from_slice::<Vec<Value>>(&std::fs::read(&shards[1]).unwrap()).unwrap();
    }

    #[test]
    fn a_missing_shard_is_an_error_and_one_without_a_clock_is_named() {
        let folder = Folder::new("bare");
        let path = folder.0.join("bare");
        let mut tracer = Tracer::default();
        tracer.start(&path, Rank::new(3), "", CAP).unwrap();
        tracer.record(|| span("t", 4000, 5000));
        drop(tracer); // writes, too
        let (result, events) = merged(&[shard(&path, Rank::new(3))]);
        assert_eq!((result.unaligned, events.len()), (vec![shard(&path, Rank::new(3))], 4));
        assert!(merge(&[shard(&path, Rank::new(99))], Vec::new()).is_err());
    }

    proptest! {
        /// A crash may cut a shard anywhere: the merge is valid, and has every event that was whole.
        #[test]
        fn a_shard_cut_anywhere_gives_what_is_whole(
            names in proptest::collection::vec(any::<String>(), 1..8), cut in 0.0f64..1.0,
        ) {
            let mut writer = ShardWriter::new(io::Cursor::new(Vec::new()), Rank::ZERO, "h", CAP).unwrap();
            for (i, name) in names.iter().enumerate() {
                writer.take(Note::Span(span(name, 1000 * i as u64, 1000 * i as u64 + 5))).unwrap();
                writer.flush().unwrap();
            }
            let folder = Folder::new("cut");
            let whole = folder.0.join("whole.json");
            let bytes = writer.file.out;
            std::fs::write(&whole, bytes.get_ref()).unwrap();
            let (result, events) = merged(std::slice::from_ref(&whole));
            prop_assert_eq!(result.unreadable, 0);
            let kept: Vec<_> = events.iter().filter(|e| e["ph"] == "X").map(|e| e["args"]["name"].as_str().unwrap()).collect();
            prop_assert_eq!(&kept, &names);

            let cut = (bytes.get_ref().len() as f64 * cut) as usize;
            std::fs::write(&whole, &bytes.get_ref()[..cut]).unwrap();
            let (result, events) = merged(std::slice::from_ref(&whole));
            let lines = String::from_utf8_lossy(&bytes.get_ref()[..cut]).matches('\n').count();
            prop_assert!(result.unreadable <= 1);
            prop_assert!(events.len() + 2 >= lines, "{} of {lines}", events.len());
        }

        #[test]
        fn times_keep_every_nanosecond(nanos in any::<i64>()) {
            let nanos = i128::from(nanos);
            prop_assert_eq!(Micros::parse(&Micros(nanos).to_string()).map(|m| m.0), Some(nanos));
        }
    }
}
