//! Proven connections that wait to be claimed by the rank they were made for.
//!
//! Owns them until then. Bounded. Waiting is done here, on a condition variable, with an end.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use corro_core::{Deadline, Error, GroupId, Rank, Result};

use super::acceptor::Proven;
use super::socket::Socket;
use crate::wait_limit::WaitLimit;

/// How many connections may wait; far beyond what an honest job leaves unclaimed.
const PLACES: usize = 16 * 1024;

/// What a connection is found by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) from: Rank,
    pub(crate) group: GroupId,
    pub(crate) control: bool,
    pub(crate) index: u32,
}

#[derive(Default)]
pub(crate) struct Registry {
    state: Mutex<Connections>,
    changed: Condvar,
}

#[derive(Default)]
struct Connections {
    parked: BTreeMap<Key, Parked>,
    arrivals: u64,
    closed: bool,
}

struct Parked {
    socket: Socket,
    count: u32,
    remote: SocketAddr,
    arrival: u64,
}

/// Why a claim came to nothing.
#[derive(Debug)]
pub(crate) enum Unclaimed {
    /// The time was over, or it was called off, with so many streams there.
    Late { arrived: usize },
    /// The peer opens another number of streams than we expect.
    Count { theirs: u32 },
    /// The endpoint is being dropped.
    Closed,
}

impl Registry {
    /// Accepts a connection and keeps it until it is claimed. A later one with the same key replaces it: the peer has
    /// tried again. Both happen under the lock, so that whoever has dialled successfully knows that his connection can
    /// be claimed, and an older one can't any more.
    pub(crate) fn park(&self, key: Key, count: u32, proven: Proven) {
        let remote = proven.remote;
        let mut state = self.lock();
        let Some(socket) = proven.accept() else {
            tracing::debug!(?key, %remote, "a peer left before it was accepted");
            return;
        };
        state.arrivals += 1;
        let arrival = state.arrivals;
        if state.parked.insert(key, Parked { socket, count, remote, arrival }).is_some() {
            tracing::debug!(?key, %remote, "replaced an unclaimed connection");
        }
        if state.parked.len() > PLACES
            && let Some(oldest) = state.parked.iter().min_by_key(|(_, p)| p.arrival).map(|(k, _)| *k)
        {
            state.parked.remove(&oldest);
            tracing::warn!(?oldest, "dropped a connection that nobody claimed");
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Waits until all `streams` of (`from`, `group`, `control`) are there, and takes them.
    pub(crate) fn claim(
        &self,
        from: Rank,
        group: GroupId,
        control: bool,
        streams: usize,
        limit: &WaitLimit,
    ) -> Result<Vec<(Socket, SocketAddr)>, Unclaimed> {
        let key = |index: usize| Key { from, group, control, index: index as u32 };
        let mut state = self.lock();
        loop {
            if state.closed {
                return Err(Unclaimed::Closed);
            }
            // A peer that died after dialling, or dialled again with other settings, leaves corpses.
            for index in 0..streams {
                if state.parked.get(&key(index)).is_some_and(|p| p.socket.is_dead()) {
                    state.parked.remove(&key(index));
                }
            }
            let here: Vec<&Parked> = (0..streams).filter_map(|i| state.parked.get(&key(i))).collect();
            if let Some(other) = here.iter().find(|p| p.count as usize != streams) {
                return Err(Unclaimed::Count { theirs: other.count });
            }
            let arrived = here.len();
            if arrived == streams {
                let taken = (0..streams).filter_map(|i| state.parked.remove(&key(i)));
                return Ok(taken.map(|p| (p.socket, p.remote)).collect());
            }
            if limit.is_over() {
                return Err(Unclaimed::Late { arrived });
            }
            state = self.changed.wait_timeout(state, limit.nap()).unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// How many connections wait.
    pub(crate) fn parked(&self) -> usize {
        self.lock().parked.len()
    }

    /// Ends all waiting and closes what nobody claimed.
    pub(crate) fn close(&self) {
        let mut state = self.lock();
        state.closed = true;
        state.parked.clear();
        drop(state);
        self.changed.notify_all();
    }

    // A panic elsewhere leaves the map whole: every change to it is one call.
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Unclaimed {
    /// The error for whoever waited for `rank`.
    pub(crate) fn into_error(
        self,
        rank: Rank,
        host: &str,
        streams: usize,
        deadline: Deadline,
        refused: Option<&str>,
    ) -> Error {
        match self {
            Self::Late { arrived } => {
                let refused = refused.map_or_else(String::new, |text| format!("; meanwhile this rank refused {text}"));
                Error::peer_lost(
                    rank,
                    host,
                    format!(
                        "it did not connect to this rank within {:?} ({arrived} of {streams} streams came){refused}. Look \
                         at that rank's own log; if it can't reach this host, name a network interface that can by \
                         CORRO_INTERFACE, or give it more time by CORRO_CONNECT_TIMEOUT",
                        deadline.granted()
                    ),
                )
            }
            Self::Count { theirs } => Error::Mismatch(format!(
                "rank {rank} on {host} opens {theirs} streams to this rank, which expects {streams}: is CORRO_STREAMS the \
                 same on every rank?"
            )),
            Self::Closed => Error::Shutdown("the network endpoint of this rank was closed".into()),
        }
    }
}
