//! What ranks write, as the user sees it: on the launcher's own output, and in a file per rank.
//!
//! Owns the launcher's standard output and error while a job runs. Blocks when nobody reads them, and so do the ranks
//! then: nothing is thrown away.

mod clock;
mod lines;
mod ranks;

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use corro_core::{Error, Rank, Result};
use lines::{Page, Splitter, Writer};

use crate::process_id::ProcessId;

pub use ranks::Ranks;

/// How many of a rank's last lines on standard error are kept for the end, and how long each may be.
const LAST_LINES: usize = 30;
const LAST_LINE_BYTES: usize = 2000;

/// How output is shown.
#[derive(Clone, Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub struct Style {
    /// Whether each line begins with the time.
    pub timestamps: bool,
    /// Whether lines are shown as they were written, without the rank in front of them.
    pub bare: bool,
    /// Whose lines are shown; `None`: everyone's. Files and last words are those of all ranks in any case.
    pub only: Option<Ranks>,
    /// The process that has the user's terminal: what it writes is shown as it comes, a prompt at once.
    pub terminal: Option<ProcessId>,
    /// Whether prefixes are coloured.
    pub colour: bool,
    /// Whether standard output and error end up in the same place, so that lines of both must not mix.
    pub same_place: bool,
    /// Where each rank's output is written as well.
    pub directory: Option<PathBuf>,
}

/// Where output goes.
pub struct Output {
    style: Style,
    /// Standard output, then standard error.
    sinks: [Box<dyn Write + Send>; 2],
    pages: [Page; 2],
    writers: BTreeMap<Writer, OneWriter>,
    last: BTreeMap<ProcessId, VecDeque<Vec<u8>>>,
    /// In an elastic job, where a process is not always the same rank: what it is called now.
    labels: BTreeMap<ProcessId, String>,
    size: usize,
    files_failed: bool,
    sinks_failed: bool,
}

#[derive(Default)]
struct OneWriter {
    splitter: Splitter,
    file: Option<BufWriter<File>>,
    page: Page,
}

impl Output {
    /// Output for ranks `0..size`, whose files are opened now so that a wrong directory is told before anything starts.
    pub fn new(style: Style, size: usize, sinks: [Box<dyn Write + Send>; 2]) -> Result<Self> {
        let mut writers = BTreeMap::new();
        for process in Rank::all(size).map(ProcessId::of_rank) {
            for (error, name) in [(false, "stdout"), (true, "stderr")] {
                let path = style.directory.as_ref().map(|d| directory_of(d, process, size).join(name));
                let file = path.map(|path| create(&path)).transpose()?;
                writers.insert((process, error), OneWriter { file, ..OneWriter::default() });
            }
        }
        let pages = [Page::default(), Page::default()];
        let (last, labels) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { style, sinks, pages, writers, last, labels, size, files_failed: false, sinks_failed: false })
    }

    /// Output of one more process, in an elastic job.
    pub(crate) fn add(&mut self, worker: ProcessId, label: String) -> Result<()> {
        for (error, name) in [(false, "stdout"), (true, "stderr")] {
            let path = self.style.directory.as_ref().map(|d| directory_of(d, worker, self.size).join(name));
            let file = path.map(|path| create(&path)).transpose()?;
            self.writers.entry((worker, error)).or_insert_with(|| OneWriter { file, ..OneWriter::default() });
        }
        self.label(worker, label);
        Ok(())
    }

    /// What lines of `worker` begin with from now on.
    pub(crate) fn label(&mut self, worker: ProcessId, label: String) {
        self.labels.insert(worker, label);
    }

    /// Forgets a process that has ended, except its last words.
    pub(crate) fn forget(&mut self, worker: ProcessId) {
        for error in [false, true] {
            self.writers.remove(&(worker, error));
        }
    }

    /// Shows what `process` wrote. Fails if nobody reads it; that it can't be written for another reason is told once.
    pub fn put(&mut self, process: ProcessId, error: bool, bytes: &[u8]) -> std::io::Result<()> {
        let mut whole = Vec::new();
        if self.style.terminal == Some(process) {
            whole.push(bytes.to_vec());
        } else if let Some(writer) = self.writers.get_mut(&(process, error)) {
            writer.splitter.feed(bytes, |line| whole.push(line.to_vec()));
        }
        self.show((process, error), &whole)
    }

    /// A process writes no more: what it left unfinished is shown too.
    pub fn finish(&mut self, process: ProcessId) -> std::io::Result<()> {
        for error in [false, true] {
            let mut whole = Vec::new();
            if let Some(writer) = self.writers.get_mut(&(process, error)) {
                writer.splitter.finish(|line| whole.push(line.to_vec()));
            }
            self.show((process, error), &whole)?;
        }
        Ok(())
    }

    /// The last a process wrote to standard error.
    pub fn last_lines(&self, process: ProcessId) -> Vec<String> {
        let lines = self.last.get(&process).into_iter().flatten();
        lines.map(|line| String::from_utf8_lossy(line).trim_end().to_owned()).collect()
    }

    /// Says something in the launcher's own name, on a line of its own.
    pub fn say(&mut self, text: &str) {
        let gap = if self.pages[usize::from(!self.style.same_place)].close() { "\n" } else { "" };
        let _ = writeln!(self.sinks[1], "{gap}{text}").and_then(|()| self.sinks[1].flush());
    }

    /// Ends every line and writes everything to its file.
    pub fn close(&mut self) {
        for (page, sink) in self.pages.iter_mut().zip(&mut self.sinks) {
            if page.close() {
                let _ = sink.write_all(b"\n");
            }
            let _ = sink.flush();
        }
        for writer in self.writers.values_mut() {
            if let Some(file) = &mut writer.file {
                let _ = file.flush();
            }
        }
    }

    fn show(&mut self, writer: Writer, whole: &[Vec<u8>]) -> std::io::Result<()> {
        if whole.is_empty() {
            return Ok(());
        }
        let (process, error) = writer;
        let plain = self.prefix(process, error);
        let prefix = if self.style.colour { coloured(process, &plain) } else { plain.clone() };
        let page = usize::from(error && !self.style.same_place);
        let shown = self.is_shown(process);
        let mut out = Vec::new();
        for line in whole {
            if shown {
                self.pages[page].put(writer, prefix.as_bytes(), line, &mut out);
            }
            if error {
                remember(self.last.entry(process).or_default(), line);
            }
        }
        self.write_file(writer, &plain, whole);
        if out.is_empty() {
            return Ok(());
        }
        let sink = &mut self.sinks[usize::from(error)];
        match sink.write_all(&out).and_then(|()| sink.flush()) {
            Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
                // A full disk, for instance. The job is worth more than its log.
                if !std::mem::replace(&mut self.sinks_failed, true) {
                    let name = if error { "standard error" } else { "standard output" };
                    self.say(&format!("corro: what ranks write to {name} is lost ({e}); the job goes on"));
                }
                Ok(())
            }
            written => written,
        }
    }

    fn write_file(&mut self, writer: Writer, prefix: &str, whole: &[Vec<u8>]) {
        let Some(OneWriter { file: Some(file), page, .. }) = self.writers.get_mut(&writer) else { return };
        let mut out = Vec::new();
        for line in whole {
            page.put(writer, prefix.as_bytes(), line, &mut out);
        }
        // Readers may follow the file while the job runs, so nothing is held back.
        if let Err(e) = file.write_all(&out).and_then(|()| file.flush())
            && !std::mem::replace(&mut self.files_failed, true)
        {
            // The job is worth more than its log.
            self.say(&format!("corro: the output of rank {} can't be written to its file: {e}", writer.0));
        }
    }

    fn is_shown(&self, process: ProcessId) -> bool {
        let Some(only) = self.style.only.as_ref().filter(|_| self.style.terminal != Some(process)) else { return true };
        // A process of an elastic job is called by its rank once it has one.
        let rank = self.labels.get(&process).map_or(Some(process.rank()), |label| label.parse().ok());
        rank.is_some_and(|rank| only.contains(rank))
    }

    fn prefix(&self, process: ProcessId, error: bool) -> String {
        let time = if self.style.timestamps { clock::now() } else { String::new() };
        if self.style.terminal == Some(process) {
            return String::new();
        }
        if self.style.bare {
            return time;
        }
        let stream = if error { "stderr" } else { "stdout" };
        match self.labels.get(&process) {
            Some(label) => format!("{time}[{label}]<{stream}>:"),
            None => format!("{time}[{process}]<{stream}>:"),
        }
    }
}

fn remember(lines: &mut VecDeque<Vec<u8>>, line: &[u8]) {
    if lines.len() == LAST_LINES {
        lines.pop_front();
    }
    lines.push_back(line[..line.len().min(LAST_LINE_BYTES)].to_vec());
}

/// `DIR/rank.07` of twelve ranks.
fn directory_of(directory: &Path, process: ProcessId, size: usize) -> PathBuf {
    let width = (size.max(1) - 1).to_string().len();
    directory.join(format!("rank.{process:0width$}"))
}

fn create(path: &Path) -> Result<BufWriter<File>> {
    let doing = || format!("creating {} for --output-filename", path.display());
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).map_err(|e| Error::io(doing(), e))?;
    }
    File::create(path).map(BufWriter::new).map_err(|e| Error::io(doing(), e))
}

/// Colours that can be read on light and on dark.
fn coloured(process: ProcessId, prefix: &str) -> String {
    const COLOURS: [u8; 6] = [36, 33, 35, 32, 34, 31];
    if prefix.is_empty() {
        return String::new();
    }
    format!("\x1b[{}m{prefix}\x1b[0m", COLOURS[process.number() % COLOURS.len()])
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;

    #[derive(Clone, Default)]
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn process(number: usize) -> ProcessId {
        ProcessId::of_rank(Rank::new(number))
    }

    fn style() -> Style {
        Style::default()
    }

    fn output(style: Style, size: usize) -> (Output, impl Fn() -> (String, String)) {
        let (out, err) = (Shared::default(), Shared::default());
        let output = Output::new(style, size, [Box::new(out.clone()), Box::new(err.clone())]).unwrap();
        let text = |s: &Shared| String::from_utf8_lossy(&s.0.lock().unwrap()).into_owned();
        (output, move || (text(&out), text(&err)))
    }

    #[test]
    fn prefixes_as_horovods_users_know_them() {
        let (mut output, shown) = output(style(), 2);
        output.put(process(0), false, b"hel").unwrap();
        output.put(process(1), false, b"one\ntwo\n").unwrap();
        output.put(process(0), false, b"lo\n").unwrap();
        output.put(process(1), true, b"oh").unwrap();
        output.finish(process(1)).unwrap();
        output.say("end");
        assert_eq!(shown().0, "[1]<stdout>:one\n[1]<stdout>:two\n[0]<stdout>:hello\n");
        assert_eq!(shown().1, "[1]<stderr>:oh\nend\n");
        assert_eq!(output.last_lines(process(1)), ["oh"]);
    }

    #[test]
    fn hidden_ranks_keep_their_files_and_last_words() {
        let directory = std::env::temp_dir().join(format!("corro-hidden-{}", std::process::id()));
        let only = Some(Ranks::parse("1", "--ranks").unwrap());
        let (mut output, shown) = output(Style { only, directory: Some(directory.clone()), ..style() }, 2);
        for rank in 0..2 {
            output.put(process(rank), false, b"hello\n").unwrap();
            output.put(process(rank), true, b"oh\n").unwrap();
        }
        assert_eq!(shown(), ("[1]<stdout>:hello\n".into(), "[1]<stderr>:oh\n".into()));
        assert_eq!(output.last_lines(process(0)), ["oh"]);
        output.close();
        assert_eq!(std::fs::read(directory.join("rank.0/stdout")).unwrap(), b"[0]<stdout>:hello\n");
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_worker_is_shown_while_its_rank_is_wanted() {
        let only = Some(Ranks::parse("0", "--ranks").unwrap());
        let (mut output, shown) = output(Style { only, bare: true, colour: true, ..style() }, 0);
        output.add(process(7), "new".into()).unwrap();
        output.put(process(7), false, b"unseated\n").unwrap();
        output.label(process(7), "0".into());
        output.put(process(7), false, b"seated\n").unwrap();
        output.label(process(7), "1".into());
        output.put(process(7), false, b"moved\n").unwrap();
        assert_eq!(shown().0, "seated\n");
    }

    #[test]
    fn a_prompt_is_shown_at_once() {
        let (mut output, shown) = output(Style { terminal: Some(process(1)), ..style() }, 2);
        output.put(process(1), false, b"(Pdb) ").unwrap();
        assert_eq!(shown().0, "(Pdb) ");
        output.put(process(0), false, b"one\n").unwrap();
        output.put(process(1), false, b"x\r\n").unwrap();
        assert_eq!(shown().0, "(Pdb) \n[0]<stdout>:one\nx\r\n");
    }

    #[test]
    fn bare_lines_are_still_whole() {
        let (mut output, shown) = output(Style { bare: true, ..style() }, 2);
        output.put(process(0), false, b"op").unwrap();
        output.put(process(1), false, b"one\n").unwrap();
        output.put(process(0), false, b"en\n").unwrap();
        assert_eq!(shown().0, "one\nopen\n");
    }

    #[test]
    fn one_terminal_is_one_page() {
        let (mut output, shown) = output(Style { same_place: true, colour: true, ..style() }, 1);
        output.put(process(0), false, b"open").unwrap();
        output.finish(process(0)).unwrap();
        output.put(process(0), true, b"x\n").unwrap();
        // The break that ends the open line goes to whoever writes next; both are one screen.
        assert_eq!(shown().0, "\x1b[36m[0]<stdout>:\x1b[0mopen");
        assert_eq!(shown().1, "\n\x1b[36m[0]<stderr>:\x1b[0mx\n");
    }

    #[test]
    fn files_lie_where_horovod_puts_them() {
        let names = |size| directory_of(Path::new("d"), process(0), size).display().to_string();
        assert_eq!([1, 2, 10, 11, 101].map(names), ["d/rank.0", "d/rank.0", "d/rank.0", "d/rank.00", "d/rank.000"]);
        let directory = std::env::temp_dir().join(format!("corro-output-{}", std::process::id()));
        let (mut output, shown) = output(Style { directory: Some(directory.clone()), colour: true, ..style() }, 2);
        output.put(process(1), false, b"a\n\xffb").unwrap();
        output.finish(process(1)).unwrap();
        output.close();
        assert_eq!(std::fs::read(directory.join("rank.1/stdout")).unwrap(), b"[1]<stdout>:a\n[1]<stdout>:\xffb");
        assert_eq!(std::fs::read(directory.join("rank.0/stderr")).unwrap(), b"");
        assert!(shown().0.contains("a\n"));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
