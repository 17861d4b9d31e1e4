//! The heap of a WebAssembly module, which grows with the module's memory.

use crate::heap::Heap;
use crate::lock::{self, Lock, Locked};
use crate::memory::{Memory, allocator, global_alloc, pass_on};
use crate::observe::{Counters, Statistics};
use crate::placement::{Placement, Tlsf};
use crate::region::Region;
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// A heap over all memory of a WebAssembly module that the program itself does not use. It grows with `memory.grow`.
///
/// ```
/// # #[cfg(target_family = "wasm")]
/// #[global_allocator]
/// static HEAP: allotment::WasmHeap = allotment::WasmHeap::new();
/// ```
///
/// A request that finds no room grows the memory by what it needs or by an eighth of the heap, whichever is more, in pages of 64 KiB. The
/// statistics count it as a failed request. A request that cannot succeed does not grow the memory. Memory never shrinks, because
/// WebAssembly has no instruction for that. If other code, or another such heap, also grows the memory, the heap continues after the
/// foreign pages: they become a block in the heap's region that stays in use.
///
/// The heap leaves the initial memory after the module's variables to the standard library's allocator, which may claim it at any time.
/// Without the feature `std`, the heap claims that memory if growing fails for its first request; such a module must not use the standard
/// library's allocator.
///
/// Several workers may share the memory (`-Ctarget-feature=+atomics`), with [`Cached`](crate::os::Cached) in front of the heap if they
/// allocate much. WebAssembly does not signal the end of a worker, so a worker must call [`Cached::flush`](crate::os::Cached::flush)
/// before it ends. `cargo xtask wasm --threads` shows both.
///
/// The placement `P` determines the time of allocations and frees. With the default, the heap adds 12 KB of code to a module;
/// `WasmHeap<MicroTlsf<4, false>, ..>` adds 4 KB, allocates up to 2 MiB in blocks of up to 500 KiB, and is faster. A
/// [`TinyHeap`](crate::TinyHeap) adds 1.6 KB and has a fixed size of up to 512 KiB. `cargo xtask wasm` compares them with other crates.
pub struct WasmHeap<P = Tlsf<u32, 1>, L = lock::Default, S = Counters> {
    heap: Heap<P, L, S>,
    growth: Locked<Growth, L>,
}

/// The growth of a heap so far.
struct Growth {
    /// Address and bytes of the region that was claimed last.
    first: usize,
    size: usize,
    /// Number of regions, and their total bytes.
    regions: usize,
    bytes: usize,
    /// Whether the placement has refused a region. It would refuse further ones too.
    full: bool,
}

/// Bytes of a WebAssembly page.
const PAGE: usize = 64 * 1024;

/// Memory that can grow.
///
/// # Safety
///
/// The memory that the methods return must be valid for reads and writes, zero, and unused by anything else, and they must return each
/// byte only once.
unsafe trait Grow {
    /// Returns the initial memory, if nothing else uses it and it has at least `least` bytes. Called only if the memory cannot grow.
    fn first(least: usize) -> Option<Region>;

    /// Returns the address where the memory ends; `None` at the end of the address space.
    fn end() -> Option<usize>;

    /// Grows the memory by `pages` pages of 64 KiB, and returns the first new byte; `None` if that is not possible.
    fn grow(pages: usize) -> Option<NonNull<u8>>;
}

impl Growth {
    const NONE: Self = Self { first: 0, size: 0, regions: 0, bytes: 0, full: false };

    /// Adds memory to `heap` for a request, and returns whether there was any. Grows the module's memory only if the heap can use it.
    fn lengthen<G: Grow, P: Placement, L: Lock, S: Statistics>(
        &mut self,
        heap: &Heap<P, L, S>,
        layout: Layout,
    ) -> bool {
        // Include the alignment and the placement's bookkeeping. No layout is large enough for the sum to overflow.
        let mut need = layout.size() + layout.size() / 16 + layout.align() + 4096;
        let Some(end) = G::end().filter(|_| !self.full) else { return false };
        let gap = end - (self.first + self.size);
        let before = self.size + gap;
        // With a gap, the boundary bits, one per 8 bytes, move past it.
        let moved = if gap > 0 { before / 60 } else { 0 };
        let mut room = P::MAX_REGION.saturating_sub(before);
        let is_behind = self.size > 0 && need + moved <= room;
        if is_behind {
            need += moved;
        } else {
            room = P::MAX_REGION;
            if need > room || self.regions >= P::MAX_REGIONS {
                return false;
            }
        }
        let mut bytes = need.max(self.bytes / 8).min(room);
        let mut grown = G::grow(bytes.div_ceil(PAGE));
        // Near the limit, halve the growth until it succeeds rather than fall back to the bare need at once: each growth moves the
        // boundary bits of the whole memory.
        while grown.is_none() && bytes > need {
            bytes = (bytes / 2).max(need);
            grown = G::grow(bytes.div_ceil(PAGE));
        }
        let Some(start) = grown else {
            return self.bytes == 0
                && G::first(layout.size().max(1)).is_some_and(|region| self.claim(heap, region));
        };
        let bytes = bytes.next_multiple_of(PAGE).min(room);
        if is_behind {
            // Another thread may have grown the memory meanwhile.
            let gap = start.addr().get() - (self.first + self.size);
            let first = ptr::with_exposed_provenance_mut(self.first);
            // SAFETY: the bytes after the gap are new, and nothing else uses them.
            if unsafe { heap.extend_over(first, gap, bytes) }.is_ok() {
                let _ = start.as_ptr().expose_provenance();
                self.size += gap + bytes;
                self.bytes += bytes;
                return true;
            }
        }
        self.full = !self.claim(heap, Region { zeroed: true, ..Region::new(start, bytes) });
        !self.full
    }

    fn claim<P: Placement, L: Lock, S: Statistics>(&mut self, heap: &Heap<P, L, S>, region: Region) -> bool {
        // SAFETY: the bytes are new, and nothing else uses them.
        let claimed = unsafe { heap.claim(region) }.is_ok();
        if claimed {
            (self.first, self.size) = (region.start.as_ptr().expose_provenance(), region.size);
            self.regions += 1;
            self.bytes += region.size;
        }
        claimed
    }
}

/// The memory of the module.
#[cfg(target_family = "wasm")]
struct Linear;

#[cfg(not(target_family = "wasm"))]
use tests::Plain as Linear;

#[cfg(target_family = "wasm")]
unsafe extern "C" {
    /// The first byte after variables and stack, set by the linker.
    static mut __heap_base: u8;
}

#[cfg(target_family = "wasm")]
use core::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_arch = "wasm32")]
use core::arch::wasm32 as arch;
#[cfg(target_arch = "wasm64")]
use core::arch::wasm64 as arch;

// SAFETY: what `memory.grow` adds is zero and new. The standard library's allocator also claims the memory after `__heap_base`, but
// `first` returns none with the feature `std`, and the documentation forbids that allocator otherwise.
#[cfg(target_family = "wasm")]
unsafe impl Grow for Linear {
    fn first(least: usize) -> Option<Region> {
        if cfg!(feature = "std") {
            return None;
        }
        // Only one heap of a module gets this memory.
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let start = &raw mut __heap_base;
        // The end wraps to 0 at the end of the address space.
        let size = arch::memory_size::<0>().wrapping_mul(PAGE).wrapping_sub(start.addr());
        if size < least || TAKEN.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Region { zeroed: true, ..Region::new(start, size) })
    }

    fn end() -> Option<usize> {
        arch::memory_size::<0>().checked_mul(PAGE)
    }

    fn grow(pages: usize) -> Option<NonNull<u8>> {
        match arch::memory_grow::<0>(pages) {
            usize::MAX => None,
            before => NonNull::new(ptr::with_exposed_provenance_mut(before * PAGE)),
        }
    }
}

impl<P: Placement, L: Lock, S: Statistics> WasmHeap<P, L, S> {
    /// Creates the heap, without memory until the first request.
    #[allow(clippy::new_without_default, reason = "such a heap is only ever a static")]
    pub const fn new() -> Self {
        Self { heap: Heap::empty(), growth: Locked::new(Growth::NONE) }
    }

    /// Runs a request, and repeats it after growing the memory if it fails.
    #[inline]
    fn request<G: Grow, T>(&self, layout: Layout, request: impl Fn() -> Option<T>) -> Option<T> {
        match request() {
            Some(served) => Some(served),
            None => self.after_growth::<G, T>(layout, request),
        }
    }

    #[cold]
    #[inline(never)]
    fn after_growth<G: Grow, T>(&self, layout: Layout, request: impl Fn() -> Option<T>) -> Option<T> {
        // Other threads may use up the added memory, but hardly this often in a row.
        for _ in 0..16 {
            // `lengthen` may lock the heap, whose lock is a different one.
            if !self.growth.with(|growth| growth.lengthen::<G, _, _, _>(&self.heap, layout)) {
                return None;
            }
            let served = request();
            // If the added memory is still free, the placement cannot satisfy the request.
            if served.is_some() || self.heap.largest_free() >= layout.size() {
                return served;
            }
        }
        None
    }
}

// SAFETY: the heap keeps the contract.
unsafe impl<P: Placement, L: Lock, S: Statistics> Memory for WasmHeap<P, L, S> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.request::<Linear, _>(layout, || self.heap.allocate(layout))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.request::<Linear, _>(layout, || self.heap.allocate_zeroed(layout))
    }

    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        if blocks.is_empty() {
            return 0;
        }
        let mut count = self.heap.allocate_many(layout, blocks);
        if count == 0 {
            if let Some(block) = self.allocate(layout) {
                blocks[0].write(block);
                count = 1;
            }
        }
        count
    }

    pass_on!(
        |self| self.heap;
        deallocate, deallocate_many, check, try_resize, statistics, largest_free, region, out_of_memory, remembers
    );
}

global_alloc!([P: Placement, L: Lock, S: Statistics] WasmHeap<P, L, S>, plainly);
allocator!([P: Placement, L: Lock, S: Statistics] WasmHeap<P, L, S>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Unsync;
    use crate::placement::{BestFit, FirstFit, MicroTlsf, QuickLists, Tlsf16};
    use std::cell::Cell;
    use std::vec::Vec;

    /// Pages of the fake memory.
    const PAGES: usize = 64;

    std::thread_local! {
        /// Start address of the fake memory, its pages so far, and the pages that other code takes before each growth.
        static FAKE: Cell<(usize, usize, usize)> = const { Cell::new((0, 0, 0)) };
        /// Number of times the memory has grown.
        static GROWTHS: Cell<usize> = const { Cell::new(0) };
    }

    /// Memory for the tests. `AT_FIRST`: the bytes before any growth.
    pub(super) struct Fake<const AT_FIRST: usize>;

    fn begin(taken: usize) {
        let memory: &'static mut [u128] = std::vec![0; PAGES * PAGE / 16].leak();
        FAKE.set((memory.as_mut_ptr().expose_provenance(), 1, taken));
    }

    // SAFETY: the memory is leaked and zero, and each byte is returned once.
    unsafe impl<const AT_FIRST: usize> Grow for Fake<AT_FIRST> {
        fn first(least: usize) -> Option<Region> {
            let (start, ..) = FAKE.get();
            (AT_FIRST >= least).then(|| Region {
                zeroed: true,
                ..Region::new(ptr::with_exposed_provenance_mut::<u8>(start + PAGE - AT_FIRST), AT_FIRST)
            })
        }

        fn end() -> Option<usize> {
            let (start, have, _) = FAKE.get();
            Some(start + have * PAGE)
        }

        fn grow(pages: usize) -> Option<NonNull<u8>> {
            let (start, have, taken) = FAKE.get();
            let from = have + taken;
            if pages > PAGES - from.min(PAGES) {
                return None;
            }
            FAKE.set((start, from + pages, taken));
            GROWTHS.set(GROWTHS.get() + 1);
            NonNull::new(ptr::with_exposed_provenance_mut(start + from * PAGE))
        }
    }

    /// A stand-in for a module's memory.
    pub(super) type Plain = Fake<1000>;

    type Local<P = Tlsf<u32, 1>> = WasmHeap<P, Unsync>;

    /// Fills the memory with blocks of this size, writes each block's number into it, and returns the blocks.
    fn fill<G: Grow, P: Placement>(heap: &Local<P>, size: usize) -> Vec<NonNull<u8>> {
        let layout = Layout::from_size_align(size, 16).unwrap();
        let mut blocks = Vec::new();
        while let Some(block) = heap.request::<G, _>(layout, || heap.heap.allocate(layout)) {
            // SAFETY: the block has that many bytes.
            unsafe { block.write_bytes(blocks.len() as u8, size) };
            blocks.push(block);
        }
        for (n, block) in blocks.iter().enumerate() {
            // SAFETY: the block is live and was written to.
            let bytes = unsafe { core::slice::from_raw_parts(block.as_ptr(), size) };
            assert!(bytes.iter().all(|&byte| byte == n as u8));
        }
        blocks
    }

    #[test]
    fn the_heap_grows_in_place_to_the_last_page() {
        begin(0);
        let heap = <Local>::new();
        let blocks = fill::<Fake<1000>, _>(&heap, 10_000);
        // Only bookkeeping and a remainder shorter than a block stay unused.
        assert!(blocks.len() * 10_000 > PAGES * PAGE - 3 * PAGE, "{}", blocks.len());
        assert!(
            heap.heap.region(0).is_some_and(|region| region.size > 60 * PAGE)
                && heap.heap.region(1).is_none()
        );
        assert_eq!(FAKE.get().1, PAGES);
    }

    /// Growing by the bare need would take one step per page near the end.
    #[test]
    fn the_last_pages_are_taken_in_few_steps() {
        begin(0);
        GROWTHS.set(0);
        let heap = <Local>::new();
        fill::<Fake<0>, _>(&heap, 10_000);
        assert!(FAKE.get().1 == PAGES && GROWTHS.get() < 26, "{}", GROWTHS.get());
    }

    /// The standard library's allocator may claim the initial memory.
    #[test]
    fn memory_that_is_there_at_first_is_left_alone_if_there_is_more() {
        begin(0);
        let heap = <Local>::new();
        let too_large = Layout::from_size_align(isize::MAX as usize - 63, 64).unwrap();
        assert!(heap.request::<Fake<2000>, _>(too_large, || heap.heap.allocate(too_large)).is_none());
        assert_eq!(FAKE.get().1, 1, "what is refused leaves the memory as it was");
        let layout = Layout::new::<[u8; 100]>();
        assert!(heap.request::<Fake<2000>, _>(layout, || heap.heap.allocate(layout)).is_some());
        let large = Layout::new::<[u8; 200_000]>();
        assert!(heap.request::<Fake<2000>, _>(large, || heap.heap.allocate(large)).is_some());
        assert!(FAKE.get().1 <= 6);
        fill::<Fake<2000>, _>(&heap, 10_000);
        assert_eq!(FAKE.get().1, PAGES);
        let first = FAKE.get().0 + PAGE;
        assert!((0..).map_while(|n| heap.heap.region(n)).all(|region| region.start.addr().get() >= first));
    }

    #[test]
    fn memory_of_a_fixed_size_is_what_is_there_at_first() {
        begin(PAGES);
        let heap = <Local>::new();
        let layout = Layout::new::<[u8; 100]>();
        let blocks =
            (0..).map_while(|_| heap.request::<Fake<2000>, _>(layout, || heap.heap.allocate(layout)));
        assert!((10..20).contains(&blocks.count()));
        assert_eq!(FAKE.get().1, 1);
        let none = <Local>::new();
        assert!(none.request::<Fake<0>, _>(layout, || none.heap.allocate(layout)).is_none());
    }

    /// If another thread uses up the added memory before the request gets it, the memory grows again.
    #[test]
    fn what_others_take_is_added_once_more() {
        begin(0);
        let heap = <Local>::new();
        let layout = Layout::new::<[u8; 40_000]>();
        let others = Cell::new(4);
        let request = || {
            if heap.heap.largest_free() >= 40_000 && others.get() > 0 {
                others.set(others.get() - 1);
                while heap.heap.allocate(layout).is_some() {}
            }
            heap.heap.allocate(layout)
        };
        assert!(heap.request::<Fake<0>, _>(layout, request).is_some());
        assert!(others.get() == 0 && FAKE.get().1 < 20);
    }

    /// Caches in front of the heap request several blocks at once.
    #[test]
    fn several_blocks_at_once() {
        begin(0);
        let heap = <Local>::new();
        let layout = Layout::new::<[u64; 3]>();
        let mut blocks = [MaybeUninit::uninit(); 40];
        assert_eq!(heap.allocate_many(layout, &mut blocks[..0]), 0);
        // The first request grows the memory and gets one block; the next request gets all its blocks.
        assert_eq!(heap.allocate_many(layout, &mut blocks[..1]), 1);
        assert_eq!(heap.allocate_many(layout, &mut blocks[1..]), 39);
        // SAFETY: all blocks were written, are live, and are freed once.
        unsafe { heap.deallocate_many(layout, &blocks.map(|block| block.assume_init())) };
        assert_eq!(heap.statistics().unwrap().used, 0);
    }

    /// Tests the heap as a `Memory`: zeroed memory, resizing, frees.
    #[test]
    fn it_is_a_memory() {
        begin(0);
        let heap = <Local>::new();
        let layout = Layout::new::<[u8; 50_000]>();
        let block = heap.allocate_zeroed(layout).unwrap();
        // SAFETY: the block is live, has these layouts one after the other, and is freed once.
        unsafe {
            assert!(core::slice::from_raw_parts(block.as_ptr(), 50_000).iter().all(|&byte| byte == 0));
            block.write_bytes(9, 50_000);
            let new = Layout::new::<[u8; 300_000]>();
            let moved = heap.change(block, layout, new, &mut |_| ()).unwrap();
            assert!(core::slice::from_raw_parts(moved.as_ptr(), 50_000).iter().all(|&byte| byte == 9));
            assert_eq!(heap.check(moved, new), Ok(()));
            heap.try_deallocate(moved, new).unwrap();
            let again = heap.allocate_zeroed(new).unwrap();
            assert!(core::slice::from_raw_parts(again.as_ptr(), 300_000).iter().all(|&byte| byte == 0));
            heap.deallocate(again, new);
        }
        let stats = heap.statistics().unwrap();
        assert!(stats.used == 0 && stats.capacity > 300_000 && heap.largest_free() >= 300_000);
    }

    /// Other code may grow the memory at any time, even between two steps of the heap: the heap continues after the foreign pages.
    #[test]
    fn gaps_are_left_alone() {
        fn check<P: Placement>(taken: usize) {
            begin(taken);
            let heap = Local::<P>::new();
            let layout = Layout::new::<[u8; 70_000]>();
            let mut gaps = Vec::new();
            let blocks: Vec<_> = (0..)
                .map_while(|_| {
                    let (start, have, taken) = FAKE.get();
                    // The other code writes to its pages.
                    let other: *mut u8 = ptr::with_exposed_provenance_mut(start + have * PAGE);
                    let taken = taken * PAGE + if have < PAGES { PAGE } else { 0 };
                    if have * PAGE + taken <= PAGES * PAGE {
                        // SAFETY: nothing else uses these pages.
                        unsafe { other.write_bytes(0xaa, taken) };
                        gaps.push((other.addr(), taken));
                    }
                    FAKE.set((start, have + 1, FAKE.get().2));
                    heap.request::<Fake<0>, _>(layout, || heap.heap.allocate(layout))
                })
                // SAFETY: the block has that many bytes.
                .inspect(|block| unsafe { block.write_bytes(0x55, layout.size()) })
                .collect();
            assert!(blocks.len() > 8, "{}", blocks.len());
            let regions: Vec<Region> = (0..).map_while(|n| heap.heap.region(n)).collect();
            for block in &blocks {
                let start = block.addr().get();
                assert!(gaps.iter().all(|gap| start + layout.size() <= gap.0 || gap.0 + gap.1 <= start));
                assert!(regions.iter().any(|region| region.meets(&Region::new(*block, 1))));
                // SAFETY: the block is live.
                unsafe { heap.heap.try_deallocate(*block, layout) }.unwrap();
            }
            // Small blocks fill the rest.
            fill::<Fake<0>, P>(&heap, 96);
            for &(start, len) in &gaps {
                // SAFETY: the pages are part of the fake memory.
                let bytes =
                    unsafe { core::slice::from_raw_parts(ptr::with_exposed_provenance::<u8>(start), len) };
                assert!(bytes.iter().all(|&byte| byte == 0xaa));
            }
            let stats = heap.heap.stats();
            assert!(stats.free < 8192, "{stats:?}, {taken}, {}", core::any::type_name::<P>());
        }
        for taken in [0, 1] {
            check::<Tlsf<u32, 1>>(taken);
            check::<Tlsf>(taken);
            check::<FirstFit<32>>(taken);
            check::<QuickLists<Tlsf>>(taken);
        }
        check::<MicroTlsf<4, false>>(0);
        check::<MicroTlsf<8>>(0);
    }

    /// A request that the placement can satisfy grows the memory once; any other request leaves it as it was.
    #[test]
    fn the_memory_grows_only_for_requests_that_succeed() {
        fn check<P: Placement>(others: usize) {
            for size in (0..48)
                .map(|n| (100 << (n / 3)) + 7777 * (n % 3))
                .chain([usize::MAX >> 20 << 16, isize::MAX as usize - 4095])
            {
                for align in [1, 16, 4096, 1 << 17] {
                    begin(0);
                    let heap = Local::<P>::new();
                    let Ok(layout) = Layout::from_size_align(size, align) else { continue };
                    for _ in 0..6 {
                        let (start, before, taken) = FAKE.get();
                        FAKE.set((start, before + others, taken));
                        let count = heap.heap.stats().live_blocks;
                        let served = heap.request::<Fake<0>, _>(layout, || heap.heap.allocate(layout));
                        let grown = FAKE.get().1 - before - others;
                        assert!(
                            served.is_some() || grown == 0,
                            "{layout:?}: {grown} pages after {count} blocks"
                        );
                        assert!(
                            grown <= 2 + (size + align + size / 16) / PAGE + before / 4,
                            "{layout:?}: {grown}"
                        );
                        // SAFETY: the block is live and has that many bytes.
                        served.inspect(|block| unsafe { block.write_bytes(9, size) });
                    }
                }
            }
        }
        for others in [0, 1] {
            check::<Tlsf<u32, 1>>(others);
            check::<Tlsf>(others);
            check::<Tlsf16>(others);
            check::<FirstFit>(others);
            check::<BestFit>(others);
            check::<QuickLists<Tlsf>>(others);
            check::<MicroTlsf<4, false>>(others);
            check::<MicroTlsf<1>>(others);
        }
    }
}
