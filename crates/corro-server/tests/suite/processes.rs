//! Servers and workers as processes, killed with SIGKILL at moments that a seed chooses.

use std::io::{BufRead, BufReader, Read};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use corro_core::DType;
use corro_server::client::{Client, ServerAddress, StoreConfig};
use corro_server::server::Server;
use corro_server::session::KeySpec;
use corro_server::{Consistency, Optimizer, Rule, WorkerId};
use corro_testing::job::role;
use corro_testing::{Random, number};
use corro_transport::secret::Secret;

const SOON: Duration = Duration::from_secs(30);
const WORKERS: u32 = 3;
const ROUNDS: u64 = 40;
/// Elements of each key.
const OWNED: usize = 5000;
const SUMMED: usize = 300_000;

/// A process that is killed when it is dropped.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// This very program, as what `role` says; and the first thing it says.
fn start(role: &str) -> (Killed, String) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "processes::other_process", "--nocapture", "--ignored", "--test-threads=1"]);
    command.env("CORRO_TEST_ROLE", role).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find_map(|line| line.strip_prefix('@').map(str::to_owned));
    (Killed(child), said.expect("the process has said nothing"))
}

fn config(servers: &[String], me: u32, workers: u32, consistency: Consistency) -> StoreConfig {
    let address = |at: &String| ServerAddress { addresses: vec![at.parse::<SocketAddr>().unwrap()], share: 1.0 };
    StoreConfig {
        store: 1,
        me: WorkerId(me),
        workers,
        consistency,
        servers: servers.iter().map(address).collect(),
        secret: Secret::from_bytes([9; 32]),
        tls: false,
        timeout: SOON,
        connect_timeout: SOON,
        interrupted: || false,
    }
}

fn spec(name: &str, rows: usize, rule: Rule) -> KeySpec {
    KeySpec { name: name.into(), dtype: DType::F32, rows: rows as u64, width: 1, rule, striped: false, code: None }
}

fn floats(seed: u64, count: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    (0..count).flat_map(|_| (random.unit() as f32).to_le_bytes()).collect()
}

#[test]
#[ignore = "a process that other tests start"]
fn other_process() {
    let Some(role) = role() else { return };
    match role.split(' ').collect::<Vec<_>>()[..] {
        ["server"] => {
            let server = Server::start("127.0.0.1:0".parse().unwrap(), &Secret::from_bytes([9; 32]), false).unwrap();
            println!("\n@{}", server.addresses()[0]);
            let _ = std::io::stdin().read_to_end(&mut Vec::new());
        }
        ["worker", at] => {
            let client = Client::connect(config(&[at.to_owned()], 2, 3, Consistency::Ssp { bound: 1 })).unwrap();
            client.init(spec("x", 4, Rule::Add), None).unwrap();
            for clock in 0.. {
                client.push("x", &[0; 16], 0, None).unwrap();
                client.clock().unwrap();
                client.value(&client.pull("x", 0).unwrap(), &mut [0; 16]).unwrap();
                if clock == 3 {
                    println!("\n@going");
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        _ => panic!("{role}"),
    }
}

/// What a worker has at the end, and how long its longest round took.
type End = (Vec<u8>, u64, Duration);

/// Trains; with a seed, one of the servers dies on the way.
fn train(seed: Option<u64>) -> (Vec<End>, usize) {
    let mut servers: Vec<(Killed, String)> = (0..3).map(|_| start("server")).collect();
    let at: Vec<String> = servers.iter().map(|(_, at)| at.clone()).collect();
    let lost = Mutex::new(0);
    // Whoever connects needs all servers.
    let connected = Barrier::new(WORKERS as usize + 1);
    let work = |me: u32| {
        let client = Client::connect(config(&at, me, WORKERS, Consistency::Bsp)).unwrap();
        connected.wait();
        client.init(spec("owned", OWNED, Rule::Update), Some(&floats(99, OWNED))).unwrap();
        client.init(spec("other", 64, Rule::Update), None).unwrap();
        client.init(spec("summed", SUMMED, Rule::Average), None).unwrap();
        let (lr, beta1, beta2, eps) = (0.1, 0.9, 0.99, 1e-8);
        client.set_optimizer(Optimizer::Adam { lr, beta1, beta2, eps, weight_decay: 0.0, decoupled: true }).unwrap();
        let (mut owned, mut summed, mut longest, mut sums) =
            (vec![0; OWNED * 4], vec![0; SUMMED * 4], Duration::ZERO, 0u64);
        for round in 0..ROUNDS {
            let begin = Instant::now();
            let mine = round * 7 + u64::from(me);
            client.push("summed", &floats(mine + 2, SUMMED), 1, None).unwrap();
            client.push("owned", &floats(mine, OWNED), 0, None).unwrap();
            client.push("other", &floats(mine + 1, 64), 0, None).unwrap();
            client.value(&client.pull("owned", 0).unwrap(), &mut owned).unwrap();
            client.value(&client.pull("summed", 1).unwrap(), &mut summed).unwrap();
            client.value(&client.pull("other", 0).unwrap(), &mut [0; 256]).unwrap();
            sums = summed.iter().fold(sums, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3));
            longest = longest.max(begin.elapsed());
        }
        *lost.lock().unwrap() += client.lost().len();
        client.close().unwrap();
        (owned, sums, longest)
    };
    let ends = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS)
            .map(|me| {
                scope.spawn({
                    let work = &work;
                    move || work(me)
                })
            })
            .collect();
        connected.wait();
        if let Some(seed) = seed {
            let mut random = Random::new(seed);
            std::thread::sleep(random.time(Duration::from_millis(250)));
            drop(servers.remove(random.below(3)));
        }
        workers.into_iter().map(|worker| worker.join().unwrap()).collect()
    });
    (ends, lost.into_inner().unwrap())
}

#[test]
fn a_server_that_is_killed_changes_no_bit() {
    let seeds = match number("CORRO_TEST_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..20,
    };
    let (undisturbed, _) = train(None);
    assert!(undisturbed.iter().all(|(owned, sums, _)| (owned, sums) == (&undisturbed[0].0, &undisturbed[0].1)));
    let (mut noticed, mut longest) = (0, Duration::ZERO);
    for seed in seeds.clone() {
        let (ends, lost) = train(Some(seed));
        noticed += usize::from(lost > 0);
        for (me, (owned, sums, step)) in ends.into_iter().enumerate() {
            longest = longest.max(step);
            assert!(owned == undisturbed[0].0, "CORRO_TEST_SEED={seed}: what servers own differs on worker {me}");
            assert!(sums == undisturbed[0].1, "CORRO_TEST_SEED={seed}: a sum differs on worker {me}");
        }
    }
    eprintln!(
        "{noticed} of {} jobs lost a server on the way; the longest step took {longest:?}",
        seeds.clone().count()
    );
    assert!(noticed * 2 >= seeds.count(), "servers died too late to matter: {noticed}");
    assert!(longest < SOON);
}

#[test]
fn a_worker_that_is_killed_is_not_waited_for() {
    let (_server, at) = start("server");
    let at = vec![at];
    let work = |me: u32| {
        let client = Client::connect(config(&at, me, 3, Consistency::Ssp { bound: 1 })).unwrap();
        client.init(spec("x", 4, Rule::Add), None).unwrap();
        for _ in 0..200 {
            client.push("x", &[0; 16], 0, None).unwrap();
            client.clock().unwrap();
            client.value(&client.pull("x", 0).unwrap(), &mut [0; 16]).unwrap();
            std::thread::sleep(Duration::from_millis(1));
        }
        client.close().unwrap();
    };
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..2)
            .map(|me| {
                scope.spawn({
                    let work = &work;
                    move || work(me)
                })
            })
            .collect();
        let (third, said) = start(&format!("worker {}", at[0]));
        assert_eq!(said, "going");
        drop(third);
        for other in others {
            other.join().unwrap();
        }
    });
}
