//! How fast: numbers to read, nothing is asserted.

use std::time::Instant;

use corro_core::{DType, ReduceOp};
use corro_cuda::{Encoding, Integers, Piece, Reduction, Span};

use crate::support::Gpu;

/// Microseconds of one run, of many in a row.
fn microseconds(gpu: &Gpu, mut run: impl FnMut()) -> f64 {
    for _ in 0..10 {
        run();
    }
    gpu.stream.synchronize().unwrap();
    let start = Instant::now();
    for _ in 0..100 {
        run();
    }
    gpu.stream.synchronize().unwrap();
    start.elapsed().as_secs_f64() * 1e4
}

#[test]
#[ignore = "needs a GPU"]
fn memory_is_read_and_written_at_these_rates() {
    const MOST: usize = 256 << 20;
    let gpu = Gpu::new();
    let memory: Vec<_> = (0..9).map(|_| gpu.allocate(MOST)).collect();
    for allocation in &memory {
        gpu.stream.zero(allocation.span()).unwrap();
    }
    println!("sum of n sources to one, microseconds and GB/s:");
    for dtype in [DType::F32, DType::BF16, DType::F16, DType::F64, DType::U8] {
        for bytes in [4, 1 << 20, 16 << 20, 64 << 20, 256 << 20] {
            for n in [1, 2, 8] {
                let count = bytes / dtype.size();
                let part = |i: usize| memory[i].span().part(0..count * dtype.size()).unwrap();
                let sources: Vec<Span<'_>> = (0..n).map(part).collect();
                let how = Reduction { postscale: 0.5, ..Reduction::new(dtype, ReduceOp::Sum) };
                let all = [Piece { from: 0, to: 0, count }];
                let us =
                    microseconds(&gpu, || gpu.kernels.combine(&gpu.stream, &how, &[part(8)], &sources, &all).unwrap());
                println!(
                    "{dtype:>9} {bytes:>10} bytes {n} sources {us:>9.1} {:>8.0}",
                    ((n + 1) * bytes) as f64 / us / 1e3
                );
            }
        }
    }
    println!("copies, microseconds and GB/s:");
    let (from, to) = (memory[0].span(), memory[1].span());
    for (name, pieces) in [("one piece", 1), ("96 pieces", 96), ("1000 pieces", 1000)] {
        let len = (64 << 20) / pieces / 16 * 16;
        let parts: Vec<_> = (0..pieces)
            .map(|i| (to.part(i * len..(i + 1) * len).unwrap(), from.part(i * len..(i + 1) * len).unwrap()))
            .collect();
        let us = microseconds(&gpu, || gpu.kernels.gather(&gpu.stream, &parts).unwrap());
        println!("{name:>12} of 64 MiB {us:>9.1} {:>8.0}", (2 * pieces * len) as f64 / us / 1e3);
    }
    let part = 0..64 << 20;
    let (from, to) = (from.part(part.clone()).unwrap(), to.part(part).unwrap());
    let us = microseconds(&gpu, || gpu.stream.copy(to, from).unwrap());
    println!(" copy engine of 64 MiB {us:>9.1} {:>8.0}", (2 * to.len()) as f64 / us / 1e3);
}

/// Codes: step 1 encodes what a rank brings and keeps the rest; step 2 adds up what has arrived and encodes the sum; step 3
/// decodes. Bytes that are read and written are counted.
#[test]
#[ignore = "needs a GPU"]
fn codes_are_made_and_read_at_these_rates() {
    const MOST: usize = 64 << 20;
    let gpu = Gpu::new();
    let floats: Vec<_> = (0..3).map(|_| gpu.allocate(MOST * 4)).collect();
    let ramp: Vec<u8> = (0..MOST).flat_map(|i| ((i % 1013) as f32 - 500.0).to_ne_bytes()).collect();
    for memory in &floats {
        gpu.write(memory.span(), &ramp);
    }
    println!("codes, microseconds and GB/s:");
    for (bits, noise) in [(8, None), (8, Some((1, 0))), (4, None)] {
        let integers = Integers { block: 256, bits };
        for count in [1 << 10, 1 << 18, 1 << 22, 1 << 24, MOST] {
            let len = integers.encoded_len(count);
            let codes: Vec<_> = (0..2).map(|_| gpu.allocate(len)).collect();
            let part = |i: usize| floats[i].span().part(0..count * 4).unwrap();
            let (values, code, arrived) = (part(0), codes[0].span(), [codes[1].span()]);
            let plain = Encoding { values, rest: None, also: None, arrived: 0, code, noise };
            let kept = Encoding { rest: Some(part(1)), ..plain };
            let sum = Encoding { also: Some(part(2)), ..kept };
            gpu.kernels.encode(&gpu.stream, integers, &[], &[Encoding { code: arrived[0], ..plain }]).unwrap();
            let encode =
                |arrived: &[Span<'_>], piece| gpu.kernels.encode(&gpu.stream, integers, arrived, &[piece]).unwrap();
            let decode = || gpu.kernels.decode(&gpu.stream, integers, &[(values, code)]).unwrap();
            let rates = [
                ("encode", 4 * count + len, microseconds(&gpu, || encode(&[], plain))),
                ("encode, keep", 12 * count + len, microseconds(&gpu, || encode(&[], kept))),
                ("sum of 2", 20 * count + 2 * len, microseconds(&gpu, || encode(&arrived, sum))),
                ("decode", 4 * count + len, microseconds(&gpu, decode)),
            ];
            let how = if noise.is_some() { "by chance" } else { "to nearest" };
            for (what, bytes, us) in rates {
                println!("int{bits} {how:<10} {count:>9} values {what:<12} {us:>9.1} {:>8.0}", bytes as f64 / us / 1e3);
            }
        }
    }
}

#[test]
#[ignore = "needs a GPU"]
fn small_things_cost_so_much() {
    let gpu = Gpu::new();
    let memory = gpu.allocate(4096);
    let pool = corro_cuda::EventPool::new(&gpu.device, 4);
    let time = |name: &str, us: f64| println!("{name:<24} {us:>8.2} us");
    time("enter", microseconds(&gpu, || drop(gpu.device.enter().unwrap())));
    let event = pool.take().unwrap();
    time("record", microseconds(&gpu, || gpu.stream.record(&event).unwrap()));
    time("wait", microseconds(&gpu, || gpu.stream.wait(&event).unwrap()));
    time("take an event", microseconds(&gpu, || drop(pool.take().unwrap())));
    time("create an event", microseconds(&gpu, || drop(corro_cuda::Event::new(&gpu.device).unwrap())));
    let how = Reduction::new(DType::F32, ReduceOp::Sum);
    let all = [Piece { from: 0, to: 0, count: 1 }];
    time(
        "combine 1 element",
        microseconds(&gpu, || {
            gpu.kernels.combine(&gpu.stream, &how, &[memory.span()], &[memory.span()], &all).unwrap();
        }),
    );
    time(
        "combine and synchronize",
        microseconds(&gpu, || {
            gpu.kernels.combine(&gpu.stream, &how, &[memory.span()], &[memory.span()], &all).unwrap();
            gpu.stream.synchronize().unwrap();
        }),
    );
}
