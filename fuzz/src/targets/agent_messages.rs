//! What an agent may hear from whoever is at its standard input and from its ranks, and a launcher from whoever answers in an agent's place:
//! any bytes, in any pieces, give messages or an error, and nothing is held beyond the longest message.

use corro_core::departure::MAX_STATEMENT;
use corro_core::{Statement, codec};
use corro_launch::agent::message::{Inbox, MAX_ORDER, MAX_REPORT, Order, Report};
use serde::{Serialize, de::DeserializeOwned};

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&size, rest)) = bytes.split_first() else { return };
    hear::<Order>(usize::from(size) + 1, rest, MAX_ORDER);
    hear::<Report>(usize::from(size) + 1, rest, MAX_REPORT);
    hear::<Statement>(usize::from(size) + 1, rest, MAX_STATEMENT);
}

fn hear<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(size: usize, bytes: &[u8], cap: usize) {
    // As they are, and as the body of one message, so that the fuzzer need not find the right length first.
    let framed = [&(bytes.len() as u32 + 1).to_le_bytes(), [codec::VERSION].as_slice(), bytes].concat();
    for bytes in [bytes, &framed] {
        let mut inbox = Inbox::default();
        for piece in bytes.chunks(size) {
            inbox.receive(piece);
            loop {
                match inbox.next::<T>(cap) {
                    Ok(Some(message)) => {
                        let again = codec::encode(&message).expect("what was decoded can be encoded");
                        let (back, _) = codec::take::<T>(&again, usize::MAX).expect("valid").expect("whole");
                        assert_eq!(back, message);
                    }
                    Ok(None) => break,
                    Err(_) => return,
                }
            }
        }
    }
}
