//! Three interleaved spirals: a data set that a line can't separate and that needs no download.

/// The number of arms.
pub(crate) const CLASSES: usize = 3;

/// A point of the plane, and which arm it is on.
pub(crate) struct Sample {
    pub(crate) at: [f32; 2],
    pub(crate) class: usize,
}

/// `count` points; the same for the same `seed` on every rank.
pub(crate) fn samples(count: usize, seed: u64) -> Vec<Sample> {
    let mut random = Random(seed);
    (0..count)
        .map(|_| {
            let class = (random.next() * CLASSES as f32) as usize % CLASSES;
            let radius = 0.1 + 0.9 * random.next();
            let turn =
                class as f32 * std::f32::consts::TAU / CLASSES as f32 + 4.0 * radius + 0.25 * (random.next() - 0.5);
            Sample { at: [radius * turn.cos(), radius * turn.sin()], class }
        })
        .collect()
}

/// A small generator (splitmix64) of numbers from 0 up to 1.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> f32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 40) as f32 / (1u64 << 24) as f32
    }
}
