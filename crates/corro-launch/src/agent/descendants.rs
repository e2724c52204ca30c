//! Everything that descends from this process, and signals to all of it.
//!
//! The agent is a subreaper: a process whose parent has died becomes the agent's child, so nothing a rank has started
//! can get out of reach, not even by a new session.

use std::collections::BTreeSet;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

/// Sends `signal` to the groups of `ranks`, then to each descendant that is in none of them.
pub(super) fn signal_all(ranks: &[Pid], signal: Signal) {
    // The groups first: a rank that ends its helpers itself should hear of it as early as they do.
    for rank in ranks {
        let _ = kill_process_group(*rank, signal);
    }
    for process in descendants() {
        if !ranks.contains(&process.group) {
            let _ = kill_process(process.pid, signal);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: Pid,
}

fn descendants() -> Vec<Process> {
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten().filter_map(|entry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    });
    below(getpid().as_raw_nonzero().get(), &all.collect::<Vec<_>>())
}

/// The processes of `all` that descend from `root`.
fn below(root: i32, all: &[Process]) -> Vec<Process> {
    let mut known = BTreeSet::from([root]);
    let mut found: Vec<Process> = Vec::new();
    loop {
        let new: Vec<Process> = all
            .iter()
            .filter(|p| known.contains(&p.parent) && !known.contains(&p.pid.as_raw_nonzero().get()))
            .copied()
            .collect();
        if new.is_empty() {
            return found;
        }
        known.extend(new.iter().map(|p| p.pid.as_raw_nonzero().get()));
        found.extend(new);
    }
}

/// A line of `/proc/PID/stat`: pid (name) state parent group ... The name may hold anything, also brackets.
fn parse(pid: i32, stat: &str) -> Option<Process> {
    let mut words = stat.rsplit_once(')')?.1.split_whitespace().skip(1);
    let parent = words.next()?.parse().ok()?;
    let group = Pid::from_raw(words.next()?.parse().ok()?)?;
    Some(Process { pid: Pid::from_raw(pid)?, parent, group })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(pid: i32, parent: i32) -> Process {
        parse(pid, &format!("{pid} (a) b) S {parent} {pid} 7 0")).unwrap()
    }

    #[test]
    fn trees_are_found_whatever_the_order() {
        let all = [process(9, 8), process(8, 5), process(5, 1), process(6, 5), process(7, 1)];
        let mut found: Vec<i32> = below(5, &all).iter().map(|p| p.pid.as_raw_nonzero().get()).collect();
        found.sort_unstable();
        assert_eq!(found, [6, 8, 9]);
    }

    #[test]
    fn strange_lines_are_left_out() {
        assert!(parse(3, "").is_none() && parse(3, "3 (x").is_none() && parse(3, "3 (x) S").is_none());
    }

    #[test]
    fn a_child_of_ours_is_found() {
        let mut child = std::process::Command::new("sleep").arg("30").spawn().unwrap();
        assert!(descendants().iter().any(|p| p.pid.as_raw_nonzero().get() == child.id() as i32));
        child.kill().unwrap();
        child.wait().unwrap();
    }
}
