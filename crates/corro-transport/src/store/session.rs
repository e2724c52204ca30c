//! One client of the store: bytes in, requests out; responses in, bytes out.
//!
//! Pure: no socket. Holds no more input than one message, and grows only by what has really come.

use corro_core::{Result, codec};

use super::Limits;
use super::message::{Answer, Request, Response};

/// One client's bytes under way.
#[derive(Debug, Default)]
pub struct Session {
    input: Vec<u8>,
    output: Vec<u8>,
    sent: usize,
}

impl Session {
    /// Adds bytes that have come.
    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
    }

    /// The next whole request. After an error the client must be sent away.
    pub fn next_request(&mut self, limits: &Limits) -> Result<Option<Request>> {
        let Some((request, used)) = codec::take(&self.input, limits.frame())? else { return Ok(None) };
        self.input.drain(..used);
        if self.input.is_empty() && self.input.capacity() > KEPT_BYTES {
            self.input = Vec::new();
        }
        Ok(Some(request))
    }

    /// Queues a response, or if `room` is too small for it a refusal.
    pub fn respond(&mut self, response: &Response, room: usize) -> Result<()> {
        let bytes = codec::encode(response)?;
        if bytes.len() <= room.max(KEPT_BYTES) {
            self.output.extend_from_slice(&bytes);
        } else {
            let answer = Answer::Refused("the store has too many answers under way; try again".into());
            self.output.extend_from_slice(&codec::encode(&Response { id: response.id, answer })?);
        }
        Ok(())
    }

    /// What is to be sent.
    pub fn output(&self) -> &[u8] {
        &self.output[self.sent..]
    }

    /// Says that `count` bytes of the output are on their way.
    pub fn advance(&mut self, count: usize) {
        self.sent += count;
        if self.sent >= self.output.len() {
            self.sent = 0;
            self.output.clear();
            if self.output.capacity() > KEPT_BYTES {
                self.output = Vec::new();
            }
        }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.input.len() + self.output.len()
    }
}

/// Small messages always fit, and their buffers are kept.
const KEPT_BYTES: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::message::Action;
    use super::*;

    proptest! {
        #[test]
        fn requests_come_out_however_the_bytes_are_cut(cuts in proptest::collection::vec(1usize..40, 1..60)) {
            let requests: Vec<Request> = (0..9)
                .map(|id| Request { id, action: Action::Get { keys: vec!["k".repeat(id as usize); 3], wait: true } })
                .collect();
            let bytes: Vec<u8> = requests.iter().flat_map(|r| codec::encode(r).unwrap()).collect();
            let (mut session, mut seen, mut at) = (Session::default(), Vec::new(), 0);
            for cut in cuts.iter().cycle() {
                let end = (at + cut).min(bytes.len());
                session.receive(&bytes[at..end]);
                while let Some(request) = session.next_request(&Limits::default()).unwrap() {
                    seen.push(request);
                }
                at = end;
                if at == bytes.len() {
                    break;
                }
            }
            prop_assert_eq!(seen, requests);
            prop_assert_eq!(session.bytes(), 0);
        }

        #[test]
        fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut session = Session::default();
            session.receive(&bytes);
            while let Ok(Some(_)) = session.next_request(&Limits::default()) {}
        }
    }

    #[test]
    fn too_long_a_message_is_refused_by_its_length_alone() {
        let limits = Limits { value: 10, ..Limits::default() };
        let mut session = Session::default();
        session.receive(&u32::MAX.to_le_bytes());
        assert!(session.next_request(&limits).is_err());
    }

    #[test]
    fn answers_that_do_not_fit_become_refusals() {
        let mut session = Session::default();
        let big = Response { id: 3, answer: Answer::Values(vec![Some(vec![0; 100_000].into())]) };
        session.respond(&big, 1000).unwrap();
        let (answer, _) = codec::take::<Response>(session.output(), 1000).unwrap().unwrap();
        assert!(matches!(answer, Response { id: 3, answer: Answer::Refused(_) }));
    }
}
