//! A trace as one HTML file that needs nothing else: rows over time, to be zoomed and searched. Pure.

use std::collections::HashMap;
use std::fmt::Write;

use super::Trace;

const HTML: &str = include_str!("assets/timeline.html");
const STYLE: &str = include_str!("assets/timeline.css");
const SCRIPT: &str = include_str!("assets/timeline.js");

/// The most spans in one file: a browser holds them, and more can't be seen anyway.
const MOST: usize = 400_000;

/// See the module.
pub fn picture(trace: &Trace, title: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let mut places: HashMap<&str, usize> = HashMap::new();
    let begin = trace.spans.first().map_or(0.0, |span| span.start);
    let mut numbers = String::new();
    let mut place = |word| {
        *places.entry(word).or_insert_with(|| {
            words.push(word);
            words.len() - 1
        })
    };
    // The longest stay: what is left out could hardly be seen.
    let mut kept: Vec<usize> = (0..trace.spans.len()).collect();
    if kept.len() > MOST {
        kept.sort_by(|a, b| trace.spans[*b].length.total_cmp(&trace.spans[*a].length));
        kept.truncate(MOST);
        kept.sort_unstable();
    }
    for at in &kept {
        let span = &trace.spans[*at];
        let (what, tensor) = (place(&span.what), place(&span.tensor));
        let comma = if numbers.is_empty() { "" } else { "," };
        let (start, length) = (span.start - begin, span.length);
        let _ =
            write!(numbers, "{comma}{},{},{start:.3},{length:.3},{what},{tensor},{}", span.row, span.depth, span.bytes);
    }
    let left_out = trace.left_out + (trace.spans.len() - kept.len()) as u64;
    let data = format!(
        "{{\"title\":{},\"rows\":{},\"words\":{},\"spans\":[{numbers}],\"unreadable\":{},\"left_out\":{left_out}}}",
        json(&title),
        json(&trace.rows),
        json(&words),
        trace.unreadable,
    );
    // In a script, `</script>` would end it, wherever it stands.
    let data = data.replace('<', "\\u003c");
    HTML.replace("/*style*/", STYLE).replace("/*script*/", SCRIPT).replace("/*data*/", &data)
}

fn json(value: &impl serde::Serialize) -> String {
    // Texts and lists of them always can be written.
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::tests::{MERGED, trace};
    use super::*;

    #[test]
    fn it_is_one_file_with_all_in_it() {
        let html = picture(&trace(&MERGED.replace("node0", "</script><b>")), "run.json");
        assert!(html.contains("\"spans\":[0,0,0.000,900.000,0,1,4000,1,0,400.000"), "{html}");
        assert!(!html.contains("</script><b>") && html.contains("\\u003c/script>\\u003cb>"));
        for outside in ["http://", "https://", "src=", "href=\"/", "innerHTML", "/*data*/"] {
            assert!(!html.contains(outside), "{outside}");
        }
    }
}
