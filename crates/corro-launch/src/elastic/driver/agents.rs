//! The agents of an elastic job's hosts: how the driver gets one, what it tells it, and how it loses it.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::process::Command;
use std::time::{Duration, Instant};

use corro_core::{Error, Result};
use corro_membership::{Input, WorkerId};
use corro_transport::nic;
use serde_bytes::ByteBuf;

use super::Driver;
use crate::agent::message::{Order, Start};
use crate::agent::{self, BEAT};
use crate::agent_process::AgentProcess;
use crate::job::{GOODBYE, LAUNCHER_PATIENCE};
use crate::remote;
use crate::variables::{self, Common};

/// An agent of a host. A host that comes back gets a new one.
pub(super) struct Agent {
    pub(super) host: String,
    pub(super) local: bool,
    pub(super) process: AgentProcess,
    pub(super) started: Instant,
    pub(super) heard: Instant,
    /// Whether it has said hello, and the launcher's address as it sees it.
    pub(super) greeted: bool,
    pub(super) caller: Option<IpAddr>,
    /// What it is to start once it has said hello.
    pub(super) waiting: Vec<WorkerId>,
    pub(super) over: bool,
}

impl Driver<'_> {
    pub(super) fn start_agent(&mut self, name: &str) -> Result<usize> {
        let job = &self.elastic.job;
        let Some((host, local)) = self.hosts.get(name).cloned() else {
            return Err(Error::Bug(format!("a worker for {name}, which was never discovered")));
        };
        let command = if local {
            let mut command = Command::new(&job.agent[0]);
            command.args(&job.agent[1..]);
            command
        } else {
            remote::agent_command(&job.remote, &host, &job.agent, job.start_timeout)
        };
        if job.verbose {
            self.say(&format!("corro: reaching {name}"));
        }
        let at = self.agents.len();
        let process = AgentProcess::start(command, at, &self.sender, &self.output)?;
        let now = Instant::now();
        let host = name.to_owned();
        self.agents.push(Agent {
            host,
            local,
            process,
            started: now,
            heard: now,
            greeted: false,
            caller: None,
            waiting: Vec::new(),
            over: false,
        });
        Ok(at)
    }

    /// An agent has said hello: it is told what will be started there, and then what is.
    pub(super) fn begin_at(&mut self, at: usize) -> Result<()> {
        let job = &self.elastic.job;
        let bytes = |text: &OsString| ByteBuf::from(text.as_bytes());
        let start = Start {
            directory: ByteBuf::from(job.directory.as_os_str().as_bytes()),
            command: job.command.iter().map(bytes).collect(),
            environment: agent::passed_on(std::env::vars_os()).iter().map(|(n, v)| (bytes(n), bytes(v))).collect(),
            ranks: Vec::new(),
            silence_ms: (!self.agents[at].local).then_some((job.host_timeout * LAUNCHER_PATIENCE).as_millis() as u64),
            orphan_ms: Some(self.elastic.orphan_time.as_millis() as u64),
        };
        self.agents[at].process.order(&Order::Start(start))?;
        self.launch_waiting(at)
    }

    pub(super) fn launch_waiting(&mut self, at: usize) -> Result<()> {
        let job = &self.elastic.job;
        let common = Common {
            rendezvous: self.reachable(at, self.store.addresses()?)?,
            secret: self.secret.to_hex(),
            tls: job.tls,
            interfaces: job.interfaces.clone(),
            settings: job.variables.clone(),
        };
        let driver = self.reachable(at, self.messages.addresses()?)?;
        for worker in std::mem::take(&mut self.agents[at].waiting) {
            let own = variables::of_worker(&common, worker, &driver, &self.agents[at].host);
            self.agents[at].process.order(&Order::Launch { rank: worker as usize, own })?;
        }
        Ok(())
    }

    /// Addresses of ours as the agent's host can use them. Those that lead nowhere do no harm: workers try them all, and
    /// whoever answers must prove the secret.
    fn reachable(&self, at: usize, mut addresses: Vec<SocketAddr>) -> Result<Vec<SocketAddr>> {
        let job = &self.elastic.job;
        if !job.interfaces.is_empty() {
            let chosen = nic::addresses(Some(&job.interfaces))?;
            addresses.retain(|a| a.ip().is_loopback() || chosen.iter().any(|n| n.address == a.ip()));
        } else if let (Some(ip), Some(first)) = (self.agents[at].caller, addresses.first().copied()) {
            // The address by which the other host sees us is known to work, at least for ssh.
            let seen = SocketAddr::new(ip, first.port());
            addresses.retain(|a| *a != seen);
            addresses.insert(0, seen);
        }
        if self.agents[at].local {
            addresses.sort_by_key(|a| !a.ip().is_loopback());
        }
        Ok(addresses)
    }

    pub(super) fn beat_and_listen(&mut self, now: Instant) -> Result<()> {
        let job = &self.elastic.job;
        let mut lost = Vec::new();
        if now >= self.last_beat + BEAT * 5 {
            // We were stopped; that is no silence of the hosts.
            for agent in &mut self.agents {
                agent.heard = now;
            }
        }
        for (at, agent) in self.agents.iter_mut().enumerate().filter(|(_, a)| !a.over) {
            if !agent.greeted && now >= agent.started + job.start_timeout {
                let limit = job.start_timeout.as_secs_f64();
                lost.push((
                    at,
                    format!(
                        "Timed out waiting for its agent to answer. Timeout after {limit} seconds (--start-timeout)"
                    ),
                ));
            }
            if agent.local || !agent.greeted {
                continue;
            }
            agent.process.order(&Order::Beat)?;
            if agent.process.is_showing() {
                // We do not listen to it now, because nobody reads what we show: that is no silence of the host.
                agent.heard = now;
            }
            if now >= agent.heard + job.host_timeout {
                lost.push((at, format!("nothing was heard from it for {:?} (--host-timeout)", job.host_timeout)));
            }
        }
        lost.into_iter().try_for_each(|(at, why)| self.lose_host(at, &why))
    }

    pub(super) fn lose_host(&mut self, at: usize, why: &str) -> Result<()> {
        let agent = &mut self.agents[at];
        agent.over = true;
        // Should it still be there, it ends what it has started.
        agent.process.release(Duration::ZERO);
        let host = agent.host.clone();
        self.workers.retain(|_, a| *a != at);
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
        for (at, agent) in self.agents.iter_mut().enumerate() {
            if !agent.over && agent.greeted && !used.contains(&at) && !self.listed.contains(&agent.host) {
                agent.process.order(&Order::End { signal: libc::SIGTERM, grace_ms: 0 })?;
                agent.over = true;
            }
        }
        Ok(())
    }

    pub(super) fn why_silent(&mut self, at: usize, reason: Option<String>) -> String {
        let agent = &mut self.agents[at];
        let status = agent.process.status(GOODBYE);
        let words = agent.process.last_words(GOODBYE);
        let last = words.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>();
        let mut text = last[last.len().saturating_sub(3)..].join(" | ");
        if text.is_empty() {
            let how = status.map_or_else(|| "it closed the connection".to_owned(), |s| format!("it ended with {s}"));
            text = reason.unwrap_or(how);
        }
        match remote::advice(&agent.host, &words) {
            Some(advice) if !agent.local => format!("its agent is gone: {text} ({advice})"),
            _ => format!("its agent is gone: {text}"),
        }
    }
}
