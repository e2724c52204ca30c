//! What is said between workers and servers, and how it lies on the wire.
//!
//! ```text
//! length u32 LE (of what follows) · length of the head u16 LE · version u8 · head (postcard) · payload, as it is
//! ```
//! Heads are small and decoded whole; payloads are up to some megabytes and land where they stay. A reader holds no more than
//! one frame. Any bytes give frames or an error, and never a panic.

use std::net::SocketAddr;
use std::sync::Arc;

use corro_core::{Error, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::code::Code;
use crate::optimizer::Optimizer;
use crate::protocol::{Consistency, Key, Layout, MAX_PART_BYTES, Payload, Rule, ServerId, WorkerId};

/// Raised whenever the meaning of a frame changes.
const VERSION: u8 = 1;
const PREFIX: usize = 6;
/// A part, two numbers for each element of it, and as many row numbers.
pub const MAX_PAYLOAD: usize = 4 * MAX_PART_BYTES;
const MAX_HEAD: usize = u16::MAX as usize;
/// What is read at once, if it is not known to belong to a long payload.
const SCRATCH: usize = 64 * 1024;

/// What a store is, for a server that has not heard of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreSetup {
    /// Which store: a server may serve several.
    pub store: u64,
    /// How many workers it has.
    pub workers: u32,
    /// How far they may drift apart.
    pub consistency: Consistency,
    /// Where its servers are, in their order.
    pub servers: Vec<Vec<SocketAddr>>,
    /// Which of them this one is.
    pub you: ServerId,
}

/// Everything about a key's part, but for its payload: the value, then the optimizer's numbers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The whole key's name.
    pub name: String,
    /// Rows, width, dtype.
    pub layout: Layout,
    /// What a push does.
    pub rule: Rule,
    /// How many updates it has had; in rounds, the last one that is in it.
    pub version: u64,
    /// How often it has changed, in any way.
    pub change: u64,
    /// How many steps its optimizer has made.
    pub step: u64,
    /// Which optimizer that is.
    pub optimizer: Option<Optimizer>,
    /// The last push of each worker that is in it.
    pub applied: Vec<u64>,
}

/// What a worker, or another server, says to a server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum Request {
    /// The first word of a worker.
    Hello { setup: StoreSetup, worker: WorkerId, lost: Vec<ServerId> },
    /// There is this key. The payload of worker 0 is its first value (none: zeros); others send none, and wait for it.
    Init { id: u64, key: Key, name: String, layout: Layout, rule: Rule, order: u64, resume: bool },
    /// Combine the payload with the value. `seen` is the version it was computed from, `rate` a learning rate in place of
    /// the optimizer's own; `code` says how the payload is to be read.
    Push { id: u64, key: Key, clock: u64, seen: u64, rate: Option<f32>, code: Option<Code> },
    /// The same for some rows: the payload is their numbers (u64), then their elements.
    PushRows { id: u64, key: Key, clock: u64, seen: u64, rate: Option<f32>, rows: u32 },
    /// What is the value at this clock (or after this round)? No payload comes if it is still the version that one has;
    /// else it comes in this code.
    Pull { id: u64, key: Key, clock: u64, have: u64, code: Option<Code> },
    /// The same for some rows, whose numbers are the payload.
    PullRows { id: u64, key: Key, clock: u64, rows: u32 },
    /// All of this worker's pushes before this clock were said.
    Clock { clock: u64 },
    /// Tell when all workers have said this number.
    Barrier { id: u64, number: u64 },
    /// Update with this from now on. What it has learnt of keys stays, if it is of the same kind.
    Optimize { id: u64, optimizer: Optimizer },
    /// Tell all that you own.
    Dump { id: u64 },
    /// Take this, as it was told by `Dump`.
    Restore { id: u64, key: Key, snapshot: Snapshot },
    /// How are you?
    Stats { id: u64 },
    /// A server is lost: tell the others, and take its place where that is yours.
    Lost { server: ServerId },
    /// This worker will say no more, and nobody shall wait for it.
    Bye,
    /// The first word of another server.
    Partner { store: u64, server: ServerId },
    /// Keep this for me: I own it.
    Copy { setup: StoreSetup, key: Key, snapshot: Snapshot },
    /// It has changed by the payload, and is now this version.
    Replica {
        key: Key,
        version: u64,
        change: u64,
        rows: Option<u32>,
        rate: Option<f32>,
        scale: f32,
        pushes: Vec<(WorkerId, u64)>,
    },
}

/// What a server says.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "each variant says what its fields are")]
pub enum Response {
    /// The answer to a hello: these servers are lost.
    Welcome { lost: Vec<ServerId> },
    /// Done, and safe.
    Done { id: u64 },
    /// The value. `contributors` workers are in this round's; `min_clock` is the least clock of all workers.
    Value { id: u64, version: u64, min_clock: u64, contributors: u32, same: bool },
    /// One part of a dump, which ends with `Done`.
    Part { id: u64, key: Key, snapshot: Snapshot },
    /// How it goes.
    Stats { id: u64, counts: Vec<(String, u64)> },
    /// No, and why.
    Refused { id: u64, why: String },
    /// A server is lost.
    Lost { server: ServerId },
    /// To another server: I keep it as it was after so many changes.
    Kept { key: Key, change: u64 },
}

/// A frame but for its payload, which follows it.
pub fn encode<T: Serialize>(head: &T, payload: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; PREFIX];
    bytes.push(VERSION);
    let mut bytes =
        postcard::to_extend(head, bytes).map_err(|e| Error::Bug(format!("a frame could not be encoded: {e}")))?;
    let head = bytes.len() - PREFIX;
    if head > MAX_HEAD || payload > MAX_PAYLOAD {
        return Err(Error::Usage(format!("a frame of {head} and {payload} bytes is too long to send")));
    }
    bytes[..4].copy_from_slice(&((2 + head + payload) as u32).to_le_bytes());
    bytes[4..PREFIX].copy_from_slice(&(head as u16).to_le_bytes());
    Ok(bytes)
}

/// The lengths of head and payload.
fn lengths(prefix: [u8; PREFIX]) -> Result<(usize, usize)> {
    let total = u32::from_le_bytes(std::array::from_fn(|i| prefix[i])) as usize;
    let head = usize::from(u16::from_le_bytes([prefix[4], prefix[5]]));
    match total.checked_sub(2 + head) {
        Some(payload) if head > 0 && payload <= MAX_PAYLOAD => Ok((head, payload)),
        _ => Err(Error::Malformed(format!("a frame of {total} bytes with a head of {head}"))),
    }
}

fn decode<T: DeserializeOwned>(head: &[u8]) -> Result<T> {
    match head.split_first() {
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(Error::Malformed(format!("{} bytes too many in the head of a frame", rest.len()))),
            Err(e) => Err(Error::Malformed(format!("the head of a frame: {e}"))),
        },
        Some((other, _)) => Err(Error::Malformed(format!(
            "frames of version {other} where this corro speaks {VERSION}: install the same release on every host"
        ))),
        None => Err(Error::Malformed("a frame without a head".into())),
    }
}

/// Cuts what comes over one connection into frames.
#[derive(Debug)]
pub struct Reader<T> {
    /// What has come; `begin..end` of it belongs to no frame yet.
    scratch: Box<[u8]>,
    begin: usize,
    end: usize,
    /// The frame whose payload is coming, and how much of that has come.
    open: Option<(T, Vec<u8>, usize)>,
}

impl<T> Default for Reader<T> {
    fn default() -> Self {
        Self { scratch: vec![0; SCRATCH + MAX_HEAD + PREFIX].into_boxed_slice(), begin: 0, end: 0, open: None }
    }
}

impl<T: DeserializeOwned> Reader<T> {
    /// Where the next bytes are to be put; never empty. Call [`Reader::next_frame`] until it has no more before this.
    pub fn room(&mut self) -> &mut [u8] {
        if let Some((_, payload, have)) = &mut self.open
            && payload.len() - *have >= SCRATCH
        {
            return &mut payload[*have..];
        }
        self.scratch.copy_within(self.begin..self.end, 0);
        (self.begin, self.end) = (0, self.end - self.begin);
        &mut self.scratch[self.end..]
    }

    /// Says that the first `count` bytes of the room were filled.
    pub fn filled(&mut self, count: usize) {
        match &mut self.open {
            Some((_, payload, have)) if payload.len() - *have >= SCRATCH => *have += count,
            _ => self.end += count,
        }
    }

    /// The next whole frame. After an error the connection must be closed.
    pub fn next_frame(&mut self) -> Result<Option<(T, Payload)>> {
        if self.open.is_none() {
            let Some((prefix, rest)) = self.scratch[self.begin..self.end].split_first_chunk::<PREFIX>() else {
                return Ok(None);
            };
            let (head, payload) = lengths(*prefix)?;
            let Some(bytes) = rest.get(..head) else { return Ok(None) };
            let message = decode(bytes)?;
            self.begin += PREFIX + head;
            self.open = Some((message, vec![0; payload], 0));
        }
        let Some((message, mut payload, mut have)) = self.open.take() else { return Ok(None) };
        let count = (payload.len() - have).min(self.end - self.begin);
        payload[have..have + count].copy_from_slice(&self.scratch[self.begin..self.begin + count]);
        (self.begin, have) = (self.begin + count, have + count);
        if have == payload.len() {
            return Ok(Some((message, Arc::new(payload))));
        }
        self.open = Some((message, payload, have));
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frames() -> Vec<(Request, Vec<u8>)> {
        let key = Key { name: 7, part: 1 };
        vec![
            (
                Request::Push { id: 1, key, clock: 2, seen: 3, rate: Some(0.5), code: Some(Code::Int8 { block: 64 }) },
                vec![5; 300_000],
            ),
            (Request::Clock { clock: 9 }, vec![]),
            (Request::PullRows { id: 2, key, clock: 1, rows: 2 }, vec![1; 16]),
            (Request::Push { id: 3, key, clock: 3, seen: 3, rate: None, code: None }, vec![6; 70_000]),
            (Request::Bye, vec![]),
        ]
    }

    #[test]
    fn frames_come_out_as_they_went_in_however_they_are_cut() {
        let mut random = corro_testing::Random::new(3);
        let bytes: Vec<u8> = frames()
            .iter()
            .flat_map(|(head, payload)| [encode(head, payload.len()).unwrap(), payload.clone()].concat())
            .collect();
        for _ in 0..50 {
            let (mut reader, mut rest, mut got) = (Reader::<Request>::default(), &bytes[..], Vec::new());
            while !rest.is_empty() {
                let most = [3, 1000, 200_000][random.below(3)];
                let count = reader.room().len().min(rest.len()).min(1 + random.below(most));
                reader.room()[..count].copy_from_slice(&rest[..count]);
                reader.filled(count);
                rest = &rest[count..];
                while let Some((head, payload)) = reader.next_frame().unwrap() {
                    got.push((head, payload.to_vec()));
                }
            }
            assert_eq!(got, frames());
        }
    }

    #[test]
    fn lies_about_lengths_are_noticed() {
        for prefix in [[0; 6], [1, 0, 0, 0, 1, 0], [255; 6], [2, 0, 0, 0, 0, 0], [255, 255, 255, 255, 1, 0]] {
            let mut reader = Reader::<Request>::default();
            reader.room()[..6].copy_from_slice(&prefix);
            reader.filled(6);
            assert!(reader.next_frame().is_err(), "{prefix:?}");
        }
        assert!(encode(&Request::Bye, MAX_PAYLOAD + 1).is_err());
    }
}
