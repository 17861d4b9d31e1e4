//! Numbers that the fuzzer chooses.

/// Reads numbers from an input; zeros behind its end.
pub struct Choices<'a>(pub &'a [u8]);

impl Choices<'_> {
    /// Returns the next byte.
    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// Returns a number below `end`, at most 256.
    pub fn below(&mut self, end: usize) -> usize {
        usize::from(self.byte()) % end
    }
}

/// Calls `operate` with `inputs` random inputs of `len` bytes, which begin with 0, 1, 2 and so on. Returns the sum of its results.
#[cfg(test)]
pub fn at_random(inputs: usize, len: usize, operate: impl Fn(&[u8]) -> usize) -> usize {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 24) as u8
    };
    let input = |number| [vec![number as u8], (0..len).map(|_| next()).collect()].concat();
    let inputs: Vec<Vec<u8>> = (0..inputs).map(input).collect();
    inputs.iter().map(|bytes| operate(bytes)).sum()
}
