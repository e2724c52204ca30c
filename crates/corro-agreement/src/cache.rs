//! Tensors that all members of a process set have agreed on before, by number.
//!
//! Every member keeps the same slots, since slots are made and forgotten by the log only. What differs is the member's
//! own request behind a slot: a repetition is announced by its number only if it is the very same request.

use std::sync::Arc;

use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::message::Slot;
use crate::request::Request;

/// What a slot stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Cached {
    /// Its number.
    pub slot: Slot,
    /// What this member asked for.
    pub request: Request,
    /// What all agreed on.
    pub agreed: Arc<Agreed>,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Cache {
    by_name: HashMap<String, Arc<Cached>>,
    by_slot: HashMap<Slot, Arc<Cached>>,
}

impl Cache {
    /// What is remembered of this very request.
    pub fn find(&self, request: &Request) -> Option<&Arc<Cached>> {
        self.by_name.get(&request.name).filter(|cached| cached.request == *request)
    }

    /// What is remembered under this name, however it was asked for.
    pub fn named(&self, name: &str) -> Option<&Arc<Cached>> {
        self.by_name.get(name)
    }

    /// What a slot stands for.
    pub fn get(&self, slot: Slot) -> Option<&Arc<Cached>> {
        self.by_slot.get(&slot)
    }

    /// Remembers a tensor under a new number.
    pub fn insert(&mut self, slot: Slot, request: Request, agreed: Arc<Agreed>) {
        let cached = Arc::new(Cached { slot, request, agreed });
        if let Some(before) = self.by_name.insert(cached.request.name.clone(), Arc::clone(&cached)) {
            self.by_slot.remove(&before.slot);
        }
        self.by_slot.insert(slot, cached);
    }

    /// Forgets a slot; gives what it stood for.
    pub fn forget(&mut self, slot: Slot) -> Option<Arc<Cached>> {
        let cached = self.by_slot.remove(&slot)?;
        self.by_name.remove(&cached.request.name);
        Some(cached)
    }

    /// All slots, in no order.
    pub fn slots(&self) -> impl Iterator<Item = Slot> {
        self.by_slot.keys().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.by_slot.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_slot.is_empty()
    }
}
