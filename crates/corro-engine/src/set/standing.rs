//! Whether the program can still go on, as far as this process set tells: see [`corro_agreement::deadlock`].

use std::sync::Arc;

use corro_agreement::coordinator::JOIN;
use corro_agreement::deadlock::{Awaited, InSet, NAMES, Standing};

use super::process_set::ProcessSet;
use super::state::State;
use crate::core::InOneSet;
use crate::promise::Promise;
use crate::threads::Blocked;

impl ProcessSet {
    /// Looks whether the program is blocked, and lets the node know.
    pub(super) fn look_for_deadlock(&self, st: &mut State) {
        let blocked = self.standing(st).is_some();
        st.node.blocked(self.core.now(), blocked);
    }

    /// How this rank stands; `None`: it may go on.
    pub(super) fn standing(&self, st: &State) -> Option<Standing> {
        let blocked = self.core.threads.blocked();
        let here = blocked.as_ref().and_then(|blocked| self.in_this_set(st, blocked));
        self.core.note_standing(self.id, here);
        self.core.standing(&blocked?)
    }

    /// What there is to say of this set, unless something of it is on its way.
    fn in_this_set(&self, st: &State, blocked: &Blocked) -> Option<InOneSet> {
        let idle = st.queue.is_empty() && st.doomed.is_empty() && st.over.is_none();
        let runs = st.entries.iter().any(|(_, entry)| entry.tensor.is_none());
        // In a plan ranks do not tell each other what they have submitted.
        let planned = st.node.follows_plan() && !st.entries.is_empty();
        if !idle || runs || planned {
            return None;
        }
        let name = |promise: usize| {
            let is_it = |p: &Arc<Promise>| p.address() == promise;
            let entry = st.entries.iter().find(|(_, entry)| entry.promise.as_ref().is_some_and(is_it));
            let join = st.joins.iter().any(is_it).then(|| JOIN.to_owned());
            // What is parked waits for the one that has its name.
            let bearer =
                st.parking.awaits(promise).and_then(|name| st.entries.iter().find(|(n, _)| n.starts_with(name)));
            entry.or(bearer).map(|(name, _)| name.clone()).or(join)
        };
        let here = blocked.waiting.iter().filter(|w| w.set == self.id);
        // One that is not found is done, and whoever waits for it is about to wake.
        let waits = here.map(|w| Some(Awaited { set: self.id, name: name(w.promise)? })).collect::<Option<Vec<_>>>()?;
        let in_set = InSet {
            set: self.id,
            decisions: st.node.decisions(),
            joined: !st.joins.is_empty(),
            submitted: st.entries.iter().take(NAMES).map(|(name, _)| name.clone()).collect(),
            complete: st.entries.len() <= NAMES,
        };
        Some(InOneSet { stirred: blocked.stirred, waits, in_set })
    }
}
