//! A worker's side of a store: which part is where, what was sent and not answered, and what to send again when a server is
//! lost. Pure: what is to be sent is taken from it, what has come is given to it.
//!
//! What must be kept to survive the loss of a server: of keys that servers *own*, pushes that are not acknowledged (the
//! acknowledged ones are in the heir's copy). Of keys that they *sum*, the pushes of the round that is open and of the last
//! one: another worker may still wait for that one's sum.

mod losing;

use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};

use corro_core::{DType, Error, Result};

use crate::code::Code;
use crate::frame::{Request, Response, Snapshot, StoreSetup};
use crate::optimizer::Optimizer;
use crate::parts::{Cached, Named, Part};
use crate::placement::{Loads, part_rows};
use crate::protocol::{Consistency, Key, Layout, Payload, Rule, ServerId, WorkerId, name_id};
use crate::queue::{Queue, URGENT};
use crate::saving::{Saved, recut};
use crate::shard::heir;

pub use crate::parts::KeySpec;

/// The answer to a question.
#[derive(Clone, Debug, PartialEq)]
pub enum Answer {
    /// Done, or passed.
    Done,
    /// A value, and how many workers are in it.
    Value(Payload, u32),
    /// How a server does.
    Stats(Vec<(String, u64)>),
    /// What a server owns.
    Dump(Vec<(Key, Snapshot, Payload)>),
}

/// A question that was asked.
#[derive(Debug)]
struct Pending {
    server: ServerId,
    part: Option<Key>,
    request: Request,
    payload: Payload,
    parts: Vec<(Key, Snapshot, Payload)>,
    answer: Option<Result<Answer>>,
}

/// See the module.
#[derive(Debug)]
pub struct Session {
    me: WorkerId,
    setup: StoreSetup,
    loads: Loads,
    order: u64,
    pub(crate) names: BTreeMap<u64, Named>,
    lost: BTreeSet<ServerId>,
    queues: Vec<Queue>,
    pending: BTreeMap<u64, Pending>,
    /// Pushes that are not acknowledged, and what they are of.
    pushes: HashMap<u64, Key>,
    next: u64,
    clock: u64,
    barrier: u64,
    failure: Option<Error>,
}

impl Session {
    /// Of worker `me`; `shares` say how much of the parameters each server is to have.
    pub fn new(me: WorkerId, setup: StoreSetup, shares: Vec<f64>) -> Self {
        Self {
            me,
            loads: Loads::new(shares),
            order: 0,
            names: BTreeMap::new(),
            lost: BTreeSet::new(),
            queues: setup.servers.iter().map(|_| Queue::default()).collect(),
            pending: BTreeMap::new(),
            pushes: HashMap::new(),
            next: 1,
            clock: 0,
            barrier: 0,
            failure: None,
            setup,
        }
    }

    /// The first word to a server.
    pub fn hello(&self, server: ServerId) -> Request {
        let setup = StoreSetup { you: server, ..self.setup.clone() };
        Request::Hello { setup, worker: self.me, lost: self.lost.iter().copied().collect() }
    }

    /// The next frame for a server.
    pub fn take(&mut self, server: ServerId) -> Option<(Request, Payload)> {
        self.queues.get_mut(server.index())?.take()
    }

    /// Whether something waits to be sent to a server.
    pub fn has_output(&self, server: ServerId) -> bool {
        self.queues.get(server.index()).is_some_and(|queue| !queue.is_empty())
    }

    /// Bytes that wait to be sent to all servers.
    pub fn queued_bytes(&self) -> usize {
        self.queues.iter().map(Queue::bytes).sum()
    }

    /// How many pushes are not acknowledged.
    pub fn unacknowledged(&self) -> usize {
        self.pushes.len()
    }

    /// Which servers are lost.
    pub fn lost(&self) -> &BTreeSet<ServerId> {
        &self.lost
    }

    /// How often [`Session::clock`] was called.
    pub const fn now(&self) -> u64 {
        self.clock
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next - 1
    }

    fn living(&self) -> Vec<ServerId> {
        ServerId::all(self.setup.servers.len() as u32).filter(|server| !self.lost.contains(server)).collect()
    }

    fn home(&self, home: ServerId) -> Result<ServerId> {
        heir(home, self.setup.servers.len(), &self.lost).ok_or_else(|| self.nobody_left())
    }

    fn nobody_left(&self) -> Error {
        Error::Shutdown(format!("all {} parameter servers of this job are lost", self.setup.servers.len()).into())
    }

    /// The error that ended the session, if one has.
    pub fn check(&self) -> Result<()> {
        self.failure.clone().map_or(Ok(()), Err)
    }

    /// Ends the session: everything that waits fails with this.
    pub fn fail(&mut self, error: Error) {
        let error = self.failure.get_or_insert(error).clone();
        for pending in self.pending.values_mut() {
            pending.answer.get_or_insert_with(|| Err(error.clone()));
        }
    }

    pub(crate) fn named(&self, name: &str) -> Result<&Named> {
        self.names
            .get(&name_id(name))
            .ok_or_else(|| Error::Usage(format!("no key is called {name:?}: call init first")))
    }

    /// Names a key; gives what to wait for. `value` is the first one's of all workers (none: zeros); the others' is not used.
    pub fn init(&mut self, spec: KeySpec, value: Option<&[u8]>) -> Result<Vec<u64>> {
        self.check()?;
        spec.rule.fits(self.setup.consistency)?;
        let name = name_id(&spec.name);
        if self.names.contains_key(&name) {
            return Err(Error::Usage(format!(
                "{:?} has been named before, or its hash equals that of another name: choose another name",
                spec.name
            )));
        }
        let layout = Layout { dtype: spec.dtype, rows: spec.rows, width: spec.width };
        let bytes = (spec.rows as usize).checked_mul(layout.row_bytes());
        if let Some(value) = value
            && Some(value.len()) != bytes
        {
            return Err(Error::Usage(format!(
                "{} bytes as the value of {:?}, which has {bytes:?}",
                value.len(),
                spec.name
            )));
        }
        spec.code.map_or(Ok(()), Code::check)?;
        if spec.code.is_some() && spec.dtype != DType::F32 {
            return Err(Error::Usage(format!(
                "{:?} is {}, and only float32 values are compressed",
                spec.name,
                spec.dtype.name()
            )));
        }
        if layout.row_bytes() > crate::protocol::MAX_PART_BYTES {
            return Err(Error::Usage(format!(
                "a row of {:?} is longer than {} bytes",
                spec.name,
                crate::protocol::MAX_PART_BYTES
            )));
        }
        let rows = part_rows(spec.rows, layout.row_bytes(), self.setup.servers.len());
        let lengths: Vec<usize> = rows.iter().map(|rows| *rows as usize * layout.row_bytes()).collect();
        let homes = self.loads.place(&lengths);
        // What was named before, as a number: workers that disagree would look for parts at different servers.
        self.order = name_id(&format!("{:x} {name:x} {layout:?} {:?}", self.order, spec.rule));
        let mut begin = 0;
        let mut parts = Vec::new();
        for (rows, home) in rows.into_iter().zip(homes) {
            let layout = Layout { rows, ..layout };
            let (sent, own, rest) = (VecDeque::new(), Vec::new(), Vec::new());
            parts.push(Part { layout, begin, home, round: 0, seen: 0, sent, cached: None, own, rest });
            begin += rows;
        }
        let KeySpec { name: text, rule, striped, code, .. } = spec;
        let named = Named { name: text, layout, rule, order: self.order, striped, code, parts };
        let payloads: Vec<Payload> = (0..named.parts.len())
            .map(|part| {
                value.filter(|_| self.me == WorkerId::FIRST).map_or_else(Payload::default, |v| named.cut(part, v))
            })
            .collect();
        let mut ids = Vec::new();
        for (part, payload) in payloads.into_iter().enumerate() {
            let key = Key { name, part: part as u32 };
            let (id, home) = (self.id(), self.home(named.parts[part].home)?);
            ids.push(self.ask(home, Some(key), URGENT, id, named.init(key, id, false), payload));
        }
        self.names.insert(name, named);
        Ok(ids)
    }

    fn ask(
        &mut self,
        server: ServerId,
        part: Option<Key>,
        priority: i64,
        id: u64,
        request: Request,
        payload: Payload,
    ) -> u64 {
        match part {
            Some(key) if matches!(request, Request::Pull { .. } | Request::PullRows { .. }) => {
                self.queues[server.index()].ask(key, priority, request.clone(), payload.clone());
            }
            Some(key) => self.queues[server.index()].put(key, priority, request.clone(), payload.clone()),
            None => self.queues[server.index()].put_last(request.clone()),
        }
        self.pending.insert(id, Pending { server, part, request, payload, parts: Vec::new(), answer: None });
        id
    }

    /// Pushes all of a key.
    pub fn push(&mut self, name: &str, value: &[u8], priority: i64, rate: Option<f32>) -> Result<()> {
        self.check()?;
        let named = self.named(name)?;
        named.fits(value.len())?;
        let payloads: Vec<Payload> = (0..named.parts.len()).map(|part| named.cut(part, value)).collect();
        for (part, payload) in payloads.into_iter().enumerate() {
            self.push_part(Key { name: name_id(name), part: part as u32 }, payload, None, priority, rate)?;
        }
        Ok(())
    }

    /// Pushes some rows of a key. In rounds every part is pushed to, if only by nothing: the others wait for it.
    pub fn push_rows(
        &mut self,
        name: &str,
        rows: &[u64],
        elements: &[u8],
        priority: i64,
        rate: Option<f32>,
    ) -> Result<()> {
        self.check()?;
        let named = self.named(name)?;
        let width = named.layout.row_bytes();
        if rows.len() * width != elements.len() {
            return Err(Error::Usage(format!(
                "{} bytes for {} rows of {name:?}, which are of {width}",
                elements.len(),
                rows.len()
            )));
        }
        let mut dealt: Vec<(Vec<u8>, Vec<u8>, u32)> = vec![Default::default(); named.parts.len()];
        for (row, element) in rows.iter().zip(elements.chunks_exact(width.max(1))) {
            let (part, inside) = named.find(*row, self.me)?;
            let (numbers, elements, count) = &mut dealt[part];
            numbers.extend_from_slice(&inside.to_le_bytes());
            elements.extend_from_slice(element);
            *count += 1;
        }
        for (part, (mut numbers, elements, count)) in dealt.into_iter().enumerate() {
            numbers.extend_from_slice(&elements);
            if count == 0 && self.setup.consistency != Consistency::Bsp {
                continue;
            }
            let key = Key { name: name_id(name), part: part as u32 };
            self.push_part(key, Payload::new(numbers), Some(count), priority, rate)?;
        }
        Ok(())
    }

    fn push_part(
        &mut self,
        key: Key,
        payload: Payload,
        rows: Option<u32>,
        priority: i64,
        rate: Option<f32>,
    ) -> Result<()> {
        let id = self.id();
        let in_rounds = self.setup.consistency == Consistency::Bsp;
        let bound = matches!(self.setup.consistency, Consistency::Ssp { .. });
        let now = self.clock;
        let code = self.names.get(&key.name).and_then(|named| named.code).filter(|_| rows.is_none());
        let Some(part) = self.part(key) else { return Ok(()) };
        part.round += 1;
        let (round, seen, home) = (part.round, part.seen, part.home);
        let clock = if in_rounds { round } else { now };
        let payload = match code {
            Some(code) => part.encode(code, &payload),
            None => payload,
        };
        let request = match rows {
            None => Request::Push { id, key, clock, seen, rate, code },
            Some(rows) => Request::PushRows { id, key, clock, seen, rate, rows },
        };
        part.sent.push_back((round, id, request.clone(), payload.clone()));
        if bound {
            let own = match (rows, code) {
                (Some(_), _) => Payload::default(),
                (None, None) => payload.clone(),
                (None, Some(code)) => code.decode(&payload, part.layout.elements()?)?,
            };
            part.own.push((id, own));
        }
        let home = self.home(home)?;
        self.pushes.insert(id, key);
        self.queues[home.index()].put(key, priority, request, payload);
        Ok(())
    }

    fn part(&mut self, key: Key) -> Option<&mut Part> {
        self.names.get_mut(&key.name)?.parts.get_mut(key.part as usize)
    }

    /// Asks for all of a key; gives what to wait for, part by part.
    pub fn pull(&mut self, name: &str, priority: i64) -> Result<Vec<u64>> {
        self.check()?;
        let parts = self.named(name)?.parts.len();
        (0..parts).map(|part| self.pull_part(Key { name: name_id(name), part: part as u32 }, priority)).collect()
    }

    fn pull_part(&mut self, key: Key, priority: i64) -> Result<u64> {
        let id = self.id();
        let (consistency, now) = (self.setup.consistency, self.clock);
        let named = self.names.get(&key.name);
        let (rule, dtype) = named.map_or((Rule::Sum, DType::U8), |named| (named.rule, named.layout.dtype));
        // What servers own is read as it is: what a code left out of it nobody would ever say.
        let code = named.and_then(|named| named.code).filter(|_| !rule.owns());
        let Some(part) = self.part(key) else { return Ok(id) };
        let home = part.home;
        if let (Consistency::Ssp { .. }, Some(cached)) = (consistency, &part.cached)
            && cached.min_clock >= consistency.needs(now)
            && let Some(value) = part.with_own(rule, dtype, &cached.value)
        {
            let request = Request::Pull { id, key, clock: now, have: cached.version, code: None };
            let answer = Some(Ok(Answer::Value(value, 0)));
            let pending = Pending {
                server: home,
                part: Some(key),
                request,
                payload: Payload::default(),
                parts: Vec::new(),
                answer,
            };
            self.pending.insert(id, pending);
            return Ok(id);
        }
        let have = part.cached.as_ref().map_or(u64::MAX, |cached| cached.version);
        let clock = if consistency == Consistency::Bsp { part.round } else { now };
        let home = self.home(home)?;
        let request = Request::Pull { id, key, clock, have, code };
        Ok(self.ask(home, Some(key), priority, id, request, Payload::default()))
    }

    /// Asks for some rows of a key; gives what to wait for, and which of `rows` are in each.
    pub fn pull_rows(&mut self, name: &str, rows: &[u64], priority: i64) -> Result<Vec<(u64, Vec<usize>)>> {
        self.check()?;
        let named = self.named(name)?;
        let mut dealt: Vec<(Vec<u8>, Vec<usize>)> = vec![Default::default(); named.parts.len()];
        for (at, row) in rows.iter().enumerate() {
            let (part, inside) = named.find(*row, self.me)?;
            dealt[part].0.extend_from_slice(&inside.to_le_bytes());
            dealt[part].1.push(at);
        }
        let in_rounds = self.setup.consistency == Consistency::Bsp;
        let mut asked = Vec::new();
        for (part, (numbers, places)) in dealt.into_iter().enumerate().filter(|(_, (_, places))| !places.is_empty()) {
            let key = Key { name: name_id(name), part: part as u32 };
            let (id, now) = (self.id(), self.clock);
            let Some(part) = self.part(key) else { continue };
            let (clock, home) = (if in_rounds { part.round } else { now }, part.home);
            let request = Request::PullRows { id, key, clock, rows: places.len() as u32 };
            let home = self.home(home)?;
            asked.push((self.ask(home, Some(key), priority, id, request, Payload::new(numbers)), places));
        }
        Ok(asked)
    }

    /// A step is over: all its pushes were said.
    pub fn clock(&mut self) -> Result<()> {
        self.check()?;
        self.clock += 1;
        for server in self.living() {
            self.queues[server.index()].put_last(Request::Clock { clock: self.clock });
        }
        Ok(())
    }

    /// All workers shall come here; gives what to wait for.
    pub fn barrier(&mut self) -> Result<u64> {
        self.check()?;
        self.barrier += 1;
        let (id, server) = (self.id(), self.home(ServerId::FIRST)?);
        Ok(self.ask(server, None, 0, id, Request::Barrier { id, number: self.barrier }, Payload::default()))
    }

    /// Asks every server the same.
    pub fn ask_all(&mut self, request: impl Fn(u64) -> Request) -> Result<Vec<u64>> {
        self.check()?;
        let living = self.living();
        if living.is_empty() {
            return Err(self.nobody_left());
        }
        let asked = living.into_iter().map(|server| {
            let id = self.id();
            self.ask(server, None, 0, id, request(id), Payload::default())
        });
        Ok(asked.collect())
    }

    /// Servers shall update with this.
    pub fn optimize(&mut self, optimizer: Optimizer) -> Result<Vec<u64>> {
        optimizer.check()?;
        self.ask_all(|id| Request::Optimize { id, optimizer })
    }

    /// Gives servers what was saved, cut as keys are now; gives what to wait for.
    pub fn restore(&mut self, saved: Saved) -> Result<Vec<u64>> {
        self.check()?;
        let mut keys: BTreeMap<u64, BTreeMap<u32, (Snapshot, Payload)>> = BTreeMap::new();
        for (key, snapshot, state) in saved {
            keys.entry(key.name).or_default().insert(key.part, (snapshot, state));
        }
        let mut ids = Vec::new();
        for (name, parts) in keys {
            let Some(named) = self.names.get(&name) else {
                let names: Vec<&str> = parts.values().map(|(snapshot, _)| snapshot.name.as_str()).collect();
                return Err(Error::Usage(format!(
                    "{:?} is in the saved file, but this store has not called init for it",
                    names.first()
                )));
            };
            let rows: Vec<u64> = named.parts.iter().map(|part| part.layout.rows).collect();
            let homes: Vec<ServerId> = named.parts.iter().map(|part| part.home).collect();
            for ((key, snapshot, state), home) in recut(&parts, named.striped, &rows)?.into_iter().zip(homes) {
                let (id, home) = (self.id(), self.home(home)?);
                ids.push(self.ask(home, Some(key), 0, id, Request::Restore { id, key, snapshot }, state));
            }
        }
        Ok(ids)
    }

    /// Rounds of keys that servers own begin anew: they were loaded.
    pub fn begin_anew(&mut self) {
        for part in self.names.values_mut().filter(|named| named.rule.owns()).flat_map(|named| &mut named.parts) {
            (part.round, part.seen, part.cached) = (0, 0, None);
            part.sent.clear();
            part.own.clear();
            part.rest.clear();
        }
    }

    /// Says goodbye to all servers.
    pub fn bye(&mut self) {
        for server in self.living() {
            self.queues[server.index()].put_last(Request::Bye);
        }
    }

    /// The answer to a question, if it has come. It is told once.
    pub fn answer(&mut self, id: u64) -> Option<Result<Answer>> {
        self.pending.get(&id)?.answer.as_ref()?;
        self.pending.remove(&id)?.answer
    }

    /// Whether the answer has come, or was taken.
    pub fn is_answered(&self, id: u64) -> bool {
        self.pending.get(&id).is_none_or(|pending| pending.answer.is_some())
    }

    /// What the servers that a question waits for are, for people.
    pub fn asked(&self, id: u64) -> Option<(ServerId, &Request)> {
        self.pending.get(&id).map(|pending| (pending.server, &pending.request))
    }

    /// Hears a server. An error means that it talks nonsense, and is of no more use.
    pub fn hear(&mut self, server: ServerId, response: Response, payload: Payload) -> Result<()> {
        match response {
            Response::Welcome { lost } => lost.into_iter().for_each(|server| self.lose(server)),
            Response::Lost { server } => self.lose(server),
            Response::Done { id } => self.done(id),
            Response::Value { id, version, min_clock, contributors, same } => {
                self.value(id, (version, min_clock), contributors, same, payload)?;
            }
            Response::Part { id, key, snapshot } => {
                if let Some(pending) = self.pending.get_mut(&id) {
                    pending.parts.push((key, snapshot, payload));
                }
            }
            Response::Stats { id, counts } => self.settle(id, Ok(Answer::Stats(counts))),
            Response::Refused { id, why } => {
                let error = Error::Usage(format!("parameter server {server} refused: {why}"));
                if self.pending.contains_key(&id) {
                    self.settle(id, Err(error));
                } else {
                    // A push, which nobody waits for.
                    self.fail(error);
                }
            }
            Response::Kept { .. } => return Err(Error::Malformed("a word that is for servers".into())),
        }
        Ok(())
    }

    fn settle(&mut self, id: u64, answer: Result<Answer>) {
        if let Some(pending) = self.pending.get_mut(&id) {
            pending.answer.get_or_insert(answer);
        }
    }

    fn done(&mut self, id: u64) {
        if let Some(pending) = self.pending.get_mut(&id) {
            let parts = std::mem::take(&mut pending.parts);
            let dump = matches!(pending.request, Request::Dump { .. });
            if matches!(pending.request, Request::Barrier { .. }) {
                // What the others did before they came here is to be seen after it.
                self.names.values_mut().flat_map(|named| &mut named.parts).for_each(|part| part.cached = None);
            }
            return self.settle(id, Ok(if dump { Answer::Dump(parts) } else { Answer::Done }));
        }
        let Some(key) = self.pushes.remove(&id) else { return };
        let owns = self.names.get(&key.name).is_some_and(|named| named.rule.owns());
        let Some(part) = self.part(key) else { return };
        let Some(round) = part.sent.iter().find(|(_, sent, ..)| *sent == id).map(|(round, ..)| *round) else { return };
        part.sent.retain(|(r, sent, ..)| if owns { *sent != id } else { *r >= round });
    }

    fn value(&mut self, id: u64, at: (u64, u64), contributors: u32, same: bool, payload: Payload) -> Result<()> {
        let Some(pending) = self.pending.get(&id) else { return Ok(()) };
        let key = pending.part;
        let (whole, code) = match pending.request {
            Request::Pull { code, .. } => (true, code),
            _ => (false, None),
        };
        let bound = matches!(self.setup.consistency, Consistency::Ssp { .. });
        let (version, min_clock) = at;
        let Some(part) = key.and_then(|key| self.part(key)) else { return Ok(()) };
        part.seen = version;
        let mut value = match code.filter(|_| !same) {
            Some(code) => code.decode(&payload, part.layout.elements()?)?,
            None => payload,
        };
        if whole {
            if same {
                let cached = part.cached.as_ref().map(|cached| cached.value.clone());
                value = cached.ok_or_else(|| Error::Malformed("a value that is the same as none".into()))?;
            }
            if value.len() != part.layout.bytes()? {
                return Err(Error::Malformed(format!("a value of {} bytes for {:?}", value.len(), part.layout)));
            }
            if bound {
                part.cached = Some(Cached { value: value.clone(), version, min_clock });
                part.own.retain(|(push, _)| *push > id);
            }
        }
        self.settle(id, Ok(Answer::Value(value, contributors)));
        Ok(())
    }
}
