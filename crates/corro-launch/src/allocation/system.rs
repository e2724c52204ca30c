//! What an allocation is, and what those who look for one are given.

use corro_core::Result;

use crate::hosts::Host;

/// A batch system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Slurm.
    Slurm,
    /// IBM's LSF.
    Lsf,
    /// `OpenPBS`, PBS Pro, Torque.
    Pbs,
    /// Grid Engine.
    Sge,
}

/// What it has given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allocation {
    /// Who.
    pub system: System,
    /// The number it gave the job.
    pub job: String,
    /// Where. Slots are what the user asked for, or one a host if he asked for hosts only.
    pub hosts: Vec<Host>,
    /// Whether the user said how many tasks a host takes.
    pub counted: bool,
}

impl Allocation {
    /// Its hosts for a job of `size` ranks, if that was said. Where only hosts were asked for, all take equally many.
    pub fn hosts_for(&self, size: Option<usize>) -> Vec<Host> {
        let mut hosts = self.hosts.clone();
        if let (Some(size), false) = (size, self.counted) {
            let each = size.div_ceil(hosts.len().max(1));
            for host in &mut hosts {
                host.slots = each;
            }
        }
        hosts
    }
}

/// Looks up one variable.
pub(super) type Get<'a> = &'a dyn Fn(&str) -> Option<String>;
/// Reads the file that a variable names.
pub(super) type Read<'a> = &'a dyn Fn(&str, &str) -> Result<String>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_without_a_number_share_the_ranks() {
        let host = |name: &str| Host { user: None, name: name.into(), slots: 1 };
        let hosts = vec![host("a"), host("b")];
        let slots = |allocation: &Allocation, size| -> Vec<usize> {
            allocation.hosts_for(size).iter().map(|h| h.slots).collect()
        };
        let free = Allocation { system: System::Slurm, job: "1".into(), hosts, counted: false };
        assert_eq!(slots(&free, Some(5)), [3, 3]);
        assert_eq!(slots(&free, None), [1, 1]);
        assert_eq!(slots(&Allocation { counted: true, ..free }, Some(5)), [1, 1]);
    }
}
