//! The committed header is what the sources say.

#[path = "../examples/header.rs"]
mod example;

#[test]
fn the_header_is_current() {
    let committed = include_str!("../include/corro.h");
    assert!(committed == example::header(), "include/corro.h is stale: run `make gen`");
}
