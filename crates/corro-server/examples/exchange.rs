//! Servers and workers as processes, for `bench/servers.py` and for tests that kill them: what one exchange takes, and what it gives.
//!
//! ```text
//! exchange server ADDRESS:PORT                          prints where it listens; ends with its standard input
//! exchange worker ME WORKERS MODE BYTES ROUNDS SERVER=SHARE...
//!                                                       rounds of push and pull; prints seconds of each and a hash of all values
//! exchange small ME WORKERS COUNT SERVER=SHARE          pushes and pulls of one float, one after the other and many at once
//! ```
//! MODE is `sum`, `adam` (rounds, the server's optimizer), or a bound for staleness with `add`. It may be followed by `,hiccups=MS`: 5 % of a
//! worker's rounds then take six times as many milliseconds, the others once; and by `,code=fp16`, `bf16` or `int8`: how values travel.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::time::{Duration, Instant};

use corro_core::{DType, Error, Result};
use corro_server::client::{Client, ServerAddress, StoreConfig};
use corro_server::server::Server;
use corro_server::session::KeySpec;
use corro_server::{Code, Consistency, Optimizer, Rule, WorkerId};
use corro_transport::secret::Secret;

fn main() -> std::process::ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let outcome = match words[..] {
        ["server", at] => serve(at),
        ["worker", me, workers, mode, bytes, rounds, ref servers @ ..] => {
            work(number(me), number(workers), mode, number(bytes), number(rounds), servers)
        }
        ["small", me, workers, count, ref servers @ ..] => small(number(me), number(workers), number(count), servers),
        _ => Err(Error::Usage("see the head of exchange.rs".into())),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("exchange: {e}");
            std::process::ExitCode::FAILURE
        }
    }
}

fn number<T: std::str::FromStr + Default>(text: &str) -> T {
    text.parse().unwrap_or_default()
}

/// A key that only this bench has: it is not a secret.
fn secret() -> Secret {
    Secret::from_bytes([42; 32])
}

fn serve(at: &str) -> Result<()> {
    let bind = at.parse().map_err(|e| Error::Usage(format!("{at:?}: {e}")))?;
    let server = Server::start(bind, &secret(), false)?;
    println!("{}", server.addresses()[0]);
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    Ok(())
}

fn connect(me: u32, workers: u32, consistency: Consistency, servers: &[&str]) -> Result<Client> {
    let server = |text: &&str| {
        let (address, share) = text.split_once('=').unwrap_or((text, "1"));
        let address = address.parse().map_err(|e| Error::Usage(format!("{address:?}: {e}")))?;
        Ok(ServerAddress { addresses: vec![address], share: number(share) })
    };
    Client::connect(StoreConfig {
        store: 1,
        me: WorkerId(me),
        workers,
        consistency,
        servers: servers.iter().map(server).collect::<Result<_>>()?,
        secret: secret(),
        tls: false,
        timeout: Duration::from_secs(60),
        connect_timeout: Duration::from_secs(30),
        interrupted: || false,
    })
}

fn work(me: u32, workers: u32, mode: &str, bytes: usize, rounds: u64, servers: &[&str]) -> Result<()> {
    let mut options = mode.split(',');
    let mode = options.next().unwrap_or_default();
    let (mut hiccups, mut code) = (0u64, None);
    for option in options {
        match option.split_once('=') {
            Some(("hiccups", milliseconds)) => hiccups = number(milliseconds),
            Some(("code", compression)) => code = Some(Code::of(&compression.parse()?)?),
            _ => return Err(Error::Usage(format!("{option:?}: see the head of exchange.rs"))),
        }
    }
    let (consistency, rule) = match mode {
        "sum" => (Consistency::Bsp, Rule::Average),
        "adam" => (Consistency::Bsp, Rule::Update),
        bound => (Consistency::Ssp { bound: number(bound) }, Rule::Add),
    };
    let client = connect(me, workers, consistency, servers)?;
    let elements = bytes / 4;
    let spec = KeySpec {
        name: "model".into(),
        dtype: DType::F32,
        rows: elements as u64 / 16,
        width: 16,
        rule,
        striped: false,
        code,
    };
    client.init(spec, None)?;
    if rule == Rule::Update {
        client.set_optimizer(Optimizer::Adam {
            lr: 0.01,
            beta1: 0.9,
            beta2: 0.999,
            eps: 1e-8,
            weight_decay: 0.0,
            decoupled: false,
        })?;
    }
    client.barrier()?;
    let (mut hash, mut value, mut random) = (DefaultHasher::new(), vec![0; elements / 16 * 64], u64::from(me) + 1);
    let begin = Instant::now();
    for round in 0..rounds {
        let start = Instant::now();
        if hiccups > 0 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let times = if (random >> 33) % 20 == 0 { 6 } else { 1 };
            std::thread::sleep(Duration::from_millis(hiccups * times));
        }
        let float = |at: usize| (((at as u64 + 1) * (round + 3) * (u64::from(me) + 7)) % 1009) as f32 / 1009.0 - 0.5;
        let gradient: Vec<u8> = (0..value.len() / 4).flat_map(|at| float(at).to_le_bytes()).collect();
        let exchange = Instant::now();
        client.push("model", &gradient, 0, None)?;
        client.clock()?;
        client.value(&client.pull("model", 0)?, &mut value)?;
        if rule != Rule::Add {
            value.hash(&mut hash);
        }
        println!("round {round} {:.6} {:.6}", exchange.elapsed().as_secs_f64(), start.elapsed().as_secs_f64());
    }
    println!("all {:.6}", begin.elapsed().as_secs_f64());
    println!("hash {:016x} lost {:?}", hash.finish(), client.lost());
    client.close()
}

fn small(me: u32, workers: u32, count: u64, servers: &[&str]) -> Result<()> {
    let client = connect(me, workers, Consistency::Async { staleness_lr: false }, servers)?;
    let spec =
        KeySpec { name: "x".into(), dtype: DType::F32, rows: 1, width: 1, rule: Rule::Add, striped: false, code: None };
    client.init(spec, None)?;
    client.barrier()?;
    let (one, mut value) = (1f32.to_le_bytes(), [0; 4]);
    let begin = Instant::now();
    for _ in 0..count {
        client.push("x", &one, 0, None)?;
        client.value(&client.pull("x", 0)?, &mut value)?;
    }
    println!("alternating {:.0} operations/s", 2.0 * count as f64 / begin.elapsed().as_secs_f64());
    let begin = Instant::now();
    let mut pulls = std::collections::VecDeque::new();
    for _ in 0..count {
        client.push("x", &one, 0, None)?;
        pulls.push_back(client.pull("x", 0)?);
        if pulls.len() > 256
            && let Some(first) = pulls.pop_front()
        {
            client.value(&first, &mut value)?;
        }
    }
    for pull in pulls {
        client.value(&pull, &mut value)?;
    }
    println!("pipelined {:.0} operations/s", 2.0 * count as f64 / begin.elapsed().as_secs_f64());
    client.close()
}
