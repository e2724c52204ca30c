//! Which agreed tensors run as one collective.
//!
//! Pure: all ranks get the same agreed tensors in the same order and so make the same batches. Tensors of one batch share
//! kind, dtype, op, scale factors and device, and together fit the threshold. A tensor that does not fit where it stands
//! does not end the batch: later ones that do are taken along (look-ahead), as long as what was passed over, too, would
//! have fitted; so no tensor waits for long.

use corro_core::DType;

use crate::matching::Agreed;
use crate::request::{Kind, MemoryPlace};

/// Tensors that run as one collective, by their place in the list that was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Batch {
    /// Places in the list, in its order.
    pub tensors: Vec<usize>,
    /// Bytes in all.
    pub bytes: usize,
}

/// How much may run as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of one batch; a longer tensor runs alone. 0: nothing is fused.
    pub threshold: usize,
    /// Whether tensors fuse only with others of their own group.
    pub only_groups: bool,
}

/// What tensors of one batch have in common.
#[derive(PartialEq, Eq)]
struct Key {
    kind: Kind,
    dtype: DType,
    place: MemoryPlace,
    group: Option<u64>,
}

/// Cuts `agreed` into batches. Every tensor is in exactly one, and batches are in the order of their first tensors.
pub fn batches<A: std::borrow::Borrow<Agreed>>(agreed: &[A], limits: Limits) -> Vec<Batch> {
    let agreed: Vec<&Agreed> = agreed.iter().map(std::borrow::Borrow::borrow).collect();
    let mut taken = vec![false; agreed.len()];
    let mut batches = Vec::new();
    for first in 0..agreed.len() {
        if std::mem::replace(&mut taken[first], true) {
            continue;
        }
        let mut batch = Batch { tensors: vec![first], bytes: bytes(agreed[first]) };
        if let Some(key) = key(agreed[first], limits) {
            let mut passed_over = 0usize;
            for next in first + 1..agreed.len() {
                if taken[next] || self::key(agreed[next], limits).as_ref() != Some(&key) {
                    continue;
                }
                let more = bytes(agreed[next]);
                if batch.bytes.saturating_add(more) <= limits.threshold {
                    taken[next] = true;
                    batch.tensors.push(next);
                    batch.bytes += more;
                } else {
                    passed_over = passed_over.saturating_add(more);
                    if batch.bytes.saturating_add(passed_over) > limits.threshold.saturating_mul(2) {
                        break;
                    }
                }
            }
        }
        batches.push(batch);
    }
    batches
}

/// What this tensor could share a batch by, or `None` if it runs alone.
fn key(agreed: &Agreed, limits: Limits) -> Option<Key> {
    let fuses = matches!(agreed.kind, Kind::Allreduce { .. } | Kind::Allgather | Kind::Reducescatter { .. });
    let group = agreed.group.map(|(number, _)| number);
    if !fuses || limits.threshold == 0 || bytes(agreed) > limits.threshold || (limits.only_groups && group.is_none()) {
        return None;
    }
    let group = group.filter(|_| limits.only_groups);
    Some(Key { kind: agreed.kind.clone(), dtype: agreed.dtype, place: agreed.place, group })
}

/// Bytes of the result, which is what a batch must hold.
fn bytes(agreed: &Agreed) -> usize {
    agreed.shapes.iter().map(|s| s.bytes(agreed.dtype).unwrap_or(usize::MAX)).fold(0, usize::saturating_add)
}

#[cfg(test)]
mod tests {
    use corro_core::{ReduceOp, Shape};
    use proptest::prelude::*;

    use super::*;

    fn tensor(elements: usize, dtype: DType, group: Option<(u64, usize)>) -> Agreed {
        let one = 1f64.to_bits();
        Agreed {
            name: String::new(),
            kind: Kind::Allreduce { op: ReduceOp::Sum, prescale: one, postscale: one, compression: None },
            dtype,
            shapes: vec![Shape(vec![elements])],
            splits: vec![],
            place: MemoryPlace::Host,
            group,
        }
    }

    fn places(agreed: &[Agreed], threshold: usize, only_groups: bool) -> Vec<Vec<usize>> {
        batches(agreed, Limits { threshold, only_groups }).into_iter().map(|b| b.tensors).collect()
    }

    #[test]
    fn like_tensors_fuse_up_to_the_threshold() {
        let agreed: Vec<_> = (0..5).map(|_| tensor(10, DType::U8, None)).collect();
        assert_eq!(places(&agreed, 20, false), [vec![0, 1], vec![2, 3], vec![4]]);
        assert_eq!(places(&agreed, 0, false).len(), 5);
    }

    #[test]
    fn other_dtypes_and_longer_tensors_are_passed_over_not_stopped_at() {
        let agreed = [
            tensor(10, DType::U8, None),
            tensor(1, DType::F32, None),
            tensor(15, DType::U8, None),
            tensor(5, DType::U8, None),
        ];
        assert_eq!(places(&agreed, 20, false), [vec![0, 3], vec![1], vec![2]]);
    }

    #[test]
    fn a_tensor_over_the_threshold_runs_alone() {
        let agreed = [tensor(100, DType::U8, None), tensor(1, DType::U8, None), tensor(1, DType::U8, None)];
        assert_eq!(places(&agreed, 50, false), [vec![0], vec![1, 2]]);
    }

    #[test]
    fn with_only_groups_singles_stay_single() {
        let agreed = [
            tensor(1, DType::U8, None),
            tensor(1, DType::U8, Some((7, 2))),
            tensor(1, DType::U8, None),
            tensor(1, DType::U8, Some((7, 2))),
        ];
        assert_eq!(places(&agreed, 50, true), [vec![0], vec![1, 3], vec![2]]);
        assert_eq!(places(&agreed, 50, false), [vec![0, 1, 2, 3]]);
    }

    proptest! {
        #[test]
        fn every_tensor_is_in_exactly_one_batch_and_batches_fit(
            sizes in proptest::collection::vec((0usize..300, any::<bool>()), 0..60),
            threshold in 0usize..1000,
        ) {
            let dtype = |wide: bool| if wide { DType::F64 } else { DType::U8 };
            let agreed: Vec<_> = sizes.iter().map(|(n, wide)| tensor(*n, dtype(*wide), None)).collect();
            let batches = batches(&agreed, Limits { threshold, only_groups: false });
            let mut seen: Vec<usize> = batches.iter().flat_map(|b| b.tensors.clone()).collect();
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..agreed.len()).collect::<Vec<_>>());
            for batch in &batches {
                prop_assert!(batch.tensors.len() == 1 || batch.bytes <= threshold);
                prop_assert!(batch.tensors.iter().all(|t| agreed[*t].dtype == agreed[batch.tensors[0]].dtype));
                prop_assert!(batch.tensors.is_sorted());
            }
        }
    }
}
