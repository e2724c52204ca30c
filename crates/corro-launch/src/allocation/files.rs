//! What LSF, PBS and SGE say of an allocation: mostly the names of files with a line for a host or a slot.

use corro_core::{Error, Result};

use super::system::{Allocation, Get, Read, System};
use crate::hosts::{self, Host};

/// The allocation this process is in.
pub(super) fn find(get: Get<'_>, read: Read<'_>) -> Result<Option<Allocation>> {
    let given = |system, job, hosts| Ok(Some(Allocation { system, job, hosts, counted: true }));
    if let Some(job) = get("LSB_JOBID") {
        return match lsf(get, read)? {
            Some(hosts) => given(System::Lsf, job, hosts),
            None => Ok(None),
        };
    }
    if let (Some(job), Some(path)) = (get("PBS_JOBID"), get("PBS_NODEFILE")) {
        let hosts = hosts::parse_file(&read(&path, "PBS_NODEFILE")?, &path)?;
        return given(System::Pbs, job, hosts);
    }
    if let (Some(job), Some(path)) = (get("JOB_ID"), get("PE_HOSTFILE")) {
        let hosts = parallel_environment(&read(&path, "PE_HOSTFILE")?, &path)?;
        return given(System::Sge, job, hosts);
    }
    Ok(None)
}

/// On machines with launch nodes LSF counts those as well, with one slot: ranks don't run there.
fn lsf(get: Get<'_>, read: Read<'_>) -> Result<Option<Vec<Host>>> {
    let all = match (get("LSB_DJOB_HOSTFILE"), get("LSB_MCPU_HOSTS")) {
        (Some(path), _) => hosts::parse_file(&read(&path, "LSB_DJOB_HOSTFILE")?, &path)?,
        (None, Some(text)) => hosts::parse_pairs(&text)?,
        (None, None) => return Ok(None),
    };
    let is_launch_node =
        |host: &Host| host.slots == 1 && (host.name.starts_with("batch") || host.name.starts_with("login"));
    let computing: Vec<Host> = all.iter().filter(|host| !is_launch_node(host)).cloned().collect();
    Ok(Some(if computing.is_empty() { all } else { computing }))
}

/// SGE's lines: `g1 4 main.q@g1 UNDEFINED`: host, slots, queue, processors.
fn parallel_environment(text: &str, path: &str) -> Result<Vec<Host>> {
    let mut list = Vec::new();
    for (number, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let mut words = line.split_whitespace();
        let (Some(name), Some(Ok(slots))) = (words.next(), words.next().map(str::parse::<usize>)) else {
            return Err(Error::Usage(format!(
                "{path}, line {}: {line:?} is not a host and its slots, as SGE writes them",
                number + 1
            )));
        };
        list.push(format!("{name}:{slots}"));
    }
    hosts::parse_list(&list.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pairs: &[(&str, &str)], file: &str) -> Result<Option<Allocation>> {
        find(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()), &|_, _| Ok(file.to_owned()))
    }

    fn shown(found: Result<Option<Allocation>>) -> String {
        let found = found.unwrap().unwrap();
        let hosts: Vec<String> = found.hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect();
        format!("{:?} {} {}", found.system, found.job, hosts.join(" "))
    }

    #[test]
    fn lsf() {
        let file = [("LSB_JOBID", "99"), ("LSB_DJOB_HOSTFILE", "/f")];
        assert_eq!(shown(look(&file, "h1\nh1\nh2\nh2\n")), "Lsf 99 h1:2 h2:2");
        // A machine with launch nodes, as Summit's was.
        let pairs = [("LSB_JOBID", "99"), ("LSB_MCPU_HOSTS", "batch5 1 h41n03 42 h41n04 42 ")];
        assert_eq!(shown(look(&pairs, "")), "Lsf 99 h41n03:42 h41n04:42");
        assert_eq!(shown(look(&[("LSB_JOBID", "9"), ("LSB_MCPU_HOSTS", "batch1 1")], "")), "Lsf 9 batch1:1");
        assert_eq!(look(&[("LSB_JOBID", "99")], "").unwrap(), None);
        assert_eq!(look(&[("LSB_MCPU_HOSTS", "h1 1")], "").unwrap(), None);
    }

    /// A line a slot; names may have a domain.
    #[test]
    fn pbs() {
        let pairs = [("PBS_JOBID", "12.server"), ("PBS_NODEFILE", "/var/spool/pbs/aux/12.server")];
        assert_eq!(shown(look(&pairs, "n1.x\nn1.x\nn2.x\n")), "Pbs 12.server n1.x:2 n2.x:1");
        assert!(look(&pairs, "").unwrap_err().to_string().contains("names no host"));
        assert_eq!(look(&pairs[..1], "").unwrap(), None);
    }

    #[test]
    fn sge() {
        let pairs = [("JOB_ID", "4"), ("PE_HOSTFILE", "/pe")];
        assert_eq!(shown(look(&pairs, "g1 2 main.q@g1 UNDEFINED\ng2 1 main.q@g2 <NULL>\n")), "Sge 4 g1:2 g2:1");
        for text in ["g1\n", "g1 x main.q\n", "-x 1 q u\n"] {
            assert!(look(&pairs, text).is_err(), "{text}");
        }
        // A job of one slot, outside any parallel environment.
        assert_eq!(look(&pairs[..1], "").unwrap(), None);
    }
}
