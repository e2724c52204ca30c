//! Values of JSON as YAML that people can read. Whatever a parser could take for something else is quoted.

use std::fmt::Write;

use serde_json::Value;

/// Several objects in one text, as `kubectl apply -f` takes it.
pub(crate) fn documents(objects: &[Value]) -> String {
    let texts: Vec<String> = objects.iter().map(|object| block(object, 0)).collect();
    texts.join("---\n")
}

/// Lines of a value that is not written beside a key, each with its end.
fn block(value: &Value, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    let mut text = String::new();
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            for (name, field) in fields {
                let _ = write!(text, "{indent}{}:{}", scalar(name), beside(field, depth));
            }
        }
        Value::Array(items) if !items.is_empty() => {
            for item in items {
                // The first line of an item stands behind its dash.
                let _ = write!(text, "{indent}- {}", block(item, depth + 1).trim_start());
            }
        }
        other => text = format!("{indent}{}\n", inline(other)),
    }
    text
}

/// A value behind the colon of its key.
fn beside(value: &Value, depth: usize) -> String {
    match value {
        Value::Object(fields) if !fields.is_empty() => format!("\n{}", block(value, depth + 1)),
        Value::Array(items) if !items.is_empty() => format!("\n{}", block(value, depth)),
        other => format!(" {}\n", inline(other)),
    }
}

fn inline(value: &Value) -> String {
    match value {
        Value::String(text) => scalar(text),
        // Numbers, true, false, null, {} and [] are the same in both.
        other => other.to_string(),
    }
}

/// A text; in quotes, as JSON has them, unless it can be nothing but a text.
fn scalar(text: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_./".contains(&b);
    let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'/');
    // YAML 1.1, which Kubernetes reads, has more words for true, false and null than its successor.
    let word =
        ["y", "n", "yes", "no", "on", "off", "true", "false", "null"].contains(&text.to_ascii_lowercase().as_str());
    if begins && !word && text.bytes().all(plain) { text.to_owned() } else { Value::from(text).to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    #[test]
    fn objects_read_as_people_write_them() {
        let object = json!({"kind": "Job", "spec": {"args": ["a", "7"], "count": 2, "none": {}, "list": [{"a": 1, "b": [true]}]}});
        let text = "kind: Job\nspec:\n  args:\n  - a\n  - \"7\"\n  count: 2\n  list:\n  - a: 1\n    b:\n    - true\n  none: {}\n";
        assert_eq!(documents(std::slice::from_ref(&object)), text);
        assert_eq!(documents(&[json!({"a": "x"}), json!({"b": "z"})]), "a: x\n---\nb: z\n");
    }

    #[test]
    fn what_could_be_something_else_is_quoted() {
        for text in
            ["", "7", "1e3", "yes", "No", "null", "a: b", "a #b", "- a", "*a", "a\nb", "0x1f", ".5", "~", "it's", "ä"]
        {
            assert!(scalar(text).starts_with('"'), "{text}: {}", scalar(text));
        }
        for text in ["train.py", "/usr/bin/python", "nvidia.com/gpu", "a-b_c"] {
            assert_eq!(scalar(text), text);
        }
    }

    fn values() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            ".{0,8}".prop_map(Value::from),
            "[a-z0-9:#\\-'\" \n]{0,6}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map("[a-zA-Z0-9./ -]{1,6}", inner, 0..4)
                    .prop_map(|fields| Value::Object(fields.into_iter().collect())),
            ]
        })
    }

    proptest! {
        /// A reader of YAML finds what was written.
        #[test]
        fn whatever_is_written_is_read_again(value in values()) {
            let value = json!({"spec": value});
            let text = documents(std::slice::from_ref(&value));
            prop_assert_eq!(&read(&text), &value, "{}", text);
        }
    }

    /// By the reader of the launcher's config files.
    fn read(text: &str) -> Value {
        use saphyr::{LoadableYamlNode, Scalar, Yaml};
        fn value(node: &Yaml<'_>) -> Value {
            match node {
                Yaml::Value(Scalar::String(text)) => Value::from(text.to_string()),
                Yaml::Value(Scalar::Integer(number)) => Value::from(*number),
                Yaml::Value(Scalar::Boolean(flag)) => Value::from(*flag),
                Yaml::Value(Scalar::Null) => Value::Null,
                Yaml::Sequence(items) => items.iter().map(value).collect(),
                Yaml::Mapping(fields) => {
                    let name = |node: &Yaml<'_>| node.as_str().unwrap().to_owned();
                    Value::Object(fields.iter().map(|(key, field)| (name(key), value(field))).collect())
                }
                other => panic!("{other:?}"),
            }
        }
        value(&Yaml::load_from_str(text).unwrap()[0])
    }
}
