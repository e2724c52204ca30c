//! One member's part in agreeing what runs, in three gears. Pure: no I/O, no clock.
//!
//! What goes in: what the program submits, what children and the parent say, the time. What comes out: messages for the
//! neighbours ([`Node::flush`]) and [`Action`]s for the one who runs collectives. The same code runs in production and, by
//! the thousand, in the simulator.
//!
//! 1. *Announce*: a new request goes up to the root in full, which decides when all members are in.
//! 2. *Bits*: a request seen before goes up as its number, and only once the whole subtree has submitted it: so every
//!    member sends and receives a number of messages that does not depend on how many members there are.
//! 3. *Plan*: members follow a plan without a word (see [`crate::plan`]).
//!
//! Falling back is safe because it is agreed: slots are forgotten, plans are begun, halted and left by decisions of the
//! log, which all members see in one order. Numbers said in one era are not counted in another; who said them says them
//! again.

mod blocked;
mod member;
mod names;
mod parts;
mod refined;
mod refining;
mod root;
mod root_state;
mod rules;
mod state;
mod unnamed;
mod watching;

pub use rules::{Action, Gear, Rules};
pub use state::Node;

#[cfg(test)]
mod tests;
