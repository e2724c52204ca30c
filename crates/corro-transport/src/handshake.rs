//! The mutual proof of the job's secret that opens every connection.
//!
//! ```text
//! client -> server   hello      magic · version · purpose · who, whom, what for · client's nonce     72 bytes
//! server -> client   challenge  server's nonce · MAC("server", hello, nonce, binding)                64 bytes
//! client -> server   proof      MAC("client", hello, nonce, binding)                                 32 bytes
//! server -> client   accepted   one byte
//! ```
//! Both nonces are fresh, so captured bytes are worth nothing later. The MACs carry different labels, so neither can be
//! sent back as the other. The server proves first: a client never acts for an impostor. Everything that was agreed on
//! is in the hello, and the hello is in both MACs. `binding` ties the proof to the TLS tunnel it travels in, so that
//! nobody can sit between two tunnels; on plain TCP it is empty.
//!
//! A client that has seen the challenge and does not need the connection (another address of the same peer answered
//! faster) sends MAC("withdraw", ...) instead of its proof; thus a server can tell it from one that has another secret.
//!
//! This module owns the bytes and the decisions. It holds no socket, never waits, never logs, and allocates nothing
//! that depends on what a stranger sent.

use std::sync::Arc;

use corro_core::{Error, GroupId, Rank, Result};

use crate::secret::{SECRET_BYTES, Secret, random_bytes};

/// Length of the hello.
pub const HELLO_BYTES: usize = 72;
/// Length of the server's answer.
pub const CHALLENGE_BYTES: usize = 2 * SECRET_BYTES;
/// Length of the client's proof.
pub const PROOF_BYTES: usize = SECRET_BYTES;
/// The most connections one pair of ranks may open for one group.
pub const MAX_STREAMS: usize = 64;

const MAGIC: [u8; 6] = *b"corro\n";
/// 2: control streams are sealed.
const VERSION: u8 = 2;
const ACCEPTED: u8 = 0xac;
const LINK: u8 = 1;
const STORE: u8 = 2;
const MESSAGES: u8 = 3;
const CONTROL: u8 = 4;
const PARAMETERS: u8 = 5;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// One of several streams between two ranks.
    Link {
        /// The rank that dials.
        from: Rank,
        /// The rank that is dialled.
        to: Rank,
        /// The group whose data will flow.
        group: GroupId,
        /// Which of the pair's streams this is.
        index: u32,
        /// How many there will be.
        count: u32,
        /// Whether it carries what ranks agree on, and not their data.
        control: bool,
    },
    /// A client of the rendezvous store.
    Store,
    /// A client of a [`crate::messages::MessageServer`].
    Messages,
    /// A worker, or another server, that comes to a parameter server with data.
    Parameters,
}

impl Purpose {
    /// Whether what is said decides something, so that nobody may change it on its way. Data may travel unprotected.
    pub(crate) const fn must_be_sealed(self) -> bool {
        !matches!(self, Self::Link { control: false, .. } | Self::Parameters)
    }
}

/// Whom a server serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Serves {
    /// Links to this rank.
    Rank(Rank),
    /// Clients of the store.
    Store,
    /// Clients that exchange messages.
    Messages,
    /// Those who come to a parameter server.
    Parameters,
}

/// What ties a proof to the channel it travels in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binding {
    /// Plain TCP offers nothing to bind to.
    Plain,
    /// Key material exported from the TLS tunnel.
    Tls([u8; 32]),
}

impl Binding {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Plain => &[],
            Self::Tls(bytes) => bytes,
        }
    }
}

/// One side of a handshake, as its driver sees it: bytes in, bytes out.
pub trait Side {
    /// How many more bytes this side needs before it can go on. Give it no more than that: what follows belongs to
    /// whoever uses the connection next.
    fn wanted(&self) -> usize;

    /// Takes bytes from the other side.
    fn receive(&mut self, bytes: &[u8]) -> Result<()>;

    /// What is to be sent now.
    fn output(&self) -> &[u8];

    /// Says that the first `count` bytes of the output are on their way.
    fn sent(&mut self, count: usize);
}

/// Fixed room for one message each way.
#[derive(Debug)]
struct Wire {
    input: [u8; HELLO_BYTES],
    filled: usize,
    expected: usize,
    output: [u8; HELLO_BYTES],
    output_at: usize,
    output_end: usize,
}

impl Wire {
    const fn new() -> Self {
        Self { input: [0; HELLO_BYTES], filled: 0, expected: 0, output: [0; HELLO_BYTES], output_at: 0, output_end: 0 }
    }

    fn expect(&mut self, count: usize) {
        (self.filled, self.expected) = (0, count);
    }

    fn put(&mut self, parts: &[&[u8]]) {
        (self.output_at, self.output_end) = (0, 0);
        for part in parts {
            self.output[self.output_end..][..part.len()].copy_from_slice(part);
            self.output_end += part.len();
        }
    }

    fn wanted(&self) -> usize {
        self.expected - self.filled
    }

    /// True when the expected message is complete.
    fn take(&mut self, bytes: &[u8]) -> Result<bool> {
        if bytes.len() > self.wanted() {
            return Err(Error::Malformed(format!("{} bytes where the handshake needs {}", bytes.len(), self.wanted())));
        }
        self.input[self.filled..][..bytes.len()].copy_from_slice(bytes);
        self.filled += bytes.len();
        Ok(!bytes.is_empty() && self.filled == self.expected)
    }

    fn message<const N: usize>(&self) -> [u8; N] {
        let mut message = [0; N];
        message.copy_from_slice(&self.input[..N]);
        message
    }

    fn sent(&mut self, count: usize) {
        self.output_at = (self.output_at + count).min(self.output_end);
    }
}

macro_rules! side {
    ($type:ty) => {
        impl Side for $type {
            fn wanted(&self) -> usize {
                self.wire.wanted()
            }
            fn receive(&mut self, bytes: &[u8]) -> Result<()> {
                self.advance(bytes)
            }
            fn output(&self) -> &[u8] {
                &self.wire.output[self.wire.output_at..self.wire.output_end]
            }
            fn sent(&mut self, count: usize) {
                self.wire.sent(count);
            }
        }
    };
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientState {
    AwaitsChallenge,
    Verified { nonce: [u8; SECRET_BYTES] },
    AwaitsAcceptance,
    Accepted,
    Withdrawn,
    Failed,
}

/// The side that dials.
#[derive(Debug)]
pub struct Client {
    secret: Arc<Secret>,
    binding: Binding,
    hello: [u8; HELLO_BYTES],
    state: ClientState,
    session: [u8; SECRET_BYTES],
    wire: Wire,
}
side!(Client);

impl Client {
    /// Ready to send its hello.
    pub fn new(secret: Arc<Secret>, purpose: Purpose, binding: Binding) -> Result<Self> {
        Self::with_nonce(secret, purpose, binding, random_bytes()?)
    }

    /// As [`Client::new`], for tests. A nonce used twice makes replay possible.
    #[doc(hidden)]
    pub fn with_nonce(secret: Arc<Secret>, purpose: Purpose, binding: Binding, nonce: [u8; 32]) -> Result<Self> {
        let hello = encode_hello(purpose, &nonce)?;
        let mut wire = Wire::new();
        wire.put(&[&hello]);
        wire.expect(CHALLENGE_BYTES);
        Ok(Self { secret, binding, hello, state: ClientState::AwaitsChallenge, session: [0; SECRET_BYTES], wire })
    }

    /// Whether the server has proven itself and waits for [`Client::prove`] or [`Client::withdraw`].
    pub fn server_is_proven(&self) -> bool {
        matches!(self.state, ClientState::Verified { .. })
    }

    /// Whether the server has taken the connection.
    pub fn is_accepted(&self) -> bool {
        self.state == ClientState::Accepted
    }

    /// A key of this connection's own, which the server has as well. Of use once the connection is accepted.
    pub(crate) const fn session(&self) -> &[u8; SECRET_BYTES] {
        &self.session
    }

    /// Sends the proof: this connection is the one.
    pub fn prove(&mut self) -> Result<()> {
        let mac = self.answer("client")?;
        self.session = self.answer("session")?;
        self.wire.put(&[&mac]);
        self.wire.expect(1);
        self.state = ClientState::AwaitsAcceptance;
        Ok(())
    }

    /// Says politely that this connection is not needed.
    pub fn withdraw(&mut self) -> Result<()> {
        let mac = self.answer("withdraw")?;
        self.wire.put(&[&mac]);
        self.wire.expect(0);
        self.state = ClientState::Withdrawn;
        Ok(())
    }

    fn answer(&self, label: &str) -> Result<[u8; PROOF_BYTES]> {
        let ClientState::Verified { nonce } = self.state else {
            return Err(Error::Bug("a handshake was continued before the server had proven itself".into()));
        };
        Ok(self.secret.prove(label, &[&self.hello, &nonce, self.binding.bytes()]))
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<()> {
        if !self.wire.take(bytes)? {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.state, ClientState::Failed);
        self.wire.expected = self.wire.filled;
        self.state = match state {
            ClientState::AwaitsChallenge => {
                let challenge: [u8; CHALLENGE_BYTES] = self.wire.message();
                let (nonce, mac) = challenge.split_at(SECRET_BYTES);
                if !self.secret.verify("server", &[&self.hello, nonce, self.binding.bytes()], mac) {
                    return Err(Error::Unauthenticated(
                        "what answers there does not have this job's secret (does CORRO_SECRET differ, or does another \
                         job use this address?)"
                            .into(),
                    ));
                }
                let mut proven = [0; SECRET_BYTES];
                proven.copy_from_slice(nonce);
                ClientState::Verified { nonce: proven }
            }
            ClientState::AwaitsAcceptance => match self.wire.message::<1>() {
                [ACCEPTED] => ClientState::Accepted,
                [other] => return Err(Error::Malformed(format!("{other:#04x} where acceptance was expected"))),
            },
            other => other,
        };
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ServerState {
    AwaitsHello,
    AwaitsProof { purpose: Purpose, nonce: [u8; SECRET_BYTES], hello: [u8; HELLO_BYTES] },
    Proven { purpose: Purpose },
    Accepted,
    Withdrawn,
    Failed,
}

/// The side that is dialled.
#[derive(Debug)]
pub struct Server {
    secret: Arc<Secret>,
    binding: Binding,
    serves: Serves,
    state: ServerState,
    session: [u8; SECRET_BYTES],
    wire: Wire,
}
side!(Server);

impl Server {
    /// Ready to hear a hello.
    pub fn new(secret: Arc<Secret>, serves: Serves, binding: Binding) -> Self {
        let mut wire = Wire::new();
        wire.expect(HELLO_BYTES);
        Self { secret, binding, serves, state: ServerState::AwaitsHello, session: [0; SECRET_BYTES], wire }
    }

    /// What the client is for, once it has proven itself. It then waits for [`Server::accept`].
    pub fn proven(&self) -> Option<Purpose> {
        match self.state {
            ServerState::Proven { purpose } => Some(purpose),
            _ => None,
        }
    }

    /// A key of this connection's own, which the client has as well. Of use once the client has proven itself.
    pub(crate) const fn session(&self) -> &[u8; SECRET_BYTES] {
        &self.session
    }

    /// Tells the client that it is taken. Until then it holds back what it has to say.
    pub fn accept(&mut self) -> Result<()> {
        if self.proven().is_none() {
            return Err(Error::Bug("a client was to be accepted that has not proven itself".into()));
        }
        self.wire.put(&[&[ACCEPTED]]);
        self.state = ServerState::Accepted;
        Ok(())
    }

    /// Whether the client has said that it does not need this connection.
    pub fn is_withdrawn(&self) -> bool {
        self.state == ServerState::Withdrawn
    }

    /// What it means if the client closes the connection now.
    pub fn if_closed(&self) -> &'static str {
        match self.state {
            ServerState::AwaitsProof { .. } => {
                "it closed the connection instead of proving the job's secret (does CORRO_SECRET differ, or is it of \
                 another job?)"
            }
            _ => "it closed the connection before its hello was complete",
        }
    }

    /// Whether the client has sent anything so far.
    pub fn has_heard(&self) -> bool {
        self.state != ServerState::AwaitsHello || self.wire.filled > 0
    }

    fn advance(&mut self, bytes: &[u8]) -> Result<()> {
        let complete = self.wire.take(bytes)?;
        if self.state == ServerState::AwaitsHello {
            // Strangers are sent away at their first wrong byte instead of holding a place until they have sent enough.
            check_magic(&self.wire.input[..self.wire.filled]).inspect_err(|_| self.state = ServerState::Failed)?;
        }
        if !complete {
            return Ok(());
        }
        let state = std::mem::replace(&mut self.state, ServerState::Failed);
        self.wire.expected = self.wire.filled;
        self.state = match state {
            ServerState::AwaitsHello => {
                let hello: [u8; HELLO_BYTES] = self.wire.message();
                let purpose = decode_hello(&hello)?;
                check_purpose(self.serves, purpose)?;
                let nonce = random_bytes()?;
                let mac = self.secret.prove("server", &[&hello, &nonce, self.binding.bytes()]);
                self.wire.put(&[&nonce, &mac]);
                self.wire.expect(PROOF_BYTES);
                ServerState::AwaitsProof { purpose, nonce, hello }
            }
            ServerState::AwaitsProof { purpose, nonce, hello } => {
                let proof: [u8; PROOF_BYTES] = self.wire.message();
                let parts: [&[u8]; 3] = [&hello, &nonce, self.binding.bytes()];
                if self.secret.verify("client", &parts, &proof) {
                    self.session = self.secret.prove("session", &parts);
                    ServerState::Proven { purpose }
                } else if self.secret.verify("withdraw", &parts, &proof) {
                    ServerState::Withdrawn
                } else {
                    return Err(Error::Unauthenticated("its proof of the job's secret is wrong".into()));
                }
            }
            other => other,
        };
        Ok(())
    }
}

fn check_magic(start: &[u8]) -> Result<()> {
    let checked = start.len().min(MAGIC.len());
    if start[..checked] == MAGIC[..checked] {
        return Ok(());
    }
    Err(Error::Malformed(match start {
        [0x16, ..] => {
            "it opened with TLS, which this process does not use: is CORRO_TLS the same on every rank?".into()
        }
        _ => "it does not speak corro's protocol".into(),
    }))
}

fn check_purpose(serves: Serves, purpose: Purpose) -> Result<()> {
    match (serves, purpose) {
        (Serves::Rank(me), Purpose::Link { to, .. }) if me == to => Ok(()),
        (Serves::Store, Purpose::Store)
        | (Serves::Messages, Purpose::Messages)
        | (Serves::Parameters, Purpose::Parameters) => Ok(()),
        (Serves::Rank(me), Purpose::Link { from, to, .. }) => Err(Error::Unauthenticated(format!(
            "rank {from} wants rank {to}, but this is rank {me} (it may hold an address from an earlier job)"
        ))),
        (Serves::Rank(me), Purpose::Store) => {
            Err(Error::Unauthenticated(format!("it wants the rendezvous store, but this is rank {me}")))
        }
        (Serves::Store, Purpose::Link { from, to, .. }) => {
            Err(Error::Unauthenticated(format!("rank {from} wants rank {to}, but this is the rendezvous store")))
        }
        (Serves::Messages, other) => {
            Err(Error::Unauthenticated(format!("it wants {other:?}, but this is a message server")))
        }
        (Serves::Parameters, other) => {
            Err(Error::Unauthenticated(format!("it wants {other:?}, but this is a parameter server")))
        }
        (_, Purpose::Messages) => Err(Error::Unauthenticated("it wants a message server, which this is not".into())),
        (_, Purpose::Parameters) => {
            Err(Error::Unauthenticated("it wants a parameter server, which this is not".into()))
        }
    }
}

fn encode_hello(purpose: Purpose, nonce: &[u8; 32]) -> Result<[u8; HELLO_BYTES]> {
    let (kind, from, to, group, index, count) = match purpose {
        Purpose::Link { from, to, group, index, count, control } => {
            if index >= count || count as usize > MAX_STREAMS {
                return Err(Error::Usage(format!("stream {index} of {count}: at most {MAX_STREAMS} are possible")));
            }
            (if control { CONTROL } else { LINK }, from.index() as u64, to.index() as u64, group.0, index, count)
        }
        Purpose::Store => (STORE, 0, 0, 0, 0, 0),
        Purpose::Messages => (MESSAGES, 0, 0, 0, 0, 0),
        Purpose::Parameters => (PARAMETERS, 0, 0, 0, 0, 0),
    };
    let mut hello = [0; HELLO_BYTES];
    let mut rest = &mut hello[..];
    let parts: [&[u8]; 8] = [
        &MAGIC,
        &[VERSION, kind],
        &from.to_le_bytes(),
        &to.to_le_bytes(),
        &group.to_le_bytes(),
        &index.to_le_bytes(),
        &count.to_le_bytes(),
        nonce,
    ];
    for part in parts {
        let (here, after) = rest.split_at_mut(part.len());
        here.copy_from_slice(part);
        rest = after;
    }
    Ok(hello)
}

fn decode_hello(hello: &[u8; HELLO_BYTES]) -> Result<Purpose> {
    check_magic(hello)?;
    let [version, kind] = [hello[6], hello[7]];
    if version != VERSION {
        return Err(Error::Malformed(format!(
            "handshake version {version} where this corro speaks {VERSION}: install the same release on every host"
        )));
    }
    let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| hello[at + i]));
    let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| hello[at + i]));
    let rank = |at: usize| {
        let number = usize::try_from(long(at)).map_err(|_| Error::Malformed("a rank beyond all bounds".into()));
        number.map(Rank::new)
    };
    let (index, count) = (short(32), short(36));
    match kind {
        LINK | CONTROL if index < count && count as usize <= MAX_STREAMS => {
            let (from, to, group, control) = (rank(8)?, rank(16)?, GroupId(long(24)), kind == CONTROL);
            Ok(Purpose::Link { from, to, group, index, count, control })
        }
        LINK | CONTROL => Err(Error::Malformed(format!("stream {index} of {count}"))),
        STORE if hello[8..40].iter().all(|b| *b == 0) => Ok(Purpose::Store),
        MESSAGES if hello[8..40].iter().all(|b| *b == 0) => Ok(Purpose::Messages),
        PARAMETERS if hello[8..40].iter().all(|b| *b == 0) => Ok(Purpose::Parameters),
        other => Err(Error::Malformed(format!("a connection of unknown purpose {other}"))),
    }
}

#[cfg(test)]
#[path = "handshake_tests.rs"]
mod tests;
