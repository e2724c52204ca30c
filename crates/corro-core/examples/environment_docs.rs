//! Prints `docs/environment.md`; `make gen` writes it there.

fn main() {
    print!("{}", corro_core::config::markdown());
}
