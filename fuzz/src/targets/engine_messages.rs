//! What a rank's engine may hear from the ranks next to it in the tree, in any order and mixed with what its own program
//! does: nothing panics, and a node keeps no more than it was told. (Peers have proven the job's secret, but one that is
//! broken, or of another release, must not take the others with it.)

use std::time::Duration;

use corro_agreement::fusion;
use corro_agreement::message::{Decision, Up};
use corro_agreement::node::{Action, Node, Rules};
use corro_agreement::simulator::allreduce;
use corro_agreement::tree::neighbours;
use corro_core::{Error, Rank, codec};

/// Feeds it.
pub fn run(bytes: &[u8]) {
    let Some((&who, mut rest)) = bytes.split_first() else { return };
    let hosts = [vec![0, 1, 2], vec![3, 4]];
    // The root, one in the middle, a leaf.
    let me = [0, 3, 4][usize::from(who % 3)];
    let mut node = Node::new(Rank::new(me), Rank::all(5).collect(), neighbours(&hosts, 2, me), Rules::default());
    let mut now = Duration::ZERO;
    while let Some((&what, after)) = rest.split_first() {
        rest = after;
        match what % 8 {
            0 | 1 => {
                for message in message::<Vec<Up>>(&mut rest).unwrap_or_default() {
                    node.hear_child(now, message);
                }
            }
            2 | 3 => {
                if let Some(decisions) = message::<Vec<Decision>>(&mut rest) {
                    node.hear_parent(now, decisions);
                }
            }
            4 => node.submit(now, allreduce(&format!("t{}", what / 8 % 4), 4)),
            5 => {
                now += Duration::from_millis(1) * u32::from(what / 8).pow(4);
                node.waits(Some(Duration::ZERO).filter(|_| what & 8 == 0));
                node.heard_from(now, usize::from(what / 16));
                node.tick(now);
            }
            6 => {
                if node.begin(now).is_some() {
                    node.finished(now);
                }
            }
            _ if what & 8 == 0 => node.join(now),
            _ => node.fail(now, Error::peer_lost(Rank::new(usize::from(what / 16)), "here", "gone")),
        }
        act(&mut node, now);
    }
    // Rough, but what one message makes a node keep must not depend on the numbers in it.
    assert!(node.memory() < (64 << 10) + 2000 * bytes.len(), "{} bytes make {}", bytes.len(), node.memory());
}

/// The next piece of the input as the body of a message, if it is one.
fn message<T: serde::Serialize + serde::de::DeserializeOwned + PartialEq + std::fmt::Debug>(
    rest: &mut &[u8],
) -> Option<T> {
    let (&length, after) = rest.split_first()?;
    let (piece, after) = after.split_at(after.len().min(usize::from(length)));
    *rest = after;
    let message = codec::decode::<T>(&[&[codec::VERSION], piece].concat()).ok()?;
    let again = codec::encode(&message).expect("what was decoded can be encoded");
    assert_eq!(codec::take::<T>(&again, usize::MAX).expect("valid").expect("whole").0, message);
    Some(message)
}

/// Does what an engine does with what the node says.
fn act(node: &mut Node, now: Duration) {
    loop {
        let (up, down) = node.flush(now);
        let actions = node.take_actions();
        if up.is_empty() && down.is_empty() && actions.is_empty() {
            return;
        }
        for action in actions {
            match action {
                Action::Run(agreed) => drop(fusion::batches(&agreed, Rules::default().fusion)),
                Action::Asked => node.answer("fuzzing".into(), false),
                Action::Silent(member, _) => {
                    node.lost(now, member, Error::peer_lost(Rank::new(member), "here", "silent"));
                }
                _ => {}
            }
        }
    }
}
