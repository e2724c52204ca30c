//! What waits to be sent to one server: by priority, but never so that a key's frames change their order. A question goes right behind what
//! its key has to say, before the pushes of other keys: its answer comes while they are on their way.

use std::collections::{BTreeMap, HashMap};

use crate::frame::Request;
use crate::protocol::{Key, Payload};

/// Before all else.
pub(crate) const URGENT: i64 = i64::MIN;

/// Where a frame stands: its priority, the number of the frame behind which it goes (its own, if it is no question), and its own.
type Position = (i64, u64, u64);

/// See the module. Lower priorities go first.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    frames: BTreeMap<Position, (Request, Payload, Option<Key>)>,
    /// Of each key that has frames here: how many, and where the last stands.
    keys: HashMap<Key, (usize, Position)>,
    order: u64,
    bytes: usize,
}

impl Queue {
    /// Adds a frame that belongs to a key.
    pub(crate) fn put(&mut self, key: Key, priority: i64, request: Request, payload: Payload) {
        let order = self.next();
        let last = self.keys.get(&key).map_or(priority, |(_, last)| last.0.max(priority));
        self.insert((last, order, order), request, payload, Some(key));
    }

    /// Adds a question about a key: a frame that is short, and the answer of which is waited for.
    pub(crate) fn ask(&mut self, key: Key, priority: i64, request: Request, payload: Payload) {
        let order = self.next();
        let behind = self.keys.get(&key).map_or((priority, 0), |(_, last)| (last.0, last.1));
        self.insert((behind.0, behind.1, order), request, payload, Some(key));
    }

    /// Adds a frame that says something about all before it.
    pub(crate) fn put_last(&mut self, request: Request) {
        let order = self.next();
        let priority = self.frames.last_key_value().map_or(0, |((priority, ..), _)| *priority);
        self.insert((priority, order, order), request, Payload::default(), None);
    }

    /// Adds a frame that needs no other before it.
    pub(crate) fn put_first(&mut self, request: Request) {
        let order = self.next();
        self.insert((URGENT, order, order), request, Payload::default(), None);
    }

    fn next(&mut self) -> u64 {
        self.order += 1;
        self.order
    }

    fn insert(&mut self, position: Position, request: Request, payload: Payload, key: Option<Key>) {
        self.bytes += payload.len();
        self.frames.insert(position, (request, payload, key));
        if let Some(key) = key {
            let known = self.keys.entry(key).or_insert((0, position));
            *known = (known.0 + 1, known.1.max(position));
        }
    }

    /// The next frame to send.
    pub(crate) fn take(&mut self) -> Option<(Request, Payload)> {
        let (_, (request, payload, key)) = self.frames.pop_first()?;
        self.bytes -= payload.len();
        if let Some(key) = key
            && let Some(known) = self.keys.get_mut(&key)
        {
            known.0 -= 1;
            if known.0 == 0 {
                self.keys.remove(&key);
            }
        }
        Some((request, payload))
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        *self = Self { order: self.order, ..Self::default() };
    }

    /// Bytes of payload that wait.
    pub(crate) const fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_urgent_overtake_but_never_their_own_key() {
        let mut queue = Queue::default();
        let [a, b] = [1, 2].map(|name| Key { name, part: 0 });
        let push = |id, key| Request::Push { id, key, clock: 0, seen: 0, rate: None, code: None };
        queue.put(a, 5, push(1, a), Payload::default());
        queue.put(b, 1, push(2, b), Payload::default());
        // More urgent than the first push of its key, which must stay before it.
        queue.put(a, 0, push(3, a), Payload::default());
        queue.put_last(Request::Clock { clock: 1 });
        queue.put(b, 0, push(4, b), Payload::default());
        queue.put_first(Request::Lost { server: crate::protocol::ServerId(1) });
        let order: Vec<u64> = std::iter::from_fn(|| queue.take())
            .map(|(request, _)| match request {
                Request::Push { id, .. } => id,
                Request::Clock { .. } => 100,
                _ => 200,
            })
            .collect();
        assert_eq!(order, [200, 2, 4, 1, 3, 100]);
        assert!(queue.is_empty() && queue.keys.is_empty());
    }

    #[test]
    fn questions_go_right_behind_what_their_key_has_to_say() {
        let mut queue = Queue::default();
        let [a, b, c] = [1, 2, 3].map(|name| Key { name, part: 0 });
        let push = |id, key| Request::Push { id, key, clock: 0, seen: 0, rate: None, code: None };
        let ask = |id, key| Request::Pull { id, key, clock: 0, have: 0, code: None };
        queue.put(a, 0, push(1, a), Payload::default());
        queue.put(b, 0, push(2, b), Payload::default());
        queue.put_last(Request::Clock { clock: 1 });
        for (id, key) in [(3, a), (4, b), (5, c), (6, a)] {
            queue.ask(key, 0, ask(id, key), Payload::default());
        }
        queue.put(a, 0, push(7, a), Payload::default());
        let order: Vec<u64> = std::iter::from_fn(|| queue.take())
            .map(|(request, _)| match request {
                Request::Push { id, .. } | Request::Pull { id, .. } => id,
                _ => 100,
            })
            .collect();
        assert_eq!(order, [5, 1, 3, 6, 2, 4, 100, 7]);
    }
}
