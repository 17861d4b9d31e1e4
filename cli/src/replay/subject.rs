//! The allocators that traces are replayed on.

use std::alloc::{GlobalAlloc, Layout};
use std::marker::PhantomData;
use std::ptr::{self, NonNull};

use allotment::lock::Unsync;
use allotment::placement::LayoutPlacement;
use allotment::{Heap, Region, Stats};

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

/// Creates a subject. It stays in its box because some allocators must not move.
pub trait Make {
    /// The type of the subject.
    type Subject: Subject;

    /// Creates a subject over `arena`; `None` if that is too small or too large.
    ///
    /// # Safety
    ///
    /// The arena must be valid, and nothing else may use it as long as the subject lives.
    unsafe fn make(&self, arena: Range) -> Option<Box<Self::Subject>>;

    /// Returns the bytes of the subject's state outside the arena.
    fn state(&self) -> usize {
        size_of::<Self::Subject>()
    }
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

impl<P: LayoutPlacement> Make for Plain<Own<P>> {
    type Subject = Own<P>;

    unsafe fn make(&self, arena: Range) -> Option<Box<Own<P>>> {
        let heap = Box::new(Heap::empty());
        // SAFETY: the caller of `make` guarantees that the arena is valid and belongs to the subject.
        unsafe { heap.claim(Region::new(NonNull::new(arena.start)?, arena.size)) }.ok()?;
        Some(heap)
    }
}

// SAFETY: `Heap` is a global allocator with the same guarantees, and its blocks lie in the claimed arena.
unsafe impl<P: LayoutPlacement> Subject for Own<P> {
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

/// talc.
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

// SAFETY: talc hands out disjoint blocks of the claimed arena.
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

/// rlsf with a table for arenas up to 512 MiB.
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

// SAFETY: rlsf hands out disjoint blocks of the inserted arena.
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

/// Code that is compiled for every subject.
pub trait Visitor {
    /// The result.
    type Out;
    /// Runs for one subject.
    fn visit<M: Make>(self, make: &M) -> Self::Out;
}

/// The properties of a placement.
#[derive(Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its name on the command line.
    pub id: &'static str,
    /// Its type in `Heap<..>`; `None` for other crates' allocators that are not used through `Heap`.
    pub code: Option<&'static str>,
    /// True if it may be advised: a placement of this project that serves requests of every size.
    pub advised: bool,
    /// Bytes of the largest arena.
    pub limit: usize,
}

impl Entry {
    /// Returns whether it knows its largest free block; the adapters to other crates' allocators do not.
    pub fn knows_largest(&self) -> bool {
        !matches!(self.id, "linked-list" | "buddy-system")
    }
}

macro_rules! subjects {
    ($($id:literal: $type:ty, $code:expr, $advised:literal, $limit:expr;)*) => {
        /// All placements, in the order of the tables.
        pub const ENTRIES: &[Entry] =
            &[$(Entry { id: $id, code: $code, advised: $advised, limit: $limit }),*];

        /// Runs `visitor` for the placement named `id`; `None` if there is no such placement.
        pub fn with<V: Visitor>(id: &str, visitor: V) -> Option<V::Out> {
            match id {
                $($id => Some(visitor.visit(&Plain::<$type>::default())),)*
                _ => None,
            }
        }
    };
}

const HUGE: usize = 16 << 30;
const SMALL: usize = 512 << 10;

// A placement is one line: name, type, its type in `Heap<..>`, whether it may be advised, its largest arena.
subjects! {
    "tlsf": Own<allotment::Tlsf>, Some("Tlsf"), true, HUGE;
    "tlsf16": Own<allotment::Tlsf16>, Some("Tlsf16"), true, SMALL;
    "tiered": Own<allotment::Tiered>, Some("Tiered"), true, HUGE;
    "first-fit": Own<allotment::FirstFit>, Some("FirstFit"), true, HUGE;
    "first-fit-16": Own<allotment::FirstFit<allotment::meta::InBand<u16>>>, Some("FirstFit<InBand<u16>>"), true, SMALL;
    "best-fit": Own<allotment::BestFit>, Some("BestFit"), true, HUGE;
    "best-fit-16": Own<allotment::BestFit<allotment::meta::InBand<u16>>>, Some("BestFit<InBand<u16>>"), true, SMALL;
    "buddy": Own<allotment::Buddy>, Some("Buddy"), true, HUGE;
    "slab": Own<allotment::Slab>, Some("Slab"), true, HUGE;
    "bump": Own<allotment::Bump>, Some("Bump"), false, HUGE;
    "linked-list": Own<allotment::LinkedList>, Some("LinkedList"), false, HUGE;
    "buddy-system": Own<allotment::BuddySystem>, Some("BuddySystem"), false, HUGE;
    "talc": Talc, None, false, HUGE;
    "rlsf": Rlsf, None, false, 512 << 20;
}

/// Returns the entry of a placement.
pub fn entry(id: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.id == id)
}
