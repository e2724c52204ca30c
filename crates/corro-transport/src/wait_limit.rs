//! How long to wait for ranks that are to be met: until a deadline, or until somebody knows that they won't come.
//!
//! Opening connections takes as long as the slowest rank. When the job has meanwhile failed, that is in vain: whoever
//! waits looks at the marks each time it looks up from its sleep, and stops.

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use corro_core::{Deadline, Error, Result};

use crate::withdrawal::Withdrawal;

/// How long a sleeper sleeps before it looks whether there is still anything to wait for.
const LOOK_UP: Duration = Duration::from_millis(50);

/// Why nothing is opened any more on a fabric, once that is so. Clones are the same mark.
#[derive(Clone, Debug, Default)]
pub(crate) struct GivenUp(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    reason: OnceLock<Error>,
    /// The marks of channels that are being opened: their members wait for each other's memory, too.
    opening: Mutex<Vec<Withdrawal>>,
}

impl GivenUp {
    /// The first reason counts.
    pub(crate) fn set(&self, reason: Error) {
        let _ = self.0.reason.set(reason);
        self.opening().drain(..).for_each(|withdrawal| withdrawal.set());
    }

    /// Opens something; if it is given up meanwhile, `withdrawal` is set, and the reason is the error.
    pub(crate) fn while_opening<T>(&self, withdrawal: &Withdrawal, open: impl FnOnce() -> Result<T>) -> Result<T> {
        self.opening().push(withdrawal.clone());
        // Either this sees the reason, or whoever gives it sees the mark.
        let result = self.check().and_then(|()| open());
        self.opening().retain(|other| !other.is_same(withdrawal));
        result.map_err(|error| if error == Error::Withdrawn { self.check().err().unwrap_or(error) } else { error })
    }

    fn check(&self) -> Result<()> {
        self.0.reason.get().map_or(Ok(()), |reason| Err(reason.clone()))
    }

    fn opening(&self) -> MutexGuard<'_, Vec<Withdrawal>> {
        self.0.opening.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module. A [`Deadline`] alone is one, too.
#[derive(Clone, Debug)]
pub struct WaitLimit {
    deadline: Deadline,
    withdrawal: Withdrawal,
    given_up: GivenUp,
}

impl From<Deadline> for WaitLimit {
    fn from(deadline: Deadline) -> Self {
        Self { deadline, withdrawal: Withdrawal::default(), given_up: GivenUp::default() }
    }
}

impl WaitLimit {
    pub(crate) fn new(time: Duration, withdrawal: &Withdrawal, given_up: &GivenUp) -> Self {
        Self { deadline: Deadline::after(time), withdrawal: withdrawal.clone(), given_up: given_up.clone() }
    }

    /// An error if it was called off: the one that says why, or [`Error::Withdrawn`].
    pub(crate) fn check(&self) -> Result<()> {
        self.given_up.check()?;
        if self.withdrawal.is_set() { Err(Error::Withdrawn) } else { Ok(()) }
    }

    /// Whether there is no more waiting, for either reason.
    pub(crate) fn is_over(&self) -> bool {
        self.deadline.passed() || self.check().is_err()
    }

    /// The same once more from now on, and a little longer.
    pub(crate) fn anew(&self, longer: Duration) -> Self {
        let granted = self.deadline.granted();
        // None granted means no limit.
        let granted = if granted.is_zero() { granted } else { granted + longer };
        Self { deadline: Deadline::after(granted), ..self.clone() }
    }

    /// How long to sleep at most before looking again.
    pub(crate) fn nap(&self) -> Duration {
        self.deadline.left().unwrap_or(LOOK_UP).min(LOOK_UP)
    }

    /// The deadline, for those who tell about it.
    pub(crate) fn deadline(&self) -> Deadline {
        self.deadline
    }
}

#[cfg(test)]
mod tests {
    use corro_core::Rank;

    use super::*;

    #[test]
    fn the_reason_goes_before_a_withdrawal_and_the_first_reason_stays() {
        let (withdrawal, given_up) = (Withdrawal::default(), GivenUp::default());
        let limit = WaitLimit::new(Duration::ZERO, &withdrawal, &given_up);
        assert!(!limit.is_over() && limit.nap() == LOOK_UP);
        withdrawal.set();
        assert_eq!(limit.check(), Err(Error::Withdrawn));
        let reason = Error::peer_lost(Rank::new(3), "node7", "it has exited");
        given_up.set(reason.clone());
        given_up.set(Error::Bug("later".into()));
        assert_eq!(limit.check(), Err(reason));
        assert!(limit.is_over());
    }

    #[test]
    fn what_is_being_opened_when_it_is_given_up_fails_with_the_reason() {
        let (withdrawal, given_up) = (Withdrawal::default(), GivenUp::default());
        let reason = Error::peer_lost(Rank::new(3), "node7", "it has exited");
        let opened = given_up.while_opening(&withdrawal, || {
            given_up.set(reason.clone());
            if withdrawal.is_set() { Err(Error::Withdrawn) } else { Ok(()) }
        });
        assert_eq!(opened, Err(reason.clone()));
        assert_eq!(given_up.while_opening(&Withdrawal::default(), || Ok(())), Err(reason), "and what comes later");
        let given_up = GivenUp::default();
        let withdrawal = Withdrawal::default();
        assert_eq!(given_up.while_opening(&withdrawal, || Ok(())), Ok(()));
        given_up.set(Error::Bug("later".into()));
        assert!(!withdrawal.is_set(), "what was open stays so");
    }
}
