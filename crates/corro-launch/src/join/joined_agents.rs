//! Which agents have joined and what they are called. Pure.
//!
//! An agent says its name (a pod's is that of its host). One that comes again under a name that was used is another one, with
//! nothing held against it: the second `w-0` is the host `2@w-0`, which is another place on the same machine.

use std::collections::BTreeMap;

use crate::hosts::Host;

/// Those who are there, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct JoinedAgents {
    all: Vec<JoinedAgent>,
    /// How often each name has come.
    times: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct JoinedAgent {
    host: Host,
    leaving: bool,
    claimed: bool,
}

impl JoinedAgents {
    /// One has come; gives its full name.
    pub(super) fn come(&mut self, name: &str, slots: usize) -> String {
        let times = self.times.entry(name.to_owned()).or_insert(0);
        *times += 1;
        let user = (*times > 1).then(|| times.to_string());
        let host = Host { user, name: name.to_owned(), slots };
        let full_name = host.full_name();
        self.all.push(JoinedAgent { host, leaving: false, claimed: false });
        full_name
    }

    /// One has gone.
    pub(super) fn go(&mut self, full_name: &str) {
        self.all.retain(|agent| agent.host.full_name() != full_name);
    }

    /// One will go soon. False if that was known, or it is not there.
    pub(super) fn leave(&mut self, full_name: &str) -> bool {
        let found = self.all.iter_mut().find(|agent| agent.host.full_name() == full_name);
        found.is_some_and(|agent| !std::mem::replace(&mut agent.leaving, true))
    }

    /// Takes the one that `wanted` means, if it is there and nobody has it: by its full name, or by the name of its host, of which `wanted`
    /// may have more (`w-0.workers.team.svc` is `w-0`). Of several of one name, the last that came.
    pub(super) fn claim(&mut self, wanted: &str) -> Option<String> {
        let free = |agent: &&mut JoinedAgent| !agent.claimed && is_meant(&agent.host, wanted);
        let agent = self.all.iter_mut().rev().find(free)?;
        agent.claimed = true;
        Some(agent.host.full_name())
    }

    /// Those who are there and stay.
    pub(super) fn hosts(&self) -> Vec<Host> {
        self.all.iter().filter(|agent| !agent.leaving).map(|agent| agent.host.clone()).collect()
    }
}

/// Whether a host is the one that is called `wanted`.
pub(super) fn is_meant(host: &Host, wanted: &str) -> bool {
    host.full_name() == wanted || host.name == wanted || wanted.split('.').next() == Some(host.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_comes_again_is_another_one() {
        let mut agents = JoinedAgents::default();
        assert_eq!(agents.come("w-0", 1), "w-0");
        assert_eq!(agents.come("w-1", 2), "w-1");
        agents.go("w-0");
        assert_eq!(agents.come("w-0", 1), "2@w-0");
        let names: Vec<String> = agents.hosts().iter().map(Host::full_name).collect();
        assert_eq!(names, ["w-1", "2@w-0"]);
        assert!(agents.leave("w-1") && !agents.leave("w-1") && !agents.leave("w-0"));
        assert_eq!(agents.hosts().len(), 1);
    }

    #[test]
    fn hosts_are_claimed_once_by_any_of_their_names() {
        let mut agents = JoinedAgents::default();
        agents.come("w-0", 1);
        assert_eq!(agents.claim("w-1"), None);
        assert_eq!(agents.claim("w-0.workers.team.svc.cluster.local").as_deref(), Some("w-0"));
        assert_eq!(agents.claim("w-0"), None);
        agents.come("w-0", 1);
        assert_eq!(agents.claim("w-0").as_deref(), Some("2@w-0"));
        agents.come("w-0", 1);
        assert_eq!(agents.claim("3@w-0").as_deref(), Some("3@w-0"));
    }
}
