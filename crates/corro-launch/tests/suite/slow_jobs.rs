//! Every rule of advice on a real job that is slow for this reason, and the report's numbers beside the job's own. They take long and
//! want a machine that is not busy: `make deep` runs them.

use std::process::Command;

use serde_json::Value;

use crate::support::{Folder, Running, corro, example};

/// Runs ranks that train as `words` say; gives the recording, and what rank 0 says about its steps.
fn recorded(ranks: &str, words: &str) -> (Value, String) {
    let folder = Folder::new("slow-jobs");
    let file = folder.path().join("run.corro").display().to_string();
    let mut command = Command::new(corro());
    command.args(["run", "-np", ranks, "--record", &file, &example("train")]).args(words.split_whitespace());
    let ended = Running::start(&mut command).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    (serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap(), ended.out)
}

fn rules(recording: &Value) -> Vec<&str> {
    recording["advice"].as_array().unwrap().iter().map(|advice| advice["rule"].as_str().unwrap()).collect()
}

fn text(recording: &Value) -> String {
    recording["advice"].to_string()
}

#[test]
#[ignore = "takes long: make deep"]
fn a_rank_slower_by_a_fifth_is_named() {
    let (recording, _) = recorded("3", "150 40 10 1 1.2");
    assert_eq!(rules(&recording), ["slow rank"], "{}", text(&recording));
    assert!(text(&recording).contains("rank 1 on localhost computes "), "{}", text(&recording));
    let slower = text(&recording).split_once("computes ").unwrap().1.split(' ').next().unwrap().parse::<f64>().unwrap();
    assert!((14.0..26.0).contains(&slower), "{slower} %");
}

#[test]
#[ignore = "takes long: make deep"]
fn shares_and_steps_are_those_of_the_job() {
    let (recording, said) = recorded("2", "150 30 1000 1 1.5");
    for (rank, seen) in recording["ranks"].as_array().unwrap().iter().enumerate() {
        let line = said.lines().find(|line| line.contains(&format!("[{rank}]<stdout>:a step takes"))).unwrap();
        let own: Vec<f64> = line.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let (step, computing) = (own[0], own[1]);
        let shares: Vec<f64> = (0..3).map(|part| seen["shares"][part].as_f64().unwrap()).collect();
        assert!((shares.iter().sum::<f64>() - 1.0).abs() < 0.02, "{seen}");
        let shown = seen["step_ms"].as_f64().unwrap();
        assert!((shown / step - 1.0).abs() < 0.02, "{shown} ms shown, {step} ms measured");
        assert!((shares[0] * shown - computing).abs() < 0.02 * step, "{seen}, {computing} ms measured");
    }
}

#[test]
#[ignore = "takes long: make deep"]
fn ranks_that_are_late_in_turn_are_uneven_work() {
    let (recording, _) = recorded("3", "150 20 10 0 3 uneven");
    assert_eq!(rules(&recording), ["uneven work"], "{}", text(&recording));
}

#[test]
#[ignore = "takes long: make deep"]
fn large_tensors_are_much_communication() {
    let (recording, _) = recorded("2", "60 2 40000");
    assert!(rules(&recording).contains(&"much communication"), "{}", text(&recording));
}

#[test]
#[ignore = "takes long: make deep"]
fn many_small_tensors_are_named() {
    let (recording, _) = recorded("2", "100 3 4 tensors=120");
    assert!(rules(&recording).contains(&"small tensors"), "{}", text(&recording));
    assert!(text(&recording).contains("a step runs 120 collectives of 4 KB"), "{}", text(&recording));
}

#[test]
#[ignore = "takes long: make deep"]
fn steps_that_do_not_repeat_are_named() {
    let (recording, _) = recorded("2", "300 5 10 changing");
    assert!(rules(&recording).contains(&"plans left"), "{}", text(&recording));
}

#[test]
#[ignore = "takes long: make deep"]
fn a_good_job_gets_no_advice() {
    let (recording, _) = recorded("2", "100 40 10");
    assert_eq!(rules(&recording), [""; 0], "{}", text(&recording));
}
