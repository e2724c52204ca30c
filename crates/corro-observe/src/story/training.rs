//! Training values: what ranks have logged, averaged over them, and a curve of each in bounded memory.

use std::collections::{BTreeMap, VecDeque};

use crate::note::{MAX_NAME, Value, shortened};

/// The most names; more are not kept.
const MAX_NAMES: usize = 64;
/// The most points of a curve; more, and every other is left out.
const MAX_POINTS: usize = 1000;
/// Steps of one name that wait for ranks that have not logged theirs.
const MAX_OPEN: usize = 256;
/// The most values that wait to be written to files.
const MAX_READY: usize = 100_000;

/// The mean of a value over the ranks that have logged it.
#[derive(Clone, Debug, PartialEq)]
pub struct Mean {
    /// What.
    pub name: String,
    /// Of which step.
    pub step: u64,
    /// How much.
    pub value: f64,
    /// Of how many ranks.
    pub ranks: u32,
    /// Milliseconds since the job's start.
    pub at: u64,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Training {
    named: BTreeMap<String, Named>,
    ready: VecDeque<Mean>,
}

#[derive(Debug, Default)]
struct Named {
    open: BTreeMap<u64, Vec<(u32, f64)>>,
    curve: Vec<(u64, f64)>,
    /// Only every so many means is kept.
    stride: u64,
    means: u64,
}

impl Training {
    /// A rank, of so many, has logged a value.
    pub fn hear(&mut self, at: u64, rank: u32, size: u32, value: &Value) {
        let name = shortened(&value.name, MAX_NAME);
        if self.named.len() >= MAX_NAMES && !self.named.contains_key(&name) {
            return;
        }
        let named = self.named.entry(name.clone()).or_default();
        let of_step = named.open.entry(value.step).or_default();
        of_step.retain(|(known, _)| *known != rank);
        of_step.push((rank, value.value));
        let complete = of_step.len() >= size.max(1) as usize;
        if complete {
            // Older steps that not all ranks have logged will not become whole any more.
            let later = named.open.split_off(&(value.step + 1));
            for (step, values) in std::mem::replace(&mut named.open, later) {
                end(&mut self.ready, named, &name, step, &values, at);
            }
        } else if named.open.len() > MAX_OPEN
            && let Some((step, values)) = named.open.pop_first()
        {
            end(&mut self.ready, named, &name, step, &values, at);
        }
    }

    /// Nothing more will come.
    pub fn finish(&mut self, at: u64) {
        for (name, named) in &mut self.named {
            for (step, values) in std::mem::take(&mut named.open) {
                end(&mut self.ready, named, name, step, &values, at);
            }
        }
    }

    /// What is to be written to files, since the last time.
    pub fn take(&mut self) -> Vec<Mean> {
        self.ready.drain(..).collect()
    }

    /// The curves by name.
    pub fn curves(&self) -> impl Iterator<Item = (&String, &[(u64, f64)])> {
        self.named.iter().map(|(name, named)| (name, named.curve.as_slice()))
    }
}

fn end(ready: &mut VecDeque<Mean>, named: &mut Named, name: &str, step: u64, values: &[(u32, f64)], at: u64) {
    let value = values.iter().map(|(_, value)| value).sum::<f64>() / values.len().max(1) as f64;
    if ready.len() < MAX_READY {
        ready.push_back(Mean { name: name.to_owned(), step, value, ranks: values.len() as u32, at });
    }
    let stride = named.stride.max(1);
    if named.means.is_multiple_of(stride) {
        named.curve.push((step, value));
        if named.curve.len() > MAX_POINTS {
            let mut at = 0;
            named.curve.retain(|_| {
                at += 1;
                at % 2 == 1
            });
            named.stride = stride * 2;
        }
    }
    named.means += 1;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(step: u64, value: f64) -> Value {
        Value { step, name: "loss".into(), value }
    }

    #[test]
    fn ranks_are_averaged() {
        let mut training = Training::default();
        training.hear(0, 0, 2, &value(1, 2.0));
        assert!(training.take().is_empty());
        training.hear(5, 1, 2, &value(1, 4.0));
        assert_eq!(training.take(), [Mean { name: "loss".into(), step: 1, value: 3.0, ranks: 2, at: 5 }]);
    }

    #[test]
    fn what_only_one_rank_logs_comes_too() {
        let mut training = Training::default();
        for step in 0..1000 {
            training.hear(0, 0, 2, &value(step, 1.0));
        }
        training.finish(1);
        assert_eq!(training.take().len(), 1000);
    }

    #[test]
    fn curves_are_bounded() {
        let mut training = Training::default();
        for step in 0..1_000_000 {
            training.hear(0, 0, 1, &value(step, step as f64));
            training.take();
        }
        let (_, curve) = training.curves().next().unwrap();
        assert!((MAX_POINTS / 2..=MAX_POINTS).contains(&curve.len()));
        assert!(curve.iter().all(|(step, value)| *step as f64 == *value) && curve.last().unwrap().0 > 990_000);
        for name in 0..1000 {
            training.hear(0, 0, 1, &Value { name: name.to_string(), ..value(1, 1.0) });
        }
        assert_eq!(training.curves().count(), MAX_NAMES);
    }
}
