//! Jobs that are watched: what the page, the recording and the report say is what happened.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::Command;

use corro_testing::fake_gpu;
use serde_json::Value;

use crate::support::browser::Browser;
use crate::support::{Folder, HANG_LIMIT, Running, corro, example, kill, skip, wait_until};

/// `corro run` with these flags, of ranks that train as `words` say.
fn run(flags: &[&str], words: &str) -> Running {
    Running::start(Command::new(corro()).arg("run").args(flags).arg(example("train")).args(words.split_whitespace()))
}

/// Waits for the link to the page.
fn link(job: &Running) -> String {
    job.wait_for_error("token=");
    let said = job.err_so_far();
    let from = said.find("http://").unwrap();
    said[from..].split_whitespace().next().unwrap().to_owned()
}

/// Asks for a page of the server behind `link`.
fn ask(link: &str, path: &str) -> String {
    let rest = link.strip_prefix("http://").unwrap();
    let (address, token) = rest.split_once("/?token=").unwrap();
    let mut answer = String::new();
    let mut stream = TcpStream::connect(address).unwrap();
    stream.write_all(format!("GET {path}?token={token} HTTP/1.1\r\n\r\n").as_bytes()).unwrap();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

fn view(link: &str) -> Value {
    serde_json::from_str(ask(link, "/view").split_once("\r\n\r\n").unwrap().1).unwrap()
}

/// The pid of a rank, as the page knows it.
fn pid(view: &Value, rank: usize) -> i32 {
    view["ranks"][rank]["pid"].as_i64().unwrap() as i32
}

#[test]
fn the_page_shows_steps_values_output_and_a_rank_that_is_killed() {
    let job = run(&["-np", "2", "--page"], "100000 5 10");
    let link = link(&job);
    wait_until("steps are seen", HANG_LIMIT, || view(&link)["ranks"][1]["shares"].is_array());
    wait_until("values are seen", HANG_LIMIT, || view(&link)["training"]["loss"][0].is_array());
    let seen = view(&link);
    assert_eq!(seen["training"]["loss"][0][1].as_f64(), Some(1.5), "the mean of both ranks");
    for rank in 0..2 {
        let shares: f64 = (0..3).map(|part| seen["ranks"][rank]["shares"][part].as_f64().unwrap()).sum();
        assert!((shares - 1.0).abs() < 0.02, "{seen}");
        assert!(seen["ranks"][rank]["step_ms"].as_f64().unwrap() >= 5.0, "{seen}");
    }
    wait_until("output is seen", HANG_LIMIT, || ask(&link, "/view").contains("step 50 <b>of</b> 100000"));
    assert!(ask(&link, "/metrics").contains("corro_job_rank_up{rank=\"1\",host=\"localhost\"} 1"));
    kill(pid(&seen, 1), "KILL");
    // The launcher ends the job soon after: then the page is gone, but not before it was said to who looks at it.
    wait_until("the death is seen", HANG_LIMIT, || view(&link)["ranks"][1]["state"] == "failed");
    let ended = job.end();
    assert!(ended.err.contains("rank 1 on localhost"), "{}", ended.err);
}

#[test]
fn a_stopped_rank_is_named_within_a_second_or_two() {
    let job = run(&["-np", "2", "--page"], "100000 5 10");
    let link = link(&job);
    wait_until("steps are seen", HANG_LIMIT, || view(&link)["ranks"][0]["shares"].is_array());
    let stopped = pid(&view(&link), 0);
    kill(stopped, "STOP");
    wait_until("rank 0 is waited for", HANG_LIMIT, || view(&link)["stall"]["awaited"] == serde_json::json!([0]));
    let stall = view(&link)["stall"].clone();
    assert_eq!((stall["waiting"].clone(), stall["tensor"].as_str()), (serde_json::json!([1]), Some("gradient")));
    kill(stopped, "CONT");
    wait_until("it goes on", HANG_LIMIT, || view(&link)["stall"].is_null());
    job.signal("INT");
    job.end();
}

#[test]
fn a_recording_tells_who_was_slow_and_a_report_is_one_file() {
    let folder = Folder::new("watching");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (record, html) = (path("run.corro"), path("report.html"));
    let flags = ["-np", "3", "--record", &record, &format!("--report={html}"), "--logdir", &path("logs")];
    let ended = run(&flags, "60 30 10 1 4").end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let advice = "rank 1 on localhost computes ";
    assert!(ended.err.contains(advice), "{}", ended.err);
    let report = Command::new(corro()).args(["report", &record]).output().unwrap();
    let said = String::from_utf8_lossy(&report.stdout).into_owned();
    assert!(said.contains(advice) && said.contains("ranks agree by "), "{said}");
    let whole = std::fs::read_to_string(&html).unwrap();
    assert!(whole.contains("window.RECORDING={\"version\":1") && !whole.contains("src=\""));
    let values = std::fs::read_to_string(path("logs/values.jsonl")).unwrap();
    assert_eq!(values.lines().count(), 60, "every step has its mean");
    let last: Value = serde_json::from_str(values.lines().last().unwrap()).unwrap();
    assert_eq!((last["step"].as_u64(), last["ranks"].as_u64()), (Some(60), Some(3)));
    assert!(std::fs::read_to_string(path("logs/rank.2/stdout")).unwrap().contains("step 50"));
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
    assert_eq!((recorded["state"].as_str(), recorded["ranks"][2]["step"].as_u64()), (Some("done"), Some(60)));
}

#[test]
fn what_cannot_be_written_or_read_is_told_before_anything_starts() {
    let ended = run(&["-np", "2", "--record", "/nowhere/x.corro"], "1 1 1").end();
    assert!(ended.code == Some(1) && ended.err.contains("/nowhere/x.corro"), "{ended:?}");
    let ended = run(&["-np", "2", "--page=everywhere"], "1 1 1").end();
    assert!(ended.code == Some(2) && ended.err.contains("everywhere"), "{ended:?}");
    let report = Command::new(corro()).args(["report", "/etc/hostname"]).output().unwrap();
    assert!(String::from_utf8_lossy(&report.stderr).contains("no recording"), "{report:?}");
}

#[test]
fn a_browser_draws_what_the_job_says() {
    let Some(browser) = Browser::find() else {
        return skip("a_browser_draws_what_the_job_says", "there is no Chromium here");
    };
    let folder = Folder::new("browser");
    let record = folder.path().join("run.corro").display().to_string();
    let ended = run(&["-np", "2", "--record", &record], "60 20 10 1 5").end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let page = Running::start(Command::new(corro()).args(["page", &record, &record]));
    page.wait_for("token=");
    let link = page.out_so_far().trim().to_owned();
    let drawn = browser.dom(&link);
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(&record).unwrap()).unwrap();
    let step = format!("{:.2}", recorded["ranks"][1]["step_ms"].as_f64().unwrap());
    for part in [
        &step,
        ">done<",
        "mostly for rank 1",
        "&lt;b&gt;of&lt;/b&gt; 60",
        "Recordings side by side",
        "Tensors that take most of the time",
        "rank 1 on localhost computes",
    ] {
        assert!(drawn.contains(part), "{part:?} in {drawn}");
    }
    assert!(!drawn.contains("<b>of</b>"), "what ranks print is text");
    let refused = browser.dom(link.split_once('?').unwrap().0);
    assert!(refused.contains("wants the token") && !refused.contains("localhost computes"), "{refused}");
    page.signal("INT");
    page.end();
}

/// A command of `corro` about the jobs in `folder`, and what it says.
fn about(folder: &Folder, words: &[&str]) -> String {
    let out = Command::new(corro()).args(words).env("XDG_RUNTIME_DIR", folder.path()).output().unwrap();
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

#[test]
fn a_running_job_is_listed_shown_recorded_and_says_where_its_threads_are() {
    let folder = Folder::new("job-socket");
    assert!(about(&folder, &["top"]).contains("corro run --watch"));
    let mut command = Command::new(corro());
    command.args(["run", "-np", "2", "--watch", &example("train"), "100000", "5", "10"]);
    let job = Running::start(command.env("XDG_RUNTIME_DIR", folder.path()));
    let number = job.child.id().to_string();
    wait_until("steps are seen", HANG_LIMIT, || about(&folder, &["top"]).contains(" ms   computing "));
    let listed = about(&folder, &["ps"]);
    assert!(listed.lines().any(|line| line.trim_start().starts_with(&number) && line.contains("train")), "{listed}");
    let stacks = about(&folder, &["stacks", &number]);
    assert!(stacks.contains("rank 0 on localhost:") && stacks.contains("rank 1 on localhost:"), "{stacks}");
    assert!(stacks.contains(" corro-feed "), "{stacks}");
    let file = folder.join("now.corro").display().to_string();
    about(&folder, &["record", &file]);
    let recorded: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert_eq!((recorded["state"].as_str(), recorded["size"].as_u64()), (Some("running"), Some(2)));
    let records = recorded["records"].as_array().unwrap();
    assert_eq!(records.len(), 2, "the flight records of both ranks: {recorded}");
    for (rank, record) in records.iter().enumerate() {
        let text = record[1].as_str().unwrap();
        assert!(text.starts_with(&format!("rank {rank}, process set 0: ")), "{text}");
        assert!(text.lines().count() > 20 && text.contains("ALLREDUCE     host gradient"), "{text}");
    }
    assert!(about(&folder, &["stacks", "1"]).contains(&format!("{number} can")));
    job.signal("INT");
    job.end();
    assert_eq!(about(&folder, &["ps"]).lines().count(), 1, "nothing is left of it");
}

#[test]
fn what_one_rank_does_is_what_several_are_measured_by() {
    let folder = Folder::new("against");
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (one, three) = (path("one.corro"), path("three.corro"));
    for (ranks, record, slow) in [("1", &one, ""), ("3", &three, "1 4")] {
        let ended = run(&["-np", ranks, "--record", record], &format!("40 20 10 {slow}")).end();
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
    let html = path("report.html");
    let report = Command::new(corro()).args(["report", &three, "--against", &one, "--html", &html]).output().unwrap();
    let said = String::from_utf8_lossy(&report.stdout).into_owned();
    let efficiency =
        said.split_once("an efficiency of ").unwrap_or_else(|| panic!("{said}")).1.split(' ').next().unwrap();
    // One rank takes 20 ms, and three wait for one that takes 80.
    assert!((10.0..40.0).contains(&efficiency.parse::<f64>().unwrap()), "{said}");
    assert!(said.contains("Against 1 rank with ") && said.contains("  gradient\n"), "{said}");
    let Some(browser) = Browser::find() else { return };
    let drawn = browser.dom(&format!("file://{html}"));
    assert!(
        drawn.contains("Recordings side by side")
            && drawn.contains(&format!(">{:.0} %<", efficiency.parse::<f64>().unwrap())),
        "{drawn}"
    );
}

#[test]
fn the_load_of_gpus_is_on_the_page_in_top_and_in_the_metrics() {
    let folder = Folder::new("gpus");
    let Some(fake) = fake_gpu::build(folder.path()) else {
        return skip("the_load_of_gpus_is_on_the_page_in_top_and_in_the_metrics", "there is no C compiler here");
    };
    // As in a program that uses CUDA: the driver is loaded, and has a context.
    let mut command = Command::new(corro());
    command.args(["run", "-np", "2", "--page", "env"]).arg(format!("LD_PRELOAD={}", fake.driver.display()));
    command.arg(format!("LD_LIBRARY_PATH={}", folder.path().display())).args([&example("train"), "100000", "5", "10"]);
    let job = Running::start(command.env("XDG_RUNTIME_DIR", folder.path()));
    let link = link(&job);
    let load = |seen: &Value| seen["recent"].as_array().and_then(|rows| rows.last()?["ranks"][1][7].as_f64());
    wait_until("the load is seen", HANG_LIMIT, || load(&view(&link)) == Some(f64::from(fake_gpu::LOAD)));
    assert_eq!(view(&link)["ranks"][0]["gpu_memory"].as_u64(), Some(fake_gpu::MEMORY));
    let metrics = ask(&link, "/metrics");
    for (name, value) in [
        ("gpu_load_percent", u64::from(fake_gpu::LOAD)),
        ("gpu_memory_used_bytes", fake_gpu::USED),
        ("gpu_memory_bytes", fake_gpu::MEMORY),
    ] {
        let wanted = format!("corro_job_{name}{{rank=\"1\",host=\"localhost\"}} {value}\n");
        assert!(metrics.contains(&wanted), "{wanted} in {metrics}");
    }
    let top = about(&folder, &["top"]);
    assert!(top.contains(&format!("{} %", fake_gpu::LOAD)) && top.contains("5120 MiB"), "{top}");
    job.signal("INT");
    job.end();
}

/// Lines of the one log come from ranks, from agents and from the launcher, each once.
#[test]
fn what_agents_say_is_in_the_log_and_nothing_is_there_twice() {
    let mut command = Command::new(corro());
    command.args(["run", "-np", "2", "--watch", &example("train"), "20", "5", "10"]).env("CORRO_LOG_LEVEL", "debug");
    let ended = Running::start(&mut command).end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let said = |text: &str| ended.err.lines().filter(|line| line.contains(text)).count();
    assert_eq!(said("starts 2 processes"), 1, "{}", ended.err);
    assert!(ended.err.lines().any(|line| line.contains("agent on ") && line.contains("starts 2")), "{}", ended.err);
    // A line has its time to the microsecond and who says it: no two are alike.
    let mut lines: Vec<&str> = ended.err.lines().filter(|line| line.contains("[20")).collect();
    let count = lines.len();
    lines.sort_unstable();
    lines.dedup();
    assert!(count > 2 && lines.len() == count, "{}", ended.err);
}
