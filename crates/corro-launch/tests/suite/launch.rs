//! `corro run` on this host: places, output, endings, leftovers.

use std::io::Write;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::Command;
use std::time::Duration;

use crate::support;
use crate::support::{Folder, Ran, Running, Script, corro, marked, run, run_command, training, wait_until};

/// A failing rank ends its job within 2 s; some room for a machine that is busy with other tests.
const PROMPTLY: Duration = Duration::from_secs(30);

fn horovodrun(words: &[&str]) -> Ran {
    let folder = Folder::new("name");
    let program = folder.join("horovodrun");
    symlink(corro(), &program).unwrap();
    let mut command = Command::new(program);
    support::clean(&mut command);
    Running::start(command.args(words)).end()
}

#[test]
fn ranks_know_their_place_and_lines_their_rank() {
    let ran = run(&[
        "-np",
        "3",
        "sh",
        "-c",
        "echo rank $HOROVOD_RANK of $HOROVOD_SIZE; echo $HOROVOD_CONTROLLER $CORRO_RANK >&2",
    ]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let mut lines: Vec<&str> = ran.out.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["[0]<stdout>:rank 0 of 3", "[1]<stdout>:rank 1 of 3", "[2]<stdout>:rank 2 of 3"]);
    for rank in 0..3 {
        assert!(ran.err.contains(&format!("[{rank}]<stderr>:gloo {rank}\n")), "{ran:?}");
    }
}

#[test]
fn exactly_as_many_ranks_as_asked_for() {
    let ran = run(&["-np", "2", "-H", "localhost:4", "echo", "here"]);
    assert_eq!(ran.out.matches("here").count(), 2, "{ran:?}");
    let ran = run(&["-np", "5", "-H", "localhost:4", "echo"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.err.contains("Requested more processes (5) than there are available slots (4)"), "{ran:?}");
}

#[test]
fn a_hostfile_and_a_config_file_are_read() {
    let folder = Folder::new("files");
    let (hosts, config) = (folder.join("hosts"), folder.join("config.yaml"));
    std::fs::write(&hosts, "# mine\n\n127.0.0.1 slots=2 # two\n[::1] slots=1\n").unwrap();
    std::fs::write(&config, "params:\n  fusion_threshold_mb: 4\n  cycle_time_ms: 3\nextra: 1\n").unwrap();
    let words = ["-np", "3", "-hostfile", hosts.to_str().unwrap(), "--config-file", config.to_str().unwrap()];
    let script = "echo $HOROVOD_HOSTNAME $HOROVOD_FUSION_THRESHOLD $HOROVOD_CYCLE_TIME";
    let ran = run(&[&words[..], &["--cycle-time-ms", "7", "sh", "-c", script]].concat());
    assert!(
        ran.out.contains("[1]<stdout>:127.0.0.1 4194304 7\n") && ran.out.contains("[2]<stdout>:::1 4194304 7\n"),
        "{ran:?}"
    );
    assert!(ran.err.contains("the config file's \"extra\""), "{ran:?}");
}

/// How the launcher tells of a rank that somebody has killed.
const KILLED: &str = "signal 9 (SIGKILL) (often by the system, when memory runs out: see dmesg)";

#[test]
fn the_first_failure_is_named_last_with_its_last_words() {
    for (what, script, code, text) in [
        ("exit 3", "echo oh no >&2; exit 3", 3, "exit code 3"),
        ("SIGKILL", "echo oh no >&2; kill -9 $$", 137, KILLED),
        ("SIGSEGV", "echo oh no >&2; kill -SEGV $$", 139, "signal 11 (SIGSEGV)"),
    ] {
        // The others would not end by themselves, nor when asked to.
        let script = Script::new(&format!("trap '' TERM; if [ $CORRO_RANK = 1 ]; then {script}; fi; sleep 300"));
        let ran = run(&[vec!["-np", "3"], script.words()].concat());
        assert_eq!(ran.code, Some(code), "{what}: {ran:?}");
        let last = ran.err.lines().last().unwrap();
        let want =
            format!("corro run: rank 1 on localhost exited with non-zero status: {text}; all other ranks were ended");
        assert_eq!(last, want, "{ran:?}");
        assert!(ran.err.contains("    oh no\n"), "{ran:?}");
        assert!(ran.took < PROMPTLY, "{what} took {:?}", ran.took);
        assert_eq!(script.left(), [0; 0], "{what}");
        eprintln!("{what}: the job ended after {:?}", ran.took);
    }
}

#[test]
fn commands_that_cannot_run_are_named() {
    for (words, code, text) in [
        (
            vec!["-np", "2", "no-such-command"],
            127,
            "rank 0 on localhost could not be started: the command \"no-such-command\" was not found",
        ),
        (vec!["-np", "2", "/etc/passwd"], 126, "may not be run"),
        (vec!["-np", "2"], 2, "no command"),
        (vec!["-np", "x", "true"], 2, "--num-proc"),
        (vec!["--no-such-flag", "true"], 2, "--no-such-flag"),
    ] {
        let ran = run(&words);
        assert_eq!(ran.code, Some(code), "{ran:?}");
        assert!(ran.err.contains(text), "{text:?} in {ran:?}");
    }
}

#[test]
fn horovodrun_fails_as_horovod_does() {
    let ran = horovodrun(&["-np", "2", "-H", "localhost:2", "sh", "-c", "exit 3"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("exit with status code 3.") && ran.err.contains("exited with non-zero status"), "{ran:?}");
    let ran = horovodrun(&["--check-build"]);
    assert!(ran.code == Some(0) && ran.out.starts_with("Horovod v") && ran.out.contains("[X] Gloo"), "{ran:?}");
    assert!(horovodrun(&["-v"]).out.starts_with("0.28.1"));
    let ran = horovodrun(&["-np", "1", "--mpi", "true"]);
    assert!(ran.code == Some(0) && ran.err.contains("needs no MPI"), "{ran:?}");
}

#[test]
fn nobody_is_left_behind_however_it_ends() {
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143)), ("HUP", Some(129)), ("KILL", None)] {
        // Helpers in the rank's group, in a session of their own, and orphaned at once.
        let script = Script::new(
            "trap '' TERM INT HUP; setsid sleep 300 & (sleep 300 &) ; sleep 300 & echo ready; wait; sleep 300",
        );
        let mut command = run_command(&[vec!["-np", "2", "--grace-seconds", "0.3"], script.words()].concat());
        let running = Running::start(command.env("TEST_MARK", &script.mark));
        wait_until("both ranks are ready", support::HANG_LIMIT, || running.out_so_far().matches("ready").count() == 2);
        assert!(script.left().len() >= 8, "{:?}", script.left());
        running.signal(signal);
        if signal == "INT" {
            // Asked twice: at once, and not after the five seconds that a first interrupt grants.
            std::thread::sleep(Duration::from_millis(300));
            running.signal(signal);
        }
        let since = std::time::Instant::now();
        let ran = running.end();
        assert_eq!(ran.code, code, "{signal}: {ran:?}");
        script.assert_gone();
        eprintln!("SIG{signal}: everything was gone {:?} later", since.elapsed());
    }
}

/// The agent is the only child of the launcher.
fn agent_of(running: &Running) -> i32 {
    let children = format!("/proc/{0}/task/{0}/children", running.child.id());
    std::fs::read_to_string(children).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

#[test]
fn a_killed_agent_is_noticed_and_takes_its_ranks_along() {
    let script = Script::new("echo ready; sleep 300");
    let running = Running::start(&mut run_command(&[vec!["-np", "2"], script.words()].concat()));
    running.wait_for("ready");
    support::kill(agent_of(&running), "KILL");
    let ran = running.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("lost host localhost with rank 0, 1"), "{ran:?}");
    script.assert_gone();
}

#[test]
fn a_stopped_agent_holds_up_no_job() {
    // Ranks that go on and ranks that end meanwhile, with helpers that have left their group.
    for rest in ["sleep 300", "read line <$FIFO"] {
        let folder = Folder::new("stopped");
        let fifo = folder.join("fifo");
        assert!(Command::new("mkfifo").arg(&fifo).status().unwrap().success());
        let script = Script::new(&format!("setsid sleep 300 & echo ready; {rest}"));
        let words = [vec!["-np", "2", "--host-timeout", "2"], script.words()].concat();
        let mut command = run_command(&words);
        let running = Running::start(command.env("TEST_MARK", &script.mark).env("FIFO", &fifo));
        running.wait_for("ready");
        support::kill(agent_of(&running), "STOP");
        // Whoever reads from it reads its end, and ends.
        let opened = std::fs::OpenOptions::new().read(true).write(true).open(&fifo).unwrap();
        drop(opened);
        let ran = running.end();
        assert_eq!(ran.code, Some(1), "{ran:?}");
        let want = "lost host localhost with rank 0, 1: nothing was heard from it for 2s (--host-timeout): its agent is stopped";
        assert!(ran.err.contains(want), "{ran:?}");
        script.assert_gone();
    }
}

#[test]
fn an_agent_that_somebody_ends_is_named_and_no_rank_is_blamed() {
    let script = Script::new("echo ready; sleep 300");
    let running = Running::start(&mut run_command(&[vec!["-np", "2"], script.words()].concat()));
    running.wait_for("ready");
    support::kill(agent_of(&running), "TERM");
    let ran = running.end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    let want = "lost host localhost with rank 0, 1: its agent was ended by signal 15 (SIGTERM)";
    assert!(ran.err.lines().last().unwrap().contains(want), "{ran:?}");
    script.assert_gone();
}

#[test]
fn a_full_disk_costs_the_output_and_not_the_job() {
    let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let script = Script::new("for i in 1 2 3; do echo line $i; sleep 0.1; done; echo oh >&2");
    let child = run_command(&[vec!["-np", "2"], script.words()].concat())
        .stdout(full())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let ended = child.wait_with_output().unwrap();
    let err = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(0), "{err}");
    assert_eq!(err.matches("No space left on device").count(), 1, "one warning, not one for each line: {err}");
    assert_eq!(err.matches("]<stderr>:oh").count(), 2, "{err}");
    // Nobody can be told of this one.
    let status =
        run_command(&[vec!["-np", "2"], script.words()].concat()).stdout(full()).stderr(full()).status().unwrap();
    assert_eq!(status.code(), Some(0));
}

/// A program in place of ssh, named so that error texts show it.
fn remote_shell(folder: &Folder, text: &str) -> String {
    let program = folder.join("my-shell");
    std::fs::write(&program, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
    program.to_str().unwrap().to_owned()
}

#[test]
fn a_remote_shell_that_hangs_ends_with_the_job_and_so_do_its_children() {
    let folder = Folder::new("hanging-shell");
    let shell = remote_shell(&folder, "sleep 300 & setsid sleep 300 & wait");
    let script = Script::new("true");
    let words = ["-np", "1", "-H", "elsewhere.invalid:1", "--remote-shell", &shell, "--start-timeout", "1"];
    let mut command = run_command(&[words.to_vec(), script.words()].concat());
    let ran = Running::start(command.env("TEST_MARK", &script.mark)).end();
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for part in ["via my-shell", "Timed out waiting for its agent to answer", "--unbuffered"] {
        assert!(ran.err.contains(part), "{part:?} in {ran:?}");
    }
    assert!(!ran.err.contains("ssh"), "{ran:?}");
    script.assert_gone();
}

#[test]
fn errors_of_another_remote_shell_do_not_speak_of_ssh() {
    let folder = Folder::new("failing-shell");
    let shell = remote_shell(&folder, "echo 'srun: error: Permission denied' >&2; exit 1");
    let ran = run(&["-np", "1", "-H", "elsewhere.invalid:1", "--remote-shell", &shell, "true"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains("could not connect to some hosts via my-shell"), "{ran:?}");
    assert!(ran.err.contains("srun: error: Permission denied") && !ran.err.contains("ssh"), "{ran:?}");
}

#[test]
fn leftovers_of_a_good_job_are_ended_too() {
    let script = Script::new("setsid sleep 300 & echo done");
    let mut command = run_command(&[vec!["-np", "2"], script.words()].concat());
    let ran = Running::start(command.env("TEST_MARK", &script.mark)).end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(marked(&script.mark).is_empty());
}

#[test]
fn whoever_stops_reading_ends_the_job() {
    let script = Script::new("while :; do echo line || exit; done");
    let words = [vec!["-np", "2"], script.words()].concat();
    let mut child =
        run_command(&words).stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::null()).spawn().unwrap();
    drop(child.stdout.take());
    let status = support::wait(&mut child, support::HANG_LIMIT);
    assert_eq!(status.code(), Some(141));
    script.assert_gone();
}

#[test]
fn output_is_whole_binary_safe_and_filed() {
    let folder = Folder::new("output");
    let directory = folder.join("logs");
    let script = "i=0; while [ $i -lt 300 ]; do echo \"$CORRO_RANK:abcdefghijklmnopqrstuvwxyz:$CORRO_RANK\"; i=$((i+1)); done; \
                  printf 'bytes \\377\\000\\n'; printf '\\r 10%%'; printf '\\r 20%%\\n'; printf 'no newline'";
    let words = ["-np", "4", "--output-filename", directory.to_str().unwrap(), "-prefix-timestamp", "sh", "-c", script];
    let out = run_command(&words).output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    for rank in 0..4 {
        let whole = format!("[{rank}]<stdout>:{rank}:abcdefghijklmnopqrstuvwxyz:{rank}\n");
        assert_eq!(text.matches(&whole).count(), 300);
        let file = std::fs::read(directory.join(format!("rank.{rank}/stdout"))).unwrap();
        let has = |want: &[u8]| file.windows(want.len()).any(|w| w == want);
        assert!(has(b"<stdout>:bytes \xff\x00\n") && has(b"<stdout>: 10%\r") && has(b"<stdout>: 20%\n"));
        assert!(file.ends_with(format!("[{rank}]<stdout>:no newline").as_bytes()));
    }
    // Sun Nov 15 00:13:44 2026[0]<stdout>:
    let first = text.lines().next().unwrap();
    let (time, _) = first.split_once('[').unwrap();
    assert!(time.len() == 24 && time.as_bytes()[13] == b':', "{first}");
}

#[test]
fn a_terminal_gets_colours() {
    let ran = run(&["-np", "2", "--color", "always", "echo", "x"]);
    assert!(ran.out.contains("\x1b[36m[0]<stdout>:\x1b[0mx\n") && ran.out.contains("\x1b[33m[1]<stdout>:"), "{ran:?}");
    assert!(!run(&["-np", "1", "echo", "x"]).out.contains('\x1b'));
}

#[test]
fn sixty_four_ranks_start_reduce_and_end() {
    let ran = run(&["-np", "64", training(), "--steps", "20"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("64 ranks: accuracy") && ran.out.contains("weights equal on all ranks"), "{ran:?}");
    eprintln!("64 ranks took {:?}", ran.took);
}

#[test]
fn a_rank_killed_in_training_is_the_one_blamed() {
    let script = "if [ $CORRO_RANK = 2 ]; then (sleep 1; kill -9 $$) & fi; exec \"$0\" --steps 1000000000";
    let ran = run(&["-np", "4", "sh", "-c", script, training()]);
    assert_eq!(ran.code, Some(137), "{ran:?}");
    let last = format!("rank 2 on localhost exited with non-zero status: {KILLED}; all other ranks were ended\n");
    assert!(ran.err.ends_with(&last), "{ran:?}");
}

/// Whoever waits for a rank that died before it met anybody would wait until the connect timeout. The launcher knows at once.
#[test]
fn a_rank_killed_while_ranks_meet_ends_the_job_soon() {
    let probe = support::example("probe");
    let moments = ["seat".to_owned(), "card".to_owned()].into_iter().chain(support::moments(8, 40_000));
    for (turn, moment) in moments.enumerate() {
        let victim = turn % 3;
        let script =
            format!("if [ $CORRO_RANK = {victim} ]; then exec {probe} die {moment}; fi; exec {probe} die 500000000");
        let started = std::time::Instant::now();
        let mut command = run_command(&["-np", "3", "sh", "-c", &script]);
        let ran = Running::start(command.env("CORRO_CONNECT_TIMEOUT", "600")).end();
        eprintln!("rank {victim} killed at {moment}: the job ended after {:?}", started.elapsed());
        assert_eq!(ran.code, Some(137), "{ran:?}");
        let blamed = format!("rank {victim} on localhost exited with non-zero status: signal 9 (SIGKILL)");
        assert!(ran.err.contains(&blamed), "{blamed} at {moment}: {ran:?}");
    }
}

#[test]
fn strangers_get_nothing_and_stop_nothing() {
    use corro_core::Deadline;
    use corro_transport::{secret::Secret, store};
    let script = Script::new(
        "echo at $CORRO_RENDEZVOUS end; while [ ! -e \"$GO\" ]; do sleep 0.05; done; exec \"$TRAINING\" --steps 30",
    );
    let folder = Folder::new("strangers");
    let mut command = run_command(&[vec!["-np", "2"], script.words()].concat());
    let running = Running::start(command.env("GO", folder.join("go")).env("TRAINING", training()));
    running.wait_for(" end\n");
    let text = running.out_so_far();
    let address: std::net::SocketAddr =
        text.split("at ").nth(1).unwrap().split(" end").next().unwrap().parse().unwrap();
    assert!(address.ip().is_loopback(), "a job of one host listens at loopback only");
    let wrong = Secret::random().unwrap();
    let refused = store::Client::connect(&[address], &wrong, false, Deadline::after(Duration::from_secs(5)));
    assert!(refused.is_err());
    for i in 0..300u32 {
        if let Ok(mut socket) = std::net::TcpStream::connect(address) {
            let _ = socket.write_all(&(0..i * 3).map(|n| (n * n + i) as u8).collect::<Vec<_>>());
        }
    }
    std::fs::write(folder.join("go"), "").unwrap();
    let ran = running.end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains("weights equal"), "{ran:?}");
}

#[test]
fn a_port_that_is_taken_is_named() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port().to_string();
    let ran = run(&["-np", "1", "--rendezvous-port", &port, "true"]);
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("127.0.0.1:{port}")) && ran.err.contains("another job"), "{ran:?}");
}

#[test]
fn a_full_dev_shm_harms_nobody() {
    // In a mount namespace of its own, /dev/shm is one page, and full.
    let script =
        "mount -t tmpfs -o size=4k tmpfs /dev/shm && head -c 4096 /dev/zero > /dev/shm/full && exec \"$0\" \"$@\"";
    if !Command::new("unshare").args(["-m", "true"]).status().is_ok_and(|s| s.success()) {
        return support::skip("a_full_dev_shm_harms_nobody", "mount namespaces need root and unshare");
    }
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(corro()).args(["run", "-np", "2", training(), "--steps", "30"]);
    support::clean(&mut command);
    let ran = Running::start(&mut command).end();
    assert!(ran.code == Some(0) && ran.out.contains("weights equal"), "{ran:?}");
}

#[test]
fn starting_is_quick() {
    let mut times: Vec<Duration> = (0..10).map(|_| run(&["-np", "2", "true"]).took).collect();
    times.sort_unstable();
    eprintln!("`corro run -np 2 true`: {:?} (median of 10)", times[5]);
    // Told above, not judged here: tests share their machine.
    assert!(times[0] < PROMPTLY, "{times:?}");
}

#[test]
fn ranks_hear_signals_and_may_clean_up() {
    for signal in ["INT", "TERM"] {
        let script = Script::new(&format!(
            "trap 'echo rank $CORRO_RANK cleaned up; exit 0' {signal}; echo ready; while :; do sleep 0.05; done"
        ));
        let mut words = vec!["-np", "2", "--grace-seconds", "60"];
        words.extend(script.words());
        let running = Running::start(&mut run_command(&words));
        running.wait_for("[0]<stdout>:ready");
        running.wait_for("[1]<stdout>:ready");
        running.signal(signal);
        let ran = running.end();
        for rank in 0..2 {
            assert!(ran.out.contains(&format!("rank {rank} cleaned up")), "{signal}: {ran:?}");
        }
        assert_eq!(ran.code, Some(if signal == "INT" { 130 } else { 143 }), "{signal}: {ran:?}");
        script.assert_gone();
    }
}
