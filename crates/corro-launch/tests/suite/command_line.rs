//! The command line as a new user meets it: scripts, filters, words about what has no effect, completion.

use std::process::Command;

use crate::support::{self, Folder, Ran, Running, corro, run, run_command};

fn corro_with(words: &[&str]) -> Ran {
    let mut command = Command::new(corro());
    support::clean(&mut command);
    Running::start(command.args(words)).end()
}

fn script(folder: &Folder, text: &str) -> String {
    let path = folder.join("train.py");
    std::fs::write(&path, text).unwrap();
    path.display().to_string()
}

#[test]
fn a_python_file_is_run_by_python() {
    let folder = Folder::new("script");
    let path = script(&folder, "import os, sys; print('rank', os.environ['CORRO_RANK'], sys.argv[1:])\n");
    let ran = run(&["-n", "2", &path, "--lr", "0.1"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for rank in 0..2 {
        assert!(ran.out.contains(&format!("[{rank}]<stdout>:rank {rank} ['--lr', '0.1']\n")), "{ran:?}");
    }
}

#[test]
fn ranks_can_be_chosen_and_shown_plainly() {
    let words = ["sh", "-c", "echo rank $CORRO_RANK; echo err $CORRO_RANK >&2"];
    let ran = run(&[&["-n", "3", "--ranks", "1", "--no-prefix"][..], &words].concat());
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "rank 1\n"), "{ran:?}");
    assert!(ran.err.contains("err 1\n") && !ran.err.contains("err 0"), "{ran:?}");
    // Who fails is shown, wanted or not.
    let ran =
        run(&["-n", "2", "--ranks", "0", "sh", "-c", "[ $CORRO_RANK = 0 ] || { echo why >&2; exit 3; }; sleep 60"]);
    assert!(ran.code == Some(3) && ran.err.contains("    why\n"), "{ran:?}");
    let ran = run(&["-n", "2", "--ranks", "5", "true"]);
    assert!(ran.code == Some(2) && ran.err.contains("this job has ranks 0 to 1"), "{ran:?}");
}

#[test]
fn what_does_nothing_is_said_once() {
    let words =
        ["-n", "2", "--num-nccl-streams", "2", "--tcp", "sh", "-c", "echo [$HOROVOD_NUM_NCCL_STREAMS] $CORRO_REPORTED"];
    let mut command = run_command(&words);
    command.env("HOROVOD_CYCEL_TIME", "3").env("HOROVOD_AUTOTUNE", "ture").env("HOROVOD_WITH_PYTORCH", "1");
    let ran = Running::start(&mut command).end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for text in [
        "corro run: --num-nccl-streams has no effect: Corro has one stream for each process set\n",
        "corro run: --tcp has no effect on Corro",
        "corro run: HOROVOD_CYCEL_TIME is set, but Corro knows no such variable (did you mean HOROVOD_CYCLE_TIME?)\n",
        "corro run: HOROVOD_AUTOTUNE is \"ture\", which is not 1 or 0; it counts as 0\n",
    ] {
        assert_eq!(ran.err.matches(text).count(), 1, "{text} in {ran:?}");
    }
    assert!(!ran.err.contains("PYTORCH"), "{ran:?}");
    assert!(ran.out.contains("[0]<stdout>:[] HOROVOD_AUTOTUNE,HOROVOD_CYCEL_TIME\n"), "{ran:?}");
}

/// Once, before anything starts, and not again by every rank.
#[test]
fn a_value_that_cannot_be_read_ends_the_launch() {
    for (name, value, text) in [
        ("CORRO_TIMEOUT", "soon", "corro run: CORRO_TIMEOUT is \"soon\", which is not a number of seconds\n"),
        (
            "HOROVOD_CACHE_CAPACITY",
            "x",
            "corro run: HOROVOD_CACHE_CAPACITY is \"x\", which is not a whole number from 0 to",
        ),
        ("CORRO_CHECKS", "3", "corro run: CORRO_CHECKS is \"3\", which is not a whole number from 0 to 2, off or on\n"),
    ] {
        let ran = Running::start(run_command(&["-n", "2", "echo", "started"]).env(name, value)).end();
        assert!(ran.code == Some(2) && ran.out.is_empty(), "{ran:?}");
        assert_eq!((ran.err.matches(text).count(), ran.err.lines().count()), (1, 1), "{ran:?}");
    }
    let ran = Running::start(run_command(&["-n", "1", "echo", "started"]).env("CORRO_CHECKS", "off")).end();
    assert!(ran.code == Some(0) && ran.err.is_empty(), "{ran:?}");
}

/// What `corro run train.py` would use is what is told about.
#[test]
fn the_python_beside_the_program_is_the_one_that_is_asked() {
    let folder = Folder::new("beside");
    let (program, python) = (folder.join("corro"), folder.join("python3"));
    std::fs::copy(corro(), &program).unwrap();
    std::fs::write(&python, "#!/bin/sh\necho 3.99 $0\nfor name in torch tensorflow; do echo $name 7.7; done\n")
        .unwrap();
    std::fs::set_permissions(&python, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let run = |words: &[&str], variable: (&str, &str)| {
        let mut command = std::process::Command::new(&program);
        support::clean(&mut command);
        Running::start(command.args(words).env(variable.0, variable.1)).end().out
    };
    let table = run(&["run", "--check-build"], ("NO_COLOR", "1"));
    assert!(table.contains("[X] PyTorch") && table.contains("[ ] MXNet") && table.contains("[ ] MPI"), "{table}");
    let doctor = run(&["doctor"], ("NO_COLOR", "1"));
    assert!(doctor.contains("torch 7.7") && doctor.contains(python.to_str().unwrap()), "{doctor}");
    // A program that mpiexec has started can use MPI, as `mpi_built()` says too.
    let table = run(&["run", "--check-build"], ("OMPI_COMM_WORLD_SIZE", "2"));
    assert!(table.contains("Controllers:\n    [X] MPI") && table.contains("Operations:\n    [ ] NCCL"), "{table}");
}

#[test]
fn the_log_is_as_loud_as_asked_and_on_standard_error() {
    let quiet = run(&["-n", "1", "true"]);
    assert!(!quiet.err.contains("rendezvous store"), "{quiet:?}");
    let loud = run(&["-n", "1", "--log-level", "debug", "true"]);
    assert!(loud.err.contains("] [launcher]: the rendezvous store is listening, address 127.0.0.1:"), "{loud:?}");
    assert_eq!(loud.out, "", "{loud:?}");
    assert!(!loud.err.contains('\x1b'), "no colours in a pipe: {loud:?}");
}

#[test]
fn help_and_wrong_commands() {
    for words in [&["help", "run"][..], &["run", "--help"]] {
        let ran = corro_with(words);
        assert!(
            ran.code == Some(0) && ran.out.contains("--num-proc") && ran.out.contains("corro run -np N"),
            "{ran:?}"
        );
    }
    assert!(corro_with(&["help"]).out.contains("completion"));
    for (words, text) in [
        (
            &["train"][..],
            "\"train\" is not a command; known: run, ps, top, stacks, record, page, report, timeline, doctor, slurm, k8s, completion, help",
        ),
        (&["-np", "2"], "write `corro run`"),
        (&["help", "nothing"], "\"nothing\" is not a command"),
        (&["completion", "tcsh"], "bash, zsh, fish"),
        (&["completion"], "required"),
    ] {
        let ran = corro_with(words);
        assert!(ran.code == Some(2) && ran.err.contains(text), "{words:?}: {ran:?}");
    }
}

/// What a shell makes of the script, with the words of a user in front of the cursor.
#[test]
fn bash_completes_flags_and_commands() {
    let ran = corro_with(&["completion", "bash"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let folder = Folder::new("completion");
    let script = folder.join("corro.bash");
    std::fs::write(&script, &ran.out).unwrap();
    let complete = |words: &str, at: usize| {
        let ask = format!(
            "source {}; COMP_WORDS=({words}); COMP_CWORD={at}; \
             _corro corro \"${{COMP_WORDS[{at}]}}\" \"${{COMP_WORDS[{at}-1]}}\"; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
            script.display()
        );
        let asked = Command::new("bash").args(["--norc", "-c", &ask]).output().unwrap();
        assert!(asked.status.success(), "{asked:?}");
        String::from_utf8(asked.stdout).unwrap()
    };
    assert_eq!(complete("corro do", 1), "doctor\n");
    assert!(complete("corro run --num", 2).contains("--num-proc\n"));
    assert!(complete("corro run --color ''", 3).contains("always"));
    assert!(complete("corro completion ''", 2).contains("fish"));
    assert!(complete("corro run --log-level ''", 3).contains("WARNING"));
}

#[test]
fn fish_is_told_the_words_without_dashes() {
    let ran = corro_with(&["completion", "fish"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    for (command, words) in [
        ("completion", "bash zsh fish"),
        ("help", "run ps top stacks record page report timeline doctor slurm k8s completion"),
    ] {
        let line = format!("complete -c corro -n \"__fish_corro_using_subcommand {command}\" -f -a \"{words}\"");
        assert!(ran.out.lines().any(|l| l == line), "{}", ran.out);
    }
    assert!(ran.out.contains("-l log-level") && ran.out.contains("WARNING\\t''"), "{}", ran.out);
}

#[test]
fn zsh_knows_the_levels_of_the_log() {
    let ran = corro_with(&["completion", "zsh"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let line = ran.out.lines().find(|line| line.contains("--log-level=")).unwrap();
    assert!(line.contains("(TRACE DEBUG INFO WARNING ERROR FATAL)"), "{line}");
}

#[test]
fn ranks_of_a_host_share_its_cores() {
    let show = "echo omp=$OMP_NUM_THREADS mkl=$MKL_NUM_THREADS tf=$TF_NUM_INTRAOP_THREADS";
    let start = |ranks: &str, set: Option<&str>| {
        let mut command = run_command(&["-n", ranks, "sh", "-c", show]);
        command.env_remove("OMP_NUM_THREADS").env_remove("MKL_NUM_THREADS").env_remove("TF_NUM_INTRAOP_THREADS");
        command.envs(set.map(|threads| ("OMP_NUM_THREADS", threads)));
        Running::start(&mut command).end()
    };
    // More ranks than cores: one thread each, whatever the machine.
    let many = (corro_transport::cores::usable() + 1).to_string();
    let ran = start(&many, None);
    assert_eq!(ran.out.matches("omp=1 mkl=1 tf=1\n").count(), many.parse::<usize>().unwrap(), "{ran:?}");
    assert_eq!(ran.err.matches("so each computes with 1 thread (OMP_NUM_THREADS").count(), 1, "said once: {ran:?}");
    let ran = start(&many, Some("7"));
    assert!(ran.out.contains("omp=7 mkl= tf=1\n") && !ran.err.contains("computes with"), "{ran:?}");
    let ran = start("1", None);
    assert!(ran.out.contains("omp= mkl= tf=\n") && !ran.err.contains("computes with"), "{ran:?}");
}
