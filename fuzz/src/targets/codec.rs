//! Frames of the store, as any stranger may send them: a value or an error, never a panic, never more than the cap.

use corro_core::codec;
use corro_transport::store::{Request, Response};

const CAP: usize = 1 << 16;

/// A length and a version that are right, so that the fuzzer need not find them before it gets to the body.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32 + 1).to_le_bytes().to_vec();
    bytes.push(codec::VERSION);
    bytes.extend_from_slice(body);
    bytes
}

/// Feeds it.
pub fn run(input: &[u8]) {
    let Some((&raw, rest)) = input.split_first() else { return };
    let bytes = if raw == 0 { rest.to_vec() } else { framed(rest) };
    let bytes = bytes.as_slice();
    if let Ok(Some((request, used))) = codec::take::<Request>(bytes, CAP) {
        assert!(used <= bytes.len() && used <= CAP + codec::LENGTH_BYTES);
        let again = codec::encode(&request).expect("what was decoded can be encoded");
        let (back, _) = codec::take::<Request>(&again, usize::MAX).expect("and decoded again").expect("as a whole");
        assert!(back == request);
    }
    if let Ok(Some((response, used))) = codec::take::<Response>(bytes, CAP) {
        assert!(used <= bytes.len());
        let again = codec::encode(&response).expect("what was decoded can be encoded");
        let (back, _) = codec::take::<Response>(&again, usize::MAX).expect("and decoded again").expect("as a whole");
        assert!(back == response);
    }
}
