//! Three clients that have proven themselves and then send anything, in any pieces, to one store: it never panics,
//! never holds more than its limits, and answers in whole messages.

use corro_core::codec;
use corro_transport::store::{ClientId, Limits, Response, Session, Table};

const LIMITS: Limits = Limits { value: 4096, memory: 64 * 1024, clients: 3 };

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let mut table = Table::new(LIMITS);
    let mut sessions: Vec<Option<Session>> = (0..3).map(|_| Some(Session::default())).collect();
    let mut rest = bytes;
    // Each piece: one byte that says whose it is and how long, then the piece; long ones are bodies of whole messages,
    // so that the fuzzer need not find the right length first.
    while let Some((&head, after)) = rest.split_first() {
        let length = usize::from(head >> 2) + 1;
        let (piece, after) = after.split_at(length.min(after.len()));
        rest = after;
        let framed;
        let piece = if length > 8 && head & 3 != 3 {
            framed = [&(piece.len() as u32 + 1).to_le_bytes(), [codec::VERSION].as_slice(), piece].concat();
            &framed
        } else {
            piece
        };
        let who = usize::from(head & 3);
        if who == 3 {
            // A client leaves; another takes its place.
            let who = piece.first().map_or(0, |b| usize::from(*b) % 3);
            table.forget(who as ClientId);
            sessions[who] = Some(Session::default());
            continue;
        }
        let Some(session) = &mut sessions[who] else { continue };
        session.receive(piece);
        let mut answers = Vec::new();
        loop {
            match sessions[who].as_mut().map(|s| s.next_request(&LIMITS)) {
                Some(Ok(Some(request))) => table.handle(who as ClientId, request, &mut answers),
                Some(Err(_)) => {
                    table.forget(who as ClientId);
                    sessions[who] = None;
                    break;
                }
                _ => break,
            }
            assert!(table.bytes() <= LIMITS.memory, "{} bytes", table.bytes());
        }
        for (to, response) in answers {
            let Some(session) = &mut sessions[to as usize] else { continue };
            session.respond(&response, LIMITS.memory).expect("answers can be encoded");
            let (back, used) = codec::take::<Response>(session.output(), usize::MAX).expect("valid").expect("whole");
            assert!(back == response);
            session.advance(used);
        }
    }
    for who in 0..3 {
        table.forget(who);
    }
    assert_eq!(table.waiting(), 0);
}
