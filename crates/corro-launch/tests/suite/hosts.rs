//! Jobs over several hosts: network namespaces, each with a real sshd.

use std::time::Duration;

use crate::support;
use crate::support::netns::{Hosts, assert_gone};
use crate::support::{Running, Script, skip, training};

fn hosts(test: &str, count: usize) -> Option<Hosts> {
    Hosts::new(count).map_err(|why| skip(test, &why)).ok()
}

fn trains(test: &str, count: usize) {
    let Some(hosts) = hosts(test, count) else { return };
    let list = hosts.list(2);
    let ran = Running::start(&mut hosts.run_command(&["-H", &list, training(), "--steps", "60"])).end();
    let size = 2 * count;
    assert_eq!(ran.code, Some(0), "{ran:?}");
    assert!(ran.out.contains(&format!("[0]<stdout>:{size} ranks: accuracy")), "{ran:?}");
    assert!(ran.out.contains("weights equal on all ranks"), "{ran:?}");
    let places = Running::start(&mut hosts.run_command(&[
        "-H",
        &list,
        "sh",
        "-c",
        "echo $HOROVOD_HOSTNAME $HOROVOD_LOCAL_RANK/$HOROVOD_LOCAL_SIZE $HOROVOD_CROSS_RANK/$HOROVOD_CROSS_SIZE",
    ]))
    .end();
    for rank in 0..size {
        let host = rank / 2;
        let want = format!("[{rank}]<stdout>:{} {}/2 {host}/{count}\n", Hosts::address(host), rank % 2);
        assert!(places.out.contains(&want), "{want:?} in {places:?}");
    }
}

#[test]
fn two_hosts_train_together() {
    trains("two_hosts_train_together", 2);
}

#[test]
fn three_hosts_train_together() {
    trains("three_hosts_train_together", 3);
}

#[test]
fn a_slow_network_is_named_with_what_it_carries() {
    let test = "a_slow_network_is_named_with_what_it_carries";
    let Some(hosts) = hosts(test, 2) else { return };
    if let Err(why) = hosts.slow(1, "100mbit") {
        return skip(test, &why);
    }
    let words = ["-H", &hosts.list(1), "--report", &support::example("train"), "60", "5", "1000"];
    let ran = Running::start(&mut hosts.run_command(&words)).end();
    assert_eq!(ran.code, Some(0), "{ran:?}");
    let between = format!("the network between {} and {} has carried ", Hosts::address(0), Hosts::address(1));
    let carried = ran.err.split_once(&between).unwrap_or_else(|| panic!("{ran:?}")).1;
    let megabits: f64 =
        carried.split(" Mbit/s at most").next().unwrap().parse().unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert!((40.0..115.0).contains(&megabits), "{megabits} in {ran:?}");
}

/// A scheduler that tells nobody where rank 0 is, and a directory that all hosts see. What a killed rank 0 of the same job left
/// there leads nobody astray.
#[test]
fn ranks_of_two_hosts_meet_by_a_shared_directory() {
    let Some(hosts) = hosts("ranks_of_two_hosts_meet_by_a_shared_directory", 2) else { return };
    let folder = support::Folder::new("shared-directory");
    let meet = folder.join("meet");
    let probe = support::example("probe");
    let rank = |rank: usize| {
        let mut command = hosts.on(rank, &probe);
        let place = [("CORRO_RANK", rank.to_string()), ("CORRO_SIZE", "2".to_owned())];
        command.args(["send", "by-a-directory", "2"]).envs(place);
        command.env("CORRO_JOB_ID", "job 7").env("CORRO_MEET_DIR", &meet);
        Running::start(&mut command)
    };
    let words = || std::fs::read_dir(&meet).map_or(0, Iterator::count);
    let old = rank(0);
    support::wait_until("the first rank 0 has left word", support::HANG_LIMIT, || words() == 1);
    old.signal("KILL");
    old.end();
    assert_eq!(words(), 1, "it could not take it back");
    let ranks = [rank(1), rank(0)].map(Running::end);
    assert!(ranks.iter().all(|ran| ran.code == Some(0)), "{ranks:?}");
    assert!(ranks[0].out.contains("the pattern has come"), "{ranks:?}");
    assert_eq!(words(), 0, "nothing stays in the directory");
}

#[test]
fn a_cut_link_ends_the_job_and_names_the_host() {
    let Some(hosts) = hosts("a_cut_link_ends_the_job_and_names_the_host", 2) else { return };
    let mark = format!("corro-cut-{}", std::process::id());
    let mut command = hosts.run_command(&["-H", &hosts.list(2), "--host-timeout", "5"]);
    let running = Running::start(command.args([training(), "--steps", "1000000000"]).env("TEST_MARK", &mark));
    running.wait_for("loss");
    hosts.link(1, "down");
    let cut = std::time::Instant::now();
    let ran = running.end();
    eprintln!("the job ended {:?} after the link was cut", cut.elapsed());
    assert_eq!(ran.code, Some(1), "{ran:?}");
    assert!(ran.err.contains(&format!("lost host {} with rank 2, 3", Hosts::address(1))), "{ran:?}");
    // The other side finds out by itself that its launcher is lost.
    assert_gone(&mark, Duration::from_secs(40));
}

#[test]
fn a_failing_rank_on_another_host_is_named() {
    let Some(hosts) = hosts("a_failing_rank_on_another_host_is_named", 2) else { return };
    let script = Script::new("if [ $CORRO_RANK = 3 ]; then echo last words >&2; exit 7; fi; sleep 60");
    let words = [vec!["-H", "10.78.0.1:2,10.78.0.2:2"], script.words()].concat();
    let ran = Running::start(&mut hosts.run_command(&words)).end();
    assert_eq!(ran.code, Some(7), "{ran:?}");
    assert!(
        ran.err.ends_with("rank 3 on 10.78.0.2 exited with non-zero status: exit code 7; all other ranks were ended\n")
    );
    assert!(ran.err.contains("    last words\n"), "{ran:?}");
    script.assert_gone();
}

#[test]
fn interrupts_reach_every_host() {
    let Some(hosts) = hosts("interrupts_reach_every_host", 2) else { return };
    for (signal, code) in [("INT", Some(130)), ("TERM", Some(143)), ("KILL", None)] {
        // A helper in a session of its own must not get away either.
        let script = Script::new("setsid sleep 300 & echo ready $CORRO_RANK; sleep 300");
        let words = [vec!["-H", "10.78.0.1:2,10.78.0.2:2"], script.words()].concat();
        let mut command = hosts.run_command(&words);
        let running = Running::start(command.env("TEST_MARK", &script.mark));
        for rank in 0..4 {
            running.wait_for(&format!("ready {rank}"));
        }
        running.signal(signal);
        let ran = running.end();
        assert_eq!(ran.code, code, "{signal}: {ran:?}");
        script.assert_gone();
    }
}

#[test]
fn hosts_that_cannot_be_reached_are_all_named_with_the_reason() {
    let Some(hosts) = hosts("hosts_that_cannot_be_reached_are_all_named_with_the_reason", 2) else { return };
    let run = |words: &[&str], known: &str| {
        let mut command = hosts.run_command(words);
        Running::start(command.env("TEST_KNOWN_HOSTS", hosts.known_hosts(known))).end()
    };
    // Long enough for ssh to the one that is there, also on a busy machine; the others are found out before.
    let ran = run(&["-H", "10.78.0.2:1,10.78.0.99:1,nosuch.invalid:1", "--start-timeout", "30", "true"], "known_hosts");
    assert_eq!(ran.code, Some(1), "{ran:?}");
    for word in ["could not connect to some hosts via ssh", "10.78.0.99 (rank 1)", "nosuch.invalid (rank 2)", "resolve"]
    {
        assert!(ran.err.contains(word), "{word} in {ran:?}");
    }
    assert!(!ran.err.contains("10.78.0.2 ("), "{ran:?}");
    for (what, words, known) in [
        ("Host key verification failed", vec!["-H", "10.78.0.2:1", "true"], "no_known_hosts"),
        ("Connection refused", vec!["-H", "10.78.0.2:1", "-p", "2223", "true"], "known_hosts"),
        ("Permission denied", vec!["-H", "10.78.0.2:1", "-i", &hosts.key("other_key"), "true"], "known_hosts"),
        ("--remote-corro", vec!["-H", "10.78.0.2:1", "--remote-corro", "/no/such/corro", "true"], "known_hosts"),
    ] {
        let ran = run(&words, known);
        assert_eq!(ran.code, Some(1), "{ran:?}");
        assert!(ran.err.contains(what) && ran.err.contains("10.78.0.2 (rank 0)"), "{what} in {ran:?}");
    }
    let ran = run(&["-H", "10.78.0.2:1", "--ssh-host-keys", "ignore", "true"], "no_known_hosts");
    assert_eq!(ran.code, Some(0), "{ran:?}");
}

#[test]
fn nothing_of_the_job_is_on_any_command_line() {
    let Some(hosts) = hosts("nothing_of_the_job_is_on_any_command_line", 2) else { return };
    let script = Script::new("echo \"secret $CORRO_SECRET\"; echo ready; sleep 300");
    let words = [vec!["-H", "10.78.0.1:1,10.78.0.2:1"], script.words()].concat();
    let mut command = hosts.run_command(&words);
    let running = Running::start(command.env("MY_TOKEN", "token-of-the-user-4711"));
    running.wait_for("ready");
    let text = running.out_so_far();
    let secret = text.split("secret ").nth(1).unwrap().split_whitespace().next().unwrap().to_owned();
    assert_eq!(secret.len(), 64);
    for entry in std::fs::read_dir("/proc").unwrap().flatten() {
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        let line = String::from_utf8_lossy(&line);
        assert!(!line.contains(&secret) && !line.contains("token-of-the-user-4711"), "{line}");
    }
    running.signal("TERM");
    running.end();
    script.assert_gone();
}

#[test]
fn with_tls_no_tensor_byte_is_on_the_wire() {
    let Some(hosts) = hosts("with_tls_no_tensor_byte_is_on_the_wire", 2) else { return };
    let probe = support::example("probe");
    let pattern = "corro-wire-pattern-0815";
    let seen = |flags: &[&str]| {
        let words = [flags, &["-H", "10.78.0.1:1,10.78.0.2:1", &probe, "send", pattern, "4"]].concat();
        let wire = hosts.capture(|| {
            let ran = Running::start(&mut hosts.run_command(&words)).end();
            assert!(ran.code == Some(0) && ran.out.contains("[1]<stdout>:the pattern has come"), "{ran:?}");
        });
        assert!(wire.len() > 4 << 20, "only {} bytes were captured", wire.len());
        wire.windows(pattern.len()).filter(|w| *w == pattern.as_bytes()).count()
    };
    // The capture itself works: without TLS the pattern is there.
    assert!(seen(&[]) > 1000);
    assert_eq!(seen(&["--tls"]), 0);
}

/// With interfaces named, nobody who comes by another can even try to connect to anything of the job's.
#[test]
fn with_interfaces_named_nothing_listens_anywhere_else() {
    let Some(hosts) = hosts("with_interfaces_named_nothing_listens_anywhere_else", 2) else { return };
    // They tell which TCP ports are open on their hosts, of which the first is the launcher's too.
    let script = "cat /proc/net/tcp /proc/net/tcp6; echo over";
    let everywhere = |flags: &[&str]| {
        let more = ["--no-prefix", "-H", "10.78.0.1:1,10.78.0.2:1", "--servers", "1", "sh", "-c", script];
        let words = [flags, &more].concat();
        let ran = Running::start(&mut hosts.run_command(&words)).end();
        assert!(ran.out.contains("over\n"), "{ran:?}");
        let open = ran.out.lines().filter_map(|line| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let (ip, port) = words.get(1).filter(|_| words.get(3) == Some(&"0A"))?.split_once(':')?;
            // But for the one of sshd, which is no part of the job.
            (ip.bytes().all(|digit| digit == b'0') && port != format!("{:04X}", 2222)).then_some(())
        });
        open.count()
    };
    // It would be seen: the store listens everywhere unless it is told not to, and so does a parameter server.
    assert_eq!(everywhere(&[]), 2);
    assert_eq!(everywhere(&["--network-interfaces", "eth0"]), 0);
    // The driver of an elastic job, too.
    assert_eq!(everywhere(&["--network-interfaces", "eth0", "-np", "2", "--min-np", "2"]), 0);
}

#[test]
fn a_reader_that_pauses_loses_no_host() {
    let Some(hosts) = hosts("a_reader_that_pauses_loses_no_host", 2) else { return };
    let flood = "i=0; while [ $i -lt 20000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890; i=$((i+1)); done";
    let mut command = hosts.run_command(&["-H", "10.78.0.1:1,10.78.0.2:1", "--host-timeout", "4", "sh", "-c", flood]);
    let mut child = command.stdout(std::process::Stdio::piped()).spawn().unwrap();
    // Much longer than the host may be silent; but it is we who do not listen.
    std::thread::sleep(Duration::from_secs(8));
    let mut all = Vec::new();
    std::io::Read::read_to_end(child.stdout.as_mut().unwrap(), &mut all).unwrap();
    assert_eq!(support::wait(&mut child, support::HANG_LIMIT).code(), Some(0));
    assert_eq!(String::from_utf8(all).unwrap().lines().count(), 40000);
}

#[test]
fn the_doctor_reaches_hosts() {
    let Some(hosts) = hosts("the_doctor_reaches_hosts", 2) else { return };
    let ran = Running::start(&mut hosts.command("doctor", &["-H", "10.78.0.1:1,10.78.0.2:1"])).end();
    assert!(ran.code == Some(0) && ran.out.contains("10.78.0.2: reached"), "{ran:?}");
    let ran = Running::start(&mut hosts.command("doctor", &["-H", "10.78.0.2:1,nosuch.invalid:1"])).end();
    assert!(ran.code == Some(1) && ran.out.contains("BAD   host           nosuch.invalid: "), "{ran:?}");
}
