//! A communicator of NCCL that any thread can end: NCCL waits for peers on the device, where nobody hears that one is lost.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError, Weak};
use std::time::Duration;

use corro_collectives::Group;
use corro_core::{Deadline, Error, Rank, Result};
use corro_cuda::{Communicator, Device, Nccl, UniqueId};
use corro_transport::Withdrawal;

use super::done::Watch;
use crate::exchange::{agree, exchange};
use crate::plane::{Release, Verdict};

/// The longest message with an id, or with why there is none.
const ID_CAP: usize = 2048;
/// So long meeting may take at most. Members who fail wait for the others meanwhile, so it is less than what those grant.
const MEETING: Duration = Duration::from_secs(60);
/// So long it may take until a thread that waits in NCCL has noticed that it should not.
const NOTICE: Duration = Duration::from_secs(10);
/// Between two looks whether it has.
const LOOK: Duration = Duration::from_millis(1);
/// What NCCL calls an error of another rank.
const REMOTE_ERROR: i64 = 6;

/// See the module.
pub(super) struct Link {
    communicator: Arc<Mutex<Communicator>>,
    ends: Arc<Ends>,
}

/// Why a wait should end.
#[derive(Default)]
struct Ends {
    released: AtomicBool,
    /// The group's mark while a batch runs on it.
    withdrawal: Mutex<Option<Withdrawal>>,
}

impl Ends {
    fn withdrawal(&self) -> MutexGuard<'_, Option<Withdrawal>> {
        self.withdrawal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn why(&self) -> Option<Error> {
        let called_off = self.withdrawal().as_ref().is_some_and(Withdrawal::is_set);
        (called_off || self.released.load(Ordering::SeqCst)).then_some(Error::Withdrawn)
    }
}

impl Link {
    /// Links the members of `team`, numbers of the group in an order that all of them know; this one is among them. All
    /// members of the group do this together, each with its own team, and all have a link then or none.
    pub(super) fn open(
        group: &mut Group,
        members: &[Rank],
        (nccl, device): (&Nccl, &Device),
        team: &[usize],
    ) -> Result<Verdict<Self>> {
        let me = group.rank();
        let (Some(first), Some(place)) = (team.first(), team.iter().position(|member| *member == me)) else {
            return Err(Error::Bug("a team that this member is not in".into()));
        };
        let made = (*first == me).then(|| nccl.unique_id().map_err(|error| short(&error)));
        let ids: Vec<Option<std::result::Result<UniqueId, String>>> = exchange(group, members, &made, ID_CAP)?;
        let refused = |(rank, id): (&Rank, &Option<std::result::Result<UniqueId, String>>)| match id {
            Some(Err(why)) => Some(format!("rank {rank}: {why}")),
            _ => None,
        };
        if let Some(why) = members.iter().zip(&ids).find_map(refused) {
            return Ok(Err(why));
        }
        let Some(Some(Ok(id))) = ids.get(*first) else {
            return Err(Error::Malformed(format!("rank {} made no id for NCCL", members[*first])));
        };
        let ends = Arc::new(Ends::default());
        *ends.withdrawal() = Some(group.withdrawal());
        let stop = {
            let ends = Arc::clone(&ends);
            move || ends.why()
        };
        let timeout = meeting(group.timeout());
        let met = Communicator::init(nccl, id, (place, team.len()), device, stop, timeout);
        *ends.withdrawal() = None;
        Ok(agree(group, members, met)?.map(|met| Self { communicator: Arc::new(Mutex::new(met)), ends }))
    }

    /// Until what is given is dropped, waits end when the group is called off.
    pub(super) fn attend(&self, group: &Group) -> Attending {
        *self.ends.withdrawal() = Some(group.withdrawal());
        Attending(Arc::clone(&self.ends))
    }

    /// Works with the communicator.
    pub(super) fn with<T>(&self, act: impl FnOnce(&mut Communicator) -> Result<T>) -> Result<T> {
        act(&mut self.communicator.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// What ends everything that waits for others, from any thread.
    pub(super) fn release(&self) -> Release {
        // Weak: whoever could end it must not be what keeps it.
        let (communicator, ends) = (Arc::downgrade(&self.communicator), Arc::clone(&self.ends));
        Box::new(move || {
            ends.released.store(true, Ordering::SeqCst);
            let Some(communicator) = Weak::upgrade(&communicator) else { return Ok(()) };
            let deadline = Deadline::after(NOTICE);
            loop {
                let mut held = match communicator.try_lock() {
                    Ok(held) => held,
                    Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
                    Err(TryLockError::WouldBlock) if deadline.passed() => {
                        return Err(Error::io("ending a communicator of NCCL", "a call of NCCL does not return"));
                    }
                    Err(TryLockError::WouldBlock) => {
                        std::thread::sleep(LOOK);
                        continue;
                    }
                };
                held.abort();
                return Ok(());
            }
        })
    }

    /// Whether NCCL has noticed that something went wrong, for those who wait for results.
    pub(super) fn watch(&self) -> Watch {
        let communicator = Arc::downgrade(&self.communicator);
        Arc::new(move || {
            let Some(communicator) = Weak::upgrade(&communicator) else { return Ok(()) };
            match communicator.try_lock() {
                Ok(mut communicator) if !communicator.is_aborted() => {
                    communicator.check().inspect_err(|_| communicator.abort())
                }
                // The device goes on without it; or whoever works with it will notice.
                _ => Ok(()),
            }
        })
    }
}

/// See [`Link::attend`].
pub(super) struct Attending(Arc<Ends>);

impl Drop for Attending {
    fn drop(&mut self) {
        *self.0.withdrawal() = None;
    }
}

/// What to say of an error of NCCL: where it is that of another rank, the members' own connection knows which is lost.
pub(super) fn blame(group: &mut Group, error: Error) -> Error {
    match error {
        Error::Native { code: REMOTE_ERROR, .. } => group.barrier().err().unwrap_or(error),
        error => error,
    }
}

/// How long members may take to meet, where those who are done wait so long for the others; 0: no limit.
fn meeting(granted: Duration) -> Duration {
    if granted.is_zero() { MEETING } else { MEETING.min(granted / 2) }
}

fn short(error: &Error) -> String {
    error.to_string().chars().take(ID_CAP / 8).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_has_failed_does_not_give_up_before_the_others_have() {
        assert_eq!(meeting(Duration::ZERO), MEETING);
        assert_eq!(meeting(Duration::from_secs(20)), Duration::from_secs(10));
        assert_eq!(meeting(Duration::from_secs(1000)), MEETING);
    }

    #[test]
    fn a_wait_ends_with_the_group_that_is_attended_or_for_good() {
        let (ends, mark) = (Arc::new(Ends::default()), Withdrawal::default());
        *ends.withdrawal() = Some(mark.clone());
        assert_eq!(ends.why(), None);
        mark.set();
        assert_eq!(ends.why(), Some(Error::Withdrawn));
        drop(Attending(Arc::clone(&ends)));
        assert_eq!(ends.why(), None);
        ends.released.store(true, Ordering::SeqCst);
        assert_eq!(ends.why(), Some(Error::Withdrawn));
    }
}
