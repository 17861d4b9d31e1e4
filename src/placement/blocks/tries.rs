//! Free lists as tries by length, for placements that look for the shortest sufficient block.

use super::{Blocks, NONE, Place};
use crate::units::Index;

/// One more than the most steps on a path down: the bits of a length.
const STEPS: usize = 32;

/// A list with [`Place::BEST`]: a trie of the lengths in it, whose nodes are linked to the other blocks of their length.
///
/// ```text
///  list of 8 to 11     1010           by the second-highest bits that the list leaves open
///  granules           0/  \1
///                  1000    1011       1001 would be below 1000, on its right
///                  |       |
///                  1000    1011       equal lengths: linked by next and prev
/// ```
///
/// The length of a node starts with the bits of the path to it, and a new node takes the highest vacant place on its path. The words
/// after the links are its children. So a path is at most as long as a length has open bits, and each child covers half the lengths below
/// its parent. Lists below [`Blocks::SINGLE`] have blocks of one length, so their nodes need no children, for which they would have no
/// room. The `prev` of a node is the number of the list, that of other blocks of its length the block before.
#[allow(clippy::missing_safety_doc, reason = "the contract of `Blocks`")]
impl<P: Place> Blocks<P> {
    /// Lists below this one have blocks of one length.
    const SINGLE: usize = 2 * P::SUBLISTS;

    /// Number of the word with a node's first child; the second child follows.
    const CHILD: usize = 4;

    /// Returns the bits of a length that its list leaves open, highest first, followed by a one.
    #[inline(always)]
    const fn key(list: usize, len: usize) -> u32 {
        ((len as u32) << 1 | 1).wrapping_shl((32 - list / P::SUBLISTS) as u32)
    }

    /// Returns a node's link to its left or right child.
    #[inline(always)]
    fn child(self, node: usize, right: usize) -> *mut P::Word {
        self.word(node, Self::CHILD + right)
    }

    /// Returns the link to the node for a length, or the empty link where it belongs.
    #[inline(always)]
    unsafe fn link_of(self, list: usize, len: usize) -> *mut P::Word {
        let mut link = self.0.head(list);
        let mut key = Self::key(list, len);
        // SAFETY: links lead to free blocks, and those of lists with several lengths have children.
        unsafe {
            loop {
                let at = (*link).get();
                if at == NONE || self.get(at, Self::LEN) == len {
                    return link;
                }
                let right = key >> 31;
                key <<= 1;
                if P::CHECKED && key == 0 {
                    self.broken(at);
                }
                link = self.child(at, right as usize);
            }
        }
    }

    /// Enters a free block of `len` granules. O(log n).
    #[cfg_attr(target_os = "none", inline(never))]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(super) unsafe fn insert(self, index: usize, len: usize, list: usize) {
        // SAFETY: links lead to free blocks; nodes of lists with several lengths have room for children.
        unsafe {
            let link = self.link_of(list, len);
            let node = (*link).get();
            let (mut prev, mut next) = (node, NONE);
            if node == NONE {
                *link = P::Word::new(index);
                if list >= Self::SINGLE {
                    *self.child(index, 0).cast() = [P::Word::NIL; 2];
                }
                if link == self.0.head(list) {
                    self.fill_list(list);
                }
                prev = list;
            } else {
                next = self.get(node, Self::NEXT);
                self.set(node, Self::NEXT, index);
                if next != NONE {
                    self.set(next, Self::PREV, index);
                }
            }
            self.set(index, Self::NEXT, next);
            self.set(index, Self::PREV, prev);
        }
    }

    /// Removes a free block of `len` granules. O(log n).
    #[cfg_attr(target_os = "none", inline(never))]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(super) unsafe fn remove(self, index: usize, len: usize) {
        // SAFETY: the block is free, and so are those that it is linked with.
        unsafe {
            let (next, prev) = (self.get(index, Self::NEXT), self.get(index, Self::PREV));
            if P::CHECKED && next != NONE && self.get(next, Self::PREV) != index {
                self.broken(index);
            }
            if prev >= P::LISTS {
                if P::CHECKED && self.get(prev, Self::NEXT) != index {
                    self.broken(index);
                }
                self.set(prev, Self::NEXT, next);
                if next != NONE {
                    self.set(next, Self::PREV, prev);
                }
                return;
            }
            let list = prev;
            let link = self.link_of(list, len);
            if P::CHECKED && (*link).get() != index {
                self.broken(index);
            }
            let mut heir = next;
            if heir == NONE && list >= Self::SINGLE {
                heir = self.cut_leaf(link);
                if heir == index {
                    heir = NONE;
                }
            }
            *link = P::Word::new(heir);
            if heir != NONE {
                self.set(heir, Self::PREV, list);
                if list >= Self::SINGLE {
                    *self.child(heir, 0).cast::<[P::Word; 2]>() = *self.child(index, 0).cast();
                }
            } else if link == self.0.head(list) {
                self.empty_list(list);
            }
        }
    }

    /// Cuts off a leaf of the trie at `link`, perhaps its root, and returns it.
    #[inline(always)]
    unsafe fn cut_leaf(self, mut link: *mut P::Word) -> usize {
        // SAFETY: as in `link_of`.
        unsafe {
            let mut steps = STEPS;
            loop {
                let at = (*link).get();
                let mut below = self.child(at, 0);
                if (*below).get() == NONE {
                    below = self.child(at, 1);
                }
                if (*below).get() == NONE {
                    *link = P::Word::NIL;
                    return at;
                }
                link = below;
                if P::CHECKED {
                    steps -= 1;
                    if steps == 0 {
                        self.broken(at);
                    }
                }
            }
        }
    }

    /// Finds a shortest block of at least `need` granules (not zero). O(log n).
    #[cfg_attr(target_os = "none", inline(never))]
    #[cfg_attr(not(target_os = "none"), inline(always))]
    pub(super) unsafe fn find_best(self, need: usize) -> usize {
        // SAFETY: as in `link_of`.
        unsafe {
            let list = Self::class(need);
            let mut key = Self::key(list, need);
            let mut at = (*self.0.head(list)).get();
            let (mut best, mut least) = (NONE, usize::MAX);
            // The root of the shortest lengths above `need` that are not on the path to it.
            let mut above = NONE;
            while at != NONE {
                let len = self.get(at, Self::LEN);
                if len == need {
                    return self.one_of(at);
                }
                if P::CHECKED && list < Self::SINGLE {
                    self.broken(at);
                }
                if len > need && len < least {
                    (best, least) = (at, len);
                }
                let right = (*self.child(at, 1)).get();
                if key >> 31 != 0 {
                    at = right;
                } else {
                    if right != NONE {
                        above = right;
                    }
                    at = (*self.child(at, 0)).get();
                }
                key <<= 1;
                if P::CHECKED && key == 0 {
                    self.broken(at);
                }
            }
            if above == NONE && best == NONE {
                let Some(longer) = self.list_above(list) else { return NONE };
                above = (*self.0.head(longer)).get();
                if longer < Self::SINGLE {
                    return self.one_of(above);
                }
            }
            let mut steps = STEPS;
            while above != NONE {
                let len = self.get(above, Self::LEN);
                if len < least {
                    (best, least) = (above, len);
                }
                let left = (*self.child(above, 0)).get();
                above = if left != NONE { left } else { (*self.child(above, 1)).get() };
                if P::CHECKED {
                    steps -= 1;
                    if steps == 0 {
                        self.broken(best);
                    }
                }
            }
            self.one_of(best)
        }
    }

    /// Returns whether there is a free block of at least `need` granules, but fewer than `len`. O(log n).
    #[inline(always)]
    pub(crate) unsafe fn has_between(self, need: usize, len: usize) -> bool {
        // SAFETY: the search finds free blocks.
        unsafe {
            need < len && need <= self.0.longest() && {
                let found = self.find_best(need);
                found != NONE && self.get(found, Self::LEN) < len
            }
        }
    }

    /// Returns a block as long as `node`: if there are others, the one freed last, which is easier to remove.
    #[inline(always)]
    unsafe fn one_of(self, node: usize) -> usize {
        // SAFETY: nodes are free blocks.
        let next = unsafe { self.get(node, Self::NEXT) };
        if next != NONE { next } else { node }
    }

    /// Returns the longest length in a list that is not empty.
    pub(super) unsafe fn longest_in(self, list: usize) -> usize {
        // SAFETY: as in `link_of`.
        unsafe {
            let mut at = (*self.0.head(list)).get();
            let mut longest = 0;
            while at != NONE {
                longest = longest.max(self.get(at, Self::LEN));
                if list < Self::SINGLE {
                    break;
                }
                let right = (*self.child(at, 1)).get();
                at = if right != NONE { right } else { (*self.child(at, 0)).get() };
            }
            longest
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::observe::NoStatistics;
    use crate::placement::{BestFit, Placement};
    use crate::region::{Region, Run};
    use crate::units::Index;
    use core::alloc::Layout;
    use core::ptr::NonNull;
    use std::vec;
    use std::vec::Vec;

    fn layout(size: usize, align: usize) -> Layout {
        Layout::from_size_align(size, align).unwrap()
    }

    /// Returns the free runs of a region, as start and size.
    fn free<P: Placement>(placement: &P) -> Vec<(usize, usize)> {
        let mut runs = vec![];
        placement.walk(0, &mut |run: Run| {
            if run.free {
                runs.push((run.start, run.size));
            }
            true
        });
        runs
    }

    /// Checks that every block is cut from a shortest sufficient free run, and that the longest run is known.
    fn finds_the_shortest<W: Index, const SL: usize, const C: bool>(seed: u64) {
        const STEPS: usize = if cfg!(miri) { 120 } else { 4000 };
        let mut memory = vec![0u64; 1500];
        let mut placement = BestFit::<W, 1, SL, C>::EMPTY;
        let least = if size_of::<W>() == 2 { 8 } else { 16 };
        let start = NonNull::from(memory.as_mut_slice()).cast();
        let mut random = fastrand::Rng::with_seed(seed);
        let mut live: Vec<(NonNull<u8>, Layout)> = vec![];
        // SAFETY: the memory outlives the placement, and blocks are live until they are freed.
        unsafe {
            placement.claim(Region::new(start, 12_000), &mut NoStatistics).unwrap();
            let whole = free(&placement);
            for _ in 0..STEPS {
                let runs = free(&placement);
                assert_eq!(placement.largest_free(), runs.iter().map(|run| run.1).max().unwrap_or(0));
                match random.usize(..9) {
                    0..5 => {
                        let shift = if random.bool() { 0 } else { random.u32(3..8) };
                        let most = [20, 100, 400, 3000][random.usize(..4)];
                        let wanted = layout(random.usize(1..most), 1 << shift);
                        let size =
                            wanted.size().max(least).next_multiple_of(8) + (wanted.align() - 1) / 8 * 8;
                        // Single granules are in no list if links are long.
                        let best = runs.iter().map(|run| run.1).filter(|&run| run >= size).min();
                        let found = placement.allocate(wanted, &mut NoStatistics);
                        let run = found.map(|found| {
                            let holds =
                                |run: &&(usize, usize)| (run.0..run.0 + run.1).contains(&found.addr().get());
                            runs.iter().find(holds).unwrap().1
                        });
                        assert_eq!(run, best, "{wanted:?}");
                        live.extend(found.map(|found| (found, wanted)));
                    }
                    5 if !live.is_empty() => {
                        let at = random.usize(..live.len());
                        let (block, old) = live[at];
                        let new = random.usize(1..old.size() * 2);
                        if placement.resize(block, old, new, &mut NoStatistics) {
                            live[at].1 = layout(new, old.align());
                        } else {
                            assert!(new > old.size());
                        }
                    }
                    _ if !live.is_empty() => {
                        let (block, old) = live.swap_remove(random.usize(..live.len()));
                        block.write_bytes(0xa5, old.size());
                        placement.free(block, old, &mut NoStatistics).unwrap();
                    }
                    _ => {}
                }
            }
            for (block, old) in live {
                placement.free(block, old, &mut NoStatistics).unwrap();
            }
            assert_eq!(free(&placement), whole);
        }
    }

    #[test]
    fn the_shortest_block_is_found() {
        for seed in 0..if cfg!(miri) { 1 } else { 8 } {
            finds_the_shortest::<u16, 2, true>(seed);
            finds_the_shortest::<u16, 8, false>(seed);
            finds_the_shortest::<u32, 2, true>(seed);
            finds_the_shortest::<u32, 8, false>(seed);
        }
    }
}
