//! One error type, sorted by what the caller can do about it.
//!
//! Texts are lower-case fragments that name rank, host, cause and what to try, so that they read well after
//! "rank 3 on node7: ".

use crate::{Departure, Rank};

/// Corro's result.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, by who can do something about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[non_exhaustive]
pub enum Error {
    /// The call itself is wrong: fix the program.
    #[error("{0}")]
    Usage(String),

    /// The ranks disagree about what is to be done: fix the program where they differ.
    #[error("{0}")]
    Mismatch(String),

    /// A peer is gone, or has made no progress until the deadline. Elastic jobs retry after this.
    #[error("lost rank {rank} on {host}: {cause}")]
    PeerLost {
        /// Who.
        rank: Rank,
        /// Where it ran.
        host: String,
        /// How we know, and what to try.
        cause: String,
    },

    /// The set of hosts changed. Elastic jobs retry after this.
    #[error("the hosts of this job have changed: {0}")]
    HostsChanged(String),

    /// A library found at run time (NCCL, MPI, CUDA) failed.
    #[error("{library} failed with code {code}: {text}")]
    Native {
        /// Its name.
        library: String,
        /// Its own error code.
        code: i64,
        /// Its own words, and ours.
        text: String,
    },

    /// The operating system refused something on this very machine.
    #[error("{doing}: {cause}")]
    Io {
        /// What was being done, with the path, port or size concerned.
        doing: String,
        /// The system's answer, and what to try.
        cause: String,
    },

    /// Bytes that are not what the protocol says.
    #[error("malformed message: {0}")]
    Malformed(String),

    /// The other side of a connection could not prove that it belongs to this job.
    #[error("refused: {0}")]
    Unauthenticated(String),

    /// The job is over: somebody shut it down, or left it.
    #[error("{0}")]
    Shutdown(Shutdown),

    /// Another thread of this process called the operation off before it began on all ranks. It may be run again.
    #[error("called off before all ranks had begun")]
    Withdrawn,

    /// An invariant of Corro's own is broken: please report it.
    #[error("a bug in corro, please report it: {0}")]
    Bug(String),
}

/// How a job came to be shut down.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Shutdown {
    /// The rank that did it, if it was one.
    pub by: Option<Rank>,
    /// In words.
    pub text: String,
}

impl std::fmt::Display for Shutdown {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl<T: Into<String>> From<T> for Shutdown {
    fn from(text: T) -> Self {
        Self { by: None, text: text.into() }
    }
}

impl Error {
    /// The rank whose fault it is, if it is one's.
    pub const fn blames(&self) -> Option<Rank> {
        match self {
            Self::PeerLost { rank, .. } => Some(*rank),
            Self::Shutdown(Shutdown { by, .. }) => *by,
            _ => None,
        }
    }

    /// An operating-system error, with what was being done.
    pub fn io(doing: impl Into<String>, cause: impl std::fmt::Display) -> Self {
        Self::Io { doing: doing.into(), cause: cause.to_string() }
    }

    /// What the others see when a rank leaves.
    pub fn left(departure: &Departure) -> Self {
        Self::Shutdown(Shutdown { by: Some(departure.rank), text: departure.to_string() })
    }

    /// A lost peer.
    pub fn peer_lost(rank: Rank, host: impl Into<String>, cause: impl Into<String>) -> Self {
        Self::PeerLost { rank, host: host.into(), cause: cause.into() }
    }

    /// Whether an elastic job may go on with other members.
    pub const fn is_retryable(&self) -> bool {
        matches!(self, Self::PeerLost { .. } | Self::HostsChanged(_))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_membership_errors_are_retryable() {
        assert!(Error::peer_lost(Rank::new(3), "node7", "connection reset").is_retryable());
        assert!(!Error::Usage("x".into()).is_retryable());
        assert!(!Error::Bug("x".into()).is_retryable());
    }

    #[test]
    fn text_names_rank_and_host() {
        let text = Error::peer_lost(Rank::new(3), "node7", "connection reset").to_string();
        assert_eq!(text, "lost rank 3 on node7: connection reset");
    }
}
