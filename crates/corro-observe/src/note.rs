//! What a rank tells its launcher of its life, framed by [`corro_core::codec`].
//!
//! A note is never longer than what a pipe takes at once ([`MAX_NOTE`]), so that it arrives whole or not at all. Counts are
//! totals since the rank's engine began: a note that is lost costs nothing but a moment.

use corro_core::{Result, codec};
use serde::{Deserialize, Serialize};

/// The longest note, in bytes with its frame.
pub const MAX_NOTE: usize = 4096;
/// How many ends of steps a note tells at most.
pub const MAX_MARKS: usize = 32;
/// How many tensors a note tells of at most.
pub const MAX_TENSORS: usize = 8;
/// The longest name of a tensor, a training value, a plane or a network interface that is told.
pub const MAX_NAME: usize = 120;

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Note {
    /// Who.
    pub rank: u32,
    /// How many ranks there are.
    pub size: u32,
    /// Its host.
    pub host: String,
    /// How often the members of an elastic job have met anew.
    pub epoch: u64,
    /// Steps that have ended since the last note; a few, if there were many.
    pub marks: Vec<Mark>,
    /// Whether the program's front says when a step ends. Else it is when tensors come again.
    pub steps_are_told: bool,
    /// Whether nothing of the program waits for its tensors (TensorFlow's graphs do not). Then [`Mark::waited`] is how long any were
    /// under way, which may be hidden behind computing.
    pub hidden: bool,
    /// What is counted.
    pub totals: Totals,
    /// How ranks agree at present: `announce`, `bits` or `plan`.
    pub gear: String,
    /// Collectives by who moved the bytes.
    pub planes: Vec<(String, u64)>,
    /// What the program waits for at this moment, and since how many milliseconds.
    pub waits: Option<(u64, String)>,
    /// What the process uses.
    pub usage: Usage,
    /// What goes over the network of the host, told by one rank of each.
    pub network: Vec<Network>,
    /// What the program has logged, see `hvd.log`.
    pub values: Vec<Value>,
    /// How many values were lost because they came too fast.
    pub values_lost: u64,
    /// The signal upon which it writes down where its threads are; 0: none.
    pub dumps: u8,
    /// The tensors that took most of the time in collectives, told now and then.
    pub tensors: Vec<Tensor>,
    /// A piece of its flight record, which was asked for. Such a note tells nothing else.
    pub record: Option<Piece>,
}

/// What a tensor has cost so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// Its name.
    pub name: String,
    /// How often it ran.
    pub times: u64,
    /// Its bytes, of all times.
    pub bytes: u64,
    /// Time in collectives, in nanoseconds: its share of those in which it ran with others.
    pub nanos: u64,
}

/// Some of a text that is too long for one note.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Piece {
    /// Nothing came before it.
    pub first: bool,
    /// Nothing comes after it.
    pub last: bool,
    /// What it says.
    pub text: String,
}

/// A text in pieces, each of which fits a note.
pub fn pieces(text: &str) -> Vec<Piece> {
    const LENGTH: usize = 3000;
    let mut rest = text;
    let mut pieces = vec![];
    loop {
        let piece = shortened(rest, LENGTH);
        rest = &rest[piece.len()..];
        pieces.push(Piece { first: pieces.is_empty(), last: rest.is_empty(), text: piece });
        if rest.is_empty() {
            return pieces;
        }
    }
}

/// The end of a step. Times are nanoseconds since the rank's engine began.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mark {
    /// Steps so far.
    pub step: u64,
    /// When.
    pub at: u64,
    /// How long the program has waited for its tensors so far.
    pub waited: u64,
    /// How long collectives have run so far.
    pub collective: u64,
}

/// Counts of a rank.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Collectives.
    pub batches: u64,
    /// Tensors in them.
    pub tensors: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Time in collectives, in nanoseconds.
    pub collective: u64,
    /// Messages about what to run next.
    pub messages: u64,
    /// Plans left.
    pub plans_left: u64,
    /// Reports of missing ranks.
    pub stalls: u64,
    /// Operations that failed.
    pub failures: u64,
    /// Tensors submitted and not yet done.
    pub queued: u64,
}

/// What a process uses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Its time on processors so far, in milliseconds.
    pub cpu: u64,
    /// Its memory in bytes.
    pub memory: u64,
    /// The GPU it uses.
    pub gpu: Option<Gpu>,
}

/// What a GPU does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// How busy it is, in percent, if it tells.
    pub load: Option<u32>,
    /// Bytes that are used there, by anybody.
    pub used: u64,
    /// Bytes there are.
    pub memory: u64,
}

/// A network interface of a host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// Its name.
    pub name: String,
    /// Bytes sent so far.
    pub sent: u64,
    /// Bytes received so far.
    pub received: u64,
    /// Bits a second it says it can do; 0: it does not say.
    pub speed: u64,
}

/// A training value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Value {
    /// The step it belongs to.
    pub step: u64,
    /// What it is.
    pub name: String,
    /// How much.
    pub value: f64,
}

impl Note {
    /// Its bytes. What finds no room stays out: the oldest marks first, then the newest values; says how many values are in it.
    pub fn encode(&self) -> Result<(Vec<u8>, usize)> {
        let mut short = self.clone();
        short.host = shortened(&short.host, MAX_NAME);
        if let Some((_, name)) = &mut short.waits {
            *name = shortened(name, MAX_NAME);
        }
        short.planes.truncate(4);
        short.network.truncate(4);
        short.tensors.truncate(MAX_TENSORS);
        loop {
            let bytes = codec::encode(&short)?;
            if bytes.len() <= MAX_NOTE {
                return Ok((bytes, short.values.len()));
            }
            if let Some(piece) = short.record.as_mut().filter(|piece| piece.text.len() > 1000) {
                piece.text = shortened(&piece.text, piece.text.len() / 2);
            } else if short.values.len() > 16 {
                short.values.truncate(short.values.len() / 2);
            } else if !short.marks.is_empty() {
                let oldest = short.marks.len().div_ceil(2);
                short.marks.drain(..oldest);
            } else if short.values.pop().is_none() {
                short.planes.clear();
                short.network.clear();
                short.tensors.clear();
            }
        }
    }
}

/// The beginning of a text, cut between letters.
pub fn shortened(text: &str, most: usize) -> String {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_fits_a_pipe_whatever_is_in_it() {
        let value = |i: u64| Value { step: i, name: "v".repeat(MAX_NAME), value: 0.5 };
        let interface = Network { name: "e".repeat(3000), ..Network::default() };
        let note = Note {
            host: "é".repeat(4000),
            marks: vec![Mark { step: u64::MAX, at: u64::MAX, waited: u64::MAX, collective: u64::MAX }; 64],
            waits: Some((1, "t".repeat(9000))),
            network: vec![interface; 9],
            values: (0..500).map(value).collect(),
            ..Note::default()
        };
        let (bytes, values) = note.encode().unwrap();
        assert!(bytes.len() <= MAX_NOTE);
        let (back, _) = codec::take::<Note>(&bytes, MAX_NOTE).unwrap().unwrap();
        assert_eq!(back.values, note.values[..values]);
        assert_eq!(back.host.chars().count(), MAX_NAME / 2);
    }

    #[test]
    fn a_long_text_comes_whole_in_pieces() {
        let text = "wörter ".repeat(3000);
        let pieces = pieces(&text);
        assert_eq!(pieces.iter().map(|piece| piece.text.as_str()).collect::<String>(), text);
        assert!(pieces[0].first && pieces.last().unwrap().last && !pieces[1].first);
        for piece in pieces {
            let note = Note { host: "h".repeat(MAX_NAME), record: Some(piece), ..Note::default() };
            let (bytes, _) = note.encode().unwrap();
            assert_eq!(codec::take::<Note>(&bytes, MAX_NOTE).unwrap().unwrap().0, note);
        }
        assert_eq!(super::pieces("").len(), 1);
    }

    #[test]
    fn an_ordinary_note_is_short_and_whole() {
        let mark = |step| Mark { step, at: step * 1_000_000, waited: step * 100_000, collective: step * 90_000 };
        let note = Note { host: "node7".into(), marks: (1..=32).map(mark).collect(), ..Note::default() };
        let (bytes, _) = note.encode().unwrap();
        assert_eq!(codec::take::<Note>(&bytes, MAX_NOTE).unwrap().unwrap().0, note);
        assert!(bytes.len() < 700, "{}", bytes.len());
    }
}
