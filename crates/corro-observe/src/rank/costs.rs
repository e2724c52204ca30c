//! Which tensors take most of the time in collectives. Pure and bounded.

use std::collections::HashMap;

use crate::note::{MAX_NAME, Tensor, shortened};

/// So many tensors are told apart; what comes later counts as one, without a name.
const MAX_TENSORS: usize = 4096;

/// See the module.
#[derive(Debug, Default)]
pub struct Costs {
    known: HashMap<String, Cost>,
    others: Cost,
}

#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    times: u64,
    bytes: u64,
    nanos: u64,
}

impl Costs {
    /// Tensors of so many bytes have run as one, in this time: each took as much of it as it has of the bytes.
    pub fn ran<'a>(&mut self, tensors: impl Iterator<Item = (&'a str, u64)> + Clone, nanos: u64) {
        // An empty tensor takes some time, too.
        let all: u64 = tensors.clone().map(|(_, bytes)| bytes + 1).sum();
        for (name, bytes) in tensors {
            if self.known.len() < MAX_TENSORS && !self.known.contains_key(name) {
                self.known.insert(name.to_owned(), Cost::default());
            }
            let cost = self.known.get_mut(name).unwrap_or(&mut self.others);
            cost.times += 1;
            cost.bytes += bytes;
            cost.nanos += (nanos as f64 * (bytes + 1) as f64 / all as f64) as u64;
        }
    }

    /// The ones that took most, the first first.
    pub fn most(&self, count: usize) -> Vec<Tensor> {
        let tensor = |(name, cost): (&String, &Cost)| Tensor {
            name: shortened(name, MAX_NAME),
            times: cost.times,
            bytes: cost.bytes,
            nanos: cost.nanos,
        };
        let mut all: Vec<Tensor> = self.known.iter().map(tensor).collect();
        if self.others.times > 0 {
            all.push(tensor((&format!("{} and more others", MAX_TENSORS), &self.others)));
        }
        all.sort_by(|a, b| b.nanos.cmp(&a.nanos).then_with(|| a.name.cmp(&b.name)));
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_shared_out_by_bytes() {
        let mut costs = Costs::default();
        for _ in 0..2 {
            costs.ran([("large", 2999), ("small", 999), ("empty", 0)].into_iter(), 4001);
        }
        let most = costs.most(2);
        assert_eq!(most[0], Tensor { name: "large".into(), times: 2, bytes: 5998, nanos: 6000 });
        assert_eq!((most[1].name.as_str(), most[1].nanos, most.len()), ("small", 2000, 2));
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut costs = Costs::default();
        for number in 0..2 * MAX_TENSORS {
            costs.ran([(format!("allreduce.noname.{number}").as_str(), 4)].into_iter(), 10);
        }
        assert_eq!(costs.known.len(), MAX_TENSORS);
        let first = &costs.most(1)[0];
        assert_eq!((first.times, first.nanos), (MAX_TENSORS as u64, 10 * MAX_TENSORS as u64));
    }
}
