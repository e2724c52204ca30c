//! What may come to the port of a page, and what a file may hold that is taken for a recording: an answer or a refusal.

use corro_observe::page::http::{Answer, MAX_REQUEST, Request};
use corro_observe::{recording, report};

/// Feeds it.
pub fn run(bytes: &[u8]) {
    match Request::parse(bytes) {
        Ok(Some(request)) => assert!(request.path.starts_with('/')),
        Ok(None) => assert!(bytes.len() < MAX_REQUEST),
        Err(refused) => assert!(Answer::refused(refused).bytes().starts_with(b"HTTP/1.1 4")),
    }
    if let Ok(value) = std::str::from_utf8(bytes).map_err(|e| e.to_string()).and_then(recording::parse) {
        assert!(!report::text(&value, Some(&value)).contains('\x1b'));
    }
}
