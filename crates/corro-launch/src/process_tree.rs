//! Processes and all that descends from them, signals to all of it, and children that end with their parent.
//!
//! Used by the agent, which is a subreaper (a process whose parent has died becomes the agent's child, so nothing a rank
//! has started can get out of reach, not even by a new session), and by the launcher for what it has started itself.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::{Pid, Signal, getpid, kill_process, kill_process_group};

/// So often is it looked for processes that were started while others were being stopped.
const ROUNDS: usize = 10;
/// So many threads of a process are listed.
const MAX_THREADS: usize = 200;

/// Sends `signal` to the groups of `leaders`, then to each descendant of this process that is in none of them.
pub(crate) fn signal_descendants(leaders: &[Pid], signal: Signal) {
    // The groups first: a rank that ends its helpers itself should hear of it as early as they do.
    for leader in leaders {
        let _ = kill_process_group(*leader, signal);
    }
    for process in below(getpid(), &all_processes()) {
        if !leaders.contains(&process.group) {
            let _ = kill_process(process.pid, signal);
        }
    }
}

/// Kills the child `root`, its group, and all that descends from it. It must lead a group of its own and not have been waited
/// for.
pub(crate) fn kill_tree(root: Pid) {
    // Stopped first, parents before children, so that nobody starts another one while the list is made.
    let mut stopped = BTreeSet::new();
    let _ = kill_process_group(root, Signal::STOP);
    for _ in 0..ROUNDS {
        let found = below(root, &all_processes());
        let new: Vec<Pid> = found.iter().map(|p| p.pid).filter(|pid| !stopped.contains(&number(*pid))).collect();
        if new.is_empty() {
            break;
        }
        for pid in new {
            let _ = kill_process(pid, Signal::STOP);
            stopped.insert(number(pid));
        }
    }
    for pid in stopped.into_iter().filter_map(Pid::from_raw) {
        let _ = kill_process(pid, Signal::KILL);
    }
    let _ = kill_process_group(root, Signal::KILL);
}

/// Has a child killed when the thread that starts it ends, also by kill -9 of this process.
#[expect(unsafe_code, reason = "only the child itself can ask for it")]
pub(crate) fn kill_with_parent(command: &mut Command) {
    let parent = getpid();
    let ask = move || -> std::io::Result<()> {
        rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
        // The parent may have died before the line above.
        if rustix::process::getppid() != Some(parent) {
            return Err(ErrorKind::BrokenPipe.into());
        }
        Ok(())
    };
    // SAFETY: between fork and exec the closure only makes system calls; it allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

/// The threads of a process as the system knows them, one a line: name, state, and where it sleeps.
pub(crate) fn threads(pid: Pid) -> String {
    let folder = format!("/proc/{}/task", number(pid));
    let mut threads: Vec<_> = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path()).collect();
    threads.sort_unstable();
    let read = |path: &Path, name: &str| std::fs::read_to_string(path.join(name)).unwrap_or_default();
    let line = |path: &PathBuf| {
        let stat = read(path, "stat");
        let state =
            stat.rsplit_once(')').and_then(|(_, rest)| rest.split_whitespace().next()).unwrap_or("?").to_owned();
        let place = read(path, "wchan");
        let place = if place.is_empty() || place == "0" { "" } else { place.trim() };
        let id = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        format!("  thread {id} {:<16} {state} {place}\n", read(path, "comm").trim())
    };
    threads.iter().take(MAX_THREADS).map(line).collect()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    pid: Pid,
    parent: i32,
    group: Pid,
}

fn number(pid: Pid) -> i32 {
    pid.as_raw_nonzero().get()
}

fn all_processes() -> Vec<Process> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let process = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        parse(pid, &std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)
    };
    entries.filter_map(process).collect()
}

/// The processes of `all` that descend from `root`.
fn below(root: Pid, all: &[Process]) -> Vec<Process> {
    let mut known = BTreeSet::from([number(root)]);
    let mut found: Vec<Process> = Vec::new();
    loop {
        let is_new = |p: &&Process| known.contains(&p.parent) && !known.contains(&number(p.pid));
        let new: Vec<Process> = all.iter().filter(is_new).copied().collect();
        if new.is_empty() {
            return found;
        }
        known.extend(new.iter().map(|p| number(p.pid)));
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
        let mut found: Vec<i32> = below(Pid::from_raw(5).unwrap(), &all).iter().map(|p| number(p.pid)).collect();
        found.sort_unstable();
        assert_eq!(found, [6, 8, 9]);
    }

    #[test]
    fn threads_are_listed_by_name() {
        let (end, wait) = std::sync::mpsc::channel::<()>();
        let (tell, awake) = std::sync::mpsc::channel::<()>();
        let sleep = move || tell.send(()).and_then(|()| wait.recv().or(Ok(())));
        let sleeper = std::thread::Builder::new().name("a-sleeper".into()).spawn(sleep).unwrap();
        awake.recv().unwrap();
        let text = threads(getpid());
        drop(end);
        let _ = sleeper.join();
        assert!(text.lines().any(|line| line.contains("a-sleeper")), "{text}");
    }

    #[test]
    fn strange_lines_are_left_out() {
        assert!(parse(3, "").is_none() && parse(3, "3 (x").is_none() && parse(3, "3 (x) S").is_none());
    }

    fn lives(pid: i32) -> bool {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    }

    #[test]
    fn a_tree_is_killed_with_those_who_left_its_group() {
        let mut child =
            Command::new("sh").arg("-c").arg("setsid sleep 300 & sleep 300 & wait").process_group(0).spawn().unwrap();
        let root = Pid::from_raw(child.id() as i32).unwrap();
        let sleepers = || -> Vec<i32> { below(root, &all_processes()).iter().map(|p| number(p.pid)).collect() };
        // Both, and `setsid` has become a leader of its own group.
        let grown = || below(root, &all_processes()).iter().any(|p| p.group == p.pid) && sleepers().len() == 2;
        let until = std::time::Instant::now() + std::time::Duration::from_secs(30);
        while !grown() {
            assert!(std::time::Instant::now() < until, "the shell has not started its children");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        let all = sleepers();
        kill_tree(root);
        child.wait().unwrap();
        while all.iter().any(|pid| lives(*pid)) {
            assert!(std::time::Instant::now() < until, "some are left of {all:?}");
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }
}
