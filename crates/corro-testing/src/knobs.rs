//! The knobs of tests: environment variables that only they read, so that replaying needs no edit.

use std::io::Write;

/// The number that the environment variable `name` holds: a seed to replay, a number of schedules.
///
/// # Panics
/// If there is something else in it: a test that quietly runs without its seed replays nothing.
#[expect(clippy::disallowed_methods, reason = "a knob of the tests, not of corro")]
pub fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name}={text} is no number")))
}

/// Whether to run whole products where less is enough for every day: `CORRO_TEST_THOROUGH=1`, as `make deep` sets it.
pub fn thorough() -> bool {
    number("CORRO_TEST_THOROUGH").is_some_and(|n| n != 0)
}

/// Says that a test was left out, and why. Runners hide what passing tests print, so the words also go to the end of the
/// file that `CORRO_TEST_SKIPPED` names; `scripts/rust_test.py` shows it.
#[expect(clippy::disallowed_methods, reason = "a knob of the tests, not of corro")]
pub fn skip(test: &str, why: &str) {
    let words = format!("SKIPPED {test}: {why}\n");
    eprint!("{words}");
    if let Some(path) = std::env::var_os("CORRO_TEST_SKIPPED") {
        let file = std::fs::OpenOptions::new().append(true).create(true).open(&path);
        let noted = file.and_then(|mut file| file.write_all(words.as_bytes()));
        noted.unwrap_or_else(|e| panic!("noting a skipped test in {}: {e}", path.display()));
    }
}
