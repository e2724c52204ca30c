//! `corro top`: a running job in the terminal. What is drawn is a function of the job's view; where there is no terminal, one screen
//! is printed.

use std::io::IsTerminal;
use std::time::Duration;

use corro_core::{Error, Result};
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Paragraph, Row, Table, Widget};
use serde_json::Value;

/// How often it looks again.
const PERIOD: Duration = Duration::from_secs(1);
/// The screen where there is none.
const PRINTED: Rect = Rect { x: 0, y: 0, width: 140, height: 40 };

/// Shows a job until it ends or the user has seen enough.
pub(super) fn show(view: impl Fn() -> Result<Value>) -> Result<()> {
    let first = view()?;
    if !std::io::stdout().is_terminal() {
        print!("{}", printed(&first));
        return Ok(());
    }
    let failed = |e: std::io::Error| Error::io("drawing on the terminal", e);
    let mut terminal = ratatui::try_init().map_err(failed)?;
    let mut shown = first;
    let outcome = loop {
        if let Err(e) = terminal.draw(|frame: &mut Frame<'_>| draw(frame.area(), frame.buffer_mut(), &shown)) {
            break Err(failed(e));
        }
        match wants_to_leave() {
            Ok(false) => {}
            Ok(true) => break Ok(()),
            Err(e) => break Err(failed(e)),
        }
        match view() {
            Ok(next) => shown = next,
            // The job is over: that is what one waits for.
            Err(_) => break Ok(()),
        }
    };
    ratatui::restore();
    outcome
}

/// Waits for a second, or for a key.
fn wants_to_leave() -> std::io::Result<bool> {
    if !event::poll(PERIOD)? {
        return Ok(false);
    }
    let Event::Key(key) = event::read()? else { return Ok(false) };
    let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
    Ok(control_c || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc))
}

fn printed(view: &Value) -> String {
    let mut buffer = Buffer::empty(PRINTED);
    draw(PRINTED, &mut buffer, view);
    let cells: Vec<&str> = buffer.content().iter().map(ratatui::buffer::Cell::symbol).collect();
    let lines = cells.chunks(usize::from(PRINTED.width)).map(|line| line.concat().trim_end().to_owned());
    let mut text = lines.collect::<Vec<_>>().join("\n");
    text.truncate(text.trim_end().len());
    text.push('\n');
    text
}

fn draw(area: Rect, buffer: &mut Buffer, view: &Value) {
    let ranks = view["ranks"].as_array().map(Vec::as_slice).unwrap_or_default();
    let stall = view["stall"]["awaited"].as_array().is_some_and(|awaited| !awaited.is_empty());
    let heights = [
        Constraint::Length(2),
        Constraint::Length(u16::from(stall)),
        Constraint::Length(u16::try_from(ranks.len()).unwrap_or(u16::MAX).saturating_add(2)),
        Constraint::Min(3),
    ];
    let [head, warning, table, events] = Layout::vertical(heights).areas(area);
    Paragraph::new(summary(view, ranks)).render(head, buffer);
    if stall {
        Paragraph::new(stalled(view)).style(Style::new().fg(Color::Yellow)).render(warning, buffer);
    }
    draw_ranks(table, buffer, view, ranks);
    draw_events(events, buffer, view);
}

fn summary<'a>(view: &Value, ranks: &[Value]) -> Vec<Line<'a>> {
    let state = view["state"].as_str().unwrap_or_default();
    let colour = if state == "failed" { Color::Red } else { Color::Green };
    let mean = |of: &dyn Fn(&Value) -> Option<f64>| {
        let known: Vec<f64> = ranks.iter().filter_map(of).collect();
        (!known.is_empty()).then(|| known.iter().sum::<f64>() / known.len() as f64)
    };
    let share = |part: usize| percent(mean(&|rank| rank["shares"][part].as_f64()));
    let first = vec![
        Span::styled(format!("{state} "), Style::new().fg(colour).add_modifier(Modifier::BOLD)),
        Span::raw(format!("{}  {} ranks  ", clock(view["now"].as_u64().unwrap_or(0)), ranks.len())),
        Span::styled(plain(view["command"].as_str().unwrap_or_default()), Style::new().add_modifier(Modifier::DIM)),
    ];
    let step = mean(&|rank| rank["step_ms"].as_f64()).map_or_else(|| "-".into(), |ms| format!("{ms:.2} ms"));
    let second = format!("step {step}   computing {}   communication {}   waiting {}", share(0), share(1), share(2));
    vec![Line::from(first), Line::from(second)]
}

fn stalled(view: &Value) -> String {
    let list = |name: &str| {
        let ranks = view["stall"][name].as_array().map(Vec::as_slice).unwrap_or_default();
        ranks.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    let seconds = view["stall"]["lasts"].as_u64().unwrap_or(0) / 1000;
    let tensor = plain(view["stall"]["tensor"].as_str().unwrap_or_default());
    format!("rank {} has been waited for by {} for {seconds} s, in {tensor}", list("awaited"), list("waiting"))
}

fn draw_ranks(area: Rect, buffer: &mut Buffer, view: &Value, ranks: &[Value]) {
    let last = view["recent"].as_array().and_then(|rows| rows.last());
    let columns = view["columns"].as_array().map(Vec::as_slice).unwrap_or_default();
    let now = |rank: &Value, name: &str| {
        let (row, column) = (rank["rank"].as_u64()?, columns.iter().position(|column| column == name)?);
        last?["ranks"].get(row as usize)?.get(column)?.as_f64()
    };
    let has_gpus = ranks.iter().any(|rank| rank["gpu_memory"].is_u64());
    let cells = |rank: &Value| {
        let text = |name: &str| plain(rank[name].as_str().unwrap_or_default());
        let share = |part: usize| percent(rank["shares"][part].as_f64());
        let gpu = now(rank, "gpu").map(|load| format!("{load:.0} %"));
        let used = now(rank, "gpu_memory").map(|bytes| format!("{:.0} MiB", bytes / 1_048_576.0));
        let row = [
            rank["rank"].as_u64().map_or_else(|| "-".into(), |rank| rank.to_string()),
            text("host"),
            text("state"),
            rank["step"].to_string(),
            rank["step_ms"].as_f64().map_or_else(|| "-".into(), |ms| format!("{ms:.2}")),
            share(0),
            share(1),
            share(2),
            percent(rank["last"].as_f64()),
            now(rank, "cpu").map_or_else(|| "-".into(), |cpu| format!("{cpu:.0} %")),
            now(rank, "memory").map_or_else(|| "-".into(), |bytes| format!("{:.0} MiB", bytes / 1_048_576.0)),
        ];
        let gpus = [gpu, used].map(|text| text.unwrap_or_else(|| "-".into()));
        let row = row.into_iter().chain(gpus.into_iter().filter(|_| has_gpus));
        let style = if rank["state"] == "failed" { Style::new().fg(Color::Red) } else { Style::new() };
        Row::new(row).style(style)
    };
    let mut head = vec![
        "rank",
        "host",
        "state",
        "step",
        "ms/step",
        "computing",
        "communic.",
        "waiting",
        "came last",
        "CPU",
        "memory",
    ];
    let mut widths = vec![5, 18, 9, 9, 9, 10, 10, 8, 10, 7, 10];
    if has_gpus {
        head.extend(["GPU", "its memory"]);
        widths.extend([6, 11]);
    }
    let widths = widths.into_iter().map(Constraint::Length);
    let rows: Vec<Row<'_>> = ranks.iter().map(cells).collect();
    let style = Style::new().add_modifier(Modifier::BOLD);
    Widget::render(Table::new(rows, widths).header(Row::new(head).style(style)), area, buffer);
}

fn draw_events(area: Rect, buffer: &mut Buffer, view: &Value) {
    let events = view["events"].as_array().map(Vec::as_slice).unwrap_or_default();
    let room = usize::from(area.height.saturating_sub(1));
    let line = |event: &Value| {
        let colour = match event["kind"].as_str() {
            Some("error") => Color::Red,
            Some("warning") => Color::Yellow,
            _ => Color::Reset,
        };
        let text = format!(
            "{} {}",
            clock(event["at"].as_u64().unwrap_or(0)),
            plain(event["text"].as_str().unwrap_or_default())
        );
        Line::styled(text, Style::new().fg(colour))
    };
    let lines: Vec<Line<'_>> = events[events.len().saturating_sub(room)..].iter().map(line).collect();
    Paragraph::new(lines)
        .block(Block::new().borders(Borders::TOP).title("what happened (q ends this)"))
        .render(area, buffer);
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".into(), |share| format!("{:.1} %", share * 100.0))
}

/// `1:02:05`.
pub(super) fn clock(milliseconds: u64) -> String {
    let seconds = milliseconds / 1000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Text of a rank, which does nothing to a terminal.
pub(super) fn plain(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn one_screen_says_it_all() {
        let rank = |rank: u32, state: &str| json!({"rank": rank, "host": "node", "state": state, "step": 12, "step_ms": 50.0, "shares": [0.75, 0.125, 0.125], "last": 0.5});
        let view = json!({
            "state": "running", "now": 65_000, "command": "train.py\u{7}", "ranks": [rank(0, "running"), rank(1, "failed")],
            "stall": {"lasts": 4000, "tensor": "gradient", "waiting": [0], "awaited": [1]},
            "columns": ["cpu", "memory"], "recent": [{"at": 1, "ranks": [[150.0, 1_048_576.0], [null, null]]}],
            "events": [{"at": 3000, "kind": "error", "text": "rank 1 has ended"}],
        });
        let text = printed(&view);
        for part in [
            "running 0:01:05  2 ranks  train.py",
            "step 50.00 ms   computing 75.0 %   communication 12.5 %   waiting 12.5 %",
            "rank 1 has been waited for by 0 for 4 s, in gradient",
            "0     node               running   12        50.00     75.0 %     12.5 %     12.5 %   50.0 %     150 %   1 MiB",
            "0:00:03 rank 1 has ended",
        ] {
            assert!(text.contains(part), "{part:?} in\n{text}");
        }
        assert!(!text.contains('\u{7}') && !text.contains("GPU"));
        let rank = json!({"rank": 0, "gpu_memory": 80u64 << 30});
        let view =
            json!({"ranks": [rank], "columns": ["gpu", "gpu_memory"], "recent": [{"ranks": [[73.0, 1_048_576.0]]}]});
        assert!(printed(&view).contains("73 %   1 MiB"), "{}", printed(&view));
    }

    #[test]
    fn anything_can_be_drawn() {
        for strange in [json!(null), json!({"ranks": [7]}), json!({"stall": {"awaited": ["x"]}, "events": {}})] {
            printed(&strange);
        }
    }
}
