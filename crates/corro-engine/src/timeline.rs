//! The timeline: what happened to each tensor and when, in the form Horovod's users know (Chrome's trace events).
//!
//! Every tensor is a "process" of the trace, numbered from 1 in the order of first sight. Times are microseconds since
//! the timeline began and come from the caller. The file is valid JSON after every event, also if the process is killed
//! the moment after: the closing bracket is written with each event and overwritten by the next.
//!
//! [`Timeline`] says what is written, [`TraceFile`] keeps the file valid and bounded. Neither starts a thread.

use std::collections::HashMap;
use std::io::{Seek, SeekFrom, Write};

use corro_core::{DType, Shape};

use crate::request::Kind;

/// What closes the file. It is overwritten by the next event.
const END: &[u8] = b"\n]\n";

/// Bytes kept free for the last word of a file that has become too long.
const LAST_WORD: u64 = 256;

/// A file of trace events: a JSON array that is complete at any time, and never longer than it may be.
#[derive(Debug)]
pub struct TraceFile<W> {
    out: W,
    /// Where the next event goes: over the closing bracket.
    at: u64,
    cap: u64,
    full: bool,
}

impl<W: Write + Seek> TraceFile<W> {
    /// A new file that holds at most `cap` bytes (at least a few hundred).
    pub fn new(mut out: W, cap: u64) -> std::io::Result<Self> {
        out.seek(SeekFrom::Start(0))?;
        out.write_all(b"[")?;
        out.write_all(END)?;
        out.flush()?;
        Ok(Self { out, at: 1, cap: cap.max(4 * LAST_WORD), full: false })
    }

    /// Adds an event, which is a JSON object. When the file is full the last event says so, and later ones are dropped.
    pub fn append(&mut self, event: &str) -> std::io::Result<()> {
        if self.full {
            return Ok(());
        }
        if self.at + event.len() as u64 + LAST_WORD > self.cap {
            self.full = true;
            return self.write(
                r#"{"ph":"i","name":"TIMELINE_FULL","ts":0,"s":"g","args":{"events after this":"were dropped"}}"#,
            );
        }
        self.write(event)
    }

    fn write(&mut self, event: &str) -> std::io::Result<()> {
        // One write, so that a kill leaves the old end or the new one; the overwritten end is shorter than any event.
        let mut bytes = Vec::with_capacity(event.len() + 8);
        bytes.extend_from_slice(if self.at == 1 { b"\n" } else { b",\n" });
        bytes.extend_from_slice(event.as_bytes());
        let next = self.at + bytes.len() as u64;
        bytes.extend_from_slice(END);
        self.out.seek(SeekFrom::Start(self.at))?;
        self.out.write_all(&bytes)?;
        self.out.flush()?;
        self.at = next;
        Ok(())
    }

    /// Whether events are being dropped.
    pub fn is_full(&self) -> bool {
        self.full
    }
}

/// Writes what happens to tensors. All times are microseconds since the timeline began.
#[derive(Debug)]
pub struct Timeline<W> {
    file: TraceFile<W>,
    /// Each tensor's number in the trace.
    tensors: HashMap<String, u64>,
}

impl<W: Write + Seek> Timeline<W> {
    /// Begins a timeline; `epoch_micros` is the time of day at which its clock stands at 0.
    pub fn new(out: W, cap: u64, epoch_micros: u64) -> std::io::Result<Self> {
        let mut file = TraceFile::new(out, cap)?;
        file.append(&format!(
            r#"{{"name":"process_name","ph":"M","pid":0,"args":{{"start_time_since_epoch_in_micros":{epoch_micros}}}}}"#
        ))?;
        file.append(r#"{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}}"#)?;
        Ok(Self { file, tensors: HashMap::new() })
    }

    /// The first rank has asked for it; the others are waited for.
    pub fn negotiate(&mut self, tensor: &str, kind: &Kind, ts: u64) -> std::io::Result<()> {
        self.begin(tensor, &format!("NEGOTIATE_{}", kind.name()), ts)
    }

    /// A rank, numbered within the process set, is in.
    pub fn rank_ready(&mut self, tensor: &str, rank: usize, ts: u64) -> std::io::Result<()> {
        let pid = self.pid(tensor)?;
        self.file.append(&format!(r#"{{"ph":"X","name":"{rank}","ts":{ts},"pid":{pid},"dur":0}}"#))
    }

    /// All are in.
    pub fn negotiated(&mut self, tensor: &str, ts: u64) -> std::io::Result<()> {
        self.end(tensor, ts)
    }

    /// The collective begins for this tensor.
    pub fn start(&mut self, tensor: &str, kind: &Kind, ts: u64) -> std::io::Result<()> {
        self.begin(tensor, kind.name(), ts)
    }

    /// A step of the collective, such as copying into the fusion buffer, begins. Steps nest.
    pub fn begin(&mut self, tensor: &str, what: &str, ts: u64) -> std::io::Result<()> {
        let pid = self.pid(tensor)?;
        self.file.append(&format!(r#"{{"ph":"B","name":"{}","ts":{ts},"pid":{pid}}}"#, escape(what)))
    }

    /// The last step that began ends.
    pub fn end(&mut self, tensor: &str, ts: u64) -> std::io::Result<()> {
        let pid = self.pid(tensor)?;
        self.file.append(&format!(r#"{{"ph":"E","ts":{ts},"pid":{pid}}}"#))
    }

    /// The collective has succeeded.
    pub fn done(&mut self, tensor: &str, dtype: DType, shape: &Shape, ts: u64) -> std::io::Result<()> {
        let pid = self.pid(tensor)?;
        self.file
            .append(&format!(r#"{{"ph":"E","ts":{ts},"pid":{pid},"args":{{"dtype":"{dtype}","shape":"{shape}"}}}}"#))
    }

    /// A cycle of the engine begins.
    pub fn cycle(&mut self, ts: u64) -> std::io::Result<()> {
        self.file.append(&format!(r#"{{"ph":"i","name":"CYCLE_START","ts":{ts},"s":"g"}}"#))
    }

    /// Whether the file has reached its limit.
    pub fn is_full(&self) -> bool {
        self.file.is_full()
    }

    fn pid(&mut self, tensor: &str) -> std::io::Result<u64> {
        if let Some(pid) = self.tensors.get(tensor) {
            return Ok(*pid);
        }
        let pid = self.tensors.len() as u64 + 1;
        self.tensors.insert(tensor.to_owned(), pid);
        let name = escape(tensor);
        self.file.append(&format!(r#"{{"name":"process_name","ph":"M","pid":{pid},"args":{{"name":"{name}"}}}}"#))?;
        self.file.append(&format!(
            r#"{{"name":"process_sort_index","ph":"M","pid":{pid},"args":{{"sort_index":{pid}}}}}"#
        ))?;
        Ok(pid)
    }
}

/// `text` as the inside of a JSON string.
fn escape(text: &str) -> String {
    use std::fmt::Write;
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use corro_core::ReduceOp;
    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn allreduce() -> Kind {
        Kind::Allreduce { op: ReduceOp::Sum, prescale: 1f64.to_bits(), postscale: 1f64.to_bits() }
    }

    fn parsed(timeline: &Timeline<Cursor<Vec<u8>>>) -> Vec<Value> {
        serde_json::from_slice(timeline.file.out.get_ref()).expect("valid JSON")
    }

    #[test]
    fn a_tensors_life_is_as_horovod_writes_it() {
        let mut t = Timeline::new(Cursor::new(Vec::new()), 1 << 20, 1234).unwrap();
        t.negotiate("grad", &allreduce(), 10).unwrap();
        t.rank_ready("grad", 0, 10).unwrap();
        t.rank_ready("grad", 1, 15).unwrap();
        t.negotiated("grad", 16).unwrap();
        t.start("grad", &allreduce(), 17).unwrap();
        t.begin("grad", "MEMCPY_IN_FUSION_BUFFER", 18).unwrap();
        t.end("grad", 19).unwrap();
        t.done("grad", DType::F32, &Shape(vec![2, 3]), 30).unwrap();
        t.cycle(31).unwrap();
        let events = parsed(&t);
        assert_eq!(events[0]["args"]["start_time_since_epoch_in_micros"], 1234);
        assert_eq!(events[2]["args"]["name"], "grad");
        let of_tensor: Vec<_> = events.iter().filter(|e| e["pid"] == 1 && e["ph"] != "M").collect();
        let phases: Vec<_> = of_tensor.iter().map(|e| e["ph"].as_str().unwrap()).collect();
        assert_eq!(phases, ["B", "X", "X", "E", "B", "B", "E", "E"]);
        assert_eq!(of_tensor[0]["name"], "NEGOTIATE_ALLREDUCE");
        assert_eq!(of_tensor[7]["args"]["shape"], "[2, 3]");
        assert_eq!(of_tensor[7]["args"]["dtype"], "float32");
        assert_eq!(events.last().unwrap()["name"], "CYCLE_START");
    }

    #[test]
    fn the_file_is_valid_after_every_event_and_stays_within_its_limit() {
        let mut t = Timeline::new(Cursor::new(Vec::new()), 4096, 0).unwrap();
        for i in 0..500 {
            t.negotiate(&format!("tensor {i}"), &allreduce(), i).unwrap();
            parsed(&t);
            assert!(t.file.out.get_ref().len() <= 4096);
        }
        assert!(t.is_full());
        assert_eq!(parsed(&t).last().unwrap()["name"], "TIMELINE_FULL");
    }

    proptest! {
        #[test]
        fn any_name_is_kept(name in any::<String>()) {
            let mut t = Timeline::new(Cursor::new(Vec::new()), 1 << 20, 0).unwrap();
            t.negotiate(&name, &allreduce(), 1).unwrap();
            let events = parsed(&t);
            prop_assert_eq!(events[2]["args"]["name"].as_str(), Some(name.as_str()));
        }
    }
}
