//! What a line of the log looks like: `[2026-11-15 05:10:11.123456: W registry.rs:77] [3 node2]: text`. Pure.

use std::fmt::{self, Write};
use std::time::{SystemTime, UNIX_EPOCH};

use tracing::Level;

/// One line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// When; `None`: the user does not want to see it.
    pub at: Option<SystemTime>,
    /// How much it matters.
    pub level: Level,
    /// Where in the source it comes from.
    pub file: &'a str,
    /// The line there.
    pub number: u32,
    /// Whose line it is.
    pub speaker: &'a str,
    /// What is said.
    pub text: &'a str,
}

impl Line<'_> {
    /// For terminals: what is in brackets steps back, and the letter shows how much it matters.
    pub fn coloured(&self) -> String {
        let colour = match self.level {
            Level::ERROR => 31,
            Level::WARN => 33,
            _ => 36,
        };
        format!("\x1b[{colour}m{}\x1b[0m {}", self.head(), Printable(self.text))
    }

    /// For programs: one object a line, whatever the text has in it. What is empty is left out.
    pub fn json(&self) -> String {
        let mut object = String::from("{");
        if let Some(at) = self.at {
            let _ = write!(object, "\"time\":\"{}Z\",", timestamp(at).replace(' ', "T"));
        }
        let level = match self.level {
            Level::TRACE => "trace",
            Level::DEBUG => "debug",
            Level::INFO => "info",
            Level::WARN => "warning",
            Level::ERROR => "error",
        };
        let _ = write!(
            object,
            "\"level\":\"{level}\",\"file\":\"{}\",\"line\":{},\"speaker\":\"{}\",\"text\":\"{}\"}}",
            Quoted(self.file),
            self.number,
            Quoted(self.speaker),
            Quoted(self.text)
        );
        object
    }

    fn head(&self) -> String {
        let time = self.at.map(|at| format!("{}: ", timestamp(at))).unwrap_or_default();
        let letter = match self.level {
            Level::TRACE => 'T',
            Level::DEBUG => 'D',
            Level::INFO => 'I',
            Level::WARN => 'W',
            Level::ERROR => 'E',
        };
        format!("[{time}{letter} {}:{}] [{}]:", self.file, self.number, Printable(self.speaker))
    }
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.head(), Printable(self.text))
    }
}

/// Text that may come from a stranger: what could move a terminal's cursor is shown, not done.
struct Printable<'a>(&'a str);

impl fmt::Display for Printable<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            if c.is_control() && !['\n', '\t'].contains(&c) {
                write!(f, "{}", c.escape_default())?;
            } else {
                f.write_char(c)?;
            }
        }
        Ok(())
    }
}

/// Text as it stands between the quotes of a JSON string.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '"' | '\\' => write!(f, "\\{c}")?,
                // Line separators are no control characters, but some readers of lines break at them.
                _ if c.is_control() || ['\u{2028}', '\u{2029}'].contains(&c) => write!(f, "\\u{:04x}", u32::from(c))?,
                _ => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

/// `2026-11-15 05:10:11.123456`, universal time.
fn timestamp(at: SystemTime) -> String {
    let since = at.duration_since(UNIX_EPOCH).unwrap_or_default();
    let (days, second) = (since.as_secs() / 86400, since.as_secs() % 86400);
    // Days since 1970 to a date, by eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute) = (second / 3600, second / 60 % 60);
    format!("{year}-{month:02}-{day:02} {hour:02}:{minute:02}:{:02}.{:06}", second % 60, since.subsec_micros())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_are_written_as_dates() {
        let at = |seconds| timestamp(UNIX_EPOCH + Duration::new(seconds, 5000));
        assert_eq!(at(0), "1970-01-01 00:00:00.000005");
        assert_eq!(at(951_782_400 + 3661), "2000-02-29 01:01:01.000005");
        assert_eq!(at(1_794_719_411), "2026-11-15 05:10:11.000005");
    }

    #[test]
    fn as_json_a_line_is_one_object_whatever_it_says() {
        let text = "say \"no\"\n\x1b[2J \u{2028}\\";
        let line = Line { at: Some(UNIX_EPOCH), level: Level::WARN, file: "a.rs", number: 3, speaker: "3 node", text };
        assert_eq!(
            line.json(),
            r#"{"time":"1970-01-01T00:00:00.000000Z","level":"warning","file":"a.rs","line":3,"speaker":"3 node","text":"say \"no\"\u000a\u001b[2J \u2028\\"}"#
        );
        assert!(Line { at: None, ..line }.json().starts_with("{\"level\""));
    }

    #[test]
    fn lines_look_like_horovods_and_do_nothing_to_a_terminal() {
        let line =
            Line { at: None, level: Level::WARN, file: "a.rs", number: 3, speaker: "3", text: "slow\n\x1b[2J\r" };
        assert_eq!(line.to_string(), "[W a.rs:3] [3]: slow\n\\u{1b}[2J\\r");
        assert!(line.coloured().starts_with("\x1b[33m[W a.rs:3] [3]:\x1b[0m slow"));
        let dated = Line { at: Some(UNIX_EPOCH), ..line };
        assert!(dated.to_string().starts_with("[1970-01-01 00:00:00.000000: W a.rs:3] [3]: slow"));
    }
}
