//! Live blocks by their address.

/// Up to `N` blocks, each with an address or offset and the number of its request.
#[derive(Clone, Copy)]
pub(crate) struct Live<const N: usize> {
    keys: [usize; N],
    requests: [u16; N],
    len: usize,
}

impl<const N: usize> Live<N> {
    pub(crate) const fn new() -> Self {
        const { assert!(N <= u16::MAX as usize, "more requests than 16 bits can number") }
        Self { keys: [0; N], requests: [0; N], len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Inserts a block whose key is not present, or does nothing if it is full. O(log n) comparisons; moves the
    /// entries above.
    pub(crate) fn insert(&mut self, key: usize, request: usize) {
        let at = self.above(key);
        if self.len == N {
            return;
        }
        self.keys.copy_within(at..self.len, at + 1);
        self.requests.copy_within(at..self.len, at + 1);
        (self.keys[at], self.requests[at]) = (key, request as u16);
        self.len += 1;
    }

    /// Removes the block at `key`. O(log n) comparisons; moves the entries above.
    pub(crate) fn remove(&mut self, key: usize) -> Option<usize> {
        let at = self.keys[..self.len].binary_search(&key).ok()?;
        let request = usize::from(self.requests[at]);
        self.keys.copy_within(at + 1..self.len, at);
        self.requests.copy_within(at + 1..self.len, at);
        self.len -= 1;
        Some(request)
    }

    /// Returns the neighbours of `key`: the block at or below it, and the block above it. O(log n).
    pub(crate) fn neighbours(&self, key: usize) -> [Option<(usize, usize)>; 2] {
        let at = self.above(key);
        let get = |at: usize| Some((self.keys[at], usize::from(self.requests[at])));
        [if at > 0 { get(at - 1) } else { None }, if at < self.len { get(at) } else { None }]
    }

    fn above(&self, key: usize) -> usize {
        self.keys[..self.len].partition_point(|&other| other <= key)
    }
}
