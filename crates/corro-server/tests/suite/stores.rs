//! Real servers and workers over loopback, as threads.

use std::net::SocketAddr;
use std::time::Duration;

use corro_core::{DType, Deadline, ReduceOp};
use corro_server::client::{Client, ServerAddress, StoreConfig};
use corro_server::frame::{Reader, Request, Response, StoreSetup, encode};
use corro_server::protocol::{Key, name_id};
use corro_server::server::Server;
use corro_server::session::{KeySpec, Session};
use corro_server::{Code, Consistency, Optimizer, Rule, ServerId, WorkerId};
use corro_testing::{Folder, Random, wait_until};
use corro_transport::listener::connect;
use corro_transport::secret::Secret;

const SOON: Duration = Duration::from_secs(20);

fn secret() -> Secret {
    Secret::from_bytes([9; 32])
}

fn servers(count: usize, tls: bool) -> Vec<Server> {
    let here: SocketAddr = "127.0.0.1:0".parse().unwrap();
    (0..count).map(|_| Server::start(here, &secret(), tls).unwrap()).collect()
}

fn config(servers: &[Server], me: u32, workers: u32, consistency: Consistency, tls: bool) -> StoreConfig {
    let servers = servers.iter().map(|s| ServerAddress { addresses: s.addresses().to_vec(), share: 1.0 }).collect();
    let (secret, timeout) = (secret(), SOON);
    StoreConfig {
        store: 1,
        me: WorkerId(me),
        workers,
        consistency,
        servers,
        secret,
        tls,
        timeout,
        connect_timeout: SOON,
        interrupted: || false,
    }
}

fn spec(name: &str, rows: u64, width: u32, rule: Rule) -> KeySpec {
    KeySpec { name: name.into(), dtype: DType::F32, rows, width, rule, striped: false, code: None }
}

fn floats(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).flat_map(|_| (random.unit() as f32).to_le_bytes()).collect()
}

/// Runs `work` as each worker.
fn workers<T: Send>(count: u32, work: impl Fn(u32) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..count)
            .map(|me| {
                scope.spawn({
                    let work = &work;
                    move || work(me)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// 600,000 floats: two parts and more.
const LONG: usize = 600_000;

#[test]
fn rounds_have_the_bits_of_an_ordered_sum_whatever_comes_first() {
    for tls in [false, true] {
        let servers = servers(3, tls);
        let expected = |round: u64, count: usize| {
            let pushed: Vec<Vec<u8>> = (0..4).map(|me| floats(round * 10 + me, count)).collect();
            let sources: Vec<&[u8]> = pushed.iter().map(Vec::as_slice).collect();
            let mut sum = vec![0; count * 4];
            corro_kernels::reduce_slices(ReduceOp::Sum, DType::F32, &mut sum, &sources, 0.25);
            sum
        };
        workers(4, |me| {
            let mut random = Random::new(u64::from(me) + 1);
            let client = Client::connect(config(&servers, me, 4, Consistency::Bsp, tls)).unwrap();
            client.init(spec("long", LONG as u64, 1, Rule::Average), None).unwrap();
            client.init(spec("short", 3, 1, Rule::Average), None).unwrap();
            let (mut long, mut short) = (vec![0; LONG * 4], vec![0; 12]);
            for round in 1..=if tls { 2 } else { 5 } {
                std::thread::sleep(random.time(Duration::from_millis(10)));
                client.push("long", &floats(round * 10 + u64::from(me), LONG), 1, None).unwrap();
                client.push("short", &floats(round * 10 + u64::from(me), 3), 0, None).unwrap();
                let (a, b) = (client.pull("short", 0).unwrap(), client.pull("long", 1).unwrap());
                assert_eq!(client.value(&a, &mut short).unwrap(), 4);
                assert_eq!(client.value(&b, &mut long).unwrap(), 4);
                assert!(short == expected(round, 3) && long == expected(round, LONG), "round {round} on {me}");
            }
            client.close().unwrap();
        });
    }
}

/// What is owned survives its server, with the bits that it would have had.
#[test]
fn a_lost_server_changes_nothing_but_the_time() {
    let adam = Optimizer::Adam { lr: 0.1, beta1: 0.9, beta2: 0.99, eps: 1e-8, weight_decay: 0.0, decoupled: false };
    let train = |seed: Option<u64>| {
        let mut all = servers(3, false);
        let configs: Vec<StoreConfig> = (0..3).map(|me| config(&all, me, 3, Consistency::Bsp, false)).collect();
        // Worker 0 says when a round is over: a server is lost in the midst of training, however slow the machine is.
        let (over, rounds) = std::sync::mpsc::channel();
        let killer = std::thread::spawn(move || {
            let mut random = Random::new(seed.unwrap_or(0));
            if seed.is_some() {
                rounds.iter().take(1 + random.below(30)).for_each(drop);
                std::thread::sleep(random.time(Duration::from_millis(3)));
                drop(all.remove(random.below(3)));
            }
            all
        });
        let ends = workers(3, |me| {
            let client = Client::connect(configs[me as usize].clone()).unwrap();
            let start = floats(99, 2000);
            client.init(spec("owned", 2000, 1, Rule::Update), Some(&start)).unwrap();
            client.init(spec("other", 500, 1, Rule::Update), None).unwrap();
            client.init(spec("summed", 300_000, 1, Rule::Sum), None).unwrap();
            client.set_optimizer(adam).unwrap();
            let (mut owned, mut other, mut summed) = (vec![0; 8000], vec![0; 2000], vec![0; 1_200_000]);
            let mut sums = 0u64;
            // Made once: random numbers cost more than all the rest.
            let mut brought = floats(u64::from(me) + 5, 300_000);
            for round in 0..40 {
                if me == 0 && round > 0 {
                    // Nobody listens any more once the server is lost.
                    let _ = over.send(());
                }
                let seed = round * 7 + u64::from(me);
                client.push("owned", &floats(seed, 2000), 0, None).unwrap();
                client.push("other", &floats(seed + 1, 500), 0, Some(0.01)).unwrap();
                brought.rotate_left(4);
                client.push("summed", &brought, 0, None).unwrap();
                for (name, room) in [("owned", &mut owned), ("other", &mut other), ("summed", &mut summed)] {
                    let pull = client.pull(name, 0).unwrap();
                    client.value(&pull, room).unwrap();
                }
                sums = sums.wrapping_mul(31).wrapping_add(summed.iter().map(|b| u64::from(*b)).sum());
                std::thread::sleep(Duration::from_millis(2));
            }
            let lost = client.lost().len();
            client.close().unwrap();
            (owned, other, sums, lost)
        });
        drop(killer.join().unwrap());
        ends
    };
    let undisturbed = train(None);
    assert!(undisturbed.iter().all(
        |(owned, other, sums, _)| (owned, other, sums) == (&undisturbed[0].0, &undisturbed[0].1, &undisturbed[0].2)
    ));
    let mut lost = 0;
    for seed in 0..6 {
        for (me, (owned, other, sums, without)) in train(Some(seed)).into_iter().enumerate() {
            lost += without;
            assert!(owned == undisturbed[0].0, "seed {seed}, worker {me}: what was owned differs");
            assert!(other == undisturbed[0].1 && sums == undisturbed[0].2, "seed {seed}, worker {me}: a sum differs");
        }
    }
    assert!(lost >= 9, "servers were lost too late to matter: {lost}");
}

#[test]
fn a_bound_lets_the_fast_go_ahead_and_no_further() {
    let servers = servers(2, false);
    workers(3, |me| {
        let client = Client::connect(config(&servers, me, 3, Consistency::Ssp { bound: 2 }, false)).unwrap();
        client.init(spec("ones", 64, 1, Rule::Add), None).unwrap();
        let ones: Vec<u8> = [1f32; 64].iter().flat_map(|f| f.to_le_bytes()).collect();
        let mut value = vec![0; 256];
        for clock in 1..=30u32 {
            std::thread::sleep(Duration::from_millis(if me == 0 { 6 } else { 1 }));
            client.push("ones", &ones, 0, None).unwrap();
            client.clock().unwrap();
            let pull = client.pull("ones", 0).unwrap();
            client.value(&pull, &mut value).unwrap();
            let v = f32::from_le_bytes([value[0], value[1], value[2], value[3]]) as u32;
            assert!((clock + 2 * clock.saturating_sub(2)..=clock + 2 * (clock + 3)).contains(&v), "{v} at {clock}");
            assert!(value.chunks(4).all(|c| c == &value[..4]));
        }
        client.barrier().unwrap();
        let pull = client.pull("ones", 0).unwrap();
        client.value(&pull, &mut value).unwrap();
        assert_eq!(value[..4], 90f32.to_le_bytes());
        client.close().unwrap();
    });
}

#[test]
fn one_who_dies_is_not_waited_for() {
    for consistency in [Consistency::Bsp, Consistency::Ssp { bound: 1 }] {
        let servers = servers(2, false);
        workers(3, |me| {
            let client = Client::connect(config(&servers, me, 3, consistency, false)).unwrap();
            client.init(spec("x", 4, 1, Rule::Add), None).unwrap();
            for clock in 0..10 {
                if me == 2 && clock == 3 {
                    return;
                }
                client.push("x", &[0; 16], 0, None).unwrap();
                client.clock().unwrap();
                let pull = client.pull("x", 0).unwrap();
                client.value(&pull, &mut [0; 16]).unwrap();
            }
            client.close().unwrap();
        });
    }
}

#[test]
fn rows_are_read_and_updated_one_by_one() {
    let servers = servers(2, false);
    workers(2, |me| {
        let client = Client::connect(config(&servers, me, 2, Consistency::Bsp, false)).unwrap();
        let table: Vec<u8> = (0..10u8).flat_map(|row| [f32::from(row); 2]).flat_map(f32::to_le_bytes).collect();
        client.init(KeySpec { striped: true, ..spec("table", 10, 2, Rule::Update) }, Some(&table)).unwrap();
        client.set_optimizer(Optimizer::Sgd { lr: 1.0, momentum: 0.0, nesterov: false, weight_decay: 0.0 }).unwrap();
        // Row 3 by both, and twice by the second; row 7 by the first.
        let rows: &[u64] = if me == 0 { &[3, 7] } else { &[3, 3] };
        let ones: Vec<u8> = [1f32; 4].iter().flat_map(|f| f.to_le_bytes()).collect();
        client.push_rows("table", rows, &ones, 0, None).unwrap();
        let mut got = vec![0; 5 * 8];
        client.rows(&client.pull_rows("table", &[9, 3, 7, 3, 0], 0).unwrap(), &mut got).unwrap();
        let first: Vec<f32> = got.chunks(8).map(|c| f32::from_le_bytes([c[0], c[1], c[2], c[3]])).collect();
        assert_eq!(first, [9.0, 3.0 - 1.5, 7.0 - 0.5, 3.0 - 1.5, 0.0]);
        let wrong = client.pull_rows("table", &[10], 0).unwrap_err().to_string();
        assert!(
            wrong.contains("row 10") && wrong.contains("\"table\"") && wrong.contains(&format!("worker {me}")),
            "{wrong}"
        );
        client.close().unwrap();
    });
}

#[test]
fn what_is_saved_comes_back_with_another_number_of_servers() {
    let folder = Folder::new("parameters");
    let file = folder.path().join("all.corro");
    let adagrad = Optimizer::Adagrad { lr: 0.1, eps: 1e-10, weight_decay: 0.0, initial: 0.0 };
    let run = |count: usize, load: bool| {
        let servers = servers(count, false);
        workers(2, |me| {
            let client = Client::connect(config(&servers, me, 2, Consistency::Bsp, false)).unwrap();
            client.init(spec("w", LONG as u64, 1, Rule::Update), Some(&floats(5, LONG))).unwrap();
            client.init(KeySpec { striped: true, ..spec("t", 9, 3, Rule::Update) }, None).unwrap();
            client.set_optimizer(adagrad).unwrap();
            if load {
                client.load(&file).unwrap();
            }
            let mut w = vec![0; LONG * 4];
            for round in u64::from(load)..2 {
                client.push("w", &floats(round + u64::from(me), LONG), 0, None).unwrap();
                client.push_rows("t", &[4, 8], &floats(round, 6), 0, None).unwrap();
                client.value(&client.pull("w", 0).unwrap(), &mut w).unwrap();
                if !load && round == 0 {
                    client.save(&file).unwrap();
                }
            }
            let mut t = vec![0; 9 * 12];
            client.value(&client.pull("t", 0).unwrap(), &mut t).unwrap();
            client.close().unwrap();
            (w, t)
        })
    };
    // The second round after the first, or after the first was loaded: the same gradients, the same bits.
    let (first, again) = (run(1, false), run(3, true));
    assert!(first[0].0 == again[0].0 && first[0].1 == again[0].1);
}

/// Error feedback: what a code leaves out of one push comes with a later one, so that sums over many rounds are right, also when a
/// server is lost on the way.
#[test]
fn compressed_pushes_are_fewer_bytes_and_nothing_is_lost() {
    const COUNT: usize = 4096;
    const ROUNDS: u64 = 24;
    let given = |me: u64, round: u64| floats(me * 1000 + round, COUNT);
    let sums = |kill: bool, code: Option<Code>| {
        let all = std::sync::Mutex::new(servers(2, false));
        let configs: Vec<StoreConfig> =
            (0..2).map(|me| config(&all.lock().unwrap(), me, 2, Consistency::Bsp, false)).collect();
        workers(2, |me| {
            let client = Client::connect(configs[me as usize].clone()).unwrap();
            client.init(KeySpec { code, ..spec("summed", COUNT as u64, 1, Rule::Sum) }, None).unwrap();
            client.init(KeySpec { code, ..spec("owned", COUNT as u64, 1, Rule::Add) }, None).unwrap();
            let before = client.bytes_moved();
            let (mut value, mut total) = (vec![0; COUNT * 4], vec![0f64; COUNT]);
            for round in 0..ROUNDS {
                if kill && me == 0 && round == 9 {
                    drop(all.lock().unwrap().remove(1));
                }
                client.push("summed", &given(u64::from(me), round), 0, None).unwrap();
                client.push("owned", &given(u64::from(me), round), 0, None).unwrap();
                client.value(&client.pull("summed", 0).unwrap(), &mut value).unwrap();
                for (total, bytes) in total.iter_mut().zip(value.chunks(4)) {
                    *total += f64::from(f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
                }
            }
            client.value(&client.pull("owned", 0).unwrap(), &mut value).unwrap();
            let sent = client.bytes_moved().1 - before.1;
            client.close().unwrap();
            (value, total, sent)
        })
    };
    let plain = sums(false, None);
    for (code, fewer) in [(Code::Half { brain: true }, 1.9), (Code::Int8 { block: 128 }, 3.6)] {
        let coded = sums(false, Some(code));
        assert!(coded[0].0 == coded[1].0, "{code:?}: workers differ");
        assert!(plain[0].2 as f64 > fewer * coded[0].2 as f64, "{code:?}: {} and {}", plain[0].2, coded[0].2);
        let value =
            |bytes: &[u8], at: usize| f64::from(f32::from_le_bytes(std::array::from_fn(|byte| bytes[at * 4 + byte])));
        for at in 0..COUNT {
            // Two workers' last rests are all that is missing, not one a round.
            let (exact, got) = (value(&plain[0].0, at), value(&coded[0].0, at));
            assert!((exact - got).abs() < 2.5 / 127.0, "{code:?} at {at}: {got} is not {exact}");
            // A sum's answer is rounded once more in each round, to nearest: that does not add up to much.
            assert!((plain[0].1[at] - coded[0].1[at]).abs() < 0.25, "{code:?} at {at}");
        }
        let after_loss = sums(true, Some(code));
        assert!(after_loss[0].0 == coded[0].0 && after_loss[1].1 == coded[1].1, "{code:?}: a loss changed the bits");
    }
}

#[test]
fn bad_clients_are_refused_and_nobody_else_notices() {
    let servers = servers(1, false);
    let good = Client::connect(config(&servers, 0, 1, Consistency::Bsp, false)).unwrap();
    good.init(spec("x", 4, 1, Rule::Sum), None).unwrap();
    let at = servers[0].addresses().to_vec();
    let stranger = Secret::from_bytes([1; 32]);
    let refused = connect("a server", &at, &stranger, false, Deadline::after(Duration::from_secs(1)));
    assert!(refused.is_err());

    let setup = StoreSetup {
        store: 1,
        workers: 1,
        consistency: Consistency::Bsp,
        servers: vec![at.clone()],
        you: ServerId::FIRST,
    };
    let nonsense: Vec<(&str, Vec<u8>)> = vec![
        ("out of order", encode(&Request::Clock { clock: 1 }, 0).unwrap()),
        (
            "connected already",
            encode(&Request::Hello { setup: setup.clone(), worker: WorkerId(0), lost: vec![] }, 0).unwrap(),
        ),
        (
            "servers and",
            encode(&Request::Hello { setup: StoreSetup { workers: 5, ..setup }, worker: WorkerId(4), lost: vec![] }, 0)
                .unwrap(),
        ),
        ("", vec![255; 64]),
    ];
    for (expected, bytes) in nonsense {
        let mut stream = connect("a server", &at, &secret(), false, Deadline::after(SOON)).unwrap().stream;
        assert_eq!(stream.try_write(&bytes).unwrap(), bytes.len());
        let mut reader = Reader::<Response>::default();
        let mut told = String::new();
        wait_until("an answer, and the end", SOON, || {
            let Ok(count) = stream.try_read(reader.room()) else { return true };
            reader.filled(count);
            if let Ok(Some((Response::Refused { why, .. }, _))) = reader.next_frame() {
                told = why;
            }
            false
        });
        assert!(told.contains(expected), "{told:?} is not about {expected:?}");
    }
    let stats = &good.stats().unwrap()[0];
    let count = |what: &str| stats.iter().find(|(name, _)| name == what).map_or(0, |(_, n)| *n);
    assert!(count("strangers turned away") >= 1 && count("clients sent away") == 4, "{stats:?}");
    let wrong = good.push("x", &[0; 3], 0, None).unwrap_err().to_string();
    assert!(wrong.contains("3 bytes"), "{wrong}");
    good.push("x", &[0; 16], 0, None).unwrap();
    good.value(&good.pull("x", 0).unwrap(), &mut [0; 16]).unwrap();
    // A worker that pushes what its server does not know learns why.
    let unknown = good.push("y", &[0; 4], 0, None).unwrap_err().to_string();
    assert!(unknown.contains("call init first"), "{unknown}");
}

/// A worker that says the same twice, as after a reconnect it might: it counts once, is counted, and others don't notice.
#[test]
fn a_frame_that_comes_twice_counts_once() {
    for consistency in [Consistency::Bsp, Consistency::Async { staleness_lr: false }] {
        let servers = servers(1, false);
        let at = servers[0].addresses().to_vec();
        let setup = StoreSetup { store: 1, workers: 2, consistency, servers: vec![at.clone()], you: ServerId::FIRST };
        let good = Client::connect(config(&servers, 1, 2, consistency, false)).unwrap();
        let mut stream = connect("a server", &at, &secret(), false, Deadline::after(SOON)).unwrap().stream;
        let key = Key { name: name_id("x"), part: 0 };
        let mut session = Session::new(WorkerId(0), setup, vec![1.0]);
        let mut said: Vec<u8> = encode(&session.hello(ServerId::FIRST), 0).unwrap();
        session.init(spec("x", 2, 1, Rule::Add), None).unwrap();
        while let Some((request, payload)) = session.take(ServerId::FIRST) {
            said.extend([encode(&request, payload.len()).unwrap(), payload.to_vec()].concat());
        }
        let ones: Vec<u8> = [1f32; 2].iter().flat_map(|f| f.to_le_bytes()).collect();
        let push = |id, clock| Request::Push { id, key, clock, seen: 0, rate: None, code: None };
        for request in [push(10, 1), push(10, 1), push(10, 1)] {
            said.extend([encode(&request, 8).unwrap(), ones.clone()].concat());
        }
        assert_eq!(stream.try_write(&said).unwrap(), said.len());
        good.init(spec("x", 2, 1, Rule::Add), None).unwrap();
        good.push("x", &ones, 0, None).unwrap();
        let mut value = [0; 8];
        wait_until("both pushes", SOON, || {
            good.value(&good.pull("x", 0).unwrap(), &mut value).unwrap();
            value[..4] == 2f32.to_le_bytes()
        });
        let count = |what: &str| good.stats().unwrap()[0].iter().find(|(name, _)| name == what).map_or(0, |(_, n)| *n);
        assert_eq!(count("duplicates"), 2, "{consistency:?}");
        // Another push in a round that is over, by one who is out of order, is refused and counted.
        if consistency == Consistency::Bsp {
            said = [encode(&push(11, 1), 8).unwrap(), ones.clone()].concat();
            assert_eq!(stream.try_write(&said).unwrap(), said.len());
            wait_until("a refusal", SOON, || count("refused") == 1);
        }
        assert_eq!(value[..4], 2f32.to_le_bytes());
    }
}

#[test]
fn waiting_for_one_who_does_not_come_names_it() {
    let servers = servers(1, false);
    let mut mine = config(&servers, 0, 2, Consistency::Bsp, false);
    mine.timeout = Duration::from_millis(300);
    let first = Client::connect(mine).unwrap();
    let second = Client::connect(config(&servers, 1, 2, Consistency::Bsp, false)).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| second.init(spec("x", 4, 1, Rule::Sum), None).unwrap());
        first.init(spec("x", 4, 1, Rule::Sum), None).unwrap();
    });
    first.push("x", &[0; 16], 0, None).unwrap();
    let late = first.value(&first.pull("x", 0).unwrap(), &mut [0; 16]).unwrap_err().to_string();
    assert!(late.contains("round 1 of \"x\" waits for workers [1]") && late.contains("CORRO_TIMEOUT"), "{late}");
}
