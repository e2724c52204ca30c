//! Agents that join the launcher by themselves, as those in pods do: they come, are killed, are asked to go, or have the wrong secret.

use std::net::TcpListener;
use std::process::Command;
use std::time::Duration;

use crate::support::elastic::{Job, worker};
use crate::support::{self, Running, corro, run_command, training};

const SECRET: &str = "5ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2e75ec2";

/// A port that is free now.
fn port() -> u16 {
    TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port()
}

fn agent(port: u16, name: &str, secret: &str) -> Running {
    let mut command = Command::new(corro());
    support::clean(&mut command);
    command.args(["agent", &format!("--join=127.0.0.1:{port}"), &format!("--name={name}")]);
    Running::start(command.env("CORRO_SECRET", secret))
}

/// Asks an agent to go, and it does.
fn dismiss(agent: Running) {
    agent.signal("TERM");
    let ran = agent.end();
    assert_eq!(ran.code, Some(0), "{}", ran.err);
}

fn elastic(port: u16, steps: u64) -> Job {
    let (port, worker, steps) = (port.to_string(), worker(), steps.to_string());
    let flags = ["--join-port", &port, "-np", "2", "--min-np", "1", "--max-np", "2", &worker, &steps];
    Job::of(run_command(&flags).env("CORRO_SECRET", SECRET).env("CORRO_TIMEOUT", "600"))
}

#[test]
fn an_agent_that_is_killed_is_replaced_by_one_that_comes_later() {
    let port = port();
    let job = elastic(port, 600);
    let (mut lost, kept) = (agent(port, "w-0", SECRET), agent(port, "w-1", SECRET));
    job.process(1, 2, 1);
    lost.child.kill().unwrap();
    let epoch = job.steps_in(2);
    drop(lost.end());
    let again = agent(port, "w-0", SECRET);
    job.process(1, 2, epoch + 1);
    let ran = job.finish(600);
    assert!(ran.err.contains("host w-0 is gone"), "{}", ran.err);
    assert!(!ran.err.contains("blacklisted"), "{}", ran.err);
    // They wait for the next launcher, until somebody asks them to go.
    for agent in [kept, again] {
        agent.wait_for_error("the launcher has let it go");
        dismiss(agent);
    }
}

#[test]
fn an_agent_that_is_asked_to_go_leaves_at_a_commit() {
    let port = port();
    let job = elastic(port, 600);
    let (leaves, stays) = (agent(port, "w-0", SECRET), agent(port, "w-1", SECRET));
    job.process(1, 2, 1);
    dismiss(leaves);
    job.process(0, 1, 2);
    let ran = job.finish(600);
    assert!(ran.err.contains("w-0 leaves: its system has sent signal 15 (SIGTERM)"), "{}", ran.err);
    assert!(!ran.err.contains("killed") && !ran.err.contains("lost"), "nobody was lost:\n{}", ran.err);
    dismiss(stays);
}

#[test]
fn a_job_of_fixed_size_waits_for_those_that_it_names() {
    let port = port();
    let words = [
        "--join-port",
        &port.to_string(),
        "-H",
        "w-0.workers:1,w-1.workers:1",
        "-np",
        "2",
        training(),
        "--steps",
        "40",
    ];
    let job = Running::start(run_command(&words).env("CORRO_SECRET", SECRET));
    std::thread::sleep(Duration::from_millis(200));
    let stranger = agent(port, "w-0", &SECRET.replace('5', "6")).end();
    assert_eq!(stranger.code, Some(1), "{}", stranger.err);
    assert!(stranger.err.contains("CORRO_SECRET"), "{}", stranger.err);
    let agents = [agent(port, "w-1", SECRET), agent(port, "w-0", SECRET)];
    let ran = job.end();
    assert_eq!(ran.code, Some(0), "{}\n{}", ran.out, ran.err);
    assert!(ran.out.contains("2 ranks: accuracy"), "{}", ran.out);
    agents.into_iter().for_each(dismiss);
}

#[test]
fn without_a_secret_nobody_joins() {
    let ran = Running::start(
        run_command(&["--join-port", "1", "-np", "2", "--min-np", "1", "true"]).env_remove("CORRO_SECRET"),
    )
    .end();
    assert!(ran.code == Some(2) && ran.err.contains("CORRO_SECRET"), "{}", ran.err);
    let ran = Running::start(run_command(&["--join-port", "1", "-np", "2", "true"]).env("CORRO_SECRET", SECRET)).end();
    assert!(ran.code == Some(2) && ran.err.contains("which hosts will join?"), "{}", ran.err);
}
