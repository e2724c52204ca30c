//! What Slurm says of an allocation, in a batch script or under `salloc`.

use corro_core::{Error, Result};

use super::nodelist;
use super::system::{Allocation, Get, System};
use crate::hosts::Host;

/// More hosts than any cluster has.
const MOST: usize = 1 << 20;

/// The allocation this process is in.
pub(super) fn find(get: Get<'_>) -> Result<Option<Allocation>> {
    let (Some(job), Some(list)) = (get("SLURM_JOB_ID"), get("SLURM_JOB_NODELIST")) else { return Ok(None) };
    let names = nodelist::expand(&list)?;
    // Without a number of tasks, Slurm's own one per host is a count of cores: nobody has asked for so many ranks.
    let counted = get("SLURM_NTASKS").or_else(|| get("SLURM_NTASKS_PER_NODE")).is_some();
    let slots = match (counted, get("SLURM_TASKS_PER_NODE"), get("SLURM_GPUS_ON_NODE")) {
        (true, Some(text), _) => tasks(&text)?,
        // A rank a GPU, as this node has them.
        (_, _, Some(gpus)) => vec![number(&gpus, "SLURM_GPUS_ON_NODE")?.max(1); names.len()],
        _ => vec![1; names.len()],
    };
    if slots.len() != names.len() {
        return Err(Error::Usage(format!(
            "SLURM_TASKS_PER_NODE speaks of {} hosts and SLURM_JOB_NODELIST of {}: give -H host:slots,... yourself",
            slots.len(),
            names.len()
        )));
    }
    let hosts = names.into_iter().zip(slots).map(|(name, slots)| Host { user: None, name, slots }).collect();
    let gpus = get("SLURM_GPUS_ON_NODE").is_some();
    Ok(Some(Allocation { system: System::Slurm, job, hosts, counted: counted || gpus }))
}

fn number(text: &str, name: &str) -> Result<usize> {
    text.trim().parse().map_err(|_| Error::Usage(format!("{name} is {text:?}, which is not a number")))
}

/// `2(x3),1` as 2, 2, 2, 1.
pub(super) fn tasks(text: &str) -> Result<Vec<usize>> {
    let wrong = || Error::Usage(format!("SLURM_TASKS_PER_NODE is {text:?}, which is not like `2(x3),1`"));
    let mut all = Vec::new();
    for part in text.split(',') {
        let (count, times) = match part.trim().split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').and_then(|t| t.parse().ok())),
            None => (part.trim(), Some(1)),
        };
        let (Ok(count), Some(times)) = (count.parse::<usize>(), times) else { return Err(wrong()) };
        if times > MOST - all.len() || count > MOST {
            return Err(wrong());
        }
        all.extend(std::iter::repeat_n(count, times));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(pairs: &[(&str, &str)]) -> Result<Option<Allocation>> {
        find(&|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).to_owned()))
    }

    /// The variables as Slurm 22.05 sets them in a batch script.
    #[test]
    fn hosts_tasks_and_gpus() {
        let job = [("SLURM_JOB_ID", "7"), ("SLURM_JOB_NODELIST", "s[1-2]"), ("SLURM_TASKS_PER_NODE", "4(x2)")];
        for (name, more, want, counted) in [
            ("sbatch -N2", &[][..], "s1:1 s2:1", false),
            ("sbatch -n8", &[("SLURM_NTASKS", "8")], "s1:4 s2:4", true),
            ("sbatch --ntasks-per-node=4", &[("SLURM_NTASKS_PER_NODE", "4")], "s1:4 s2:4", true),
            ("sbatch --gres=gpu:2", &[("SLURM_GPUS_ON_NODE", "2")], "s1:2 s2:2", true),
            ("both", &[("SLURM_GPUS_ON_NODE", "2"), ("SLURM_NTASKS", "8")], "s1:4 s2:4", true),
        ] {
            let found = look(&[&job[..], more].concat()).unwrap().unwrap();
            let hosts: Vec<String> = found.hosts.iter().map(|h| format!("{}:{}", h.name, h.slots)).collect();
            assert_eq!((hosts.join(" ").as_str(), found.counted), (want, counted), "{name}");
            assert_eq!((found.system, found.job.as_str()), (System::Slurm, "7"));
        }
        assert_eq!(look(&job[..1]).unwrap(), None);
        assert_eq!(look(&job[1..]).unwrap(), None);
    }

    #[test]
    fn tasks_as_slurm_counts_them() {
        assert_eq!(tasks("2(x3),1").unwrap(), [2, 2, 2, 1]);
        assert_eq!(tasks("1").unwrap(), [1]);
        for text in ["", "x", "2(x", "2(x3", "2(3)", "-1", "1,,2", "1(x99999999999)"] {
            assert!(tasks(text).unwrap_err().to_string().contains("SLURM_TASKS_PER_NODE"), "{text}");
        }
    }

    #[test]
    fn variables_that_disagree_are_told() {
        let pairs = [
            ("SLURM_JOB_ID", "7"),
            ("SLURM_JOB_NODELIST", "s[1-3]"),
            ("SLURM_NTASKS", "4"),
            ("SLURM_TASKS_PER_NODE", "2(x2)"),
        ];
        assert!(look(&pairs).unwrap_err().to_string().contains("2 hosts"));
    }
}
