//! What is asked of those who move bytes.

use corro_core::Result;

/// Some ranks, of which this is one, that send each other bytes. All of them make the same calls in the same order; lengths
/// are known to all beforehand.
pub trait Peers: Send {
    /// How many, this one included.
    fn size(&self) -> usize;

    /// Which of them this is.
    fn me(&self) -> usize;

    /// `out` is parts of `sends[p]` bytes for each peer p, one behind the other; into `into` come `receives[p]` bytes from
    /// each. A peer has nothing for itself.
    fn exchange(&mut self, out: &[u8], sends: &[usize], into: &mut [u8], receives: &[usize]) -> Result<()>;

    /// Everyone's bytes, `counts[p]` of peer p, one behind the other.
    fn gather(&mut self, own: &[u8], counts: &[usize], into: &mut [u8]) -> Result<()>;

    /// The sum of everyone's values, in place; the same bits for all.
    fn sum(&mut self, values: &mut [f32]) -> Result<()>;
}
