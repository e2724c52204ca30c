//! Knobs of a group that may be turned while it is used; all members must turn them between the same two collectives.
//!
//! The default is what was measured to be good (`docs/performance.md`). None of this changes what collectives are *for*, but
//! one knob may change the last bits of sums: see [`Tuning::reductions`].

use crate::collective::Collective;
use crate::schedule::SEGMENT;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// Long messages between hosts are cut into segments of so many bytes, which flow one behind the other. Cuts messages,
    /// not sums: results stay the same to the last bit.
    pub segment: usize,
    /// The sizes at which one algorithm gives way to another are multiplied by two to the power of this.
    pub crossover: i32,
    /// Whether that also holds for collectives that reduce. Algorithms add in different orders, so with three ranks or more
    /// this may change the last bits of sums of floats. Collectives that only move bytes give the same by any algorithm.
    pub reductions: bool,
}

impl Default for Tuning {
    fn default() -> Self {
        Self { segment: SEGMENT, crossover: 0, reductions: false }
    }
}

impl Tuning {
    /// With values that make sense, whoever has said them: segments hold whole elements of any type.
    pub(crate) fn sane(self) -> Self {
        let segment = self.segment.clamp(16 << 10, 16 << 20).next_power_of_two();
        Self { segment, crossover: self.crossover.clamp(-8, 8), ..self }
    }

    /// The size up to which a row of the table holds that says `bytes`.
    pub(crate) fn limit(self, collective: Collective, bytes: usize) -> usize {
        let reduces = matches!(collective, Collective::Allreduce | Collective::Reducescatter);
        if bytes == usize::MAX || (reduces && !self.reductions) {
            return bytes;
        }
        let shift = self.crossover.unsigned_abs();
        if self.crossover < 0 { bytes >> shift } else { bytes.saturating_mul(1 << shift) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_moves_bytes_changes_unless_reductions_may() {
        let tuning = Tuning { crossover: 2, ..Tuning::default() };
        assert_eq!(tuning.limit(Collective::Allgather, 100), 400);
        assert_eq!(tuning.limit(Collective::Broadcast, usize::MAX), usize::MAX);
        assert_eq!(tuning.limit(Collective::Allreduce, 100), 100);
        let reductions = Tuning { crossover: -2, reductions: true, ..tuning };
        assert_eq!(reductions.limit(Collective::Reducescatter, 100), 25);
    }

    #[test]
    fn absurd_values_are_brought_back() {
        let absurd = Tuning { segment: 0, crossover: i32::MAX, reductions: true }.sane();
        assert_eq!(absurd, Tuning { segment: 16 << 10, crossover: 8, reductions: true });
        assert_eq!(Tuning { segment: usize::MAX, ..Tuning::default() }.sane().segment, 16 << 20);
        assert_eq!(Tuning::default().sane(), Tuning::default());
    }
}
