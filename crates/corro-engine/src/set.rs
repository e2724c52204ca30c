//! One process set at work.
//!
//! | file | holds |
//! | --- | --- |
//! | `process_set`, `state`, `lane` | the set itself, and what its two locks guard; how it opens and ends |
//! | `submitting`, `entries`, `parking` | what programs ask of it, until that is done |
//! | `following` | what its members agree on, and what is done about it |
//! | `hand_over` | its two locks; who does its work, a program that waits or its own threads, and who wakes whom |
//! | `driving`, `running` | what that work is |
//! | `standing` | what it says when it is asked whether it can still go on |
//! | `wires` | messages to the neighbours |

mod driving;
mod entries;
mod following;
mod hand_over;
mod lane;
mod parking;
mod process_set;
mod running;
mod standing;
mod state;
mod submitting;
mod wires;

pub(crate) use process_set::ProcessSet;
pub(crate) use running::Ended;
pub(crate) use submitting::{group_number, set_request};
