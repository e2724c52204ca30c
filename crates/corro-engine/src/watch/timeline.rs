//! The timeline: what happened to each tensor and when, in the form Horovod's users know (Chrome's trace events).
//!
//! Owns the file format, the file and the thread that writes it. The engine of rank 0 calls [`Timeline::record`] where
//! something happens: one branch when the timeline is off, one push into a bounded queue when it is on. It never waits:
//! what does not fit the queue is dropped and counted, and the file says so. It never fails an operation: a file that
//! cannot be opened or written is an error of [`Timeline::start`] or [`Timeline::stop`], for the log.
//!
//! Every tensor is a "process" of the trace, numbered from 1 in the order of first sight. The file is valid JSON after
//! every write: the closing bracket comes with it and is overwritten by the next. `HorovodTrace` says what is written,
//! `TraceFile` keeps the file valid and bounded, `Background` takes both off the engine's thread.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corro_agreement::request::Kind;
use corro_core::{DType, Shape};

/// Longest file unless told otherwise: some 8 million events, about as much as a viewer can open.
pub const CAP: u64 = 1 << 30;

/// Events that may wait for the writer.
pub(crate) const QUEUE: usize = 1 << 16;

/// What a tensor may be in, inside its operation, in Horovod's words where it has one.
pub mod activity {
    use super::Kind;

    /// Agreed on, waiting for its turn.
    pub const QUEUE: &str = "QUEUE";
    /// Waiting for the tensor's own data, such as a GPU's event.
    pub const WAIT_FOR_DATA: &str = "WAIT_FOR_DATA";
    /// Waiting for that of the tensors it is fused with.
    pub const WAIT_FOR_OTHER_TENSOR_DATA: &str = "WAIT_FOR_OTHER_TENSOR_DATA";
    /// Making room for a result whose size is known only now.
    pub const ALLOCATE_OUTPUT: &str = "ALLOCATE_OUTPUT";
    /// Packing into the fusion buffer.
    pub const MEMCPY_IN_FUSION_BUFFER: &str = "MEMCPY_IN_FUSION_BUFFER";
    /// Unpacking from the fusion buffer.
    pub const MEMCPY_OUT_FUSION_BUFFER: &str = "MEMCPY_OUT_FUSION_BUFFER";

    /// The collective itself, on Corro's own data plane; named as Horovod names those of MPI, NCCL and Gloo.
    pub fn collective(kind: &Kind) -> &'static str {
        match kind.name() {
            "ALLREDUCE" => "CORRO_ALLREDUCE",
            "ADASUM" => "CORRO_ADASUM_ALLREDUCE",
            "ALLGATHER" => "CORRO_ALLGATHER",
            "BROADCAST" => "CORRO_BCAST",
            "ALLTOALL" => "CORRO_ALLTOALL",
            "REDUCESCATTER" => "CORRO_REDUCESCATTER",
            _ => "CORRO_BARRIER",
        }
    }
}

/// What happened. Times are those of the engine's clock.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// Something happened to a tensor.
    Tensor {
        /// Its full name.
        name: String,
        /// When.
        at: Duration,
        /// What.
        step: Step,
    },
    /// A cycle of the engine began.
    Cycle {
        /// When.
        at: Duration,
    },
}

/// What happened to a tensor, in the order of its life.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// The first rank has asked for it; the others are waited for. With [`Kind::name`].
    Negotiate(&'static str),
    /// A rank, numbered within the process set, is in. Requests that were seen before have no such ticks.
    RankReady(usize),
    /// All are in.
    Negotiated,
    /// The operation begins. With [`Kind::name`], or `ERROR` if ranks asked for different things.
    Start(&'static str),
    /// An [`activity`] of the operation begins. Activities nest.
    Begin(&'static str),
    /// The same, of the activity that is the collective itself: by which plane, and how it compresses.
    BeginOn(&'static str, &'static str, Option<&'static str>),
    /// The activity that began last ends.
    End,
    /// The operation has succeeded.
    Done(DType, Shape),
    /// The operation has failed.
    Failed,
}

/// The timeline of this process: off, or being written.
#[derive(Debug, Default)]
pub struct Timeline {
    running: Option<Background<Event>>,
    mark_cycles: bool,
}

impl Timeline {
    /// Starts writing to `path`, which is replaced; a timeline that is running is finished first. `now` is the engine's
    /// clock, at which the file's own clock stands at 0; the file holds at most `cap` bytes.
    pub fn start(&mut self, path: &Path, cap: u64, mark_cycles: bool, now: Duration) -> io::Result<()> {
        // How the one before ended is for whoever wants to know to ask: it must not look like a failure of this one.
        let _ = self.stop();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64);
        let trace = HorovodTrace::new(File::create(path)?, cap, epoch, now)?;
        self.running = Some(Background::new("corro-timeline", QUEUE, trace)?);
        self.mark_cycles = mark_cycles;
        Ok(())
    }

    /// Writes what is waiting and closes the file. An error if it could not be written to the end; none if it was off.
    pub fn stop(&mut self) -> io::Result<()> {
        self.running.take().map_or(Ok(()), Background::finish)
    }

    /// Whether it is being written.
    pub const fn is_on(&self) -> bool {
        self.running.is_some()
    }

    /// Notes what `event` gives; it is not called when nobody listens.
    pub fn record(&self, event: impl FnOnce() -> Event) {
        if let Some(writer) = &self.running {
            writer.send(event());
        }
    }

    /// A step of a tensor, if anybody listens.
    pub fn step(&self, name: &str, at: Duration, step: impl FnOnce() -> Step) {
        self.record(|| Event::Tensor { name: name.to_owned(), at, step: step() });
    }

    /// A cycle of the engine began, if anybody wants that marked.
    pub fn cycle(&self, at: Duration) {
        if self.mark_cycles {
            self.record(|| Event::Cycle { at });
        }
    }
}

/// Writes events as Horovod does.
#[derive(Debug)]
struct HorovodTrace<W> {
    file: TraceFile<W>,
    /// The engine's clock when the file's stood at 0.
    start: Duration,
    /// Each tensor's number in the trace.
    tensors: HashMap<String, u64>,
    last: u64,
}

impl<W: Write + Seek> HorovodTrace<W> {
    fn new(out: W, cap: u64, epoch_micros: u64, start: Duration) -> io::Result<Self> {
        let mut file = TraceFile::new(out, cap)?;
        file.append(
            0,
            &format!(
                r#"{{"name":"process_name","ph":"M","pid":0,"args":{{"start_time_since_epoch_in_micros":{epoch_micros}}}}}"#
            ),
        )?;
        file.append(0, r#"{"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}}"#)?;
        file.flush()?;
        Ok(Self { file, start, tensors: HashMap::new(), last: 0 })
    }

    fn pid(&mut self, tensor: &str, ts: u64) -> io::Result<u64> {
        if let Some(pid) = self.tensors.get(tensor) {
            return Ok(*pid);
        }
        let pid = self.tensors.len() as u64 + 1;
        self.tensors.insert(tensor.to_owned(), pid);
        let name = escape(tensor);
        self.file
            .append(ts, &format!(r#"{{"name":"process_name","ph":"M","pid":{pid},"args":{{"name":"{name}"}}}}"#))?;
        self.file.append(
            ts,
            &format!(r#"{{"name":"process_sort_index","ph":"M","pid":{pid},"args":{{"sort_index":{pid}}}}}"#),
        )?;
        Ok(pid)
    }
}

impl<W: Write + Seek + Send> Sink<Event> for HorovodTrace<W> {
    fn take(&mut self, event: Event) -> io::Result<()> {
        let (Event::Tensor { at, .. } | Event::Cycle { at }) = &event;
        let ts = at.saturating_sub(self.start).as_micros() as u64;
        self.last = ts;
        let Event::Tensor { name, step, .. } = event else {
            return self.file.append(ts, &format!(r#"{{"ph":"i","name":"CYCLE_START","ts":{ts},"s":"g"}}"#));
        };
        let pid = self.pid(&name, ts)?;
        let begin = |what: &str| format!(r#"{{"ph":"B","name":"{what}","ts":{ts},"pid":{pid}}}"#);
        let record = match step {
            Step::Negotiate(kind) => begin(&format!("NEGOTIATE_{kind}")),
            Step::RankReady(rank) => format!(r#"{{"ph":"X","name":"{rank}","ts":{ts},"pid":{pid},"dur":0}}"#),
            Step::Start(what) | Step::Begin(what) => begin(what),
            Step::BeginOn(what, plane, compression) => {
                let how = compression.map_or_else(String::new, |how| format!(r#","compression":"{how}""#));
                format!(r#"{{"ph":"B","name":"{what}","ts":{ts},"pid":{pid},"args":{{"plane":"{plane}"{how}}}}}"#)
            }
            Step::Negotiated | Step::End | Step::Failed => format!(r#"{{"ph":"E","ts":{ts},"pid":{pid}}}"#),
            Step::Done(dtype, shape) => {
                format!(r#"{{"ph":"E","ts":{ts},"pid":{pid},"args":{{"dtype":"{dtype}","shape":"{shape}"}}}}"#)
            }
        };
        self.file.append(ts, &record)
    }

    fn dropped(&mut self, events: u64) -> io::Result<()> {
        self.file.append(self.last, &dropped_record(self.last, events))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Says in the file that the queue was full.
pub(crate) fn dropped_record(ts: u64, events: u64) -> String {
    format!(r#"{{"ph":"i","name":"EVENTS_DROPPED","ts":{ts},"s":"g","args":{{"events":{events}}}}}"#)
}

/// What closes the file. It is overwritten by the next event.
const END: &[u8] = b"\n]\n";

/// Bytes kept free for the last word of a file that has become too long.
const LAST_WORD: u64 = 256;

/// What the kernel copies in one go: a kill does not cut a write that stays inside a page.
const PAGE: u64 = 4096;

/// A file of trace events: a JSON array that is complete at any time, one event a line, and never longer than it may be.
#[derive(Debug)]
pub(crate) struct TraceFile<W> {
    pub(crate) out: W,
    /// Where the next write goes: over the closing bracket.
    at: u64,
    /// Events that wait for it.
    waiting: Vec<u8>,
    cap: u64,
    full: bool,
}

impl<W: Write + Seek> TraceFile<W> {
    /// A new file that holds at most `cap` bytes (at least a few hundred).
    pub(crate) fn new(mut out: W, cap: u64) -> io::Result<Self> {
        out.seek(SeekFrom::Start(0))?;
        out.write_all(b"[\n]\n")?;
        out.flush()?;
        Ok(Self { out, at: 1, waiting: Vec::new(), cap: cap.max(4 * LAST_WORD), full: false })
    }

    /// Adds an event, which is a JSON object without line breaks, and happened at `ts`. When the file is full the last
    /// event says so, and later ones are dropped.
    pub(crate) fn append(&mut self, ts: u64, event: &str) -> io::Result<()> {
        if self.full {
            return Ok(());
        }
        if self.at + (self.waiting.len() + event.len()) as u64 + LAST_WORD > self.cap {
            self.full = true;
            let why = "the file has reached its limit";
            return self.push(&format!(
                r#"{{"ph":"i","name":"TIMELINE_FULL","ts":{ts},"s":"g","args":{{"nothing more is written":"{why}"}}}}"#
            ));
        }
        self.push(event)
    }

    fn push(&mut self, event: &str) -> io::Result<()> {
        let page_left = PAGE - self.at % PAGE;
        if (self.waiting.len() + event.len() + 2 + END.len()) as u64 > page_left {
            self.flush()?;
        }
        let first = self.at == 1 && self.waiting.is_empty();
        self.waiting.extend_from_slice(if first { b"\n" } else { b",\n" });
        self.waiting.extend_from_slice(event.as_bytes());
        Ok(())
    }

    /// Writes what waits, with the closing bracket, in one write.
    pub(crate) fn flush(&mut self) -> io::Result<()> {
        if self.waiting.is_empty() {
            return Ok(());
        }
        let next = self.at + self.waiting.len() as u64;
        self.waiting.extend_from_slice(END);
        self.out.seek(SeekFrom::Start(self.at))?;
        let written = self.out.write_all(&self.waiting);
        self.waiting.clear();
        if written.is_err() {
            let _ = self.put_the_end_back();
            return written;
        }
        self.at = next;
        Ok(())
    }

    /// After a write that failed, as on a full disk: the bytes of the old end are still there, and so may be those that went
    /// before it was full. They become the end again, and blanks. If that fails, too, nothing can help.
    fn put_the_end_back(&mut self) -> io::Result<()> {
        let length = self.out.seek(SeekFrom::End(0))?.saturating_sub(self.at) as usize;
        let mut end = END.to_vec();
        end.resize(length.max(END.len()), b' ');
        self.out.seek(SeekFrom::Start(self.at))?;
        self.out.write_all(&end)
    }
}

/// Where a background writer's events go.
pub(crate) trait Sink<E>: Send {
    fn take(&mut self, event: E) -> io::Result<()>;
    /// The queue was full, and so many were lost.
    fn dropped(&mut self, events: u64) -> io::Result<()>;
    fn flush(&mut self) -> io::Result<()>;
}

/// A thread that writes events, and the bounded queue to it. Dropping it writes what is waiting, too.
#[derive(Debug)]
pub(crate) struct Background<E> {
    queue: Option<SyncSender<E>>,
    dropped: Arc<AtomicU64>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl<E: Send + 'static> Background<E> {
    pub(crate) fn new(name: &str, capacity: usize, mut sink: impl Sink<E> + 'static) -> io::Result<Self> {
        let (queue, events) = sync_channel(capacity);
        let dropped = Arc::new(AtomicU64::new(0));
        let lost = Arc::clone(&dropped);
        let write = move || drain(&events, &lost, &mut sink);
        let thread = std::thread::Builder::new().name(name.into()).spawn(write)?;
        Ok(Self { queue: Some(queue), dropped, thread: Some(thread) })
    }

    /// Never waits: an event that finds no room, or no writer any more, is counted and gone.
    pub(crate) fn send(&self, event: E) {
        if self.queue.as_ref().is_none_or(|q| q.try_send(event).is_err()) {
            self.dropped.fetch_add(1, Relaxed);
        }
    }

    /// Waits until all is written.
    pub(crate) fn finish(mut self) -> io::Result<()> {
        self.close()
    }
}

impl<E> Background<E> {
    fn close(&mut self) -> io::Result<()> {
        self.queue = None;
        let Some(thread) = self.thread.take() else { return Ok(()) };
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the writer of the trace panicked")))
    }
}

impl<E> Drop for Background<E> {
    fn drop(&mut self) {
        let _ = self.close();
    }
}

/// Writes until the queue is closed; whenever it is empty, everything is on disk. Sleeps in between.
fn drain<E>(events: &Receiver<E>, dropped: &AtomicU64, sink: &mut impl Sink<E>) -> io::Result<()> {
    while let Ok(first) = events.recv() {
        let mut next = Some(first);
        while let Some(event) = next {
            sink.take(event)?;
            if dropped.load(Relaxed) > 0 {
                sink.dropped(dropped.swap(0, Relaxed))?;
            }
            next = events.try_recv().ok();
        }
        sink.flush()?;
    }
    Ok(())
}

/// `text` as the inside of a JSON string.
pub(crate) fn escape(text: &str) -> String {
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
    use std::path::PathBuf;

    use proptest::prelude::*;
    use serde_json::Value;

    use super::*;

    fn trace(cap: u64) -> HorovodTrace<Cursor<Vec<u8>>> {
        HorovodTrace::new(Cursor::new(Vec::new()), cap, 1234, us(0)).unwrap()
    }

    const fn us(n: u64) -> Duration {
        Duration::from_micros(n)
    }

    fn step(name: &str, micros: u64, step: Step) -> Event {
        Event::Tensor { name: name.into(), at: us(micros), step }
    }

    fn parsed(bytes: &[u8]) -> Vec<Value> {
        serde_json::from_slice(bytes).expect("valid JSON")
    }

    /// A folder for one test, gone at its end.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Self {
            let folder = std::env::temp_dir().join(format!("corro-timeline-{}-{name}", std::process::id()));
            std::fs::create_dir_all(&folder).unwrap();
            Self(folder)
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    /// A disk with room for so many bytes. What fits of a write is written before it is full, as by a real one.
    struct Disk {
        bytes: Cursor<Vec<u8>>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let left = self.room - self.bytes.position() as usize;
            if left == 0 && !bytes.is_empty() {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.bytes.write(&bytes[..bytes.len().min(left)])
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seek for Disk {
        fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
            self.bytes.seek(to)
        }
    }

    /// Whatever of the event that was too much went to the disk, the file stays readable, with all events before it.
    #[test]
    fn a_disk_that_fills_midway_leaves_a_complete_file() {
        for room in 100..200 {
            let disk = Disk { bytes: Cursor::new(Vec::new()), room };
            let mut file = TraceFile::new(disk, 1 << 20).unwrap();
            let mut write = |n: u64| file.append(n, &format!(r#"{{"n":{n}}}"#)).and_then(|()| file.flush());
            let written = (0..100).take_while(|n| write(*n).is_ok()).count();
            assert!(written > 0, "room for {room}");
            assert_eq!(write(written as u64).unwrap_err().kind(), io::ErrorKind::StorageFull, "room for {room}");
            let numbers: Vec<u64> =
                parsed(file.out.bytes.get_ref()).iter().map(|event| event["n"].as_u64().unwrap()).collect();
            assert_eq!(numbers, (0..written as u64).collect::<Vec<_>>(), "room for {room}");
        }
    }

    #[test]
    fn a_tensors_life_is_as_horovod_writes_it() {
        let mut t = trace(1 << 20);
        for (at, what) in [
            (10, Step::Negotiate("ALLREDUCE")),
            (10, Step::RankReady(0)),
            (15, Step::RankReady(1)),
            (16, Step::Negotiated),
            (17, Step::Start("ALLREDUCE")),
            (18, Step::Begin(activity::MEMCPY_IN_FUSION_BUFFER)),
            (19, Step::End),
            (20, Step::BeginOn("CORRO_ALLREDUCE", "host", Some("int8"))),
            (29, Step::End),
            (30, Step::Done(DType::F32, Shape(vec![2, 3]))),
        ] {
            t.take(step("grad", at, what)).unwrap();
        }
        t.take(Event::Cycle { at: us(31) }).unwrap();
        t.flush().unwrap();
        let events = parsed(t.file.out.get_ref());
        let expected = parsed(
            br#"[{"name":"process_name","ph":"M","pid":0,"args":{"start_time_since_epoch_in_micros":1234}},
            {"name":"process_sort_index","ph":"M","pid":0,"args":{"sort_index":0}},
            {"name":"process_name","ph":"M","pid":1,"args":{"name":"grad"}},
            {"name":"process_sort_index","ph":"M","pid":1,"args":{"sort_index":1}},
            {"ph":"B","name":"NEGOTIATE_ALLREDUCE","ts":10,"pid":1},
            {"ph":"X","name":"0","ts":10,"pid":1,"dur":0},
            {"ph":"X","name":"1","ts":15,"pid":1,"dur":0},
            {"ph":"E","ts":16,"pid":1},
            {"ph":"B","name":"ALLREDUCE","ts":17,"pid":1},
            {"ph":"B","name":"MEMCPY_IN_FUSION_BUFFER","ts":18,"pid":1},
            {"ph":"E","ts":19,"pid":1},
            {"ph":"B","name":"CORRO_ALLREDUCE","ts":20,"pid":1,"args":{"plane":"host","compression":"int8"}},
            {"ph":"E","ts":29,"pid":1},
            {"ph":"E","ts":30,"pid":1,"args":{"dtype":"float32","shape":"[2, 3]"}},
            {"ph":"i","name":"CYCLE_START","ts":31,"s":"g"}]"#,
        );
        assert_eq!(events, expected);
    }

    #[test]
    fn it_starts_and_stops_at_run_time_each_time_in_a_file_of_its_own() {
        let folder = Folder::new("switch");
        let file = |name: &str| folder.0.join(name);
        let mut timeline = Timeline::default();
        timeline.step("off", us(1), || unreachable!("nobody listens"));
        for (name, cycles) in [("one.json", true), ("two.json", false)] {
            timeline.start(&file(name), CAP, cycles, us(5)).unwrap();
            assert!(timeline.is_on());
            timeline.step(name, us(7), || Step::Start("ALLGATHER"));
            timeline.cycle(us(8));
        }
        timeline.stop().unwrap();
        timeline.stop().unwrap();
        assert!(!timeline.is_on());
        for (name, last) in [("one.json", "CYCLE_START"), ("two.json", "ALLGATHER")] {
            let events = parsed(&std::fs::read(file(name)).unwrap());
            assert_eq!(events[2]["args"]["name"], name);
            assert_eq!((&events[4]["ts"], &events.last().unwrap()["name"]), (&2.into(), &last.into()));
        }
        assert!(timeline.start(Path::new("/nowhere/at/all.json"), CAP, false, us(0)).is_err());
        assert!(!timeline.is_on());
    }

    #[test]
    fn a_full_queue_drops_and_the_file_says_how_many() {
        /// Lets the first event wait until the queue has run over.
        struct Slow(HorovodTrace<File>, Receiver<()>);
        impl Sink<Event> for Slow {
            fn take(&mut self, event: Event) -> io::Result<()> {
                let _ = self.1.recv();
                self.0.take(event)
            }
            fn dropped(&mut self, events: u64) -> io::Result<()> {
                self.0.dropped(events)
            }
            fn flush(&mut self) -> io::Result<()> {
                self.0.flush()
            }
        }
        let folder = Folder::new("dropped");
        let path = folder.0.join("dropped.json");
        let (go, wait) = sync_channel(1);
        let sink = Slow(HorovodTrace::new(File::create(&path).unwrap(), CAP, 0, us(0)).unwrap(), wait);
        let writer = Background::new("test", 4, sink).unwrap();
        (0..20).for_each(|at| writer.send(Event::Cycle { at: us(at) }));
        drop(go);
        writer.finish().unwrap();
        let events = parsed(&std::fs::read(path).unwrap());
        let cycles = events.iter().filter(|e| e["name"] == "CYCLE_START").count() as u64;
        let dropped: u64 = events.iter().filter_map(|e| e["args"]["events"].as_u64()).sum();
        assert!(dropped >= 15 && cycles + dropped == 20, "{cycles} + {dropped}");
    }

    /// Run by the test below in a process of its own, which is killed.
    #[test]
    #[ignore = "writes until it is killed, or 20 s"]
    fn write_for_ever() {
        let mut timeline = Timeline::default();
        let path = std::env::temp_dir().join(format!("corro-killed-{}.json", std::process::id()));
        timeline.start(&path, CAP, true, us(0)).unwrap();
        for at in 0..200_000 {
            (0..64).for_each(|_| timeline.cycle(us(at)));
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    #[test]
    fn the_file_is_valid_after_kill_9() {
        for round in 0..5 {
            let mut child = std::process::Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "watch::timeline::tests::write_for_ever", "--ignored"])
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap();
            let path = std::env::temp_dir().join(format!("corro-killed-{}.json", child.id()));
            let long_enough = |n: u64| std::fs::metadata(&path).is_ok_and(|m| m.len() > n);
            let patience = std::time::Instant::now();
            while !long_enough(10_000 * (round + 1)) && patience.elapsed().as_secs() < 20 {
                std::thread::sleep(Duration::from_millis(1));
            }
            child.kill().unwrap();
            child.wait().unwrap();
            let events = parsed(&std::fs::read(&path).unwrap());
            std::fs::remove_file(&path).unwrap();
            assert!(events.len() > 100, "{}", events.len());
        }
    }

    #[test]
    fn a_failing_disk_ends_the_timeline_not_the_training() {
        let mut timeline = Timeline::default();
        // Opens, and refuses every write.
        let started = timeline.start(Path::new("/dev/full"), CAP, true, us(0));
        assert!(started.is_err() && !timeline.is_on());
        timeline.cycle(us(1));
    }

    proptest! {
        #[test]
        fn any_name_is_kept(name in any::<String>()) {
            let mut t = trace(1 << 20);
            t.take(step(&name, 1, Step::Start("BROADCAST"))).unwrap();
            t.flush().unwrap();
            let events = parsed(t.file.out.get_ref());
            prop_assert_eq!(events[2]["args"]["name"].as_str(), Some(name.as_str()));
        }

        #[test]
        fn the_file_is_valid_after_every_write_and_stays_within_its_limit(
            cap in 1024u64..20_000, lengths in proptest::collection::vec((0usize..300, any::<bool>()), 0..200),
        ) {
            let mut t = trace(cap);
            let mut before = t.file.out.get_ref().clone();
            for (i, (length, flush)) in lengths.into_iter().enumerate() {
                t.take(step(&"x".repeat(length), i as u64, Step::Start("ALLREDUCE"))).unwrap();
                if flush {
                    t.flush().unwrap();
                }
                if *t.file.out.get_ref() != before {
                    before.clone_from(t.file.out.get_ref());
                    parsed(&before);
                    prop_assert!(before.len() as u64 <= cap);
                }
            }
            t.flush().unwrap();
            let last = parsed(t.file.out.get_ref()).pop().unwrap();
            prop_assert_eq!(t.file.full, last["name"] == "TIMELINE_FULL");
        }
    }
}
