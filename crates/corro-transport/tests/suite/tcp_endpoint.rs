//! Two ranks of one process over loopback: the same table for plain TCP and for TLS.
//!
//! Traffic goes to loopback only. Every test has a hang limit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error, GroupId, Rank};
use corro_testing::Random;
use corro_transport::Stream;
use corro_transport::secret::Secret;
use corro_transport::tcp::{Endpoint, EndpointConfig, PeerAddress};

const GROUP: GroupId = GroupId(42);

/// Runs `test` for both flavours, each with a hang limit.
fn for_each_flavour(test: fn(bool)) {
    for tls in [false, true] {
        let (done, finished) = mpsc::channel();
        let worker = std::thread::spawn(move || {
            test(tls);
            let _ = done.send(());
        });
        match finished.recv_timeout(Duration::from_secs(60)) {
            Err(mpsc::RecvTimeoutError::Timeout) => panic!("hangs with tls = {tls}"),
            _ => worker.join().unwrap_or_else(|e| std::panic::resume_unwind(e)),
        }
    }
}

fn secret(seed: u8) -> Secret {
    Secret::from_bytes([seed; 32])
}

fn endpoint(rank: usize, secret: Secret, tls: bool) -> Endpoint {
    Endpoint::bind(EndpointConfig {
        rank: Rank::new(rank),
        secret,
        tls,
        interfaces: Some(vec!["lo".into()]),
        one_host: true,
    })
    .unwrap()
}

fn card(rank: usize, endpoint: &Endpoint) -> PeerAddress {
    PeerAddress { rank: Rank::new(rank), host: format!("host{rank}"), addresses: endpoint.addresses() }
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(40))
}

/// What takes no longer than this has not come from waiting until [`soon`] is over.
const PROMPT: Duration = Duration::from_secs(20);

type Streams = Vec<Box<dyn Stream>>;

/// Rank 1 dials rank 0 at `addresses`.
fn pair(zero: &Endpoint, one: &Endpoint, addresses: Vec<SocketAddr>, streams: usize) -> (Streams, Streams) {
    std::thread::scope(|scope| {
        let zeros_card = PeerAddress { addresses, ..card(0, zero) };
        let dialled = scope.spawn(move || one.connect(&zeros_card, GROUP, streams, soon()).unwrap());
        let accepted = zero.accept(&card(1, one), GROUP, streams, soon()).unwrap();
        (accepted, dialled.join().unwrap())
    })
}

/// Moves `len` bytes each way on every pair of streams at once and compares them.
fn exchange(a: &mut Streams, b: &mut Streams, len: usize) {
    struct Way {
        bytes: Vec<u8>,
        sent: usize,
        came: Vec<u8>,
    }
    let mut ways: Vec<Way> =
        (0..2 * a.len()).map(|i| Way { bytes: Random::new(i as u64).bytes(len), sent: 0, came: Vec::new() }).collect();
    let mut buffer = vec![0; 100_000];
    while ways.iter().any(|w| w.came.len() < len) {
        let mut moved = 0;
        for (i, way) in ways.iter_mut().enumerate() {
            let (from, to) = if i % 2 == 0 { (&mut a[i / 2], &mut b[i / 2]) } else { (&mut b[i / 2], &mut a[i / 2]) };
            // Odd lengths, so that records and reads never line up.
            let end = (way.sent + 77_777).min(len);
            let count = from.try_write(&way.bytes[way.sent..end]).unwrap();
            from.try_flush().unwrap();
            way.sent += count;
            let room = buffer.len().min(len - way.came.len());
            let got = to.try_read(&mut buffer[..room]).unwrap();
            way.came.extend_from_slice(&buffer[..got]);
            moved += count + got;
        }
        if moved == 0 {
            std::thread::yield_now();
        }
    }
    for way in ways {
        assert!(way.bytes == way.came);
    }
}

/// Tries with more and more time until the error says all of this: on a busy machine little may happen in little time.
fn told(words: &[&str], attempt: impl Fn(Deadline) -> Error) {
    let mut text = String::new();
    for limit in [300, 1000, 3000, 9000] {
        text = attempt(Deadline::after(Duration::from_millis(limit))).to_string();
        if words.iter().all(|word| text.contains(word)) {
            return;
        }
    }
    panic!("{words:?} are not in: {text}");
}

/// What reading gives in the end.
fn end_of(stream: &mut dyn Stream) -> String {
    let begin = Instant::now();
    loop {
        match stream.try_read(&mut [0; 100]) {
            Err(broken) => return broken.0,
            Ok(_) => assert!(begin.elapsed() < PROMPT, "the end of a peer was not noticed"),
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn bytes_arrive_as_they_were_sent() {
    for_each_flavour(|tls| {
        for v6 in [false, true] {
            let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
            let addresses: Vec<_> = zero.addresses().into_iter().filter(|a| a.is_ipv6() == v6).collect();
            if addresses.is_empty() {
                println!("IPv6 is not available on this host: its half of the test is skipped");
                continue;
            }
            for streams in [1, 4] {
                let (mut a, mut b) = pair(&zero, &one, addresses.clone(), streams);
                assert_eq!((a.len(), b.len()), (streams, streams));
                exchange(&mut a, &mut b, 4 << 20);
            }
            assert_eq!(zero.parked(), 0);
        }
    });
}

#[test]
fn streams_keep_their_order() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let (mut a, mut b) = pair(&zero, &one, zero.addresses(), 4);
        for (i, stream) in a.iter_mut().enumerate() {
            assert_eq!(stream.try_write(&[i as u8]).unwrap(), 1);
            stream.try_flush().unwrap();
        }
        for (i, stream) in b.iter_mut().enumerate() {
            let mut byte = [99];
            while stream.try_read(&mut byte).unwrap() == 0 {}
            assert_eq!(byte, [i as u8]);
        }
    });
}

#[test]
fn the_end_of_a_peer_is_noticed_at_once_and_stays() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let (mut a, b) = pair(&zero, &one, zero.addresses(), 1);
        assert_eq!(a[0].try_read(&mut [0; 10]), Ok(0));
        drop(b);
        let text = end_of(&mut *a[0]);
        assert!(text.contains("probably exited"), "{text}");
        assert_eq!(a[0].try_write(b"x").unwrap_err().0, text);
        assert_eq!(a[0].try_read(&mut [0; 10]).unwrap_err().0, text);
    });
}

#[test]
fn what_came_before_the_end_is_still_read() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let (mut a, mut b) = pair(&zero, &one, zero.addresses(), 1);
        let bytes = Random::new(3).bytes(50_000);
        assert_eq!(b[0].try_write(&bytes).unwrap(), bytes.len());
        while !b[0].try_flush().unwrap() {}
        drop(b);
        let (mut came, mut buffer) = (Vec::new(), vec![0; 7000]);
        while came.len() < bytes.len() {
            let count = a[0].try_read(&mut buffer).unwrap();
            came.extend_from_slice(&buffer[..count]);
        }
        assert!(came == bytes);
        end_of(&mut *a[0]);
    });
}

#[test]
fn dead_addresses_are_passed_over() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        // One that nobody listens at, one that accepts and stays silent, one that says something else.
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let chatty = TcpListener::bind("127.0.0.1:0").unwrap();
        let chatter = std::thread::spawn({
            let chatty = chatty.try_clone().unwrap();
            move || chatty.accept().unwrap().0.write_all(&[b'x'; 200])
        });
        let mut addresses = vec![closed, silent.local_addr().unwrap(), chatty.local_addr().unwrap()];
        addresses.extend(zero.addresses());
        let begin = Instant::now();
        for streams in [1, 3] {
            let (mut a, mut b) = pair(&zero, &one, addresses.clone(), streams);
            exchange(&mut a, &mut b, 10_000);
        }
        // Whoever waited for the silent one would have done so twice, for 5 s.
        assert!(begin.elapsed() < Duration::from_secs(9), "{:?}", begin.elapsed());
        let _ = chatter.join();
    });
}

#[test]
fn a_crowd_of_strangers_disturbs_nothing() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let address = *zero.addresses().iter().find(|a| a.is_ipv4()).unwrap();
        let mut crowd = Vec::new();
        for i in 0..300u64 {
            let mut socket = TcpStream::connect(address).unwrap();
            match i % 3 {
                // Garbage, some of it longer than any hello.
                0 => drop(socket.write_all(&Random::new(i).bytes((i as usize * 37) % 3000 + 1))),
                // A hello that begins well and stops.
                1 => drop(socket.write_all(&b"corro\n\x01\x01"[..(i % 9) as usize])),
                // Nothing at all.
                _ => {}
            }
            crowd.push(socket);
        }
        let begin = Instant::now();
        let (mut a, mut b) = pair(&zero, &one, vec![address], 2);
        exchange(&mut a, &mut b, 100_000);
        assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
        assert_eq!(zero.parked(), 0, "a stranger got in");
        // Strangers hear nothing that a plain server would say (TLS may send an alert).
        if !tls {
            crowd[0].set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            assert!(matches!(crowd[0].read(&mut [0; 10]), Ok(0) | Err(_)));
        }
    });
}

#[test]
fn another_secret_fails_soon_on_both_sides_and_says_so() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(2), tls));
        let begin = Instant::now();
        let error = one.connect(&card(0, &zero), GROUP, 2, soon()).map(|_| ()).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::PeerLost { rank: Rank::ZERO, .. }), "{text}");
        assert!(text.contains("host0") && text.contains("CORRO_SECRET") && text.contains("127.0.0.1"), "{text}");
        assert!(begin.elapsed() < PROMPT, "hopeless, yet it went on for {:?}", begin.elapsed());
        assert_eq!(zero.parked(), 0);
        told(&["lost rank 1 on host1", "0 of 2 streams", "refused", "CORRO_SECRET"], |short| {
            zero.accept(&card(1, &one), GROUP, 2, short).map(|_| ()).unwrap_err()
        });
    });
}

#[test]
fn plain_and_tls_do_not_mix_and_the_setting_is_named() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), !tls));
        let words = ["is CORRO_TLS the same on every rank?"];
        told(&words, |short| one.connect(&card(0, &zero), GROUP, 1, short).map(|_| ()).unwrap_err());
        told(&words, |short| zero.accept(&card(1, &one), GROUP, 1, short).map(|_| ()).unwrap_err());
        assert_eq!(zero.parked(), 0);
    });
}

#[test]
fn a_hello_for_another_rank_is_refused() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let short = Deadline::after(Duration::from_millis(400));
        let wrong = PeerAddress { rank: Rank::new(7), ..card(0, &zero) };
        let error = one.connect(&wrong, GROUP, 1, short).map(|_| ()).unwrap_err();
        assert_eq!(error.blames(), Some(Rank::new(7)), "{error}");
        assert_eq!(zero.parked(), 0);
    });
}

#[test]
fn nobody_there_is_told_with_every_address() {
    for_each_flavour(|tls| {
        let one = endpoint(1, secret(1), tls);
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let zero = PeerAddress { rank: Rank::ZERO, host: "node0".into(), addresses: vec![closed] };
        let begin = Instant::now();
        let short = Deadline::after(Duration::from_millis(300));
        let text = one.connect(&zero, GROUP, 1, short).map(|_| ()).unwrap_err().to_string();
        assert!(begin.elapsed() >= Duration::from_millis(300), "it must be retried until the deadline");
        for word in ["rank 0", "node0", &closed.to_string(), "refused", "300ms", "CORRO_INTERFACE"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    });
}

#[test]
fn settings_that_differ_are_a_mismatch() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let _dialled = one.connect(&card(0, &zero), GROUP, 2, soon()).unwrap();
        let error = zero.accept(&card(1, &one), GROUP, 3, soon()).map(|_| ()).unwrap_err();
        assert!(matches!(&error, Error::Mismatch(text) if text.contains("CORRO_STREAMS")), "{error}");
        assert!(matches!(one.connect(&card(0, &zero), GROUP, 0, soon()).map(|_| ()), Err(Error::Usage(_))));
        assert!(matches!(one.connect(&card(0, &zero), GROUP, 65, soon()).map(|_| ()), Err(Error::Usage(_))));
    });
}

#[test]
fn who_dials_again_replaces_what_was_not_claimed() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let first = one.connect(&card(0, &zero), GROUP, 1, soon()).unwrap();
        let mut second = one.connect(&card(0, &zero), GROUP, 1, soon()).unwrap();
        let mut accepted = zero.accept(&card(1, &one), GROUP, 1, soon()).unwrap();
        exchange(&mut accepted, &mut second, 1000);
        drop(first);
        // A dialler that has died leaves nothing to claim.
        drop(one.connect(&card(0, &zero), GROUP, 1, soon()).unwrap());
        std::thread::sleep(Duration::from_millis(50));
        let short = Deadline::after(Duration::from_millis(200));
        assert!(zero.accept(&card(1, &one), GROUP, 1, short).is_err());
    });
}

#[test]
fn groups_do_not_meet() {
    for_each_flavour(|tls| {
        let (zero, one) = (endpoint(0, secret(1), tls), endpoint(1, secret(1), tls));
        let mut dialled: Vec<Streams> =
            (0..3).map(|g| one.connect(&card(0, &zero), GroupId(g), 1, soon()).unwrap()).collect();
        for g in [2, 0, 1] {
            let mut accepted = zero.accept(&card(1, &one), GroupId(g), 1, soon()).unwrap();
            exchange(&mut accepted, &mut dialled[g as usize], 1000);
        }
    });
}

#[test]
fn dropping_an_endpoint_is_quick_and_frees_its_port() {
    for_each_flavour(|tls| {
        let zero = endpoint(0, secret(1), tls);
        let address = *zero.addresses().iter().find(|a| a.is_ipv4()).unwrap();
        let stranger = TcpStream::connect(address).unwrap();
        let begin = Instant::now();
        drop(zero);
        // A stranger may take 5 s to prove itself.
        assert!(begin.elapsed() < Duration::from_secs(4));
        assert!(TcpStream::connect(address).is_err());
        drop(stranger);
    });
}
