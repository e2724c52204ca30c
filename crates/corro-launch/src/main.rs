//! The `corro` program. Under the name `horovodrun` it is `corro run` as Horovod's users know it.

fn main() -> std::process::ExitCode {
    let words: Vec<std::ffi::OsString> = std::env::args_os().collect();
    std::process::ExitCode::from(corro_launch::cli::main(&words, None))
}
