//! Ranks as threads of one process: for tests, and for programs that want no processes.
//!
//! A [`Hub`] stands in for everything between ranks. Threads of one simulated host get a team over one segment, exactly
//! as processes do; threads of different hosts get streams through rings of another segment, as if it were a network.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use corro_core::{Error, GroupId, Rank, Result};

use crate::shm::meet::{Seats, doorbell};
use crate::shm::segment::{Segment, Sizes};
use crate::shm::stream::Doorbells;
use crate::wait_limit::WaitLimit;

/// What the threads of a job share.
#[derive(Default)]
pub(crate) struct Hub {
    meetings: Mutex<HashMap<(GroupId, Vec<Rank>), Meeting>>,
    changed: Condvar,
}

struct Meeting {
    segment: Arc<Segment>,
    doorbells: Doorbells,
    come: usize,
    gone: usize,
}

impl Hub {
    /// Meets the other members of `group` among `ranks`; `sizes` must be equal for all.
    pub(crate) fn meet(&self, group: GroupId, ranks: &[Rank], sizes: Sizes, limit: &WaitLimit) -> Result<Seats> {
        let key = (group, ranks.to_vec());
        let mut meetings = self.meetings.lock().unwrap_or_else(PoisonError::into_inner);
        let meeting = match meetings.entry(key.clone()) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let (segment, _) = Segment::create(sizes)?;
                let doorbells = ranks.iter().map(|_| doorbell()).collect::<Result<Vec<OwnedFd>>>()?;
                entry.insert(Meeting { segment: Arc::new(segment), doorbells: Arc::new(doorbells), come: 0, gone: 0 })
            }
        };
        meeting.come += 1;
        self.changed.notify_all();
        loop {
            let Some(meeting) = meetings.get_mut(&key) else { return Err(Error::Bug("a meeting vanished".into())) };
            if meeting.come >= ranks.len() {
                meeting.gone += 1;
                let seats = Seats {
                    segment: Arc::clone(&meeting.segment),
                    doorbells: Arc::clone(&meeting.doorbells),
                    exits: ranks.iter().map(|_| None).collect(),
                };
                // The last one clears the table, so that the same group can be opened again later.
                if meeting.gone == ranks.len() {
                    meetings.remove(&key);
                }
                return Ok(seats);
            }
            limit.check()?;
            if limit.is_over() {
                let come = meeting.come;
                return Err(Error::Io {
                    doing: format!("meeting the other threads of {group}"),
                    cause: format!("only {come} of {} came in time", ranks.len()),
                });
            }
            meetings = self.changed.wait_timeout(meetings, limit.nap()).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}
