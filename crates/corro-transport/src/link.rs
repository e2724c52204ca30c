//! Messages to and from one peer, over one or several streams.
//!
//! A message is a header and a payload whose length both sides know beforehand; the header only proves that they agree.
//! Message number `i` in a direction travels on stream `i % streams`, so several messages are under way at once and
//! each stream stays in order by itself. Nothing here waits: see `corro-collectives` for the loop that drives links.

use corro_core::{Error, Rank, Result};

use crate::shm::team::Hosts;
use crate::stream::{Broken, Stream};

/// Bytes in front of each payload.
const HEADER_BYTES: usize = 16;

/// First bytes of a goodbye: the sender gives up because of the rank in the header's number.
const GOODBYE: u32 = u32::from_le_bytes(*b"bye1");

/// First bytes of each header: tells a lost place in the stream from a disagreement about lengths.
const MAGIC: u32 = u32::from_le_bytes(*b"crr1");

/// The connection to one peer.
pub struct Link {
    peer: Rank,
    hosts: Hosts,
    lanes: Vec<Lane>,
    sent: u64,
    received: u64,
}

/// One stream, and whether it is in the middle of a message.
struct Lane {
    stream: Box<dyn Stream>,
    sending: bool,
    receiving: bool,
}

/// A message on its way out: how far it is.
#[derive(Debug)]
pub struct Outgoing {
    stream: usize,
    header: [u8; HEADER_BYTES],
    header_done: usize,
    done: usize,
    len: usize,
    flushed: bool,
}

impl Outgoing {
    /// Which of the link's streams it travels on.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// Whether the message has left this process.
    pub fn is_sent(&self) -> bool {
        self.header_done == HEADER_BYTES && self.done == self.len && self.flushed
    }
}

/// A message on its way in: how far it is.
#[derive(Debug)]
pub struct Incoming {
    stream: usize,
    expected: [u8; HEADER_BYTES],
    header: [u8; HEADER_BYTES],
    header_done: usize,
    done: usize,
    len: usize,
}

impl Incoming {
    /// Which of the link's streams it travels on.
    pub fn stream(&self) -> usize {
        self.stream
    }

    /// Whether all of it has come.
    pub fn is_received(&self) -> bool {
        self.header_done == HEADER_BYTES && self.done == self.len
    }
}

fn header(number: u64, len: usize) -> Result<[u8; HEADER_BYTES]> {
    let len = u64::try_from(len)
        .ok()
        .filter(|l| *l < 1 << 48)
        .ok_or_else(|| Error::Usage("a message of over 256 TiB".into()))?;
    let mut bytes = [0; HEADER_BYTES];
    bytes[..4].copy_from_slice(&MAGIC.to_le_bytes());
    bytes[4..8].copy_from_slice(&(number as u32).to_le_bytes());
    bytes[8..].copy_from_slice(&len.to_le_bytes());
    Ok(bytes)
}

impl Link {
    /// A link to `peer` over these streams (at least one), in the order both ends know them.
    pub(crate) fn new(peer: Rank, hosts: Hosts, streams: Vec<Box<dyn Stream>>) -> Self {
        assert!(!streams.is_empty(), "a link without a stream");
        let lanes = streams.into_iter().map(|stream| Lane { stream, sending: false, receiving: false }).collect();
        Self { peer, hosts, lanes, sent: 0, received: 0 }
    }

    /// The stream the next message will leave on. It must not be started before the last one there is sent.
    pub fn next_outgoing_stream(&self) -> usize {
        (self.sent % self.lanes.len() as u64) as usize
    }

    /// The stream the next message will come on. It must not be started before the last one there is received.
    pub fn next_incoming_stream(&self) -> usize {
        (self.received % self.lanes.len() as u64) as usize
    }

    /// The rank it leads to.
    pub fn peer(&self) -> Rank {
        self.peer
    }

    /// Starts a message of `len` bytes.
    pub fn start_send(&mut self, len: usize) -> Result<Outgoing> {
        let (number, stream) = (self.sent, self.next_outgoing_stream());
        self.sent += 1;
        Ok(Outgoing { stream, header: header(number, len)?, header_done: 0, done: 0, len, flushed: false })
    }

    /// Starts to receive a message of `len` bytes.
    pub fn start_receive(&mut self, len: usize) -> Result<Incoming> {
        let (number, stream) = (self.received, self.next_incoming_stream());
        self.received += 1;
        Ok(Incoming { stream, expected: header(number, len)?, header: [0; HEADER_BYTES], header_done: 0, done: 0, len })
    }

    /// Sends what goes now; `payload` is the whole payload each time. True if anything moved.
    pub fn try_send(&mut self, message: &mut Outgoing, payload: &[u8]) -> Result<bool> {
        debug_assert_eq!(payload.len(), message.len);
        let lane = &mut self.lanes[message.stream];
        let stream = &mut lane.stream;
        let before = message.header_done + message.done;
        let result = (|| {
            while message.header_done + message.done < HEADER_BYTES + message.len {
                let header = &message.header[message.header_done..];
                let count = stream.try_write_both(header, &payload[message.done..])?;
                if count == 0 {
                    break;
                }
                let of_header = count.min(header.len());
                message.header_done += of_header;
                message.done += count - of_header;
            }
            stream.try_flush()
        })();
        let done = message.header_done + message.done;
        lane.sending = done > 0 && done < HEADER_BYTES + message.len;
        message.flushed = result.map_err(|broken| self.broke(message.stream, broken))?;
        Ok(message.header_done + message.done > before)
    }

    /// Receives what has come, straight into its place; `payload` is the whole payload each time. True if anything moved.
    pub fn try_receive(&mut self, message: &mut Incoming, payload: &mut [u8]) -> Result<bool> {
        debug_assert_eq!(payload.len(), message.len);
        let before = message.header_done + message.done;
        while !message.is_received() {
            let done = message.done;
            if self.receive(message, &mut payload[done..])? == 0 {
                break;
            }
        }
        Ok(message.header_done + message.done > before)
    }

    /// Receives what has come next of the payload, at most `into.len()` bytes. Gives how many.
    pub fn try_receive_some(&mut self, message: &mut Incoming, into: &mut [u8]) -> Result<usize> {
        let (done, want) = (message.done, into.len().min(message.len - message.done));
        self.receive(message, &mut into[..want])?;
        Ok(message.done - done)
    }

    /// Receives once: what is left of the header, and payload into `into`. Gives how many bytes came in all.
    fn receive(&mut self, message: &mut Incoming, into: &mut [u8]) -> Result<usize> {
        let lane = &mut self.lanes[message.stream];
        let header = &mut message.header[message.header_done..];
        let header_left = header.len();
        let count = lane.stream.try_read_both(header, into).map_err(|broken| self.broke(message.stream, broken))?;
        let of_header = count.min(header_left);
        message.header_done += of_header;
        message.done += count - of_header;
        if header_left > 0 {
            self.check_header(message)?;
        }
        self.note(message);
        Ok(count)
    }

    /// Remembers whether the message's stream is between messages.
    fn note(&mut self, message: &Incoming) {
        self.lanes[message.stream].receiving = message.header_done > 0 && !message.is_received();
    }

    fn check_header(&self, message: &Incoming) -> Result<()> {
        if message.header_done < HEADER_BYTES || message.header == message.expected {
            return Ok(());
        }
        if let Some(error) = self.blamed(&message.header) {
            return Err(error);
        }
        if message.header[..4] != message.expected[..4] {
            return Err(self.lost(Broken("it sent bytes that are not a message".into())));
        }
        let len = |bytes: &[u8; HEADER_BYTES]| u64::from_le_bytes(bytes[8..].try_into().unwrap_or_default());
        Err(Error::Mismatch(format!(
            "rank {} sent a message of {} bytes where this rank expects {}: the ranks are in different collectives",
            self.peer,
            len(&message.header),
            len(&message.expected)
        )))
    }

    /// The stream this message travels on.
    pub fn stream_of_outgoing(&self, message: &Outgoing) -> &dyn Stream {
        self.lanes[message.stream].stream.as_ref()
    }

    /// As above.
    pub fn stream_of_incoming(&self, message: &Incoming) -> &dyn Stream {
        self.lanes[message.stream].stream.as_ref()
    }

    /// All streams, for arming.
    pub fn streams_mut(&mut self) -> impl Iterator<Item = &mut Box<dyn Stream>> {
        self.lanes.iter_mut().map(|lane| &mut lane.stream)
    }

    /// An error if the peer is known to be gone. What it sent before may still be there to be received.
    pub fn check(&mut self) -> Result<()> {
        for i in 0..self.lanes.len() {
            let stream = &mut self.lanes[i].stream;
            if let Err(broken) = stream.check() {
                return Err(stream.culprit().unwrap_or_else(|| self.lost(broken)));
            }
        }
        Ok(())
    }

    /// Tells the peer, as far as that goes without waiting, that this rank gives up because of `culprit`.
    pub(crate) fn say_goodbye(&mut self, culprit: Rank) {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..4].copy_from_slice(&GOODBYE.to_le_bytes());
        bytes[4..8].copy_from_slice(&(culprit.index() as u32).to_le_bytes());
        for lane in self.lanes.iter_mut().filter(|lane| !lane.sending) {
            let _ = lane.stream.try_write(&bytes);
            let _ = lane.stream.try_flush();
        }
    }

    /// Whom a goodbye blames, if this header is one.
    fn blamed(&self, header: &[u8; HEADER_BYTES]) -> Option<Error> {
        let word = |at: usize| u32::from_le_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]]);
        if word(0) != GOODBYE {
            return None;
        }
        let culprit = Rank::new(word(4) as usize);
        let host = self.hosts.get(culprit.index()).map_or("an unknown host", String::as_str);
        Some(Error::peer_lost(culprit, host, format!("rank {} found it gone or stuck, or gave up itself", self.peer)))
    }

    /// The error for a stream that broke. If it broke because the peer gave up, the peer may have said why on a stream
    /// that was between messages.
    fn broke(&mut self, stream: usize, broken: Broken) -> Error {
        if let Some(error) = self.lanes[stream].stream.culprit() {
            return error;
        }
        for i in 0..self.lanes.len() {
            let mut header = [0; HEADER_BYTES];
            if !self.lanes[i].receiving
                && matches!(self.lanes[i].stream.try_read(&mut header), Ok(HEADER_BYTES))
                && let Some(error) = self.blamed(&header)
            {
                return error;
            }
        }
        self.lost(broken)
    }

    /// The error that says this link is of no more use.
    pub fn lost(&self, broken: Broken) -> Error {
        let host = self.hosts.get(self.peer.index()).map_or("an unknown host", String::as_str);
        Error::peer_lost(self.peer, host, broken.0)
    }
}
