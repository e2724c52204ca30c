//! Corro's contestant in the benchmarks: a server of timed rounds. `bench/README.md` has the protocol.
//!
//! ```text
//! corro-rounds --ranks N                                          all ranks on this host
//! corro-rounds --rank R --size N --rendezvous IP:PORT [--tls]     one rank; rank 0 serves the rendezvous there
//! ```
//! Rank 0 reads commands from its standard input and answers in JSON, one line each.

use std::io::BufRead;
use std::net::SocketAddr;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use corro_collectives::{DType, Error, Group, ReduceOp, Reduction, Result};
use corro_core::{Deadline, config};
use corro_transport::secret::Secret;
use corro_transport::{Fabric, Place, Settings, store};

/// Longest command line.
const LINE: usize = 256;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("corro-rounds: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Default)]
struct Options {
    ranks: Option<usize>,
    rank: Option<usize>,
    size: Option<usize>,
    rendezvous: Option<SocketAddr>,
    tls: bool,
}

fn options() -> Result<Options> {
    let mut options = Options::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let bad = |value: &str| Error::Usage(format!("{word} can't be {value:?}"));
        let mut value = || words.next().unwrap_or_default();
        let mut number = || value().parse().map_err(|_| bad("that"));
        match word.as_str() {
            "--ranks" => options.ranks = Some(number()?),
            "--rank" => options.rank = Some(number()?),
            "--size" => options.size = Some(number()?),
            "--rendezvous" => options.rendezvous = Some(value().parse().map_err(|_| bad("that"))?),
            "--tls" => options.tls = true,
            other => return Err(Error::Usage(format!("unknown option {other:?}"))),
        }
    }
    Ok(options)
}

fn run() -> Result<()> {
    // A rank that waits for the next command waits as long as the driver measures others.
    let settings = Settings { timeout: Duration::ZERO, ..Settings::from_env()? };
    if let Some(place) = Place::from_env()? {
        let mut store =
            store::Client::connect(&place.rendezvous, &place.secret, false, Deadline::after(settings.connect_timeout))?;
        let fabric = Fabric::join(place.rank, place.size, &place.secret, &mut store, settings)?;
        return serve(Group::world(&fabric)?);
    }
    let options = options()?;
    if let Some(ranks) = options.ranks {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        return corro_launch::run_local(ranks, |rank| {
            let mut command = Command::new(&program);
            command.stdin(if rank == 0 { Stdio::inherit() } else { Stdio::null() });
            command
        });
    }
    let (Some(rank), Some(size), Some(address)) = (options.rank, options.size, options.rendezvous) else {
        return Err(Error::Usage("give either --ranks, or --rank, --size and --rendezvous".into()));
    };
    let secret = Secret::parse(&config::SECRET.value().ok_or_else(|| Error::Usage("CORRO_SECRET is not set".into()))?)?;
    let _server = match rank {
        0 => Some(store::Server::start(address, &secret, options.tls, store::Limits::default())?),
        _ => None,
    };
    let settings = Settings { tls: options.tls, ..settings };
    let deadline = Deadline::after(settings.connect_timeout);
    let mut store = store::Client::connect(&[address], &secret, options.tls, deadline)?;
    let fabric = Fabric::join(rank, size, &secret, &mut store, settings)?;
    serve(Group::world(&fabric)?)
}

/// What a round is to do.
struct Round {
    bytes: usize,
    iterations: usize,
    warmup: usize,
    zero_copy: bool,
}

impl Round {
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number =
            |i: usize| words.get(i).and_then(|w| w.parse::<usize>().ok()).ok_or(format!("not a command: {line:?}"));
        let zero_copy = match words.get(4) {
            None | Some(&"private") => false,
            Some(&"zero_copy") => true,
            Some(other) => return Err(format!("no such form: {other:?}")),
        };
        let round = Self { bytes: number(1)?, iterations: number(2)?, warmup: number(3)?, zero_copy };
        if words[0] != "allreduce" || !round.bytes.is_multiple_of(4) || round.bytes == 0 || round.iterations == 0 {
            return Err(format!("not a command: {line:?}"));
        }
        Ok(round)
    }
}

fn serve(mut world: Group) -> Result<()> {
    let mut runner = Runner { data: Vec::new(), zero_copy: None };
    if world.rank() == 0 {
        println!(
            "{{\"ready\": true, \"ranks\": {}, \"version\": \"corro {}\"}}",
            world.size(),
            env!("CARGO_PKG_VERSION")
        );
    }
    let mut lines = std::io::stdin().lock().lines();
    loop {
        // Rank 0 tells the others through a broadcast: they sleep in it until then.
        let mut line = [0u8; LINE];
        if world.rank() == 0 {
            let text = lines.next().and_then(std::result::Result::ok).unwrap_or_else(|| "quit".into());
            if text.trim() != "quit"
                && let Err(reason) = Round::parse(&text)
            {
                println!("{{\"error\": \"{}\"}}", reason.replace('"', "'"));
                continue;
            }
            let len = text.len().min(LINE);
            line[..len].copy_from_slice(&text.as_bytes()[..len]);
        }
        world.broadcast(&mut line, 0)?;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches('\0').trim();
        if text == "quit" {
            return world.barrier();
        }
        let round = Round::parse(text).map_err(Error::Bug)?;
        let times = runner.run(&mut world, &round)?;
        answer(&mut world, &round, &times)?;
    }
}

/// Runs rounds on this rank; keeps the buffer of the size asked for last.
struct Runner {
    data: Vec<f32>,
    zero_copy: Option<bool>,
}

impl Runner {
    fn run(&mut self, world: &mut Group, round: &Round) -> Result<Vec<u64>> {
        if self.data.len() * 4 != round.bytes || self.zero_copy != Some(round.zero_copy) {
            self.prepare(world, round)?;
        }
        for _ in 0..round.warmup {
            self.step(world, round)?;
        }
        let mut ends = Vec::with_capacity(round.iterations + 1);
        world.barrier()?;
        ends.push(Instant::now());
        for _ in 0..round.iterations {
            self.step(world, round)?;
            ends.push(Instant::now());
        }
        Ok(ends.windows(2).map(|w| (w[1] - w[0]).as_nanos() as u64).collect())
    }

    fn step(&mut self, world: &mut Group, round: &Round) -> Result<()> {
        if round.zero_copy {
            world.allreduce_shared(0..round.bytes, &Reduction::new(DType::F32, ReduceOp::Sum))
        } else {
            world.allreduce(&mut self.data, ReduceOp::Sum)
        }
    }

    /// Fills the buffer, checks one sum of known values, then leaves zeros: they stay zeros however often they are added.
    fn prepare(&mut self, world: &mut Group, round: &Round) -> Result<()> {
        let (rank, ranks) = (world.rank() as f32, world.size() as f32);
        let pattern = |i: usize| (i % 8) as f32;
        self.zero_copy = Some(round.zero_copy);
        self.data = (0..round.bytes / 4).map(|i| pattern(i) + rank + 1.0).collect();
        if round.zero_copy {
            let bytes = self.data.iter().flat_map(|x| x.to_le_bytes());
            world.shared()[..round.bytes].iter_mut().zip(bytes).for_each(|(to, from)| *to = from);
        }
        self.step(world, round)?;
        if round.zero_copy {
            let shared = &world.shared()[..round.bytes];
            for (to, from) in self.data.iter_mut().zip(shared.chunks_exact(4)) {
                *to = f32::from_le_bytes(from.try_into().unwrap_or_default());
            }
            world.shared()[..round.bytes].fill(0);
        }
        let wrong =
            self.data.iter().enumerate().find(|(i, x)| **x != ranks * pattern(*i) + ranks * (ranks + 1.0) / 2.0);
        if let Some((i, x)) = wrong {
            return Err(Error::Bug(format!("wrong sum of {} bytes: element {i} is {x}", round.bytes)));
        }
        self.data.fill(0.0);
        Ok(())
    }
}

/// Each iteration counts as long as on its slowest rank; the mean is of the whole loop on its slowest rank.
fn answer(world: &mut Group, round: &Round, times: &[u64]) -> Result<()> {
    let all = world.allgather(times)?;
    if world.rank() != 0 {
        return Ok(());
    }
    let ranks: Vec<&[u64]> = all.chunks(times.len()).collect();
    let mut slowest: Vec<f64> =
        (0..times.len()).map(|i| ranks.iter().map(|r| r[i]).max().unwrap_or(0) as f64 / 1000.0).collect();
    slowest.sort_by(f64::total_cmp);
    let n = slowest.len();
    let median = f64::midpoint(slowest[(n - 1) / 2], slowest[n / 2]);
    let mean = ranks.iter().map(|r| r.iter().sum::<u64>()).max().unwrap_or(0) as f64 / 1000.0 / n as f64;
    println!(
        "{{\"op\": \"allreduce\", \"form\": \"{}\", \"bytes\": {}, \"iterations\": {n}, \"median_us\": {median}, \
         \"min_us\": {}, \"p90_us\": {}, \"mean_us\": {mean}}}",
        if round.zero_copy { "zero_copy" } else { "private" },
        round.bytes,
        slowest[0],
        slowest[(n * 9 / 10).min(n - 1)],
    );
    Ok(())
}
