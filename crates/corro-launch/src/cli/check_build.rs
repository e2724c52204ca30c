//! The table of `horovodrun --check-build`, in Horovod's layout.

use super::doctor;

/// The release of Horovod whose interface this is.
pub(super) const HOROVOD: &str = "0.28.1";

/// The table. Nothing is built in: frameworks and NCCL are found when they are needed, so it shows what is found now.
pub(super) fn table() -> String {
    let found = doctor::frameworks();
    let has = |name: &str| found.iter().any(|(n, there)| n == name && *there);
    layout(&[
        (
            "Available Frameworks:",
            &[("TensorFlow", has("tensorflow")), ("PyTorch", has("torch")), ("MXNet", has("mxnet"))],
        ),
        ("Available Controllers:", &[("MPI", false), ("Gloo", true)]),
        (
            "Available Tensor Operations:",
            &[("NCCL", doctor::nccl().is_some()), ("DDL", false), ("CCL", false), ("MPI", false), ("Gloo", true)],
        ),
    ])
}

fn layout(blocks: &[(&str, &[(&str, bool)])]) -> String {
    use std::fmt::Write;
    let mut text = format!("Horovod v{HOROVOD}:\n");
    for (title, lines) in blocks {
        let _ = writeln!(text, "\n{title}");
        for (name, there) in *lines {
            let _ = writeln!(text, "    [{}] {name}", if *there { "X" } else { " " });
        }
    }
    let _ = writeln!(text, "\nThis is Corro {}; \"Gloo\" stands for its own transports.", env!("CARGO_PKG_VERSION"));
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_as_horovods() {
        let text = layout(&[("Available Controllers:", &[("MPI", false), ("Gloo", true)])]);
        assert!(text.starts_with("Horovod v0.28.1:\n\nAvailable Controllers:\n    [ ] MPI\n    [X] Gloo\n"), "{text}");
    }
}
