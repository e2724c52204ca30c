//! What ranks have written, the last of it.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

/// How many lines are kept.
const MAX_LINES: usize = 4000;
/// The longest line that is kept whole, in bytes.
const MAX_LINE: usize = 2000;

/// A line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Lines before it.
    pub number: u64,
    /// Milliseconds since the job's start.
    pub at: u64,
    /// Who wrote it.
    pub who: u32,
    /// To standard error.
    pub error: bool,
    /// What, without its end.
    pub text: String,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Lines {
    kept: VecDeque<Line>,
    count: u64,
    /// What was begun and has no end yet.
    open: BTreeMap<(u32, bool), Vec<u8>>,
}

impl Lines {
    /// A process has written something.
    pub fn write(&mut self, at: u64, who: u32, error: bool, bytes: &[u8]) {
        let mut open = self.open.remove(&(who, error)).unwrap_or_default();
        for &byte in bytes {
            // A progress bar writes over its line: what it said last is the line.
            if byte == b'\n' || byte == b'\r' {
                self.end(at, who, error, &open);
                open.clear();
            } else if open.len() < MAX_LINE {
                open.push(byte);
            }
        }
        if !open.is_empty() {
            self.open.insert((who, error), open);
        }
    }

    /// A process writes no more.
    pub fn finish(&mut self, at: u64, who: u32) {
        for error in [false, true] {
            if let Some(open) = self.open.remove(&(who, error)) {
                self.end(at, who, error, &open);
            }
        }
    }

    fn end(&mut self, at: u64, who: u32, error: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let text = String::from_utf8_lossy(bytes).into_owned();
        self.kept.push_back(Line { number: self.count, at, who, error, text });
        self.count += 1;
        if self.kept.len() > MAX_LINES {
            self.kept.pop_front();
        }
    }

    /// Lines from this number on.
    pub fn since(&self, number: u64) -> impl Iterator<Item = &Line> {
        let first = self.kept.partition_point(|line| line.number < number);
        self.kept.range(first..)
    }

    /// How many there were.
    pub fn count(&self) -> u64 {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_of_one_rank() {
        let mut lines = Lines::default();
        lines.write(1, 0, false, b"hel");
        lines.write(2, 1, false, b"one\ntwo");
        lines.write(3, 0, false, b"lo\n\n");
        lines.finish(4, 1);
        let said: Vec<(u32, &str)> = lines.since(0).map(|line| (line.who, line.text.as_str())).collect();
        assert_eq!(said, [(1, "one"), (0, "hello"), (1, "two")]);
        assert_eq!(lines.since(2).count(), 1);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut lines = Lines::default();
        lines.write(0, 0, true, &vec![b'x'; 1 << 20]);
        lines.write(0, 0, true, &b"\n".repeat(10));
        for _ in 0..10_000 {
            lines.write(0, 0, true, b"again\n");
        }
        assert_eq!((lines.since(0).count(), lines.count()), (MAX_LINES, 10_001));
        assert!(lines.since(0).all(|line| line.text.len() <= MAX_LINE));
    }
}
