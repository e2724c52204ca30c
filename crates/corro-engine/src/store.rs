//! Stores of parameters at the servers of this job, for programs that have an [`Engine`]: it tells ranks where servers are.
//!
//! Servers are those that `corro run --servers` has started; without them, every rank has one in a thread of its own. See
//! `docs/parameter-server.md`.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::net::SocketAddr;
use std::ops::Deref;
use std::time::Duration;

use corro_core::{DType, Error, Result, Shape};
use corro_server::client::{Client, ServerAddress, StoreConfig};
use corro_server::server::Server;
use corro_server::{Consistency, WorkerId, launched, placement};
use corro_transport::secret::Secret;
use corro_transport::{Bind, Settings};

use crate::Kind;
use crate::engine::Engine;
use crate::submission::Submission;

/// How long this rank's server waits for the last workers to say goodbye.
const FAREWELL: Duration = Duration::from_secs(2);

/// A store for the ranks of a process set. What can be done with it is what its [`Client`] can do.
///
/// ```no_run
/// use corro_core::DType;
/// use corro_engine::Engine;
/// use corro_engine::store::Store;
/// use corro_server::session::KeySpec;
/// use corro_server::{Consistency, Rule};
///
/// # fn main() -> corro_core::Result<()> {
/// let engine = Engine::from_env(0)?;
/// let store = Store::open(&engine, corro_engine::GLOBAL, Consistency::Bsp)?;
/// let spec = KeySpec { name: "x".into(), dtype: DType::F32, rows: 4, width: 1, rule: Rule::Average, striped: false, code: None };
/// store.init(spec, None)?;
/// store.push("x", &[0; 16], 0, None)?;
/// let mut value = [0; 16];
/// store.value(&store.pull("x", 0)?, &mut value)?;
/// store.close()
/// # }
/// ```
#[derive(Debug)]
pub struct Store {
    client: Client,
    /// Dropped after the client, which says goodbye to it.
    server: Option<Server>,
}

impl Store {
    /// Makes a store. All ranks of the process set must, with the same consistency.
    pub fn open(engine: &Engine, set: u32, consistency: Consistency) -> Result<Self> {
        let ranks = engine.process_set(set).ok_or_else(|| Error::Usage(format!("there is no process set {set}")))?;
        let me = ranks.iter().position(|rank| *rank == engine.rank());
        let me = me.ok_or_else(|| Error::Usage(format!("{} is not in process set {set}", engine.rank())))?;
        let settings = Settings::from_env()?;
        let launched = launched::servers()?;
        let secret = match launched {
            Some(_) => launched::secret()?,
            None => Secret::from_bytes(engine.object_key().derive("parameter servers")),
        };
        // Beside servers with hosts of their own ranks have some, too: see the table of docs/parameter-server.md.
        let server = match launched {
            Some(ref launched) if !launched.apart => None,
            _ => {
                let bind = Bind::reachable(engine.cross_size() == 1, settings.interfaces.as_deref())?;
                Some(Server::start_at(&bind, &secret, settings.tls)?)
            }
        };
        let extra = launched.map_or_else(Vec::new, |launched| launched.addresses);
        let (spare_share, host_share) = placement::shares(engine.cross_size().max(1), extra.len());
        let mut servers: Vec<ServerAddress> =
            extra.into_iter().map(|addresses| ServerAddress { addresses, share: spare_share }).collect();
        // The first rank says which store it is: no other has that number.
        let number = RandomState::new().build_hasher().finish() >> 1;
        let listens = server.as_ref().map_or(&[][..], Server::addresses);
        let told = gather(engine, set, &announcement(number, engine.local_size(), listens))?;
        for (_, at_host, addresses) in told.iter().filter(|(_, _, addresses)| !addresses.is_empty()) {
            let share = host_share / (*at_host).max(1) as f64;
            servers.push(ServerAddress { addresses: addresses.clone(), share });
        }
        let store = told.first().map_or(number, |(number, ..)| *number);
        let client = Client::connect(StoreConfig {
            store,
            me: WorkerId(me as u32),
            workers: ranks.len() as u32,
            consistency,
            servers,
            secret,
            tls: settings.tls,
            timeout: settings.timeout,
            connect_timeout: settings.connect_timeout,
            interrupted: || false,
        })?;
        Ok(Self { client, server })
    }

    /// Leaves when all do: nobody is missed should a server be lost just then.
    pub fn close(self) -> Result<()> {
        let outcome = self.client.barrier();
        drop(self.client);
        if let Some(server) = self.server {
            server.finish(FAREWELL);
        }
        outcome
    }
}

impl Deref for Store {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

type Told = (u64, usize, Vec<SocketAddr>);

/// What a rank tells the others: the number of the store, the ranks of its host, and where its server listens.
fn announcement(number: u64, at_host: usize, listens: &[SocketAddr]) -> String {
    let addresses: Vec<String> = listens.iter().map(ToString::to_string).collect();
    format!("{number} {at_host} {}\n", addresses.join(","))
}

fn understood(line: &str) -> Option<Told> {
    let mut words = line.splitn(3, ' ');
    let (number, at_host) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let addresses = words.next()?.split(',').filter(|word| !word.is_empty()).map(|word| word.parse().ok());
    Some((number, at_host, addresses.collect::<Option<_>>()?))
}

/// What all ranks of the set say, in their order.
fn gather(engine: &Engine, set: u32, mine: &str) -> Result<Vec<Told>> {
    let shape = Shape(vec![mine.len()]);
    let input = Some(mine.as_bytes().to_vec().into());
    let gathering = Submission { set, input, ..Submission::new("corro.store", Kind::Allgather, DType::U8, shape) };
    let bytes = engine.run(gathering)?.into_bytes()?;
    let text = String::from_utf8_lossy(&bytes);
    let told: Option<Vec<Told>> = text.lines().map(understood).collect();
    told.ok_or_else(|| Error::Malformed(format!("where parameter servers are: {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_announced_is_understood() {
        let listens: Vec<SocketAddr> = vec!["127.0.0.1:5".parse().unwrap(), "[::1]:6".parse().unwrap()];
        for addresses in [&listens[..], &[]] {
            let line = announcement(7, 2, addresses);
            assert_eq!(understood(line.trim_end_matches('\n')).unwrap(), (7, 2, addresses.to_vec()));
        }
        for wrong in ["", "1", "1 2", "x 2 ", "1 2 nowhere"] {
            assert!(understood(wrong).is_none(), "{wrong:?}");
        }
    }
}
