//! The fuzzer: one program for all targets, of which `CORRO_FUZZ_TARGET` names one. Built and started by `run`.
#![no_main]

use std::sync::OnceLock;

use corro_fuzz::{TARGETS, Target};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    static TARGET: OnceLock<Target> = OnceLock::new();
    (TARGET.get_or_init(chosen).run)(bytes);
});

#[expect(clippy::disallowed_methods, reason = "a knob of fuzz/run, not of corro")]
fn chosen() -> Target {
    let name = std::env::var("CORRO_FUZZ_TARGET").unwrap_or_default();
    let found = TARGETS.into_iter().find(|target| target.name == name);
    found.unwrap_or_else(|| panic!("CORRO_FUZZ_TARGET={name:?} is none of {:?}", TARGETS.map(|target| target.name)))
}
