//! An agent on a node of a Slurm allocation, as a job step of its own: no ssh, and Slurm knows of it.
//!
//! A step a node, so that losing a node ends that step and no other.

use std::ffi::OsString;
use std::process::Command;
use std::time::Duration;

use super::starter::{Reach, Starter, advice_on_missing_program};
use crate::hosts::Host;

/// What the batch script's own request tells every `srun` in it: an agent is one task and has the whole node.
const NOT_FOR_AGENTS: [&str; 12] = [
    "SLURM_NTASKS",
    "SLURM_NPROCS",
    "SLURM_NTASKS_PER_NODE",
    "SLURM_NTASKS_PER_CORE",
    "SLURM_NTASKS_PER_SOCKET",
    "SLURM_NTASKS_PER_GPU",
    "SLURM_GPUS_PER_TASK",
    "SLURM_CPUS_PER_TASK",
    "SLURM_TRES_PER_TASK",
    "SLURM_DISTRIBUTION",
    "SLURM_MEM_PER_CPU",
    "SLURM_MEM_PER_GPU",
];

/// Starts agents by srun.
pub(super) struct Srun;

impl Starter for Srun {
    fn command(&self, host: &Host, agent: &[OsString], _limit: Duration) -> Command {
        let mut command = Command::new("srun");
        // Beside whatever else runs in the allocation, and with all that the job has on the node.
        command.args(["--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"]);
        // Bytes go through as they come, and nothing is said beside them.
        command.args(["--quiet", "--unbuffered", "--input=0", "--kill-on-bad-exit=0"]);
        command
            .args(["--nodes=1", "--ntasks=1"])
            .arg(format!("--nodelist={}", host.name))
            .arg("--")
            .args(agent)
            .arg("--in-step");
        for name in NOT_FOR_AGENTS {
            command.env_remove(name);
        }
        command
    }
}

impl Reach for Srun {
    fn name(&self) -> String {
        "srun".into()
    }

    fn advice(&self, host: &str, stderr: &str) -> Option<String> {
        let table = [
            (
                "Requested nodes are busy",
                "another job step holds it: end it, or start it with `srun --overlap`".to_owned(),
            ),
            (
                "Immediate execution impossible",
                "another job step holds it: end it, or start it with `srun --overlap`".into(),
            ),
            ("not in this job", format!("{host} is no node of this allocation (SLURM_JOB_NODELIST)")),
            (
                "node configuration is not available",
                format!("{host} is no node of this allocation (SLURM_JOB_NODELIST)"),
            ),
            (
                "Node failure",
                "Slurm has lost the node; with `sbatch --no-kill` an elastic job goes on without it".into(),
            ),
            ("Invalid job id", "the allocation is over".into()),
            ("Job/step already completing", "the allocation is ending".into()),
        ];
        let known = table.into_iter().find(|(complaint, _)| stderr.contains(complaint)).map(|(_, advice)| advice);
        known.or_else(|| advice_on_missing_program(stderr))
    }

    fn advice_on_silence(&self) -> String {
        "is the node up (`sinfo -N`), and does `srun --overlap -w NODE true` work in this allocation?".into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hosts;

    #[test]
    fn a_step_of_one_task_with_the_whole_node() {
        let host = hosts::parse_list("s2:4").unwrap().remove(0);
        let command = Srun.command(&host, &["corro".into(), "agent".into()], Duration::from_secs(30));
        let words: Vec<_> = command.get_args().map(|w| w.to_string_lossy()).collect();
        let line = words.join(" ");
        for part in ["--overlap", "--unbuffered", "--input=0", "--nodelist=s2", "--ntasks=1"] {
            assert!(line.contains(part), "{line}");
        }
        assert!(line.ends_with("-- corro agent --in-step"), "{line}");
        let dropped: Vec<_> = command.get_envs().filter(|(_, v)| v.is_none()).map(|(n, _)| n.to_owned()).collect();
        assert!(dropped.iter().any(|name| name == "SLURM_GPUS_PER_TASK"));
    }

    /// What srun 22.05 prints.
    #[test]
    fn complaints_have_advice() {
        let srun = Srun;
        let advice =
            srun.advice("s9", "srun: error: Unable to create step for job 5: Requested nodes are busy").unwrap();
        assert!(advice.contains("--overlap"));
        assert!(srun.advice("s2", "srun: error: Node failure on s2").unwrap().contains("--no-kill"));
        let missing = "slurmstepd: error: execve(): corro: No such file or directory";
        assert!(srun.advice("s2", missing).unwrap().contains("--remote-corro"));
        assert_eq!(srun.advice("s2", "srun: something"), None);
    }
}
