//! The rendezvous: a small authenticated key-value store, over which the processes of a job find each other.
//!
//! [`Server`] runs in the launcher or in rank 0, as one thread; [`Client`] is what everybody else holds. Keys are set
//! once or many times, waited for, counted, deleted. It is made for addresses and decisions, not for tensors: every
//! length is capped. Nobody without the job's secret gets to send it a request.
//!
//! | part | does |
//! | --- | --- |
//! | `message` | what is said on the wire |
//! | `table` | the keys and who waits for them (pure) |
//! | `session` | one client's bytes, cut into requests (pure) |
//! | `server` | sockets and the one thread |
//! | `client` | the other end |

mod client;
mod message;
mod server;
mod session;
mod table;

pub use client::Client;
pub use server::Server;

#[doc(hidden)]
pub use message::{Action, Answer, Request, Response};
#[doc(hidden)]
pub use session::Session;
#[doc(hidden)]
pub use table::{ClientId, Table};

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 1024;
/// The longest value any server can be told to take.
pub const MAX_VALUE_BYTES: usize = 64 * 1024 * 1024;
/// The most keys one request may name; [`Client::get_many`] splits longer lists.
pub const MAX_KEYS: usize = 4096;

/// What a server is willing to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The longest value, in bytes.
    pub value: usize,
    /// All keys and values together, and separately all bytes under way to and from clients.
    pub memory: usize,
    /// How many clients at once.
    pub clients: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { value: 16 * 1024 * 1024, memory: 1024 * 1024 * 1024, clients: 16 * 1024 }
    }
}

impl Limits {
    /// The longest message that can be meant seriously: one value, or a list of keys.
    pub(crate) fn frame(&self) -> usize {
        self.value.min(MAX_VALUE_BYTES) + FRAME_EXTRA
    }
}

/// Room in a message for everything but a value.
pub(crate) const FRAME_EXTRA: usize = MAX_KEYS * (MAX_KEY_BYTES + 16);
