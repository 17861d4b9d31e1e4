//! The trait that all memory implements, and what needs only that trait: `GlobalAlloc`, the `Allocator` traits, and the handling of
//! failed requests and invalid frees.

pub(crate) mod forward;
mod refusal;
#[cfg(any(feature = "std", all(feature = "host", any(unix, windows))))]
mod reserve;

pub(crate) use forward::{allocator, global_alloc};
pub(crate) use refusal::{is_panicking, refused, refused_for_good};

use crate::error::FreeError;
use crate::error::out_of_memory::OutOfMemory;
#[cfg(all(feature = "std", unix))]
use crate::lock::ForkLock;
use crate::observe::Stats;
use crate::region::Region;
use core::alloc::Layout;
use core::mem::MaybeUninit;
use core::ptr::NonNull;

/// A callback that gets the block's new address from [`Memory::change`].
pub(crate) type Done<'a> = &'a mut dyn FnMut(NonNull<u8>);

/// Memory from which programs allocate blocks: a [`Heap`](crate::Heap), or a front around any other `Memory`.
///
/// Fronts require only this trait of what they wrap, so they can be combined in any order: `Observed<Cached<..>>`,
/// `Cached<PressureHeap<..>>`, `PlannedHeap<Observed<..>>`, or all of them as zones of [`Zones`](crate::front::zones::Zones). A reference
/// to a `Memory` is one too.
///
/// ```
/// use allotment::{Heap, Memory, Observed, PlannedHeap, Tlsf, heap, lock::Unsync, observe::Profile};
/// use std::alloc::Layout;
///
/// let heap: Heap<Tlsf> = heap!(16 * 1024);
/// let front = PlannedHeap::<_, 8, Unsync>::new(Observed::<_, _, Unsync>::new(heap, Profile::new()));
/// let layout = Layout::new::<[u8; 100]>();
/// let block = front.try_allocate(layout)?;
/// assert_eq!(front.heap().observers(|profile| profile.live_bytes), 100);
/// unsafe { front.try_deallocate(block, layout) }?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Safety
///
/// Live blocks must not overlap, must have the requested size and alignment, and must keep their addresses until
/// they are freed, even if the value is moved. [`Memory::try_deallocate`] must accept only addresses in the value's
/// regions. No method may unwind.
pub unsafe trait Memory {
    /// Allocates a block for `layout`; `None` if there is no room, which counts as a failed request. A layout of size zero gets a block
    /// of the smallest size.
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>>;

    /// Allocates a block like [`Memory::allocate`], with all bytes of the layout zero.
    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        let block = self.allocate(layout)?;
        // SAFETY: the block has the layout's size.
        unsafe { block.write_bytes(0, layout.size()) };
        Some(block)
    }

    /// Allocates a block like [`Memory::allocate`], or returns an error that says why not.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the requested size and the free memory.
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.allocate(layout).ok_or_else(|| self.out_of_memory(layout))
    }

    /// Allocates a block like [`Memory::allocate_zeroed`], or returns an error that says why not.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] with the requested size and the free memory.
    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.allocate_zeroed(layout).ok_or_else(|| self.out_of_memory(layout))
    }

    /// Frees a block without a check. If the memory detects an invalid free all the same, the program ends in debug builds; release
    /// builds ignore the free.
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `layout`, and it must not be used
    /// afterwards.
    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout);

    /// Frees a block, or returns an error if the free is invalid.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if [`Memory::check_owned`] finds the free invalid. Nothing changes then.
    ///
    /// # Safety
    ///
    /// If there is no error, `block` must be a live block of this memory that was allocated with `layout`, and it
    /// must not be used afterwards.
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the block passes the check, or else the caller guarantees that it is live and has `layout`.
        unsafe {
            self.check_owned(block, layout)?;
            self.deallocate(block, layout);
        }
        Ok(())
    }

    /// Checks in O(regions), as far as possible, whether a live block for `layout` can start at `block`. It does not read live blocks,
    /// since other threads may be writing to them, only what the placement keeps beside them. So nearly all double frees, and most frees
    /// with another layout, pass this check and fail only [`Memory::check_owned`]. [`Buddy`](crate::Buddy) and level
    /// [`Full`](crate::harden::Full) detect most of them here too.
    ///
    /// # Errors
    ///
    /// A [`FreeError`] that [`Memory::try_deallocate`] would return.
    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;

    /// Checks in O(1), as far as possible, whether a live block for `layout` starts at `block`. Unlike [`Memory::check`], it also reads
    /// the block and its neighbours.
    ///
    /// # Errors
    ///
    /// The [`FreeError`] that [`Memory::try_deallocate`] would return.
    ///
    /// # Safety
    ///
    /// If there is no error, `block` must be a live block of this memory that was allocated with `layout`, to which no other thread
    /// writes meanwhile.
    unsafe fn check_owned(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.check(block, layout)
    }

    /// Resizes a block in place to `size` bytes, and returns whether that was possible.
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `layout`; bytes that it cuts off must not be used any more.
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool;

    /// Changes the layout of a block, in place or by moving it, and returns its new address. If there is no room,
    /// it returns `None` and the block is unchanged. Neither size may be zero. `done` gets the new address before
    /// the old block becomes free for other requests.
    ///
    /// # Safety
    ///
    /// `block` must be a live block of this memory that was allocated with `old`. If it moves, it must not be used
    /// at its old address any more.
    #[inline(always)]
    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the block is live and has layout `old`, and the copy is between two live blocks.
        unsafe {
            // Resizing in place requires the same alignment, because a free uses it to find the block.
            let same = new.align() == old.align();
            let mut shrinks = same && new.size() < old.size() && self.has_shorter(old, new.size());
            let moved = loop {
                if same && !shrinks && self.try_resize(block, old, new.size()) {
                    done(block);
                    return Some(block);
                }
                match self.allocate(new) {
                    Some(moved) => break moved,
                    // Another thread has allocated the shorter block.
                    None if shrinks => shrinks = false,
                    None => return None,
                }
            };
            moved.copy_from_nonoverlapping(block, old.size().min(new.size()));
            done(moved);
            self.deallocate(block, old);
            Some(moved)
        }
    }

    /// Returns whether a block of layout `old` should move when it shrinks to `size` bytes, to reduce fragmentation.
    #[doc(hidden)]
    #[inline(always)]
    fn has_shorter(&self, old: Layout, size: usize) -> bool {
        let _ = (old, size);
        false
    }

    /// Fills `blocks` from the front with blocks for `layout`, and returns how many. Only 0 means that memory has run out; a smaller
    /// number than requested does not.
    fn allocate_many(&self, layout: Layout, blocks: &mut [MaybeUninit<NonNull<u8>>]) -> usize {
        let Some((first, _)) = blocks.split_first_mut() else { return 0 };
        self.allocate(layout).map_or(0, |block| {
            first.write(block);
            1
        })
    }

    /// Frees blocks of one layout.
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::deallocate`] for every block.
    unsafe fn deallocate_many(&self, layout: Layout, blocks: &[NonNull<u8>]) {
        for &block in blocks {
            // SAFETY: the caller's contract.
            unsafe { self.deallocate(block, layout) }
        }
    }

    /// Returns a consistent copy of the statistics, if the memory keeps any. O(1).
    fn statistics(&self) -> Option<Stats> {
        None
    }

    /// Returns the largest request, in bytes, that is certain to succeed now.
    fn largest_free(&self) -> usize;

    /// Returns region number `n`, from 0, or `None` beyond the last one.
    fn region(&self, n: usize) -> Option<Region>;

    /// Creates the error of a failed request for `layout`.
    #[doc(hidden)]
    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        let largest_free = self.largest_free();
        let free = self.statistics().map_or(largest_free, |stats| stats.free);
        OutOfMemory::new(layout, free, largest_free)
    }

    /// Allocates a block for the global allocator, and reports a request that finds no room; see [`crate::error::out_of_memory`].
    #[doc(hidden)]
    #[inline]
    fn allocate_or_report(&self, layout: Layout) -> *mut u8 {
        match self.allocate(layout) {
            Some(block) => block.as_ptr(),
            None => refused(self, layout, || self.allocate(layout)),
        }
    }

    /// Returns whether every free must reach this memory, because it checks each free against its record of the block. Fronts then keep
    /// no freed blocks.
    #[doc(hidden)]
    fn remembers(&self) -> bool {
        false
    }

    /// Adds a region as a reserve for reporting a panic, and returns whether that was possible.
    ///
    /// # Safety
    ///
    /// The contract of [`Heap::claim`](crate::Heap::claim): the memory must be valid, and nothing else may use it while the heap has it.
    #[doc(hidden)]
    unsafe fn add_reserve(&self, region: Region) -> bool {
        let _ = region;
        false
    }

    /// Passes each lock of this memory, and of the memory behind it, to `visit`; `None` for a lock that is unknown or cannot be held
    /// across a fork.
    #[cfg(all(feature = "std", unix))]
    #[doc(hidden)]
    fn locks(&self, visit: &mut dyn FnMut(Option<ForkLock>)) {
        visit(None);
    }
}

#[cfg(all(feature = "std", unix))]
impl<M: Memory> crate::lock::Forkable for M {
    fn fork_locks(&self, visit: &mut dyn FnMut(Option<ForkLock>)) {
        self.locks(visit);
    }
}

/// Forwards single methods of [`Memory`] to another `Memory`, inside an `impl Memory`: `pass_on!(|self| self.memory; check, largest_free,
/// region);`
macro_rules! pass_on {
    (|$this:ident| $memory:expr; $($method:ident),+) => {
        $($crate::memory::pass_on!(@$method $this $memory);)+
    };
    (@allocate $this:ident $memory:expr) => {
        #[inline]
        fn allocate(&$this, layout: Layout) -> Option<NonNull<u8>> {
            $memory.allocate(layout)
        }
    };
    (@allocate_zeroed $this:ident $memory:expr) => {
        fn allocate_zeroed(&$this, layout: Layout) -> Option<NonNull<u8>> {
            $memory.allocate_zeroed(layout)
        }
    };
    (@deallocate $this:ident $memory:expr) => {
        #[inline]
        unsafe fn deallocate(&$this, block: NonNull<u8>, layout: Layout) {
            // SAFETY: the caller's contract.
            unsafe { $memory.deallocate(block, layout) }
        }
    };
    (@try_deallocate $this:ident $memory:expr) => {
        unsafe fn try_deallocate(&$this, block: NonNull<u8>, layout: Layout) -> Result<(), $crate::FreeError> {
            // SAFETY: the caller's contract.
            unsafe { $memory.try_deallocate(block, layout) }
        }
    };
    (@check $this:ident $memory:expr) => {
        fn check(&$this, block: NonNull<u8>, layout: Layout) -> Result<(), $crate::FreeError> {
            $memory.check(block, layout)
        }

        unsafe fn check_owned(&$this, block: NonNull<u8>, layout: Layout) -> Result<(), $crate::FreeError> {
            // SAFETY: the caller's contract.
            unsafe { $memory.check_owned(block, layout) }
        }
    };
    (@try_resize $this:ident $memory:expr) => {
        unsafe fn try_resize(&$this, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
            // SAFETY: the caller's contract.
            unsafe { $memory.try_resize(block, layout, size) }
        }
    };
    (@change $this:ident $memory:expr) => {
        unsafe fn change(&$this, block: NonNull<u8>, old: Layout, new: Layout, done: $crate::memory::Done) -> Option<NonNull<u8>> {
            // SAFETY: the caller's contract.
            unsafe { $memory.change(block, old, new, done) }
        }
    };
    (@allocate_many $this:ident $memory:expr) => {
        fn allocate_many(&$this, layout: Layout, blocks: &mut [::core::mem::MaybeUninit<NonNull<u8>>]) -> usize {
            $memory.allocate_many(layout, blocks)
        }
    };
    (@deallocate_many $this:ident $memory:expr) => {
        unsafe fn deallocate_many(&$this, layout: Layout, blocks: &[NonNull<u8>]) {
            // SAFETY: the caller's contract.
            unsafe { $memory.deallocate_many(layout, blocks) }
        }
    };
    (@statistics $this:ident $memory:expr) => {
        fn statistics(&$this) -> Option<$crate::Stats> {
            $memory.statistics()
        }
    };
    (@largest_free $this:ident $memory:expr) => {
        fn largest_free(&$this) -> usize {
            $memory.largest_free()
        }
    };
    (@region $this:ident $memory:expr) => {
        fn region(&$this, n: usize) -> Option<$crate::Region> {
            $memory.region(n)
        }
    };
    (@out_of_memory $this:ident $memory:expr) => {
        fn out_of_memory(&$this, layout: Layout) -> $crate::OutOfMemory {
            $memory.out_of_memory(layout)
        }
    };
    (@remembers $this:ident $memory:expr) => {
        #[inline(always)]
        fn remembers(&$this) -> bool {
            $memory.remembers()
        }
    };
    (@locks $this:ident $memory:expr) => {
        #[cfg(all(feature = "std", unix))]
        fn locks(&$this, visit: &mut dyn FnMut(Option<$crate::lock::ForkLock>)) {
            $memory.locks(visit);
        }
    };
    // The locks of a front that adds a lock.
    (@own_lock $this:ident $memory:expr) => {
        #[cfg(all(feature = "std", unix))]
        fn locks(&$this, visit: &mut dyn FnMut(Option<$crate::lock::ForkLock>)) {
            visit($this.lock.at_fork());
            $memory.locks(visit);
        }
    };
    (@add_reserve $this:ident $memory:expr) => {
        unsafe fn add_reserve(&$this, region: $crate::Region) -> bool {
            // SAFETY: the caller's contract.
            unsafe { $memory.add_reserve(region) }
        }
    };
}
pub(crate) use pass_on;

/// Defines `allocate` and `allocate_zeroed`. `$block` calls `$request(layout)`, which is that method of the memory behind.
macro_rules! allocate {
    ($memory:expr; |$this:ident, $layout:ident, $request:ident| $block:expr) => {
        #[inline]
        fn allocate(&$this, $layout: Layout) -> Option<NonNull<u8>> {
            let $request = |layout: Layout| $memory.allocate(layout);
            $block
        }

        #[inline]
        fn allocate_zeroed(&$this, $layout: Layout) -> Option<NonNull<u8>> {
            let $request = |layout: Layout| $memory.allocate_zeroed(layout);
            $block
        }
    };
}
pub(crate) use allocate;

/// Implements [`Memory`] for a type by forwarding all calls to another `Memory`.
macro_rules! delegate {
    ([$($parameters:tt)*] $front:ty, |$this:ident| $memory:expr) => {
        // SAFETY: the other memory keeps the contract.
        unsafe impl<$($parameters)*> $crate::memory::Memory for $front {
            $crate::memory::pass_on!(
                |$this| $memory;
                allocate, allocate_zeroed, deallocate, try_deallocate, check, try_resize, change, allocate_many, deallocate_many, statistics, largest_free, region, out_of_memory, add_reserve,
                remembers, locks
            );
        }
    };
}
pub(crate) use delegate;

delegate!([M: Memory + ?Sized] &M, |self| (**self));
