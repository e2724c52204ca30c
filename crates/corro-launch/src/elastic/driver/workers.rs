//! The workers of an elastic job on their hosts: how the driver gets an agent where one is to be started, what it tells it,
//! and how it loses it.

use corro_core::{Error, Result};
use corro_membership::{Input, WorkerId};
use std::collections::BTreeSet;

use super::Driver;
use crate::agent::message::Order;
use crate::agent_process::lock_soon;
use crate::process_id::ProcessId;
use crate::variables;

impl Driver<'_> {
    pub(super) fn start_worker(&mut self, worker: WorkerId, host: &str) -> Result<()> {
        let label = if self.epochs == 0 { worker.to_string() } else { format!("w{worker}") };
        if let Some(mut output) = lock_soon(&self.launcher.output) {
            output.add(ProcessId::of_worker(worker), label)?;
        }
        let at = match self.launcher.agents.iter().position(|a| a.host == host && !a.over) {
            Some(at) => at,
            None => self.start_agent(host)?,
        };
        self.workers.insert(worker, at);
        self.deaths.started(ProcessId::of_worker(worker));
        self.waiting.entry(at).or_default().push(worker);
        if self.launcher.agents[at].is_ready() { self.launch_waiting(at) } else { Ok(()) }
    }

    fn start_agent(&mut self, name: &str) -> Result<usize> {
        let Some((host, local)) = self.hosts.get(name) else {
            return Err(Error::Bug(format!("a worker for {name}, which was never discovered")));
        };
        if self.elastic.job.verbose {
            self.launcher.say(&format!("corro: reaching {name}"));
        }
        self.launcher.start_agent(name, host, *local)
    }

    /// An agent has said hello: it is told what will be started there, and then what is.
    pub(super) fn begin_at(&mut self, at: usize) -> Result<()> {
        let order = self.launcher.start_order(at, Vec::new(), Some(self.elastic.orphan_time));
        self.launcher.agents[at].order(&order)?;
        self.launch_waiting(at)
    }

    fn launch_waiting(&mut self, at: usize) -> Result<()> {
        // A host may get as many workers as it has slots; how many it has just now would change with each that comes.
        let slots = self.hosts.get(&self.launcher.agents[at].host).map_or(1, |(host, _)| host.slots);
        let share = self.launcher.share(at, slots.min(self.elastic.rules.max));
        if !std::mem::replace(&mut self.told_threads, true) {
            self.launcher.tell_threads(std::slice::from_ref(&share));
        }
        let common = self.launcher.common(at, &share)?;
        let driver = self.launcher.reachable(at, self.messages.addresses()?)?;
        let agent = &self.launcher.agents[at];
        for worker in self.waiting.remove(&at).unwrap_or_default() {
            let own = variables::of_worker(&common, worker, &driver, &agent.host);
            agent.order(&Order::Launch { process: ProcessId::of_worker(worker), own })?;
        }
        Ok(())
    }

    /// Ends one worker: it is asked to, and killed if it does not.
    pub(super) fn kill_worker(&mut self, worker: WorkerId) -> Result<()> {
        let Some(at) = self.workers.get(&worker) else { return Ok(()) };
        if let Some(waiting) = self.waiting.get_mut(at) {
            waiting.retain(|w| *w != worker);
        }
        let grace_ms = self.elastic.job.grace.as_millis() as u64;
        self.launcher.agents[*at].order(&Order::Kill { process: ProcessId::of_worker(worker), grace_ms })
    }

    /// A host is lost: should its agent still be there, all that it has started is ended.
    pub(super) fn lose_host(&mut self, at: usize, why: &str) -> Result<()> {
        self.launcher.give_up(at);
        self.forget_host(at, why)
    }

    /// Nothing more is expected of a host and its workers.
    pub(super) fn forget_host(&mut self, at: usize, why: &str) -> Result<()> {
        self.launcher.agents[at].over = true;
        let host = self.launcher.agents[at].host.clone();
        self.workers.retain(|_, agent| *agent != at);
        self.waiting.remove(&at);
        if self.kill_at.is_some() {
            return Ok(());
        }
        self.note(Input::HostLost(host, why.to_owned()))
    }

    /// Nothing of the job stays on a host that has left it. Should it come back, it gets a new agent.
    pub(super) fn leave_empty_hosts(&mut self) -> Result<()> {
        if self.kill_at.is_some() {
            return Ok(());
        }
        let used: BTreeSet<usize> = self.workers.values().copied().collect();
        for (at, agent) in self.launcher.agents.iter_mut().enumerate() {
            if !agent.over && agent.is_ready() && !used.contains(&at) && !self.listed.contains(&agent.host) {
                agent.order(&Order::End { signal: libc::SIGTERM, grace_ms: 0 })?;
                agent.over = true;
            }
        }
        Ok(())
    }
}
