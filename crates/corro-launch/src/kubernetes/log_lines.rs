//! A pod's log as `kubectl logs --timestamps` prints it: taken up again where it was cut off, without a line twice. Pure.

/// What was read so far.
#[derive(Debug, Default)]
pub(crate) struct LogLines {
    /// The beginning of a line.
    partial: Vec<u8>,
    /// The time of the last line, as it was printed.
    last: Option<String>,
    /// The same, comparable.
    last_key: String,
    /// Lines at or before that time come again after a new beginning.
    again: bool,
}

impl LogLines {
    /// From when on to ask, after the first time.
    pub(crate) fn since(&self) -> Option<&str> {
        self.last.as_deref()
    }

    /// The log is asked for again: what is known is printed again.
    pub(crate) fn begin_again(&mut self) {
        self.partial.clear();
        self.again = self.last.is_some();
    }

    /// More bytes: gives what is new in them, without times, line by line.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Vec<u8> {
        let mut new = Vec::new();
        self.partial.extend_from_slice(bytes);
        while let Some(end) = self.partial.iter().position(|b| *b == b'\n') {
            let line: Vec<u8> = self.partial.drain(..=end).collect();
            let cut = line.iter().position(|b| *b == b' ').unwrap_or(0);
            let Some((time, key)) = std::str::from_utf8(&line[..cut]).ok().and_then(|time| Some((time, key(time)?)))
            else {
                // Not the form that was asked for: shown as it is.
                new.extend_from_slice(&line);
                continue;
            };
            if self.again && key <= self.last_key {
                continue;
            }
            self.again = false;
            (self.last, self.last_key) = (Some(time.to_owned()), key);
            new.extend_from_slice(&line[cut + 1..]);
        }
        new
    }
}

/// A time that compares as a text: RFC 3339 leaves zeros at the end out.
fn key(time: &str) -> Option<String> {
    let rest = time.strip_suffix('Z')?;
    let (seconds, fraction) = rest.split_once('.').unwrap_or((rest, ""));
    let shape = seconds.len() == 19 && fraction.len() <= 9 && fraction.bytes().all(|b| b.is_ascii_digit());
    shape.then(|| format!("{seconds}.{fraction:0<9}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_come_once_whatever_the_pieces() {
        let log = b"2026-01-01T00:00:00.1Z a\n2026-01-01T00:00:00.12Z b c\n2026-01-01T00:00:01Z \n";
        for size in 1..log.len() {
            let mut lines = LogLines::default();
            let mut all = Vec::new();
            log.chunks(size).for_each(|piece| all.extend(lines.feed(piece)));
            assert_eq!(all, b"a\nb c\n\n");
            assert_eq!(lines.since(), Some("2026-01-01T00:00:01Z"));
            lines.begin_again();
            let more = b"2026-01-01T00:00:00.12Z b c\n2026-01-01T00:00:01Z \n2026-01-01T00:00:01.5Z d\n";
            assert_eq!(lines.feed(more), b"d\n");
        }
    }

    #[test]
    fn what_has_no_time_is_shown_as_it_is() {
        let mut lines = LogLines::default();
        assert_eq!(lines.feed(b"Error from server: x\n"), b"Error from server: x\n");
        assert_eq!(lines.since(), None);
    }
}
