//! Stores in a world that goes wrong, by seed: shards and sessions are the real ones; the network, the workers' programs and
//! time are simulated. Every push is a vector of ones, so a value tells how many pushes are in it.
//!
//! Checked at every read, at clock c, of n workers with the bound s:
//!
//! 1. v is at least c + (n-1) max(0, c-s) (those who died left out) and at most c + (n-1)(c+s+1); all elements are equal;
//! 2. nobody who lives is more than s behind when a step begins;
//! 3. in rounds, v is exactly n c (a sum: n), and at the end always exactly the number of pushes;
//! 4. nobody hangs: whatever is lost, all who live come to their end.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use corro_core::DType;
use corro_core::random::Random;

use crate::code::Code;
use crate::entry::Output;
use crate::frame::{Request, Response, StoreSetup};
use crate::protocol::{Consistency, Payload, Rule, ServerId, WorkerId};
use crate::session::{Answer, KeySpec, Session};
use crate::shard::Shard;

/// How a run went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Values that were checked.
    pub reads: u64,
    /// Servers that died.
    pub servers_lost: u64,
    /// Workers that died.
    pub workers_lost: u64,
}

/// What a run is like.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// How many workers.
    pub workers: u32,
    /// How many servers.
    pub servers: u32,
    /// How many keys.
    pub keys: u32,
    /// How many steps each worker makes.
    pub steps: u64,
    /// How far they may drift apart.
    pub consistency: Consistency,
    /// What pushes do.
    pub rule: Rule,
    /// How many servers die.
    pub server_deaths: u32,
    /// How many workers die.
    pub worker_deaths: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A worker goes on.
    Worker(WorkerId),
    /// The next frame of a link arrives.
    Arrive(Link),
    KillServer,
    KillWorker,
    /// Somebody notices that a server has died.
    WorkerNotices(WorkerId, ServerId),
    ServerNotices(ServerId, ServerId),
    /// A server gives a worker up.
    Cut(ServerId, WorkerId),
}

/// One direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Link {
    Up(WorkerId, ServerId),
    Down(ServerId, WorkerId),
    /// To a partner, and back.
    Copy(ServerId, ServerId),
    Kept(ServerId, ServerId),
}

#[derive(Clone, Debug)]
enum Said {
    Request(Request, Payload),
    Response(Response, Payload),
}

struct Worker {
    session: Session,
    alive: bool,
    finished: bool,
    /// Steps that are done, and pushes that were made of each key.
    steps: u64,
    waiting: Vec<u64>,
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Init,
    Step,
    Read,
    Settle,
    LastRead,
    /// Whoever leaves must know that nobody needs it to make a lost sum again.
    Farewell,
    Over,
}

struct World {
    setting: Setting,
    random: Random,
    now: u64,
    order: u64,
    queue: BinaryHeap<Reverse<(u64, u64, Event)>>,
    /// What is under way on each link, and when the last of it arrives.
    links: Vec<(Link, VecDeque<Said>, u64)>,
    servers: Vec<Option<Shard>>,
    workers: Vec<Worker>,
    report: Report,
}

/// The setting of a seed: the bounds 0, 1, 5 and none by turns, and sums in rounds.
pub fn setting(seed: u64) -> Setting {
    let mut random = Random::new(seed ^ 0x5e77);
    let (consistency, rule) = match seed % 6 {
        0 => (Consistency::Ssp { bound: 0 }, Rule::Add),
        1 => (Consistency::Ssp { bound: 1 }, Rule::Add),
        2 => (Consistency::Ssp { bound: 5 }, Rule::Add),
        3 => (Consistency::Async { staleness_lr: random.below_u64(2) == 0 }, Rule::Add),
        4 => (Consistency::Bsp, Rule::Add),
        _ => (Consistency::Bsp, Rule::Sum),
    };
    let servers = 1 + random.below_u64(3) as u32;
    // Enough of them for the bound to bite.
    let bound = if seed % 6 == 2 { 5 } else { 0 };
    Setting {
        workers: 256,
        servers,
        keys: 1 + u32::from(random.below_u64(3) == 0),
        steps: 2 + bound + u64::from(random.below_u64(4) == 0),
        consistency,
        rule,
        // One at a time keeps every copy; a second death before the copies are made anew may not.
        server_deaths: u32::from(servers > 1 && random.below_u64(2) == 0),
        worker_deaths: if random.below_u64(4) == 0 { 1 + random.below_u64(3) as u32 } else { 0 },
    }
}

/// Lives through a setting. The error says which promise was broken.
pub fn run(seed: u64, setting: Setting) -> Result<Report, String> {
    World::new(seed, setting).and_then(World::run).map_err(|broken| format!("seed {seed}: {broken} ({setting:?})"))
}

fn key(at: u32) -> String {
    format!("key {at}")
}

fn ones() -> Vec<u8> {
    [1.0f32; 3].iter().flat_map(|f| f.to_le_bytes()).collect()
}

fn links(workers: u32, servers: u32) -> Vec<(Link, VecDeque<Said>, u64)> {
    let with_workers = || WorkerId::all(workers).flat_map(move |a| ServerId::all(servers).map(move |b| (a, b)));
    let with_servers = || ServerId::all(servers).flat_map(move |a| ServerId::all(servers).map(move |b| (a, b)));
    let up = with_workers().map(|(worker, server)| Link::Up(worker, server));
    let down = with_workers().map(|(worker, server)| Link::Down(server, worker));
    let copies = with_servers().map(|(from, to)| Link::Copy(from, to));
    let kept = with_servers().map(|(from, to)| Link::Kept(from, to));
    up.chain(down).chain(copies).chain(kept).map(|link| (link, VecDeque::new(), 0)).collect()
}

impl World {
    fn new(seed: u64, setting: Setting) -> Result<Self, String> {
        let address = |port| vec![std::net::SocketAddr::from(([127, 0, 0, 1], port))];
        let setup = |you| StoreSetup {
            store: 1,
            workers: setting.workers,
            consistency: setting.consistency,
            servers: (0..setting.servers as u16).map(address).collect(),
            you,
        };
        let servers: Result<Vec<_>, _> =
            ServerId::all(setting.servers).map(|you| Shard::new(setup(you)).map(Some)).collect();
        let worker = |me| Worker {
            session: Session::new(me, setup(ServerId::FIRST), vec![1.0; setting.servers as usize]),
            alive: true,
            finished: false,
            steps: 0,
            waiting: Vec::new(),
            phase: Phase::Init,
        };
        let mut world = Self {
            setting,
            random: Random::new(seed),
            now: 0,
            order: 0,
            queue: BinaryHeap::new(),
            links: links(setting.workers, setting.servers),
            servers: servers.map_err(|e| e.to_string())?,
            workers: WorkerId::all(setting.workers).map(worker).collect(),
            report: Report::default(),
        };
        for worker in WorkerId::all(setting.workers) {
            for server in ServerId::all(setting.servers) {
                let hello = world.workers[worker.index()].session.hello(server);
                world.send(Link::Up(worker, server), Said::Request(hello, Payload::default()));
            }
            world.soon(1000, Event::Worker(worker));
        }
        for (deaths, event) in [(setting.server_deaths, Event::KillServer), (setting.worker_deaths, Event::KillWorker)]
        {
            for _ in 0..deaths {
                let at = 200 + world.random.below_u64(400 * (2 + setting.steps));
                world.at(at, event);
            }
        }
        Ok(world)
    }

    fn at(&mut self, time: u64, event: Event) {
        self.order += 1;
        self.queue.push(Reverse((time, self.order, event)));
    }

    fn soon(&mut self, most: u64, event: Event) {
        let time = self.now + 1 + self.random.below_u64(most);
        self.at(time, event);
    }

    /// Where a link is in the list of [`links`].
    fn place(&self, link: Link) -> usize {
        let (workers, servers) = (self.setting.workers as usize, self.setting.servers as usize);
        let (kind, pair) = match link {
            Link::Up(worker, server) => (0, worker.index() * servers + server.index()),
            Link::Down(server, worker) => (workers * servers, worker.index() * servers + server.index()),
            Link::Copy(from, to) => (2 * workers * servers, from.index() * servers + to.index()),
            Link::Kept(from, to) => ((2 * workers + servers) * servers, from.index() * servers + to.index()),
        };
        kind + pair
    }

    /// Frames of one connection arrive in the order in which they were sent.
    fn send(&mut self, link: Link, said: Said) {
        let slow = if self.random.below_u64(20) == 0 { 300 } else { 30 };
        let delay = 1 + self.random.below_u64(slow);
        let at = self.place(link);
        let (_, frames, last) = &mut self.links[at];
        *last = (*last).max(self.now + delay);
        frames.push_back(said);
        let at = *last;
        self.at(at, Event::Arrive(link));
    }

    fn run(mut self) -> Result<Report, String> {
        let limit = 100_000_000;
        while let Some(Reverse((time, _, event))) = self.queue.pop() {
            self.now = time;
            if self.order > limit {
                return Err("it never ends".into());
            }
            self.happen(event)?;
        }
        let hangs = |worker: &Worker| worker.alive && !worker.finished;
        if let Some((at, worker)) = self.workers.iter().enumerate().find(|(_, worker)| hangs(worker)) {
            let waits: Vec<String> = self.servers.iter().flatten().flat_map(Shard::waits).collect();
            return Err(format!(
                "worker {at} hangs in {:?} after {} steps, {} unacknowledged; servers: {waits:?}",
                worker.phase,
                worker.steps,
                worker.session.unacknowledged()
            ));
        }
        Ok(self.report)
    }

    fn happen(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Worker(worker) => self.go_on(worker)?,
            Event::Arrive(link) => self.arrive(link)?,
            Event::KillServer => self.kill_server(),
            Event::KillWorker => self.kill_worker(),
            Event::WorkerNotices(worker, server) => {
                if self.workers[worker.index()].alive {
                    self.workers[worker.index()].session.lose(server);
                    self.pump_worker(worker);
                }
            }
            Event::ServerNotices(server, lost) => {
                if let Some(shard) = &mut self.servers[server.index()] {
                    shard.lose(lost);
                }
                self.pump_server(server);
            }
            Event::Cut(server, worker) => {
                if let Some(shard) = &mut self.servers[server.index()] {
                    shard.leave(worker);
                }
                self.pump_server(server);
            }
        }
        Ok(())
    }

    fn arrive(&mut self, link: Link) -> Result<(), String> {
        let at = self.place(link);
        let Some(said) = self.links[at].1.pop_front() else { return Ok(()) };
        let wrong = |e: corro_core::Error| format!("{link:?}: {e}");
        match (link, said) {
            (Link::Up(worker, server), Said::Request(request, payload)) => {
                let Some(shard) = &mut self.servers[server.index()] else { return Ok(()) };
                match request {
                    Request::Hello { setup, worker, lost } => shard.hello(&setup, worker, &lost).map_err(wrong)?,
                    request => shard.handle(worker, request, payload),
                }
                self.pump_server(server);
            }
            (Link::Down(server, worker), Said::Response(response, payload)) if self.workers[worker.index()].alive => {
                if let Response::Refused { why, .. } = &response {
                    return Err(format!("server {server} refuses worker {worker}: {why}"));
                }
                let worker_of = &mut self.workers[worker.index()];
                worker_of.session.hear(server, response, payload).map_err(wrong)?;
                self.pump_worker(worker);
                self.go_on(worker)?;
            }
            (Link::Copy(from, to), Said::Request(request, payload)) => {
                let Some(shard) = &mut self.servers[to.index()] else { return Ok(()) };
                let kept = shard.keep(from, request, payload).map_err(wrong);
                // The last words of a dead server come when its keys have an heir already.
                kept.or_else(|broken| if self.servers[from.index()].is_none() { Ok(()) } else { Err(broken) })?;
                self.pump_server(to);
            }
            (Link::Kept(from, to), Said::Response(Response::Kept { key, change }, _)) => {
                let Some(shard) = &mut self.servers[to.index()] else { return Ok(()) };
                shard.kept(from, key, change);
                self.pump_server(to);
            }
            _ => {}
        }
        Ok(())
    }

    fn pump_server(&mut self, server: ServerId) {
        let Some(shard) = &mut self.servers[server.index()] else { return };
        for output in shard.take_output() {
            match output {
                Output::Worker(worker, response, payload) => {
                    self.send(Link::Down(server, worker), Said::Response(response, payload));
                }
                Output::Partner(to, request, payload) => {
                    self.send(Link::Copy(server, to), Said::Request(request, payload));
                }
                Output::Server(to, response) => {
                    self.send(Link::Kept(server, to), Said::Response(response, Payload::default()));
                }
            }
        }
    }

    fn pump_worker(&mut self, worker: WorkerId) {
        for server in ServerId::all(self.setting.servers) {
            while let Some((request, payload)) = self.workers[worker.index()].session.take(server) {
                self.send(Link::Up(worker, server), Said::Request(request, payload));
            }
        }
    }

    /// What a dead process had sent may have left its host, or not.
    fn cut_links(&mut self, of: impl Fn(&Link) -> bool) {
        for (_, frames, _) in self.links.iter_mut().filter(|(link, ..)| of(link)) {
            frames.truncate(self.random.below_u64(frames.len() as u64 + 1) as usize);
        }
    }

    fn kill_server(&mut self) {
        let living: Vec<ServerId> =
            ServerId::all(self.setting.servers).filter(|s| self.servers[s.index()].is_some()).collect();
        if living.len() < 2 {
            return;
        }
        let server = living[self.random.below_u64(living.len() as u64) as usize];
        self.servers[server.index()] = None;
        self.report.servers_lost += 1;
        self.cut_links(|link| matches!(link, Link::Down(s, _) | Link::Copy(s, _) | Link::Kept(s, _) if *s == server));
        for worker in WorkerId::all(self.setting.workers) {
            self.soon(400, Event::WorkerNotices(worker, server));
        }
        for other in living.into_iter().filter(|other| *other != server) {
            self.soon(400, Event::ServerNotices(other, server));
        }
    }

    fn kill_worker(&mut self) {
        let at = self.random.below_u64(u64::from(self.setting.workers)) as usize;
        let worker = &mut self.workers[at];
        // One that has begun; who dies before that is the launcher's business.
        if !worker.alive || worker.finished || worker.phase == Phase::Init {
            return;
        }
        worker.alive = false;
        self.report.workers_lost += 1;
        self.cut_links(|link| matches!(link, Link::Up(w, _) if w.index() == at));
        for server in ServerId::all(self.setting.servers) {
            let time = self.now + 500 + self.random.below_u64(100);
            self.at(time, Event::Cut(server, WorkerId(at as u32)));
        }
    }

    /// A worker's program: init, then steps of push, clock, read; at the end everybody meets and reads once more.
    fn go_on(&mut self, me: WorkerId) -> Result<(), String> {
        let setting = self.setting;
        loop {
            let worker = &mut self.workers[me.index()];
            if !worker.alive || worker.finished || worker.waiting.iter().any(|id| worker.session.asked(*id).is_some()) {
                if self.collect(me)? {
                    continue;
                }
                return Ok(());
            }
            worker.waiting.clear();
            let wrong = |e: corro_core::Error| e.to_string();
            match worker.phase {
                Phase::Init => {
                    for at in 0..setting.keys {
                        let (rule, dtype) = (setting.rule, DType::F32);
                        // Ones are ones in 16 bits too, and what a code leaves out of them is nothing.
                        let code = (at % 2 == 1).then_some(Code::Half { brain: false });
                        let spec =
                            KeySpec { name: key(at), dtype, rows: 3, width: 1, rule, striped: at % 2 == 1, code };
                        worker.waiting.extend(worker.session.init(spec, None).map_err(wrong)?);
                    }
                    worker.phase = Phase::Step;
                }
                Phase::Step if worker.steps == setting.steps => worker.phase = Phase::Settle,
                Phase::Step => {
                    for at in 0..setting.keys {
                        worker.session.push(&key(at), &ones(), i64::from(at), None).map_err(wrong)?;
                    }
                    worker.session.clock().map_err(wrong)?;
                    worker.steps += 1;
                    worker.phase = Phase::Read;
                    // Some steps take longer.
                    let time = if self.random.below_u64(20) == 0 { 600 } else { 100 };
                    self.pump_worker(me);
                    self.soon(time, Event::Worker(me));
                    return Ok(());
                }
                Phase::Read | Phase::LastRead => {
                    for at in 0..setting.keys {
                        worker.waiting.extend(worker.session.pull(&key(at), i64::from(at)).map_err(wrong)?);
                    }
                    worker.phase = if worker.phase == Phase::Read { Phase::Step } else { Phase::Farewell };
                }
                Phase::Settle if worker.session.unacknowledged() > 0 => {
                    self.pump_worker(me);
                    return Ok(());
                }
                Phase::Settle => {
                    worker.waiting.push(worker.session.barrier().map_err(wrong)?);
                    worker.phase = Phase::LastRead;
                }
                Phase::Farewell => {
                    worker.waiting.push(worker.session.barrier().map_err(wrong)?);
                    worker.phase = Phase::Over;
                }
                Phase::Over => {
                    worker.finished = true;
                    worker.session.bye();
                }
            }
            self.pump_worker(me);
        }
    }

    /// Takes the answers that have come; true when all have, and the worker may go on.
    fn collect(&mut self, me: WorkerId) -> Result<bool, String> {
        let worker = &mut self.workers[me.index()];
        if !worker.alive || worker.finished {
            return Ok(false);
        }
        let mut values = Vec::new();
        let Worker { waiting, session, .. } = worker;
        let mut failed = None;
        waiting.retain(|id| match session.answer(*id) {
            None => true,
            Some(Ok(Answer::Value(value, contributors))) => {
                values.push((value, contributors));
                false
            }
            Some(Err(e)) => {
                failed = Some(e.to_string());
                false
            }
            Some(Ok(_)) => false,
        });
        let all = waiting.is_empty();
        if let Some(failed) = failed {
            return Err(format!("worker {me}: {failed}"));
        }
        for (value, contributors) in values {
            self.check(me, &value, contributors)?;
        }
        Ok(all)
    }

    fn check(&mut self, me: WorkerId, value: &[u8], contributors: u32) -> Result<(), String> {
        self.report.reads += 1;
        let floats: Vec<f32> = value.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect();
        let v = f64::from(floats[0]);
        let Setting { workers, consistency, rule, .. } = self.setting;
        let (n, c) = (f64::from(workers), self.workers[me.index()].steps);
        let fail = |why: String| Err(format!("worker {me} at clock {c} reads {floats:?}: {why}"));
        if floats.iter().any(|f| *f != floats[0]) {
            return fail("elements differ".into());
        }
        let others = || self.workers.iter().enumerate().filter(|(at, _)| *at != me.index()).map(|(_, worker)| worker);
        let deaths = self.report.workers_lost > 0;
        let at_the_end = self.workers[me.index()].phase == Phase::Farewell;
        if rule == Rule::Sum {
            let good = v == f64::from(contributors) && (deaths || v == n);
            return if good { Ok(()) } else { fail(format!("{contributors} workers of {n}")) };
        }
        let bound = match consistency {
            Consistency::Bsp => Some(0),
            Consistency::Ssp { bound } => Some(bound),
            Consistency::Async { .. } => None,
        };
        let behind = bound.map_or(0, |s| c.saturating_sub(s));
        let (mut least, mut most) = (c, c);
        for worker in others() {
            if worker.alive && worker.steps < behind {
                return fail(format!("another is at {}", worker.steps));
            }
            least += if worker.alive { behind } else { 0 };
            most += match (consistency, bound) {
                (Consistency::Bsp, _) => c,
                (_, Some(s)) => worker.steps.min(c + s + 1),
                (_, None) => worker.steps,
            };
        }
        if v < least as f64 || v > most as f64 {
            return fail(format!("it must be from {least} to {most}"));
        }
        let total = n * self.setting.steps as f64;
        if at_the_end && !deaths && v != total {
            return fail(format!("at the end it must be {total}"));
        }
        if consistency == Consistency::Bsp && !deaths && v != n * c as f64 {
            return fail(format!("after {c} rounds it must be {}", n * c as f64));
        }
        Ok(())
    }
}
