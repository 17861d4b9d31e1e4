//! The allocators on which traces are replayed.

use std::alloc::{GlobalAlloc, Layout};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use allotment::lock::Unsync;
use allotment::placement::Placement;
use allotment::{Heap, Kept, Region, Stats, TinyHeap};

use super::arena::Range;

/// An allocator over an arena.
///
/// # Safety
///
/// Blocks that are live at the same time must not overlap, must lie in the arena, and must have the requested size and
/// alignment.
pub unsafe trait Subject {
    /// Allocates a block; null if there is no room.
    ///
    /// # Safety
    ///
    /// The layout's size must not be zero.
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8;

    /// Frees a block.
    ///
    /// # Safety
    ///
    /// The block must be live and must have been allocated with `layout`.
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout);

    /// Changes a block's size in place or by moving it. Returns null, with the block unchanged, if there is no room.
    ///
    /// # Safety
    ///
    /// The block must be live and must have been allocated with `layout`; the new size must not be zero.
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees a live block of `layout`; both blocks are live, so they do not overlap.
        unsafe {
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.dealloc(block, layout);
            }
            new
        }
    }

    /// Returns the statistics, if the allocator keeps any.
    fn stats(&self) -> Option<Stats> {
        None
    }
}

/// Creates a subject, which stays in its box because some allocators must not move.
pub trait Make {
    /// The type of the subject.
    type Subject: Subject;

    /// Creates a subject over `arena`; `None` if the arena is too small or too large.
    ///
    /// # Safety
    ///
    /// The arena must be valid, and nothing else may use it as long as the subject lives.
    unsafe fn make(&self, arena: Range) -> Option<Box<Self::Subject>>;

    /// Creates a subject that keeps blocks; also `None` if it cannot keep them.
    ///
    /// # Safety
    ///
    /// As for [`Make::make`].
    unsafe fn make_kept(&self, _arena: Range, _keep: Keep) -> Option<Box<dyn Subject>> {
        None
    }

    /// Returns the bytes of the subject's state outside the arena.
    fn state(&self) -> usize {
        size_of::<Self::Subject>()
    }
}

/// Blocks that a [`Kept`] keeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Keep {
    /// Number of blocks, at most [`Keep::MOST`].
    pub count: usize,
    /// Smallest request in bytes for which they are kept.
    pub least: usize,
    /// Bytes of each block, and of the largest request for which they are kept.
    pub most: usize,
}

impl Keep {
    /// Largest number of kept blocks.
    pub const MOST: usize = 4;
}

/// Creates a subject that needs no parameters.
pub struct Plain<S>(PhantomData<S>);

impl<S> Default for Plain<S> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

/// A heap of allotment without a lock.
pub type Own<P> = Heap<P, Unsync>;

impl<P: Placement + 'static> Make for Plain<Own<P>> {
    type Subject = Own<P>;

    unsafe fn make(&self, arena: Range) -> Option<Box<Own<P>>> {
        let heap = Box::new(Heap::empty());
        // SAFETY: the caller of `make` guarantees that the arena is valid and belongs to the subject.
        unsafe { heap.claim(Region::new(NonNull::new(arena.start)?, arena.size)) }.ok()?;
        Some(heap)
    }

    unsafe fn make_kept(&self, arena: Range, keep: Keep) -> Option<Box<dyn Subject>> {
        // SAFETY: the caller guarantees the arena.
        unsafe {
            match keep.count {
                1 => keeping::<P, 1>(arena, keep),
                2 => keeping::<P, 2>(arena, keep),
                3 => keeping::<P, 3>(arena, keep),
                4 => keeping::<P, 4>(arena, keep),
                _ => None,
            }
        }
    }
}

/// Creates a heap of another maker that keeps blocks.
pub struct Keeping<'a, M>(pub &'a M, pub Keep);

impl<M: Make> Make for Keeping<'_, M> {
    type Subject = Box<dyn Subject>;

    unsafe fn make(&self, arena: Range) -> Option<Box<Self::Subject>> {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.make_kept(arena, self.1) }.map(Box::new)
    }
}

// SAFETY: the boxed subject has the same guarantees.
unsafe impl Subject for Box<dyn Subject> {
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { (**self).alloc(layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { (**self).dealloc(block, layout) }
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { (**self).realloc(block, layout, size) }
    }

    fn stats(&self) -> Option<Stats> {
        (**self).stats()
    }
}

/// # Safety
///
/// As for [`Make::make`].
unsafe fn keeping<P: Placement + 'static, const COUNT: usize>(
    arena: Range,
    keep: Keep,
) -> Option<Box<dyn Subject>> {
    let kept = Box::new(Kept::<Own<P>, COUNT, Unsync>::new(Heap::empty(), keep.least, keep.most));
    // SAFETY: the caller guarantees that the arena is valid and belongs to the subject.
    unsafe { kept.memory().claim(Region::new(NonNull::new(arena.start)?, arena.size)) }.ok()?;
    Some(kept)
}

// SAFETY: `Kept` is a global allocator with the same guarantees, and its blocks are those of its heap.
unsafe impl<P: Placement, const COUNT: usize> Subject for Kept<Own<P>, COUNT, Unsync> {
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::alloc(self, layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::dealloc(self, block, layout) }
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::realloc(self, block, layout, size) }
    }

    fn stats(&self) -> Option<Stats> {
        Some(Heap::stats(self.memory()))
    }
}

// SAFETY: `Heap` is a global allocator with the same guarantees, and its blocks lie in the claimed arena.
unsafe impl<P: Placement> Subject for Own<P> {
    #[inline]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::alloc(self, layout) }
    }

    #[inline]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::dealloc(self, block, layout) }
    }

    #[inline]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { GlobalAlloc::realloc(self, block, layout, size) }
    }

    fn stats(&self) -> Option<Stats> {
        Some(Heap::stats(self))
    }
}

/// The allocator of the crate talc.
pub struct Talc(talc::base::Talc<talc::source::Manual, talc::DefaultBinning>);

impl Make for Plain<Talc> {
    type Subject = Talc;

    unsafe fn make(&self, arena: Range) -> Option<Box<Talc>> {
        let mut talc = Box::new(Talc(talc::base::Talc::new(talc::source::Manual)));
        // SAFETY: the caller of `make` guarantees that the arena is valid and belongs to the subject.
        unsafe { talc.0.claim(arena.start, arena.size)? };
        Some(talc)
    }
}

// SAFETY: talc allocates disjoint blocks of the claimed arena.
unsafe impl Subject for Talc {
    #[inline]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the size is not zero.
        unsafe { self.0.allocate(layout) }.map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.deallocate(block, layout) }
    }

    #[inline]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees a live block of `layout`; a block that moves is copied into another live one.
        unsafe {
            if self.0.try_realloc_in_place(block, layout, size) {
                return block;
            }
            let new = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
            if !new.is_null() {
                new.copy_from_nonoverlapping(block, layout.size().min(size));
                self.0.deallocate(block, layout);
            }
            new
        }
    }
}

/// The allocator of the crate rlsf, with a table for arenas up to 512 MiB.
pub struct Rlsf(rlsf::Tlsf<'static, u32, u16, 24, 16>);

impl Make for Plain<Rlsf> {
    type Subject = Rlsf;

    unsafe fn make(&self, arena: Range) -> Option<Box<Rlsf>> {
        let mut tlsf = Box::new(Rlsf(rlsf::Tlsf::new()));
        let memory = NonNull::slice_from_raw_parts(NonNull::new(arena.start)?, arena.size);
        // SAFETY: the caller of `make` guarantees that the arena is valid and belongs to the subject.
        unsafe { tlsf.0.insert_free_block_ptr(memory)? };
        Some(tlsf)
    }
}

// SAFETY: rlsf allocates disjoint blocks of the inserted arena.
unsafe impl Subject for Rlsf {
    #[inline]
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        self.0.allocate(layout).map_or(ptr::null_mut(), NonNull::as_ptr)
    }

    #[inline]
    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller guarantees a live block of `layout`; live blocks are not null.
        unsafe { self.0.deallocate(NonNull::new_unchecked(block), layout.align()) }
    }

    #[inline]
    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller guarantees a live block of `layout`, which is not null, and a size that makes a valid layout.
        unsafe {
            let layout = Layout::from_size_align_unchecked(size, layout.align());
            let new = self.0.reallocate(NonNull::new_unchecked(block), layout);
            new.map_or(ptr::null_mut(), NonNull::as_ptr)
        }
    }
}

/// Code compiled for every subject.
pub trait Visitor {
    /// The result.
    type Out;
    /// Runs for one subject.
    fn visit<M: Make>(self, make: &M) -> Self::Out;
}

/// A [`TinyHeap`] of the largest size that fits, among some sizes, since the size is part of its type.
pub struct Tiny(Box<dyn GlobalAlloc>);

/// Returns eight sizes per power of two, from 512 bytes to 512 KiB.
const fn tiny_size(number: usize) -> usize {
    (8 + number % 8) << (6 + number / 8)
}

/// Number of sizes of `tiny_size`.
const TINY_SIZES: usize = 81;

/// Returns the largest size of `tiny_size` of at most `size` bytes.
pub fn tiny(size: usize) -> Option<usize> {
    (0..TINY_SIZES).rev().map(tiny_size).find(|&one| one <= size)
}

/// Returns the smallest size of `tiny_size` of at least `size` bytes, or the largest of all.
pub fn tiny_above(size: usize) -> usize {
    (0..TINY_SIZES).map(tiny_size).find(|&one| one >= size).unwrap_or(tiny_size(TINY_SIZES - 1))
}

/// A heap in an arena that it does not own.
struct InArena<const BYTES: usize>(NonNull<TinyHeap<BYTES, Unsync>>);

impl<const BYTES: usize> InArena<BYTES> {
    /// # Safety
    ///
    /// The arena must be valid and have `BYTES` bytes, and nothing else may use it as long as the value lives.
    unsafe fn make(start: *mut u8) -> Option<Tiny> {
        // SAFETY: the caller guarantees the memory. A heap that is all zero is empty.
        unsafe { start.write_bytes(0, BYTES) };
        Some(Tiny(Box::new(Self(NonNull::new(start.cast())?))))
    }
}

// SAFETY: `TinyHeap` is a global allocator with the same guarantees.
unsafe impl<const BYTES: usize> GlobalAlloc for InArena<BYTES> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the arena holds the heap; the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.as_ref().alloc(layout) }
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { self.0.as_ref().dealloc(block, layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as in `alloc`.
        unsafe { self.0.as_ref().realloc(block, layout, size) }
    }
}

macro_rules! tiny_heaps {
    ($($number:literal)*) => {
        /// # Safety
        ///
        /// The arena must be valid, and nothing else may use it as long as the heap lives.
        unsafe fn make_tiny(arena: Range) -> Option<Tiny> {
            let size = tiny(arena.size)?;
            // SAFETY: the caller guarantees the arena, which is at least as large.
            unsafe {
                $(if size == tiny_size($number) {
                    return InArena::<{ tiny_size($number) }>::make(arena.start);
                })*
            }
            None
        }
    };
}

tiny_heaps! {
    0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40
    41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64 65 66 67 68 69 70 71 72 73 74 75 76 77 78 79 80
}

impl Make for Plain<Tiny> {
    type Subject = Tiny;

    unsafe fn make(&self, arena: Range) -> Option<Box<Tiny>> {
        // SAFETY: the caller of `make` guarantees that the arena is valid and belongs to the subject.
        unsafe { make_tiny(arena) }.map(Box::new)
    }

    /// Returns 0, since the state lies in the arena.
    fn state(&self) -> usize {
        0
    }
}

// SAFETY: a `TinyHeap` allocates disjoint blocks of its memory, which is the arena.
unsafe impl Subject for Tiny {
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.alloc(layout) }
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.dealloc(block, layout) }
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller keeps the contract of this method, which the call shares.
        unsafe { self.0.realloc(block, layout, size) }
    }
}

/// The properties of a placement.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its type in `Heap<..>`; `None` if it is not used through `Heap`.
    pub code: Option<&'static str>,
    /// Whether it may be advised: it is a placement of this project and satisfies requests of every size.
    pub advised: bool,
    /// Bytes of the largest arena.
    pub limit: usize,
    /// Approximate instructions per operation, on traces of real programs (`benches/RESULTS.md`). Unlike times they are equal in every
    /// run, so heaps are ranked by them.
    pub instructions: u16,
}

impl Entry {
    /// Returns whether it knows its largest free block; the adapters to other crates' allocators do not.
    pub fn knows_largest(&self) -> bool {
        !matches!(self.id, "linked-list" | "buddy-system")
    }
}

macro_rules! subjects {
    ($($id:literal: $type:ty, $code:expr, $advised:literal, $limit:expr, $instructions:literal;)*) => {
        /// All placements, in the order of the tables.
        pub const ENTRIES: &[Entry] = &[$(Entry {
            id: $id,
            code: $code,
            advised: $advised,
            limit: $limit,
            instructions: $instructions,
        }),*];

        /// Runs `visitor` for the placement named `id`; `None` if there is no such placement.
        pub fn with<V: Visitor>(id: &str, visitor: V) -> Option<V::Out> {
            match id {
                $($id => Some(visitor.visit(&Plain::<$type>::default())),)*
                _ => None,
            }
        }
    };
}

/// Bytes of the largest arena of any placement.
pub const HUGE: usize = 16 << 30;
const SMALL: usize = 512 << 10;
/// Bytes of the largest region of a [`MicroTlsf`](allotment::placement::MicroTlsf).
const MICRO: usize = 511 << 10;

// One line for each placement: name, type, type in `Heap<..>`, whether it may be advised, largest arena, instructions.
subjects! {
    "tlsf": Own<allotment::Tlsf>, Some("Tlsf"), true, HUGE, 107;
    "tlsf16": Own<allotment::Tlsf16>, Some("Tlsf16"), true, SMALL, 106;
    "micro-tlsf": Own<allotment::placement::MicroTlsf>, Some("MicroTlsf"), true, MICRO, 139;
    "tiny-heap": Tiny, None, true, SMALL, 138;
    "tiered": Own<allotment::Tiered>, Some("Tiered"), true, HUGE, 42;
    "first-fit": Own<allotment::FirstFit>, Some("FirstFit"), true, HUGE, 437;
    "best-fit": Own<allotment::BestFit>, Some("BestFit"), true, HUGE, 338;
    "best-fit-16": Own<allotment::BestFit<u16, 4, 2>>, Some("BestFit<u16, 4, 2>"), true, MICRO, 337;
    "buddy": Own<allotment::Buddy>, Some("Buddy"), true, HUGE, 390;
    "slab": Own<allotment::Slab>, Some("Slab"), true, HUGE, 187;
    "bump": Own<allotment::Bump>, Some("Bump"), false, HUGE, 10;
    "linked-list": Own<allotment::LinkedList>, Some("LinkedList"), false, HUGE, 389;
    "buddy-system": Own<allotment::BuddySystem>, Some("BuddySystem"), false, HUGE, 112;
    "talc": Talc, None, false, HUGE, 68;
    "rlsf": Rlsf, None, false, 512 << 20, 87;
}

/// Returns the entry of a placement.
pub fn entry(id: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.id == id)
}
