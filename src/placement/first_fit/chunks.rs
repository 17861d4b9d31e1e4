//! [`Chunks`]: the longest free run that begins in each chunk of a region, and a tree of maxima over them.

use core::ptr;

/// Granules whose free runs share one leaf in the tree of a map: those of a word.
pub(super) const CHUNK: usize = u32::BITS as usize;

/// Clears words, on firmware one by one: the library's function takes more code than opening a whole map.
///
/// # Safety
///
/// The caller must own the words.
#[inline(never)]
pub(super) unsafe fn clear(words: *mut u32, count: usize) {
    if cfg!(not(target_os = "none")) {
        // SAFETY: the caller's contract.
        return unsafe { words.write_bytes(0, count) };
    }
    for word in 0..count {
        // SAFETY: the caller's contract.
        unsafe { words.add(word).write_volatile(0) };
    }
}

/// A node of a tree: a length in granules.
pub trait Length: Copy {
    /// The greatest length.
    const MAX: usize;
    /// Converts a length of at most [`Length::MAX`].
    fn new(len: usize) -> Self;
    /// Returns the length.
    fn get(self) -> usize;
}

macro_rules! length {
    ($($type:ty)*) => {$(
        impl Length for $type {
            const MAX: usize = <$type>::MAX as usize;
            #[inline(always)]
            fn new(len: usize) -> Self {
                len as Self
            }
            #[inline(always)]
            fn get(self) -> usize {
                self as usize
            }
        }
    )*};
}

length!(u16 u32);

/// Chunks per group.
const GROUP: usize = 4;

/// The byte of a chunk in which a run of this length or longer begins. No other chunk of the group has such a run.
pub(super) const LONG: u8 = 127;
/// The bit of a chunk in which a run from an earlier chunk ends.
const EDGE: u8 = 128;
const _: () = assert!(LONG as usize + 1 >= GROUP * CHUNK);

/// The length of the longest free run that begins in each chunk, in each group of chunks, and in each 2, 4, 8 .. groups.
///
/// ```text
///                       1
///             2                   3             a binary tree
///        4         5         6         7        groups: exact lengths
///     0 1 2 3   4 5 6 7   8 9 ..                chunks: lengths up to 127, a byte each
/// ```
///
/// The eighth bit of each byte says whether a run from an earlier chunk ends in this one.
#[derive(Clone, Copy)]
pub(super) struct Chunks<N> {
    /// One word for each group, whose lowest byte is the first chunk's.
    leaves: *mut u32,
    nodes: *mut N,
    groups: usize,
}

/// Mask of the lengths in the bytes of a group.
const LENGTHS: u32 = u32::from_ne_bytes([!EDGE; GROUP]);

/// The contents of a chunk's leaf.
#[derive(Clone, Copy)]
pub(super) struct Leaf {
    /// The length of the longest free run that begins in the chunk.
    pub(super) longest: usize,
    /// Whether a run from an earlier chunk ends in the chunk. That end is then its first boundary.
    pub(super) edge: bool,
}

impl<N: Length> Chunks<N> {
    /// A tree without chunks.
    pub(super) const EMPTY: Self = Self { leaves: ptr::null_mut(), nodes: ptr::null_mut(), groups: 0 };

    /// Returns the groups of `len` granules and the boundary after them, and how many groups the tree could have.
    const fn groups(len: usize) -> (usize, usize) {
        let groups = len / (GROUP * CHUNK) + 1;
        (groups, groups.next_power_of_two())
    }

    /// Returns the words that the tree for `len` granules takes.
    pub(super) const fn words(len: usize) -> usize {
        let (groups, width) = Self::groups(len);
        // Each node but the root has a sibling.
        groups + ((width + groups).next_multiple_of(2) * size_of::<N>()).div_ceil(size_of::<u32>())
    }

    /// Creates chunks without free runs.
    ///
    /// # Safety
    ///
    /// There must be [`Chunks::words`] words, which nothing else uses as long as this value is used.
    pub(super) unsafe fn open(words: *mut u32, len: usize) -> Self {
        let (groups, width) = Self::groups(len);
        // SAFETY: the caller's contract.
        unsafe {
            clear(words, Self::words(len));
            let chunks = Self { leaves: words, nodes: words.add(groups).cast(), groups: width };
            chunks.put(0, N::MAX);
            chunks
        }
    }

    #[inline(always)]
    fn node(self, node: usize) -> usize {
        // SAFETY: callers ask for nodes of groups of the region, their siblings and those above them.
        unsafe { (*self.nodes.add(node)).get() }
    }

    #[inline(always)]
    fn put(self, node: usize, len: usize) {
        // SAFETY: as in `node`.
        unsafe { *self.nodes.add(node) = N::new(len) };
    }

    /// Returns the bytes of a group.
    #[inline(always)]
    fn group(self, group: usize) -> u32 {
        // SAFETY: callers ask for groups of the region.
        unsafe { *self.leaves.add(group) }
    }

    /// Returns the address of a chunk's byte.
    #[inline(always)]
    fn place(self, chunk: usize) -> *mut u8 {
        let place = if cfg!(target_endian = "big") { chunk ^ (GROUP - 1) } else { chunk };
        self.leaves.cast::<u8>().wrapping_add(place)
    }

    /// Returns the byte of a chunk.
    #[inline(always)]
    fn byte(self, chunk: usize) -> u8 {
        // SAFETY: callers ask for chunks of the region.
        unsafe { *self.place(chunk) }
    }

    #[inline(always)]
    fn put_byte(self, chunk: usize, byte: u8) {
        // SAFETY: as in `byte`.
        unsafe { *self.place(chunk) = byte };
    }

    /// Returns the length of the longest free run. O(1).
    #[inline(always)]
    pub(super) fn longest(self) -> usize {
        if self.nodes.is_null() { 0 } else { self.node(1) }
    }

    /// Returns the contents of the leaf of `chunk`.
    #[inline(always)]
    pub(super) fn leaf(self, chunk: usize) -> Leaf {
        let byte = self.byte(chunk);
        let longest = match byte & !EDGE {
            LONG => self.node(self.groups + chunk / GROUP),
            len => len.into(),
        };
        Leaf { longest, edge: byte & EDGE != 0 }
    }

    /// Updates the edge bit for a free run from `start` to `end` that appeared or disappeared.
    #[inline(always)]
    pub(super) fn cross(self, start: usize, end: usize) {
        if start / CHUNK != end / CHUNK {
            self.flip_edge(end / CHUNK);
        }
    }

    /// Flips the bit that says whether a free run from an earlier chunk ends in `chunk`.
    #[inline(always)]
    pub(super) fn flip_edge(self, chunk: usize) {
        self.put_byte(chunk, self.byte(chunk) ^ EDGE);
    }

    /// Returns the first chunk in which a free run of at least `want` granules begins. There must be one. O(log n).
    #[inline(always)]
    pub(super) fn find(self, want: usize) -> usize {
        let mut node = 1;
        while node < self.groups {
            node *= 2;
            if self.node(node) < want {
                node += 1;
            }
        }
        let group = node - self.groups;
        // The upper bit of a byte survives if its length is at least `want`.
        let want = want.min(LONG.into()) as u32;
        let fits = ((self.group(group) | !LENGTHS) - want * u32::from_ne_bytes([1; GROUP])) & !LENGTHS;
        group * GROUP + (fits.trailing_zeros() / u8::BITS) as usize
    }

    /// Returns the last chunk before `chunk` in which a free run begins. There must be one. O(log n).
    pub(super) fn before(self, chunk: usize) -> usize {
        let mut group = chunk / GROUP;
        let mut leaves = self.group(group) & LENGTHS & !(!0 << (chunk % GROUP * 8));
        if leaves == 0 {
            let mut node = self.groups + group;
            while node % 2 == 0 || self.node(node - 1) == 0 {
                node /= 2;
            }
            node -= 1;
            while node < self.groups {
                node = 2 * node + 1;
                if self.node(node) == 0 {
                    node -= 1;
                }
            }
            group = node - self.groups;
            leaves = self.group(group) & LENGTHS;
        }
        group * GROUP + GROUP - 1 - (leaves.leading_zeros() / u8::BITS) as usize
    }

    /// Records that a run of `len` granules begins in `chunk`. O(log n).
    #[inline(always)]
    pub(super) fn raise(self, chunk: usize, len: usize) {
        let short = len.min(LONG.into()) as u8;
        let byte = self.byte(chunk);
        if short > byte & !EDGE {
            self.put_byte(chunk, byte & EDGE | short);
        }
        let mut node = self.groups + chunk / GROUP;
        while self.node(node) < len {
            self.put(node, len);
            node /= 2;
        }
    }

    /// Sets the length of the longest run that begins in `chunk`, after the longest one is gone. `rest` is the length of the run left in
    /// its place, which may be in the same group. O(log n).
    #[inline(always)]
    pub(super) fn set(self, chunk: usize, mut len: usize, rest: usize) {
        self.put_byte(chunk, self.byte(chunk) & EDGE | len.min(LONG.into()) as u8);
        if len < LONG.into() {
            let leaves = (self.group(chunk / GROUP) & LENGTHS).to_ne_bytes();
            let longest = leaves[0].max(leaves[1]).max(leaves[2]).max(leaves[3]);
            len = longest.into();
            if longest == LONG {
                // The node already has the length of any other such run.
                if rest < LONG.into() {
                    return;
                }
                len = rest;
            }
        }
        let mut node = self.groups + chunk / GROUP;
        while self.node(node) != len {
            self.put(node, len);
            // The root's sibling, which is also its parent, has the greatest length, and ends the loop.
            len = len.max(self.node(node ^ 1));
            node /= 2;
        }
    }
}
