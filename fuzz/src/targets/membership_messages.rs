//! What the driver of an elastic job may hear from a worker, and a worker from a driver: any bytes give messages or an error; and
//! whatever messages come, in whatever order, neither the machine nor a member panics.

use std::time::Duration;

use corro_core::codec;
use corro_membership::machine::{Input, Machine, Rules};
use corro_membership::member::Member;
use corro_membership::message::{MAX_TO_DRIVER, MAX_TO_WORKER, ToDriver, ToWorker};
use serde::{Serialize, de::DeserializeOwned};

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&kind, rest)) = bytes.split_first() else { return };
    let rules = Rules { start: 2, min: 1, supply: kind & 1 == 0, ..Rules::default() };
    let mut machine = Machine::new(rules, Duration::ZERO);
    let mut member = Member::new(corro_membership::WorkerId(7), "a".into());
    for (at, piece) in rest.chunks(usize::from(kind) + 8).enumerate() {
        let now = Duration::from_millis(at as u64 * 700);
        if let Some(message) = hear::<ToDriver>(piece, MAX_TO_DRIVER) {
            machine.handle(Input::Said(at as u64 % 3, message), now);
        }
        if let Some(message) = hear::<ToWorker>(piece, MAX_TO_WORKER) {
            member.hear(message);
            member.ask(at as u64, None);
        }
    }
}

fn hear<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8], cap: usize) -> Option<T> {
    let _ = codec::take::<T>(bytes, cap);
    // As the body of a message, so that the fuzzer need not find the right length first.
    let framed = [&(bytes.len() as u32 + 1).to_le_bytes(), [codec::VERSION].as_slice(), bytes].concat();
    let (message, _) = codec::take::<T>(&framed, cap).ok()??;
    let again = codec::encode(&message).expect("what was decoded can be encoded");
    let (back, _) = codec::take::<T>(&again, usize::MAX).expect("valid").expect("whole");
    assert_eq!(back, message);
    Some(message)
}
