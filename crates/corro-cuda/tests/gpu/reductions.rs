//! The kernels against those of the host: every dtype, op, number of sources, length and alignment.

use corro_core::{DType, ReduceOp};
use corro_cuda::{Piece, Reduction, Span};
use corro_testing::Random;

use crate::support::{Gpu, assert_same, elements};

const OPS: [ReduceOp; 5] = [ReduceOp::Sum, ReduceOp::Average, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max];
const LENGTHS: [usize; 5] = [0, 1, 7, 1000, 100_003];
const FACTORS: [f64; 3] = [1.0, 1.0 / 3.0, -2.5];
/// Room for the longest source, and then some to begin later.
const STRIDE: usize = 100_003 * 8 + 256;

/// By how many elements each source, and the destination, begin after an aligned address.
fn shifts(kind: usize, who: usize) -> usize {
    match kind {
        0 => 0,
        1 => 1,
        _ => who % 3,
    }
}

#[test]
#[ignore = "needs a GPU"]
fn reductions_are_those_of_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(1);
    for dtype in DType::ALL {
        let size = dtype.size();
        let host: Vec<Vec<u8>> = (0..8).map(|_| elements(&mut random, dtype, 100_003)).collect();
        let device = gpu.allocate(8 * STRIDE);
        let result = gpu.allocate(STRIDE);
        for kind in 0..3 {
            let place = |s: usize| s * STRIDE + shifts(kind, s) * size;
            for (s, bytes) in host.iter().enumerate() {
                gpu.write(device.span().part(place(s)..place(s) + bytes.len()).unwrap(), bytes);
            }
            for (o, op) in OPS.into_iter().enumerate() {
                for n in 1..=8 {
                    let length = LENGTHS[(o + n + kind) % 5];
                    let factor = if dtype == DType::Bool { 1.0 } else { FACTORS[(n + o) % 3] };
                    for length in [length, [1000, 7][n % 2]] {
                        let sources: Vec<Span<'_>> =
                            (0..n).map(|s| device.span().part(place(s)..place(s) + length * size).unwrap()).collect();
                        let to = shifts(kind, 8) * size;
                        let to = result.span().part(to..to + length * size).unwrap();
                        let how = Reduction { postscale: factor, ..Reduction::new(dtype, op) };
                        let all = [Piece { from: 0, to: 0, count: length }];
                        gpu.kernels.combine(&gpu.stream, &how, &[to], &sources, &all).unwrap();
                        let srcs: Vec<&[u8]> = host[..n].iter().map(|b| &b[..length * size]).collect();
                        let mut expected = vec![0; length * size];
                        corro_kernels::reduce_slices(op, dtype, &mut expected, &srcs, factor);
                        assert_same(dtype, &gpu.read(to), &expected, || {
                            format!("{op} of {n} times {length} {dtype} by {factor}, alignment {kind}")
                        });
                    }
                }
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn a_reduction_in_place_is_scaled_before_and_after_as_on_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(2);
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        for rounds_first in [false, true] {
            let mut host: Vec<Vec<u8>> = (0..3).map(|_| elements(&mut random, dtype, 5000)).collect();
            let device: Vec<_> = host.iter().map(|bytes| gpu.with(bytes)).collect();
            let sources: Vec<Span<'_>> = device.iter().map(|d| d.span()).collect();
            let how = Reduction { prescale: 0.3, postscale: 0.7, rounds_first, ..Reduction::new(dtype, ReduceOp::Sum) };
            // To all three, of which each is a source.
            gpu.kernels
                .combine(&gpu.stream, &how, &sources, &sources, &[Piece { from: 0, to: 0, count: 5000 }])
                .unwrap();
            for bytes in &mut host {
                corro_kernels::scale(dtype, bytes, 0.3);
            }
            let srcs: Vec<&[u8]> = host.iter().map(Vec::as_slice).collect();
            let mut expected = vec![0; host[0].len()];
            let first = if rounds_first { 1.0 } else { 0.7 };
            corro_kernels::reduce_slices(ReduceOp::Sum, dtype, &mut expected, &srcs, first);
            if rounds_first {
                corro_kernels::scale(dtype, &mut expected, 0.7);
            }
            for source in sources {
                assert_same(dtype, &gpu.read(source), &expected, || format!("{dtype}, rounds first: {rounds_first}"));
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn many_pieces_go_where_they_belong() {
    let gpu = Gpu::new();
    let mut random = Random::new(3);
    let counts: Vec<usize> = (0..300).map(|i| if i % 50 == 7 { 30_000 } else { random.below(600) }).collect();
    let total: usize = counts.iter().sum();
    let host: Vec<Vec<u8>> = (0..4).map(|_| elements(&mut random, DType::BF16, total)).collect();
    let device: Vec<_> = host.iter().map(|bytes| gpu.with(bytes)).collect();
    let sources: Vec<Span<'_>> = device.iter().map(|d| d.span()).collect();
    let srcs: Vec<&[u8]> = host.iter().map(Vec::as_slice).collect();
    let mut expected = vec![0; 2 * total];
    corro_kernels::reduce_slices(ReduceOp::Average, DType::BF16, &mut expected, &srcs, 0.25);
    let how = Reduction { postscale: 0.25, ..Reduction::new(DType::BF16, ReduceOp::Average) };
    // Each piece of its own, with gaps between them, and all pieces into two destinations.
    let (apart, all) = (gpu.allocate(2 * total + 300 * 8), [gpu.allocate(2 * total), gpu.allocate(2 * total)]);
    let (mut at, mut into, mut pieces) = (0, Vec::new(), Vec::new());
    for (i, &count) in counts.iter().enumerate() {
        into.push((at, apart.span().part(at + 8 * i..at + 8 * i + 2 * count).unwrap()));
        pieces.push(Piece { from: at, to: at, count });
        at += 2 * count;
    }
    gpu.kernels.combine_into(&gpu.stream, &how, &sources, &into).unwrap();
    gpu.kernels.combine(&gpu.stream, &how, &all.each_ref().map(|a| a.span()), &sources, &pieces).unwrap();
    for (from, to) in into {
        assert_same(DType::BF16, &gpu.read(to), &expected[from..from + to.len()], || format!("piece at {from}"));
    }
    for destination in &all {
        assert_same(DType::BF16, &gpu.read(destination.span()), &expected, || "a destination of all".into());
    }
    assert!(gpu.kernels.combine(&gpu.stream, &how, &[], &sources, &[Piece { from: at - 2, to: 0, count: 2 }]).is_err());
}

#[test]
#[ignore = "needs a GPU"]
fn pieces_are_copied_from_and_to_any_address() {
    let gpu = Gpu::new();
    let mut random = Random::new(4);
    let host = random.bytes(4 << 20);
    let (from, to) = (gpu.with(&host), gpu.allocate(4 << 20));
    gpu.stream.zero(to.span()).unwrap();
    let mut expected = vec![0; host.len()];
    let (mut at, mut pieces) = (0, Vec::new());
    while at < host.len() - 200_000 {
        let len = if random.one_in(10) { random.below(100_000) } else { random.below(300) };
        let (source, place) = (random.below(host.len() - len), at + [0, 16, 4, 1][random.below(4)]);
        expected[place..place + len].copy_from_slice(&host[source..source + len]);
        pieces.push((to.span().part(place..place + len).unwrap(), from.span().part(source..source + len).unwrap()));
        at = place + len;
        at += [0, (16 - at % 16) % 16][random.below(2)];
    }
    gpu.kernels.gather(&gpu.stream, &pieces).unwrap();
    assert!(gpu.read(to.span()) == expected, "{} pieces", pieces.len());
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_scaled_as_on_the_host() {
    let gpu = Gpu::new();
    let mut random = Random::new(5);
    for dtype in DType::ALL.into_iter().filter(|d| *d != DType::Bool) {
        for factor in [0.5, 1e30, f64::NAN, -1.0 / 7.0] {
            let mut host = elements(&mut random, dtype, 3001);
            let device = gpu.with(&host);
            gpu.kernels.scale(&gpu.stream, dtype, device.span(), factor).unwrap();
            corro_kernels::scale(dtype, &mut host, factor);
            assert_same(dtype, &gpu.read(device.span()), &host, || format!("{dtype} times {factor}"));
        }
    }
    assert!(gpu.kernels.scale(&gpu.stream, DType::Bool, gpu.with(&[1]).span(), 0.5).is_err());
}
