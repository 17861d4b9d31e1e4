//! The heap of a WebAssembly module, which grows with the module's memory.

use crate::heap::Heap;
use crate::lock::{self, Lock};
use crate::memory::{Memory, allocator, global_alloc};
use crate::meta::FreeError;
use crate::observe::{Counters, Statistics, Stats};
use crate::out_of_memory::OutOfMemory;
use crate::placement::{LayoutPlacement, Tlsf};
use crate::region::Region;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::mem::MaybeUninit;
use core::ptr::{self, NonNull};

/// A heap over all memory of a WebAssembly module that the program itself does not use. It grows by `memory.grow`.
///
/// ```
/// # #[cfg(target_family = "wasm")]
/// #[global_allocator]
/// static HEAP: allotment::WasmHeap = allotment::WasmHeap::new();
/// ```
///
/// A request that finds no room lets the memory grow: by what it needs, or by an eighth of what the heap has, whichever is more, in
/// pages of 64 KiB. Such a request counts as a failed one in the statistics. Memory never goes back, since WebAssembly has no
/// instruction for that. If other code lets the memory grow too, the heap goes on behind that in another region, of which the placement
/// has a fixed number; so another such heap in the module costs both of them regions.
///
/// What lies between the module's variables and the end of its first page is left to the allocator of the standard library, which
/// may claim it at any time. Only where the memory cannot grow at all, without the feature `std`, the heap claims that; such a module must
/// not use the standard library's allocator.
///
/// Several workers may share the memory (`-Ctarget-feature=+atomics`), with [`Cached`](crate::os::Cached) in front of the heap if they
/// allocate much. WebAssembly has no signal for the end of a worker, so a worker calls [`Cached::flush`](crate::os::Cached::flush) before. `cargo xtask wasm --threads` shows both.
///
/// Allocation and free take the time of the placement `P`. With the default the heap adds 21 KB of code to a module;
/// `WasmHeap<MicroTlsf<4, false>, ..>` adds 3.5 KB, serves up to 2 MiB, and is faster. A [`TinyHeap`](crate::TinyHeap) adds 1.6 KB,
/// for up to 512 KiB that do not grow. `cargo xtask wasm` compares them with other crates.
pub struct WasmHeap<P = Tlsf, L = lock::Default, S = Counters> {
    heap: Heap<P, L, S>,
    lock: L,
    growth: UnsafeCell<Growth>,
}

/// How far a heap has grown.
struct Growth {
    /// The first byte of the region that was claimed last, and the byte after its last.
    last: (usize, usize),
    /// Bytes of all regions.
    bytes: usize,
}

// SAFETY: the heap is `Sync` itself, and the growth is accessed only while the lock is held.
unsafe impl<P: Send, L: Sync, S: Send> Sync for WasmHeap<P, L, S> {}

/// Bytes of a page of WebAssembly.
const PAGE: usize = 64 * 1024;

/// Memory that becomes longer.
///
/// # Safety
///
/// The memory that it returns must be valid for reads and writes, zero, and used by nothing else, and each byte is returned once.
unsafe trait Grow {
    /// Returns the memory that is there before any growth, if nothing else uses it. Only called if the memory cannot grow.
    fn first() -> Option<Region>;

    /// Lets the memory grow by `pages` pages of 64 KiB, and returns the first byte of the new ones; `None` if that is not possible.
    fn grow(pages: usize) -> Option<NonNull<u8>>;
}

impl Growth {
    const NONE: Self = Self { last: (0, 0), bytes: 0 };

    /// Gives `heap` more memory for a request. Returns whether there was more.
    fn lengthen<G: Grow, P: LayoutPlacement, L: Lock, S: Statistics>(
        &mut self,
        heap: &Heap<P, L, S>,
        layout: Layout,
    ) -> bool {
        // Beside the block: its alignment, and what the placement keeps for itself.
        let beside = layout.align().saturating_add(layout.size() / 32).saturating_add(4096);
        let need = layout.size().saturating_add(beside).div_ceil(PAGE);
        let ahead = (self.bytes / 8).div_ceil(PAGE);
        // Near the end of what there is, only what is needed. If there is nothing yet, one page tells whether the memory grows at all.
        let least = if self.bytes == 0 { 1 } else { need };
        let Some((start, pages)) =
            [need.max(ahead), need, least].into_iter().find_map(|pages| Some((G::grow(pages)?, pages)))
        else {
            return self.bytes == 0 && G::first().is_some_and(|region| self.claim(heap, region));
        };
        let bytes = pages * PAGE;
        if start.addr().get() == self.last.1 {
            let first = ptr::with_exposed_provenance_mut(self.last.0);
            // SAFETY: the bytes follow the region, are new, and nothing else uses them.
            if unsafe { heap.extend(first, bytes) }.is_ok() {
                self.last.1 += bytes;
                self.bytes += bytes;
                return true;
            }
        }
        self.claim(heap, Region { zeroed: true, ..Region::new(start, bytes) })
    }

    fn claim<P: LayoutPlacement, L: Lock, S: Statistics>(
        &mut self,
        heap: &Heap<P, L, S>,
        region: Region,
    ) -> bool {
        let start = region.start.as_ptr().expose_provenance();
        // SAFETY: the bytes are new, and nothing else uses them.
        let claimed = unsafe { heap.claim(region) }.is_ok();
        if claimed {
            self.last = (start, start + region.size);
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
    /// Set by the linker: the first byte behind variables and stack.
    static mut __heap_base: u8;
}

#[cfg(target_family = "wasm")]
use core::sync::atomic::{AtomicBool, Ordering};

#[cfg(target_arch = "wasm32")]
use core::arch::wasm32 as arch;
#[cfg(target_arch = "wasm64")]
use core::arch::wasm64 as arch;

// SAFETY: what `memory.grow` adds is zero and new. The allocator of the standard library claims the memory behind `__heap_base` as well, but
// a program without it has none, and the documentation excludes the rest.
#[cfg(target_family = "wasm")]
unsafe impl Grow for Linear {
    fn first() -> Option<Region> {
        if cfg!(feature = "std") {
            return None;
        }
        // Of several heaps in a module, one gets this memory.
        static TAKEN: AtomicBool = AtomicBool::new(false);
        let start = &raw mut __heap_base;
        let end = arch::memory_size::<0>() * PAGE;
        let size = end.checked_sub(start.addr()).filter(|&size| size > 0)?;
        if TAKEN.swap(true, Ordering::Relaxed) {
            return None;
        }
        Some(Region { zeroed: true, ..Region::new(start, size) })
    }

    fn grow(pages: usize) -> Option<NonNull<u8>> {
        match arch::memory_grow::<0>(pages) {
            usize::MAX => None,
            before => NonNull::new(ptr::with_exposed_provenance_mut(before * PAGE)),
        }
    }
}

impl<P: LayoutPlacement, L: Lock, S: Statistics> WasmHeap<P, L, S> {
    /// Creates the heap, without memory until the first request.
    #[allow(clippy::new_without_default, reason = "such a heap is only ever a static")]
    pub const fn new() -> Self {
        Self { heap: Heap::empty(), lock: L::INIT, growth: UnsafeCell::new(Growth::NONE) }
    }

    /// Runs a request, and again after the memory has grown for it.
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
        // Other threads may take what was added, though hardly so often in a row.
        for _ in 0..16 {
            // SAFETY: the lock excludes all others, and the heap uses another one.
            let more = self
                .lock
                .with(|| unsafe { &mut *self.growth.get() }.lengthen::<G, _, _, _>(&self.heap, layout));
            if !more {
                return None;
            }
            let served = request();
            // If it is still there, the placement cannot serve the request.
            if served.is_some() || self.heap.largest_free() >= layout.size() {
                return served;
            }
        }
        None
    }
}

// SAFETY: the heap keeps the contract.
unsafe impl<P: LayoutPlacement, L: Lock, S: Statistics> Memory for WasmHeap<P, L, S> {
    #[inline]
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.request::<Linear, _>(layout, || self.heap.allocate(layout))
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.request::<Linear, _>(layout, || self.heap.allocate_zeroed(layout))
    }

    #[inline]
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.heap.deallocate(block, layout) }
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

    unsafe fn deallocate_many(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        // SAFETY: the caller's contract.
        unsafe { self.heap.deallocate_many(layout, blocks) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.heap.check(block, layout)
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.heap.try_resize(block, layout, size) }
    }

    fn statistics(&self) -> Option<Stats> {
        Memory::statistics(&self.heap)
    }

    /// Returns the largest request, in bytes, that succeeds without growth.
    fn largest_free(&self) -> usize {
        Memory::largest_free(&self.heap)
    }

    #[inline(always)]
    fn remembers(&self) -> bool {
        self.heap.remembers()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.heap.region(n)
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        Memory::out_of_memory(&self.heap, layout)
    }
}

global_alloc!([P: LayoutPlacement, L: Lock, S: Statistics] WasmHeap<P, L, S>, plainly);
allocator!([P: LayoutPlacement, L: Lock, S: Statistics] WasmHeap<P, L, S>);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lock::Unsync;
    use std::cell::Cell;
    use std::vec::Vec;

    /// Pages of the fake memory.
    const PAGES: usize = 64;

    std::thread_local! {
        /// Where the fake memory begins, its pages so far, and pages that other code takes before each growth.
        static FAKE: Cell<(usize, usize, usize)> = const { Cell::new((0, 0, 0)) };
    }

    /// Memory of the test's own. `AT_FIRST`: bytes that are there before any growth.
    pub(super) struct Fake<const AT_FIRST: usize>;

    fn begin(taken: usize) {
        let memory: &'static mut [u128] = std::vec![0; PAGES * PAGE / 16].leak();
        FAKE.set((memory.as_mut_ptr().expose_provenance(), 1, taken));
    }

    // SAFETY: the memory is leaked and zero, and each byte is returned once.
    unsafe impl<const AT_FIRST: usize> Grow for Fake<AT_FIRST> {
        fn first() -> Option<Region> {
            let (start, ..) = FAKE.get();
            (AT_FIRST > 0).then(|| Region {
                zeroed: true,
                ..Region::new(ptr::with_exposed_provenance_mut::<u8>(start + PAGE - AT_FIRST), AT_FIRST)
            })
        }

        fn grow(pages: usize) -> Option<NonNull<u8>> {
            let (start, have, taken) = FAKE.get();
            let from = have + taken;
            if from + pages > PAGES {
                return None;
            }
            FAKE.set((start, from + pages, taken));
            NonNull::new(ptr::with_exposed_provenance_mut(start + from * PAGE))
        }
    }

    /// What the heap uses in place of a module's memory.
    pub(super) type Plain = Fake<1000>;

    type Local = WasmHeap<Tlsf, Unsync>;

    /// Fills the memory with blocks of this size, each with its number, and returns them.
    fn fill<G: Grow>(heap: &Local, size: usize) -> Vec<NonNull<u8>> {
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
        let heap = Local::new();
        let blocks = fill::<Fake<1000>>(&heap, 10_000);
        // Only bookkeeping and the rest of a block are lost.
        assert!(blocks.len() * 10_000 > PAGES * PAGE - 3 * PAGE, "{}", blocks.len());
        assert!(
            heap.heap.region(0).is_some_and(|region| region.size > 60 * PAGE)
                && heap.heap.region(1).is_none()
        );
        assert_eq!(FAKE.get().1, PAGES);
    }

    /// The standard library's allocator may claim what is there at first.
    #[test]
    fn memory_that_is_there_at_first_is_left_alone_if_there_is_more() {
        begin(0);
        let heap = Local::new();
        let too_large = Layout::from_size_align(isize::MAX as usize - 63, 64).unwrap();
        assert!(heap.request::<Fake<2000>, _>(too_large, || heap.heap.allocate(too_large)).is_none());
        assert_eq!(FAKE.get().1, 2, "a page shows that the memory grows");
        let layout = Layout::new::<[u8; 100]>();
        assert!(heap.request::<Fake<2000>, _>(layout, || heap.heap.allocate(layout)).is_some());
        let large = Layout::new::<[u8; 200_000]>();
        assert!(heap.request::<Fake<2000>, _>(large, || heap.heap.allocate(large)).is_some());
        assert!(FAKE.get().1 <= 6);
        fill::<Fake<2000>>(&heap, 10_000);
        assert_eq!(FAKE.get().1, PAGES);
        let first = FAKE.get().0 + PAGE;
        assert!((0..).map_while(|n| heap.heap.region(n)).all(|region| region.start.addr().get() >= first));
    }

    #[test]
    fn memory_of_a_fixed_size_is_what_is_there_at_first() {
        begin(PAGES);
        let heap = Local::new();
        let layout = Layout::new::<[u8; 100]>();
        let blocks =
            (0..).map_while(|_| heap.request::<Fake<2000>, _>(layout, || heap.heap.allocate(layout)));
        assert!((10..20).contains(&blocks.count()));
        assert_eq!(FAKE.get().1, 1);
        let none = Local::new();
        assert!(none.request::<Fake<0>, _>(layout, || none.heap.allocate(layout)).is_none());
    }

    /// Another thread takes what was added before the request gets it: the memory grows again.
    #[test]
    fn what_others_take_is_added_once_more() {
        begin(0);
        let heap = Local::new();
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

    /// Caches in front of the heap ask for several blocks at once.
    #[test]
    fn several_blocks_at_once() {
        begin(0);
        let heap = Local::new();
        let layout = Layout::new::<[u64; 3]>();
        let mut blocks = [MaybeUninit::uninit(); 40];
        assert_eq!(heap.allocate_many(layout, &mut blocks[..0]), 0);
        // The first request lets the memory grow and gets one block, the next one all that it wants.
        assert_eq!(heap.allocate_many(layout, &mut blocks[..1]), 1);
        assert_eq!(heap.allocate_many(layout, &mut blocks[1..]), 39);
        // SAFETY: all blocks were written, are live, and are freed once.
        unsafe { heap.deallocate_many(layout, &blocks.map(|block| block.assume_init())) };
        assert_eq!(heap.statistics().unwrap().used, 0);
    }

    /// The heap as others see it: zeroed memory, resizing, frees.
    #[test]
    fn it_is_a_memory() {
        begin(0);
        let heap = Local::new();
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

    /// Other code lets the memory grow as well: the heap goes on behind that, as long as there are places for regions.
    #[test]
    fn gaps_are_left_alone() {
        begin(2);
        let heap = Local::new();
        let blocks = fill::<Fake<0>>(&heap, 10_000);
        let regions: Vec<Region> = (0..).map_while(|n| heap.heap.region(n)).collect();
        assert!(regions.len() > 1 && blocks.len() >= 4 * 6, "{regions:?}, {}", blocks.len());
        for block in blocks {
            let inside =
                |region: &Region| block.addr().get().wrapping_sub(region.start.addr().get()) < region.size;
            assert!(regions.iter().any(inside));
        }
    }
}
