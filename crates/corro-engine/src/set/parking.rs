//! Tensors that the program has no names for, while the name that the next one is to have is still in use.
//!
//! Names come round (see [`corro_agreement::unnamed`]), so a name may have a tensor that is under way. The next one then
//! waits here until that is done, and with it all of its stream that come after it: no name is drawn ahead of time. The
//! program must not be made to wait for that at submit: it may be about to submit what the other ranks wait for.

use std::collections::VecDeque;
use std::sync::Arc;

use corro_agreement::hash::HashMap;

use super::entries::Entries;
use crate::promise::Promise;
use crate::submission::Submission;

/// A tensor, or a group of them, that waits for its name.
pub(super) struct Parked {
    pub(super) submissions: Vec<Submission>,
    pub(super) promises: Vec<Arc<Promise>>,
    pub(super) is_group: bool,
    /// The name, once it is drawn.
    pub(super) name: Option<String>,
}

/// See the module.
#[derive(Default)]
pub(super) struct Parking {
    /// By stream, in the order in which they came.
    streams: HashMap<String, VecDeque<Parked>>,
    /// How many tensors of a group with this name are under way.
    groups: HashMap<String, usize>,
}

impl Parking {
    pub(super) fn is_empty(&self) -> bool {
        self.streams.is_empty()
    }

    /// Whether others of this stream wait, so that the next one must, too.
    pub(super) fn has(&self, stream: &str) -> bool {
        self.streams.contains_key(stream)
    }

    pub(super) fn park(&mut self, stream: &str, parked: Parked) {
        self.streams.entry(stream.to_owned()).or_default().push_back(parked);
    }

    /// Whether a tensor, or a group of them, has this name.
    pub(super) fn is_borne(&self, name: &str, entries: &Entries) -> bool {
        entries.contains(name) || self.groups.contains_key(name)
    }

    /// A group of so many tensors gets this name.
    pub(super) fn begin_group(&mut self, name: &str, tensors: usize) {
        self.groups.insert(name.to_owned(), tensors);
    }

    /// A tensor is done.
    pub(super) fn done(&mut self, name: &str) {
        if self.groups.is_empty() {
            return;
        }
        if let Some((group, _)) = name.rsplit_once('_')
            && let Some(left) = self.groups.get_mut(group)
        {
            *left -= 1;
            if *left == 0 {
                self.groups.remove(group);
            }
        }
    }

    /// The first of a stream whose name is free by now; `name` draws one.
    pub(super) fn next(&mut self, entries: &Entries, mut name: impl FnMut(&str) -> String) -> Option<Parked> {
        let groups = &self.groups;
        let mut ready = |(stream, parked): (&String, &mut VecDeque<Parked>)| {
            let first = parked.front_mut()?;
            let name = first.name.get_or_insert_with(|| name(stream));
            (!entries.contains(name) && !groups.contains_key(name.as_str())).then(|| stream.clone())
        };
        let stream = self.streams.iter_mut().find_map(&mut ready)?;
        let parked = self.streams.get_mut(&stream)?;
        let first = parked.pop_front();
        if parked.is_empty() {
            self.streams.remove(&stream);
        }
        first
    }

    /// The name that a promise of what is parked waits for, if that is one.
    pub(super) fn awaits(&self, promise: usize) -> Option<&str> {
        let has = |parked: &Parked| parked.promises.iter().any(|p| p.address() == promise);
        let stream = self.streams.values().find(|stream| stream.iter().any(has))?;
        stream.front()?.name.as_deref()
    }

    /// All promises, of which nothing will come.
    pub(super) fn clear(&mut self) -> Vec<Arc<Promise>> {
        self.groups.clear();
        self.streams.drain().flat_map(|(_, parked)| parked).flat_map(|parked| parked.promises).collect()
    }
}

/// The names of a group's tensors.
pub(super) fn name_group(group: &str, submissions: &mut [Submission]) {
    let count = submissions.len();
    for (i, submission) in submissions.iter_mut().enumerate() {
        submission.name = format!("{group}_{}of{count}", i + 1);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::entries::Entry;
    use super::*;

    fn parked(name: Option<&str>) -> Parked {
        Parked { submissions: vec![], promises: vec![Promise::new()], is_group: false, name: name.map(Into::into) }
    }

    fn under_way(names: &[&str]) -> Entries {
        let mut entries = Entries::default();
        for name in names {
            let entry = Entry { tensor: None, verdict: None, promise: None, record: 0, since: Duration::ZERO };
            entries.insert((*name).into(), entry);
        }
        entries
    }

    #[test]
    fn a_stream_goes_on_when_its_name_is_free_and_in_order() {
        let mut parking = Parking::default();
        parking.park("sum", parked(Some("sum.0")));
        parking.park("sum", parked(None));
        assert!(parking.has("sum") && !parking.has("max"));
        let mut drawn = Vec::new();
        let mut name = |stream: &str| {
            drawn.push(stream.to_owned());
            "sum.1".to_owned()
        };
        assert!(parking.next(&under_way(&["sum.0"]), &mut name).is_none());
        let first = parking.next(&under_way(&["sum.1"]), &mut name).unwrap();
        assert_eq!(first.name.as_deref(), Some("sum.0"));
        let second = parking.streams["sum"][0].promises[0].address();
        assert!(parking.next(&under_way(&["sum.1"]), &mut name).is_none(), "it has drawn a name that is in use");
        assert_eq!(parking.awaits(second), Some("sum.1"));
        assert_eq!(parking.next(&under_way(&[]), &mut name).unwrap().name.as_deref(), Some("sum.1"));
        assert!(parking.is_empty() && drawn == ["sum"], "each draws once");
    }

    #[test]
    fn a_group_has_its_name_until_all_of_it_is_done() {
        let mut parking = Parking::default();
        parking.begin_group("pair.0", 2);
        parking.done("other_1of2");
        parking.done("pair.0_1of2");
        assert!(parking.is_borne("pair.0", &under_way(&[])));
        parking.done("pair.0_2of2");
        assert!(!parking.is_borne("pair.0", &under_way(&[])));
    }
}
