//! Prints how fast the kernels are on this machine, in GB/s of source bytes.
//!
//! `cargo run --release -p corro-kernels --example kernel_speed [filter]`, where the filter is a part of a line's name,
//! such as "float32", "avx2" or "call".

use std::hint::black_box;
use std::time::{Duration, Instant};

use corro_core::{DType, ReduceOp};
use corro_kernels::{InstructionSet, Into, Levels, Noise, Rest};

/// All buffers together stay in a second-level cache of 2 MiB up to 8 sources.
const IN_CACHE: usize = 192 << 10;
const IN_MEMORY: usize = 64 << 20;

fn main() {
    let filter = std::env::args().nth(1).unwrap_or_default();
    let report = |name: String, bytes: usize, run: &mut dyn FnMut()| {
        if name.contains(&filter) {
            let seconds = best_of(run).as_secs_f64();
            println!("{name:<48} {:>8.1} GB/s {:>14.1} ns", bytes as f64 / seconds / 1e9, seconds * 1e9);
        }
    };

    for isa in InstructionSet::available() {
        // Values near 1, so that nothing overflows into slow paths, whichever dtype they are read as.
        let sources: Vec<Vec<u8>> = (0..8).map(|_| vec![0x3f; IN_CACHE]).collect();
        let slices: Vec<&[u8]> = sources.iter().map(Vec::as_slice).collect();
        let mut dst = vec![0x3f; IN_CACHE];

        for dtype in DType::ALL {
            for op in [ReduceOp::Sum, ReduceOp::Product, ReduceOp::Min, ReduceOp::Max] {
                for k in [2, 3, 4, 8] {
                    let srcs = &slices[..k];
                    report(format!("{isa:?} {dtype} {op} k={k}"), k * IN_CACHE, &mut || {
                        isa.reduce_slices(op, dtype, black_box(&mut dst), black_box(srcs), 1.0);
                    });
                }
            }
            report(format!("{isa:?} {dtype} Sum in place"), 2 * IN_CACHE, &mut || {
                isa.reduce(ReduceOp::Sum, dtype, black_box(&mut dst), black_box(slices[0]));
            });
            if dtype != DType::Bool {
                report(format!("{isa:?} {dtype} Sum k=2 factor"), 2 * IN_CACHE, &mut || {
                    isa.reduce_slices(ReduceOp::Sum, dtype, black_box(&mut dst), black_box(&slices[..2]), 1.0 / 3.0);
                });
                report(format!("{isa:?} {dtype} scale"), IN_CACHE, &mut || {
                    isa.scale(dtype, black_box(&mut dst), black_box(-1.0));
                });
            }
            if dtype.is_float() {
                report(format!("{isa:?} {dtype} dot_and_norms"), 2 * IN_CACHE, &mut || {
                    black_box(isa.dot_and_norms(dtype, black_box(slices[0]), black_box(slices[1])));
                });
                report(format!("{isa:?} {dtype} combine"), 2 * IN_CACHE, &mut || {
                    isa.combine(dtype, black_box(&mut dst), 0.5, black_box(slices[0]), 0.5);
                });
            }
            let elements = IN_CACHE / 8;
            for to in DType::ALL {
                report(format!("{isa:?} cast {dtype} to {to}"), elements * dtype.size(), &mut || {
                    let dst = &mut dst[..elements * to.size()];
                    isa.cast(dtype, to, black_box(&slices[0][..elements * dtype.size()]), black_box(dst));
                });
            }
        }

        codes(isa, &report);
        for count in [1, 4, 15, 16, 100, 1000] {
            report(format!("{isa:?} call with {count} float32"), 8 * count, &mut || {
                isa.reduce(
                    ReduceOp::Sum,
                    DType::F32,
                    black_box(&mut dst[..4 * count]),
                    black_box(&slices[0][..4 * count]),
                );
            });
        }
    }

    let large: Vec<Vec<u8>> = (0..4).map(|_| vec![0x3f; IN_MEMORY]).collect();
    let slices: Vec<&[u8]> = large.iter().map(Vec::as_slice).collect();
    let mut dst = vec![0x3f; IN_MEMORY];
    for k in [2, 4] {
        report(format!("memory float32 Sum k={k}"), k * IN_MEMORY, &mut || {
            corro_kernels::reduce_slices(ReduceOp::Sum, DType::F32, black_box(&mut dst), black_box(&slices[..k]), 1.0);
        });
    }
    report("memory float32 Sum in place".into(), 2 * IN_MEMORY, &mut || {
        corro_kernels::reduce(ReduceOp::Sum, DType::F32, black_box(&mut dst), black_box(slices[0]));
    });
}

/// Codes of values and the products of PowerSGD, in bytes of `f32`; beside them a copy of the same values.
fn codes(isa: InstructionSet, report: &impl Fn(String, usize, &mut dyn FnMut())) {
    for (place, bytes) in [("cache", IN_CACHE), ("memory", IN_MEMORY)] {
        let name = |what: &str| format!("{isa:?} code {what}, {place}");
        let mut values: Vec<f32> = (0..bytes / 4).map(|i| (i % 1013) as f32 - 500.0).collect();
        let mut copy = values.clone();
        report(name("copy"), bytes, &mut || black_box(&mut copy).copy_from_slice(black_box(&values)));
        for (what, bits, noise) in
            [("int8", 8, None), ("int8 by chance", 8, Some(Noise { key: 1, first: 0 })), ("int4", 4, None)]
        {
            let levels = Levels { block: 256, bits, by_norm: false };
            let mut code = vec![0; levels.encoded_len(values.len())];
            report(name(&format!("{what} encode")), bytes, &mut || {
                isa.levels_encode(black_box(&mut values), levels, noise, Rest::Leave, black_box(&mut code));
            });
            // What is kept is encoded the next time; the code is added back, or soon nothing would be left to encode.
            report(name(&format!("{what} encode, keep, and decode")), bytes, &mut || {
                isa.levels_encode(black_box(&mut copy), levels, noise, Rest::Keep, black_box(&mut code));
                isa.levels_decode(black_box(&code), levels, Into::Add, black_box(&mut copy));
            });
            report(name(&format!("{what} decode")), bytes, &mut || {
                isa.levels_decode(black_box(&code), levels, Into::Set, black_box(&mut copy));
            });
        }
        let mut code = vec![0; InstructionSet::signs_len(values.len(), 2048)];
        report(name("signs encode"), bytes, &mut || {
            isa.signs_encode(black_box(&mut copy), 2048, Rest::Leave, black_box(&mut code));
        });
        report(name("signs decode"), bytes, &mut || {
            isa.signs_decode(black_box(&code), 2048, Into::Add, black_box(&mut copy));
        });
        let sizes @ [rows, columns, narrow] = [values.len() / 1024, 1024, 4];
        let (mut p, mut q) = (vec![0.5; rows * narrow], vec![0.5; columns * narrow]);
        report(name("rank 4 times"), bytes, &mut || isa.times(black_box(&values), &q, black_box(&mut p), sizes));
        report(name("rank 4 transposed"), bytes, &mut || {
            isa.transposed_times(black_box(&values), &p, black_box(&mut q), sizes);
        });
        report(name("rank 4 outer"), bytes, &mut || isa.outer(&p, &q, black_box(&mut copy), sizes, Into::Set));
    }
}

/// The shortest of many runs: on a shared machine everything slower is somebody else's time.
fn best_of(run: &mut dyn FnMut()) -> Duration {
    run();
    let once = Instant::now();
    run();
    // Repeated until the clock's own cost does not count, and for a few milliseconds in all.
    let repeat = (20_000 / once.elapsed().as_nanos().max(1)).max(1) as u32;
    let start = Instant::now();
    let mut best = Duration::MAX;
    while start.elapsed() < Duration::from_millis(10) || best == Duration::MAX {
        let begin = Instant::now();
        for _ in 0..repeat {
            run();
        }
        best = best.min(begin.elapsed() / repeat);
    }
    best
}
