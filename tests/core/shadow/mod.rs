//! The shadow allocator, through which every test drives a heap.
//!
//! It keeps its own record of every live block and checks after each operation that the heap agrees: blocks are
//! aligned, inside a region, and disjoint; their contents stay until they are freed; the statistics are right; and
//! when everything is freed, each region is one free block again.

pub mod any;
#[macro_use]
pub mod matrix;
pub mod steps;
pub mod trace;

pub use any::{AnyHeap, Case};

use allotment::lock::Unsync;
use allotment::placement::Placement;
use allotment::{Heap, Region, RegionError, Stats};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::LazyLock;

/// Additional information about a placement for the tests, which use it as a [`Case`].
pub trait Subject: Placement {
    /// Returns the bytes that a block takes, computed independently of the code under test.
    fn taken(size: usize, align: usize) -> usize;
    /// Returns another number of bytes that it may take.
    fn taken_otherwise(size: usize, align: usize) -> usize {
        Self::taken(size, align)
    }
    /// Whether a request of one byte more than `largest_free` must fail.
    const EXACT_LARGEST: bool = true;
    /// Whether a request of `largest_free` is sure to succeed; otherwise it is only an upper bound.
    const SURE_LARGEST: bool = true;
    /// Whether every request up to `largest_free` is sure to succeed, not only one of that size.
    const MONOTONE: bool = true;
    /// Whether a whole region may be allocated for a request.
    const LENDS: bool = false;
    /// Whether frees in any order return all memory.
    const REUSES: bool = true;
    /// Whether regions can be released.
    const RELEASES: bool = true;
    /// The most regions that can be claimed.
    const REGIONS: usize = 4;
    /// The most bytes that all regions together may have.
    const LIMIT: usize = 1 << 30;
    /// How much larger than the peak an arena must be to satisfy real programs.
    const SLACK: f64 = 1.5;
    /// Whether requests of every size that fits can be satisfied.
    const GENERAL: bool = true;
    /// Bytes behind each block that no request can get.
    const BEHIND: usize = 0;
    /// Whether every double free is detected.
    const FINDS_DOUBLE_FREES: bool = false;
    /// Whether it believes that a block which is freed is live, and a map of bits breaks if that is wrong.
    const TRUSTS: bool = false;
}

/// The front that a shadow drives: a plain heap, or something built around one.
pub trait Front: GlobalAlloc {
    fn stats(&self) -> Stats;
    fn largest_free(&self) -> usize;
    /// Adds a region; see [`Heap::claim`].
    ///
    /// # Safety
    ///
    /// Same contract as [`Heap::claim`]: nothing else may use the region while the heap has it.
    unsafe fn claim(&self, region: Region) -> Result<(), RegionError>;
    fn release(&self, start: *mut u8) -> Result<Region, RegionError>;
    /// Gives kept memory back; see [`Heap::trim`].
    fn trim(&self);
}

impl<P: Subject> Front for Heap<P, Unsync> {
    fn stats(&self) -> Stats {
        self.stats()
    }
    fn largest_free(&self) -> usize {
        self.largest_free()
    }
    fn trim(&self) {
        self.trim();
    }
    unsafe fn claim(&self, region: Region) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.claim(region) }
    }
    fn release(&self, start: *mut u8) -> Result<Region, RegionError> {
        self.release(start)
    }
}

/// Memory of any start and size, surrounded by bytes that must not be written.
pub struct Backing {
    /// Of a box: borrowing it anew would take the memory from the heap that has it, as Miri sees it.
    bytes: NonNull<[u8]>,
    start: usize,
    size: usize,
}

const GUARD: u8 = 0xa5;
/// In the tests no placement aligns memory to more than this.
const PAGE: usize = 4096;

impl Backing {
    /// Makes memory of `size` bytes that starts `skew` bytes after a page border.
    pub fn new(size: usize, skew: usize) -> Self {
        let bytes = NonNull::from(Box::leak(vec![GUARD; size + skew + 3 * PAGE].into_boxed_slice()));
        let address = bytes.addr().get();
        let start = address.next_multiple_of(PAGE) - address + PAGE / 2 * 2 + skew;
        Self { bytes, start, size }
    }

    pub fn region(&mut self) -> Region {
        // SAFETY: the region lies in the box.
        Region::new(unsafe { self.bytes.cast().add(self.start) }, self.size)
    }

    fn check(&self) {
        let end = self.start + self.size;
        for outside in [0..self.start, end..self.bytes.len()] {
            // SAFETY: the bytes are in the box, and no heap has them.
            let bytes = unsafe {
                std::slice::from_raw_parts(self.bytes.cast::<u8>().add(outside.start).as_ptr(), outside.len())
            };
            assert!(bytes == vec![GUARD; outside.len()], "bytes outside the region were written");
        }
    }

    fn contains(&self, start: usize, size: usize) -> bool {
        let from = self.bytes.addr().get() + self.start;
        start >= from && start + size <= from + self.size
    }
}

impl Drop for Backing {
    fn drop(&mut self) {
        // SAFETY: the box was leaked, and whatever used its memory is gone.
        drop(unsafe { Box::from_raw(self.bytes.as_ptr()) });
    }
}

#[derive(Clone, Copy, Debug)]
struct Live {
    layout: Layout,
    pattern: u64,
    taken: usize,
}

/// A heap and the model that it is compared with.
pub struct Shadow {
    pub heap: Box<dyn Front>,
    case: &'static Case,
    backing: Vec<Backing>,
    live: BTreeMap<usize, Live>,
    used: usize,
    peak: usize,
    failed: usize,
    largest_failed: usize,
    capacity: usize,
    next_pattern: u64,
}

/// Bytes that blocks are filled with, over and over, from a place that differs from block to block.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = fastrand::Rng::with_seed(1);
    (0..PERIOD).map(|_| random.u8(..)).collect()
});
const PERIOD: usize = 4099;

/// The expected bytes of a block from an index on, and where each part of them begins.
fn expected(pattern: u64, from: usize, to: usize) -> impl Iterator<Item = (usize, &'static [u8])> {
    let mut index = from;
    std::iter::from_fn(move || {
        let start = (pattern as usize * 31 + index) % PERIOD;
        let bytes = &PATTERN[start..PERIOD.min(start + to - index)];
        index += bytes.len();
        (!bytes.is_empty()).then(|| (index - bytes.len(), bytes))
    })
}

fn fill(start: *mut u8, pattern: u64, from: usize, to: usize) {
    for (index, bytes) in expected(pattern, from, to) {
        // SAFETY: the caller owns the block of at least `to` bytes.
        unsafe { start.add(index).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) }
    }
}

fn verify(start: *const u8, pattern: u64, size: usize) {
    for (index, bytes) in expected(pattern, 0, size) {
        // SAFETY: the caller owns the block, which was filled up to `size`.
        let found = unsafe { std::slice::from_raw_parts(start.add(index), bytes.len()) };
        let changed = || index + (0..bytes.len()).find(|&index| found[index] != bytes[index]).unwrap();
        assert!(found == bytes, "byte {} of {size} at {start:?} was changed", changed());
    }
}

impl Shadow {
    /// Makes a plain heap over regions with these sizes and skews.
    pub fn new(case: &'static Case, regions: &[(usize, usize)]) -> Self {
        Self::over(case, case.front, regions)
    }

    /// Makes a front over such regions. `ready` returns it, prepared for a number of bytes.
    pub fn over(
        case: &'static Case,
        ready: impl FnOnce(usize) -> Box<dyn Front>,
        regions: &[(usize, usize)],
    ) -> Self {
        let bytes = regions.iter().map(|region| region.0).sum::<usize>().max(200_000);
        let mut shadow = Self {
            heap: ready(bytes),
            case,
            backing: Vec::new(),
            live: BTreeMap::new(),
            used: 0,
            peak: 0,
            failed: 0,
            largest_failed: 0,
            capacity: 0,
            next_pattern: 1,
        };
        for &(size, skew) in regions {
            shadow.claim(size, skew).unwrap();
        }
        shadow
    }

    pub fn claim(&mut self, size: usize, skew: usize) -> Result<(), RegionError> {
        let mut backing = Backing::new(size, skew);
        // SAFETY: the backing lives as long as the heap, and nothing else uses it.
        unsafe { self.heap.claim(backing.region())? };
        self.backing.push(backing);
        let capacity = self.heap.stats().capacity;
        assert!(capacity > self.capacity && capacity <= self.capacity + size);
        self.capacity = capacity;
        Ok(())
    }

    /// Releases region number `index`, which must be possible exactly if no block is live in it. Returns whether it was.
    pub fn release(&mut self, index: usize) -> bool {
        self.heap.trim();
        let region = self.backing[index].region();
        let in_use = self.live.keys().any(|&block| self.backing[index].contains(block, 1));
        let released = self.heap.release(region.start.as_ptr());
        if in_use {
            assert_eq!(released, Err(RegionError::InUse));
        } else {
            assert_eq!(released, Ok(region));
            self.backing.remove(index).check();
            self.capacity = self.heap.stats().capacity;
        }
        self.account();
        !in_use
    }

    /// Returns the memory of region number `index`, in the order of the claims.
    pub fn region(&mut self, index: usize) -> Region {
        self.backing[index].region()
    }

    pub fn live(&self) -> usize {
        self.live.len()
    }

    /// Returns the address of the `n`th live block in address order.
    pub fn nth(&self, n: usize) -> usize {
        *self.live.keys().nth(n).unwrap()
    }

    /// Adds a new block after checking that it may lie there. The other blocks take `others` bytes.
    fn enter(&mut self, start: usize, layout: Layout, others: usize) -> u64 {
        let size = layout.size();
        assert_eq!(start % layout.align(), 0, "{start:#x} is not aligned for {layout:?}");
        assert!(
            self.backing.iter().any(|backing| backing.contains(start, size)),
            "{size} bytes at {start:#x} are in no region"
        );
        if let Some((&before, block)) = self.live.range(..=start).next_back() {
            assert!(before + block.layout.size().max(1) <= start, "blocks overlap at {start:#x}");
        }
        if let Some((&after, _)) = self.live.range(start..).next() {
            assert!(start + size.max(1) <= after, "blocks overlap at {start:#x}");
        }
        let pattern = self.next_pattern;
        self.next_pattern += 1;
        let taken = self.taken(start, layout, others);
        self.live.insert(start, Live { layout, pattern, taken });
        pattern
    }

    /// What a block takes: the placement's figure, or a whole region without other blocks.
    fn taken(&self, start: usize, layout: Layout, others: usize) -> usize {
        let taken = (self.case.taken)(layout.size(), layout.align());
        let really = self.heap.stats().used - others;
        if really == (self.case.taken_otherwise)(layout.size(), layout.align()) {
            return really;
        }
        if self.case.lends && really != taken {
            let home = self.backing.iter().find(|backing| backing.contains(start, layout.size())).unwrap();
            assert!(!self.live.keys().any(|&other| other != start && home.contains(other, 1)), "not alone");
            assert!(really <= home.size && really + 2 * PAGE > layout.size());
            return really;
        }
        taken
    }

    fn account(&mut self) {
        self.peak = self.peak.max(self.used);
        let stats = self.heap.stats();
        assert_eq!(stats.used, self.used, "used");
        assert_eq!(stats.peak, self.peak, "peak");
        assert_eq!(stats.live_blocks, self.live.len(), "live blocks");
        assert_eq!((stats.failed, stats.largest_failed), (self.failed, self.largest_failed), "failures");
        assert_eq!(stats.capacity, self.capacity, "capacity");
        assert_eq!(stats.free, self.capacity.saturating_sub(self.used), "free");
        assert!(
            stats.largest_free <= stats.free,
            "largest free {} > free {}",
            stats.largest_free,
            stats.free
        );
    }

    /// Allocates and fills a block; `None` if the heap has no room.
    pub fn allocate(&mut self, layout: Layout) -> Option<usize> {
        self.allocate_by(layout, false)
    }

    pub fn allocate_zeroed(&mut self, layout: Layout) -> Option<usize> {
        self.allocate_by(layout, true)
    }

    fn allocate_by(&mut self, layout: Layout, zeroed: bool) -> Option<usize> {
        let sure = self.case.sure_largest
            && layout.align() <= 4
            && layout.size() > 0
            && if self.case.monotone {
                layout.size() <= self.heap.largest_free()
            } else {
                layout.size() == self.heap.largest_free()
            };
        // SAFETY: this crate allows sizes of zero, and the block is used as its layout allows.
        let start = unsafe { if zeroed { self.heap.alloc_zeroed(layout) } else { self.heap.alloc(layout) } };
        if start.is_null() {
            assert!(!sure, "{layout:?} failed with a largest free block of {}", self.heap.largest_free());
            self.failed += 1;
            self.largest_failed = self.largest_failed.max(layout.size().max(1));
            self.account();
            return None;
        }
        if zeroed {
            // SAFETY: the block has that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(start, layout.size()) };
            assert!(bytes == vec![0; layout.size()], "a block of {layout:?} is not zero");
        }
        let pattern = self.enter(start.addr(), layout, self.used);
        fill(start, pattern, 0, layout.size());
        self.used += self.live[&start.addr()].taken;
        self.account();
        Some(start.addr())
    }

    fn pointer(&mut self, block: usize) -> *mut u8 {
        let backing = self.backing.iter_mut().find(|backing| backing.contains(block, 0)).unwrap();
        backing.bytes.as_ptr().cast::<u8>().with_addr(block)
    }

    pub fn free(&mut self, block: usize) {
        let Live { layout, pattern, taken } = self.live.remove(&block).unwrap();
        let start = self.pointer(block);
        verify(start, pattern, layout.size());
        let before = self.heap.stats().used;
        // SAFETY: the block is live with this layout, and forgotten from here on.
        unsafe { self.heap.dealloc(start, layout) };
        if self.case.reuses {
            self.used -= taken;
        } else {
            let gone = before - self.heap.stats().used;
            assert!(gone == 0 || gone == taken);
            self.used -= gone;
        }
        self.account();
    }

    /// Reallocates, and returns the new address; `None` if there is no room and the block stays unchanged.
    pub fn reallocate(&mut self, block: usize, size: usize) -> Option<usize> {
        let Live { layout, pattern, taken } = self.live[&block];
        let start = self.pointer(block);
        verify(start, pattern, layout.size());
        // SAFETY: the block is live, with this layout.
        let moved = unsafe { self.heap.realloc(start, layout, size) };
        if moved.is_null() {
            self.failed += 1;
            self.largest_failed = self.largest_failed.max(size.max(1));
            verify(start, pattern, layout.size());
            self.account();
            return None;
        }
        self.live.remove(&block);
        let new = Layout::from_size_align(size, layout.align()).unwrap();
        verify(moved, pattern, size.min(layout.size()));
        let pattern = self.enter(moved.addr(), new, self.used - taken);
        fill(moved, pattern, 0, size);
        if self.case.reuses {
            // A block that moves is live in both places for a moment.
            let both = self.used + self.live[&moved.addr()].taken;
            self.used = both - taken;
            self.peak = if moved.addr() == block { self.peak } else { self.peak.max(both) };
        } else {
            self.used = self.heap.stats().used;
            self.peak = self.heap.stats().peak;
        }
        self.account();
        Some(moved.addr())
    }

    /// Requests exactly the largest free block, and one byte more.
    pub fn probe_largest(&mut self) {
        let largest = self.heap.largest_free();
        if !self.case.sure_largest {
            return;
        }
        if self.case.exact_largest {
            let more = Layout::from_size_align(largest + 1, 1).unwrap();
            assert_eq!(self.allocate(more), None, "more than the largest free block was found");
        }
        if largest > 0 {
            let before = self.peak;
            let all = Layout::from_size_align(largest, 1).unwrap();
            let block = self.allocate(all).expect("the largest free block can be allocated");
            if self.case.exact_largest || self.case.reuses {
                self.free(block);
            }
            assert!(self.peak >= before);
        }
    }

    /// Checks all contents without freeing anything.
    pub fn verify_all(&mut self) {
        let blocks: Vec<_> = self.live.iter().map(|(&start, &live)| (start, live)).collect();
        for (start, Live { layout, pattern, .. }) in blocks {
            verify(self.pointer(start), pattern, layout.size());
        }
        self.backing.iter().for_each(Backing::check);
    }

    /// Frees everything. Every region must then be one free block again, which can be released.
    pub fn finish(mut self) {
        self.verify_all();
        while let Some((&block, _)) = self.live.first_key_value() {
            self.free(block);
        }
        self.heap.trim();
        let stats = self.heap.stats();
        assert_eq!(stats.live_blocks, 0);
        if self.case.reuses {
            assert_eq!(stats.used, 0);
            let mut regions = Vec::new();
            if self.case.releases {
                for backing in &mut self.backing {
                    let before = self.heap.stats().capacity;
                    let region = backing.region();
                    let released = self.heap.release(region.start.as_ptr());
                    assert_eq!(released, Ok(region), "a region is not one free block again");
                    regions.push(before - self.heap.stats().capacity);
                }
                assert_eq!(self.heap.stats().capacity, 0);
                let largest = regions.into_iter().max().unwrap_or(0);
                assert_eq!(stats.largest_free, largest.saturating_sub(self.case.behind));
                assert_eq!(self.heap.largest_free(), 0);
            }
        }
        self.backing.iter().for_each(Backing::check);
    }
}

/// Runs random allocations, frees and reallocations of sizes up to `max_size` and alignments up to `max_align`,
/// around a fill level that wanders between empty and full.
pub fn random_run(
    case: &'static Case,
    seed: u64,
    steps: usize,
    regions: &[(usize, usize)],
    max_size: usize,
    max_align: usize,
) {
    random_run_on(Shadow::new(case, regions), seed, steps, max_size, max_align);
}

/// Runs the same through any front.
pub fn random_run_on(mut shadow: Shadow, seed: u64, steps: usize, max_size: usize, max_align: usize) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut target = 50;
    for step in 0..steps {
        if step % 512 == 0 {
            target = random.u32(10..95);
        }
        let size = |random: &mut fastrand::Rng| match random.u32(0..8) {
            0 => random.usize(0..=16),
            1..=5 => random.usize(1..=max_size / 8 + 1),
            _ => random.usize(1..=max_size),
        };
        let live = shadow.live();
        let allocate = live == 0 || random.u32(0..100) < target;
        match random.u32(0..10) {
            0..=1 if live > 0 => {
                let block = shadow.nth(random.usize(0..live));
                let new = size(&mut random).max(1);
                shadow.reallocate(block, new);
            }
            _ if allocate => {
                let align = 1 << random.u32(0..=max_align.ilog2()).min(random.u32(0..=max_align.ilog2()));
                let layout = Layout::from_size_align(size(&mut random), align).unwrap();
                if random.u32(0..8) == 0 {
                    shadow.allocate_zeroed(layout);
                } else {
                    shadow.allocate(layout);
                }
            }
            _ => shadow.free(shadow.nth(random.usize(0..live))),
        }
        if step % 97 == 0 {
            shadow.probe_largest();
        }
        if step % 1024 == 0 {
            shadow.verify_all();
        }
    }
    shadow.finish();
}
