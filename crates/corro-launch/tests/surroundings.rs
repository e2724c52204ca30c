//! Ranks that other launchers start: the real mpiexec of Open MPI and of MPICH, and torchrun.
//!
//! `bench/setup` installs them into `.venv-bench`; without it these tests say so and do nothing.

mod support;

use std::path::{Path, PathBuf};
use std::process::Command;

use support::{Folder, Ran, Running, skip, training};

fn peer(test: &str, path: &str) -> Option<PathBuf> {
    let found = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../.venv-bench").join(path);
    if !found.exists() {
        skip(test, &format!(".venv-bench/{path} is not there: run bench/setup"));
        return None;
    }
    Some(found)
}

fn start(program: &Path, words: &[&str], variables: &[(&str, &str)]) -> (Ran, Folder) {
    let folder = Folder::new("meet");
    let mut command = Command::new(program);
    support::clean(&mut command);
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command.args(words).args([training(), "--steps", "40"]).env("XDG_RUNTIME_DIR", &folder.0);
    (Running::start(command.envs(variables.iter().copied())).end(), folder)
}

fn assert_trained(ran: &Ran, folder: &Folder, ranks: usize) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains(&format!("{ranks} ranks: accuracy")), "{ran:?}");
    let left = std::fs::read_dir(folder.0.join("corro")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "word that was left must be gone");
}

#[test]
fn open_mpi() {
    let Some(mpiexec) = peer("open_mpi", "openmpi/bin/mpiexec") else { return };
    let root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let (ran, folder) = start(&mpiexec, &["--oversubscribe", "-n", "4"], &root);
    assert_trained(&ran, &folder, 4);
}

#[test]
fn mpich() {
    let Some(mpiexec) = peer("mpich", "mpich/bin/mpiexec") else { return };
    let (ran, folder) = start(&mpiexec, &["-n", "4"], &[]);
    assert_trained(&ran, &folder, 4);
    // Through a shell as well, as job scripts do.
    let (ran, folder) = start(&mpiexec, &["-n", "3", "sh", "-c", "\"$0\" \"$@\"; exit $?"], &[]);
    assert_trained(&ran, &folder, 3);
}

#[test]
fn torchrun() {
    let Some(torchrun) = peer("torchrun", "bin/torchrun") else { return };
    let words = ["--nproc-per-node", "3", "--no-python"];
    let (ran, folder) = start(&torchrun, &words, &[]);
    assert_trained(&ran, &folder, 3);
    // With a secret given, the ranks meet beside torchrun's own port.
    let (ran, folder) = start(&torchrun, &words, &[("CORRO_SECRET", &"5a".repeat(32))]);
    assert_trained(&ran, &folder, 3);
    assert!(!folder.0.join("corro").exists());
}

/// Ranks by hand, as Kubernetes or a batch system would start them.
fn by_hand(variables: impl Fn(usize) -> Vec<(String, String)>) -> Vec<Ran> {
    let running: Vec<Running> = (0..2)
        .map(|rank| {
            let mut command = Command::new(training());
            support::clean(&mut command);
            Running::start(command.args(["--steps", "40"]).envs(variables(rank)))
        })
        .collect();
    running.into_iter().map(Running::end).collect()
}

fn variables(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
}

#[test]
fn slurm_and_kubernetes_by_their_variables() {
    let folder = Folder::new("home");
    let home = folder.0.to_str().unwrap();
    let job = std::process::id().to_string();
    let slurm = |rank: usize| {
        variables(&[
            ("SLURM_PROCID", &rank.to_string()),
            ("SLURM_NTASKS", "2"),
            ("SLURM_JOB_ID", &job),
            ("SLURM_STEP_ID", "0"),
            ("SLURM_JOB_NUM_NODES", "2"),
            ("HOME", home),
        ])
    };
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string();
    let kubernetes = |rank: usize| {
        variables(&[
            ("JOB_COMPLETION_INDEX", &rank.to_string()),
            ("CORRO_SIZE", "2"),
            ("CORRO_SECRET", &"ab".repeat(32)),
            ("MASTER_ADDR", "127.0.0.1"),
            ("MASTER_PORT", &port),
        ])
    };
    for ran in by_hand(slurm).into_iter().chain(by_hand(kubernetes)) {
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(std::fs::read_dir(folder.0.join(".corro/meet")).unwrap().count(), 0);
}

#[test]
fn without_a_way_to_meet_it_is_said_what_to_set() {
    let mut command = Command::new(training());
    support::clean(&mut command);
    let ran = Running::start(command.env("CORRO_RANK", "1").env("CORRO_SIZE", "2")).end();
    assert!(ran.code == Some(1) && ran.err.contains("corro run") && ran.err.contains("CORRO_SECRET"), "{ran:?}");
    let mut command = Command::new(training());
    support::clean(&mut command);
    let taken = std::net::TcpListener::bind("[::]:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let master = [
        ("RANK", "0"),
        ("WORLD_SIZE", "2"),
        ("MASTER_ADDR", "localhost"),
        ("CORRO_RENDEZVOUS_PORT", &port.to_string()),
    ];
    command.envs(master).env("MASTER_PORT", "1").env("CORRO_SECRET", "ab".repeat(32));
    let ran = Running::start(&mut command).end();
    assert!(ran.code == Some(1) && ran.err.contains(&port.to_string()) && ran.err.contains("another job"), "{ran:?}");
}
