//! What Kubernetes takes: names, amounts, pairs. Checked here, so that the error says which flag is meant.

use corro_core::{Error, Result};

/// The longest name of a job: its pods are called `NAME-INDEX-xxxxx`, and their hosts `NAME-INDEX`, which has 63 letters at most.
const LONGEST_JOB: usize = 52;
/// That of an elastic one, whose set is called `NAME-worker` and has a label that is longer still.
const LONGEST_ELASTIC_JOB: usize = 45;
const LONGEST_LABEL: usize = 63;

/// A name of an object that is also a host's: small letters, digits and dashes.
pub(crate) fn job_name(flag: &str, name: &str, elastic: bool) -> Result<String> {
    let longest = if elastic { LONGEST_ELASTIC_JOB } else { LONGEST_JOB };
    if is_host_label(name) && name.len() <= longest {
        return Ok(name.to_owned());
    }
    Err(Error::Usage(format!(
        "--{flag} is {name:?}: it must be 1 to {longest} lower-case letters, digits and dashes, and begin and end with a letter or digit"
    )))
}

/// A name of an object of another kind: labels with dots between them.
pub(crate) fn object_name(flag: &str, name: &str) -> Result<String> {
    if name.len() <= 253 && name.split('.').all(is_host_label) {
        return Ok(name.to_owned());
    }
    Err(Error::Usage(format!("--{flag} is {name:?}, which is not a valid name of a Kubernetes object")))
}

fn is_host_label(name: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    (1..=LONGEST_LABEL).contains(&name.len())
        && name.bytes().all(inner)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

/// An amount: `2`, `0.5`, `500m`, `4Gi`.
pub(crate) fn quantity(flag: &str, text: &str) -> Result<String> {
    const UNITS: [&str; 14] = ["", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    if number.parse::<f64>().is_ok_and(|n| n > 0.0) && UNITS.contains(&unit) {
        return Ok(text.to_owned());
    }
    Err(Error::Usage(format!("--{flag} is {text:?}, which is not a valid Kubernetes quantity, e.g. 2, 500m, 4Gi")))
}

/// `NAME=VALUE`.
pub(crate) fn pair(flag: &str, text: &str) -> Result<(String, String)> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err(Error::Usage(format!("--{flag} is {text:?}, which is not NAME=VALUE"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_the_api_takes() {
        for name in ["a", "train-7", "0x", &"a".repeat(52)] {
            assert_eq!(job_name("name", name, false).unwrap(), name);
        }
        for name in ["", "-a", "a-", "Train", "a.b", "a_b", "a b", "ä", &"a".repeat(53)] {
            assert!(job_name("name", name, false).unwrap_err().to_string().contains("--name"), "{name}");
        }
        assert!(job_name("name", &"a".repeat(45), true).is_ok() && job_name("name", &"a".repeat(46), true).is_err());
        assert!(object_name("secret", "team.a-1").is_ok());
        for name in ["", "a..b", "A", ".a", &"a".repeat(254)] {
            assert!(object_name("secret", name).is_err(), "{name}");
        }
    }

    #[test]
    fn amounts_have_units() {
        for text in ["2", "0.5", "500m", "4Gi", "1k", "2E"] {
            assert!(quantity("memory", text).is_ok(), "{text}");
        }
        for text in ["", "0", "4GB", "-1", "Gi", "1 Gi", "1.2.3", "inf", "1e3"] {
            assert!(quantity("memory", text).is_err(), "{text}");
        }
    }

    #[test]
    fn pairs_have_a_name() {
        assert_eq!(pair("env", "A=b=c").unwrap(), ("A".into(), "b=c".into()));
        assert_eq!(pair("env", "A=").unwrap(), ("A".into(), String::new()));
        assert!(pair("env", "A").is_err() && pair("env", "=b").is_err());
    }
}
