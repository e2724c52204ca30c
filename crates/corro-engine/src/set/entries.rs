//! The tensors this member has submitted, until they are done.

use std::sync::Arc;
use std::time::Duration;

use corro_agreement::hash::HashMap;
use corro_core::Error;
use corro_planes::Tensor;

use crate::promise::Promise;

/// One of them.
pub(super) struct Entry {
    /// `None` while it runs.
    pub(super) tensor: Option<Tensor>,
    /// Why it is to fail once it has come back from a collective it is withdrawn from.
    pub(super) verdict: Option<Box<Error>>,
    /// `None` while it runs in the very thread that has submitted it: that one needs no promise.
    pub(super) promise: Option<Arc<Promise>>,
    /// In the flight recorder.
    pub(super) record: u64,
    /// When it was submitted.
    pub(super) since: Duration,
}

impl Entry {
    #[inline]
    fn ended(&mut self) -> Ended {
        Ended { promise: self.promise.take(), record: self.record, since: self.since }
    }
}

/// What is left of one that is done with.
pub(super) struct Ended {
    pub(super) promise: Option<Arc<Promise>>,
    pub(super) record: u64,
    pub(super) since: Duration,
}

/// All of them, by name.
#[derive(Default)]
pub(super) struct Entries {
    table: HashMap<String, Entry>,
    /// One that was begun as it came has a place of its own: there it costs next to nothing.
    alone: Option<(String, Entry)>,
}

impl Entries {
    pub(super) fn contains(&self, name: &str) -> bool {
        self.alone.as_ref().is_some_and(|(alone, _)| alone == name) || self.table.contains_key(name)
    }

    pub(super) fn get_mut(&mut self, name: &str) -> Option<&mut Entry> {
        match &mut self.alone {
            Some((alone, entry)) if alone == name => Some(entry),
            _ => self.table.get_mut(name),
        }
    }

    pub(super) fn insert(&mut self, name: String, entry: Entry) {
        self.table.insert(name, entry);
    }

    /// As [`Entries::insert`], for what begins at once, in the thread that has submitted it.
    #[inline]
    pub(super) fn insert_alone(&mut self, name: String, record: u64, since: Duration) {
        if let Some((name, entry)) = self.alone.take() {
            self.table.insert(name, entry);
        }
        self.alone = Some((name, Entry { tensor: None, verdict: None, promise: None, record, since }));
    }

    /// It is done with.
    #[inline]
    pub(super) fn remove(&mut self, name: &str) -> Option<Ended> {
        match &mut self.alone {
            Some((alone, entry)) if alone == name => {
                let ended = entry.ended();
                self.alone = None;
                Some(ended)
            }
            _ => self.table.remove(name).map(|mut entry| entry.ended()),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.alone.is_none() && self.table.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        self.table.len() + usize::from(self.alone.is_some())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&String, &Entry)> {
        self.table.iter().chain(self.alone.as_ref().map(|(name, entry)| (name, entry)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(record: u64) -> Entry {
        Entry { tensor: None, verdict: None, promise: None, record, since: Duration::ZERO }
    }

    #[test]
    fn whether_it_has_a_place_of_its_own_is_nobodys_business() {
        let mut entries = Entries::default();
        entries.insert("a".into(), entry(1));
        entries.insert_alone("b".into(), 2, Duration::ZERO);
        entries.insert_alone("c".into(), 3, Duration::ZERO);
        assert_eq!((entries.len(), entries.contains("b"), entries.contains("d")), (3, true, false));
        assert_eq!(entries.get_mut("c").map(|e| e.record), Some(3));
        let mut records: Vec<u64> = entries.iter().map(|(_, e)| e.record).collect();
        records.sort_unstable();
        assert_eq!(records, [1, 2, 3]);
        assert_eq!(
            ["c", "a", "b", "b"].map(|name| entries.remove(name).map(|e| e.record)),
            [Some(3), Some(1), Some(2), None]
        );
        assert!(entries.is_empty());
    }
}
