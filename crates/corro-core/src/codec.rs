//! Messages on the wire: a length, a version, a body.
//!
//! ```text
//! length u32 LE (of what follows) · version u8 · postcard body
//! ```
//! The reader states the longest message it is willing to hold *before* a byte of the body is read, so a stranger can't
//! make it allocate. Decoding never panics: any byte string gives a value or an [`Error::Malformed`].

use serde::{Serialize, de::DeserializeOwned};

use crate::{Error, Result};

/// Raised whenever the meaning of a message changes. Ranks of one job must run the same one.
pub const VERSION: u8 = 1;

/// Bytes in front of the version and the body.
pub const LENGTH_BYTES: usize = 4;

/// A whole message, ready to be sent.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>> {
    let mut bytes = vec![0; LENGTH_BYTES];
    bytes.push(VERSION);
    let mut bytes =
        postcard::to_extend(message, bytes).map_err(|e| Error::Bug(format!("a message could not be encoded: {e}")))?;
    let length = u32::try_from(bytes.len() - LENGTH_BYTES)
        .map_err(|_| Error::Usage(format!("a message of {} bytes is too long to send", bytes.len())))?;
    bytes[..LENGTH_BYTES].copy_from_slice(&length.to_le_bytes());
    Ok(bytes)
}

/// How many bytes follow the length, if that is at most `cap`.
pub fn body_length(length: [u8; LENGTH_BYTES], cap: usize) -> Result<usize> {
    let length = u32::from_le_bytes(length) as usize;
    match length {
        0 => Err(Error::Malformed("an empty message".into())),
        n if n > cap => Err(Error::Malformed(format!("a message of {n} bytes where at most {cap} are allowed"))),
        n => Ok(n),
    }
}

/// The message in `bytes`, which are what follows the length. Left-over bytes are an error.
pub fn decode<T: DeserializeOwned>(bytes: &[u8]) -> Result<T> {
    match bytes.split_first() {
        None => Err(Error::Malformed("an empty message".into())),
        Some((&VERSION, body)) => match postcard::take_from_bytes(body) {
            Ok((message, [])) => Ok(message),
            Ok((_, rest)) => Err(Error::Malformed(format!("{} bytes too many", rest.len()))),
            Err(e) => Err(Error::Malformed(e.to_string())),
        },
        Some((other, _)) => Err(Error::Malformed(format!(
            "version {other} where this corro speaks {VERSION}: install the same release on every host"
        ))),
    }
}

/// The first whole message of `buffer` and how many bytes it took, or `None` if more bytes are needed.
pub fn take<T: DeserializeOwned>(buffer: &[u8], cap: usize) -> Result<Option<(T, usize)>> {
    let Some((length, rest)) = buffer.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = body_length(*length, cap)?;
    match rest.get(..length) {
        None => Ok(None),
        Some(body) => Ok(Some((decode(body)?, LENGTH_BYTES + length))),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    enum Sample {
        Name(String),
        Numbers(Vec<u64>),
        Pair { a: Option<u8>, b: Vec<Vec<u8>> },
    }

    proptest! {
        #[test]
        fn round_trip(name in ".*", numbers in proptest::collection::vec(any::<u64>(), 0..50)) {
            for message in [Sample::Name(name.clone()), Sample::Numbers(numbers.clone())] {
                let bytes = encode(&message).unwrap();
                let (back, used) = take::<Sample>(&bytes, 1 << 20).unwrap().unwrap();
                prop_assert_eq!(used, bytes.len());
                prop_assert_eq!(back, message);
            }
        }

        #[test]
        fn any_bytes_give_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = take::<Sample>(&bytes, 100);
            let _ = decode::<Sample>(&bytes);
        }

        #[test]
        fn a_prefix_is_never_a_message(cut in 0usize..20) {
            let bytes = encode(&Sample::Pair { a: Some(1), b: vec![vec![2; 9], vec![]] }).unwrap();
            prop_assume!(cut < bytes.len());
            prop_assert!(take::<Sample>(&bytes[..cut], 1 << 20).unwrap().is_none());
        }
    }

    #[test]
    fn caps_and_versions_hold() {
        let bytes = encode(&Sample::Name("x".repeat(1000))).unwrap();
        assert!(matches!(take::<Sample>(&bytes, 100), Err(Error::Malformed(_))));
        let mut other = encode(&Sample::Name("x".into())).unwrap();
        other[LENGTH_BYTES] = VERSION + 1;
        let text = take::<Sample>(&other, 100).unwrap_err().to_string();
        assert!(text.contains("install the same release"), "{text}");
    }
}
