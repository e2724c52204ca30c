//! What values a knob takes, and the words in which a wrong one is refused. Pure.

use std::fmt;
use std::time::Duration;

/// What values a knob takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Anything: a name, a path, a list.
    Text,
    /// Yes or no.
    Flag,
    /// Yes, no, or `auto` for the default.
    FlagOrAuto,
    /// A whole number between these two.
    Count(u64, u64),
    /// Any number between these two.
    Amount(f64, f64),
    /// A length of time in seconds; a fraction is fine.
    Seconds,
    /// Whole numbers from 0, with commas between them.
    Counts,
    /// How much: a whole number from 0 to this one, or yes (1) or no (0).
    Degree(u64),
    /// One of these words, in any case.
    OneOf(&'static [&'static str]),
}

impl Kind {
    /// Whether `text` is a value of this kind.
    pub fn takes(self, text: &str) -> bool {
        let text = text.trim();
        let is_one_of = |words: &[&str]| words.iter().any(|word| text.eq_ignore_ascii_case(word));
        match self {
            Self::Text => true,
            Self::Flag => flag(text).is_some(),
            Self::FlagOrAuto => flag(text).is_some() || is_one_of(&["auto"]),
            Self::Count(least, most) => text.parse().is_ok_and(|n: u64| (least..=most).contains(&n)),
            Self::Amount(least, most) => text.parse().is_ok_and(|n: f64| (least..=most).contains(&n)),
            Self::Seconds => seconds(text).is_some(),
            Self::Counts => text.split(',').all(|n| n.trim().parse::<u64>().is_ok()),
            Self::Degree(most) => degree(text).is_some_and(|n| n <= most),
            Self::OneOf(words) => is_one_of(words),
        }
    }
}

/// Reads as "is not ...", and as a cell of the table in `docs/environment.md`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text => f.write_str("text"),
            Self::Flag => f.write_str("1 or 0"),
            Self::FlagOrAuto => f.write_str("1, 0 or auto"),
            Self::Count(least, u64::MAX) => write!(f, "a whole number from {least}"),
            Self::Count(least, most) => write!(f, "a whole number from {least} to {most}"),
            Self::Amount(least, most) => write!(f, "a number from {least} to {most}"),
            Self::Seconds => f.write_str("a number of seconds"),
            Self::Counts => f.write_str("a list such as 0,2,4"),
            Self::Degree(most) => write!(f, "a whole number from 0 to {most}, off or on"),
            Self::OneOf(words) => match words.split_last() {
                Some((last, rest)) if !rest.is_empty() => write!(f, "{} or {last}", rest.join(", ")),
                _ => f.write_str(&words.join(", ")),
            },
        }
    }
}

/// Horovod's rule for booleans is that a leading whole number above zero is yes; the common words work too. `None`: it is
/// neither, which Horovod takes for no.
pub(super) fn flag(text: &str) -> Option<bool> {
    match text.trim().to_ascii_lowercase().as_str() {
        "true" | "yes" | "on" => Some(true),
        "false" | "no" | "off" => Some(false),
        other => {
            let digits: String = other.chars().take_while(char::is_ascii_digit).collect();
            // Digits that are too many for a number are above zero, too.
            (!digits.is_empty()).then(|| digits.bytes().any(|d| d != b'0'))
        }
    }
}

fn degree(text: &str) -> Option<u64> {
    text.parse().ok().or_else(|| flag(text).filter(|_| !text.starts_with(|c: char| c.is_ascii_digit())).map(u64::from))
}

pub(super) fn seconds(text: &str) -> Option<Duration> {
    text.trim().parse::<f64>().ok().and_then(|s| Duration::try_from_secs_f64(s).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_at_the_edges() {
        for (kind, text, want) in [
            (Kind::Count(0, 64 << 30), "68719476736", true),
            (Kind::Count(0, 64 << 30), "68719476737", false),
            (Kind::Count(0, 64 << 30), "18446744073709551615", false),
            (Kind::Count(1, 9), "0", false),
            (Kind::Count(1, 9), "1.5", false),
            (Kind::Amount(0.0, 1.0), "1", true),
            (Kind::Amount(0.0, 1.0), "1.01", false),
            (Kind::Amount(0.0, 1.0), "nan", false),
            (Kind::Seconds, "0.5", true),
            (Kind::Seconds, "-1", false),
            (Kind::Seconds, "soon", false),
            (Kind::Counts, "0, 2,4", true),
            (Kind::Counts, "0,,4", false),
            (Kind::Flag, "ture", false),
            (Kind::Degree(2), "off", true),
            (Kind::Degree(2), "Yes", true),
            (Kind::Degree(2), "2", true),
            (Kind::Degree(2), "3", false),
            (Kind::Degree(2), "1x", false),
            (Kind::Flag, "auto", false),
            (Kind::FlagOrAuto, "AUTO", true),
            (Kind::Flag, " Yes ", true),
            (Kind::OneOf(&["info", "error"]), "INFO", true),
            (Kind::OneOf(&["info", "error"]), "loud", false),
            (Kind::Text, "", true),
        ] {
            assert_eq!(kind.takes(text), want, "{kind:?} {text:?}");
        }
    }

    #[test]
    fn kinds_read_as_a_sentence() {
        assert_eq!(Kind::Count(1, 64).to_string(), "a whole number from 1 to 64");
        assert_eq!(Kind::OneOf(&["a", "b", "c"]).to_string(), "a, b or c");
        assert_eq!(Kind::OneOf(&["a"]).to_string(), "a");
    }
}
