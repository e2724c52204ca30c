//! The targets by name. A new one is a file in `targets/` and a line in each of the two lists below.

pub mod agent_messages;
pub mod codec;
pub mod engine_messages;
pub mod handshake_client;
pub mod handshake_server;
pub mod host_lists;
pub mod meeting_file;
pub mod membership_messages;
pub mod notes;
pub mod page_requests;
pub mod plane_facts;
pub mod store_session;
pub mod trace_files;

/// What takes bytes, and what it is called.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// As its file, its seeds and its corpus.
    pub name: &'static str,
    /// Panics if the bytes have brought something about that must not be.
    pub run: fn(&[u8]),
}

/// All there are.
pub const TARGETS: [Target; 13] = [
    Target { name: "agent_messages", run: agent_messages::run },
    Target { name: "codec", run: codec::run },
    Target { name: "engine_messages", run: engine_messages::run },
    Target { name: "handshake_client", run: handshake_client::run },
    Target { name: "handshake_server", run: handshake_server::run },
    Target { name: "host_lists", run: host_lists::run },
    Target { name: "meeting_file", run: meeting_file::run },
    Target { name: "membership_messages", run: membership_messages::run },
    Target { name: "notes", run: notes::run },
    Target { name: "page_requests", run: page_requests::run },
    Target { name: "plane_facts", run: plane_facts::run },
    Target { name: "store_session", run: store_session::run },
    Target { name: "trace_files", run: trace_files::run },
];
