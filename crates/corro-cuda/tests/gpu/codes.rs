//! Codes of values against those of the host, to the bit.

use corro_core::DType;
use corro_cuda::{Encoding, Integers, Span};
use corro_kernels::{InstructionSet, Into, Levels, Noise, Rest};
use corro_testing::Random;

use crate::support::{Gpu, assert_same};

const LENGTHS: [usize; 7] = [1, 3, 31, 256, 257, 5000, 100_003];
const BLOCKS: [usize; 4] = [32, 96, 128, 256];

/// Values of all kinds: some blocks have nothing in them, some are too small for a scale, some are not numbers.
fn values(random: &mut Random, count: usize) -> Vec<f32> {
    let mut values: Vec<f32> = (0..count).map(|_| random.unit() as f32 * 3.0).collect();
    for block in values.chunks_mut(64) {
        match random.below(12) {
            0 => block.fill(0.0),
            1 => block.fill(1e-33),
            2 => block[0] = f32::NAN,
            3 => block[0] = f32::NEG_INFINITY,
            4 => block[0] = 1e30,
            _ => {}
        }
    }
    values
}

fn bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_ne_bytes()).collect()
}

fn assert_floats(gpu: &Gpu, found: Span<'_>, expected: &[f32], case: &str) {
    assert_same(DType::F32, &gpu.read(found), &bytes(expected), || case.into());
}

/// Codes have scales, of which one may be any NaN, and then integers.
fn assert_codes(gpu: &Gpu, found: Span<'_>, expected: &[u8], scales: usize, case: &str) {
    let found = gpu.read(found);
    assert_same(DType::F32, &found[..scales], &expected[..scales], || format!("scales, {case}"));
    assert!(found[scales..] == expected[scales..], "integers, {case}");
}

struct Case {
    levels: Levels,
    integers: Integers,
    noise: Option<Noise>,
    count: usize,
    /// By how many values everything begins after an aligned address.
    shift: usize,
}

impl Case {
    fn all() -> impl Iterator<Item = Self> {
        let sizes = BLOCKS.into_iter().flat_map(|block| LENGTHS.into_iter().map(move |count| (block, count)));
        sizes.enumerate().flat_map(|(i, (block, count))| {
            [8, 4, 2].into_iter().map(move |bits| Self {
                levels: Levels { block, bits, by_norm: false },
                integers: Integers { block: block as u32, bits },
                noise: (i % 2 == bits as usize / 4 % 2)
                    .then_some(Noise { key: 0x1234_5678_9abc_def0, first: 0xffff_ff00 }),
                count,
                shift: i % 3,
            })
        })
    }

    fn name(&self) -> String {
        format!("{} values as {:?}, {:?}, shift {}", self.count, self.integers, self.noise, self.shift)
    }

    fn len(&self) -> usize {
        self.integers.encoded_len(self.count)
    }

    fn scales(&self) -> usize {
        self.count.div_ceil(self.levels.block) * 4
    }

    fn encode(&self, values: &mut [f32], rest: Rest) -> Vec<u8> {
        let mut code = vec![0; self.len()];
        InstructionSet::best().levels_encode(values, self.levels, self.noise, rest, &mut code);
        code
    }

    fn noise(&self) -> Option<(u64, u64)> {
        self.noise.map(|noise| (noise.key, noise.first))
    }

    /// Memory of the GPU that begins with these values, and where they are.
    fn place<'a>(&self, gpu: &Gpu, memory: &'a corro_cuda::Allocation, values: &[f32]) -> Span<'a> {
        let at = self.shift * 4;
        let span = memory.span().part(at..at + self.count * 4).unwrap();
        gpu.write(span, &bytes(values));
        span
    }
}

#[test]
#[ignore = "needs a GPU"]
fn codes_and_what_they_leave_out_are_those_of_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(11);
    let memory: Vec<_> = (0..2).map(|_| gpu.allocate(100_010 * 4)).collect();
    for case in Case::all() {
        assert_eq!(case.len(), case.levels.encoded_len(case.count));
        let (mut host, mut rest) = (values(&mut random, case.count), values(&mut random, case.count));
        let code = gpu.allocate(case.len());
        let values = case.place(&gpu, &memory[0], &host);
        let plain = Encoding { values, rest: None, also: None, arrived: 0, code: code.span(), noise: case.noise() };
        gpu.kernels.encode(&gpu.stream, case.integers, &[], &[plain]).unwrap();
        let expected = case.encode(&mut host.clone(), Rest::Leave);
        assert_codes(&gpu, code.span(), &expected, case.scales(), &case.name());
        assert_floats(&gpu, values, &host, &case.name());

        let kept = case.place(&gpu, &memory[1], &rest);
        let kept = Encoding { rest: Some(kept), ..plain };
        gpu.kernels.encode(&gpu.stream, case.integers, &[], &[kept]).unwrap();
        rest.iter_mut().zip(&host).for_each(|(rest, value)| *rest += value);
        let expected = case.encode(&mut rest, Rest::Keep);
        assert_codes(&gpu, code.span(), &expected, case.scales(), &case.name());
        assert_floats(&gpu, kept.rest.unwrap(), &rest, &case.name());

        gpu.kernels.decode(&gpu.stream, case.integers, &[(values, code.span())]).unwrap();
        InstructionSet::best().levels_decode(&expected, case.levels, Into::Set, &mut host);
        assert_floats(&gpu, values, &host, &case.name());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn the_code_of_a_sum_is_that_of_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(12);
    let memory: Vec<_> = (0..3).map(|_| gpu.allocate(100_010 * 4)).collect();
    for case in Case::all() {
        let mut own = values(&mut random, case.count);
        let (residual, mut debt) = (values(&mut random, case.count), values(&mut random, case.count));
        let others: Vec<Vec<u8>> =
            (0..3).map(|_| case.encode(&mut values(&mut random, case.count), Rest::Leave)).collect();
        // Each has something before the code, as a piece of a larger batch.
        let arrived: Vec<_> = others.iter().map(|code| gpu.with(&[&[7; 12], &code[..]].concat())).collect();
        let arrived: Vec<Span<'_>> = arrived.iter().map(|code| code.span()).collect();
        let code = gpu.allocate(case.len());
        let sum = Encoding {
            values: case.place(&gpu, &memory[0], &own),
            rest: Some(case.place(&gpu, &memory[1], &debt)),
            also: Some(case.place(&gpu, &memory[2], &residual)),
            arrived: 12,
            code: code.span(),
            noise: case.noise(),
        };
        gpu.kernels.encode(&gpu.stream, case.integers, &arrived, &[sum]).unwrap();

        own.iter_mut().zip(&residual).for_each(|(own, residual)| *own += residual);
        debt.iter_mut().zip(&own).for_each(|(debt, own)| *debt += own);
        for other in &others {
            InstructionSet::best().levels_decode(other, case.levels, Into::Add, &mut debt);
        }
        let expected = case.encode(&mut debt, Rest::Keep);
        assert_codes(&gpu, code.span(), &expected, case.scales(), &case.name());
        assert_floats(&gpu, sum.rest.unwrap(), &debt, &case.name());
        assert_floats(&gpu, sum.also.unwrap(), &vec![0.0; case.count], &case.name());
    }
}

#[test]
#[ignore = "needs a GPU"]
fn many_pieces_have_codes_of_their_own() {
    let gpu = Gpu::new();
    let mut random = Random::new(13);
    let integers = Integers { block: 64, bits: 8 };
    let levels = Levels { block: 64, bits: 8, by_norm: false };
    let host: Vec<Vec<f32>> = (0..100)
        .map(|i| {
            let n = if i % 17 == 3 { 40_000 } else { random.below(700) };
            values(&mut random, n)
        })
        .collect();
    let device: Vec<_> = host.iter().map(|values| gpu.with(&bytes(values))).collect();
    let codes: Vec<_> = host.iter().map(|values| gpu.allocate(integers.encoded_len(values.len()))).collect();
    let pieces: Vec<_> = device
        .iter()
        .zip(&codes)
        .map(|(values, code)| Encoding {
            values: values.span(),
            rest: None,
            also: None,
            arrived: 0,
            code: code.span(),
            noise: None,
        })
        .collect();
    gpu.kernels.encode(&gpu.stream, integers, &[], &pieces).unwrap();
    for (mut values, code) in host.into_iter().zip(&codes) {
        let mut expected = vec![0; levels.encoded_len(values.len())];
        InstructionSet::best().levels_encode(&mut values, levels, None, Rest::Leave, &mut expected);
        assert_codes(&gpu, code.span(), &expected, values.len().div_ceil(64) * 4, "a piece of many");
    }
}
