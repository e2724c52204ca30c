//! Ranks that other launchers start: the real mpiexec of Open MPI and of MPICH, and torchrun.
//!
//! `scripts/mpi_env` installs the two mpiexec into `.venv-mpi` (`make unit` calls it), `scripts/python_env` installs torch
//! into `.venv-test` (`make python`, which also runs the test of torchrun). A plain `cargo test` in a fresh clone has
//! neither, and says so; in CI, and where the folder is there, a program that is missing is a failure.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support;
use crate::support::{Folder, Ran, Running, skip, training};

fn mpiexec(test: &str, kind: &str) -> Option<PathBuf> {
    let folder = checkout().join(".venv-mpi");
    let found = folder.join(kind).join("bin/mpiexec");
    if found.exists() {
        return Some(found);
    }
    let why = format!(".venv-mpi/{kind}/bin/mpiexec is not there: run scripts/mpi_env");
    assert!(!in_ci() && !folder.exists(), "{test}: {why}");
    skip(test, &why);
    None
}

fn checkout() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[expect(clippy::disallowed_methods, reason = "what runs the tests is no knob of ours")]
fn in_ci() -> bool {
    std::env::var("CI").is_ok_and(|value| !["", "0", "false"].contains(&value.as_str()))
}

fn start(program: &Path, words: &[&str], variables: &[(&str, &str)]) -> (Ran, Folder) {
    start_job(program, &[words, &[training(), "--steps", "40"]].concat(), variables)
}

fn start_job(program: &Path, words: &[&str], variables: &[(&str, &str)]) -> (Ran, Folder) {
    let folder = Folder::new("meet");
    let mut command = Command::new(program);
    support::clean(&mut command);
    for name in ["RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"] {
        command.env_remove(name);
    }
    command.args(words).env("XDG_RUNTIME_DIR", folder.path());
    (Running::start(command.envs(variables.iter().copied())).end(), folder)
}

fn assert_trained(ran: &Ran, folder: &Folder, ranks: usize) {
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains(&format!("{ranks} ranks: accuracy")), "{ran:?}");
    // `ranks` stays: it is empty, and all jobs of the user lock their places in it.
    let left = std::fs::read_dir(folder.join("corro")).into_iter().flatten().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).filter(|name| name != "ranks").collect();
    assert!(left.is_empty(), "word that was left must be gone: {left:?}");
}

#[test]
fn open_mpi() {
    let Some(mpiexec) = mpiexec("open_mpi", "openmpi") else { return };
    let root = [("OMPI_ALLOW_RUN_AS_ROOT", "1"), ("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1")];
    let (ran, folder) = start(&mpiexec, &["--oversubscribe", "-n", "4"], &root);
    assert_trained(&ran, &folder, 4);
}

#[test]
fn mpich() {
    let Some(mpiexec) = mpiexec("mpich", "mpich") else { return };
    let (ran, folder) = start(&mpiexec, &["-n", "4"], &[]);
    assert_trained(&ran, &folder, 4);
    // Through a shell as well, as job scripts do.
    let (ran, folder) = start(&mpiexec, &["-n", "3", "sh", "-c", "\"$0\" \"$@\"; exit $?"], &[]);
    assert_trained(&ran, &folder, 3);
}

/// Where an MPI library of the tests is.
fn library(mpiexec: &Path, name: &str) -> String {
    mpiexec.ancestors().nth(2).unwrap().join("lib").join(name).display().to_string()
}

/// MPI moves the tensors where the user asks for that, in each of the binary interfaces.
#[test]
fn tensors_go_by_mpi() {
    let test = "tensors_go_by_mpi";
    let (Some(openmpi), Some(mpich)) = (mpiexec(test, "openmpi"), mpiexec(test, "mpich")) else { return };
    let root = ["--allow-run-as-root", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1", "-n", "2"];
    for (mpiexec, words, name) in [
        (&openmpi, &root[..], "libmpi.so.40"),
        (&mpich, &["-n", "2"], "libmpi_abi.so.1"),
        (&mpich, &["-n", "2"], "libmpi.so.12"),
    ] {
        let found = library(mpiexec, name);
        let seen = Folder::new("timeline");
        let timeline = seen.join("timeline.json");
        let path = timeline.display().to_string();
        let asked = [
            ("HOROVOD_CPU_OPERATIONS", "MPI"),
            ("CORRO_MPI_LIBRARY", found.as_str()),
            ("HOROVOD_TIMELINE", path.as_str()),
        ];
        let train = support::example("train");
        let (ran, _folder) = start_job(mpiexec, &[words, &[&train, "100", "0", "100"]].concat(), &asked);
        assert!(ran.code == Some(0) && ran.out.contains("step 100"), "{ran:?}");
        let seen = std::fs::read_to_string(timeline).unwrap();
        assert_eq!(seen.matches("\"plane\":\"mpi\"").count(), 100, "{ran:?}");
    }
}

/// Each in one line: what was found, and what to do.
#[test]
fn wrong_set_ups_of_mpi_are_named() {
    let test = "wrong_set_ups_of_mpi_are_named";
    let (Some(openmpi), Some(mpich)) = (mpiexec(test, "openmpi"), mpiexec(test, "mpich")) else { return };
    let asked = |library: &str| [("CORRO_CPU_OPERATIONS", "mpi".to_owned()), ("CORRO_MPI_LIBRARY", library.to_owned())];
    let run = |mpiexec: &Path, library: &str| {
        let variables = asked(library);
        let variables: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (*name, value.as_str())).collect();
        let train = support::example("train");
        start_job(mpiexec, &["-n", "2", &train, "10", "0", "1"], &variables).0
    };
    // The mpiexec of one, the library of another: each rank is a world of its own.
    let ran = run(&mpich, &library(&openmpi, "libmpi.so.40"));
    assert!(ran.code != Some(0) && ran.err.contains("alone") && ran.err.contains("CORRO_MPI_LIBRARY"), "{ran:?}");
    let ran = run(&mpich, "/nowhere/libmpi.so");
    assert!(ran.code != Some(0) && ran.err.contains("/nowhere/libmpi.so"), "{ran:?}");
    let ran = run(&mpich, "/usr/lib/x86_64-linux-gnu/libc.so.6");
    assert!(ran.code != Some(0) && ran.err.contains("has no function MPI_"), "{ran:?}");
}

#[test]
#[ignore = "needs torch: `make python` runs it"]
fn torchrun() {
    let torchrun = checkout().join(".venv-test/bin/torchrun");
    assert!(torchrun.exists(), "{} is not there: run scripts/python_env", torchrun.display());
    let words = ["--nproc-per-node", "3", "--no-python"];
    let (ran, folder) = start(&torchrun, &words, &[]);
    assert_trained(&ran, &folder, 3);
    // With a secret given, the ranks meet beside torchrun's own port.
    let (ran, folder) = start(&torchrun, &words, &[("CORRO_SECRET", &"5a".repeat(32))]);
    assert_trained(&ran, &folder, 3);
}

/// `corro run --mpi` with an mpirun that tells its words and its variables, and starts nothing.
fn by_mpirun(words: &[&str], variables: &[(&str, &str)]) -> Ran {
    let folder = Folder::new("mpirun");
    let program = folder.join("mpirun");
    let text = "#!/bin/sh\n[ \"$1\" = --version ] && exec echo 'mpirun (Open MPI) 5.0.8'\necho \"words: $*\"\nenv\n";
    std::fs::write(&program, text).unwrap();
    std::fs::set_permissions(&program, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let mut command = support::run_command(&[&["--mpi"], words, &["true"]].concat());
    for name in ["OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "TF_NUM_INTRAOP_THREADS"] {
        command.env_remove(name);
    }
    command.env("PATH", format!("{}:{}", folder.path().display(), support::path()));
    Running::start(command.envs(variables.iter().copied())).end()
}

/// No flag is dropped without a word: what mpirun can't do is named, and the rest reaches it or the ranks.
#[test]
fn mpirun_gets_the_flags_it_can_serve_and_the_others_are_named() {
    let folder = Folder::new("handed-over");
    let (out, record) = (folder.join("out"), folder.join("record"));
    let (out, record) = (out.to_str().unwrap(), record.to_str().unwrap());
    let given = [
        ["-np", "4"],
        ["--network-interfaces", "lo"],
        ["--output-filename", out],
        ["--ranks", "0"],
        ["--record", record],
        ["--debug", "1"],
        ["-p", "2222"],
        ["--rendezvous-port", "4711"],
        ["--grace-seconds", "3"],
        ["--start-timeout", "9"],
    ]
    .concat();
    let switches = ["--tls", "--page", "--report", "--prefix-output-with-timestamp", "--no-prefix"];
    let ran = by_mpirun(&[&given[..], &switches].concat(), &[("CORRO_TIMEOUT", "7"), ("CORRO_RANK", "3")]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for words in [
        "-np 4",
        "--mca btl_tcp_if_include lo",
        "--mca plm_rsh_args -p 2222",
        &format!("--output-directory {out}"),
        "--timestamp-output",
        "-x CORRO_TLS",
        "-x CORRO_INTERFACE",
        "-x CORRO_TIMEOUT",
        "-x PATH",
        "-x OMP_NUM_THREADS",
        "\nCORRO_TLS=1\n",
        "\nCORRO_INTERFACE=lo\n",
        "\nNCCL_SOCKET_IFNAME=lo\n",
        "\nCORRO_RENDEZVOUS_PORT=4711\n",
    ] {
        assert!(ran.out.contains(words), "{words}: {ran:?}");
    }
    assert!(!ran.out.contains("-x CORRO_RANK") && !ran.out.contains("-x HOME"), "{ran:?}");
    let lost =
        "--start-timeout, --ranks, --debug, --grace-seconds, --page, --record and --report have no effect where mpirun";
    assert_eq!(ran.err.matches(lost).count(), 1, "{ran:?}");
    // Nobody may take tensors that MPI moves for encrypted.
    assert!(
        ran.err.contains("--tls: Corro moves the tensors") && !ran.out.contains("CORRO_CPU_OPERATIONS="),
        "{ran:?}"
    );
    assert!(!Path::new(out).exists(), "the files are mpirun's to make: {ran:?}");
    let ran = by_mpirun(&["-np", "2", "--tls"], &[("CORRO_CPU_OPERATIONS", "mpi")]);
    assert!(ran.err.contains("--tls encrypts Corro's own connections, and not the tensors"), "{ran:?}");
}

#[test]
fn ranks_of_mpirun_share_the_cores_too() {
    let cores = std::thread::available_parallelism().unwrap().get();
    let ran = by_mpirun(&["-np", &(2 * cores).to_string()], &[]);
    assert!(ran.out.contains("\nOMP_NUM_THREADS=1\n") && ran.out.contains("\nMKL_NUM_THREADS=1\n"), "{ran:?}");
    assert!(ran.out.contains("\nCORRO_CPU_OPERATIONS=mpi\n"), "{ran:?}");
    assert_eq!(ran.err.matches("so each computes with 1 thread").count(), 1, "{ran:?}");
    let ran = by_mpirun(&["-np", "2"], &[("OMP_NUM_THREADS", "3")]);
    assert!(ran.out.contains("\nOMP_NUM_THREADS=3\n") && !ran.err.contains("so each computes"), "{ran:?}");
    let ran = by_mpirun(&["-np", "1"], &[]);
    assert!(!ran.out.contains("OMP_NUM_THREADS"), "{ran:?}");
    // Nobody knows how many cores other hosts have.
    let ran = by_mpirun(&["-np", "4", "-H", "192.0.2.1:4"], &[]);
    assert!(!ran.out.contains("OMP_NUM_THREADS"), "{ran:?}");
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
fn slurm_kubernetes_and_jsrun_by_their_variables() {
    let folder = Folder::new("home");
    let home = folder.path().to_str().unwrap();
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
    let jsrun = |rank: usize| {
        variables(&[
            ("JSM_NAMESPACE_RANK", &rank.to_string()),
            ("JSM_NAMESPACE_SIZE", "2"),
            ("JSM_NAMESPACE_LOCAL_SIZE", "1"),
            ("JSM_NAMESPACE_ID", "1"),
            ("LSB_JOBID", &job),
            ("HOME", home),
        ])
    };
    for ran in [by_hand(slurm), by_hand(kubernetes), by_hand(jsrun)].into_iter().flatten() {
        assert_eq!(ran.code, Some(0), "{ran:?}");
    }
    assert_eq!(std::fs::read_dir(folder.join(".corro/meet")).unwrap().count(), 0);
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

#[test]
fn in_a_job_of_lsf_it_is_known_how_many_and_where() {
    let folder = Folder::new("lsf");
    let list = folder.join("hosts");
    std::fs::write(&list, "localhost\nlocalhost\nlocalhost\n").unwrap();
    let run = |words: &[&str], name: &str, value: &str| {
        Running::start(support::run_command(words).env("LSB_JOBID", "1").env(name, value)).end()
    };
    let script = ["sh", "-c", "echo rank $CORRO_RANK of $CORRO_SIZE"];
    let ran = run(&script, "LSB_MCPU_HOSTS", "localhost 2");
    assert!(ran.code == Some(0) && ran.out.contains("rank 1 of 2"), "{ran:?}");
    let ran = run(&script, "LSB_DJOB_HOSTFILE", list.to_str().unwrap());
    assert!(ran.code == Some(0) && ran.out.contains("rank 2 of 3"), "{ran:?}");
    let ran = run(&["-np", "3", "true"], "LSB_MCPU_HOSTS", "localhost 2");
    assert!(ran.code == Some(2) && ran.err.contains("more processes (3)"), "{ran:?}");
    let ran = run(&["-np", "1", "--jsrun", "true"], "LSB_MCPU_HOSTS", "localhost 2");
    assert!(ran.code == Some(0) && ran.err.contains("jsrun"), "{ran:?}");
    let ran = run(&["true"], "LSB_MCPU_HOSTS", "localhost");
    assert!(ran.code == Some(2) && ran.err.contains("LSB_MCPU_HOSTS"), "{ran:?}");
}
