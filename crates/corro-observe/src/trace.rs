//! The traces of ranks, and how they become one that a viewer opens, on one clock.
//!
//! A rank's file (a shard) is itself a trace that Chrome and Perfetto open: process = rank, thread = process set, one complete event per
//! operation, times by the rank's own clock. In between stand `clock_offset` records, which apply to what follows. One event a
//! line, so that the merge needs one line in memory and a shard cut short by a crash loses one event. The engine writes them.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

/// How a span and a clock record begin: the merge knows them by it, and finds the time right behind.
pub const SPAN: &str = r#"{"ph":"X","ts":"#;
/// See [`SPAN`].
pub const CLOCK: &str = r#"{"ph":"M","name":"clock_offset","args":{"offset_ns":"#;
const INSTANT: &str = r#"{"ph":"i","#;
/// How a name begins.
pub const METADATA: &str = r#"{"ph":"M","#;

/// Nanoseconds, shown as microseconds with all digits: the unit of trace events.
#[derive(Clone, Copy, Debug)]
pub struct Micros(pub i128);

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

    use super::*;

    proptest! {
        #[test]
        fn times_keep_every_nanosecond(nanos in any::<i64>()) {
            let nanos = i128::from(nanos);
            prop_assert_eq!(Micros::parse(&Micros(nanos).to_string()).map(|m| m.0), Some(nanos));
        }
    }

    #[test]
    fn only_whole_objects_pass() {
        assert!(is_whole_object(r#"{"a":{"b":"}\\\""}}"#));
        for cut in [r#"{"a":{"b":1}"#, r#"{"a":"}"#, "{}{}", "}", ""] {
            assert!(!is_whole_object(cut), "{cut}");
        }
    }
}
