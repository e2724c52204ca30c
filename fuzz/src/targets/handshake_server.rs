//! A server hears anything at all, or an honest hello followed by anything: it never panics and never believes it.

use std::sync::Arc;

use corro_core::{GroupId, Rank};
use corro_transport::handshake::{Binding, Client, Purpose, Server, Serves, Side};
use corro_transport::secret::Secret;

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&mode, mut rest)) = bytes.split_first() else { return };
    let secret = Arc::new(Secret::from_bytes([1; 32]));
    let role = if mode & 1 == 0 { Serves::Rank(Rank::new(2)) } else { Serves::Store };
    let mut server = Server::new(secret.clone(), role, Binding::Plain);
    if mode & 2 != 0 {
        let purpose = if mode & 4 == 0 {
            Purpose::Link {
                from: Rank::new(5),
                to: Rank::new(2),
                group: GroupId(7),
                index: 0,
                count: 1,
                control: false,
            }
        } else {
            Purpose::Store
        };
        let client = Client::with_nonce(secret, purpose, Binding::Plain, [3; 32]).expect("a valid purpose");
        if server.receive(client.output()).is_err() {
            return;
        }
        server.sent(usize::MAX >> 1);
    }
    let cut = usize::from(mode >> 3) + 1;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        if server.receive(piece).is_err() {
            break;
        }
        rest = after;
    }
    assert!(server.proven().is_none() && server.accept().is_err());
}
