//! Rounding and its order: same bits on every rank and on every run, 16-bit sums, scale factors, Adasum, and forms of
//! one collective that must agree. Data is random by a fixed seed, with NaN, infinities and subnormals where they fit.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support;
use crate::support::{Transport, on_ranks};
use corro_collectives::{Algorithm, Collective, DType, Error, Group, ReduceOp, Reduction, Tensor};
use corro_testing::Random;
use half::{bf16, f16};

const ALGORITHMS: [Algorithm; 5] =
    [Algorithm::Direct, Algorithm::Ring, Algorithm::HalvingDoubling, Algorithm::Tree, Algorithm::Hierarchical];

/// Values of very different sizes, whose sum depends on the order.
fn ordinary(random: &mut Random) -> f64 {
    let scale = [1e-3, 1.0, 1.0, 100.0][random.number() as usize % 4];
    random.unit() * scale
}

/// Ordinary values; with `special` every eighth is random bits, an infinity, a NaN with a payload, or a subnormal.
fn data(dtype: DType, rank: usize, len: usize, special: bool, seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed * 1000 + rank as u64 + 1);
    let mut bytes = Vec::with_capacity(len * dtype.size());
    for _ in 0..len {
        let value = ordinary(&mut random);
        let kind = if special { random.number() % 48 } else { 48 };
        let bits = random.number();
        match dtype {
            DType::F16 => bytes.extend(match kind {
                0 => (bits as u16).to_le_bytes(),
                1 => (if bits & 1 == 0 { f16::INFINITY } else { f16::NEG_INFINITY }).to_le_bytes(),
                2 => (0x7c01 | bits as u16).to_le_bytes(),
                3 => (bits as u16 & 0x83ff).to_le_bytes(),
                _ => f16::from_f64(value).to_le_bytes(),
            }),
            DType::BF16 => bytes.extend(match kind {
                0 => (bits as u16).to_le_bytes(),
                1 => (if bits & 1 == 0 { bf16::INFINITY } else { bf16::NEG_INFINITY }).to_le_bytes(),
                2 => (0x7f81 | bits as u16).to_le_bytes(),
                3 => (bits as u16 & 0x807f).to_le_bytes(),
                _ => bf16::from_f64(value).to_le_bytes(),
            }),
            DType::F64 => bytes.extend(match kind {
                0 => bits.to_le_bytes(),
                1 => (if bits & 1 == 0 { f64::INFINITY } else { f64::NEG_INFINITY }).to_le_bytes(),
                2 => (0x7ff0_0000_0000_0001 | bits).to_le_bytes(),
                3 => (bits & 0x800f_ffff_ffff_ffff).to_le_bytes(),
                _ => value.to_le_bytes(),
            }),
            _ => bytes.extend(match kind {
                0 => (bits as u32).to_le_bytes(),
                1 => (if bits & 1 == 0 { f32::INFINITY } else { f32::NEG_INFINITY }).to_le_bytes(),
                2 => (0x7f80_0001 | bits as u32).to_le_bytes(),
                3 => (bits as u32 & 0x807f_ffff).to_le_bytes(),
                _ => (value as f32).to_le_bytes(),
            }),
        }
    }
    bytes
}

/// Bytes as elements, wherever they lie.
fn elements<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

fn floats(rank: usize, len: usize, seed: u64) -> Vec<f32> {
    elements(&data(DType::F32, rank, len, false, seed))
}

/// Results by case, to compare with those of other runs.
type Seen = Arc<Mutex<HashMap<String, Vec<u8>>>>;

/// One run of every algorithm; ranks arrive at times that `run` decides.
fn same_bits(transport: Transport, n: usize, lengths: &'static [usize], run: u64, seen: &Seen) {
    let seen = Arc::clone(seen);
    on_ranks(transport, n, move |group| {
        let mut delays = Random::new(run * 100 + group.rank() as u64 + 7);
        let topology = group.topology();
        for algorithm in ALGORITHMS.into_iter().filter(|a| a.fits(Collective::Allreduce, topology)) {
            for dtype in [DType::F32, DType::F16, DType::BF16, DType::F64] {
                for op in [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Min, ReduceOp::Product] {
                    for &len in lengths {
                        let case = format!("{transport:?} {algorithm:?} {dtype} {op} n={n} len={len}");
                        if len < 5000 {
                            std::thread::sleep(Duration::from_micros(delays.number() % 300));
                        }
                        group.force(Some(algorithm));
                        let mut result = data(dtype, group.rank(), len, true, 1);
                        group.allreduce_bytes(&mut result, &Reduction::new(dtype, op)).expect(&case);
                        group.force(None);
                        all_ranks_have(group, dtype, &result, &case);
                        let mut seen = seen.lock().unwrap();
                        let first = seen.entry(case.clone()).or_insert_with(|| result.clone());
                        if *first != result {
                            let [first, result] = [first, &result].map(|bytes| without_payloads(dtype, bytes));
                            assert_same(dtype, &first, &result, &format!("{case}: run {run} differs from the first"));
                        }
                    }
                }
            }
        }
    });
}

/// With one NaN for all. Of two, the processor takes the payload of the first operand, and which is first the compiler decides,
/// for a loop's body and its rest apart. How a tensor is cut may depend on when its pieces come, so runs may differ in that.
fn without_payloads(dtype: DType, bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let infinity: u64 = match dtype {
        DType::F16 => 0x7c00,
        DType::BF16 => 0x7f80,
        DType::F32 => 0x7f80_0000,
        _ => 0x7ff0_0000_0000_0000,
    };
    let size = dtype.size();
    for element in bytes.chunks_mut(size) {
        let mut bits = [0; 8];
        bits[..size].copy_from_slice(element);
        let magnitude = u64::from_le_bytes(bits) & !(1 << (8 * size - 1));
        if magnitude > infinity {
            element.copy_from_slice(&(infinity + 1).to_le_bytes()[..size]);
        }
    }
    bytes
}

fn all_ranks_have(group: &mut Group, dtype: DType, mine: &[u8], case: &str) {
    let all = group.allgather(mine).expect(case);
    for (rank, theirs) in all.chunks(mine.len().max(1)).enumerate() {
        assert_same(dtype, theirs, mine, &format!("{case}: ranks {rank} and {} differ", group.rank()));
    }
}

fn assert_same(dtype: DType, a: &[u8], b: &[u8], case: &str) {
    if a != b {
        let size = dtype.size();
        let at = a.chunks(size).zip(b.chunks(size)).position(|(x, y)| x != y).unwrap_or(usize::MAX);
        let element = |of: &[u8]| of.chunks(size).nth(at).map(<[u8]>::to_vec);
        panic!("{case} at element {at}: bytes {:02x?} and {:02x?}", element(a), element(b));
    }
}

#[test]
fn same_bits_on_every_rank_and_run_threads() {
    for (transport, n) in [(Transport::Threads, 2), (Transport::Threads, 5), (Transport::ThreadsOnHosts, 6)] {
        let seen = Seen::default();
        for run in 0..3 {
            same_bits(transport, n, &[1, 37, 3001], run, &seen);
        }
    }
}

#[test]
fn same_bits_on_every_rank_and_run_network() {
    for (transport, n) in
        [(Transport::Shm, 3), (Transport::Tcp, 3), (Transport::Tcp, 4), (Transport::TcpAndShm, 5), (Transport::Tls, 3)]
    {
        let seen = Seen::default();
        for run in 0..2 {
            same_bits(transport, n, &[37, 5003], run, &seen);
        }
    }
}

#[test]
fn same_bits_of_long_data() {
    for (transport, n) in [(Transport::Threads, 3), (Transport::ThreadsOnHosts, 4), (Transport::Tcp, 3)] {
        let seen = Seen::default();
        for run in 0..2 {
            same_bits(transport, n, &[150_001], run, &seen);
        }
    }
}

/// 16-bit floats through shared memory: summed in 32 bits in the order of ranks, rounded once.
#[test]
fn short_floats_are_rounded_once() {
    for (n, len) in [(2, 1003), (3, 1003), (7, 333), (3, 200_003), (17, 501)] {
        on_ranks(Transport::Threads, n, move |group| {
            group.force(Some(Algorithm::Direct));
            for op in [ReduceOp::Sum, ReduceOp::Average] {
                let factor = if op == ReduceOp::Average { (1.0 / n as f64) as f32 } else { 1.0 };
                for dtype in [DType::F16, DType::BF16] {
                    let case = format!("{dtype} {op} n={n} len={len}");
                    let inputs: Vec<Vec<u16>> = (0..n).map(|r| elements(&data(dtype, r, len, true, 2))).collect();
                    let wide = |bits: u16| match dtype {
                        DType::F16 => f16::from_bits(bits).to_f32(),
                        _ => bf16::from_bits(bits).to_f32(),
                    };
                    let narrow = |value: f32| match dtype {
                        DType::F16 => f16::from_f32(value).to_bits(),
                        _ => bf16::from_f32(value).to_bits(),
                    };
                    let mut got = inputs[group.rank()].clone();
                    group.allreduce_bytes(bytemuck::cast_slice_mut(&mut got), &Reduction::new(dtype, op)).expect(&case);
                    for (i, got) in got.into_iter().enumerate() {
                        let sum = inputs[1..].iter().fold(wide(inputs[0][i]), |sum, input| sum + wide(input[i]));
                        let want = narrow(sum * factor);
                        let both_nan = wide(got).is_nan() && wide(want).is_nan();
                        assert!(got == want || both_nan, "{case} element {i}: {got:04x} and not {want:04x}");
                    }
                }
            }
        });
    }
}

#[test]
fn the_order_of_ranks_is_the_order_of_additions_through_shared_memory() {
    for len in [500, 100_003] {
        on_ranks(Transport::Threads, 4, move |group| {
            group.force(Some(Algorithm::Direct));
            let mut got = floats(group.rank(), len, 3);
            group.allreduce(&mut got, ReduceOp::Sum).expect("allreduce");
            let inputs: Vec<Vec<f32>> = (0..4).map(|r| floats(r, len, 3)).collect();
            for (i, got) in got.iter().enumerate() {
                let want = inputs[0][i] + inputs[1][i] + inputs[2][i] + inputs[3][i];
                assert_eq!(got.to_bits(), want.to_bits(), "element {i}");
            }
        });
    }
}

/// Every algorithm that fits, on transports of each topology.
fn with_each_algorithm(n: usize, act: impl Fn(&mut Group, &str) + Send + Sync + 'static) {
    let act = Arc::new(act);
    for transport in [Transport::Threads, Transport::ThreadsOnHosts, Transport::Tcp] {
        let act = Arc::clone(&act);
        on_ranks(transport, n, move |group| {
            let topology = group.topology();
            for algorithm in ALGORITHMS.into_iter().filter(|a| a.fits(Collective::Allreduce, topology)) {
                group.force(Some(algorithm));
                act(group, &format!("{transport:?} {algorithm:?} n={n} rank {}", group.rank()));
            }
        });
    }
}

#[test]
fn integers_truncate_toward_zero() {
    with_each_algorithm(3, |group, case| {
        let me = group.rank() as i32;
        // Sums of 7, -7, 8, -8, 0: a third of each, toward zero.
        let mut average = [7 * i32::from(me == 0), -7 * i32::from(me == 1), 8 * i32::from(me == 2), -8, 16];
        if me != 0 {
            (average[3], average[4]) = (0, -8);
        }
        group.allreduce(&mut average, ReduceOp::Average).expect(case);
        assert_eq!(average, [2, -2, 2, -2, 0], "{case}");

        let mut how = Reduction { prescale: 0.5, ..Reduction::new(DType::I32, ReduceOp::Sum) };
        let mut data = [3i32, -3, 5, 1];
        group.allreduce_bytes(bytemuck::cast_slice_mut(&mut data), &how).expect(case);
        assert_eq!(data, [3, -3, 6, 0], "{case}: each contribution is scaled and truncated first");

        how = Reduction { postscale: 0.5, ..Reduction::new(DType::I32, ReduceOp::Sum) };
        let mut data = [3i32, -3, 5, 1];
        group.allreduce_bytes(bytemuck::cast_slice_mut(&mut data), &how).expect(case);
        assert_eq!(data, [4, -4, 7, 1], "{case}: the sum is scaled and truncated at last");

        how = Reduction { prescale: 2.0, postscale: 0.25, ..Reduction::new(DType::U8, ReduceOp::Max) };
        let mut data = [10u8, 200 - me as u8];
        group.allreduce_bytes(&mut data, &how).expect(case);
        assert_eq!(data, [5, 63], "{case}: 400 saturates at 255");

        how = Reduction { postscale: 1e30, ..Reduction::new(DType::I16, ReduceOp::Sum) };
        let mut data = [1i16, -1, 0];
        group.allreduce_bytes(bytemuck::cast_slice_mut(&mut data), &how).expect(case);
        assert_eq!(data, [i16::MAX, i16::MIN, 0], "{case}");
    });
}

/// A factor of exactly 1 is no multiplication, so integers too long for a float survive it.
#[test]
fn a_factor_of_one_is_no_multiplication() {
    const LONG: i64 = (1 << 60) + 1;
    with_each_algorithm(2, |group, case| {
        for (op, prescale, postscale) in [(ReduceOp::Sum, 1.0, 1.0), (ReduceOp::Average, 1.0, 2.0)] {
            let how = Reduction { prescale, postscale, ..Reduction::new(DType::I64, op) };
            let mut data = [LONG, -LONG, group.rank() as i64];
            group.allreduce_bytes(bytemuck::cast_slice_mut(&mut data), &how).expect(case);
            assert_eq!(data, [2 * LONG, -2 * LONG, 1], "{case} {op}");
        }
    });
    on_ranks(Transport::Threads, 1, |group| {
        let mut data = [LONG];
        group.allreduce(&mut data, ReduceOp::Average).expect("a world of one");
        assert_eq!(data, [LONG]);
        let range = 0..8;
        group.shared()[range.clone()].copy_from_slice(&LONG.to_le_bytes());
        group.allreduce_shared(range.clone(), &Reduction::new(DType::I64, ReduceOp::Average)).expect("a world of one");
        assert_eq!(group.shared()[range], LONG.to_le_bytes());
    });
}

#[test]
fn floats_are_scaled_before_and_after() {
    with_each_algorithm(3, |group, case| {
        let how = Reduction { prescale: 0.5, postscale: 4.0, ..Reduction::new(DType::F64, ReduceOp::Average) };
        let mut data: Vec<f64> = (0..40_001).map(|i| f64::from(i % 100 + group.rank() as i32)).collect();
        group.allreduce_bytes(bytemuck::cast_slice_mut(&mut data), &how).expect(case);
        for (i, got) in data.iter().enumerate() {
            // Exact: halves of small whole numbers, then one product.
            let sum: f64 = (0..3).map(|r| f64::from(i as i32 % 100 + r) * 0.5).sum();
            assert_eq!(got.to_bits(), (sum * (4.0 / 3.0)).to_bits(), "{case} element {i}");
        }
        let input: Vec<f32> = (0..9).map(|i| (i + group.rank()) as f32).collect();
        let mut mine = [0f32; 3];
        let how = Reduction { prescale: 2.0, postscale: 0.5, ..Reduction::new(DType::F32, ReduceOp::Sum) };
        group
            .reducescatter_bytes(bytemuck::cast_slice(&input), 9, bytemuck::cast_slice_mut(&mut mine), &how)
            .expect(case);
        let first = 3 * group.rank();
        assert_eq!(mine, [first, first + 1, first + 2].map(|i| (3 * i + 3) as f32), "{case}: the input is not changed");
        assert_eq!(input[0].to_bits(), (group.rank() as f32).to_bits(), "{case}");
    });
}

#[test]
fn what_has_no_meaning_is_wrong_usage() {
    on_ranks(Transport::Threads, 2, |group| {
        let mut refused = |dtype, op, prescale| {
            let how = Reduction { prescale, ..Reduction::new(dtype, op) };
            let mut data = [0u8; 16];
            let results = [
                group.allreduce_bytes(&mut data, &how),
                group.allreduce_shared(0..16, &how),
                group.reducescatter_bytes(&data, 2, &mut [0; 8], &how),
            ];
            for result in results {
                assert!(matches!(result, Err(Error::Usage(_))), "{dtype} {op} {prescale}: {result:?}");
            }
        };
        for dtype in [DType::I32, DType::U8, DType::I64, DType::Bool] {
            refused(dtype, ReduceOp::Adasum, 1.0);
        }
        refused(DType::Bool, ReduceOp::Average, 1.0);
        refused(DType::Bool, ReduceOp::Sum, 0.5);
        let how = Reduction::new(DType::F32, ReduceOp::Sum);
        for result in [group.allreduce_bytes(&mut [0; 6], &how), group.allreduce_shared(0..6, &how)] {
            assert!(matches!(result, Err(Error::Usage(_))), "{result:?}");
        }
        let end = group.shared().len();
        for range in [2..6, end - 4..end + 4, end + 4..end + 8] {
            let result = group.allreduce_shared(range.clone(), &how);
            assert!(matches!(result, Err(Error::Usage(_))), "{range:?}: {result:?}");
        }
        // None of it went to the other rank.
        let mut data = [1i32];
        group.allreduce(&mut data, ReduceOp::Sum).expect("still usable");
        assert_eq!(data, [2]);
    });
}

/// Adasum of two vectors, in 64 bits.
fn adasum_pair(a: &[f64], b: &[f64]) -> Vec<f64> {
    let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
    let (ab, aa, bb) = (dot(a, b), dot(a, a), dot(b, b));
    let coefficient = |norm: f64| if norm == 0.0 { 1.0 } else { 1.0 - ab / (2.0 * norm) };
    let (ca, cb) = (coefficient(aa), coefficient(bb));
    a.iter().zip(b).map(|(a, b)| ca * a + cb * b).collect()
}

/// Adasum of one vector per rank: the surplus over a power of two pairs up first, then neighbours, then their pairs.
fn adasum_model(mut vectors: Vec<Vec<f64>>) -> Vec<f64> {
    let surplus = vectors.len() - (1 << vectors.len().ilog2());
    let pair = |two: &[Vec<f64>]| adasum_pair(&two[0], &two[1]);
    let rest = vectors.split_off(2 * surplus);
    vectors = vectors.chunks(2).map(pair).chain(rest).collect();
    while vectors.len() > 1 {
        vectors = vectors.chunks(2).map(pair).collect();
    }
    vectors.pop().unwrap()
}

fn assert_near(got: &[f64], want: &[f64], tolerance: f64, case: &str) {
    assert_eq!(got.len(), want.len(), "{case}");
    let scale = want.iter().fold(1e-300, |m: f64, v| m.max(v.abs()));
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        assert!((got - want).abs() <= tolerance * scale, "{case} element {i}: {got} and not {want}");
    }
}

#[test]
fn adasum_follows_its_definition() {
    const LENGTHS: [usize; 6] = [1, 1000, 0, 3, 70_001, 2];
    for n in [2, 3, 4, 5, 8] {
        for transport in [Transport::Threads, Transport::ThreadsOnHosts, Transport::Tcp] {
            on_ranks(transport, n, move |group| {
                let case = format!("{transport:?} n={n}");
                let tensors =
                    |rank: usize| LENGTHS.iter().zip(10..).map(move |(len, seed)| floats(rank, *len, seed)).collect();
                let mut mine: Vec<Vec<f32>> = tensors(group.rank());
                let mut bytes: Vec<Tensor<'_>> =
                    mine.iter_mut().map(|t| Tensor::in_place(bytemuck::cast_slice_mut(t))).collect();
                let how = Reduction { postscale: 0.5, ..Reduction::new(DType::F32, ReduceOp::Adasum) };
                group.allreduce_many(&mut bytes, &how).expect(&case);
                let all: Vec<Vec<Vec<f32>>> = (0..n).map(tensors).collect();
                for (t, got) in mine.iter().enumerate() {
                    let wide = |v: &Vec<f32>| v.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
                    let want = adasum_model(all.iter().map(|of_rank| wide(&of_rank[t])).collect());
                    let want: Vec<f64> = want.iter().map(|v| v * 0.5).collect();
                    assert_near(&wide(got), &want, 1e-5, &format!("{case} tensor {t}"));
                }
                all_ranks_have(group, DType::F32, bytemuck::cast_slice(&mine.concat()), &case);
            });
        }
    }
}

#[test]
fn adasum_of_other_floats() {
    on_ranks(Transport::Threads, 4, |group| {
        for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F16, 4e-3), (DType::BF16, 3e-2)] {
            let wide = |bytes: &[u8]| match dtype {
                DType::F64 => elements::<f64>(bytes),
                DType::F16 => elements::<f16>(bytes).iter().map(|v| v.to_f64()).collect(),
                _ => elements::<bf16>(bytes).iter().map(|v| v.to_f64()).collect(),
            };
            let mut mine = data(dtype, group.rank(), 501, false, 20);
            group.allreduce_bytes(&mut mine, &Reduction::new(dtype, ReduceOp::Adasum)).expect("adasum");
            let want = adasum_model((0..4).map(|r| wide(&data(dtype, r, 501, false, 20))).collect());
            assert_near(&wide(&mine), &want, tolerance, &dtype.to_string());
            all_ranks_have(group, dtype, &mine, &dtype.to_string());
        }
    });
}

#[test]
fn adasum_adds_the_orthogonal_and_averages_the_equal() {
    for n in [2, 3, 4, 5, 8] {
        on_ranks(Transport::Threads, n, move |group| {
            let me = group.rank();
            let mut apart: Vec<f32> = (0..n).map(|i| if i == me { (me + 1) as f32 } else { 0.0 }).collect();
            group.allreduce(&mut apart, ReduceOp::Adasum).expect("adasum");
            assert_eq!(apart, (1..=n).map(|v| v as f32).collect::<Vec<_>>(), "orthogonal, n={n}");

            let mut equal = vec![0.5f32, -3.0, 8.0];
            group.allreduce(&mut equal, ReduceOp::Adasum).expect("adasum");
            assert_eq!(equal, [0.5, -3.0, 8.0], "equal, n={n}");

            let mut zero = vec![0.0f32; 9];
            group.allreduce(&mut zero, ReduceOp::Adasum).expect("adasum");
            assert!(zero.iter().all(|v| v.to_bits() == 0), "zero, n={n}");

            let mut lonely = vec![if me == n - 1 { 2.5f32 } else { 0.0 }; 9];
            group.allreduce(&mut lonely, ReduceOp::Adasum).expect("adasum");
            assert_eq!(lonely, [2.5; 9], "all but one zero, n={n}");
        });
    }
}

/// Many tensors at once are the same as one call each.
#[test]
fn fused_is_the_same_as_single() {
    for transport in [Transport::Threads, Transport::ThreadsOnHosts, Transport::Shm, Transport::Tcp] {
        on_ranks(transport, 4, move |group| {
            for (dtype, op) in
                [(DType::F32, ReduceOp::Sum), (DType::U8, ReduceOp::Max), (DType::BF16, ReduceOp::Average)]
            {
                // Tiny, empty and odd ones, an empty first and last, then a few that need several slots together.
                let tiny: Vec<usize> = (0..300).map(|i| [0, 1, 3, 0, 17, 2][i % 6]).chain([0]).collect();
                let long = vec![0, 1, 90_001, 0, 70_003, 3, 200_001, 0];
                for lengths in [tiny, long, vec![0, 0, 0], vec![]] {
                    let case = format!("{transport:?} {dtype} {op} of {} tensors", lengths.len());
                    let how = Reduction::new(dtype, op);
                    let mut many: Vec<Vec<u8>> =
                        lengths.iter().map(|len| support::sample(dtype, group.rank(), *len)).collect();
                    let mut single = many.clone();
                    let inputs = many.clone();
                    let mut tensors = Vec::new();
                    for (i, (place, input)) in many.iter_mut().zip(&inputs).enumerate() {
                        // Some in place, and others on each member.
                        if (i + group.rank()).is_multiple_of(2) {
                            tensors.push(Tensor::in_place(place));
                        } else {
                            place.fill(0x55);
                            tensors.push(Tensor::apart(input, place));
                        }
                    }
                    group.allreduce_many(&mut tensors, &how).expect(&case);
                    for tensor in single.iter_mut().take(40) {
                        group.allreduce_bytes(tensor, &how).expect(&case);
                    }
                    assert!(many.iter().zip(&single).take(40).all(|(a, b)| a == b), "{case}");
                    for (tensor, len) in many.iter().zip(&lengths) {
                        let want = support::model::allreduce(dtype, op, 4, *len);
                        assert!(support::model::same(dtype, tensor, &want), "{case}");
                    }
                }
            }
        });
    }
}

/// The zero-copy form gives what the other one gives: one host, several, and a rank alone on its host.
#[test]
fn shared_is_the_same_as_private() {
    for (transport, n) in [
        (Transport::Threads, 2),
        (Transport::Threads, 5),
        (Transport::Shm, 3),
        (Transport::ThreadsOnHosts, 3),
        (Transport::ThreadsOnHosts, 6),
        (Transport::TcpAndShm, 5),
        (Transport::Tcp, 3),
    ] {
        on_ranks(transport, n, move |group| {
            let me = group.rank();
            let algorithms = ALGORITHMS.into_iter().filter(|a| a.fits(Collective::Allreduce, group.topology()));
            for algorithm in algorithms.map(Some).chain([None]).collect::<Vec<_>>() {
                group.force(algorithm);
                for (dtype, op) in [
                    (DType::F32, ReduceOp::Sum),
                    (DType::I16, ReduceOp::Average),
                    (DType::F16, ReduceOp::Max),
                    (DType::Bool, ReduceOp::Sum),
                ] {
                    for (start, len) in [(0, 1), (8, 777), (4096 + 16, 50_001), (0, 0)] {
                        let case = format!("{transport:?} {algorithm:?} {dtype} {op} n={n} {start}+{len}");
                        let range = start..start + len * dtype.size();
                        let guards = [start.saturating_sub(8)..start, range.end..range.end + 8];
                        let sample = support::sample(dtype, me, len);
                        for guard in &guards {
                            group.shared()[guard.clone()].fill(0xa5 ^ me as u8);
                        }
                        group.shared()[range.clone()].copy_from_slice(&sample);
                        group.allreduce_shared(range.clone(), &Reduction::new(dtype, op)).expect(&case);
                        let want = support::model::allreduce(dtype, op, n, len);
                        assert!(support::model::same(dtype, &group.shared()[range.clone()], &want), "{case}");
                        for guard in guards {
                            assert!(group.shared()[guard].iter().all(|b| *b == 0xa5 ^ me as u8), "{case}: beside it");
                        }
                    }
                }
                let mut private = floats(me, 999, 30);
                private[0] = f32::NAN;
                let range = 64..64 + 4 * 999;
                group.shared()[range.clone()].copy_from_slice(bytemuck::cast_slice(&private));
                let how = Reduction { prescale: 0.3, postscale: 0.7, ..Reduction::new(DType::F32, ReduceOp::Average) };
                group.allreduce_shared(range.clone(), &how).expect("shared");
                let result = group.shared()[range.clone()].to_vec();
                group.force(None);
                all_ranks_have(group, DType::F32, &result, &format!("{transport:?} {algorithm:?}"));
                group.force(algorithm);
                if group.topology() == corro_collectives::Topology::OneHost {
                    group.allreduce_bytes(bytemuck::cast_slice_mut(&mut private), &how).expect("private");
                    assert!(result == bytemuck::cast_slice::<f32, u8>(&private), "{transport:?} {algorithm:?}: bits");
                }
                let mut adasum = floats(me, 999, 31);
                group.shared()[range.clone()].copy_from_slice(bytemuck::cast_slice(&adasum));
                let how = Reduction::new(DType::F32, ReduceOp::Adasum);
                group.allreduce_shared(range.clone(), &how).expect("shared adasum");
                group.allreduce_bytes(bytemuck::cast_slice_mut(&mut adasum), &how).expect("private adasum");
                assert!(group.shared()[range] == *bytemuck::cast_slice::<f32, u8>(&adasum), "{transport:?}: adasum");
            }
        });
    }
}
