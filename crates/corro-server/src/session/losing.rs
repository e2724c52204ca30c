//! What a worker does when a server is lost.

use std::collections::BTreeMap;

use corro_core::Error;

use super::{Answer, Session};
use crate::frame::Request;
use crate::protocol::{Key, Payload, ServerId};
use crate::queue::URGENT;
use crate::shard::heir;

impl Session {
    /// A server is lost: everything that it may have taken with it is said again, to its heir.
    pub fn lose(&mut self, server: ServerId) {
        if server.index() >= self.setup.servers.len() || self.lost.contains(&server) {
            return;
        }
        let before = self.lost.clone();
        self.lost.insert(server);
        self.queues[server.index()].clear();
        let living = self.living();
        if living.is_empty() {
            return self.fail(self.nobody_left());
        }
        for other in living {
            self.queues[other.index()].put_first(Request::Lost { server });
        }
        let servers = self.setup.servers.len();
        let was_here = |home: ServerId| heir(home, servers, &before) == Some(server);
        for (name, named) in &self.names {
            for (at, part) in named.parts.iter().enumerate().filter(|(_, part)| was_here(part.home)) {
                let Some(heir) = heir(part.home, servers, &self.lost) else { continue };
                let key = Key { name: *name, part: at as u32 };
                let queue = &mut self.queues[heir.index()];
                let pending = self.pending.iter_mut().filter(|(_, p)| p.part == Some(key) && p.answer.is_none());
                let mut again: BTreeMap<u64, (Request, Payload)> = BTreeMap::new();
                for (id, pending) in pending {
                    pending.server = heir;
                    again.insert(*id, (pending.request.clone(), pending.payload.clone()));
                }
                again.extend(
                    part.sent.iter().map(|(_, id, request, payload)| (*id, (request.clone(), payload.clone()))),
                );
                let init_is_open = again.values().any(|(request, _)| matches!(request, Request::Init { .. }));
                let resume = named.init(key, 0, true);
                // A sum's heir has never heard of it. An owner's heir has a copy, and must know when all is said again.
                if !named.rule.owns() && !init_is_open {
                    queue.put(key, URGENT, resume.clone(), Payload::default());
                }
                for (request, payload) in again.into_values() {
                    queue.put(key, URGENT, request, payload);
                }
                if named.rule.owns() && !init_is_open {
                    queue.put(key, URGENT, resume, Payload::default());
                }
            }
        }
        self.ask_again(server, was_here(ServerId::FIRST));
    }

    /// Questions that were not about a key.
    fn ask_again(&mut self, lost: ServerId, had_barriers: bool) {
        let heir = self.home(ServerId::FIRST).unwrap_or(ServerId::FIRST);
        if had_barriers && self.barrier > 0 {
            // Even if we have passed it: the heir does not know, and others may wait.
            let open = self
                .pending
                .iter_mut()
                .find(|(_, p)| matches!(p.request, Request::Barrier { .. }) && p.answer.is_none());
            let id = open.map_or(0, |(id, pending)| {
                pending.server = heir;
                *id
            });
            self.queues[heir.index()].put_first(Request::Barrier { id, number: self.barrier });
        }
        for pending in self.pending.values_mut().filter(|p| p.server == lost && p.part.is_none() && p.answer.is_none())
        {
            pending.answer = match pending.request {
                Request::Barrier { .. } => None,
                Request::Dump { .. } => Some(Err(Error::Shutdown(
                    format!("parameter server {lost} was lost while its keys were saved: save again").into(),
                ))),
                Request::Stats { .. } => Some(Ok(Answer::Stats(Vec::new()))),
                _ => Some(Ok(Answer::Done)),
            };
        }
    }
}
