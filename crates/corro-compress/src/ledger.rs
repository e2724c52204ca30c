//! What is remembered of all tensors, by their names.

use std::collections::HashMap;

use corro_core::{Error, Result, codec};

use crate::state::{Debt, Layout, State};

/// A norm takes a pass over memory, so it is taken now and then.
const CALLS_BETWEEN_LOOKS: u64 = 32;

/// See the module.
#[derive(Debug, Default)]
pub struct Ledger {
    states: HashMap<String, State>,
    entries: HashMap<String, Entry>,
}

/// What compression has done with a tensor so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Entry {
    /// How it was compressed the last time, as users write it.
    pub compression: String,
    /// How often.
    pub calls: u64,
    /// Bytes that this rank would have sent between hosts without, by the best algorithm there is.
    pub plain_bytes: u64,
    /// Bytes that it has sent.
    pub sent_bytes: u64,
    /// Seconds that it took, waiting included. Of tensors that ran together, each has its share by size.
    pub seconds: f64,
    /// The norm of what is still owed; in [`Ledger::totals`], of what was owed when somebody last looked.
    pub residual_norm: f64,
}

/// A state that goes on, or a new one and what the old one still owed.
#[derive(Debug)]
pub struct Taken {
    /// To be given back by [`Ledger::put`].
    pub state: State,
    /// To be added to what this rank brings to the sum.
    pub debts: Vec<Debt>,
}

impl Ledger {
    /// The state of a tensor, for this layout. If the last one was another (the ranks are others, or the compression is), what
    /// it still owed comes along, `averaged` so that it weighs among the ranks of now what it weighed among those of then.
    pub fn take(&mut self, name: &str, layout: Layout, averaged: bool) -> Taken {
        match self.states.remove(name) {
            Some(state) if state.layout == layout => Taken { state, debts: Vec::new() },
            Some(mut old) => {
                if averaged && old.layout.ranks > 0 {
                    old.scale((layout.ranks as f64 / old.layout.ranks as f64) as f32);
                }
                Taken { state: State::new(layout), debts: old.into_debts().collect() }
            }
            None => Taken { state: State::new(layout), debts: Vec::new() },
        }
    }

    /// What still is owed of a tensor that is not to be compressed any more.
    pub fn settle(&mut self, name: &str, ranks: usize, averaged: bool) -> Vec<Debt> {
        let Some(mut old) = self.states.remove(name) else { return Vec::new() };
        if averaged && old.layout.ranks > 0 {
            old.scale((ranks as f64 / old.layout.ranks as f64) as f32);
        }
        old.into_debts().collect()
    }

    /// Forgets what is owed of the tensors that `which` names.
    pub fn forget(&mut self, which: impl Fn(&str) -> bool) {
        self.states.retain(|name, _| !which(name));
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// Remembers the state of a tensor.
    pub fn put(&mut self, name: &str, state: State) {
        self.states.insert(name.to_owned(), state);
    }

    /// Adds to what is told of a tensor.
    pub fn note(&mut self, name: &str, compression: String, plain_bytes: u64, sent_bytes: u64, seconds: f64) {
        let entry = self.entries.entry(name.to_owned()).or_default();
        entry.compression = compression;
        if entry.calls.is_multiple_of(CALLS_BETWEEN_LOOKS) {
            entry.residual_norm = self.states.get(name).map_or(0.0, State::residual_norm);
        }
        entry.calls += 1;
        entry.plain_bytes += plain_bytes;
        entry.sent_bytes += sent_bytes;
        entry.seconds += seconds;
    }

    /// What compression has done so far, by name.
    pub fn report(&self) -> Vec<(String, Entry)> {
        let mut all: Vec<(String, Entry)> = self
            .entries
            .iter()
            .map(|(name, entry)| {
                let residual_norm = self.states.get(name).map_or(0.0, State::residual_norm);
                (name.clone(), Entry { residual_norm, ..entry.clone() })
            })
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }

    /// All tensors together, cheaply: norms may be some calls old.
    pub fn totals(&self) -> Entry {
        let mut totals = Entry::default();
        for entry in self.entries.values() {
            totals.calls += entry.calls;
            totals.plain_bytes += entry.plain_bytes;
            totals.sent_bytes += entry.sent_bytes;
            totals.seconds += entry.seconds;
            totals.residual_norm = totals.residual_norm.hypot(entry.residual_norm);
        }
        totals
    }

    /// Multiplies what is owed of the tensors that `which` names.
    pub fn scale(&mut self, factor: f32, which: impl Fn(&str) -> bool) {
        for (_, state) in self.states.iter_mut().filter(|(name, _)| which(name)) {
            state.scale_debts(factor);
        }
    }

    /// All states as bytes, by name: this rank's own, to be kept with its model.
    pub fn save(&self) -> Result<Vec<(String, Vec<u8>)>> {
        let mut all: Vec<(String, Vec<u8>)> = Vec::with_capacity(self.states.len());
        for (name, state) in &self.states {
            all.push((name.clone(), codec::encode(state)?));
        }
        all.sort();
        Ok(all)
    }

    /// Takes back what [`Self::save`] gave, here or in another process, whatever the ranks are now.
    pub fn load(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let state = decode(bytes).map_err(|error| {
            Error::Usage(format!("the saved compression state of tensor {name} can't be read: {error}"))
        })?;
        self.put(name, state);
        Ok(())
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.states.clear();
        self.entries.clear();
    }
}

/// A state that was saved. Any byte string gives a state or an error.
pub(crate) fn decode(bytes: &[u8]) -> Result<State> {
    let body = bytes.get(codec::LENGTH_BYTES..).unwrap_or_default();
    let state: State = codec::decode(body)?;
    if state.is_sound() { Ok(state) } else { Err(Error::Malformed("its parts don't fit together".into())) }
}

#[cfg(test)]
mod tests {
    use corro_testing::Random;

    use super::*;

    fn layout(ranks: usize) -> Layout {
        let compression = "int8 block=32".parse().unwrap();
        Layout { compression, first: 10, len: 100, peers: 2, me: 1, ranks }
    }

    /// A ledger with a tensor that owes 3 everywhere, and 5 more as an owner.
    fn ledger() -> Ledger {
        let mut ledger = Ledger::default();
        let mut state = State::new(layout(4));
        state.residual = vec![3.0; 100];
        state.owned = vec![5.0; 36];
        ledger.put("x", state);
        ledger
    }

    #[test]
    fn another_learning_rate_changes_what_is_owed_and_not_the_momentum() {
        let mut ledger = ledger();
        let mut state = ledger.take("x", layout(4), true).state;
        state.velocity = vec![7.0; 100];
        ledger.put("x", state);
        ledger.scale(2.0, |name| name == "x");
        let state = ledger.take("x", layout(4), true).state;
        assert_eq!((state.residual[0], state.owned[0], state.velocity[0]), (6.0, 10.0, 7.0));
    }

    #[test]
    fn a_state_goes_on_or_is_owed() {
        let mut same = ledger();
        let taken = same.take("x", layout(4), true);
        assert!(taken.debts.is_empty() && taken.state.residual[0] == 3.0);
        let taken = ledger().take("x", layout(2), true);
        assert!(taken.state.residual.is_empty());
        let owed: Vec<(usize, usize, f32)> =
            taken.debts.iter().map(|debt| (debt.first, debt.values.len(), debt.values[0])).collect();
        assert_eq!(owed, [(10, 100, 1.5), (74, 36, 2.5)], "half as many ranks: half as much");
        assert_eq!(ledger().settle("x", 2, false)[0].values[0], 3.0, "a sum is not weighed");
        assert!(ledger().settle("y", 2, false).is_empty());
    }

    #[test]
    fn what_is_saved_can_be_loaded_and_any_other_bytes_are_an_error_or_sound() {
        let saved = ledger().save().unwrap();
        let mut loaded = Ledger::default();
        loaded.load("x", &saved[0].1).unwrap();
        assert_eq!(loaded.save().unwrap(), saved);
        let mut random = Random::new(1);
        for _ in 0..2000 {
            let mut bytes = saved[0].1.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(bytes.len().min(60));
                bytes[at] = random.number() as u8;
            }
            bytes.truncate(bytes.len() - random.below(2) * random.below(bytes.len()));
            let mut ledger = Ledger::default();
            if ledger.load("x", &bytes).is_ok() {
                drop(ledger.take("x", layout(3), true));
            }
        }
    }
}
