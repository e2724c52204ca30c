//! What is known of the tensors of a process set that have no names (see [`crate::unnamed`]).

use std::sync::Arc;

use crate::hash::HashMap;
use crate::matching::Agreed;
use crate::unnamed::{Periods, Stream};

/// All streams of a process set's unnamed tensors.
#[derive(Debug, Default)]
pub(super) struct Names {
    pub(super) streams: HashMap<String, Stream>,
    /// At the root: what its program does, by stream.
    pub(super) periods: HashMap<String, Periods>,
    /// The stream and the name that was given last, until it is known what for; and how often the program had looked.
    pub(super) given: Option<(String, String)>,
    pub(super) looks: u64,
}

impl Names {
    /// Whether these are called the same in each step, as far as the root knows: only then a plan can have them.
    pub(super) fn are_named_for_good(&self, agreed: &[Arc<Agreed>]) -> bool {
        let suits = |name: &str, stream: &Stream| {
            let period = self.periods.get(name).and_then(Periods::period);
            period.is_some_and(|period| stream.suits(period))
        };
        self.streams.is_empty()
            || agreed
                .iter()
                .filter_map(|a| self.streams.get_key_value(a.name.rsplit_once(".noname.")?.0))
                .all(|(name, stream)| suits(name, stream))
    }
}
