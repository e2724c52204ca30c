//! The I/O of agreement: messages to and from the neighbours in the tree.
//!
//! Owns the streams. Never waits by itself: [`Wires::pump`] moves what can move; whoever sleeps does so on
//! [`Wires::poll_fds`], after [`Wires::arm`]. A message is a frame of `corro_core::codec`: all that one side has to say at
//! one time.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use corro_agreement::message::{Decision, MESSAGE_CAP, Up};
use corro_agreement::tree::Neighbours;
use corro_core::{Error, GroupId, Rank, Result, codec};
use corro_transport::{Broken, Fabric};
use rustix::event::PollFlags;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// In place of a wire: a doorbell, which belongs to several.
const BELL: usize = usize::MAX;

/// Bytes read at once.
const READ: usize = 64 << 10;

/// What came.
#[derive(Debug)]
pub(crate) enum Heard {
    /// From this member.
    FromChild(usize, Vec<Up>),
    FromParent(usize, Vec<Decision>),
    /// The connection to this member is gone.
    Lost(usize, Error),
}

/// How many messages went and came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Traffic {
    pub(crate) sent: u64,
    pub(crate) sent_bytes: u64,
    pub(crate) received: u64,
    pub(crate) received_bytes: u64,
}

pub(crate) struct Wires {
    parent: Option<Wire>,
    children: Vec<Wire>,
    streams: corro_transport::Wires,
    pub(crate) traffic: Traffic,
}

/// One neighbour. Its stream is at `stream` of the streams.
struct Wire {
    member: usize,
    rank: Rank,
    host: String,
    stream: usize,
    /// What came and is not understood yet is at its start. Never shrinks: to make room is to clear it, which would cost
    /// more than all else each time somebody looks whether something has come.
    inbox: Vec<u8>,
    came: usize,
    outbox: Vec<u8>,
    written: usize,
    /// Nothing more will come, and that is as it should be.
    ended: bool,
    /// It did not answer: it may still be told why it was given up.
    given_up: bool,
}

impl Wires {
    pub(crate) fn open(fabric: &Arc<Fabric>, id: GroupId, members: &[Rank], neighbours: &Neighbours) -> Result<Self> {
        let order: Vec<usize> = neighbours.parent.iter().chain(&neighbours.children).copied().collect();
        let streams = fabric.streams(id, members, order.iter().copied())?;
        let mut wires = order.iter().enumerate().map(|(stream, member)| Wire {
            member: *member,
            rank: members[*member],
            host: fabric.card(members[*member]).host.clone(),
            stream,
            inbox: Vec::new(),
            came: 0,
            outbox: Vec::new(),
            written: 0,
            ended: false,
            given_up: false,
        });
        let parent = if neighbours.parent.is_some() { wires.next() } else { None };
        let children = wires.collect();
        Ok(Self { parent, children, streams, traffic: Traffic::default() })
    }

    /// Takes messages to be sent: to the parent, and to every child.
    pub(crate) fn send(&mut self, up: &[Up], down: &[Decision]) -> Result<()> {
        if !up.is_empty()
            && let Some(parent) = self.parent.as_mut().filter(|p| !p.ended)
        {
            let bytes = encode(&up)?;
            self.traffic.sent += 1;
            self.traffic.sent_bytes += bytes.len() as u64;
            parent.outbox.extend_from_slice(&bytes);
        }
        if !down.is_empty() && !self.children.is_empty() {
            let bytes = encode(&down)?;
            for child in self.children.iter_mut().filter(|c| !c.ended || c.given_up) {
                self.traffic.sent += 1;
                self.traffic.sent_bytes += bytes.len() as u64;
                child.outbox.extend_from_slice(&bytes);
            }
        }
        Ok(())
    }

    /// Sends what goes now and gives what has come.
    pub(crate) fn pump(&mut self, heard: &mut Vec<Heard>) {
        let Self { parent, children, streams, traffic } = self;
        if let Some(parent) = parent {
            let member = parent.member;
            let understand = |decisions: Vec<Decision>| (Heard::FromParent(member, decisions), false);
            pump(parent, streams, traffic, heard, understand);
        }
        for child in children {
            let member = child.member;
            pump(child, streams, traffic, heard, |said: Vec<Up>| {
                let ends = said.contains(&Up::Bye);
                (Heard::FromChild(member, said), ends)
            });
        }
    }

    /// The job is over: the parent closing its end is no loss.
    pub(crate) fn expect_end(&mut self) {
        if let Some(parent) = &mut self.parent {
            parent.ended = true;
        }
    }

    /// Whether all that was to be said has left this process.
    pub(crate) fn is_flushed(&self) -> bool {
        self.each().all(|wire| wire.ended || wire.outbox.is_empty())
    }

    /// Before sleeping: asks the neighbours to ring. Pump once more after this, then sleep.
    pub(crate) fn arm(&mut self) {
        self.streams.streams.iter_mut().for_each(|s| s.arm());
    }

    /// After sleeping.
    pub(crate) fn disarm(&mut self) {
        self.streams.streams.iter_mut().for_each(|s| s.disarm());
    }

    /// Neighbours that are known to be gone although their stream does not say so.
    pub(crate) fn check(&mut self, heard: &mut Vec<Heard>) {
        for wire in self.parent.iter_mut().chain(&mut self.children).filter(|w| !w.ended) {
            let stream = &mut self.streams.streams[wire.stream];
            if let Err(broken) = stream.check() {
                let error = stream.culprit().unwrap_or_else(|| wire.lost(broken));
                wire.ended = true;
                heard.push(Heard::Lost(wire.member, error));
            }
        }
    }

    /// A neighbour has not said a word for so long although it was asked: nothing more is heard from it.
    pub(crate) fn give_up_on(&mut self, member: usize, silence: Duration) -> Option<Error> {
        let wire = self.parent.iter_mut().chain(&mut self.children).find(|w| w.member == member && !w.ended)?;
        (wire.ended, wire.given_up) = (true, true);
        Some(wire.lost(Broken(format!(
            "it has not answered for {:.1} s although it was asked: its process is stopped, or its host or network hangs \
             (CORRO_TIMEOUT sets this limit)",
            silence.as_secs_f64()
        ))))
    }

    /// What to sleep on, for as long as the set lives: descriptors of this process's own, each with its wire.
    pub(crate) fn watched(&self) -> Result<Vec<(OwnedFd, usize)>> {
        let mut watched: Vec<(OwnedFd, usize)> = Vec::new();
        let mut add = |fd: BorrowedFd<'_>, wire: usize| {
            let own = fd.try_clone_to_owned().map_err(|e| Error::io("duplicating a descriptor", e))?;
            watched.push((own, wire));
            Ok(())
        };
        let mut bells: Vec<i32> = Vec::new();
        for (i, wire) in self.each().enumerate() {
            let stream = &self.streams.streams[wire.stream];
            // The streams through one piece of shared memory have one doorbell.
            if stream.writable_by_poll() || !bells.contains(&stream.fd().as_raw_fd()) {
                bells.push(stream.fd().as_raw_fd());
                add(stream.fd(), if stream.writable_by_poll() { i } else { BELL })?;
            }
            if let Some(exit) = stream.exit_fd() {
                add(exit, i)?;
            }
        }
        Ok(watched)
    }

    /// After sleeping, before anything is heard: empties the doorbells. [`Wires::disarm`] does so too, but may come before the ring
    /// of a neighbour that had been asked for it. Nobody would empty the bell then, and who sleeps on it would never sleep.
    pub(crate) fn silence(watched: &[(OwnedFd, usize)]) {
        for (bell, _) in watched.iter().filter(|(_, wire)| *wire == BELL) {
            // Non-blocking.
            let _ = rustix::io::read(bell, &mut [0u8; 8]);
        }
    }

    /// Which of the watched descriptors to sleep on now, and for what.
    pub(crate) fn interest(&self, watched: &[(OwnedFd, usize)]) -> Vec<(usize, PollFlags)> {
        let wires: Vec<&Wire> = self.each().collect();
        let flags = |wire: usize| match wires.get(wire) {
            Some(wire) if wire.ended => None,
            Some(wire) if !wire.outbox.is_empty() && self.streams.streams[wire.stream].writable_by_poll() => {
                Some(PollFlags::IN | PollFlags::OUT)
            }
            _ => Some(PollFlags::IN),
        };
        watched.iter().enumerate().filter_map(|(i, (_, wire))| Some((i, flags(*wire)?))).collect()
    }

    fn each(&self) -> impl Iterator<Item = &Wire> {
        self.parent.iter().chain(&self.children)
    }
}

impl Wire {
    fn lost(&self, broken: Broken) -> Error {
        Error::peer_lost(self.rank, self.host.clone(), broken.0)
    }
}

fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let bytes = codec::encode(message)?;
    if bytes.len() > MESSAGE_CAP {
        return Err(Error::Usage(format!(
            "{} bytes of names and shapes at once are more than the {MESSAGE_CAP} that may be announced",
            bytes.len()
        )));
    }
    Ok(bytes)
}

/// Moves what can move on one wire.
fn pump<T: DeserializeOwned>(
    wire: &mut Wire,
    streams: &mut corro_transport::Wires,
    traffic: &mut Traffic,
    heard: &mut Vec<Heard>,
    understand: impl Fn(T) -> (Heard, bool),
) {
    if wire.ended && wire.outbox.is_empty() {
        return;
    }
    let stream = &mut streams.streams[wire.stream];
    let sent = (|| {
        while wire.written < wire.outbox.len() {
            match stream.try_write(&wire.outbox[wire.written..])? {
                0 => break,
                n => wire.written += n,
            }
        }
        if wire.written == wire.outbox.len() && stream.try_flush()? {
            wire.outbox.clear();
            wire.written = 0;
        }
        Ok::<(), Broken>(())
    })();
    // Also from one that does not listen any more: its last words may have come.
    let received = (|| {
        while !wire.ended {
            if wire.inbox.len() < wire.came + READ {
                wire.inbox.resize(wire.came + READ, 0);
            }
            match stream.try_read(&mut wire.inbox[wire.came..])? {
                0 => break,
                n => wire.came += n,
            }
        }
        Ok::<(), Broken>(())
    })();
    let mut used = 0;
    loop {
        match codec::take::<T>(&wire.inbox[used..wire.came], MESSAGE_CAP) {
            Ok(Some((message, bytes))) => {
                used += bytes;
                traffic.received += 1;
                traffic.received_bytes += bytes as u64;
                let (what, ends) = understand(message);
                heard.push(what);
                wire.ended |= ends;
            }
            Ok(None) => break,
            Err(error) => {
                let error = wire.lost(Broken(format!("it sent what is not a message of ours: {error}")));
                heard.push(Heard::Lost(wire.member, error));
                wire.ended = true;
                break;
            }
        }
    }
    if used > 0 {
        wire.inbox.copy_within(used..wire.came, 0);
        wire.came -= used;
    }
    if let Err(broken) = sent.and(received) {
        let error = stream.culprit().unwrap_or_else(|| wire.lost(broken));
        wire.outbox.clear();
        wire.written = 0;
        if !std::mem::replace(&mut wire.ended, true) {
            heard.push(Heard::Lost(wire.member, error));
        }
    }
}
