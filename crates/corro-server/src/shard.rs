//! All decisions of one server about one store: requests in, answers out. Pure: no socket, no clock.
//!
//! The same code runs in servers and, by seed, in the [`crate::simulator`].
//!
//! A key's home is a server; if that is lost, its heir is the next one of the list that is not. What a server owns is also
//! kept by its heir-to-be, its *partner*: changes are sent there before anybody is told of them. The list of lost servers
//! only grows, and whoever learns of one tells it, so all come to the same list.

use std::collections::{BTreeMap, BTreeSet};

use corro_core::{Error, Result};

use crate::consistency::{Clocks, NEVER};
use crate::entry::{Entry, Init, Outbox, Output, Push, Read, row_numbers};
use crate::frame::{Request, Response, Snapshot, StoreSetup};
use crate::optimizer::Optimizer;
use crate::protocol::{Consistency, Key, MAX_SERVERS, MAX_WORKERS, Payload, ServerId, WorkerId};
use crate::table::Change;

/// What begins lines of statistics that say who waits for whom.
pub const WAITS: &str = "waits: ";

/// See the module.
#[derive(Debug)]
pub struct Shard {
    setup: StoreSetup,
    clocks: Clocks,
    barriers: Clocks,
    entries: BTreeMap<Key, Entry>,
    optimizer: Option<Optimizer>,
    lost: BTreeSet<ServerId>,
    /// By the least clock that they wait for.
    reads: BTreeMap<u64, Vec<(Key, Read)>>,
    at_barrier: BTreeMap<u64, Vec<(WorkerId, u64)>>,
    /// Inits that wait for the first value.
    inits: BTreeMap<Key, Vec<(WorkerId, u64)>>,
    outbox: Outbox,
}

/// The one who stands in for `server`: itself, or the next one of the list that is not lost.
pub fn heir(server: ServerId, servers: usize, lost: &BTreeSet<ServerId>) -> Option<ServerId> {
    let servers = servers as u32;
    (0..servers).map(|step| ServerId((server.0 + step) % servers)).find(|s| !lost.contains(s))
}

impl Shard {
    /// One server of a store that nobody has said anything to.
    pub fn new(setup: StoreSetup) -> Result<Self> {
        let servers = setup.servers.len();
        let good = (1..=MAX_WORKERS).contains(&setup.workers) && (1..=MAX_SERVERS).contains(&servers);
        if !good || setup.you.index() >= servers {
            return Err(Error::Malformed(format!("server {} of {servers} for {} workers", setup.you, setup.workers)));
        }
        Ok(Self {
            clocks: Clocks::new(setup.workers),
            barriers: Clocks::new(setup.workers),
            entries: BTreeMap::new(),
            optimizer: None,
            lost: BTreeSet::new(),
            reads: BTreeMap::new(),
            at_barrier: BTreeMap::new(),
            inits: BTreeMap::new(),
            outbox: Outbox::default(),
            setup,
        })
    }

    /// What the store is.
    pub fn setup(&self) -> &StoreSetup {
        &self.setup
    }

    /// What is to be said since the last time.
    pub fn take_output(&mut self) -> Vec<Output> {
        let mut output = std::mem::take(&mut self.outbox.output);
        for said in &mut output {
            // Entries do not know the store that their copies belong to.
            if let Output::Partner(partner, request, _) = said
                && let Request::Restore { key, snapshot, .. } = request
            {
                let setup = StoreSetup { you: *partner, ..self.setup.clone() };
                *request = Request::Copy { setup, key: *key, snapshot: snapshot.clone() };
            }
        }
        output
    }

    /// A worker has come, perhaps again. The error is a reason to send it away.
    pub fn hello(&mut self, setup: &StoreSetup, worker: WorkerId, lost: &[ServerId]) -> Result<()> {
        if setup != &self.setup {
            return Err(Error::Mismatch(format!(
                "worker {worker} has {} workers, {} servers and {:?} in this store, and those before it {}, {} and {:?}",
                setup.workers,
                setup.servers.len(),
                setup.consistency,
                self.setup.workers,
                self.setup.servers.len(),
                self.setup.consistency
            )));
        }
        if worker.0 >= self.setup.workers {
            return Err(Error::Malformed(format!("worker {worker} of {}", self.setup.workers)));
        }
        if self.clocks.has_left(worker) {
            return Err(Error::Usage(format!(
                "worker {worker} has left this store, or was given up after its connection broke: make a new store"
            )));
        }
        for server in lost {
            self.lose(*server);
        }
        let lost = self.lost.iter().copied().collect();
        self.outbox.tell(worker, Response::Welcome { lost });
        Ok(())
    }

    /// A worker says something. Whatever is wrong with it is answered, and affects nobody else.
    pub fn handle(&mut self, worker: WorkerId, request: Request, payload: Payload) {
        if self.clocks.has_left(worker) {
            return self.outbox.count("from those who left");
        }
        match request {
            Request::Init { id, key, name, layout, rule, order, resume } => {
                let init = Init { worker, id, name, layout, rule, order };
                if let Err(e) = self.init(key, &init, resume, &payload) {
                    self.outbox.refuse(worker, id, e.to_string());
                }
            }
            Request::Push { id, key, clock, seen, rate, code } => {
                self.push(key, Push { worker, id, clock, seen, rate, rows: None, code, payload });
            }
            Request::PushRows { id, key, clock, seen, rate, rows } => {
                self.push(key, Push { worker, id, clock, seen, rate, rows: Some(rows), code: None, payload });
            }
            Request::Pull { id, key, clock, have, code } => {
                self.pull(key, Read { worker, id, clock, have, rows: None, code });
            }
            Request::PullRows { id, key, clock, rows } => match row_numbers(&payload, rows) {
                Ok(rows) => self.pull(key, Read { worker, id, clock, have: NEVER, rows: Some(rows), code: None }),
                Err(e) => self.outbox.refuse(worker, id, e.to_string()),
            },
            Request::Clock { clock } => {
                self.clocks.advance(worker, clock.min(NEVER - 1));
                self.wake();
            }
            Request::Barrier { id, number } => {
                self.barriers.advance(worker, number.min(NEVER - 1));
                self.at_barrier.entry(number).or_default().push((worker, id));
                self.wake();
            }
            Request::Optimize { id, optimizer } => self.optimize(worker, id, optimizer),
            Request::Dump { id } => self.dump(worker, id),
            Request::Restore { id, key, snapshot } => match self.restore(key, snapshot, &payload) {
                Ok(()) => self.acknowledge(key, worker, id),
                Err(e) => self.outbox.refuse(worker, id, e.to_string()),
            },
            Request::Stats { id } => self.stats(worker, id),
            Request::Lost { server } => self.lose(server),
            Request::Bye => self.leave(worker),
            Request::Hello { .. } | Request::Partner { .. } | Request::Copy { .. } | Request::Replica { .. } => {
                self.outbox.refuse(worker, 0, "that is not what a worker says in the middle of a talk".into());
            }
        }
    }

    fn init(&mut self, key: Key, init: &Init, resume: bool, value: &[u8]) -> Result<()> {
        init.rule.fits(self.setup.consistency)?;
        if !self.entries.contains_key(&key) {
            if resume && init.rule.owns() {
                return Err(Error::Shutdown(
                    format!(
                        "{:?} is lost: the server that had it and the one that kept its copy are both gone. Load what was saved \
                         last",
                        init.name
                    )
                    .into(),
                ));
            }
            let mut entry = Entry::new(key, init, self.optimizer, self.setup.workers)?;
            entry.kept_by(self.partner(), &mut self.outbox);
            self.entries.insert(key, entry);
        }
        let first = self.clocks.behind(NEVER).first() == Some(&init.worker);
        let Some(entry) = self.entries.get_mut(&key) else { return Ok(()) };
        entry.same(init)?;
        // One whose init is not done has pushed nothing that it would have to push again.
        entry.resumed(init.worker, &mut self.outbox);
        if !entry.is_ready() && (first || resume) {
            entry.begin(value, &mut self.outbox)?;
        }
        self.acknowledge(key, init.worker, init.id);
        Ok(())
    }

    /// Tells a worker that something about a key is done, once it is ready and safe.
    fn acknowledge(&mut self, key: Key, worker: WorkerId, id: u64) {
        let waiting = self.inits.entry(key).or_default();
        waiting.push((worker, id));
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.is_ready()) {
            for (worker, id) in std::mem::take(waiting) {
                entry.acknowledge(worker, id, &mut self.outbox);
            }
            self.inits.remove(&key);
        }
    }

    fn push(&mut self, key: Key, push: Push) {
        self.outbox.count("pushes");
        let (worker, id) = (push.worker, push.id);
        let outcome = match self.entries.get_mut(&key).filter(|entry| entry.copy_of.is_none()) {
            Some(entry) => entry.push(push, self.setup.consistency, &self.clocks, &mut self.outbox),
            None => Err(unknown(key)),
        };
        if let Err(e) = outcome {
            self.outbox.refuse(worker, id, e.to_string());
        }
    }

    fn pull(&mut self, key: Key, mut read: Read) {
        self.outbox.count("pulls");
        let need = self.setup.consistency.needs(read.clock);
        let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.copy_of.is_none()) else {
            return self.outbox.refuse(read.worker, read.id, unknown(key).to_string());
        };
        if self.setup.consistency != Consistency::Bsp {
            read.clock = NEVER;
        }
        if self.clocks.min() < need {
            self.outbox.count("waits");
            self.reads.entry(need).or_default().push((key, read));
            return;
        }
        entry.read(read, &mut self.outbox);
        self.stamp();
    }

    /// Values tell the least clock, which entries do not know.
    fn stamp(&mut self) {
        let min = self.clocks.min();
        for output in &mut self.outbox.output {
            if let Output::Worker(_, Response::Value { min_clock, .. }, _) = output {
                *min_clock = min;
            }
        }
    }

    /// Lets all go on who have waited long enough.
    fn wake(&mut self) {
        let min = self.clocks.min();
        while let Some(first) = self.reads.first_entry().filter(|first| *first.key() <= min) {
            for (key, read) in first.remove() {
                if let Some(entry) = self.entries.get_mut(&key) {
                    entry.read(read, &mut self.outbox);
                }
            }
        }
        let passed = self.barriers.min();
        while let Some(first) = self.at_barrier.first_entry().filter(|first| *first.key() <= passed) {
            for (worker, id) in first.remove() {
                self.outbox.tell(worker, Response::Done { id });
            }
        }
        self.stamp();
    }

    fn optimize(&mut self, worker: WorkerId, id: u64, optimizer: Optimizer) {
        if let Err(e) = optimizer.check() {
            return self.outbox.refuse(worker, id, e.to_string());
        }
        self.optimizer = Some(optimizer);
        for entry in self.entries.values_mut().filter(|entry| entry.copy_of.is_none()) {
            entry.optimize(optimizer, &mut self.outbox);
        }
        self.outbox.tell(worker, Response::Done { id });
    }

    fn dump(&mut self, worker: WorkerId, id: u64) {
        for (key, entry) in self.entries.iter().filter(|(_, entry)| entry.copy_of.is_none() && entry.owns()) {
            let (snapshot, state) = entry.snapshot();
            self.outbox.output.push(Output::Worker(worker, Response::Part { id, key: *key, snapshot }, state));
        }
        self.outbox.tell(worker, Response::Done { id });
    }

    /// Takes a key as a file has it: its rounds begin anew.
    fn restore(&mut self, key: Key, snapshot: Snapshot, state: &[u8]) -> Result<()> {
        snapshot.rule.fits(self.setup.consistency)?;
        let known = self.entries.get(&key).map(|entry| entry.snapshot().0);
        if let Some(known) =
            known.filter(|k| (k.layout, k.rule, &k.name) != (snapshot.layout, snapshot.rule, &snapshot.name))
        {
            return Err(Error::Usage(format!(
                "{:?} was saved as {:?} with the rule {:?}, and is now {:?} with {:?}",
                snapshot.name, snapshot.layout, snapshot.rule, known.layout, known.rule
            )));
        }
        let fresh = Snapshot { version: 0, change: 1, applied: Vec::new(), ..snapshot };
        let mut entry = Entry::from_snapshot(key, &fresh, state, self.setup.workers)?;
        entry.kept_by(self.partner(), &mut self.outbox);
        self.entries.insert(key, entry);
        Ok(())
    }

    fn stats(&mut self, worker: WorkerId, id: u64) {
        let ours = self.entries.values().filter(|entry| entry.copy_of.is_none()).count() as u64;
        let now = [
            ("keys", ours),
            ("copies kept", self.entries.len() as u64 - ours),
            ("workers", self.clocks.living() as u64),
            ("servers lost", self.lost.len() as u64),
        ];
        let counts = self.outbox.counts.iter().map(|(what, count)| (*what, *count)).chain(now);
        let counts = counts.map(|(what, count)| (what.to_owned(), count));
        let counts = counts.chain(self.waits().into_iter().map(|what| (format!("{WAITS}{what}"), 1))).collect();
        self.outbox.tell(worker, Response::Stats { id, counts });
    }

    /// A worker has ended, or is given up: nobody waits for it any more.
    pub fn leave(&mut self, worker: WorkerId) {
        if worker.0 >= self.setup.workers || self.clocks.has_left(worker) {
            return;
        }
        self.clocks.leave(worker);
        self.barriers.leave(worker);
        for reads in self.reads.values_mut() {
            reads.retain(|(_, read)| read.worker != worker);
        }
        for entry in self.entries.values_mut() {
            entry.forget(worker, &mut self.outbox);
            if self.setup.consistency == Consistency::Bsp {
                entry.close_rounds(&self.clocks, &mut self.outbox);
            }
        }
        self.wake();
    }

    /// The server that keeps our copies.
    fn partner(&self) -> Option<ServerId> {
        let servers = self.setup.servers.len();
        heir(ServerId((self.setup.you.0 + 1) % servers as u32), servers, &self.lost)
            .filter(|server| *server != self.setup.you)
    }

    /// A server is lost: its keys are ours if we are its heir, and our copies may need another place.
    pub fn lose(&mut self, server: ServerId) {
        if server.index() >= self.setup.servers.len() || server == self.setup.you || !self.lost.insert(server) {
            return;
        }
        for worker in self.clocks.behind(NEVER) {
            self.outbox.tell(worker, Response::Lost { server });
        }
        let partner = self.partner();
        for entry in self.entries.values_mut() {
            if entry.copy_of.is_some_and(|owner| self.lost.contains(&owner)) {
                self.outbox.counts.entry("inherited").and_modify(|n| *n += 1).or_insert(1);
                entry.inherit(self.clocks.behind(NEVER));
            }
            if entry.copy_of.is_none() {
                entry.kept_by(partner, &mut self.outbox);
            }
        }
        self.stamp();
    }

    /// Another server wants a copy to be kept, or changed. The error is a reason to close its connection.
    pub fn keep(&mut self, owner: ServerId, request: Request, payload: Payload) -> Result<()> {
        if self.lost.contains(&owner) {
            return Err(Error::Usage(format!("server {owner} was given up")));
        }
        let (key, change) = match request {
            Request::Copy { key, snapshot, .. } => {
                let mut entry = Entry::from_snapshot(key, &snapshot, &payload, self.setup.workers)?;
                entry.copy_of = Some(owner);
                self.entries.insert(key, entry);
                (key, snapshot.change)
            }
            Request::Replica { key, version, change: number, rows, rate, scale, pushes } => {
                let entry = self.entries.get_mut(&key).filter(|entry| entry.copy_of == Some(owner));
                let entry = entry.ok_or_else(|| Error::Malformed(format!("a change of {key:?} without a copy")))?;
                entry.follow(version, number, &Change { rows, rate, scale, payload }, &pushes)?;
                (key, number)
            }
            other => return Err(Error::Malformed(format!("server {owner} says {other:?}"))),
        };
        self.outbox.count("changes kept");
        self.outbox.output.push(Output::Server(owner, Response::Kept { key, change }));
        Ok(())
    }

    /// Our partner has kept something.
    pub fn kept(&mut self, by: ServerId, key: Key, change: u64) {
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.kept(by, change, &mut self.outbox);
        }
        self.stamp();
    }

    /// Whether all workers have left.
    pub fn is_over(&self) -> bool {
        self.clocks.living() == 0
    }

    /// What those who wait here wait for, for people.
    pub fn waits(&self) -> Vec<String> {
        let clocks =
            self.reads.keys().map(|need| format!("clock {need} waits for workers {:?}", self.clocks.behind(*need)));
        let barriers = self.at_barrier.keys();
        let barriers = barriers.map(|n| format!("barrier {n} waits for workers {:?}", self.barriers.behind(*n)));
        let rounds = self.entries.values().filter_map(|entry| entry.waits(&self.clocks));
        clocks.chain(barriers).chain(rounds).take(8).collect()
    }
}

fn unknown(key: Key) -> Error {
    Error::Usage(format!(
        "key {:016x} part {} is not here: call init first, on every worker and in the same order",
        key.name, key.part
    ))
}
