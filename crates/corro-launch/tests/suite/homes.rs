//! In the homes of other programs: `make homes` fetches those and runs this.

use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{Folder, HANG_LIMIT, Running, corro, example, wait_until};

/// Asks Prometheus what an expression gives.
fn query(port: u16, expression: &str) -> Option<Value> {
    let mut encoded = String::new();
    for byte in expression.bytes() {
        let _ = write!(encoded, "%{byte:02x}");
    }
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    // So old that it does not answer in pieces.
    stream.write_all(format!("GET /api/v1/query?query={encoded} HTTP/1.0\r\n\r\n").as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
}

/// The first number that an expression gives.
fn number(port: u16, expression: &str) -> Option<f64> {
    query(port, expression)?["data"]["result"][0]["value"][1].as_str()?.parse().ok()
}

/// The expressions of the dashboard, for one job.
fn expressions(dashboard: &Value) -> Vec<String> {
    let targets = dashboard["panels"].as_array().unwrap().iter().flat_map(|panel| panel["targets"].as_array().unwrap());
    let plain = |expression: &str| {
        let all = expression.replace("$job", "corro").replace("$rank", ".*");
        all.replace("$__rate_interval", "10s")
    };
    targets.map(|target| plain(target["expr"].as_str().unwrap())).collect()
}

#[test]
#[ignore = "needs Prometheus: make homes"]
fn prometheus_scrapes_a_job_and_the_dashboard_shows_it() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let fetched = Command::new(root.join("tests/get-prometheus"))
        .arg(root.join("../../target/homes/prometheus").canonicalize().unwrap())
        .output()
        .unwrap();
    assert!(fetched.status.success(), "{}", String::from_utf8_lossy(&fetched.stderr));
    let prometheus = String::from_utf8_lossy(&fetched.stdout).trim().to_owned();
    let folder = Folder::new("prometheus");
    let job = Running::start(Command::new(corro()).args([
        "run",
        "-np",
        "2",
        "--page",
        &example("train"),
        "100000",
        "5",
        "10",
    ]));
    job.wait_for_error("token=");
    let said = job.err_so_far();
    let (address, token) = said.split_once("http://").unwrap().1.trim().split_once("/?token=").unwrap();
    let token = token.split_whitespace().next().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let scrape = format!(
        "global: {{scrape_interval: 1s}}\nscrape_configs:\n  - job_name: corro\n    authorization: {{type: Bearer, credentials: {token}}}\n    \
         static_configs: [{{targets: [\"{address}\"]}}]\n"
    );
    let config = folder.path().join("prometheus.yml");
    std::fs::write(&config, scrape).unwrap();
    let server = Running::start(Command::new(prometheus).args([
        format!("--config.file={}", config.display()),
        format!("--storage.tsdb.path={}", folder.path().join("data").display()),
        format!("--web.listen-address=127.0.0.1:{port}"),
    ]));
    wait_until("steps are scraped", HANG_LIMIT, || {
        number(port, "min(corro_job_steps_total)").is_some_and(|n| n > 100.0)
    });
    assert_eq!(number(port, "up{job=\"corro\"}"), Some(1.0));
    assert_eq!(number(port, "corro_job_size"), Some(2.0));
    assert_eq!(number(port, "count(corro_job_rank_up == 1)"), Some(2.0));
    let parts = "sum(corro_job_computing_seconds_total + corro_job_communication_seconds_total + corro_job_waiting_seconds_total)";
    let share = format!("{parts} / sum(corro_job_step_seconds_total)");
    assert!((number(port, &share).unwrap() - 1.0).abs() < 0.02, "shares add up to the step");
    let dashboard = std::fs::read_to_string(root.join("../../docs/grafana/corro.json")).unwrap();
    let expressions = expressions(&serde_json::from_str(&dashboard).unwrap());
    assert!(expressions.len() > 12, "{expressions:?}");
    for expression in expressions {
        // There is no GPU here, but its numbers have names.
        if expression.contains("_gpu_") {
            assert_eq!(query(port, &expression).unwrap()["status"], "success", "{expression}");
        } else {
            wait_until(&format!("{expression} gives a number"), HANG_LIMIT, || number(port, &expression).is_some());
        }
    }
    server.signal("TERM");
    server.end();
    job.signal("INT");
    job.end();
}
