//! The store's keys and who waits for them.
//!
//! Pure: requests in, responses out, no socket, no clock. Bounded by [`Limits`].

use std::collections::HashMap;

use serde_bytes::ByteBuf;

use super::message::{Action, Answer, Request, Response};
use super::{Limits, MAX_KEY_BYTES, MAX_KEYS, MAX_VALUE_BYTES};

/// A client, as its server numbers it.
pub type ClientId = u64;

/// What an entry costs beyond its bytes, roughly.
const ENTRY_BYTES: usize = 128;

/// Keys, values, and clients that wait for keys.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    entries: HashMap<String, Vec<u8>>,
    /// Bytes of all entries and of the keys that are waited for.
    bytes: usize,
    /// At most one request per client.
    parked: HashMap<ClientId, Parked>,
    /// For each missing key, who waits for it *first*: a client is listed under one key only.
    waiting: HashMap<String, Vec<ClientId>>,
}

#[derive(Debug)]
struct Parked {
    id: u64,
    keys: Vec<String>,
    /// `keys[missing]` is the one the client is listed under.
    missing: usize,
}

impl Table {
    /// An empty one.
    pub fn new(limits: Limits) -> Self {
        Self { limits, entries: HashMap::new(), bytes: 0, parked: HashMap::new(), waiting: HashMap::new() }
    }

    /// Does what `client` asks; adds to `out` its answer and those of others who waited for this.
    pub fn handle(&mut self, client: ClientId, request: Request, out: &mut Vec<(ClientId, Response)>) {
        // A client asks one thing at a time: who asks again no longer waits.
        self.forget(client);
        let id = request.id;
        let answer = match request.action {
            Action::Set { key, value } => self.set(key, value.into_vec(), out).map(|()| Answer::Done),
            Action::Add { key, by } => self.add(key, by, out).map(Answer::Number),
            Action::Delete { key } => Ok(Answer::Existed(self.delete(&key))),
            Action::Get { keys, wait } => match self.get(client, id, keys, wait) {
                Ok(None) => return,
                Ok(Some(values)) => Ok(Answer::Values(values)),
                Err(reason) => Err(reason),
            },
        };
        out.push((client, Response { id, answer: answer.unwrap_or_else(Answer::Refused) }));
    }

    /// Drops what `client` waits for.
    pub fn forget(&mut self, client: ClientId) {
        let Some(parked) = self.parked.remove(&client) else { return };
        self.bytes -= parked.cost();
        let key = &parked.keys[parked.missing];
        if let Some(list) = self.waiting.get_mut(key) {
            list.retain(|c| *c != client);
            if list.is_empty() {
                self.waiting.remove(key);
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How many clients wait for keys.
    pub fn waiting(&self) -> usize {
        self.parked.len()
    }

    fn set(&mut self, key: String, value: Vec<u8>, out: &mut Vec<(ClientId, Response)>) -> Result<(), String> {
        check_key(&key)?;
        let most = self.limits.value.min(MAX_VALUE_BYTES);
        if value.len() > most {
            return Err(format!("the value of {key:?} has {} bytes, at most {most} are allowed", value.len()));
        }
        let before = self.entries.get(&key).map_or(0, |old| entry_cost(&key, old));
        let after = self.bytes - before + entry_cost(&key, &value);
        if after > self.limits.memory {
            return Err(format!(
                "the store is full: with {key:?} it would hold {after} of {} bytes",
                self.limits.memory
            ));
        }
        self.bytes = after;
        let waiters = self.waiting.remove(&key);
        self.entries.insert(key, value);
        for client in waiters.into_iter().flatten() {
            self.go_on(client, out);
        }
        Ok(())
    }

    fn add(&mut self, key: String, by: i64, out: &mut Vec<(ClientId, Response)>) -> Result<i64, String> {
        let old = match self.entries.get(&key).map(|v| <[u8; 8]>::try_from(v.as_slice())) {
            None => 0,
            Some(Ok(bytes)) => i64::from_le_bytes(bytes),
            Some(Err(_)) => return Err(format!("{key:?} does not hold a number, so nothing can be added to it")),
        };
        let new = old.checked_add(by).ok_or_else(|| format!("{key:?} would leave the range of a 64-bit number"))?;
        self.set(key, new.to_le_bytes().to_vec(), out)?;
        Ok(new)
    }

    fn delete(&mut self, key: &str) -> bool {
        let old = self.entries.remove(key);
        if let Some(value) = &old {
            self.bytes -= entry_cost(key, value);
        }
        old.is_some()
    }

    /// The values, or `None` if the client waits from now on.
    fn get(
        &mut self,
        client: ClientId,
        id: u64,
        keys: Vec<String>,
        wait: bool,
    ) -> Result<Option<Vec<Option<ByteBuf>>>, String> {
        if keys.is_empty() || keys.len() > MAX_KEYS {
            return Err(format!("a request for {} keys, where 1 to {MAX_KEYS} are allowed", keys.len()));
        }
        for key in &keys {
            check_key(key)?;
        }
        match self.first_missing(&keys, 0) {
            Some(missing) if wait => {
                let parked = Parked { id, keys, missing };
                let cost = parked.cost();
                if self.bytes + cost > self.limits.memory {
                    return Err("the store is full: too many clients wait for too many keys".into());
                }
                self.bytes += cost;
                self.list(client, parked);
                Ok(None)
            }
            _ => Ok(Some(self.values(&keys))),
        }
    }

    /// A key `client` waited for is there: answers it, or lists it under the next key that is missing.
    fn go_on(&mut self, client: ClientId, out: &mut Vec<(ClientId, Response)>) {
        let Some(mut parked) = self.parked.remove(&client) else { return };
        // Those before `missing` were there, but may have been deleted since.
        let missing = self.first_missing(&parked.keys, parked.missing).or_else(|| self.first_missing(&parked.keys, 0));
        if let Some(missing) = missing {
            parked.missing = missing;
            self.list(client, parked);
        } else {
            self.bytes -= parked.cost();
            let answer = Answer::Values(self.values(&parked.keys));
            out.push((client, Response { id: parked.id, answer }));
        }
    }

    fn list(&mut self, client: ClientId, parked: Parked) {
        self.waiting.entry(parked.keys[parked.missing].clone()).or_default().push(client);
        self.parked.insert(client, parked);
    }

    fn first_missing(&self, keys: &[String], from: usize) -> Option<usize> {
        keys[from..].iter().position(|k| !self.entries.contains_key(k)).map(|i| from + i)
    }

    /// The values of the first of `keys`, as many as fit into one message.
    fn values(&self, keys: &[String]) -> Vec<Option<ByteBuf>> {
        let mut room = self.limits.value.min(MAX_VALUE_BYTES);
        let mut values = Vec::new();
        for key in keys {
            let value = self.entries.get(key);
            let size = value.map_or(0, Vec::len);
            if size > room && !values.is_empty() {
                break;
            }
            room = room.saturating_sub(size);
            values.push(value.map(|v| ByteBuf::from(v.as_slice())));
        }
        values
    }
}

impl Parked {
    fn cost(&self) -> usize {
        ENTRY_BYTES + self.keys.iter().map(|k| k.len() + size_of::<String>()).sum::<usize>()
    }
}

fn entry_cost(key: &str, value: &[u8]) -> usize {
    key.len() + value.len() + ENTRY_BYTES
}

fn check_key(key: &str) -> Result<(), String> {
    match key.len() {
        0 => Err("a key must not be empty".into()),
        n if n > MAX_KEY_BYTES => Err(format!("a key of {n} bytes, at most {MAX_KEY_BYTES} are allowed")),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> Table {
        Table::new(Limits { value: 100, memory: 4000, clients: 10 })
    }

    fn ask(table: &mut Table, client: ClientId, id: u64, action: Action) -> Vec<(ClientId, Response)> {
        let mut out = Vec::new();
        table.handle(client, Request { id, action }, &mut out);
        out
    }

    fn set(key: &str, value: &[u8]) -> Action {
        Action::Set { key: key.into(), value: ByteBuf::from(value) }
    }

    fn get(keys: &[&str], wait: bool) -> Action {
        Action::Get { keys: keys.iter().map(ToString::to_string).collect(), wait }
    }

    fn values(of: &[Option<&[u8]>]) -> Answer {
        Answer::Values(of.iter().map(|v| v.map(ByteBuf::from)).collect())
    }

    #[test]
    fn whoever_waits_is_answered_when_the_last_key_comes() {
        let mut t = table();
        assert_eq!(ask(&mut t, 1, 7, get(&["a", "b", "c"], true)), []);
        assert_eq!(ask(&mut t, 2, 1, set("c", b"3")).len(), 1);
        assert_eq!(ask(&mut t, 2, 2, set("a", b"1")).len(), 1);
        // Deleted while somebody still waits for others: it must be waited for again.
        assert_eq!(ask(&mut t, 2, 3, Action::Delete { key: "a".into() })[0].1.answer, Answer::Existed(true));
        assert_eq!(ask(&mut t, 2, 4, set("b", b"2")).len(), 1);
        let out = ask(&mut t, 2, 5, set("a", b"9"));
        let expected = Response { id: 7, answer: values(&[Some(b"9"), Some(b"2"), Some(b"3")]) };
        assert_eq!(out, [(1, expected), (2, Response { id: 5, answer: Answer::Done })]);
        assert_eq!((t.waiting(), t.waiting.len()), (0, 0));
    }

    #[test]
    fn a_new_request_or_the_end_of_a_client_ends_its_waiting() {
        let mut t = table();
        let empty = t.bytes();
        ask(&mut t, 1, 1, get(&["a"], true));
        assert_eq!(ask(&mut t, 1, 2, get(&["a"], false))[0].1, Response { id: 2, answer: values(&[None]) });
        ask(&mut t, 2, 1, get(&["a"], true));
        t.forget(2);
        assert_eq!((t.bytes(), t.waiting(), t.waiting.len()), (empty, 0, 0));
        assert_eq!(ask(&mut t, 3, 1, set("a", b"")).len(), 1);
    }

    #[test]
    fn numbers_add_up_and_nothing_else_does() {
        let mut t = table();
        let add = |by| Action::Add { key: "n".into(), by };
        assert_eq!(ask(&mut t, 1, 1, add(5))[0].1.answer, Answer::Number(5));
        assert_eq!(ask(&mut t, 1, 2, add(-7))[0].1.answer, Answer::Number(-2));
        assert!(matches!(ask(&mut t, 1, 3, add(i64::MIN))[0].1.answer, Answer::Refused(_)));
        ask(&mut t, 1, 4, set("n", b"text"));
        assert!(matches!(ask(&mut t, 1, 5, add(1))[0].1.answer, Answer::Refused(_)));
    }

    #[test]
    fn limits_hold_and_say_what_they_are() {
        let mut t = table();
        let refused = |out: Vec<(ClientId, Response)>| match &out[0].1.answer {
            Answer::Refused(reason) => reason.clone(),
            other => panic!("{other:?}"),
        };
        assert!(refused(ask(&mut t, 1, 1, set("k", &[0; 101]))).contains("at most 100"));
        assert!(refused(ask(&mut t, 1, 1, set("", b""))).contains("empty"));
        assert!(refused(ask(&mut t, 1, 1, set(&"k".repeat(1025), b""))).contains("1024"));
        assert!(refused(ask(&mut t, 1, 1, get(&[], true))).contains("0 keys"));
        let mut full = 0;
        while let Answer::Done = ask(&mut t, 1, 1, set(&format!("key {full}"), &[0; 100]))[0].1.answer {
            full += 1;
            assert!(full < 1000);
        }
        assert!(t.bytes() <= 4000);
        // What is there can still be replaced and deleted.
        assert_eq!(ask(&mut t, 1, 1, set("key 0", &[1; 100]))[0].1.answer, Answer::Done);
        assert_eq!(ask(&mut t, 1, 1, Action::Delete { key: "key 0".into() })[0].1.answer, Answer::Existed(true));
        assert_eq!(ask(&mut t, 1, 1, set("again", &[0; 100]))[0].1.answer, Answer::Done);
        let wait: Vec<String> = (0..100).map(|i| format!("missing {i}")).collect();
        assert!(refused(ask(&mut t, 2, 1, Action::Get { keys: wait, wait: true })).contains("full"));
    }

    #[test]
    fn long_answers_come_in_parts() {
        let mut t = table();
        for key in ["a", "b", "c"] {
            ask(&mut t, 1, 1, set(key, &[1; 60]));
        }
        let out = ask(&mut t, 1, 2, get(&["a", "b", "c"], true));
        assert_eq!(out[0].1.answer, values(&[Some(&[1; 60])]));
    }
}
