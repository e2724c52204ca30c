//! The rendezvous store over loopback: the same table for plain TCP and for TLS. Every test has a hang limit.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use corro_core::{Deadline, Error};
use corro_transport::secret::Secret;
use corro_transport::store::{Client, Limits, Server};

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

fn any_port() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

fn server(tls: bool) -> Server {
    Server::start(any_port(), &secret(1), tls, Limits::default()).unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(40))
}

/// What takes no longer than this has not come from waiting until [`soon`] is over.
const PROMPT: Duration = Duration::from_secs(20);

fn ms(count: u64) -> Deadline {
    Deadline::after(Duration::from_millis(count))
}

fn client(server: &Server, tls: bool) -> Client {
    Client::connect(&[server.address()], &secret(1), tls, soon()).unwrap()
}

#[test]
fn what_is_set_is_got() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let (mut a, mut b) = (client(&server, tls), client(&server, tls));
        assert_eq!(a.try_get("k", soon()).unwrap(), None);
        a.set("k", *b"one", soon()).unwrap();
        assert_eq!(b.get("k", soon()).unwrap(), b"one");
        b.set("k", "", soon()).unwrap();
        assert_eq!(a.try_get("k", soon()).unwrap(), Some(vec![]));
        assert!(a.delete("k", soon()).unwrap());
        assert!(!b.delete("k", soon()).unwrap());
        assert_eq!(b.try_get("k", soon()).unwrap(), None);
        assert_eq!((a.add("n", 3, soon()).unwrap(), b.add("n", -5, soon()).unwrap()), (3, -2));
    });
}

#[test]
fn waiting_ends_when_the_last_key_is_set() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let mut waiter = client(&server, tls);
        let waiting = std::thread::spawn(move || waiter.get_many(&["a", "b", "c"], soon()).unwrap());
        let mut setter = client(&server, tls);
        for key in ["c", "a", "b"] {
            std::thread::sleep(Duration::from_millis(20));
            assert!(!waiting.is_finished());
            setter.set(key, key, soon()).unwrap();
        }
        assert_eq!(waiting.join().unwrap(), [b"a", b"b", b"c"]);
    });
}

#[test]
fn a_deadline_names_what_is_missing_and_the_client_lives_on() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let mut client = client(&server, tls);
        client.set("there", "x", soon()).unwrap();
        let error = client.get_many(&["there", "missing/1", "missing/2"], ms(200)).unwrap_err();
        let text = error.to_string();
        assert!(matches!(error, Error::Io { .. }), "{text}");
        for word in ["nobody has set \"missing/1\", \"missing/2\" within 200ms", "CORRO_CONNECT_TIMEOUT", "127.0.0.1"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
        // A late answer to what was given up on must not be taken for that to the next request.
        client.set("missing/1", "1", soon()).unwrap();
        client.set("missing/2", "2", soon()).unwrap();
        assert_eq!(client.get("there", soon()).unwrap(), b"x");
    });
}

#[test]
fn many_clients_meet() {
    for_each_flavour(|tls| {
        const CLIENTS: usize = 40;
        let server = server(tls);
        let workers: Vec<_> = (0..CLIENTS)
            .map(|rank| {
                let mut client = client(&server, tls);
                std::thread::spawn(move || {
                    client.set(&format!("rank/{rank}"), rank.to_string(), soon()).unwrap();
                    let keys: Vec<String> = (0..CLIENTS).map(|r| format!("rank/{r}")).collect();
                    let values = client.get_many(&keys, soon()).unwrap();
                    assert!(values.iter().enumerate().all(|(r, v)| *v == r.to_string().into_bytes()));
                    client.add("count", 1, soon()).unwrap()
                })
            })
            .collect();
        let mut counts: Vec<i64> = workers.into_iter().map(|w| w.join().unwrap()).collect();
        counts.sort_unstable();
        assert_eq!(counts, (1..=CLIENTS as i64).collect::<Vec<_>>());
    });
}

#[test]
fn large_values_and_long_lists_pass_and_too_large_ones_do_not() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let mut client = client(&server, tls);
        let big: Vec<u8> = (0..10 << 20).map(|i: u32| (i / 7) as u8).collect();
        client.set("big/1", big.clone(), soon()).unwrap();
        client.set("big/2", big.clone(), soon()).unwrap();
        // Together they are longer than one message may be.
        let both = client.get_many(&["big/1", "big/2"], soon()).unwrap();
        assert!(both[0] == big && both[1] == big);
        let error = client.set("huge", vec![0; (16 << 20) + 1], soon()).unwrap_err();
        assert!(matches!(&error, Error::Usage(text) if text.contains("huge") && text.contains("16777216")), "{error}");
        assert!(matches!(client.set(&"k".repeat(1025), "", soon()), Err(Error::Usage(_))));
        assert!(matches!(client.set("", "", soon()), Err(Error::Usage(_))));
        // More keys than one request may name.
        let keys: Vec<String> = (0..5000).map(|_| "big/0".into()).collect();
        client.set("big/0", "", soon()).unwrap();
        assert_eq!(client.get_many(&keys, soon()).unwrap().len(), 5000);
    });
}

#[test]
fn a_full_store_refuses_and_goes_on() {
    for_each_flavour(|tls| {
        let limits = Limits { value: 1 << 20, memory: 4 << 20, clients: 3 };
        let server = Server::start(any_port(), &secret(1), tls, limits).unwrap();
        let mut one = client(&server, tls);
        let outcomes: Vec<bool> = (0..6).map(|i| one.set(&format!("k{i}"), vec![0; 1 << 20], soon()).is_ok()).collect();
        assert_eq!(outcomes, [true, true, true, false, false, false]);
        assert!(one.delete("k0", soon()).unwrap());
        one.set("k9", vec![0; 1 << 20], soon()).unwrap();
        let _others = [client(&server, tls), client(&server, tls)];
        // The fourth is accepted by the acceptor and then let go.
        let outcome =
            Client::connect(&[server.address()], &secret(1), tls, ms(500)).and_then(|mut c| c.add("n", 1, ms(500)));
        assert!(outcome.is_err());
        assert_eq!(one.add("n", 1, soon()).unwrap(), 1);
    });
}

#[test]
fn without_the_secret_nothing_is_read_or_written() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let begin = Instant::now();
        let error = Client::connect(&[server.address()], &secret(2), tls, soon()).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Unauthenticated(_)), "{error}");
        assert!(begin.elapsed() < PROMPT);
        // On a busy machine little may happen in little time.
        let refused =
            |limit| Client::connect(&[server.address()], &secret(1), !tls, ms(limit)).unwrap_err().to_string();
        let told = [500, 2000, 8000].into_iter().any(|limit| refused(limit).contains("CORRO_TLS"));
        assert!(told, "{}", refused(500));
        // A well-formed request without a handshake.
        let mut socket = TcpStream::connect(server.address()).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(8))).unwrap();
        let _ = socket.write_all(&[7, 0, 0, 0, 1, 0, 0, 1, b'k', 1, b'v']);
        let mut answer = Vec::new();
        let _ = socket.read_to_end(&mut answer);
        assert!(answer.is_empty() || tls, "{answer:?}");
        assert_eq!(client(&server, tls).try_get("k", soon()).unwrap(), None);
    });
}

#[test]
fn strangers_disturb_nothing() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let mut early = client(&server, tls);
        let crowd: Vec<TcpStream> = (0..300u32)
            .map(|i| {
                let mut socket = TcpStream::connect(server.address()).unwrap();
                if i % 2 == 0 {
                    let garbage: Vec<u8> = (0..i * 5).map(|n| (n * n + i) as u8).collect();
                    let _ = socket.write_all(&garbage);
                }
                socket
            })
            .collect();
        let begin = Instant::now();
        early.set("k", "v", soon()).unwrap();
        assert_eq!(client(&server, tls).get("k", soon()).unwrap(), b"v");
        assert!(begin.elapsed() < PROMPT, "{:?}", begin.elapsed());
        drop(crowd);
    });
}

#[test]
fn a_client_may_come_before_the_store() {
    for_each_flavour(|tls| {
        let address = TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
        let early = std::thread::spawn(move || {
            Client::connect(&[address], &secret(1), tls, soon()).unwrap().get("k", soon()).unwrap()
        });
        std::thread::sleep(Duration::from_millis(200));
        let server = Server::start(address, &secret(1), tls, Limits::default()).unwrap();
        client(&server, tls).set("k", "v", soon()).unwrap();
        assert_eq!(early.join().unwrap(), b"v");
    });
}

#[test]
fn the_end_of_the_store_is_told_to_those_who_wait() {
    for_each_flavour(|tls| {
        let server = server(tls);
        let mut waiter = client(&server, tls);
        let waiting = std::thread::spawn(move || {
            let first = waiter.get("never", soon()).unwrap_err().to_string();
            (first, waiter.set("k", "", soon()).unwrap_err().to_string())
        });
        std::thread::sleep(Duration::from_millis(100));
        let begin = Instant::now();
        drop(server);
        let (first, second) = waiting.join().unwrap();
        assert!(begin.elapsed() < PROMPT);
        assert!(first.contains("never") && first.contains("lost the store"), "{first}");
        assert!(second.contains("lost the store"), "{second}");
    });
}

#[test]
fn nobody_there_is_told() {
    for_each_flavour(|tls| {
        let address = TcpListener::bind(any_port()).unwrap().local_addr().unwrap();
        let text = Client::connect(&[address], &secret(1), tls, ms(200)).map(|_| ()).unwrap_err().to_string();
        for word in ["rendezvous store", &address.to_string(), "200ms", "CORRO_RENDEZVOUS"] {
            assert!(text.contains(word), "{word} is not in: {text}");
        }
    });
}
