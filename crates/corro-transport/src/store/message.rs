//! What clients and the store say to each other, framed by [`corro_core::codec`].

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;

/// From a client. It is answered by a [`Response`] with the same id, unless a later request of that client comes first:
/// then waiting ends unanswered.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Request {
    /// Grows with each request of a client.
    pub id: u64,
    /// What is wanted.
    pub action: Action,
}

/// What a client wants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Action {
    /// Sets a key, whether or not it is there. Answer: `Done`.
    Set {
        /// The key.
        key: String,
        /// Its value from now on.
        value: ByteBuf,
    },
    /// The values of some keys, with `wait` only once all of them exist. Answer: `Values` of the first few of `keys`
    /// (as many as fit into a message, at least one).
    Get {
        /// The keys.
        keys: Vec<String>,
        /// Whether to wait for those that don't exist.
        wait: bool,
    },
    /// Adds to a number, which is 0 if it does not exist. Answer: `Number`, the new one.
    Add {
        /// The key; its value is a number of eight bytes, little-endian.
        key: String,
        /// How much.
        by: i64,
    },
    /// Removes a key. Answer: `Existed`.
    Delete {
        /// The key.
        key: String,
    },
}

/// From the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Response {
    /// The request's.
    pub id: u64,
    /// The answer.
    pub answer: Answer,
}

/// What the store says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Answer {
    /// It is done.
    Done,
    /// The values of the first few keys asked for.
    Values(Vec<Option<ByteBuf>>),
    /// The new value of a number.
    Number(i64),
    /// Whether the key was there.
    Existed(bool),
    /// No, for this reason.
    Refused(String),
}
