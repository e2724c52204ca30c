//! What the system says about this process and its host. Linux's `/proc` and `/sys`; elsewhere nothing is known.

use std::fs::read_to_string;

use crate::note::{MAX_NAME, Network, Usage, shortened};

/// Ticks of the clock in which `/proc` counts time: a constant of Linux's interface on all machines we run on.
const TICKS_PER_SECOND: u64 = 100;

/// The most interfaces that are told.
const MAX_INTERFACES: usize = 4;

/// What this process uses, except GPUs.
pub fn usage() -> Usage {
    let memory = read_to_string("/proc/self/status").ok().and_then(|text| resident(&text)).unwrap_or(0);
    let cpu = read_to_string("/proc/self/stat").ok().and_then(|text| processor_time(&text)).unwrap_or(0);
    Usage { cpu, memory, gpu: None }
}

fn resident(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

/// Milliseconds on processors, of a line whose second word may have anything in it, in brackets.
fn processor_time(stat: &str) -> Option<u64> {
    let words: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some((ticks(11)? + ticks(12)?) * (1000 / TICKS_PER_SECOND))
}

/// The interfaces of this host over which something goes, the busiest first; not the loopback.
pub fn network() -> Vec<Network> {
    let Ok(text) = read_to_string("/proc/self/net/dev") else { return Vec::new() };
    let mut found = interfaces(&text);
    found.truncate(MAX_INTERFACES);
    for interface in &mut found {
        // A name of an interface has no slash, but this came from outside.
        let name = interface.name.replace('/', "_");
        let megabits = read_to_string(format!("/sys/class/net/{name}/speed")).ok();
        let megabits = megabits.and_then(|text| text.trim().parse::<i64>().ok()).unwrap_or(0).max(0);
        interface.speed = megabits.unsigned_abs() * 1_000_000;
    }
    found
}

fn interfaces(text: &str) -> Vec<Network> {
    let mut found: Vec<Network> = text.lines().filter_map(interface).collect();
    found.sort_by_key(|interface| std::cmp::Reverse(interface.sent + interface.received));
    found
}

fn interface(line: &str) -> Option<Network> {
    let (name, rest) = line.split_once(':')?;
    let name = shortened(name.trim(), MAX_NAME);
    let counts: Vec<u64> = rest.split_whitespace().map_while(|word| word.parse().ok()).collect();
    let (received, sent) = (*counts.first()?, *counts.get(8)?);
    (name != "lo" && sent + received > 0).then_some(Network { name, sent, received, speed: 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_uses_something() {
        let usage = usage();
        assert!(usage.memory > 100_000, "{usage:?}");
    }

    #[test]
    fn a_name_may_have_anything_in_it() {
        let numbers = (3..=52).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        assert_eq!(processor_time(&format!("7 (a ) b) S {numbers}")), Some((13 + 14) * 10));
        assert_eq!(processor_time("7 (a) S 1 2"), None);
        assert_eq!(processor_time(""), None);
    }

    #[test]
    fn interfaces_that_carry_something_are_told() {
        let text = "Inter-| Receive | Transmit\n face |bytes packets\n    lo: 9 0 0 0 0 0 0 0 9 0 0 0 0 0 0 0\n  \
                    eth0: 100 1 0 0 0 0 0 0 200 2 0 0 0 0 0 0\n  eth1: 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0\n ib0:1000 1 0 0 0 0 0 0 1 0 0 0 0 0 0 0\n";
        let names: Vec<_> = interfaces(text).into_iter().map(|i| (i.name, i.received, i.sent)).collect();
        assert_eq!(names, [("ib0".into(), 1000, 1), ("eth0".into(), 100, 200)]);
    }
}
