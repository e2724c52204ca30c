//! The kernels of compressed collectives: what each promises, and every instruction set against the scalar one.

use corro_kernels::{InstructionSet, Into, Levels, Noise, Rest};
use corro_testing::Random;

const LENGTHS: [usize; 12] = [0, 1, 2, 15, 16, 31, 32, 33, 255, 256, 257, 1000];
const ALL_LEVELS: [Levels; 4] = [
    Levels { block: 256, bits: 8, by_norm: false },
    Levels { block: 32, bits: 4, by_norm: false },
    Levels { block: 64, bits: 2, by_norm: false },
    Levels { block: 128, bits: 8, by_norm: true },
];

fn values(random: &mut Random, count: usize) -> Vec<f32> {
    (0..count).map(|_| ((random.unit() - 0.5) * 10f64.powf(random.unit() * 6.0 - 3.0)) as f32).collect()
}

type Encode = Box<dyn Fn(InstructionSet, &mut [f32], Option<Noise>, Rest) -> Vec<u8>>;
type Decode = Box<dyn Fn(InstructionSet, &[u8], Into, &mut [f32])>;

/// Every code there is, by name.
fn codes() -> Vec<(String, Encode, Decode)> {
    let mut all: Vec<(String, Encode, Decode)> = Vec::new();
    for levels in ALL_LEVELS {
        all.push((
            format!("{levels:?}"),
            Box::new(move |isa, values, noise, rest| {
                let mut code = vec![0xff; levels.encoded_len(values.len())];
                isa.levels_encode(values, levels, noise, rest, &mut code);
                code
            }),
            Box::new(move |isa, code, into, values| isa.levels_decode(code, levels, into, values)),
        ));
    }
    all.push((
        "float8".into(),
        Box::new(|isa, values, noise, rest| {
            let mut code = vec![0xff; InstructionSet::float8_len(values.len(), 64)];
            isa.float8_encode(values, 64, noise, rest, &mut code);
            code
        }),
        Box::new(|isa, code, into, values| isa.float8_decode(code, 64, into, values)),
    ));
    all.push((
        "signs".into(),
        Box::new(|isa, values, _, rest| {
            let mut code = vec![0xff; InstructionSet::signs_len(values.len(), 96)];
            isa.signs_encode(values, 96, rest, &mut code);
            code
        }),
        Box::new(|isa, code, into, values| isa.signs_decode(code, 96, into, values)),
    ));
    all
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn instruction_sets_agree_on_every_bit() {
    let mut random = Random::new(1);
    let all = InstructionSet::available();
    let scalar = *all.last().unwrap();
    for isa in all {
        for count in LENGTHS {
            let given = values(&mut random, count);
            for (name, encode, decode) in codes() {
                for noise in [None, Some(Noise { key: 7, first: 1 << 31 })] {
                    let (mut a, mut b) = (given.clone(), given.clone());
                    let (code, model) =
                        (encode(isa, &mut a, noise, Rest::Keep), encode(scalar, &mut b, noise, Rest::Keep));
                    assert_eq!(code, model, "{isa:?} {name} {count} {noise:?}");
                    assert_eq!(bits(&a), bits(&b), "{isa:?} {name} {count} {noise:?}");
                    decode(isa, &code, Into::Add, &mut a);
                    decode(scalar, &code, Into::Add, &mut b);
                    assert_eq!(bits(&a), bits(&b), "{isa:?} {name} {count} {noise:?}");
                }
            }
            let (mut a, mut b) = (given.clone(), given);
            isa.hadamard(&mut a, 64);
            scalar.hadamard(&mut b, 64);
            assert_eq!(bits(&a), bits(&b), "{isa:?} hadamard {count}");
        }
    }
}

/// What is sent and what is kept make up what was there: the ground that error feedback stands on.
#[test]
fn code_and_rest_make_up_the_values() {
    let mut random = Random::new(2);
    let isa = InstructionSet::best();
    for count in LENGTHS {
        let given = values(&mut random, count);
        let top = given.iter().fold(0f32, |top, v| top.max(v.abs()));
        for (name, encode, decode) in codes() {
            for noise in [None, Some(Noise { key: 3, first: 0 })] {
                let mut rest = given.clone();
                let code = encode(isa, &mut rest, noise, Rest::Keep);
                let mut left = given.clone();
                assert_eq!(encode(isa, &mut left, noise, Rest::Leave), code, "{name}");
                assert_eq!(left, given, "{name}: left alone");
                decode(isa, &code, Into::Add, &mut rest);
                for (a, b) in rest.iter().zip(&given) {
                    assert!((a - b).abs() <= 2e-6 * top, "{name}: {a} and {b} of {top}");
                }
            }
        }
    }
}

#[test]
fn nearest_is_off_by_half_a_step_at_most() {
    let mut random = Random::new(3);
    let isa = InstructionSet::best();
    for levels in ALL_LEVELS {
        let mut rest = values(&mut random, 5 * levels.block + 7);
        let given = rest.clone();
        let mut code = vec![0; levels.encoded_len(rest.len())];
        isa.levels_encode(&mut rest, levels, None, Rest::Keep, &mut code);
        for (block, rest) in given.chunks(levels.block).zip(rest.chunks(levels.block)) {
            let norm = block.iter().map(|v| v * v).sum::<f32>().sqrt();
            let top = block.iter().fold(0f32, |top, v| top.max(v.abs()));
            let step = if levels.by_norm { norm } else { top } / ((1 << (levels.bits - 1)) - 1) as f32;
            assert!(rest.iter().all(|r| r.abs() <= 0.5001 * step), "{levels:?}");
        }
    }
}

/// Test 5 of the notes: the mean of many roundings is the value, also where the nearest would always be zero.
#[test]
fn noise_makes_rounding_unbiased() {
    const RUNS: u64 = 100_000;
    let isa = InstructionSet::best();
    for (name, encode, decode) in codes().into_iter().filter(|(name, ..)| name != "signs") {
        // The first value sets the scale; the others lie between steps.
        let given = [1.0f32, 0.25 / 127.0, -0.3, 0.7, 0.01, 1.0 / 512.0];
        let mut sums = [0f64; 6];
        let mut squares = [0f64; 6];
        for key in 0..RUNS {
            let mut once = given;
            let code = encode(isa, &mut once, Some(Noise { key: key << 20 ^ key, first: 0 }), Rest::Leave);
            decode(isa, &code, Into::Set, &mut once);
            for (i, value) in once.into_iter().enumerate() {
                sums[i] += f64::from(value);
                squares[i] += f64::from(value) * f64::from(value);
            }
        }
        for (i, value) in given.into_iter().enumerate() {
            let mean = sums[i] / RUNS as f64;
            let deviation = (squares[i] / RUNS as f64 - mean * mean).max(0.0).sqrt() / (RUNS as f64).sqrt();
            let off = (mean - f64::from(value)).abs();
            assert!(off <= 4.5 * deviation + 1e-6, "{name}: {value} became {mean}, {} sigma", off / deviation);
        }
    }
}

#[test]
fn what_is_not_a_number_comes_out_as_such_and_leaves_no_residual() {
    let isa = InstructionSet::best();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for (name, encode, decode) in codes() {
            let mut given = vec![1.0f32; 600];
            given[400] = bad;
            let code = encode(isa, &mut given, None, Rest::Keep);
            assert!(given.iter().all(|rest| rest.is_finite()), "{name}: the residual is a number");
            let mut out = vec![0f32; 600];
            decode(isa, &code, Into::Set, &mut out);
            assert!(out[400].is_nan(), "{name}: {bad} became {}", out[400]);
            assert!(out[0].is_finite(), "{name}: blocks beside it are what they were");
        }
    }
}

#[test]
fn zeros_and_tiny_values_lose_nothing() {
    let isa = InstructionSet::best();
    for (name, encode, decode) in codes() {
        for tiny in [0.0, 1e-40, -3e-35] {
            let mut rest = vec![tiny; 300];
            let code = encode(isa, &mut rest, None, Rest::Keep);
            decode(isa, &code, Into::Add, &mut rest);
            assert!(rest.iter().all(|value| (value - tiny).abs() <= 1e-6 * tiny.abs()), "{name} {tiny}");
        }
    }
}

#[test]
fn matrices_multiply() {
    let mut random = Random::new(4);
    for [rows, columns, narrow] in [[1, 1, 1], [3, 5, 2], [7, 33, 4], [20, 16, 7]] {
        let matrix = values(&mut random, rows * columns);
        let q = values(&mut random, columns * narrow);
        let sizes = [rows, columns, narrow];
        let near = |a: f32, b: f64, scale: f64| assert!((f64::from(a) - b).abs() <= 1e-5 * scale.max(1e-9), "{a} {b}");
        for isa in InstructionSet::available() {
            let mut p = vec![0f32; rows * narrow];
            isa.times(&matrix, &q, &mut p, sizes);
            for i in 0..rows {
                for k in 0..narrow {
                    let terms =
                        (0..columns).map(|j| f64::from(matrix[i * columns + j]) * f64::from(q[k * columns + j]));
                    near(p[i * narrow + k], terms.clone().sum(), terms.map(f64::abs).sum());
                }
            }
            let mut back = vec![0f32; columns * narrow];
            isa.transposed_times(&matrix, &p, &mut back, sizes);
            for j in 0..columns {
                for k in 0..narrow {
                    let terms = (0..rows).map(|i| f64::from(matrix[i * columns + j]) * f64::from(p[i * narrow + k]));
                    near(back[k * columns + j], terms.clone().sum(), terms.map(f64::abs).sum());
                }
            }
            let mut whole = vec![1f32; rows * columns];
            isa.outer(&p, &q, &mut whole, sizes, Into::Set);
            let mut twice = whole.clone();
            isa.outer(&p, &q, &mut twice, sizes, Into::Add);
            for i in 0..rows {
                for j in 0..columns {
                    let terms = (0..narrow).map(|k| f64::from(p[i * narrow + k]) * f64::from(q[k * columns + j]));
                    let sum = terms.clone().map(f64::abs).sum::<f64>();
                    near(whole[i * columns + j], terms.clone().sum(), sum);
                    near(twice[i * columns + j], 2.0 * terms.sum::<f64>(), 2.0 * sum);
                }
            }
        }
    }
}

#[test]
fn a_rotation_undoes_itself_and_levels_peaks() {
    let isa = InstructionSet::best();
    for count in LENGTHS {
        let mut random = Random::new(5);
        let given = values(&mut random, count);
        let mut rotated = given.clone();
        isa.hadamard(&mut rotated, 64);
        isa.hadamard(&mut rotated, 64);
        let top = given.iter().fold(0f32, |top, v| top.max(v.abs()));
        assert!(rotated.iter().zip(&given).all(|(a, b)| (a - b).abs() <= 1e-5 * top), "{count}");
    }
    let mut peak = vec![0f32; 1024];
    peak[77] = 32.0;
    isa.hadamard(&mut peak, 1024);
    assert!(peak.iter().all(|value| (value.abs() - 1.0).abs() < 1e-5));
}
