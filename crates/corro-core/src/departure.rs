//! Why a rank leaves its job before the others have: in its own words, for its peers and for whoever started it.
//!
//! Owns the types, their limits and their texts. What an exception says comes from a program and travels to other hosts
//! and their terminals, so it is made short and harmless when it is made and again when it is read ([`Exception`]).

use serde::{Deserialize, Serialize};

use crate::Rank;

/// The longest [`Statement`], in bytes with its frame: a pipe takes that much at once or not at all.
pub const MAX_STATEMENT: usize = 4096;

const MAX_KIND: usize = 160;
const MAX_MESSAGE: usize = 1200;
const MAX_FRAMES: usize = 5;
const MAX_FILE: usize = 240;
const MAX_FUNCTION: usize = 80;
const MAX_HOST: usize = 255;
/// The longest text of another's error that a [`Statement`] carries.
const MAX_TEXT: usize = 2000;

/// An exception of a rank's program that nobody caught.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "Raw")]
pub struct Exception {
    kind: String,
    message: String,
    frames: Vec<Frame>,
}

/// A place in a program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frame {
    /// The source file.
    pub file: String,
    /// The line in it.
    pub line: u32,
    /// The function.
    pub function: String,
}

/// An [`Exception`] as it came, of any length and with anything in it.
#[derive(Deserialize)]
struct Raw {
    kind: String,
    message: String,
    frames: Vec<Frame>,
}

impl From<Raw> for Exception {
    fn from(Raw { kind, message, frames }: Raw) -> Self {
        Self::new(&kind, &message, frames)
    }
}

impl Exception {
    /// An exception of class `kind`. The last of `frames` is where it was raised; only the last few are kept.
    pub fn new(kind: &str, message: &str, frames: Vec<Frame>) -> Self {
        let surplus = frames.len().saturating_sub(MAX_FRAMES);
        let harmless = |frame: Frame| Frame {
            file: plain_end(&frame.file, MAX_FILE),
            line: frame.line,
            function: plain(&frame.function, MAX_FUNCTION),
        };
        Self {
            kind: plain(kind, MAX_KIND),
            message: plain(message, MAX_MESSAGE),
            frames: frames.into_iter().skip(surplus).map(harmless).collect(),
        }
    }

    /// Where it was raised, and from where that was called, last.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }
}

/// On one line: class, message and place.
impl std::fmt::Display for Exception {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.kind)?;
        if !self.message.is_empty() {
            write!(f, ": {}", self.message)?;
        }
        self.frames.last().map_or(Ok(()), |frame| write!(f, " ({frame})"))
    }
}

/// `train.py:42 in step`: without the folder, which differs between hosts.
impl std::fmt::Display for Frame {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = self.file.rsplit('/').next().unwrap_or(&self.file);
        write!(f, "{name}:{} in {}", self.line, self.function)
    }
}

/// Why a rank leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Reason {
    /// Its program has called `shutdown`.
    ShutDown {
        /// While it dealt with this exception.
        after: Option<Exception>,
    },
    /// Its program has come to its end.
    Ended {
        /// With this exit code, where the program has said so.
        code: Option<i32>,
        /// While it dealt with this exception.
        after: Option<Exception>,
    },
    /// Its program did not catch this.
    Raised(Exception),
}

impl Reason {
    /// What the process will exit with, as far as that is known.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::ShutDown { .. } => None,
            Self::Ended { code, .. } => *code,
            Self::Raised(_) => Some(1),
        }
    }

    /// The exception behind it.
    pub fn exception(&self) -> Option<&Exception> {
        match self {
            Self::ShutDown { after } | Self::Ended { after, .. } => after.as_ref(),
            Self::Raised(exception) => Some(exception),
        }
    }
}

/// To be read after the name of the rank.
impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ShutDown { .. } => f.write_str("has called shutdown")?,
            Self::Ended { code: None, .. } => f.write_str("has ended its program")?,
            Self::Ended { code: Some(code), .. } => write!(f, "has ended its program with exit code {code}")?,
            Self::Raised(exception) => return write!(f, "failed: {exception}"),
        }
        self.exception().map_or(Ok(()), |exception| write!(f, " after {exception}"))
    }
}

/// A rank that leaves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Departure {
    /// Who.
    pub rank: Rank,
    /// Where it runs.
    pub host: String,
    /// Why.
    pub reason: Reason,
}

/// What the others are told when an operation of theirs fails for it. It begins with Horovod's words, which programs look for.
impl std::fmt::Display for Departure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rank, reason, .. } = self;
        let host = plain(&self.host, MAX_HOST);
        match reason {
            Reason::ShutDown { after: None } => write!(f, "Horovod has been shut down (by rank {rank})"),
            Reason::ShutDown { .. } | Reason::Raised(_) => {
                write!(f, "Horovod has been shut down: rank {rank} on {host} {reason}")
            }
            Reason::Ended { .. } => write!(
                f,
                "Horovod has been shut down: rank {rank} on {host} {reason} while other ranks were still at work. All \
                 ranks must do the same number of operations; hvd.join() is for ranks that run out of data early"
            ),
        }
    }
}

/// What a rank states about its own end, for whoever started it. The first counts: what follows may be its consequence.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Statement {
    /// It leaves.
    Leaves {
        /// Why.
        reason: Reason,
        /// The rank whose fault its exception says it is: then it is a victim only.
        because_of: Option<Rank>,
    },
    /// Its program was told that the job can't go on because of another rank.
    Suffers {
        /// Because of this one.
        from: Rank,
        /// In these words.
        #[serde(deserialize_with = "plain_text")]
        text: String,
    },
    /// An exception has ended one of its threads. The process goes on.
    ThreadRaised(Exception),
    /// It joins its job again: what it has stated before is over.
    Returns,
}

impl Statement {
    /// That `text`, an error, is the fault of rank `from`.
    pub fn suffers(from: Rank, text: &str) -> Self {
        Self::Suffers { from, text: plain(text, MAX_TEXT) }
    }
}

fn plain_text<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    String::deserialize(deserializer).map(|text| plain(&text, MAX_TEXT))
}

/// `text` on one line of at most `limit` bytes, without anything a terminal would obey.
pub fn plain(text: &str, limit: usize) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = String::with_capacity(text.len().min(limit));
    let end = "...";
    for c in words.join(" ").chars() {
        let shown = shown(c);
        if line.len() + shown.len() > limit {
            let mut cut = limit.saturating_sub(end.len()).min(line.len());
            while !line.is_char_boundary(cut) {
                cut -= 1;
            }
            line.truncate(cut);
            line.push_str(end);
            break;
        }
        line.push_str(&shown);
    }
    line
}

/// As [`plain`], but keeps the end of what is too long: the end of a path says more than its beginning.
fn plain_end(text: &str, limit: usize) -> String {
    let mut from = text.len().saturating_sub(limit);
    while !text.is_char_boundary(from) {
        from += 1;
    }
    plain(&text[from..], limit)
}

fn shown(c: char) -> String {
    // What turns the direction of writing can make a line say something else.
    let turns = matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    if c.is_control() || turns { c.escape_default().to_string() } else { c.to_string() }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec;

    fn frame(file: &str, line: u32, function: &str) -> Frame {
        Frame { file: file.into(), line, function: function.into() }
    }

    fn bad() -> Exception {
        Exception::new(
            "ValueError",
            "bad\n  batch",
            vec![frame("/a/main.py", 9, "main"), frame("/a/train.py", 42, "step")],
        )
    }

    #[test]
    fn peers_are_told_who_why_and_where() {
        let departure = |reason| Departure { rank: Rank::new(1), host: "hostB".into(), reason }.to_string();
        assert_eq!(
            departure(Reason::Raised(bad())),
            "Horovod has been shut down: rank 1 on hostB failed: ValueError: bad batch (train.py:42 in step)"
        );
        assert_eq!(departure(Reason::ShutDown { after: None }), "Horovod has been shut down (by rank 1)");
        assert_eq!(
            departure(Reason::ShutDown { after: Some(bad()) }),
            "Horovod has been shut down: rank 1 on hostB has called shutdown after ValueError: bad batch (train.py:42 in step)"
        );
        let ended = departure(Reason::Ended { code: Some(3), after: Some(bad()) });
        assert!(ended.contains("rank 1 on hostB has ended its program with exit code 3 after ValueError"), "{ended}");
        let ended = departure(Reason::Ended { code: None, after: None });
        assert!(ended.contains("has ended its program while other ranks were still at work"), "{ended}");
    }

    #[test]
    fn terminals_are_not_told_what_to_do() {
        let exception =
            Exception::new("E\x1b[2J", "a\u{202e}b\r\n\x07\0c", vec![frame("\x1b]0;x\x07.py", 1, "f\u{9b}")]);
        assert_eq!(
            exception.to_string(),
            "E\\u{1b}[2J: a\\u{202e}b \\u{7}\\u{0}c (\\u{1b}]0;x\\u{7}.py:1 in f\\u{9b})"
        );
    }

    #[test]
    fn the_last_frames_and_the_end_of_paths_are_kept() {
        let deep: Vec<Frame> = (0..50).map(|n| frame(&format!("/{}/f{n}.py", "x".repeat(500)), n, "f")).collect();
        let exception = Exception::new("RecursionError", "", deep);
        assert_eq!(exception.frames().len(), MAX_FRAMES);
        assert_eq!(exception.to_string(), "RecursionError (f49.py:49 in f)");
    }

    proptest! {
        #[test]
        fn whatever_is_said_fits_and_is_harmless(
            kind in ".*", message in "(?s).{0,3000}", files in proptest::collection::vec("(?s).{0,400}", 0..9), text in "(?s).{0,3000}"
        ) {
            let frames = files.iter().map(|file| frame(file, u32::MAX, file)).collect();
            let exception = Exception::new(&kind, &message, frames);
            prop_assert!(!exception.to_string().chars().any(char::is_control));
            let reason = Reason::Ended { code: Some(i32::MIN), after: Some(exception.clone()) };
            let leaves = Statement::Leaves { reason, because_of: Some(Rank::new(usize::MAX)) };
            for statement in [leaves, Statement::suffers(Rank::new(usize::MAX), &text), Statement::ThreadRaised(exception)] {
                let bytes = codec::encode(&statement).unwrap();
                prop_assert!(bytes.len() <= MAX_STATEMENT, "{} bytes", bytes.len());
                prop_assert_eq!(codec::decode::<Statement>(&bytes[codec::LENGTH_BYTES..]).unwrap(), statement);
            }
        }

        #[test]
        fn what_comes_from_elsewhere_is_made_harmless(kind in "(?s).{0,300}", message in "(?s).{0,3000}") {
            let bytes = postcard::to_extend(&(&kind, &message, vec![frame(&message, 1, &message); 20]), Vec::new()).unwrap();
            let read: Exception = postcard::from_bytes(&bytes).unwrap();
            prop_assert!(!read.to_string().chars().any(char::is_control));
            prop_assert!(read.to_string().len() < MAX_STATEMENT);
            let bytes = codec::encode(&Statement::Suffers { from: Rank::new(1), text: message }).unwrap();
            let Statement::Suffers { text, .. } = codec::decode(&bytes[codec::LENGTH_BYTES..]).unwrap() else { panic!() };
            prop_assert!(text.len() <= MAX_TEXT && !text.chars().any(char::is_control));
        }

        #[test]
        fn making_plain_twice_changes_nothing(text in "(?s).{0,300}", limit in 3usize..100) {
            let once = plain(&text, limit);
            prop_assert!(once.len() <= limit);
            prop_assert_eq!(plain(&once, limit), once);
        }
    }
}
