//! Pseudo-random numbers for weights, activations and routes.

/// A linear congruential generator with the same numbers in every run.
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u32 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as u32
    }

    /// A number below `n`, which must be small.
    pub(super) fn below(&mut self, n: usize) -> usize {
        self.bits() as usize % n
    }

    /// Permutes a list.
    pub(super) fn shuffle<T>(&mut self, list: &mut [T]) {
        for i in (1..list.len()).rev() {
            list.swap(i, self.below(i + 1));
        }
    }

    /// A number in [-1, 1).
    pub(super) fn float(&mut self) -> f32 {
        (self.bits() >> 7) as f32 / (1 << 23) as f32 - 1.0
    }

    pub(super) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.float()).collect()
    }
}
