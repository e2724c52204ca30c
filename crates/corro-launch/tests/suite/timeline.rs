//! `corro timeline` on the traces of real jobs.

use std::process::Command;

use crate::support::browser::Browser;
use crate::support::{Folder, Running, corro, example, skip};

/// `corro timeline` with these words: its exit code, and what it says.
fn timeline(words: &[&str]) -> (Option<i32>, String) {
    let out = Command::new(corro()).arg("timeline").args(words).output().unwrap();
    (out.status.code(), format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr)))
}

/// A job of two ranks that has left its traces at the path that is given back.
fn traced(folder: &Folder) -> String {
    let path = folder.path().join("trace").display().to_string();
    let mut command = Command::new(corro());
    command.args(["run", "-np", "2", &example("train"), "30", "2", "10", "1", "5"]).env("CORRO_TRACE", &path);
    let ended = Running::start(command.env("HOROVOD_TIMELINE", format!("{path}.timeline"))).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    path
}

#[test]
fn traces_are_summed_up_merged_and_opened() {
    let folder = Folder::new("timeline");
    let path = traced(&folder);
    let (code, said) = timeline(&["summary", &path]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("rank 0 localhost") && said.contains("rank 1 localhost"), "{said}");
    assert!(said.lines().any(|line| line.ends_with("ALLREDUCE gradient")), "{said}");
    let merged = format!("{path}.json");
    let (code, said) = timeline(&["merge", &path, "-o", &merged]);
    assert!(code == Some(0) && said.contains("of 2 files in"), "{said}");
    let events: Vec<serde_json::Value> = serde_json::from_str(&std::fs::read_to_string(&merged).unwrap()).unwrap();
    assert!(events.iter().filter(|event| event["ph"] == "X").count() >= 60, "30 steps on 2 ranks");
    assert_eq!(timeline(&["summary", &merged]).1, timeline(&["summary", &path]).1, "merged or not, it says the same");
    let (code, said) = timeline(&["summary", &format!("{path}.timeline")]);
    assert!(code == Some(0) && said.contains("NEGOTIATE_ALLREDUCE gradient"), "{said}");
    let (code, said) = timeline(&["merge", &merged, "-o", &merged]);
    assert!(code == Some(2) && said.contains("is one of the files to merge"), "{code:?} {said}");
    let (code, said) = timeline(&["open", "/nowhere/trace"]);
    assert!(code == Some(2) && said.contains("/nowhere/trace.rank0.json"), "{code:?} {said}");
    let (code, said) = timeline(&["summary", "/etc/hostname"]);
    assert!(code == Some(2) && said.contains("/etc/hostname is no"), "{code:?} {said}");
}

#[test]
fn a_browser_draws_a_timeline_from_one_file() {
    let Some(browser) = Browser::find() else {
        return skip("a_browser_draws_a_timeline_from_one_file", "there is no Chromium here");
    };
    let folder = Folder::new("timeline-page");
    let path = traced(&folder);
    let (code, said) = timeline(&["open", &path]);
    assert!(code == Some(0) && said.contains(&format!("{path}.html")), "{said}");
    let drawn = browser.dom(&format!("file://{path}.html"));
    assert!(drawn.contains("2 rows · ") && drawn.contains(">trace<"), "{drawn}");
    let bars = drawn.split_once("data-drawn=\"").map_or("0", |(_, rest)| rest.split('"').next().unwrap());
    assert!(bars.parse::<u32>().unwrap() >= 40, "{bars} bars are drawn");
}
