//! What compression remembers, of all process sets: by their members, since a number may come to mean others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use corro_compress::Ledger;
use corro_core::Rank;

/// See the module. Clones are the same ledgers.
#[derive(Clone, Debug, Default)]
pub struct Ledgers(Arc<Mutex<HashMap<Vec<Rank>, Ledger>>>);

impl Ledgers {
    /// Calls `act` with the ledger of the set with these members. Not while a batch of it runs: then states are out of it.
    pub fn with<T>(&self, members: &[Rank], act: impl FnOnce(&mut Ledger) -> T) -> T {
        act(self.lock().entry(members.to_vec()).or_default())
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<Rank>, Ledger>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
