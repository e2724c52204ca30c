//! What a process says about itself, so that all members of a process set choose the same planes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The longest message with somebody's facts.
pub(crate) const FACTS_CAP: usize = 8192;

/// The longest reason in it; what is longer is cut.
const REASON_CAP: usize = 400;

/// See the module. Travels as a message of `corro_core::codec`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// Where it runs: the same on all that could share memory.
    pub host: String,
    /// The GPU it uses, by the number that no other has.
    pub gpu: Option<[u8; 16]>,
    /// What NCCL is told to take for its host (`NCCL_HOSTID`).
    pub nccl_host: Option<String>,
    /// The plane that its user asks for.
    pub forced: Option<String>,
    /// Of each plane that it knows: a number whose meaning is the plane's (a version), or why it can't take part.
    pub abilities: BTreeMap<String, Result<u64, String>>,
}

impl Facts {
    /// Whether this process could take part in a plane.
    pub fn says(&mut self, plane: &str, ability: Result<u64, String>) {
        let cut = |text: String| text.chars().take(REASON_CAP).collect();
        self.abilities.insert(plane.to_owned(), ability.map_err(cut));
    }

    /// The number it has given, if it could take part.
    pub fn number(&self, plane: &str) -> Option<u64> {
        self.abilities.get(plane).and_then(|ability| ability.as_ref().ok()).copied()
    }
}
