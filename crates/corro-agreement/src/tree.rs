//! Who tells whom: the members of a process set as a tree.
//!
//! Inside a host, members hang below the first one of it, through shared memory; the first ones of all hosts form a tree
//! of their own, so that one connection per host carries the agreement. No member has more than [`FAN_OUT`] children of
//! either kind, so the depth grows with the logarithm of the members.

/// Children of one member, inside the host and again beyond it.
pub const FAN_OUT: usize = 32;

/// A member's neighbours in the tree, by their places in the process set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Neighbours {
    /// Whom it reports to; `None`: it is the root.
    pub parent: Option<usize>,
    /// Who reports to it, ascending.
    pub children: Vec<usize>,
}

/// The neighbours of `me`, where `hosts` are the members by host, hosts in the order of their first members.
pub fn neighbours(hosts: &[Vec<usize>], fan_out: usize, me: usize) -> Neighbours {
    let firsts: Vec<usize> = hosts.iter().filter_map(|host| host.first().copied()).collect();
    let mut neighbours = Neighbours { parent: None, children: Vec::new() };
    for row in hosts.iter().chain(std::iter::once(&firsts)) {
        let Some(place) = row.iter().position(|m| *m == me) else { continue };
        if place > 0 {
            neighbours.parent = Some(row[(place - 1) / fan_out]);
        }
        neighbours.children.extend(row.iter().skip(place * fan_out + 1).take(fan_out));
    }
    neighbours.children.sort_unstable();
    neighbours
}

#[cfg(test)]
mod tests {
    use super::*;

    fn depth(hosts: &[Vec<usize>], fan_out: usize, mut member: usize) -> usize {
        let mut depth = 0;
        while let Some(parent) = neighbours(hosts, fan_out, member).parent {
            member = parent;
            depth += 1;
            assert!(depth < 100, "a circle");
        }
        assert_eq!(member, hosts[0][0], "the root is the first member");
        depth
    }

    #[test]
    fn parents_and_children_agree_and_all_lead_to_the_root() {
        for (hosts, ranks, fan_out) in [(1, 1, 32), (1, 9, 2), (5, 3, 2), (7, 1, 3), (40, 8, 32)] {
            let hosts: Vec<Vec<usize>> = (0..hosts).map(|h| (0..ranks).map(|r| h * ranks + r).collect()).collect();
            for member in hosts.iter().flatten() {
                let mine = neighbours(&hosts, fan_out, *member);
                assert!(mine.children.len() <= 2 * fan_out);
                for child in &mine.children {
                    assert_eq!(neighbours(&hosts, fan_out, *child).parent, Some(*member));
                }
                depth(&hosts, fan_out, *member);
            }
        }
    }

    #[test]
    fn a_host_has_one_connection_to_the_rest() {
        let hosts = [vec![0, 1, 2], vec![3, 4, 5]];
        let crossing = (0..6).filter(|m| neighbours(&hosts, 32, *m).parent.is_some_and(|p| p / 3 != m / 3));
        assert_eq!(crossing.collect::<Vec<_>>(), [3]);
    }

    #[test]
    fn depth_is_logarithmic() {
        let hosts: Vec<Vec<usize>> = (0..2048).map(|h| (0..8).map(|r| h * 8 + r).collect()).collect();
        assert_eq!((0..16384).step_by(517).map(|m| depth(&hosts, 32, m)).max(), Some(4));
    }
}
