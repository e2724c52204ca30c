//! How fast one stream over loopback is: plain, sealed (as control streams are), and through TLS. Not run by default:
//! `cargo test --release -p corro-transport --test suite throughput -- --ignored --nocapture`.

use std::time::{Duration, Instant};

use corro_core::{Deadline, GroupId, Rank};
use corro_transport::Stream;
use corro_transport::secret::Secret;
use corro_transport::tcp::{Endpoint, EndpointConfig, PeerAddress};

const CHUNK: usize = 1 << 20;

fn pump_out(stream: &mut dyn Stream, total: usize) {
    let bytes = vec![7u8; CHUNK];
    let mut sent = 0;
    while sent < total {
        let count = stream.try_write(&bytes[..CHUNK.min(total - sent)]).unwrap();
        if count == 0 {
            std::thread::yield_now();
        }
        sent += count;
    }
    while !stream.try_flush().unwrap() {
        std::thread::yield_now();
    }
}

fn pump_in(stream: &mut dyn Stream, total: usize) {
    let mut buffer = vec![0; CHUNK];
    let mut came = 0;
    while came < total {
        let count = stream.try_read(&mut buffer).unwrap();
        if count == 0 {
            std::thread::yield_now();
        }
        came += count;
    }
}

#[test]
#[ignore = "a measurement"]
fn one_stream_over_loopback() {
    for (name, tls, control) in [("plain", false, false), ("sealed", false, true), ("TLS", true, false)] {
        let bind = |rank| {
            let secret = Secret::from_bytes([1; 32]);
            let rank = Rank::new(rank);
            Endpoint::bind(EndpointConfig { rank, secret, tls, interfaces: Some(vec!["lo".into()]), one_host: true })
                .unwrap()
        };
        let (zero, one) = (bind(0), bind(1));
        let deadline = Deadline::after(Duration::from_secs(10));
        let card =
            |rank, e: &Endpoint| PeerAddress { rank: Rank::new(rank), host: "here".into(), addresses: e.addresses() };
        let (mut dialled, mut accepted) = if control {
            let dialled = one.connect_control(&card(0, &zero), GroupId(1), &deadline.into()).unwrap();
            (dialled, zero.accept_control(&card(1, &one), GroupId(1), &deadline.into()).unwrap())
        } else {
            let dialled = one.connect(&card(0, &zero), GroupId(1), 1, deadline).unwrap();
            (dialled, zero.accept(&card(1, &one), GroupId(1), 1, deadline).unwrap())
        };
        for _ in 0..3 {
            let total = 1 << 30;
            let begin = Instant::now();
            std::thread::scope(|scope| {
                scope.spawn(|| pump_out(&mut *dialled[0], total));
                scope.spawn(|| pump_in(&mut *accepted[0], total));
            });
            println!("{name}: {:.2} GB/s", total as f64 / begin.elapsed().as_secs_f64() / 1e9);
        }
    }
}
