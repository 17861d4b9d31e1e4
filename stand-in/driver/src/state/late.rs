//! The order of late work.

/// A sequence of pseudo-random numbers (Marsaglia's xorshift).
pub struct Late(u64);

impl Late {
    /// `None` for the seed 0, with which all work runs at once.
    pub fn new(seed: u64) -> Option<Self> {
        (seed > 0).then(|| Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    /// Returns the next number of the sequence.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 11
    }
}
