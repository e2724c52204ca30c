//! What happens when something goes wrong: ranks that die, stop, leave, never come, disagree, or don't belong; strangers
//! at the door. Always an error that says who, always soon, never a hang.
//!
//! Ranks are processes. Unless a test says otherwise they may wait 30 s for each other, so an error that comes within
//! [`PROMPT`] has not come from waiting.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use corro_collectives::{Error, Group, ReduceOp, Result};
use corro_core::{Deadline, Rank};
use corro_testing::Random;
use corro_testing::job::{Job, Plan, role, say, say_result, wait_for_go};
use corro_transport::secret::Secret;
use corro_transport::{Fabric, Settings, store};
use rustix::process::Signal;

/// Well before any limit of 30 s, and long enough for a machine that has other things to do.
const PROMPT: Duration = Duration::from_secs(20);

/// What the processes that the tests below start do. Roles that have a victim name it after a colon.
#[test]
#[ignore = "a rank that other tests start"]
fn rank_process() {
    let Some(role) = role() else { return };
    let (role, victim) = role.split_once(':').unwrap_or((&role, ""));
    let victim = victim.parse::<usize>().ok();
    match role {
        "join" => {
            let joined = Fabric::from_env().and_then(|fabric| Group::world(&fabric).map(drop));
            return say_result(&joined);
        }
        "meet" => return meet(victim),
        _ => {}
    }
    let fabric = Fabric::from_env().expect("joining the job");
    let mut world = Group::world(&fabric).expect("opening the world");
    let is_victim = victim == Some(world.rank());
    match role {
        "wait" => wait(&mut world, is_victim),
        "cold" => {
            say("in");
            wait_for_go();
            say_result(&world.allreduce(&mut [1f32; 100], ReduceOp::Sum));
        }
        "busy" => busy(&mut world),
        "lengths" => {
            world.barrier().expect("a first barrier");
            let mut data = vec![1f32; if is_victim { 100 } else { 200 }];
            say_result(&world.allreduce(&mut data, ReduceOp::Sum));
            wait_for_go();
        }
        "kinds" => {
            world.barrier().expect("a first barrier");
            let mut data = vec![1f32; 1000];
            // A root is through once it has sent its data, so a second step shows it what it did.
            let first =
                if is_victim { world.broadcast(&mut data, 0) } else { world.allreduce(&mut data, ReduceOp::Sum) };
            say_result(&first.and_then(|()| world.barrier()));
            wait_for_go();
        }
        "steady" => steady(&fabric, &mut world),
        other => panic!("no such role: {other}"),
    }
}

/// All but the victim hang in an allreduce until something happens to the victim.
fn wait(world: &mut Group, is_victim: bool) {
    let mut data = vec![1f32; 1000];
    world.allreduce(&mut data, ReduceOp::Sum).expect("a first allreduce");
    say("in");
    wait_for_go();
    if is_victim {
        // Told to go on, it leaves.
        return;
    }
    let first = world.allreduce(&mut data, ReduceOp::Sum);
    say_result(&first);
    let start = Instant::now();
    let later = [world.allreduce(&mut data, ReduceOp::Sum), world.barrier(), world.allgather(&[1u8]).map(drop)];
    let at_once = start.elapsed() < PROMPT;
    say(if at_once && later.iter().all(|l| *l == first) { "the same later" } else { "something else later" });
}

/// Works until something happens, and then leaves at once.
fn busy(world: &mut Group) {
    let mut data = vec![1f32; 400_000];
    world.allreduce(&mut data, ReduceOp::Max).expect("a first allreduce");
    say("in");
    let error = loop {
        if let Err(error) = world.allreduce(&mut data, ReduceOp::Max) {
            break error;
        }
    };
    say_result::<()>(&Err(error));
}

/// The victim joins the job but never comes to open the group.
fn meet(victim: Option<usize>) {
    let fabric = Fabric::from_env().expect("joining the job");
    if victim == Some(fabric.rank().index()) {
        return wait_for_go();
    }
    say_result(&Group::world(&fabric).map(drop));
}

/// 200 allreduces, checked.
fn steady(fabric: &Fabric, world: &mut Group) {
    let port = fabric.card(fabric.rank()).addresses.first().expect("an address").port();
    say(port);
    wait_for_go();
    let n = world.size();
    for round in 0..200usize {
        let mut data = vec![(round + world.rank()) as i32; 1 + round * 37];
        world.allreduce(&mut data, ReduceOp::Sum).expect("allreduce among strangers");
        let want = (n * round + n * (n - 1) / 2) as i32;
        assert!(data.iter().all(|v| *v == want), "round {round}");
        std::thread::sleep(Duration::from_millis(2));
    }
    world.barrier().expect("the last barrier");
    say("ok");
}

fn survivors(job: &Job, victim: usize) -> Vec<usize> {
    (0..job.len()).filter(|i| *i != victim).collect()
}

/// Starts ranks that wait for `victim` in an allreduce.
fn waiting(role: &str, size: usize, victim: usize, adapt: impl Fn(usize, &mut Command)) -> Job {
    let role = format!("{role}:{victim}");
    let mut job = Plan::new(rank_process, &role, size).adapt(adapt).start();
    job.expect(0..size, "in");
    for i in survivors(&job, victim) {
        job.go(i);
    }
    // Time to get into the allreduce; it works just as well if they are not there yet.
    std::thread::sleep(Duration::from_millis(200));
    job
}

fn on_one_host(_: usize, _: &mut Command) {}

fn each_on_its_own(rank: usize, command: &mut Command) {
    command.env("CORRO_HOSTNAME", format!("host{rank}"));
}

fn two_a_host(rank: usize, command: &mut Command) {
    command.env("CORRO_HOSTNAME", format!("host{}", rank / 2));
}

fn in_a_hurry(_: usize, command: &mut Command) {
    command.env("CORRO_CONNECT_TIMEOUT", "3");
}

#[test]
fn a_killed_rank_is_named_by_all_others_of_its_host() {
    for victim in 0..3 {
        let job = waiting("wait", 3, victim, on_one_host);
        let killed = Instant::now();
        job.signal(victim, Signal::KILL);
        for i in survivors(&job, victim) {
            let text = job.hear(i);
            assert!(text.starts_with(&format!("lost {victim}: lost rank {victim} on ")), "rank {i}: {text}");
            assert!(killed.elapsed() < PROMPT, "rank {i} took {:?}", killed.elapsed());
        }
        job.expect(survivors(&job, victim), "the same later");
    }
}

/// In the middle of work, and the survivors leave as soon as they know: whoever learns it later must still name the
/// right one.
#[test]
fn a_rank_killed_at_work_is_named_by_all_others_of_its_host() {
    for (size, victim) in [(3, 1), (4, 0), (4, 3)] {
        let job = Plan::new(rank_process, "busy", size).start();
        job.expect(0..size, "in");
        std::thread::sleep(Duration::from_millis(100 + 37 * victim as u64));
        let killed = Instant::now();
        job.signal(victim, Signal::KILL);
        for i in survivors(&job, victim) {
            let text = job.hear(i);
            assert!(text.starts_with(&format!("lost {victim}: ")), "{size} ranks, {victim} killed, rank {i}: {text}");
            assert!(killed.elapsed() < PROMPT, "rank {i} took {:?}", killed.elapsed());
        }
    }
}

#[test]
fn a_rank_killed_on_another_host_is_named_by_its_neighbours_and_fails_all() {
    for (size, victim) in [(3, 1), (5, 2)] {
        let job = waiting("wait", size, victim, |rank, command| {
            each_on_its_own(rank, command);
            command.env("CORRO_ALGORITHM", "ring");
        });
        let killed = Instant::now();
        job.signal(victim, Signal::KILL);
        for i in survivors(&job, victim) {
            let text = job.hear(i);
            let neighbour = (i + 1) % size == victim || (victim + 1) % size == i;
            let want = if neighbour { format!("lost {victim}: ") } else { "lost ".into() };
            assert!(text.starts_with(&want), "{size} ranks, rank {i}: {text}");
            assert!(killed.elapsed() < PROMPT, "rank {i} took {:?}", killed.elapsed());
        }
        job.expect(survivors(&job, victim), "the same later");
    }
}

#[test]
fn a_rank_killed_at_work_on_another_host_fails_all() {
    // Ranks 0 and 1 share a host, 2 and 3 another one, so memory and network both carry the news.
    for victim in [1, 2] {
        let job = Plan::new(rank_process, "busy", 4).adapt(two_a_host).start();
        job.expect(0..4, "in");
        std::thread::sleep(Duration::from_millis(100));
        let killed = Instant::now();
        job.signal(victim, Signal::KILL);
        for i in survivors(&job, victim) {
            let text = job.hear(i);
            assert!(text.starts_with("lost "), "rank {i}: {text}");
            assert!(killed.elapsed() < PROMPT, "rank {i} took {:?}", killed.elapsed());
        }
    }
}

/// Nobody is connected to it yet: only the limit for connecting ends the search, and names it.
#[test]
fn a_rank_killed_before_anyone_connected_is_named_in_time() {
    let role = "cold:1";
    let mut job = Plan::new(rank_process, role, 3)
        .adapt(|rank, command| {
            each_on_its_own(rank, command);
            command.env("CORRO_CONNECT_TIMEOUT", "3");
            command.env("CORRO_ALGORITHM", "ring");
        })
        .start();
    job.expect(0..3, "in");
    job.signal(1, Signal::KILL);
    let killed = Instant::now();
    job.go(0);
    job.go(2);
    for i in [0, 2] {
        let text = job.hear(i);
        assert!(text.starts_with("lost 1: "), "rank {i}: {text}");
    }
    assert!(killed.elapsed() < Duration::from_secs(15), "{:?}", killed.elapsed());
}

#[test]
fn a_stopped_rank_is_named_when_the_time_is_over() {
    for apart in [false, true] {
        let mut job = Plan::new(rank_process, "wait:1", 3)
            .adapt(|rank, command| {
                command.env("CORRO_TIMEOUT", "1");
                if apart {
                    each_on_its_own(rank, command);
                }
            })
            .start();
        job.expect(0..3, "in");
        job.signal(1, Signal::STOP);
        let stopped = Instant::now();
        job.go(0);
        job.go(2);
        let said = [0, 2].map(|i| job.hear(i));
        assert!(stopped.elapsed() < Duration::from_secs(1) + PROMPT, "{:?}", stopped.elapsed());
        let named = said.iter().filter(|text| text.starts_with("lost 1: ")).count();
        // Over the network, whoever waits for another one that waits can only name that one.
        assert!(named == 2 || (apart && named == 1), "apart: {apart}: {said:?}");
        assert!(said.iter().all(|text| text.starts_with("lost ")), "apart: {apart}: {said:?}");
        assert!(said.iter().any(|text| text.contains("CORRO_TIMEOUT")), "apart: {apart}: {said:?}");
        job.expect([0, 2], "the same later");
    }
}

#[test]
fn a_rank_that_leaves_early_is_missed() {
    for (size, victim, adapt) in
        [(3, 0, on_one_host as fn(usize, &mut Command)), (3, 2, on_one_host), (3, 2, each_on_its_own)]
    {
        let mut job = waiting("wait", size, victim, adapt);
        let left = Instant::now();
        job.go(victim);
        for i in survivors(&job, victim) {
            let text = job.hear(i);
            assert!(text.starts_with("lost "), "rank {i}: {text}");
            assert!(left.elapsed() < PROMPT, "rank {i} took {:?}", left.elapsed());
        }
        job.expect(survivors(&job, victim), "the same later");
        job.all_end_well();
    }
}

/// `role` makes the ranks disagree; one at least must see how, and all must fail soon.
fn disagreement(role: &str, size: usize, algorithm: Option<&str>) {
    let mut job = Plan::new(rank_process, role, size)
        .adapt(|rank, command| {
            each_on_its_own(rank, command);
            if let Some(algorithm) = algorithm {
                command.env("CORRO_ALGORITHM", algorithm);
            }
        })
        .start();
    let start = Instant::now();
    let said = job.hear_all();
    let case = format!("{role} {algorithm:?} {said:?}");
    assert!(said.iter().any(|text| text.starts_with("mismatch: ")), "{case}");
    assert!(said.iter().all(|text| text.starts_with("mismatch: ") || text.starts_with("lost ")), "{case}");
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}: {case}", start.elapsed());
    job.go_all();
}

#[test]
fn different_lengths_are_a_mismatch() {
    disagreement("lengths:0", 2, None);
    disagreement("lengths:1", 3, None);
    disagreement("lengths:1", 3, Some("ring"));
    disagreement("lengths:2", 3, Some("tree"));
}

#[test]
fn different_collectives_are_a_mismatch() {
    disagreement("kinds:0", 2, Some("ring"));
}

#[test]
fn a_rank_that_never_joins_is_named_in_time() {
    let start = Instant::now();
    let job = Plan::new(rank_process, "join", 3).adapt(in_a_hurry).without(2).start();
    for text in job.hear_all() {
        assert!(text.contains("card/0/2") || text.contains("rank 2"), "{text}");
        assert!(!text.contains("nobody has set \"card/0/0\"") && text.contains("CORRO_CONNECT_TIMEOUT"), "{text}");
    }
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn a_rank_that_never_opens_the_group_is_named_in_time() {
    let job = Plan::new(rank_process, "meet:2", 3).adapt(in_a_hurry).start();
    // Rank 0 receives the others of its host and knows who is missing; rank 1 hears it from rank 0.
    let text = job.hear(0);
    assert!(text.starts_with("lost 2: ") && text.contains("CORRO_CONNECT_TIMEOUT"), "{text}");
    let text = job.hear(1);
    assert!(text.starts_with("lost 2: ") && text.contains("rank 0 waited for it in vain"), "{text}");
}

#[test]
fn a_wrong_secret_does_not_get_in() {
    let wrong = Secret::random().expect("randomness").to_hex();
    let job = Plan::new(rank_process, "join", 2)
        .adapt(|rank, command| {
            command.env("CORRO_CONNECT_TIMEOUT", "3");
            if rank == 1 {
                command.env("CORRO_SECRET", &wrong);
            }
        })
        .start();
    let said = job.hear_all();
    assert!(said[0].contains("card/0/1") || said[0].contains("rank 1"), "{said:?}");
    assert!(said[1].to_lowercase().contains("secret"), "{said:?}");
    assert!(!said.iter().any(|text| text.contains(&wrong)), "the secret is not shown");
}

#[test]
fn tls_on_some_ranks_only_is_a_clear_error() {
    let job = Plan::new(rank_process, "join", 2)
        .adapt(|rank, command| {
            command.env("CORRO_CONNECT_TIMEOUT", "3");
            command.env("CORRO_TLS", rank.to_string());
        })
        .start();
    let said = job.hear_all();
    assert!(said[0] != "ok", "{said:?}");
    assert!(said[1].contains("CORRO_TLS"), "{said:?}");
}

/// As above, where the store does not tell: the ranks find out when they connect.
#[test]
fn tls_at_one_end_only_is_a_clear_error() {
    let secret = Secret::random().expect("randomness");
    let bind = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let store = store::Server::start(bind, &secret, false, store::Limits::default()).expect("the store");
    let rank = |rank: usize| -> Result<()> {
        let settings = Settings {
            tls: rank == 1,
            host: Some(format!("host{rank}")),
            connect_timeout: Duration::from_secs(3),
            ..Settings::default()
        };
        let deadline = Deadline::after(Duration::from_secs(10));
        let mut client = store::Client::connect(&[store.address()], &secret, false, deadline)?;
        let fabric = Fabric::join(Rank::new(rank), 2, &secret, &mut client, settings)?;
        Group::world(&fabric)?.allreduce(&mut [1f32], ReduceOp::Sum)
    };
    let results = std::thread::scope(|scope| {
        let threads = [0, 1].map(|r| scope.spawn(move || rank(r)));
        threads.map(|t| t.join().expect("a rank"))
    });
    for (rank, result) in results.iter().enumerate() {
        let Err(error @ Error::PeerLost { rank: peer, .. }) = result else { panic!("rank {rank}: {result:?}") };
        assert_eq!(peer.index(), 1 - rank);
        assert!(error.to_string().contains("CORRO_TLS"), "rank {rank}: {error}");
    }
}

/// What strangers send: nothing, little, much, the beginnings of other protocols, absurd lengths.
fn garbage(seed: u64) -> Vec<u8> {
    let mut random = Random::new(seed);
    match seed % 7 {
        0 => Vec::new(),
        1 => random.bytes(1),
        2 => random.bytes(100_000),
        3 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        4 => [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &random.bytes(200)].concat(),
        5 => vec![0xff; 64],
        _ => [&b"crr1"[..], &random.bytes(300)].concat(),
    }
}

fn throw_garbage(ports: &[u16], seeds: std::ops::Range<u64>, until: &AtomicBool) -> usize {
    let mut kept = Vec::new();
    let mut thrown = 0;
    for seed in seeds {
        for port in ports {
            if until.load(Ordering::SeqCst) {
                return thrown;
            }
            // A listener may be too busy to take more; that is its right.
            let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, *port)) else { continue };
            let _ = stream.set_write_timeout(Some(Duration::from_millis(200)));
            let _ = stream.write_all(&garbage(seed));
            thrown += 1;
            // Some say nothing more but stay.
            if seed % 3 == 0 {
                kept.push(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    thrown
}

#[test]
fn strangers_at_every_port_change_nothing() {
    let mut job = Plan::new(rank_process, "steady", 3).apart().start();
    let mut ports: Vec<u16> = job.hear_all().iter().map(|text| text.parse().expect("a port")).collect();
    ports.push(job.store.address().port());
    let over = Arc::new(AtomicBool::new(false));
    // First while nobody is connected, then while they connect and work.
    assert!(throw_garbage(&ports, 0..10, &over) >= 20);
    let thrower = std::thread::spawn({
        let over = Arc::clone(&over);
        move || throw_garbage(&ports, 100..400, &over)
    });
    job.go_all();
    job.expect(0..3, "ok");
    over.store(true, Ordering::SeqCst);
    assert!(thrower.join().expect("the thrower") > 50);
    job.all_end_well();
    // The store still serves its own.
    let deadline = Deadline::after(Duration::from_secs(10));
    let mut client = store::Client::connect(&[job.store.address()], &job.secret, false, deadline).expect("joining");
    client.set("still", b"here".to_vec(), deadline).expect("setting a key");
    assert_eq!(client.get("still", deadline).expect("getting a key"), b"here");
}
