//! Prints `include/corro.h`; `make gen` writes it there.

use std::path::Path;

/// The header as it should be.
pub(crate) fn header() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("cbindgen.toml");
    let mut builder = cbindgen::Builder::new().with_config(config);
    // In the order in which somebody would read it.
    for file in ["status.rs", "job.rs", "tickets.rs", "submit.rs", "sets.rs", "stores.rs"] {
        builder = builder.with_src(root.join("src").join(file));
    }
    let mut text = Vec::new();
    builder.generate().expect("the header").write(&mut text);
    // To C all functions are equally safe.
    String::from_utf8(text).expect("a header in UTF-8").replace("// # Safety\n", "")
}

#[allow(dead_code, reason = "a test includes this file for its other function")]
fn main() {
    print!("{}", header());
}
