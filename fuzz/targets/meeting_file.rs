//! The file by which ranks meet where no launcher of ours is there: any bytes are such a file or an error.
#![no_main]

use corro_core::codec;
use corro_transport::Place;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let _ = Place::is_meeting_file(bytes);
    let _ = Place::is_meeting_file(&[&(bytes.len() as u32 + 1).to_le_bytes(), [codec::VERSION].as_slice(), bytes].concat());
});
