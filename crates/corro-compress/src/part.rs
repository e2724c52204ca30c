//! What a peer brings.

use crate::state::State;

/// A part of a tensor: what this peer brings to the sum, and where the sum goes.
#[derive(Debug)]
pub struct Part<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// Rows and columns, where it is a matrix.
    pub matrix: Option<[usize; 2]>,
    /// What this peer brings; afterwards the sum over all peers.
    pub values: &'a mut [f32],
    /// What is remembered of it.
    pub state: &'a mut State,
}
