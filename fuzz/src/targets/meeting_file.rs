//! The file by which ranks meet where no launcher of ours is there: any bytes are such a file or an error.

use corro_core::codec;
use corro_transport::Place;

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let _ = Place::is_meeting_file(bytes);
    let _ =
        Place::is_meeting_file(&[&(bytes.len() as u32 + 1).to_le_bytes(), [codec::VERSION].as_slice(), bytes].concat());
}
