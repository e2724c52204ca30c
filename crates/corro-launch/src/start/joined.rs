//! An agent that was started by somebody else, in a pod of its own for instance, and joins by itself.

use super::starter::Reach;

/// Agents come by themselves.
pub(crate) struct Joined;

impl Reach for Joined {
    fn name(&self) -> String {
        "joining".into()
    }

    fn advice(&self, _host: &str, _stderr: &str) -> Option<String> {
        None
    }

    fn advice_on_silence(&self) -> String {
        "is `corro agent --join=THIS-HOST:PORT` running there, with the same CORRO_SECRET? Its own output says why it does not join".into()
    }
}
