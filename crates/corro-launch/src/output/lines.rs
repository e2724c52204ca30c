//! Cutting what ranks write into lines, and putting lines of many writers onto one page.
//!
//! Pure, and safe for any bytes. A piece of a line is never mixed with another writer's: a line begun is finished, or
//! closed by a line break, before another one writes.

use crate::process_id::ProcessId;

/// Longest line that is held back until it is complete.
const LONGEST: usize = 64 * 1024;

/// What one writer has begun and not finished.
#[derive(Debug, Default)]
pub(super) struct Splitter {
    pending: Vec<u8>,
}

impl Splitter {
    /// Takes `bytes` and calls `line` for each line, with its end: a line feed, or a carriage return (which a progress bar
    /// uses to write over itself), or nothing if it is too long to be held back.
    pub(super) fn feed(&mut self, bytes: &[u8], mut line: impl FnMut(&[u8])) {
        self.pending.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(end) = line_end(&self.pending[from..]) {
            let piece = &self.pending[from..from + end];
            // A return at the very start of a bar ends nothing.
            if piece != b"\r" {
                line(piece);
            }
            from += end;
        }
        if self.pending.len() - from > LONGEST {
            line(&self.pending[from..]);
            from = self.pending.len();
        }
        self.pending.drain(..from);
    }

    /// The end of it all: what is left is a line.
    pub(super) fn finish(&mut self, line: impl FnOnce(&[u8])) {
        let rest = std::mem::take(&mut self.pending);
        if !rest.is_empty() && rest != b"\r" {
            line(&rest);
        }
    }
}

/// Where the first line of `bytes` ends, if it is known.
fn line_end(bytes: &[u8]) -> Option<usize> {
    let at = bytes.iter().position(|b| matches!(b, b'\n' | b'\r'))?;
    match (bytes[at], bytes.get(at + 1)) {
        (b'\r', Some(b'\n')) => Some(at + 2),
        // It may be the first half of a line break.
        (b'\r', None) => None,
        _ => Some(at + 1),
    }
}

/// Who writes: a process, and whether it is its standard error.
pub(super) type Writer = (ProcessId, bool);

/// Something many writers write lines to: a terminal, a file.
#[derive(Debug, Default)]
pub(super) struct Page {
    state: State,
}

#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    /// At the start of a line.
    #[default]
    Fresh,
    /// Behind a carriage return of this writer: it may write over its line.
    Returned(Writer),
    /// Inside a line of this writer.
    Open(Writer),
}

impl Page {
    /// Adds `line` of `writer`, with `prefix` in front unless the line goes on.
    pub(super) fn put(&mut self, writer: Writer, prefix: &[u8], line: &[u8], out: &mut Vec<u8>) {
        match self.state {
            State::Open(same) if same == writer => {}
            State::Returned(other) | State::Open(other) if other != writer => {
                out.push(b'\n');
                out.extend_from_slice(prefix);
            }
            _ => out.extend_from_slice(prefix),
        }
        out.extend_from_slice(line);
        self.state = match line.last() {
            Some(b'\n') => State::Fresh,
            Some(b'\r') => State::Returned(writer),
            _ => State::Open(writer),
        };
    }

    /// Whether a line break must come before anything else is written.
    pub(super) fn close(&mut self) -> bool {
        std::mem::take(&mut self.state) != State::Fresh
    }
}

#[cfg(test)]
mod tests {
    use corro_core::Rank;
    use proptest::prelude::*;

    use super::*;

    fn split(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut splitter = Splitter::default();
        let mut lines = Vec::new();
        for piece in pieces {
            splitter.feed(piece, |l| lines.push(l.to_vec()));
        }
        splitter.finish(|l| lines.push(l.to_vec()));
        lines
    }

    #[test]
    fn lines_end_with_feed_return_or_both() {
        type Lines = &'static [&'static [u8]];
        let cases: &[(Lines, Lines)] = &[
            (&[b"a\nb"], &[b"a\n", b"b"]),
            (&[b"a", b"b\n\n"], &[b"ab\n", b"\n"]),
            (&[b"a\r\nb\r\n"], &[b"a\r\n", b"b\r\n"]),
            (&[b"a\r", b"\nb\n"], &[b"a\r\n", b"b\n"]),
            // tqdm's way: the return comes first.
            (&[b"\r 10%", b"\r 20%", b"\r 30%\n"], &[b" 10%\r", b" 20%\r", b" 30%\n"]),
            (&[b"\xff\0\n"], &[b"\xff\0\n"]),
            (&[], &[]),
        ];
        for (pieces, want) in cases {
            assert_eq!(split(pieces), *want, "{pieces:?}");
        }
    }

    #[test]
    fn very_long_lines_are_passed_on_in_parts() {
        let long = vec![b'x'; LONGEST + 1];
        assert_eq!(split(&[&long, b"y\n"]), [long.clone(), b"y\n".to_vec()]);
    }

    #[test]
    fn writers_never_share_a_line() {
        let (a, b) = ((ProcessId::of_rank(Rank::ZERO), false), (ProcessId::of_rank(Rank::new(1)), false));
        let mut page = Page::default();
        let mut out = Vec::new();
        for (writer, line) in
            [(a, "10%\r"), (a, "20%\r"), (b, "hello\n"), (a, "30%\r"), (a, "long"), (a, "er"), (b, "x\n")]
        {
            page.put(writer, format!("[{}]", writer.0).as_bytes(), line.as_bytes(), &mut out);
        }
        assert_eq!(String::from_utf8(out).unwrap(), "[0]10%\r[0]20%\r\n[1]hello\n[0]30%\r[0]longer\n[1]x\n");
        assert!(!page.close());
        page.put(a, b"", b"open", &mut Vec::new());
        assert!(page.close() && !page.close());
    }

    proptest! {
        #[test]
        fn no_byte_is_lost_except_lone_returns(pieces in proptest::collection::vec(proptest::collection::vec(
            prop_oneof![Just(b'\n'), Just(b'\r'), Just(b'a'), any::<u8>()], 0..20), 0..10)) {
            let borrowed: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let lines = split(&borrowed);
            let keep = |bytes: &[u8]| bytes.iter().copied().filter(|b| *b != b'\r').collect::<Vec<u8>>();
            prop_assert_eq!(keep(&lines.concat()), keep(&pieces.concat()));
            // However it was cut, the lines are the same.
            prop_assert_eq!(split(&[&pieces.concat()]), lines);
        }
    }
}
