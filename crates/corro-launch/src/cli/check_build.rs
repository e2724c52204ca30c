//! The table of `horovodrun --check-build`, in Horovod's layout.

use corro_core::config;

use super::{doctor, doctor_gpu};

/// The release of Horovod whose interface this is.
pub(super) const HOROVOD: &str = "0.28.1";

/// By these an MPI's launcher is known, as in `corro/_front/mpi.py`.
const MPI_LAUNCHERS: [&str; 4] = ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_NAMESPACE", "JSM_NAMESPACE_SIZE"];

/// The table. Frameworks are those found now: none is built in. The rest says the same as `nccl_built()` and its kin in
/// Python: what ranks would use on this machine.
pub(super) fn table() -> String {
    let found = doctor::frameworks();
    let has = |name: &str| found.iter().any(|(n, there)| n == name && *there);
    // Without a GPU nobody needs it.
    let gpus = corro_cuda::driver().and_then(corro_cuda::Driver::device_count).is_ok_and(|count| count > 0);
    let nccl = gpus && doctor_gpu::nccl().is_ok();
    let mpi = has("mpi4py") || MPI_LAUNCHERS.iter().any(|name| config::foreign(name).is_some());
    layout(&[
        (
            "Available Frameworks:",
            &[("TensorFlow", has("tensorflow")), ("PyTorch", has("torch")), ("MXNet", has("mxnet"))],
        ),
        ("Available Controllers:", &[("MPI", mpi), ("Gloo", true)]),
        (
            "Available Tensor Operations:",
            &[("NCCL", nccl), ("DDL", false), ("CCL", false), ("MPI", mpi), ("Gloo", true)],
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
    fn mpis_launchers_are_those_that_python_knows() {
        let python = include_str!("../../../../python/corro/_front/mpi.py");
        let list: Vec<String> = MPI_LAUNCHERS.iter().map(|name| format!("{name:?}")).collect();
        assert!(python.contains(&format!("_LAUNCHERS = ({})", list.join(", "))));
    }

    #[test]
    fn reads_as_horovods() {
        let text = layout(&[("Available Controllers:", &[("MPI", false), ("Gloo", true)])]);
        assert!(text.starts_with("Horovod v0.28.1:\n\nAvailable Controllers:\n    [ ] MPI\n    [X] Gloo\n"), "{text}");
    }
}
