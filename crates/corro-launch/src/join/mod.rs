//! Agents that come to the launcher by themselves, from pods of a cluster for instance, instead of being started by it.
//!
//! An agent that joins dials the launcher's port, proves the job's secret, says its name, and from then on serves as any other: the
//! connection takes the place of its standard input and output. It is encrypted in any case, since orders hold the secret by
//! which ranks talk to each other.
//!
//! | module | holds |
//! | --- | --- |
//! | `listening` | the launcher's side: who is there, and who is waited for |
//! | `joined_agents` | who is called what (pure) |
//! | `relay` | bytes between a connection and a pair of sockets |
//! | `joining` | the agent's side |

mod joined_agents;
mod joining;
mod listening;
mod relay;

use corro_core::Result;
use corro_transport::secret::Secret;
use serde::{Deserialize, Serialize};

pub(crate) use joining::{JoinTarget, serve};
pub(crate) use listening::AgentListener;

/// The first that an agent says.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Introduction {
    name: String,
    slots: u32,
}

/// The longest introduction.
const MAX_INTRODUCTION: usize = 1024;

/// The key of this port: what proves it proves nothing elsewhere.
fn join_key(secret: &Secret) -> Secret {
    Secret::from_bytes(secret.derive("agents that join"))
}

/// The secret that driver and agents were given.
fn given_secret() -> Result<Secret> {
    use corro_core::{Error, config};
    let name = config::SECRET.name;
    let text = config::SECRET.value().ok_or_else(|| {
        Error::Usage(format!(
            "agents join by a secret: set {name} to the same 64 hexadecimal digits for them and the launcher"
        ))
    })?;
    Secret::parse(&text)
}
