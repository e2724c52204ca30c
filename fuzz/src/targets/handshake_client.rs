//! A client hears anything at all: it never panics, never believes it, and says nothing after its hello.

use std::sync::Arc;

use corro_transport::handshake::{Binding, Client, Purpose, Side};
use corro_transport::secret::Secret;

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&mode, mut rest)) = bytes.split_first() else { return };
    let secret = Arc::new(Secret::from_bytes([1; 32]));
    let mut client = Client::with_nonce(secret, Purpose::Store, Binding::Tls([mode; 32]), [3; 32]).expect("valid");
    let hello = client.output().len();
    client.sent(hello);
    let cut = usize::from(mode) + 1;
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(cut.min(rest.len()));
        if client.receive(piece).is_err() {
            break;
        }
        rest = after;
    }
    assert!(!client.server_is_proven() && !client.is_accepted() && client.output().is_empty());
    assert!(client.prove().is_err() && client.withdraw().is_err());
}
