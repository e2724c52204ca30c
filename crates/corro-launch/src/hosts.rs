//! Which hosts a job may use, as people write them: `-H a:2,b:4`, a hostfile, IPv6 in brackets, `user@host`.
//!
//! Pure: texts in, hosts out. Whether a host is this one, or can be reached, is [`crate::start`]'s business.

use corro_core::{Error, Result};

/// A host and how many ranks it takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The account to log in with, if one was given.
    pub user: Option<String>,
    /// Its name or address, without brackets.
    pub name: String,
    /// How many ranks it takes at most.
    pub slots: usize,
}

impl Host {
    /// This machine, with as many slots as are wanted.
    pub fn local(slots: usize) -> Self {
        Self { user: None, name: "localhost".into(), slots }
    }

    /// Its name among all: with the account, if one was given.
    pub fn full_name(&self) -> String {
        match &self.user {
            Some(user) => format!("{user}@{}", self.name),
            None => self.name.clone(),
        }
    }
}

/// `h1:2,user@h2:4,[fd00::3]:2`. A host without a number takes one rank. A host named twice has the slots of both.
pub fn parse_list(text: &str) -> Result<Vec<Host>> {
    let hosts = text.split(',').map(str::trim).filter(|word| !word.is_empty()).map(|word| {
        let (name, slots) = split_slots(word).ok_or_else(|| bad(word))?;
        host(name, slots.unwrap_or(1)).ok_or_else(|| bad(word))
    });
    gather(hosts.collect::<Result<_>>()?, "the list of hosts")
}

/// One host a line: `name slots=4`, `name:4` or `name`; `#` begins a comment, blank lines are fine.
pub fn parse_file(text: &str, path: &str) -> Result<Vec<Host>> {
    let mut hosts = Vec::new();
    // Some editors begin a file with a mark that nobody sees.
    for (number, line) in text.trim_start_matches('\u{feff}').lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = || {
            Error::Usage(format!(
                "{path}, line {}: {line:?} is not a host; write `name slots=4`, `name:4`, or `[fd00::1] slots=4`",
                number + 1
            ))
        };
        hosts.push(parse_line(line).ok_or_else(wrong)?);
    }
    gather(hosts, path)
}

/// LSF's way: `node1 4 node2 4`.
pub fn parse_pairs(text: &str) -> Result<Vec<Host>> {
    let words: Vec<&str> = text.split_whitespace().collect();
    let pair = |pair: &[&str]| match pair {
        [name, slots] => host(name, slots.parse().ok()?),
        _ => None,
    };
    let wrong = || Error::Usage(format!("LSB_MCPU_HOSTS is {text:?}, which is not hosts and their slots in turn"));
    gather(words.chunks(2).map(|words| pair(words).ok_or_else(wrong)).collect::<Result<_>>()?, "LSB_MCPU_HOSTS")
}

/// What a discovery script prints: one host a line, `name` or `name:slots`. The order means nothing, twice the same is once,
/// and no line at all is no host.
pub fn parse_found(text: &str, slots_per_host: Option<usize>) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()).filter(|l| !l.is_empty()) {
        let wrong = || Error::Usage(format!("{line:?} is not a host: a line is `name`, `name:4` or `[fd00::1]:4`"));
        let (name, slots) = split_slots(line).ok_or_else(wrong)?;
        let found = host(name, slots.or(slots_per_host).unwrap_or(1)).ok_or_else(wrong)?;
        match hosts.iter_mut().find(|h| h.name == found.name && h.user == found.user) {
            Some(same) => same.slots = same.slots.max(found.slots),
            None => hosts.push(found),
        }
    }
    Ok(hosts)
}

fn parse_line(line: &str) -> Option<Host> {
    // `slots = 4` is `slots=4`.
    let parts: Vec<&str> = line.split('=').map(str::trim).collect();
    let line = parts.join("=");
    let mut words = line.split_whitespace();
    let (name, mut slots) = split_slots(words.next()?)?;
    for word in words {
        // Open MPI's hostfiles may hold a limit as well; nothing here starts more than `slots`.
        match word.split_once('=')? {
            ("slots", number) if slots.is_none() => slots = Some(number.parse().ok()?),
            ("max_slots" | "max-slots", number) => drop(number.parse::<usize>().ok()?),
            _ => return None,
        }
    }
    host(name, slots.unwrap_or(1))
}

/// The name (brackets gone) and the number after it, if there is one.
fn split_slots(word: &str) -> Option<(&str, Option<usize>)> {
    if let Some(at) = word.find('[') {
        // The user, if any, is in front of the bracket: it is cut off again by `host`.
        let (user, rest) = word.split_at(at);
        let (address, after) = rest[1..].split_once(']')?;
        address.parse::<std::net::Ipv6Addr>().ok()?;
        if !user.is_empty() && !user.ends_with('@') {
            return None;
        }
        let slots = match after.strip_prefix(':') {
            Some(number) => Some(number.parse().ok()?),
            None if after.is_empty() => None,
            None => return None,
        };
        return Some((&word[..at + 1 + address.len()], slots));
    }
    if word.parse::<std::net::Ipv6Addr>().is_ok() {
        return Some((word, None));
    }
    match word.split_once(':') {
        Some((name, number)) => Some((name, Some(number.parse().ok()?))),
        None => Some((word, None)),
    }
}

fn host(name: &str, slots: usize) -> Option<Host> {
    let (user, name) = match name.split_once('@') {
        Some((user, name)) => (Some(user), name),
        None => (None, name),
    };
    let name = name.trim_start_matches('[');
    let plain = |c: char| c.is_alphanumeric() || "._-".contains(c);
    let good_name = name.parse::<std::net::Ipv6Addr>().is_ok() || (!name.is_empty() && name.chars().all(plain));
    // A leading dash would be read as an option by ssh.
    let good = good_name
        && !name.starts_with('-')
        && user.is_none_or(|u| !u.is_empty() && !u.starts_with('-') && u.chars().all(plain));
    good.then(|| Host { user: user.map(Into::into), name: name.into(), slots })
}

fn bad(word: &str) -> Error {
    Error::Usage(format!(
        "{word:?} is not a host: give a list such as `node1:4,user@node2:4,[fd00::3]:2`, each with its number of slots"
    ))
}

fn gather(all: Vec<Host>, source: &str) -> Result<Vec<Host>> {
    let mut hosts: Vec<Host> = Vec::new();
    for host in all {
        match hosts.iter_mut().find(|h| h.name == host.name && h.user == host.user) {
            Some(same) => same.slots += host.slots,
            None => hosts.push(host),
        }
    }
    if hosts.is_empty() {
        return Err(Error::Usage(format!("{source} names no host")));
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(hosts: &[Host]) -> String {
        let one = |h: &Host| match &h.user {
            Some(user) => format!("{user}@{} {}", h.name, h.slots),
            None => format!("{} {}", h.name, h.slots),
        };
        hosts.iter().map(one).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn lists() {
        for (text, want) in [
            ("server1:4,server2:2", "server1 4, server2 2"),
            ("localhost", "localhost 1"),
            (" a:1 , b_c.d-e:3,", "a 1, b_c.d-e 3"),
            ("a:1,b:1,a:2", "a 3, b 1"),
            ("me@a:2,a:1", "me@a 2, a 1"),
            ("10.0.0.1:2", "10.0.0.1 2"),
            ("[fd00::1]:2,fd00::2,you@[::1]:3", "fd00::1 2, fd00::2 1, you@::1 3"),
        ] {
            assert_eq!(shown(&parse_list(text).unwrap()), want, "{text}");
        }
    }

    #[test]
    fn wrong_lists_are_named() {
        for text in ["", "a:x", "a:-1", ":4", "-oProxyCommand=x:1", "a b:1", "[fd00::1:2", "x[::1]:2", "@a:1", "-l@a:1"]
        {
            assert!(matches!(parse_list(text), Err(Error::Usage(_))), "{text}");
        }
    }

    #[test]
    fn files_take_comments_blanks_and_ipv6() {
        let text =
            "# the cluster\n\nnode1 slots=4\n  node2:2   # half\nnode3\n[fd00::1] slots=2 max_slots=4\r\nu@n slots=1\n";
        let hosts = parse_file(text, "hosts").unwrap();
        assert_eq!(shown(&hosts), "node1 4, node2 2, node3 1, fd00::1 2, u@n 1");
        assert_eq!(shown(&parse_file("\u{feff}a slots = 3\r\nb\tslots= 2\n", "hosts").unwrap()), "a 3, b 2");
        for (text, line) in [("a\nb slots=x\n", "line 2"), ("a slots=1 2", "line 1"), ("a:1 slots=2", "line 1")] {
            assert!(parse_file(text, "hosts").unwrap_err().to_string().contains(line), "{text}");
        }
        assert!(parse_file("# nothing\n", "hosts").unwrap_err().to_string().contains("hosts names no host"));
    }

    #[test]
    fn pairs_as_lsf_writes_them() {
        assert_eq!(shown(&parse_pairs("node1 4 node2 2 node1 1 ").unwrap()), "node1 5, node2 2");
        for text in ["", "a", "a b", "a 1 b", "-x 1"] {
            assert!(matches!(parse_pairs(text), Err(Error::Usage(_))), "{text}");
        }
    }

    #[test]
    fn discovered_hosts() {
        let found = |text, slots| shown(&parse_found(text, slots).unwrap());
        assert_eq!(found("a:2\n\nb\n[fd00::1]:3\nfd00::2\n", Some(4)), "a 2, b 4, fd00::1 3, fd00::2 4");
        assert_eq!(found("a\na:2\na:2\n", None), "a 2");
        assert_eq!(found("", None), "");
        assert!(parse_found("a:2\noh no, an error\n", None).is_err());
    }

    proptest! {
        #[test]
        fn any_text_gives_hosts_or_an_error(text in "[ab@:,\\[\\]0-9.# =slots\n-]{0,60}") {
            let hosts = parse_list(&text).into_iter().chain(parse_file(&text, "f"));
            for host in hosts.flatten() {
                prop_assert!(!host.name.starts_with('-') && !host.name.is_empty());
            }
        }
    }
}
