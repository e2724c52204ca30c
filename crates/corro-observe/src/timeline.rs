//! Traces: what a file of the timeline, of one rank's trace or of a merged one says, as one list of spans. Pure.
//!
//! All are Chrome's trace events, one a line. Files of ranks that were killed may end anywhere: what can't be read is counted and left
//! out. Files of other programs, with all events in one line, are read as a whole.

mod picture;
mod summary;

use std::collections::HashMap;
use std::io::BufRead;

use serde::Deserialize;

pub use picture::picture;
pub use summary::summary;

/// The most spans that are kept; more are counted.
pub const MAX_SPANS: usize = 1_000_000;
/// The longest line, and the longest file of which all is in one line.
const MAX_LINE: u64 = 256 << 20;

/// What happened, by rows.
#[derive(Debug, Default)]
pub struct Trace {
    /// What they stand for: ranks, or tensors in Horovod's timeline.
    pub rows: Vec<String>,
    /// All that took time, in order of their beginnings.
    pub spans: Vec<Span>,
    /// Lines that could not be read.
    pub unreadable: u64,
    /// Spans that found no room.
    pub left_out: u64,
    /// Moments that say that events were lost while it was written.
    pub lossy: bool,
}

/// Something that took time, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Span {
    /// Its row.
    pub row: u32,
    /// In how many other spans of its row it lies.
    pub depth: u32,
    /// When it began.
    pub start: f64,
    /// How long it took.
    pub length: f64,
    /// What was done.
    pub what: String,
    /// With which tensor, if that is not the row's name.
    pub tensor: String,
    /// Bytes, where they are told.
    pub bytes: u64,
}

/// An event, as far as it is read.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Event {
    ph: String,
    name: String,
    pid: Number,
    tid: Number,
    ts: f64,
    dur: f64,
    args: Arguments,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Arguments {
    name: Option<String>,
    bytes: Option<u64>,
}

/// A number or a word, whichever a program uses.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(i64),
    Word(String),
}

impl Default for Number {
    fn default() -> Self {
        Self::Number(0)
    }
}

/// A file of another program.
#[derive(Deserialize)]
struct Whole {
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// What is known while a file is read.
#[derive(Default)]
struct Reading {
    trace: Trace,
    rows: HashMap<(Number, Number), u32>,
    names: HashMap<Number, String>,
    threads: HashMap<(Number, Number), String>,
    open: HashMap<u32, Vec<Span>>,
}

impl Trace {
    /// Reads a file of trace events.
    pub fn read(file: impl BufRead) -> std::io::Result<Self> {
        let mut reading = Reading::default();
        let mut file = file.take(u64::MAX);
        let mut line = Vec::new();
        loop {
            line.clear();
            file.set_limit(MAX_LINE);
            if file.read_until(b'\n', &mut line)? == 0 {
                break;
            }
            reading.line(&line);
        }
        Ok(reading.finish())
    }
}

impl Reading {
    fn line(&mut self, line: &[u8]) {
        let text = String::from_utf8_lossy(line);
        let text = text.trim();
        let event =
            text.trim_end_matches(',').trim_start_matches('[').trim_end_matches(']').trim().trim_end_matches(',');
        if event.is_empty() {
            return;
        }
        if let Ok(event) = serde_json::from_str::<Event>(event)
            && !event.ph.is_empty()
        {
            return self.event(event);
        }
        let whole = serde_json::from_str::<Vec<Event>>(text.trim_end_matches(','))
            .or_else(|_| serde_json::from_str::<Whole>(text).map(|whole| whole.events));
        match whole {
            Ok(events) => events.into_iter().for_each(|event| self.event(event)),
            Err(_) => self.trace.unreadable += 1,
        }
    }

    fn event(&mut self, event: Event) {
        match event.ph.as_str() {
            "X" => {
                let row = self.row(&event);
                self.push(span(row, &event));
            }
            "B" => {
                let row = self.row(&event);
                let open = self.open.entry(row).or_default();
                // One that is never closed must not make us hold more.
                if open.len() < 1000 {
                    open.push(span(row, &event));
                }
            }
            "E" => {
                let row = self.row(&event);
                if let Some(mut span) = self.open.get_mut(&row).and_then(Vec::pop) {
                    span.length = (event.ts - span.start).max(0.0);
                    span.bytes = event.args.bytes.unwrap_or(span.bytes);
                    self.push(span);
                }
            }
            "M" if event.name == "process_name" => {
                self.names.insert(event.pid, event.args.name.unwrap_or_default());
            }
            "M" if event.name == "thread_name" => {
                self.threads.insert((event.pid, event.tid), event.args.name.unwrap_or_default());
            }
            "i" | "I" if ["EVENTS_DROPPED", "TIMELINE_FULL"].contains(&event.name.as_str()) => self.trace.lossy = true,
            _ => {}
        }
    }

    fn row(&mut self, event: &Event) -> u32 {
        let next = self.rows.len() as u32;
        *self.rows.entry((event.pid.clone(), event.tid.clone())).or_insert(next)
    }

    fn push(&mut self, span: Span) {
        // More than thirty years is no time.
        if !(span.start.abs() < 1e15 && (0.0..1e15).contains(&span.length)) {
            self.trace.unreadable += 1;
        } else if self.trace.spans.len() < MAX_SPANS {
            self.trace.spans.push(span);
        } else {
            self.trace.left_out += 1;
        }
    }

    fn finish(mut self) -> Trace {
        let mut places: Vec<((Number, Number), u32)> = self.rows.drain().collect();
        places.sort_by_key(|(_, row)| *row);
        let several = |pid: &Number| places.iter().filter(|((p, _), _)| p == pid).count() > 1;
        self.trace.rows = places
            .iter()
            .map(|((pid, tid), _)| {
                let process = self.names.get(pid).cloned().unwrap_or_else(|| match pid {
                    Number::Number(number) => format!("process {number}"),
                    Number::Word(word) => word.clone(),
                });
                match self.threads.get(&(pid.clone(), tid.clone())).filter(|_| several(pid)) {
                    Some(thread) => format!("{process}, {thread}"),
                    None => process,
                }
            })
            .collect();
        let spans = &mut self.trace.spans;
        // The longer of two that begin at once is around the other.
        spans.sort_by(|a, b| a.start.total_cmp(&b.start).then(b.length.total_cmp(&a.length)));
        let mut around: HashMap<u32, Vec<f64>> = HashMap::new();
        for span in spans {
            let ends = around.entry(span.row).or_default();
            // Written with three digits after the point: what begins where another ends is not in it.
            ends.retain(|end| *end > span.start + 0.0005);
            span.depth = ends.len() as u32;
            ends.push(span.start + span.length);
        }
        self.trace
    }
}

fn span(row: u32, event: &Event) -> Span {
    Span {
        row,
        depth: 0,
        start: event.ts,
        length: event.dur,
        what: event.name.clone(),
        tensor: event.args.name.clone().unwrap_or_default(),
        bytes: event.args.bytes.unwrap_or(0),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const MERGED: &str = r#"[
{"ph":"M","name":"process_name","pid":0,"args":{"name":"rank 0 node0"}},
{"ph":"M","name":"process_name","pid":1,"args":{"name":"rank 1 node1"}},
{"ph":"X","ts":0.000,"dur":900.000,"pid":0,"tid":0,"name":"ALLREDUCE","args":{"name":"w","bytes":4000,"tensors":1}},
{"ph":"X","ts":1000.000,"dur":500.000,"pid":0,"tid":0,"name":"ALLREDUCE","args":{"name":"b","bytes":40,"tensors":1}},
{"ph":"X","ts":400.000,"dur":500.000,"pid":1,"tid":0,"name":"ALLREDUCE","args":{"name":"w","bytes":4000,"tensors":1}},
{"ph":"X","ts":1200.000,"dur":300.000,"pid":1,"tid":0,"name":"ALLREDUCE","args":{"name":"b","bytes":40,"ten"#;

    pub(crate) fn trace(text: &str) -> Trace {
        Trace::read(text.as_bytes()).unwrap()
    }

    #[test]
    fn a_file_that_was_cut_gives_what_is_whole() {
        let trace = trace(MERGED);
        assert_eq!(trace.rows, ["rank 0 node0", "rank 1 node1"]);
        let begins: Vec<(u32, f64)> = trace.spans.iter().map(|span| (span.row, span.start)).collect();
        assert_eq!((begins, trace.unreadable), (vec![(0, 0.0), (1, 400.0), (0, 1000.0)], 1));
    }

    #[test]
    fn horovods_timeline_has_tensors_for_rows_and_spans_in_spans() {
        let trace = trace(
            r#"[
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "layer.weight"}},
{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 10, "pid": 1},
{"ph": "E", "ts": 30, "pid": 1},
{"ph": "B", "name": "ALLREDUCE", "ts": 30, "pid": 1},
{"ph": "B", "name": "CORRO_ALLREDUCE", "ts": 31, "pid": 1},
{"ph": "E", "ts": 39, "pid": 1},
{"ph": "E", "ts": 40, "pid": 1},
{"ph": "E", "ts": 41, "pid": 1},
]"#,
        );
        let found: Vec<_> = trace.spans.iter().map(|s| (s.what.as_str(), s.depth, s.length)).collect();
        assert_eq!(found, [("NEGOTIATE_ALLREDUCE", 0, 20.0), ("ALLREDUCE", 0, 10.0), ("CORRO_ALLREDUCE", 1, 8.0)]);
        assert_eq!((trace.rows[0].as_str(), trace.unreadable), ("layer.weight", 0));
    }

    #[test]
    fn files_of_other_programs_are_read_whole() {
        for text in [
            r#"{"traceEvents":[{"ph":"X","ts":1,"dur":2,"pid":"gpu","tid":"s","name":"k"}]}"#,
            r#"[{"ph":"X","ts":1,"dur":2,"pid":"gpu","name":"k"},{"ph":"X","ts":5,"dur":2,"pid":"gpu","name":"k"}]"#,
        ] {
            let trace = trace(text);
            assert!(!trace.spans.is_empty() && trace.rows == ["gpu"], "{trace:?}");
        }
        assert_eq!(trace("what is this\n\u{0}\n").unreadable, 2);
    }
}
