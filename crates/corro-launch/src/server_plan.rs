//! Which parameter servers a job wants, and how its ranks are told (pure).

use corro_core::{Error, Result};

use crate::hosts::Host;

/// Which servers a job wants.
#[derive(Clone, Debug, Default)]
pub struct ServerPlan {
    /// The host of each.
    pub hosts: Vec<Host>,
    /// Whether these hosts have no ranks.
    pub apart: bool,
}

impl ServerPlan {
    /// What ranks are told: how many there are, and whether they have hosts of their own.
    pub(crate) fn setting(&self) -> String {
        format!("{}{}", self.hosts.len(), if self.apart { " apart" } else { "" })
    }

    /// What [`ServerPlan::setting`] said.
    pub(crate) fn understand(setting: &str) -> Result<(usize, bool)> {
        let (count, rest) = setting.split_once(' ').unwrap_or((setting, ""));
        match (count.parse(), rest) {
            (Ok(count), "" | "apart") => Ok((count, rest == "apart")),
            _ => Err(Error::Usage(format!("CORRO_SERVERS is {setting:?}: `corro run --servers` sets it"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_ranks_are_told_is_understood() {
        let host = || Host::local(1);
        for plan in
            [ServerPlan { hosts: vec![host(); 3], apart: false }, ServerPlan { hosts: vec![host()], apart: true }]
        {
            assert_eq!(ServerPlan::understand(&plan.setting()).unwrap(), (plan.hosts.len(), plan.apart));
        }
        for wrong in ["", "x", "2 spare"] {
            assert!(ServerPlan::understand(wrong).is_err());
        }
    }
}
