//! Training values in files: JSON lines for programs, and `TensorBoard`'s event files.
//!
//! An event file is a list of records: a length, the record, and checksums of both; a record is a message of protocol buffers.
//! What is needed of that is little, and is written here.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use corro_core::{Error, Result};

use crate::story::Mean;

/// The files of one job, open.
#[derive(Debug)]
pub struct ValueFiles {
    lines: File,
    events: File,
    began: u64,
}

impl ValueFiles {
    /// Makes them in this folder, which is made too. `began`: when the job did, in milliseconds since 1970.
    pub fn create(folder: &Path, began: u64) -> Result<Self> {
        let failed = |e: std::io::Error| Error::io(format!("writing training values to {}", folder.display()), e);
        std::fs::create_dir_all(folder).map_err(failed)?;
        let process = std::process::id();
        let open = |name: String| OpenOptions::new().append(true).create(true).open(folder.join(name)).map_err(failed);
        let lines = open("values.jsonl".into())?;
        let mut events = open(format!("events.out.tfevents.{}.corro.{process}.0", began / 1000))?;
        events.write_all(&record(&version_event(now()))).map_err(failed)?;
        Ok(Self { lines, events, began })
    }

    /// Writes these down.
    pub fn write(&mut self, means: &[Mean]) -> std::io::Result<()> {
        if means.is_empty() {
            return Ok(());
        }
        let (mut lines, mut events) = (String::new(), Vec::new());
        for mean in means {
            let value = if mean.value.is_finite() { serde_json::json!(mean.value) } else { serde_json::Value::Null };
            let line = serde_json::json!({
                "step": mean.step, "name": mean.name, "value": value, "ranks": mean.ranks, "time": self.began + mean.at,
            });
            lines.extend([line.to_string(), "\n".to_owned()]);
            let time = (self.began + mean.at) as f64 / 1000.0;
            events.extend(record(&scalar_event(time, mean.step, &mean.name, mean.value as f32)));
        }
        self.lines.write_all(lines.as_bytes())?;
        self.events.write_all(&events)
    }
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

/// A record of an event file.
fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    [&length, &masked(&length).to_le_bytes()[..], message, &masked(message).to_le_bytes()[..]].concat()
}

/// An event: a number of 8 bytes (field 1: when), a varint (2: the step), and either a text (3) or a summary (5).
fn event(time: f64, step: u64, last: Vec<u8>) -> Vec<u8> {
    let mut message = vec![0x09];
    message.extend(time.to_le_bytes());
    if step > 0 {
        message.push(0x10);
        varint(step, &mut message);
    }
    message.extend(last);
    message
}

fn version_event(time: f64) -> Vec<u8> {
    event(time, 0, field(0x1a, b"brain.Event:2"))
}

fn scalar_event(time: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut inner = field(0x0a, tag.as_bytes());
    inner.push(0x15);
    inner.extend(value.to_le_bytes());
    event(time, step, field(0x2a, &field(0x0a, &inner)))
}

/// A field with a length.
fn field(key: u8, bytes: &[u8]) -> Vec<u8> {
    let mut out = vec![key];
    varint(bytes.len() as u64, &mut out);
    out.extend(bytes);
    out
}

fn varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// A checksum as event files have it: CRC-32C, turned and shifted so that it is none of its own checksum.
fn masked(bytes: &[u8]) -> u32 {
    let crc = crc32c(bytes);
    crc.rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(bytes: &[u8]) -> u32 {
    let step = |crc: u32, byte: &u8| {
        let mut crc = crc ^ u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 };
        }
        crc
    };
    !bytes.iter().fold(!0, step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_the_known_ones() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    #[test]
    fn records_are_laid_out_as_tensorboard_reads_them() {
        let message = scalar_event(1.0, 300, "loss", 0.5);
        assert_eq!(message[..9], [0x09, 0, 0, 0, 0, 0, 0, 0xf0, 0x3f]);
        assert_eq!(message[9..12], [0x10, 0xac, 0x02]);
        assert_eq!(message[12..16], [0x2a, 13, 0x0a, 11]);
        assert_eq!(&message[16..], b"\x0a\x04loss\x15\x00\x00\x00\x3f");
        let record = record(&message);
        assert_eq!(record.len(), 8 + 4 + message.len() + 4);
    }

    #[test]
    fn both_files_have_every_value() {
        let folder = std::env::temp_dir().join(format!("corro-values-{}", std::process::id()));
        let mut files = ValueFiles::create(&folder, 1_000_000).unwrap();
        let mean = |step, value| Mean { name: "a\"b".into(), step, value, ranks: 2, at: 5 };
        files.write(&[mean(1, 0.25), mean(2, f64::NAN)]).unwrap();
        let lines = std::fs::read_to_string(folder.join("values.jsonl")).unwrap();
        let events = std::fs::read_dir(&folder).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        let values: Vec<serde_json::Value> = lines.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!((values[0]["value"].as_f64(), values[1]["value"].is_null(), events), (Some(0.25), true, 2));
        assert_eq!(values[0]["name"], "a\"b");
    }
}
