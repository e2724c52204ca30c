//! Members by host: who can reach whose memory, and who links the hosts. Pure: all members come to the same.

use crate::facts::Facts;

/// The teams of one member, as numbers of members.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Teams {
    /// Those of its host.
    pub(super) near: Vec<usize>,
    /// Those with its place on every host.
    pub(super) across: Vec<usize>,
}

/// The teams of all members; else why there are none.
pub(super) fn teams(facts: &[Facts]) -> Result<Vec<Teams>, String> {
    let mut hosts: Vec<(&str, Vec<usize>)> = Vec::new();
    for (member, facts) in facts.iter().enumerate() {
        match hosts.iter_mut().find(|(host, _)| *host == facts.host) {
            Some((_, near)) => near.push(member),
            None => hosts.push((&facts.host, vec![member])),
        }
    }
    let Some((_, first)) = hosts.first() else { return Err("there are no members".into()) };
    if hosts.len() < 2 {
        return Err("all members are on one host".into());
    }
    if let Some((host, near)) = hosts.iter().find(|(_, near)| near.len() != first.len()) {
        return Err(format!("{} members are on {}, and {} on {host}", first.len(), hosts[0].0, near.len()));
    }
    if first.len() < 2 {
        return Err("each member is on a host of its own".into());
    }
    let team = |member: usize| {
        let (_, near) = hosts.iter().find(|(_, near)| near.contains(&member))?;
        let place = near.iter().position(|other| *other == member)?;
        Some(Teams { near: near.clone(), across: hosts.iter().map(|(_, near)| near[place]).collect() })
    };
    (0..facts.len()).map(|member| team(member).ok_or_else(|| "a member is nowhere".to_owned())).collect()
}

/// Why NCCL refuses to link these members: two of them have one GPU, and NCCL takes them to be on one host.
pub(super) fn sharing(facts: &[Facts], team: &[usize]) -> Option<String> {
    let told_apart = |a: &Facts, b: &Facts| matches!((&a.nccl_host, &b.nccl_host), (Some(a), Some(b)) if a != b);
    for (i, a) in team.iter().enumerate() {
        for b in &team[i + 1..] {
            let (one, other) = (&facts[*a], &facts[*b]);
            if one.gpu.is_some() && one.gpu == other.gpu && !told_apart(one, other) {
                return Some(format!(
                    "members {a} and {b} share a GPU, which NCCL refuses (a NCCL_HOSTID for each allows it)"
                ));
            }
        }
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
        let teams = teams(&all).unwrap();
        assert_eq!(teams[0], Teams { near: vec![0, 2], across: vec![0, 1, 4] });
        assert_eq!(teams[5], Teams { near: vec![4, 5], across: vec![2, 3, 5] });
    }

    #[test]
    fn what_has_no_teams_says_why() {
        let why = |hosts: &[&str]| {
            let all: Vec<Facts> = hosts.iter().map(|host| facts(host, 0, None)).collect();
            teams(&all).unwrap_err()
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
