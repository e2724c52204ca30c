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

use corro_collectives::{DType, Error, Group, ReduceOp, Reduction, Result, Tensor};
use corro_core::{Deadline, Rank, config};
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
    rank: Option<Rank>,
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
            "--rank" => options.rank = Some(Rank::new(number()?)),
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
        return serve(Group::world(&Fabric::at(&place, settings)?)?);
    }
    let options = options()?;
    if let Some(ranks) = options.ranks {
        let program = std::env::current_exe().map_err(|e| Error::io("finding this program", e))?;
        return corro_launch::run_local(ranks, |rank| {
            let mut command = Command::new(&program);
            command.stdin(if rank == Rank::ZERO { Stdio::inherit() } else { Stdio::null() });
            command
        });
    }
    let (Some(rank), Some(size), Some(address)) = (options.rank, options.size, options.rendezvous) else {
        return Err(Error::Usage("give either --ranks, or --rank, --size and --rendezvous".into()));
    };
    let secret = Secret::parse(&config::SECRET.value().ok_or_else(|| Error::Usage("CORRO_SECRET is not set".into()))?)?;
    let _server = match rank {
        Rank::ZERO => Some(store::Server::start(address, &secret, options.tls, store::Limits::default())?),
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
    form: Form,
}

/// Where the data is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// In memory of each rank's own, and the result takes its place.
    Private,
    /// The same, but the result goes elsewhere.
    Apart,
    /// In the shared area.
    ZeroCopy,
}

impl Form {
    const ALL: [(&str, Self); 3] = [("private", Self::Private), ("apart", Self::Apart), ("zero_copy", Self::ZeroCopy)];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(_, form)| *form == self).map_or("", |(name, _)| name)
    }
}

impl Round {
    fn parse(line: &str) -> Result<Self, String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let number =
            |i: usize| words.get(i).and_then(|w| w.parse::<usize>().ok()).ok_or(format!("not a command: {line:?}"));
        let form = words
            .get(4)
            .map_or(Some(Form::Private), |word| Form::ALL.iter().find(|(name, _)| name == word).map(|(_, form)| *form));
        let form = form.ok_or_else(|| format!("no such form: {line:?}"))?;
        let round = Self { bytes: number(1)?, iterations: number(2)?, warmup: number(3)?, form };
        if words[0] != "allreduce" || !round.bytes.is_multiple_of(4) || round.bytes == 0 || round.iterations == 0 {
            return Err(format!("not a command: {line:?}"));
        }
        Ok(round)
    }
}

fn serve(mut world: Group) -> Result<()> {
    let mut runner = Runner { data: Vec::new(), result: Vec::new(), shared: 0 };
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

/// Runs rounds on this rank; keeps the buffers of the sizes asked for last.
struct Runner {
    data: Vec<f32>,
    /// Where results go that go elsewhere.
    result: Vec<f32>,
    /// Bytes in use in the shared area.
    shared: usize,
}

impl Runner {
    fn run(&mut self, world: &mut Group, round: &Round) -> Result<Vec<u64>> {
        let len = round.bytes / 4;
        match round.form {
            Form::ZeroCopy if self.shared != round.bytes => self.prepare_shared(world, round)?,
            Form::Private if self.data.len() != len || !self.result.is_empty() => {
                self.result = Vec::new();
                self.prepare_private(world, round)?;
            }
            Form::Apart if self.data.len() != len || self.result.len() != len => {
                self.result = buffer_like_numpy(len);
                self.prepare_private(world, round)?;
            }
            _ => {}
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
        let how = Reduction::new(DType::F32, ReduceOp::Sum);
        match round.form {
            Form::ZeroCopy => world.allreduce_shared(0..round.bytes, &how),
            Form::Private => world.allreduce(&mut self.data, ReduceOp::Sum),
            Form::Apart => world.allreduce_many(
                &mut [Tensor::apart(bytemuck::cast_slice(&self.data), bytemuck::cast_slice_mut(&mut self.result))],
                &how,
            ),
        }
    }

    /// Fills the private buffer, checks one sum of known values, then leaves zeros: they stay zeros however often they
    /// are added.
    fn prepare_private(&mut self, world: &mut Group, round: &Round) -> Result<()> {
        let rank = world.rank();
        self.data = buffer_like_numpy(round.bytes / 4);
        self.data.iter_mut().enumerate().for_each(|(i, x)| *x = brought(rank, i));
        self.step(world, round)?;
        let sums = if round.form == Form::Apart { &self.result } else { &self.data };
        check(sums.iter().copied(), world.size())?;
        self.data.fill(0.0);
        Ok(())
    }

    /// The same for the shared area.
    fn prepare_shared(&mut self, world: &mut Group, round: &Round) -> Result<()> {
        let (rank, size) = (world.rank(), world.size());
        for (i, bytes) in world.shared()[..round.bytes].chunks_exact_mut(4).enumerate() {
            bytes.copy_from_slice(&brought(rank, i).to_le_bytes());
        }
        self.step(world, round)?;
        let shared = &mut world.shared()[..round.bytes];
        check(shared.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap_or_default())), size)?;
        shared.fill(0);
        self.shared = round.bytes;
        Ok(())
    }
}

/// What a rank puts into element `i` before the first, checked sum.
fn brought(rank: usize, i: usize) -> f32 {
    ((i % 8) + rank + 1) as f32
}

fn check(sums: impl Iterator<Item = f32>, ranks: usize) -> Result<()> {
    let wanted = |i: usize| (ranks * (i % 8) + ranks * (ranks + 1) / 2) as f32;
    match sums.enumerate().find(|(i, x)| *x != wanted(*i)) {
        Some((i, x)) => Err(Error::Bug(format!("wrong sum: element {i} is {x}, not {}", wanted(i)))),
        None => Ok(()),
    }
}

/// Numpy asks for huge pages from 4 MiB up, so the peers' buffers have them; ours must too, or memory is what is compared.
#[expect(unsafe_code, reason = "advice about memory this program owns")]
fn buffer_like_numpy(len: usize) -> Vec<f32> {
    const PAGE: usize = 2 << 20;
    let mut buffer: Vec<f32> = Vec::with_capacity(len);
    let start = (buffer.as_mut_ptr() as usize).next_multiple_of(PAGE);
    let end = (buffer.as_ptr() as usize + len * 4) / PAGE * PAGE;
    if len * 4 >= 4 << 20 && end > start {
        // SAFETY: the range lies inside the buffer's own memory, and the advice changes no byte of it.
        let _ = unsafe { rustix::mm::madvise(start as *mut _, end - start, rustix::mm::Advice::LinuxHugepage) };
    }
    buffer.resize(len, 0.0);
    buffer
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
        round.form.name(),
        round.bytes,
        slowest[0],
        slowest[(n * 9 / 10).min(n - 1)],
    );
    Ok(())
}
