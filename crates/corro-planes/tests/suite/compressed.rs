//! Compressed allreduces over real connections: any layout of hosts, any dtype, joined ranks, plans, and ranks that change.

use std::sync::Arc;

use corro_agreement::matching::Agreed;
use corro_agreement::request::{Kind, MemoryPlace};
use corro_collectives::Group;
use corro_core::{DType, Error, ReduceOp, Shape};
use corro_planes::{Host, Ledgers, Memory, Output, Plane, Tensor};

use crate::support::{on_groups, world};

const HOSTS: [&[usize]; 6] = [&[0, 1], &[0, 1, 2], &[0, 0, 1, 1], &[0, 1, 0, 1, 1], &[0, 0], &[0, 0, 0, 1]];
const SHAPES: [&[usize]; 3] = [&[37, 20], &[501], &[3]];

fn agreed(index: usize, dtype: DType, text: &str, op: ReduceOp) -> Arc<Agreed> {
    let one = 1f64.to_bits();
    let kind = Kind::Allreduce { op, prescale: one, postscale: one, compression: Some(text.parse().unwrap()) };
    let shapes = vec![Shape(SHAPES[index].to_vec())];
    let name = format!("t{index}");
    Arc::new(Agreed { name, kind, dtype, shapes, splits: vec![], place: MemoryPlace::Host, group: None })
}

fn brought(rank: usize, step: usize, index: usize) -> Vec<f32> {
    let count = SHAPES[index].iter().product();
    (0..count).map(|i| ((rank * 7 + step * 3 + i * 5) % 17) as f32 / 8.0 - 0.5).collect()
}

fn memory(dtype: DType, values: &[f32]) -> Memory {
    let mut bytes = vec![0; values.len() * dtype.size()];
    corro_kernels::cast(DType::F32, dtype, &as_bytes(values), &mut bytes);
    bytes.into()
}

fn as_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn read(dtype: DType, memory: &Memory) -> Vec<f32> {
    let bytes = memory.host().unwrap().as_slice();
    let mut values = vec![0; bytes.len() / dtype.size() * 4];
    corro_kernels::cast(dtype, DType::F32, bytes, &mut values);
    values.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
}

/// One step of all tensors as one batch. `joined` brings nothing.
fn step(host: &mut Host, group: &mut Group, batch: &[Arc<Agreed>], number: usize, joined: bool) -> Vec<Vec<f32>> {
    let members = world(group.size());
    let rank = group.rank();
    let dtype = batch[0].dtype;
    let bring = |index: usize| {
        let memory = memory(dtype, &brought(rank, number, index));
        if joined { Tensor::default() } else { Tensor::new(None, Output::InPlace(memory)) }
    };
    let mut tensors: Vec<Tensor> = (0..batch.len()).map(bring).collect();
    let outcomes = host.run(group, &members, batch, &mut tensors, number % 2 == 1).unwrap();
    outcomes.into_iter().map(|outcome| read(dtype, outcome.unwrap().output.as_ref().unwrap())).collect()
}

fn sum(n: usize, number: usize, index: usize, joined: Option<usize>) -> Vec<f32> {
    let mut sum = vec![0.0; SHAPES[index].iter().product()];
    for rank in (0..n).filter(|rank| Some(*rank) != joined) {
        sum.iter_mut().zip(brought(rank, number, index)).for_each(|(sum, value)| *sum += value);
    }
    sum
}

#[test]
fn sums_are_right_wherever_ranks_lie() {
    for hosts in HOSTS {
        for (text, tolerance) in
            [("bf16", 0.02), ("int8 block=32", 0.03), ("int8 block=32 inside=yes", 0.05), ("topk density=1", 1e-4)]
        {
            for dtype in [DType::F32, DType::F64, DType::F16] {
                let n = hosts.len();
                // The result itself is rounded to half a unit of its last place: values here are below 2.
                let tolerance = if dtype == DType::F16 { f32::max(tolerance, 5e-4) } else { tolerance };
                let results = on_groups(hosts, move |group| {
                    let mut host = Host::default();
                    let batch: Vec<_> = (0..3).map(|i| agreed(i, dtype, text, ReduceOp::Average)).collect();
                    let last = group.size() - 1;
                    (0..4)
                        .map(|number| {
                            let joined = number == 2 && group.rank() == last;
                            step(&mut host, group, &batch, number, joined)
                        })
                        .collect::<Vec<_>>()
                });
                for (number, index) in (0..4).flat_map(|number| (0..3).map(move |index| (number, index))) {
                    let joined = (number == 2).then_some(n - 1);
                    let expected = sum(n, number, index, joined);
                    for result in &results {
                        assert_eq!(result[number][index], results[0][number][index], "the same bits on all ranks");
                        for (found, sum) in result[number][index].iter().zip(&expected) {
                            let off = (found - sum / n as f32).abs();
                            assert!(off < tolerance, "{text} {dtype} on {hosts:?}, step {number}: off by {off}");
                        }
                    }
                }
            }
        }
    }
}

/// Results and debts of all ranks are, over many steps, what was brought: also with several ranks to a host, which share the
/// work, and with a change of the layout in between.
#[test]
fn nothing_is_lost_on_the_way_or_when_the_layout_changes() {
    for text in ["int8 block=32", "onebit block=32", "powersgd rank=1", "topk density=0.1", "randomk density=0.2"] {
        let ledgers: Vec<Ledgers> = (0..4).map(|_| Ledgers::default()).collect();
        let mut total = [vec![0f64; 740], vec![0f64; 501], vec![0f64; 3]];
        let layouts: [&[usize]; 3] = [&[0, 0, 1, 1], &[0, 1, 2, 3], &[0, 0, 0, 1]];
        for (round, hosts) in layouts.into_iter().enumerate() {
            let all = ledgers.clone();
            let results = on_groups(hosts, move |group| {
                let mut host = Host::new(all[group.rank()].clone());
                let batch: Vec<_> = (0..3).map(|i| agreed(i, DType::F32, text, ReduceOp::Sum)).collect();
                (0..6).map(|number| step(&mut host, group, &batch, round * 6 + number, false)).collect::<Vec<_>>()
            });
            for step in &results[0] {
                for (total, result) in total.iter_mut().zip(step) {
                    total.iter_mut().zip(result).for_each(|(total, value)| *total += f64::from(*value));
                }
            }
        }
        for ledger in &ledgers {
            for (index, total) in total.iter_mut().enumerate() {
                let debts = ledger.with(&world(4), |ledger| ledger.settle(&format!("t{index}"), 4, false));
                for debt in debts {
                    let places = total[debt.first..].iter_mut().zip(debt.values);
                    places.for_each(|(total, owed)| *total += f64::from(owed));
                }
            }
        }
        for (index, total) in total.iter().enumerate() {
            let mut expected = vec![0f64; total.len()];
            for number in 0..18 {
                let sum = sum(4, number, index, None);
                expected.iter_mut().zip(sum).for_each(|(all, sum)| *all += f64::from(sum));
            }
            let norm = |values: &[f64]| values.iter().map(|v| v * v).sum::<f64>().sqrt();
            let off: Vec<f64> = total.iter().zip(&expected).map(|(a, b)| a - b).collect();
            assert!(norm(&off) < 2e-6 * norm(&expected), "{text} t{index}: {:e}", norm(&off) / norm(&expected));
        }
    }
}

#[test]
fn what_was_sent_is_told() {
    let reports = on_groups(&[0, 1], |group| {
        let ledgers = Ledgers::default();
        let mut host = Host::new(ledgers.clone());
        step(&mut host, group, &[agreed(0, DType::F32, "int8", ReduceOp::Sum)], 0, false);
        ledgers.with(&world(2), |ledger| ledger.report())
    });
    for report in reports {
        let (name, entry) = &report[0];
        assert_eq!((name.as_str(), entry.calls, entry.plain_bytes), ("t0", 1, 740 * 4));
        assert!(entry.sent_bytes < 740 * 4 / 3 && entry.sent_bytes > 700, "{entry:?}");
        assert!(entry.residual_norm > 0.0);
    }
}

#[test]
fn a_compression_that_can_not_be_is_an_error() {
    let errors = on_groups(&[0, 1], |group| {
        let mut broken = (*agreed(0, DType::F32, "int8", ReduceOp::Sum)).clone();
        let Kind::Allreduce { compression: Some(compression), .. } = &mut broken.kind else { panic!() };
        compression.method = corro_core::compression::Method::OneBit { block: 0 };
        let mut tensors = [Tensor::new(None, Output::InPlace(memory(DType::F32, &brought(0, 0, 0))))];
        Host::default().run(group, &world(2), &[Arc::new(broken)], &mut tensors, false).err()
    });
    assert!(errors.iter().all(|error| matches!(error, Some(Error::Malformed(why)) if why.contains("multiple of 32"))));
}
