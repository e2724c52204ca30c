//! Adasum against the host's.

use corro_core::DType;
use corro_cuda::{Kernels, Pair};
use corro_testing::Random;

use crate::support::{Gpu, assert_same, gradients};

const FLOATS: [DType; 4] = [DType::F16, DType::BF16, DType::F32, DType::F64];
const LENGTHS: [usize; 7] = [0, 1, 7, 1000, 100_003, 16_384, 65];

/// As in `corro_collectives::algorithms::adasum`.
fn coefficient(dot: f64, norm: f64) -> f64 {
    if norm < f64::MIN_POSITIVE.sqrt() { 1.0 } else { 1.0 - dot / (2.0 * norm) }
}

fn doubles(bytes: &[u8]) -> Vec<[f64; 3]> {
    let one = |b: &[u8]| f64::from_ne_bytes(b.try_into().unwrap());
    bytes.chunks_exact(24).map(|b| [one(&b[..8]), one(&b[8..16]), one(&b[16..])]).collect()
}

#[test]
#[ignore = "needs a GPU"]
fn vectors_are_combined_as_on_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(1);
    for dtype in FLOATS {
        for (lower, shift) in [(true, 0), (false, 0), (true, 1)] {
            let mut vectors: Vec<(Vec<u8>, Vec<u8>)> =
                LENGTHS.map(|n| (gradients(&mut random, dtype, n), gradients(&mut random, dtype, n))).into();
            // One that is zero, and two that are the same.
            vectors[3].0.fill(0);
            vectors[5].1 = vectors[5].0.clone();
            let memory: Vec<_> = vectors
                .iter()
                .map(|(a, b)| {
                    let shifted = |v: &[u8]| gpu.with(&[&vec![0; shift * dtype.size()], v].concat());
                    (shifted(a), shifted(b))
                })
                .collect();
            let from = shift * dtype.size();
            let pairs: Vec<Pair<'_>> = memory
                .iter()
                .map(|(mine, theirs)| Pair {
                    mine: mine.span().part(from..mine.span().len()).unwrap(),
                    theirs: theirs.span().part(from..theirs.span().len()).unwrap(),
                })
                .collect();
            let scratch = gpu.allocate(Kernels::dots_scratch(dtype, &pairs));
            let sums = gpu.allocate(24 * pairs.len());
            gpu.kernels.dots(&gpu.stream, dtype, &pairs, lower, scratch.span(), sums.span()).unwrap();
            gpu.kernels.adasum(&gpu.stream, dtype, &pairs, lower, sums.span()).unwrap();
            let sums = doubles(&gpu.read(sums.span()));
            for (((mine, theirs), pair), [dot, a, b]) in vectors.iter().zip(&pairs).zip(sums) {
                let (x, y) = if lower { (mine, theirs) } else { (theirs, mine) };
                for (found, expected) in [dot, a, b].into_iter().zip(corro_kernels::dot_and_norms(dtype, x, y)) {
                    let close = (found - expected).abs() <= 1e-12 * (a + b + 1.0);
                    assert!(close, "{dtype}: {found} is not {expected}");
                }
                let (m, t) = if lower { (a, b) } else { (b, a) };
                let mut expected = mine.clone();
                corro_kernels::combine(dtype, &mut expected, coefficient(dot, m), theirs, coefficient(dot, t));
                assert_same(dtype, &gpu.read(pair.mine), &expected, || {
                    format!("{} {dtype}, lower {lower}, shift {shift}", mine.len() / dtype.size())
                });
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn dot_products_are_the_same_bits_wherever_the_vectors_lie() {
    let gpu = Gpu::new();
    let mut random = Random::new(2);
    for dtype in FLOATS {
        let (a, b) = (gradients(&mut random, dtype, 70_001), gradients(&mut random, dtype, 70_001));
        let mut found = Vec::new();
        // 100 pairs, so that there are two launches; the last of them begin at another alignment.
        for shift in [0, dtype.size()] {
            let padded = |v: &[u8]| gpu.with(&[&vec![0; shift], v].concat());
            let (mine, theirs) = (padded(&a), padded(&b));
            let part = shift..shift + a.len();
            let pair =
                Pair { mine: mine.span().part(part.clone()).unwrap(), theirs: theirs.span().part(part).unwrap() };
            let pairs = [pair; 100];
            let (scratch, sums) = (gpu.allocate(Kernels::dots_scratch(dtype, &pairs)), gpu.allocate(2400));
            gpu.kernels.dots(&gpu.stream, dtype, &pairs, true, scratch.span(), sums.span()).unwrap();
            found.extend(doubles(&gpu.read(sums.span())));
        }
        assert_eq!(found.len(), 200);
        assert!(found.iter().all(|sums| sums.map(f64::to_bits) == found[0].map(f64::to_bits)), "{dtype}");
    }
}
