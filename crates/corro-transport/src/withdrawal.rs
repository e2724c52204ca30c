//! Calling off a collective that this rank waits in, from another thread of the same process.
//!
//! Who waits looks at the mark whenever it looks up from its sleep, so a withdrawal takes effect within the time between
//! two looks. Peers are not told: whoever withdraws must know that they are, or that they never began.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A mark that ends a channel's waiting, see the module. Clones are the same mark.
#[derive(Clone, Debug, Default)]
pub struct Withdrawal(Arc<AtomicBool>);

impl Withdrawal {
    /// Ends all waiting on the channel, now and later, with [`corro_core::Error::Withdrawn`].
    pub fn set(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether it was called off.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// Whether they are the same mark.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
