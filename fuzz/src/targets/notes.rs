//! What ranks, which may be any program, tell of themselves: any bytes are a note or an error, and a story takes any notes, in bounded
//! memory, and can be shown.

use corro_core::codec;
use corro_observe::note::{MAX_NOTE, Note};
use corro_observe::view::Since;
use corro_observe::{Story, View, recording, report};

/// Feeds it: each byte in front says how long the next note is.
pub fn run(bytes: &[u8]) {
    let mut story = Story::new("fuzz", 0);
    let (mut rest, mut now) = (bytes, 0);
    while let Some((&length, more)) = rest.split_first() {
        let (body, next) = more.split_at(usize::from(length).min(more.len()));
        rest = next;
        now += 400;
        story.tick(now);
        // As the body of a message, so that the fuzzer need not find its frame first.
        let Ok(note) = codec::decode::<Note>(&[[codec::VERSION].as_slice(), body].concat()) else { continue };
        let (again, values) = note.encode().expect("what was decoded can be encoded");
        assert!(again.len() <= MAX_NOTE && values <= note.values.len());
        let (back, _) = codec::take::<Note>(&again, MAX_NOTE).expect("valid").expect("whole");
        assert_eq!(back.rank, note.rank);
        story.heard(now, u32::from(length) % 5, "host", note);
    }
    story.tick(now + 1000);
    let view = View::of(&story, now, Since::default()).json();
    let value = recording::parse(&view).expect("a view is a recording");
    assert!(!report::text(&value, Some(&value)).is_empty());
}
