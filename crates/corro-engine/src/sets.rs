//! Which process sets there are, and what concerns all of them: how they come, go, and end together.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use corro_core::{Error, Rank, Result};

use crate::core::{Core, Whole};
use crate::set::ProcessSet;
use crate::submission::GLOBAL;
use crate::watch::record_file;

/// See the module. All ranks add and remove in the same order, so they number alike.
pub(crate) struct Sets {
    core: Arc<Core>,
    table: Mutex<Table>,
    global: OnceLock<Weak<ProcessSet>>,
}

#[derive(Default)]
struct Table {
    known: BTreeMap<u32, Known>,
    /// Numbers of removed sets, the first to be used again first.
    free: VecDeque<u32>,
    /// How many sets there ever were.
    made: u64,
}

struct Known {
    members: Vec<Rank>,
    /// `None`: this rank is not a member.
    set: Option<Arc<ProcessSet>>,
}

impl Sets {
    pub(crate) fn new(core: Arc<Core>) -> Arc<Self> {
        let sets = Arc::new(Self { core, table: Mutex::default(), global: OnceLock::new() });
        let weak = Arc::downgrade(&sets);
        sets.core.belong_to(weak);
        sets
    }

    fn global(&self) -> Option<Arc<ProcessSet>> {
        self.global.get().and_then(Weak::upgrade)
    }

    /// The set with this number, if this rank is a member.
    pub(crate) fn set(&self, id: u32) -> Result<Arc<ProcessSet>> {
        match lock(&self.table).known.get(&id) {
            Some(Known { set: Some(set), .. }) => Ok(Arc::clone(set)),
            Some(Known { members, .. }) if self.is_reserved(members) => Err(Error::Usage(format!(
                "process set {id} has ranks {members:?}, but since the last change of its ranks this job has {}, and no set of \
                 its own for these: Process set provided does not exist at present. Ask hvd.size() before using it, or \
                 use hvd.global_process_set",
                self.core.fabric.size()
            ))),
            Some(Known { members, .. }) => Err(Error::Usage(format!(
                "rank {} is not a member of the provided process set {id}, which has ranks {members:?}",
                self.core.fabric.rank()
            ))),
            None if self.core.over().is_some() => Err(self.core.over().unwrap_or(Error::Withdrawn)),
            None => Err(Error::Usage(format!(
                "process set {id}: Process set provided does not exist, or has not been registered"
            ))),
        }
    }

    pub(crate) fn members(&self, id: u32) -> Option<Vec<Rank>> {
        lock(&self.table).known.get(&id).map(|k| k.members.clone())
    }

    pub(crate) fn all_members(&self) -> Vec<(u32, Vec<Rank>)> {
        lock(&self.table).known.iter().map(|(id, k)| (*id, k.members.clone())).collect()
    }

    /// The number a set of these ranks has.
    pub(crate) fn find(&self, members: &[Rank]) -> Option<u32> {
        lock(&self.table).known.iter().find(|(_, k)| k.members == members).map(|(id, _)| *id)
    }

    /// Keeps a number for a set that can't be made of the ranks there are.
    pub(crate) fn reserve_set(&self, ranks: Vec<Rank>) -> u32 {
        let mut sets = lock(&self.table);
        let id = sets.free.pop_front().unwrap_or(sets.known.len() as u32);
        sets.known.insert(id, Known { members: ranks, set: None });
        id
    }

    fn is_reserved(&self, members: &[Rank]) -> bool {
        members.last().is_none_or(|last| last.index() >= self.core.fabric.size())
            || members.len() == self.core.fabric.size()
    }

    /// The last operations of this rank, as text.
    pub(crate) fn flight_record(&self) -> String {
        let (rank, now) = (self.core.fabric.rank(), self.core.now());
        let sets: Vec<Arc<ProcessSet>> = lock(&self.table).known.values().filter_map(|k| k.set.clone()).collect();
        sets.iter().map(|set| set.with_recorder(|record| record.dump(rank, now))).collect()
    }

    /// Saves the last operations, and says where, for whoever reads why the job has failed.
    fn save_record(&self) -> String {
        let Some(folder) = &self.core.options.watching.records else { return String::new() };
        match record_file::save(folder, self.core.fabric.rank(), &self.flight_record()) {
            Ok(path) => format!("\nThe last operations of this rank are written down in {}", path.display()),
            Err(error) => format!("\nThe last operations of this rank could not be written down: {error}"),
        }
    }

    /// Takes all sets out of the table, the global one last.
    pub(crate) fn take_sets(&self) -> Vec<Arc<ProcessSet>> {
        let known = std::mem::take(&mut lock(&self.table).known);
        known.into_values().rev().filter_map(|k| k.set).collect()
    }
}

impl Whole for Sets {
    /// Makes a process set. All ranks do so in the same order.
    fn add_set(&self, ranks: &[Rank]) -> Result<u32> {
        if let Some(id) = self.find(ranks) {
            return Err(duplicate(id, ranks));
        }
        let (id, serial) = {
            let mut sets = lock(&self.table);
            let serial = sets.made;
            sets.made += 1;
            (sets.free.pop_front().unwrap_or(sets.known.len() as u32), serial)
        };
        let member = ranks.binary_search(&self.core.fabric.rank()).is_ok();
        let set = if member { Some(ProcessSet::open(&self.core, id, serial, ranks.to_vec())?) } else { None };
        if id == GLOBAL
            && let Some(set) = &set
        {
            let _ = self.global.set(Arc::downgrade(set));
        }
        lock(&self.table).known.insert(id, Known { members: ranks.to_vec(), set });
        Ok(id)
    }

    /// Removes a process set. All ranks do so in the same order.
    fn remove_set(&self, id: u32) -> Result<()> {
        let known = {
            let mut sets = lock(&self.table);
            let known = sets.known.remove(&id);
            if known.is_some() {
                sets.free.push_back(id);
            }
            known
        };
        let Some(known) = known else {
            return Err(Error::Usage(format!("process set {id} does not exist, or has not been registered")));
        };
        if let Some(set) = known.set {
            set.remove();
            set.stop(false);
        }
        Ok(())
    }

    fn ended(&self, error: &Error) {
        // After an orderly shutdown what was agreed on before still runs, and may have to be opened first.
        if !matches!(error, Error::Shutdown(_)) {
            self.core.fabric.give_up(error.clone());
        }
        if !matches!(error, Error::Shutdown(end) if !end.text.contains("Missing ranks")) {
            let saved = self.save_record();
            self.core.warn(&format!("no collective can run any more: {error}{saved}"));
        }
        let others: Vec<Arc<ProcessSet>> = lock(&self.table)
            .known
            .iter()
            .filter(|(id, _)| **id != GLOBAL)
            .filter_map(|(_, k)| k.set.clone())
            .collect();
        for set in others {
            set.close(error.clone());
        }
    }

    fn failed(&self, error: Error) {
        if let Some(global) = self.global() {
            global.fail(error);
        }
    }

    fn lost(&self, error: Error) {
        if let Some(global) = self.global() {
            global.give_up(error);
        }
    }
}

pub(crate) fn duplicate(id: u32, ranks: &[Rank]) -> Error {
    Error::Usage(format!("duplicate process set: ranks {ranks:?} are process set {id} already"))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
