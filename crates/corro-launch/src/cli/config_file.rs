//! The YAML file of `--config-file`: the same settings as the flags, by other names.
//!
//! Pure: text in, settings out. Keys nobody knows are reported, not refused: files written for Horovod may hold more.

use corro_core::{Error, Result};
use saphyr::{LoadableYamlNode, Yaml};

use super::knobs::{Given, KNOBS, Kind};

/// What a config file says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigFile {
    /// Its settings, by flag.
    pub(super) given: Given,
    /// `gloo` or `mpi`, if it names one.
    pub(super) controller: Option<String>,
    /// Keys that mean nothing here.
    pub(super) unknown: Vec<String>,
}

/// Reads the text of a config file; `path` is for errors.
pub(super) fn parse(text: &str, path: &str) -> Result<ConfigFile> {
    let wrong = |what: String| Error::Usage(format!("{path}: {what}"));
    let documents = Yaml::load_from_str(text).map_err(|e| wrong(format!("not YAML: {e}")))?;
    let mut file = ConfigFile::default();
    let Some(top) = documents.first().filter(|d| !d.is_null()) else { return Ok(file) };
    let top = top.as_mapping().ok_or_else(|| wrong("sections such as `params:` are expected at the top".into()))?;
    for (section, body) in top {
        let section = section.as_str().unwrap_or_default();
        if section == "controller" {
            let name = body.as_str().unwrap_or_default().to_ascii_lowercase();
            if !["gloo", "mpi"].contains(&name.as_str()) {
                return Err(wrong(format!("controller {name:?} is neither gloo nor mpi")));
            }
            file.controller = Some(name);
            continue;
        }
        if !KNOBS.iter().any(|k| k.key.0 == section) {
            file.unknown.push(section.into());
            continue;
        }
        if body.is_null() {
            continue;
        }
        let body = body.as_mapping().ok_or_else(|| wrong(format!("{section:?} must hold keys and values")))?;
        for (key, value) in body {
            let key = key.as_str().unwrap_or_default();
            match KNOBS.iter().find(|k| k.key == (section, key)) {
                None => file.unknown.push(format!("{section}.{key}")),
                Some(_) if value.is_null() => {}
                Some(knob) => {
                    let text = scalar(value).ok_or_else(|| wrong(format!("{section}.{key} must be one value")))?;
                    let text = match knob.kind {
                        Kind::Switch(_) | Kind::Inverted(..) => switch(&text)
                            .ok_or_else(|| wrong(format!("{section}.{key} is {text:?}, neither true nor false")))?,
                        _ => text,
                    };
                    file.given.insert(knob.flag, text);
                }
            }
        }
    }
    Ok(file)
}

/// Older YAML has more words for true and false.
fn switch(text: &str) -> Option<String> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" | "yes" | "on" => Some("1".into()),
        "0" | "false" | "no" | "off" => Some("0".into()),
        _ => None,
    }
}

fn scalar(value: &Yaml<'_>) -> Option<String> {
    if let Some(flag) = value.as_bool() {
        return Some(if flag { "1" } else { "0" }.into());
    }
    let number = || value.as_integer().map(|n| n.to_string());
    let float = || value.as_floating_point().map(|n| n.to_string());
    // `thread_affinity: [0, 2]` reads as well as `"0,2"`.
    let list =
        || value.as_sequence().and_then(|s| s.iter().map(scalar).collect::<Option<Vec<_>>>()).map(|l| l.join(","));
    value.as_str().map(ToOwned::to_owned).or_else(number).or_else(float).or_else(list)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn every_key_is_read() {
        let text = "
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 5.5
  hierarchical_allreduce: true
autotune:
  enabled: false
  log_file: tune.csv
stall_check: {enabled: no, warning_time_seconds: 120}
library_options:
  thread_affinity: [0, 2]
logging:
  level: DEBUG
  with_timestamp: true
timeline:
";
        let file = parse(text, "f").unwrap();
        let got: Vec<String> = file.given.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            got,
            [
                "autotune=0",
                "autotune-log-file=tune.csv",
                "cycle-time-ms=5.5",
                "fusion-threshold-mb=32",
                "hierarchical-allreduce=1",
                "log-level=DEBUG",
                "log-with-timestamp=1",
                "stall-check=0",
                "stall-check-warning-time-seconds=120",
                "thread-affinity=0,2",
            ]
        );
        assert_eq!((file.controller.as_deref(), file.unknown.len()), (Some("gloo"), 0));
    }

    #[test]
    fn unknown_keys_are_told_and_wrong_shapes_refused() {
        let file = parse("params:\n  fusion: 3\nhosts: [a]\n", "f").unwrap();
        assert_eq!(file.unknown, ["params.fusion", "hosts"]);
        assert_eq!(parse("", "f").unwrap(), ConfigFile::default());
        for text in [
            "controller: smoke",
            "params: 3",
            "- a",
            "a: [",
            "params: {cycle_time_ms: {a: 1}}",
            "autotune: {enabled: 3}",
        ] {
            assert!(parse(text, "my.yaml").unwrap_err().to_string().starts_with("my.yaml: "), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_gives_settings_or_an_error(text in "[a-z:\\[\\]{}&*!|>\"' \n\t_-]{0,80}") {
            let _ = parse(&text, "f");
        }
    }
}
