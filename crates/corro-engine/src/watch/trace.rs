//! The trace of all ranks: one file a rank, and how they become one that a viewer opens, on one clock.
//!
//! Owns the writing of a rank's file (a shard); its format and the merge are [`corro_observe::trace`]'s. Every rank's engine calls [`Tracer::record`] when an operation
//! has ended, and [`Tracer::clock`] when it knows better how its clock stands to rank 0's; a thread writes. `corro timeline`
//! calls [`merge`] afterwards. Neither ever waits for a rank or a disk on the engine's thread: see [`super::timeline`].
//!
//! A shard is itself a trace that Chrome and Perfetto open: process = rank, thread = process set, one complete event per
//! operation and part of it, times by the rank's own clock. In between stand `clock_offset` records, which apply to what
//! follows. One event a line, so that the merge needs one line in memory and a shard cut short by a crash loses one event.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use corro_core::Rank;
use corro_observe::trace::{CLOCK, METADATA, Micros, SPAN};
pub use corro_observe::trace::{Merged, merge};

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
    /// How it compressed; empty if it did not.
    pub compression: &'static str,
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
    let Span { name, what, plane, compression, set, start, end, bytes, tensors, gear } = span;
    let (ts, dur) = (Micros(start.as_nanos() as i128), Micros(end.saturating_sub(*start).as_nanos() as i128));
    let name = escape(name);
    let how = if compression.is_empty() { String::new() } else { format!(r#","compression":"{compression}""#) };
    format!(
        r#"{SPAN}{ts},"dur":{dur},"pid":{rank},"tid":{set},"name":"{what}","args":{{"name":"{name}","bytes":{bytes},"tensors":{tensors},"gear":"{gear}","plane":"{plane}"{how}}}}}"#
    )
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
        Span {
            name,
            what: "ALLREDUCE",
            plane: "host",
            compression: "",
            set: 0,
            start,
            end,
            bytes: 40_000,
            tensors: 1,
            gear: "plan",
        }
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
    }
}
