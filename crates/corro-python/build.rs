//! Builds `shim/lib.rs`, the library that `tf.load_op_library` opens; maturin puts it into the wheel.

#![expect(clippy::disallowed_methods, reason = "cargo's variables are not the user's")]

use std::path::PathBuf;
use std::process::Command;

fn main() {
    println!("cargo:rerun-if-changed=shim/lib.rs");
    let variable = |name: &str| std::env::var(name).unwrap_or_default();
    let library = PathBuf::from(variable("OUT_DIR")).join("libcorro_tensorflow.so");
    let mut rustc = Command::new(variable("RUSTC"));
    rustc.args(["--edition=2024", "--crate-type=cdylib", "--crate-name=corro_tensorflow", "shim/lib.rs"]);
    rustc.args(["-Copt-level=s", "-Cpanic=abort", "-Cstrip=symbols", "--target", &variable("TARGET")]);
    // What links the library of the other side of the wheel links this one: zig, for an old glibc.
    if let Some(linker) = std::env::var_os("RUSTC_LINKER") {
        rustc.arg("-C").arg(format!("linker={}", linker.display()));
    }
    let status = rustc.arg("-o").arg(&library).status().expect("rustc runs");
    assert!(status.success(), "rustc could not build shim/lib.rs");
}
