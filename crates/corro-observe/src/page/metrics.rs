//! The whole job in Prometheus' text format. Pure.

use std::fmt::Write;

use crate::story::{State, Story};

/// What one name stands for: name, help, type, and its number of each rank.
type Metric = (&'static str, &'static str, &'static str, fn(&crate::story::Member) -> Option<f64>);

fn seconds(nanos: u64) -> f64 {
    nanos as f64 / 1e9
}

const METRICS: [Metric; 14] = [
    ("corro_job_rank_up", "1 while a rank runs.", "gauge", |m| Some(f64::from(m.state == State::Running))),
    ("corro_job_steps_total", "Steps of training.", "counter", |m| Some(m.step as f64)),
    ("corro_job_step_seconds_total", "Time of steps that all ranks have told.", "counter", |m| {
        Some(seconds(m.total.time))
    }),
    ("corro_job_computing_seconds_total", "Of that, computing.", "counter", |m| Some(seconds(m.total.computing))),
    ("corro_job_communication_seconds_total", "Of that, communication that nothing hid.", "counter", |m| {
        Some(seconds(m.total.communication))
    }),
    ("corro_job_waiting_seconds_total", "Of that, waiting for other ranks.", "counter", |m| {
        Some(seconds(m.total.waiting))
    }),
    ("corro_job_last_steps_total", "Steps in which all others waited for this rank.", "counter", |m| {
        Some(m.total.last as f64)
    }),
    ("corro_job_bytes_total", "Bytes of tensors.", "counter", |m| Some(m.note.totals.bytes as f64)),
    ("corro_job_queued", "Tensors under way.", "gauge", |m| Some(m.note.totals.queued as f64)),
    ("corro_job_cpu_seconds_total", "Time on processors.", "counter", |m| Some(m.note.usage.cpu as f64 / 1000.0)),
    ("corro_job_memory_bytes", "Memory of the process.", "gauge", |m| Some(m.note.usage.memory as f64)),
    ("corro_job_gpu_load_percent", "How busy its GPU is.", "gauge", |m| {
        m.note.usage.gpu.and_then(|gpu| gpu.load).map(f64::from)
    }),
    ("corro_job_gpu_memory_used_bytes", "Memory of its GPU that is used, by anybody.", "gauge", |m| {
        m.note.usage.gpu.map(|gpu| gpu.used as f64)
    }),
    ("corro_job_gpu_memory_bytes", "Memory that its GPU has.", "gauge", |m| {
        m.note.usage.gpu.map(|gpu| gpu.memory as f64)
    }),
];

/// See the module.
pub(super) fn prometheus(story: &Story) -> String {
    let mut page = String::new();
    let (epoch, size) = story.epoch().unwrap_or_default();
    let _ =
        writeln!(page, "# HELP corro_job_size Ranks of the job.\n# TYPE corro_job_size gauge\ncorro_job_size {size}");
    let _ = writeln!(
        page,
        "# HELP corro_job_epoch How often ranks have met anew.\n# TYPE corro_job_epoch counter\ncorro_job_epoch {epoch}"
    );
    for (name, help, kind, of) in METRICS {
        let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}");
        for member in story.members().values() {
            let (Some(rank), Some(value)) = (member.rank, of(member)) else { continue };
            let _ = writeln!(page, "{name}{{rank=\"{rank}\",host=\"{}\"}} {value}", escaped(&member.host));
        }
    }
    page
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::note::{Mark, Note};

    /// Grafana shows nothing under a name that nobody gives, and says nothing either.
    #[test]
    fn all_names_of_the_dashboard_are_given() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/grafana/corro.json");
        let dashboard = std::fs::read_to_string(path).unwrap();
        serde_json::from_str::<serde_json::Value>(&dashboard).unwrap();
        let page = prometheus(&Story::new("x", 0));
        let named: Vec<&str> = dashboard.split("corro_job_").skip(1).collect();
        for rest in &named {
            let end = rest.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap();
            assert!(page.contains(&format!("# TYPE corro_job_{} ", &rest[..end])), "corro_job_{}", &rest[..end]);
        }
        for (name, ..) in METRICS {
            assert!(dashboard.contains(name), "{name} is not on the dashboard");
        }
        assert!(named.len() > 20);
    }

    #[test]
    fn all_ranks_stand_under_each_name() {
        let mut story = Story::new("x", 0);
        for rank in 0..2 {
            let mark = |step| Mark { step, at: step * 1_000_000_000, ..Mark::default() };
            let note = Note { rank, size: 2, host: "a\"b".into(), marks: vec![mark(1), mark(3)], ..Note::default() };
            story.heard(5, rank, "x", note);
        }
        story.tick(10);
        let page = prometheus(&story);
        assert!(page.contains("corro_job_size 2\n"), "{page}");
        assert!(page.contains("corro_job_step_seconds_total{rank=\"1\",host=\"a\\\"b\"} 2\n"), "{page}");
        assert!(!page.contains("gpu_load_percent{"));
    }
}
