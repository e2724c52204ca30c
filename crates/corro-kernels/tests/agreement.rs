//! The scalar kernels against a naive model, and every other instruction set against the scalar kernels.

#![expect(clippy::float_cmp, reason = "a factor is exactly 1 or it is not")]
#![expect(unsafe_code, reason = "calls the functions that take raw pointers")]

mod model;

use corro_core::{DType, ReduceOp};
use corro_kernels::InstructionSet;
use corro_testing::Random;
use model::assert_same;
use proptest::prelude::*;

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
const FACTORS: [f64; 3] = [1.0, 0.5, 1.0 / 3.0];
const SOURCES: [usize; 6] = [1, 2, 3, 4, 5, 9];
const LENGTHS: [usize; 16] = [0, 1, 2, 3, 7, 15, 16, 17, 31, 33, 63, 64, 65, 127, 1000, 1023];
const OFFSETS: [usize; 3] = [0, 1, 3];

fn scalar() -> InstructionSet {
    let all = InstructionSet::available();
    let last = *all.last().unwrap();
    assert_eq!(last.name(), "scalar");
    last
}

fn vector_sets() -> Vec<InstructionSet> {
    InstructionSet::available().into_iter().filter(|isa| isa.name() != "scalar").collect()
}

fn factors(dtype: DType) -> &'static [f64] {
    if dtype == DType::Bool { &FACTORS[..1] } else { &FACTORS }
}

#[test]
fn scalar_reductions_follow_the_model() {
    let mut random = Random::new(1);
    for dtype in DType::ALL {
        let sources: Vec<Vec<u8>> = (0..9).map(|_| model::elements(&mut random, dtype, 333)).collect();
        for op in OPS {
            for k in SOURCES {
                let srcs: Vec<&[u8]> = sources[..k].iter().map(Vec::as_slice).collect();
                for &factor in factors(dtype) {
                    let mut found = vec![0; srcs[0].len()];
                    scalar().reduce_slices(op, dtype, &mut found, &srcs, factor);
                    let expected: Vec<u8> =
                        (0..333).flat_map(|i| model::reduced(op, dtype, &srcs, factor, i)).collect();
                    assert_same(dtype, &found, &expected, || format!("{op} of {k} {dtype} times {factor}"));
                }
            }
        }
    }
}

#[test]
fn all_instruction_sets_reduce_alike_at_any_length_and_alignment() {
    let mut random = Random::new(2);
    for dtype in DType::ALL {
        let size = dtype.size();
        let sources: Vec<Vec<u8>> = (0..9).map(|_| model::elements(&mut random, dtype, 1024)).collect();
        // The same elements, from every start.
        let shifted: Vec<Vec<Vec<u8>>> =
            OFFSETS.map(|offset| sources.iter().map(|s| [&vec![0; offset], &s[..]].concat()).collect()).into();
        for op in OPS {
            for k in SOURCES {
                for &factor in factors(dtype) {
                    let srcs: Vec<&[u8]> = sources[..k].iter().map(Vec::as_slice).collect();
                    let mut expected = vec![0; 1024 * size];
                    scalar().reduce_slices(op, dtype, &mut expected, &srcs, factor);
                    for isa in InstructionSet::available() {
                        for count in LENGTHS {
                            // Not every pair of offsets, but sources and destination shift against each other.
                            for (o, offset) in OFFSETS.into_iter().enumerate() {
                                let srcs: Vec<&[u8]> = (0..k)
                                    .map(|s| (s, (o + s * usize::from(count % 2 == 1)) % 3))
                                    .map(|(s, o)| &shifted[o][s][OFFSETS[o]..][..count * size])
                                    .collect();
                                let mut found = vec![0xa5; offset + count * size + 1];
                                let end = offset + count * size;
                                isa.reduce_slices(op, dtype, &mut found[offset..end], &srcs, factor);
                                assert_same(dtype, &found[offset..end], &expected[..count * size], || {
                                    format!("{isa:?} {op} of {k} x {count} {dtype} at {offset} times {factor}")
                                });
                                assert!(
                                    found[..offset].iter().chain(&found[end..]).all(|b| *b == 0xa5),
                                    "wrote outside"
                                );
                            }
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn the_destination_may_be_any_one_of_the_sources() {
    let mut random = Random::new(3);
    for isa in InstructionSet::available() {
        for dtype in DType::ALL {
            let count = 203;
            let sources: Vec<Vec<u8>> = (0..4).map(|_| model::elements(&mut random, dtype, count)).collect();
            for op in OPS {
                let srcs: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
                let mut expected = vec![0; count * dtype.size()];
                scalar().reduce_slices(op, dtype, &mut expected, &srcs, 1.0);
                for place in 0..4 {
                    let mut copies = sources.clone();
                    let dst = copies[place].as_mut_ptr();
                    let mut starts: Vec<*const u8> = copies.iter().map(Vec::as_ptr).collect();
                    starts[place] = dst;
                    // SAFETY: all have `count` elements; dst is exactly one of the sources.
                    unsafe { isa.reduce_many(op, dtype, &[dst], &starts, count, 1.0) }
                    assert_same(dtype, &copies[place], &expected, || {
                        format!("{isa:?} {op} {dtype} into source {place}")
                    });
                }
                let mut pair = sources[0].clone();
                isa.reduce(op, dtype, &mut pair, &sources[1]);
                scalar().reduce_slices(op, dtype, &mut expected, &srcs[..2], 1.0);
                assert_same(dtype, &pair, &expected, || format!("{isa:?} {op} {dtype} in place"));
            }
        }
    }
}

#[test]
fn scaling_is_a_reduction_of_one() {
    let mut random = Random::new(4);
    for isa in InstructionSet::available() {
        for dtype in DType::ALL {
            for &factor in factors(dtype) {
                let data = model::elements(&mut random, dtype, 301);
                let mut found = data.clone();
                isa.scale(dtype, &mut found, factor);
                let expected: Vec<u8> =
                    (0..301).flat_map(|i| model::reduced(ReduceOp::Sum, dtype, &[&data], factor, i)).collect();
                assert_same(dtype, &found, &expected, || format!("{isa:?} {dtype} times {factor}"));
            }
        }
    }
}

#[test]
fn casts_follow_the_model_on_all_instruction_sets() {
    let mut random = Random::new(5);
    for from in DType::ALL {
        let count = 700;
        let src = model::elements(&mut random, from, count);
        for to in DType::ALL {
            let expected: Vec<u8> = (0..count).flat_map(|i| model::cast(to, model::get(from, &src, i))).collect();
            for isa in InstructionSet::available() {
                for (start, end) in [(0, count), (1, 1), (1, 2), (5, 36), (5, 37), (5, 38), (3, 300)] {
                    let mut found = vec![0; (end - start) * to.size() + 1];
                    isa.cast(from, to, &src[start * from.size()..end * from.size()], &mut found[1..]);
                    assert_same(to, &found[1..], &expected[start * to.size()..end * to.size()], || {
                        format!("{isa:?} {from} to {to}")
                    });
                }
            }
        }
    }
}

/// All bit patterns of both 16-bit floats to `f32`, and back.
#[test]
fn conversions_of_16_bit_floats_are_exact_for_every_pattern() {
    let all: Vec<u8> = (0..=u16::MAX).flat_map(u16::to_ne_bytes).collect();
    for isa in InstructionSet::available() {
        for dtype in [DType::F16, DType::BF16] {
            let mut wide = vec![0; all.len() * 2];
            isa.cast(dtype, DType::F32, &all, &mut wide);
            let expected: Vec<u8> = (0..=u16::MAX).flat_map(|bits| to_f32(dtype, bits).to_ne_bytes()).collect();
            assert_same(DType::F32, &wide, &expected, || format!("{isa:?} {dtype} to float32"));
            let mut back = vec![0; all.len()];
            isa.cast(DType::F32, dtype, &wide, &mut back);
            assert_same(dtype, &back, &all, || format!("{isa:?} {dtype} to float32 and back"));
        }
    }
}

/// Every 16-bit value, the middle between it and the next one, and the neighbours of that middle; then many others.
#[test]
fn rounding_to_16_bits_is_to_nearest_even() {
    for dtype in [DType::F16, DType::BF16] {
        let mut values = Vec::new();
        for bits in 0..u16::MAX {
            let (a, b) = (f64::from(to_f32(dtype, bits)), f64::from(to_f32(dtype, bits + 1)));
            let middle = (f64::midpoint(a, b) as f32).to_bits();
            values.extend([middle.wrapping_sub(1), middle, middle.wrapping_add(1)].map(f32::from_bits));
        }
        let mut random = Random::new(6);
        values.extend((0..100_000).map(|_| f32::from_bits(random.number() as u32)));
        let src: Vec<u8> = values.iter().flat_map(|v| v.to_ne_bytes()).collect();
        let expected: Vec<u8> = values
            .iter()
            .flat_map(|v| match dtype {
                DType::F16 => half::f16::from_f32(*v).to_ne_bytes(),
                _ => half::bf16::from_f32(*v).to_ne_bytes(),
            })
            .collect();
        for isa in InstructionSet::available() {
            let mut found = vec![0; expected.len()];
            isa.cast(DType::F32, dtype, &src, &mut found);
            assert_same(dtype, &found, &expected, || format!("{isa:?} float32 to {dtype}"));
            // The same through the end of the loop, which takes them one by one.
            for (src, expected) in src.chunks(4 * 31).zip(expected.chunks(2 * 31)) {
                let mut found = vec![0; expected.len()];
                isa.cast(DType::F32, dtype, src, &mut found);
                assert_same(dtype, &found, expected, || format!("{isa:?} float32 to {dtype}, one by one"));
            }
        }
    }
}

fn to_f32(dtype: DType, bits: u16) -> f32 {
    if dtype == DType::F16 { half::f16::from_bits(bits).to_f32() } else { half::bf16::from_bits(bits).to_f32() }
}

#[test]
fn dot_products_are_the_same_bits_everywhere_and_about_right() {
    let mut random = Random::new(7);
    for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
        for count in LENGTHS {
            let mut vector = || -> Vec<u8> {
                (0..count)
                    .flat_map(|_| model::cast(dtype, model::Value::Float(f64::from(random.number() as i32) / 1e9)))
                    .collect()
            };
            let (a, b) = (vector(), vector());
            let found = scalar().dot_and_norms(dtype, &a, &b);
            for isa in vector_sets() {
                assert_eq!(
                    isa.dot_and_norms(dtype, &a, &b).map(f64::to_bits),
                    found.map(f64::to_bits),
                    "{isa:?} {dtype}"
                );
                let moved = [&[0], &a[..]].concat();
                assert_eq!(isa.dot_and_norms(dtype, &moved[1..], &b).map(f64::to_bits), found.map(f64::to_bits));
            }
            let at = |v: &[u8], i| match model::get(dtype, v, i) {
                model::Value::Float(x) => x,
                model::Value::Int(_) => unreachable!(),
            };
            let naive: [f64; 3] = (0..count).fold([0.0; 3], |s, i| {
                let (x, y) = (at(&a, i), at(&b, i));
                [s[0] + x * y, s[1] + x * x, s[2] + y * y]
            });
            for (f, n) in found.into_iter().zip(naive) {
                assert!((f - n).abs() <= 1e-12 * naive[1].max(naive[2]).max(1.0), "{dtype} x {count}: {f} and {n}");
            }
        }
    }
}

#[test]
fn combining_is_two_products_and_a_sum_in_the_type_computed_in() {
    let mut random = Random::new(8);
    let (ca, cb) = (0.7, -1.0 / 3.0);
    for dtype in DType::ALL.into_iter().filter(|d| d.is_float()) {
        let (a, b) = (model::elements(&mut random, dtype, 1023), model::elements(&mut random, dtype, 1023));
        let expected: Vec<u8> = (0..1023)
            .flat_map(|i| {
                let (model::Value::Float(x), model::Value::Float(y)) =
                    (model::get(dtype, &a, i), model::get(dtype, &b, i))
                else {
                    unreachable!()
                };
                model::bytes(
                    dtype,
                    model::Value::Float(if dtype == DType::F64 {
                        ca * x + cb * y
                    } else {
                        f64::from(ca as f32 * x as f32 + cb as f32 * y as f32)
                    }),
                )
            })
            .collect();
        for isa in InstructionSet::available() {
            for count in LENGTHS {
                let mut found = a[..count * dtype.size()].to_vec();
                isa.combine(dtype, &mut found, ca, &b[..count * dtype.size()], cb);
                assert_same(dtype, &found, &expected[..count * dtype.size()], || format!("{isa:?} {dtype} x {count}"));
            }
        }
    }
}

/// Several destinations, some of them sources, get what one would.
#[test]
fn every_destination_gets_the_result() {
    let sources: Vec<Vec<u8>> =
        (0..3u8).map(|k| (0..1001u32 * 4).map(|i| (i as u8).wrapping_mul(k + 1) & 0x3f).collect()).collect();
    let slices: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
    for isa in InstructionSet::available() {
        for dtype in [DType::F32, DType::U8, DType::BF16] {
            let count = sources[0].len() / dtype.size();
            let mut want = vec![0; sources[0].len()];
            isa.reduce_slices(ReduceOp::Sum, dtype, &mut want, &slices, 1.0);
            let (mut buffers, mut apart) = (sources.clone(), vec![0; want.len()]);
            let dsts = [apart.as_mut_ptr(), buffers[0].as_mut_ptr(), buffers[2].as_mut_ptr()];
            let starts: Vec<*const u8> = buffers.iter().map(Vec::as_ptr).collect();
            // SAFETY: all buffers have `count` elements; two destinations are exactly sources, the third overlaps none.
            unsafe { isa.reduce_many(ReduceOp::Sum, dtype, &dsts, &starts, count, 1.0) }
            assert!([&apart, &buffers[0], &buffers[2]].iter().all(|b| **b == want), "{} {dtype}", isa.name());
        }
    }
}

#[test]
fn the_best_instruction_set_is_used() {
    assert_eq!(corro_kernels::instruction_set(), InstructionSet::available()[0].name());
}

#[test]
#[should_panic(expected = "operands of unequal length: 8 and 4 bytes")]
fn unequal_lengths_panic() {
    corro_kernels::reduce(ReduceOp::Sum, DType::F32, &mut [0; 8], &[0; 4]);
}

#[test]
#[should_panic(expected = "6 bytes are not a whole number of float32 elements")]
fn parts_of_elements_panic() {
    corro_kernels::scale(DType::F32, &mut [0; 6], 2.0);
}

#[test]
#[should_panic(expected = "adasum is not a reduction of single elements")]
fn adasum_as_a_reduction_panics() {
    corro_kernels::reduce(ReduceOp::Adasum, DType::F32, &mut [0; 4], &[0; 4]);
}

#[test]
#[should_panic(expected = "a bool cannot be scaled")]
fn scaling_a_bool_panics() {
    corro_kernels::scale(DType::Bool, &mut [1], 0.5);
}

#[test]
#[should_panic(expected = "adasum is for floating-point dtypes, not for int32")]
fn dot_products_of_integers_panic() {
    let _ = corro_kernels::dot_and_norms(DType::I32, &[0; 4], &[0; 4]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any bytes at all, read as any dtype, with any factor.
    #[test]
    fn any_bytes_reduce_alike(
        bytes in proptest::collection::vec(any::<u8>(), 0..900),
        dtype in proptest::sample::select(DType::ALL.to_vec()),
        op in proptest::sample::select(OPS.to_vec()),
        k in 1usize..6,
        factor in prop_oneof![Just(1.0), -3.0..3.0, any::<f64>()],
    ) {
        let factor = if dtype == DType::Bool { 1.0 } else { factor };
        let len = bytes.len() / k / dtype.size() * dtype.size();
        let srcs: Vec<&[u8]> = (0..k).map(|i| &bytes[i * len..][..len]).collect();
        let mut expected = vec![0; len];
        scalar().reduce_slices(op, dtype, &mut expected, &srcs, factor);
        for isa in vector_sets() {
            let mut found = vec![0; len];
            isa.reduce_slices(op, dtype, &mut found, &srcs, factor);
            assert_same(dtype, &found, &expected, || format!("{isa:?} {op} of {k} {dtype} times {factor}"));
        }
    }
}

#[test]
fn exactly_what_is_asked_for_is_streamed() {
    let source = model::elements(&mut Random::new(9), DType::U8, 5000);
    for len in [0, 1, 63, 64, 65, 127, 128, 300, 4096, 4900] {
        for from in [0, 1, 32, 63] {
            for to in [0, 1, 31, 64] {
                let mut found = vec![0xa5; to + len + 100];
                // SAFETY: both are long enough, and they are two vectors.
                unsafe { corro_kernels::stream(source.as_ptr().add(from), found.as_mut_ptr().add(to), len) };
                let expected = [&vec![0xa5; to], &source[from..from + len], &[0xa5; 100]].concat();
                assert!(found == expected, "{len} bytes from {from} to {to}");
            }
        }
    }
}
