//! One part of a key at a server: its value, the pushes that are not in it yet, and who waits for it.
//!
//! Pure. What is to be said goes to a [`Outbox`]. Nothing is acknowledged, and no value is given, before the partner that
//! keeps a copy has said that it has it: what a worker was told is never lost with one server.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use corro_core::{DType, Error, Result};

use crate::code::Code;
use crate::consistency::{Clocks, MAX_AHEAD, Rounds};
use crate::frame::{Request, Response, Snapshot};
use crate::optimizer::Optimizer;
use crate::protocol::{Consistency, Key, Layout, Payload, Rule, ServerId, WorkerId};
use crate::table::{self, Change, Table, split_rows};

/// What a shard wants to be said.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// To a worker.
    Worker(WorkerId, Response, Payload),
    /// To the server that keeps our copies.
    Partner(ServerId, Request, Payload),
    /// To a server whose copies we keep.
    Server(ServerId, Response),
}

/// Where a shard puts what is to be said, and what it has counted.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// In this order.
    pub(crate) output: Vec<Output>,
    /// By what was counted.
    pub(crate) counts: BTreeMap<&'static str, u64>,
}

impl Outbox {
    /// One more of something.
    pub(crate) fn count(&mut self, what: &'static str) {
        *self.counts.entry(what).or_default() += 1;
    }

    pub(crate) fn tell(&mut self, worker: WorkerId, response: Response) {
        self.output.push(Output::Worker(worker, response, Payload::default()));
    }

    /// Says no.
    pub(crate) fn refuse(&mut self, worker: WorkerId, id: u64, why: String) {
        self.count("refused");
        self.tell(worker, Response::Refused { id, why });
    }
}

/// A question that waits for its answer.
#[derive(Clone, Debug)]
pub(crate) struct Read {
    pub(crate) worker: WorkerId,
    pub(crate) id: u64,
    /// In rounds, the round that must be in it; else the clock of the reader.
    pub(crate) clock: u64,
    /// The version that the reader has.
    pub(crate) have: u64,
    /// Row numbers; none: all of it.
    pub(crate) rows: Option<Vec<u64>>,
    /// How it wants all of it.
    pub(crate) code: Option<Code>,
}

impl Read {
    /// Reads of the other kinds have waited for their clock before they came here.
    const fn is_in_rounds(&self) -> bool {
        self.clock != u64::MAX
    }
}

/// A push.
#[derive(Clone, Debug)]
pub(crate) struct Push {
    pub(crate) worker: WorkerId,
    pub(crate) id: u64,
    pub(crate) clock: u64,
    pub(crate) seen: u64,
    pub(crate) rate: Option<f32>,
    pub(crate) rows: Option<u32>,
    /// How the payload is to be read.
    pub(crate) code: Option<Code>,
    pub(crate) payload: Payload,
}

/// What came with an init.
#[derive(Clone, Debug)]
pub(crate) struct Init {
    pub(crate) worker: WorkerId,
    pub(crate) id: u64,
    pub(crate) name: String,
    pub(crate) layout: Layout,
    pub(crate) rule: Rule,
    /// What the worker has named before, as a number.
    pub(crate) order: u64,
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Entry {
    key: Key,
    name: String,
    layout: Layout,
    rule: Rule,
    order: Option<u64>,
    table: Table,
    /// The value as it was last asked for.
    published: Option<Payload>,
    /// The same in a code.
    coded: Option<(Code, Payload)>,
    /// Whether the first value has come.
    ready: bool,
    /// The server whose copy this is; none: it is ours.
    pub(crate) copy_of: Option<ServerId>,
    version: u64,
    change: u64,
    /// The last change that the partner has, or that needs none.
    safe: u64,
    partner: Option<ServerId>,
    contributors: u32,
    rounds: Rounds<Push>,
    applied: Vec<u64>,
    /// Of an inherited one: who has not sent again what the lost server may not have told us.
    unresumed: BTreeSet<WorkerId>,
    /// Wait for a round, for the first value, or for those who have not resumed.
    reads: Vec<Read>,
    /// Wait until a change is safe.
    held: VecDeque<(u64, Read)>,
    acks: VecDeque<(u64, WorkerId, u64)>,
}

impl Entry {
    pub(crate) fn new(key: Key, init: &Init, optimizer: Option<Optimizer>, workers: u32) -> Result<Self> {
        let table = Table::new(init.layout, init.rule, optimizer, &[])?;
        Ok(Self::with_table(key, init.name.clone(), init.layout, init.rule, Some(init.order), table, workers))
    }

    fn with_table(
        key: Key,
        name: String,
        layout: Layout,
        rule: Rule,
        order: Option<u64>,
        table: Table,
        workers: u32,
    ) -> Self {
        Self {
            key,
            name,
            layout,
            rule,
            order,
            table,
            published: None,
            coded: None,
            ready: false,
            copy_of: None,
            version: 0,
            change: 0,
            safe: 0,
            partner: None,
            contributors: 0,
            rounds: Rounds::default(),
            applied: vec![0; workers as usize],
            unresumed: BTreeSet::new(),
            reads: Vec::new(),
            held: VecDeque::new(),
            acks: VecDeque::new(),
        }
    }

    /// As another server, or a file, has told.
    pub(crate) fn from_snapshot(key: Key, snapshot: &Snapshot, state: &[u8], workers: u32) -> Result<Self> {
        let progress = (snapshot.step, snapshot.optimizer);
        let table = Table::restored(snapshot.layout, snapshot.rule, progress, state)?;
        let mut entry =
            Self::with_table(key, snapshot.name.clone(), snapshot.layout, snapshot.rule, None, table, workers);
        (entry.version, entry.change, entry.ready) = (snapshot.version, snapshot.change, true);
        for (mine, theirs) in entry.applied.iter_mut().zip(&snapshot.applied) {
            *mine = *theirs;
        }
        Ok(entry)
    }

    pub(crate) fn snapshot(&self) -> (Snapshot, Payload) {
        let (step, optimizer) = self.table.progress();
        let snapshot = Snapshot {
            name: self.name.clone(),
            layout: self.layout,
            rule: self.rule,
            version: self.version,
            change: self.change,
            step,
            optimizer,
            applied: self.applied.clone(),
        };
        (snapshot, self.table.state())
    }

    pub(crate) const fn owns(&self) -> bool {
        self.rule.owns()
    }

    pub(crate) const fn is_ready(&self) -> bool {
        self.ready
    }

    /// Whether an init is of this very key.
    pub(crate) fn same(&mut self, init: &Init) -> Result<()> {
        let differs = |what: &str| {
            Err(Error::Mismatch(format!(
                "worker {} names {:?} with {what} than the others: every worker must call init with the same keys in the same \
                 order",
                init.worker, init.name
            )))
        };
        if self.name != init.name {
            return Err(Error::Usage(format!(
                "the names {:?} and {:?} have the same hash: rename one of them",
                self.name, init.name
            )));
        }
        if self.layout != init.layout {
            return differs("another shape or dtype");
        }
        if self.rule != init.rule {
            return differs("another rule");
        }
        if *self.order.get_or_insert(init.order) != init.order {
            return differs("other keys before it");
        }
        Ok(())
    }

    /// The first value has come.
    pub(crate) fn begin(&mut self, value: &[u8], outbox: &mut Outbox) -> Result<()> {
        let (_, optimizer) = self.table.progress();
        self.table = Table::new(self.layout, self.rule, optimizer, value)?;
        self.ready = true;
        self.changed();
        self.copy(outbox);
        for read in std::mem::take(&mut self.reads) {
            self.read(read, outbox);
        }
        Ok(())
    }

    /// Tells `worker` that `id` is done once everything up to now is safe.
    pub(crate) fn acknowledge(&mut self, worker: WorkerId, id: u64, outbox: &mut Outbox) {
        self.acks.push_back((self.change, worker, id));
        self.flush(outbox);
    }

    fn changed(&mut self) {
        self.change += 1;
        (self.published, self.coded) = (None, None);
    }

    /// Updates with another optimizer from now on.
    pub(crate) fn optimize(&mut self, optimizer: Optimizer, outbox: &mut Outbox) {
        if self.rule == Rule::Update && self.table.progress().1 != Some(optimizer) {
            self.table.optimize(Some(optimizer));
            self.changed();
            self.copy(outbox);
        }
    }

    /// From now on this server keeps our copy; none: nobody does.
    pub(crate) fn kept_by(&mut self, partner: Option<ServerId>, outbox: &mut Outbox) {
        let partner = partner.filter(|_| self.owns());
        if self.partner != partner || partner.is_none() {
            self.partner = partner;
            self.copy(outbox);
        }
        self.flush(outbox);
    }

    /// Sends all of it to the partner.
    fn copy(&mut self, outbox: &mut Outbox) {
        match self.partner {
            Some(partner) if self.ready => {
                let (snapshot, state) = self.snapshot();
                outbox.count("copies sent");
                // The shard adds what its partner must know of the store.
                let request = Request::Restore { id: 0, key: self.key, snapshot };
                outbox.output.push(Output::Partner(partner, request, state));
            }
            _ => self.safe = self.change,
        }
    }

    /// The partner has everything up to `change`.
    pub(crate) fn kept(&mut self, by: ServerId, change: u64, outbox: &mut Outbox) {
        if self.partner == Some(by) {
            self.safe = self.safe.max(change.min(self.change));
            self.flush(outbox);
        }
    }

    /// A change that the owner of this copy has made.
    pub(crate) fn follow(
        &mut self,
        version: u64,
        number: u64,
        change: &Change,
        pushes: &[(WorkerId, u64)],
    ) -> Result<()> {
        if number != self.change + 1 {
            return Err(Error::Malformed(format!("change {number} of {:?} after change {}", self.name, self.change)));
        }
        self.table.check(change.rows, &change.payload)?;
        self.table.apply(change);
        self.changed();
        self.version = version;
        self.note(pushes);
        Ok(())
    }

    fn note(&mut self, pushes: &[(WorkerId, u64)]) {
        for (worker, id) in pushes {
            if let Some(last) = self.applied.get_mut(worker.index()) {
                *last = (*last).max(*id);
            }
        }
    }

    /// Takes a push; the error is for the worker.
    pub(crate) fn push(
        &mut self,
        mut push: Push,
        consistency: Consistency,
        clocks: &Clocks,
        outbox: &mut Outbox,
    ) -> Result<()> {
        let known = self.applied.get(push.worker.index()).copied().unwrap_or(u64::MAX);
        if push.id <= known {
            outbox.count("duplicates");
            self.acknowledge(push.worker, push.id, outbox);
            return Ok(());
        }
        if !self.ready {
            return Err(Error::Usage(format!("{:?} was pushed before its init was done", self.name)));
        }
        if let Some(code) = push.code.take() {
            push.payload = code.decode(&push.payload, self.coded_elements()?)?;
        }
        self.table.check(push.rows, &push.payload)?;
        if consistency == Consistency::Bsp {
            return self.contribute(push, clocks, outbox);
        }
        let delay = self.version.saturating_sub(push.seen);
        let scale = match consistency {
            Consistency::Async { staleness_lr: true } => 1.0 / (1.0 + delay as f32),
            _ => 1.0,
        };
        let (rows, payload) = match push.rows {
            None => (None, push.payload),
            // A row that is there twice must be updated once.
            Some(rows) => {
                let (rows, payload) =
                    table::merge_rows(&self.layout, 1, &BTreeMap::from([(push.worker, (rows, push.payload))]));
                (Some(rows), payload)
            }
        };
        let change = Change { rows, rate: push.rate, scale, payload };
        self.make(&change, self.version + 1, vec![(push.worker, push.id)], outbox);
        Ok(())
    }

    /// How many values a code of this part has.
    fn coded_elements(&self) -> Result<usize> {
        if self.layout.dtype == DType::F32 {
            return self.layout.elements();
        }
        let dtype = self.layout.dtype.name();
        Err(Error::Usage(format!("{:?} is {dtype}, and only float32 values are compressed", self.name)))
    }

    /// Puts a push into its round, and closes rounds that are complete.
    fn contribute(&mut self, push: Push, clocks: &Clocks, outbox: &mut Outbox) -> Result<()> {
        if push.clock <= self.version {
            return Err(Error::Usage(format!(
                "round {} of {:?} is over, and worker {} pushes to it: frames came out of order",
                push.clock, self.name, push.worker
            )));
        }
        if let Some(mine) = self.rounds.get(push.clock, push.worker) {
            if mine.id == push.id {
                outbox.count("duplicates");
                return Ok(());
            }
            return Err(Error::Usage(format!(
                "worker {} pushes {:?} twice in round {}",
                push.worker, self.name, push.clock
            )));
        }
        match self.rounds.any(push.clock) {
            Some(other) if other.rows.is_some() != push.rows.is_some() || other.rate != push.rate => {
                return Err(Error::Mismatch(format!(
                    "in round {} of {:?} worker {} pushes {} with the learning rate {:?}, and worker {} {} with {:?}",
                    push.clock,
                    self.name,
                    push.worker,
                    if push.rows.is_some() { "rows" } else { "all of it" },
                    push.rate,
                    other.worker,
                    if other.rows.is_some() { "rows" } else { "all of it" },
                    other.rate
                )));
            }
            None if push.clock > self.version + MAX_AHEAD && self.owns() => {
                return Err(Error::Usage(format!(
                    "worker {} pushes round {} of {:?}, but round {} is not over: call pull between pushes, so that fast workers wait for slow ones",
                    push.worker,
                    push.clock,
                    self.name,
                    self.version + 1
                )));
            }
            _ => {}
        }
        self.rounds.put(push.clock, push.worker, push);
        self.close_rounds(clocks, outbox);
        Ok(())
    }

    /// Closes rounds that are complete: a push has come, or somebody is not waited for any more.
    pub(crate) fn close_rounds(&mut self, clocks: &Clocks, outbox: &mut Outbox) {
        loop {
            let (version, owns) = (self.version, self.owns());
            // Sums stand alone: after a server was lost, the first round that its heir can complete may be any.
            let may = |round| if owns { round == version + 1 } else { round > version };
            let Some((round, given)) = self.rounds.take(clocks, may) else { return };
            self.contributors = given.len() as u32;
            let rate = given.values().next().and_then(|push| push.rate);
            let pushes: Vec<(WorkerId, u64)> = given.iter().map(|(worker, push)| (*worker, push.id)).collect();
            let (rows, payload) = if given.values().any(|push| push.rows.is_some()) {
                let divide_by = if self.rule == Rule::Update { given.len() } else { 1 };
                let given = given.into_iter().map(|(worker, push)| (worker, (push.rows.unwrap_or(0), push.payload)));
                let (rows, payload) = table::merge_rows(&self.layout, divide_by, &given.collect());
                (Some(rows), payload)
            } else {
                let payloads: Vec<Payload> = given.into_values().map(|push| push.payload).collect();
                (None, table::sum(self.layout.dtype, matches!(self.rule, Rule::Average | Rule::Update), &payloads))
            };
            outbox.count("rounds");
            self.make(&Change { rows, rate, scale: 1.0, payload }, round, pushes, outbox);
            for read in std::mem::take(&mut self.reads) {
                self.read(read, outbox);
            }
        }
    }

    /// Makes a change, sends it to the partner, and acknowledges what is in it as soon as it is safe.
    fn make(&mut self, change: &Change, version: u64, pushes: Vec<(WorkerId, u64)>, outbox: &mut Outbox) {
        outbox.count("updates");
        self.table.apply(change);
        self.changed();
        self.version = version;
        self.note(&pushes);
        self.acks.extend(pushes.iter().map(|(worker, id)| (self.change, *worker, *id)));
        if !self.owns() {
            self.published = Some(change.payload.clone());
        }
        match self.partner {
            Some(partner) => {
                let Change { rows, rate, scale, .. } = *change;
                let request =
                    Request::Replica { key: self.key, version, change: self.change, rows, rate, scale, pushes };
                outbox.count("replicas sent");
                outbox.output.push(Output::Partner(partner, request, change.payload.clone()));
            }
            None => self.safe = self.change,
        }
        self.flush(outbox);
    }

    /// Answers a read whose clock may be read; in rounds it waits for its round.
    pub(crate) fn read(&mut self, read: Read, outbox: &mut Outbox) {
        if !self.ready || !self.unresumed.is_empty() || (read.is_in_rounds() && self.version < read.clock) {
            self.reads.push(read);
            return;
        }
        self.held.push_back((self.change, read));
        self.flush(outbox);
    }

    /// Says what is safe to be said.
    fn flush(&mut self, outbox: &mut Outbox) {
        // Both are in the order of changes.
        while self.acks.front().is_some_and(|(change, ..)| *change <= self.safe) {
            if let Some((_, worker, id)) = self.acks.pop_front() {
                outbox.tell(worker, Response::Done { id });
            }
        }
        while self.held.front().is_some_and(|(change, _)| *change <= self.safe) {
            if let Some((_, read)) = self.held.pop_front() {
                self.answer(&read, outbox);
            }
        }
    }

    fn answer(&mut self, read: &Read, outbox: &mut Outbox) {
        let same = read.rows.is_none() && read.have == self.version;
        let payload = match &read.rows {
            _ if same => Payload::default(),
            None => {
                let value = self.published.get_or_insert_with(|| self.table.value()).clone();
                match (read.code, &self.coded) {
                    (None, _) => value,
                    (Some(code), Some((same, coded))) if code == *same => coded.clone(),
                    (Some(code), _) => match code.check().and_then(|()| self.coded_elements()) {
                        Ok(_) => self.coded.insert((code, code.of_bytes(&value))).1.clone(),
                        Err(e) => return outbox.refuse(read.worker, read.id, e.to_string()),
                    },
                }
            }
            Some(rows) => match self.table.rows(rows) {
                Ok(payload) => payload,
                Err(e) => return outbox.refuse(read.worker, read.id, format!("{:?}: {e}", self.name)),
            },
        };
        let response =
            Response::Value { id: read.id, version: self.version, min_clock: 0, contributors: self.contributors, same };
        outbox.output.push(Output::Worker(read.worker, response, payload));
    }

    /// What is missing for those who wait here, for people.
    pub(crate) fn waits(&self, clocks: &Clocks) -> Option<String> {
        let round = self.reads.iter().filter(|r| r.is_in_rounds()).map(|r| r.clock).min()?;
        let given = self.rounds.given(round);
        let missing: Vec<WorkerId> = clocks.behind(u64::MAX).into_iter().filter(|w| !given.contains(w)).collect();
        Some(format!("round {round} of {:?} waits for workers {missing:?}", self.name))
    }

    /// The copy of a lost server's is ours now. What workers have pushed there and nobody kept they push again; until all
    /// have, a read might miss what the clocks say is there.
    pub(crate) fn inherit(&mut self, workers: Vec<WorkerId>) {
        self.copy_of = None;
        self.unresumed = workers.into_iter().collect();
    }

    /// A worker has sent again what it had to.
    pub(crate) fn resumed(&mut self, worker: WorkerId, outbox: &mut Outbox) {
        if self.unresumed.remove(&worker) && self.unresumed.is_empty() {
            for read in std::mem::take(&mut self.reads) {
                self.read(read, outbox);
            }
        }
    }

    /// Forgets what a worker that has left waits for, and what others wait for of it.
    pub(crate) fn forget(&mut self, worker: WorkerId, outbox: &mut Outbox) {
        self.resumed(worker, outbox);
        self.reads.retain(|r| r.worker != worker);
        self.held.retain(|(_, r)| r.worker != worker);
    }
}

/// The row numbers of a read.
pub(crate) fn row_numbers(payload: &[u8], rows: u32) -> Result<Vec<u64>> {
    match split_rows(payload, rows) {
        Some((numbers, [])) => Ok(numbers),
        _ => Err(Error::Malformed(format!("{rows} row numbers in {} bytes", payload.len()))),
    }
}
