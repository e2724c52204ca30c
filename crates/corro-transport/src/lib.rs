//! Moving bytes between ranks.
//!
//! A [`Fabric`] knows who is where; a [`Channel`] is what one group of ranks works with: a [`Team`] that shares memory
//! inside the host, and [`Link`]s to anyone. This crate decides nothing about *what* is moved: that is
//! `corro-collectives`.
//!
//! | module | holds |
//! | --- | --- |
//! | `fabric` | who is where, channels |
//! | `link` | messages to one peer over its streams |
//! | `stream` | the one word all transports speak |
//! | `place` | how a process learns its place in the job |
//! | `holder` | that only one process is a rank |
//! | `mem` | ranks as threads |
//! | `wait_limit`, `withdrawal` | how waiting ends before its time |
//! | `shm` | ranks as processes of one host |
//! | [`tcp`] | ranks on different hosts; with `tls` |
//! | `handshake`, [`secret`] | how both ends of a connection prove that they belong to the job |
//! | `bind` | where servers of a job listen: nowhere but at the interfaces that the user named
//! | [`store`] | the rendezvous: a small authenticated key-value store |
//! | [`messages`] | many processes of a job talking to one, by messages both ways |
//! | [`listener`] | connections of whoever comes to a process that serves data |
//! | [`statements`] | how a rank tells whoever started it why it ends |
//! | [`forks`] | whether this process was forked from the one that had joined; what its children don't inherit |
//! | `cores` | how many cores may be used, and so whether to spin |

pub mod cores;
mod fabric;
pub mod forks;
mod holder;
mod link;
mod mem;
mod place;
mod primitive;
mod private_folder;
mod reminder;
mod ring;
mod settings;
mod shm;
mod stream;
mod wait_limit;
mod withdrawal;

// network
mod bind;
pub mod handshake;
pub mod listener;
pub mod messages;
pub mod nic;
pub mod secret;
pub mod statements;
pub mod store;
pub mod tcp;
mod tls;

pub use bind::Bind;
pub use fabric::{Card, Channel, Fabric, Links, Rendezvous, Wires, host_name};
pub use holder::hold;
pub use link::{Incoming, Link, Outgoing};
pub use place::{Place, first_free, look_up, look_up_ports};
pub use settings::Settings;
pub use shm::pool::Pooled;
pub use shm::span::{Source, Span, Target};
pub use shm::team::{Member, Team};
pub use stream::{Broken, Stream};
pub use wait_limit::WaitLimit;
pub use withdrawal::Withdrawal;
