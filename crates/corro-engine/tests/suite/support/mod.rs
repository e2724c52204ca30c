//! Ranks as threads, each with an engine, under a hang limit.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use corro_core::{DType, Rank, ReduceOp, Shape};
use corro_engine::{Engine, Kind, Options, Submission};
use corro_transport::{Fabric, Settings};

/// How long a test may take before it counts as hung.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// Runs `program` on ranks with these hosts (`hosts[r]` is the host of rank r) and gives what each rank gives.
pub(crate) fn on_hosts<T: Send + 'static>(
    hosts: &[usize],
    options: impl Fn() -> Options,
    program: impl Fn(&Engine) -> T + Send + Sync + 'static,
) -> Vec<T> {
    let settings = Settings { timeout: Duration::from_secs(20), area: 1 << 20, ..Settings::default() };
    let program = Arc::new(program);
    let (send, receive) = channel();
    for fabric in Fabric::threads(hosts, &settings) {
        let (program, send, options) = (Arc::clone(&program), send.clone(), options());
        std::thread::spawn(move || {
            let rank = fabric.rank();
            let engine = Engine::start(fabric, options).unwrap();
            let result = program(&engine);
            let _ = send.send((rank, result, engine));
        });
    }
    drop(send);
    let mut results: Vec<Option<T>> = hosts.iter().map(|_| None).collect();
    // Engines are kept until all programs have ended: dropping one ends the job for all.
    let mut engines = Vec::new();
    for _ in 0..hosts.len() {
        let (rank, result, engine) = receive.recv_timeout(LIMIT).expect("a rank hangs or has panicked");
        results[rank.index()] = Some(result);
        engines.push(engine);
    }
    let (send, receive) = channel();
    for engine in engines {
        let send = send.clone();
        std::thread::spawn(move || {
            drop(engine);
            let _ = send.send(());
        });
    }
    for _ in hosts {
        receive.recv_timeout(LIMIT).expect("an engine does not end");
    }
    results.into_iter().map(|r| r.expect("each rank has a result")).collect()
}

/// As [`on_hosts`], all on one host, with default options.
pub(crate) fn on_ranks<T: Send + 'static>(
    ranks: usize,
    program: impl Fn(&Engine) -> T + Send + Sync + 'static,
) -> Vec<T> {
    on_hosts(&vec![0; ranks], Options::default, program)
}

/// The ranks with these numbers.
pub(crate) fn ranks(numbers: &[usize]) -> Vec<Rank> {
    numbers.iter().copied().map(Rank::new).collect()
}

/// The sum of `data` over all ranks.
pub(crate) fn sum(name: impl Into<String>, data: &[f32]) -> Submission {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_ne_bytes()).collect();
    Submission::allreduce(name, ReduceOp::Sum, DType::F32, Shape(vec![data.len()]), bytes.into())
}

/// A submission with an input of its own and a result in the engine's memory.
pub(crate) fn of(name: impl Into<String>, kind: Kind, shape: &[usize], data: &[f32]) -> Submission {
    let bytes: Vec<u8> = data.iter().flat_map(|x| x.to_ne_bytes()).collect();
    Submission { input: Some(bytes.into()), ..Submission::new(name, kind, DType::F32, Shape(shape.to_vec())) }
}

/// The numbers of a result.
pub(crate) fn numbers(outcome: corro_engine::Outcome) -> Vec<f32> {
    let bytes = outcome.into_bytes().unwrap();
    bytes.chunks_exact(4).map(|b| f32::from_ne_bytes([b[0], b[1], b[2], b[3]])).collect()
}
