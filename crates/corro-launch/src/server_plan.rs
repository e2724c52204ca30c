//! Which parameter servers a job wants.

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
        corro_server::launched::setting(self.hosts.len(), self.apart)
    }
}
