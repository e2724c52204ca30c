//! Members by host: who can reach whose memory, and who links the hosts. Pure: all members come to the same.

use std::collections::BTreeMap;

use crate::facts::Facts;

/// Members of each host; the same number on all of them, and more than one. Hosts are in the order of their first members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Hosts(Vec<Vec<usize>>);

/// The teams of one member, as numbers of members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Teams {
    /// Those of its host.
    pub(super) near: Vec<usize>,
    /// Those with its place on every host.
    pub(super) across: Vec<usize>,
}

impl Hosts {
    /// Where these members are; else why they can't be put into teams.
    pub(super) fn of(facts: &[Facts]) -> Result<Self, String> {
        let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
        let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
        for (member, facts) in facts.iter().enumerate() {
            let number = *numbers.entry(&facts.host).or_insert(hosts.len());
            if number == hosts.len() {
                hosts.push((&facts.host, Vec::new()));
            }
            hosts[number].1.push(member);
        }
        let Some((name, first)) = hosts.first() else { return Err("there are no members".into()) };
        if hosts.len() < 2 {
            return Err("all members are on one host".into());
        }
        if let Some((host, near)) = hosts.iter().find(|(_, near)| near.len() != first.len()) {
            return Err(format!("{} members are on {name}, and {} on {host}", first.len(), near.len()));
        }
        if first.len() < 2 {
            return Err("each member is on a host of its own".into());
        }
        Ok(Self(hosts.into_iter().map(|(_, near)| near).collect()))
    }

    /// How many members each host has.
    pub(super) fn near(&self) -> usize {
        self.0.first().map_or(0, Vec::len)
    }

    /// The members with this place on every host.
    pub(super) fn across(&self, place: usize) -> Vec<usize> {
        self.0.iter().filter_map(|near| near.get(place).copied()).collect()
    }

    /// The teams of a member.
    pub(super) fn teams(&self, member: usize) -> Option<Teams> {
        let near = self.0.iter().find(|near| near.contains(&member))?;
        let place = near.iter().position(|other| *other == member)?;
        Some(Teams { near: near.clone(), across: self.across(place) })
    }
}

/// Why NCCL refuses to link these members: two of them have one GPU, and NCCL takes them to be on one host.
pub(super) fn sharing(facts: &[Facts], team: &[usize]) -> Option<String> {
    let told_apart = |a: &Facts, b: &Facts| matches!((&a.nccl_host, &b.nccl_host), (Some(a), Some(b)) if a != b);
    let mut users: BTreeMap<[u8; 16], Vec<usize>> = BTreeMap::new();
    for member in team {
        let Some(gpu) = facts[*member].gpu else { continue };
        let users = users.entry(gpu).or_default();
        if let Some(other) = users.iter().find(|other| !told_apart(&facts[**other], &facts[*member])) {
            return Some(format!(
                "members {other} and {member} share a GPU, which NCCL refuses (a NCCL_HOSTID for each allows it)"
            ));
        }
        users.push(*member);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(host: &str, gpu: u8, nccl_host: Option<&str>) -> Facts {
        let nccl_host = nccl_host.map(str::to_owned);
        Facts { host: host.into(), gpu: Some([gpu; 16]), nccl_host, ..Facts::default() }
    }

    #[test]
    fn hosts_of_one_size_are_linked_place_by_place() {
        let all: Vec<Facts> = ["a", "b", "a", "b", "c", "c"].map(|host| facts(host, 0, None)).into();
        let hosts = Hosts::of(&all).unwrap();
        assert_eq!(hosts.teams(0), Some(Teams { near: vec![0, 2], across: vec![0, 1, 4] }));
        assert_eq!(hosts.teams(5), Some(Teams { near: vec![4, 5], across: vec![2, 3, 5] }));
        assert_eq!((hosts.near(), hosts.teams(6)), (2, None));
    }

    #[test]
    fn what_has_no_teams_says_why() {
        let why = |hosts: &[&str]| {
            let all: Vec<Facts> = hosts.iter().map(|host| facts(host, 0, None)).collect();
            Hosts::of(&all).unwrap_err()
        };
        assert!(why(&["a", "a"]).contains("one host"));
        assert!(why(&["a", "b"]).contains("a host of its own"));
        assert!(why(&["a", "a", "b"]).contains("2 members are on a, and 1 on b"));
        assert!(why(&[]).contains("no members"));
    }

    #[test]
    fn a_gpu_may_be_shared_only_by_those_who_are_told_apart() {
        let shared = [facts("a", 1, None), facts("a", 2, None), facts("a", 1, Some("x")), facts("a", 1, Some("y"))];
        assert!(sharing(&shared, &[0, 1]).is_none());
        assert!(sharing(&shared, &[0, 1, 2]).unwrap().contains("members 0 and 2 share a GPU"));
        assert!(sharing(&shared, &[1, 2, 3]).is_none());
        let unknown = [Facts::default(), Facts::default()];
        assert!(sharing(&unknown, &[0, 1]).is_none());
    }
}
