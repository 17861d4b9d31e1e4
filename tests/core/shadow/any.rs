//! Heaps of any placement behind one type, so that what drives and checks them is compiled once and not per placement.

use super::{Front, Subject};
use allotment::lock::Unsync;
use allotment::observe::Statistics;
use allotment::{FreeError, Heap, OutOfMemory, Region, RegionError};
use std::alloc::Layout;
use std::ptr::NonNull;

/// What a [`Subject`] says about a placement, as values, and how to make a heap of it.
pub struct Case {
    /// Makes a heap that is prepared for a number of bytes.
    pub empty: fn(usize) -> Box<dyn AnyHeap>,
    /// Makes the same for the shadow allocator.
    pub front: fn(usize) -> Box<dyn Front>,
    pub taken: fn(usize, usize) -> usize,
    pub taken_otherwise: fn(usize, usize) -> usize,
    pub exact_largest: bool,
    pub sure_largest: bool,
    pub monotone: bool,
    pub lends: bool,
    pub reuses: bool,
    pub releases: bool,
    pub regions: usize,
    pub limit: usize,
    pub max_region: usize,
    pub slack: f64,
    pub general: bool,
    pub behind: usize,
    pub finds_double_frees: bool,
    pub trusts: bool,
}

impl Case {
    pub const fn of<P: Subject + 'static>() -> &'static Self {
        &Self {
            empty: boxed::<P>,
            front: boxed_front::<P>,
            taken: P::taken,
            taken_otherwise: P::taken_otherwise,
            exact_largest: P::EXACT_LARGEST,
            sure_largest: P::SURE_LARGEST,
            monotone: P::MONOTONE,
            lends: P::LENDS,
            reuses: P::REUSES,
            releases: P::RELEASES,
            regions: P::REGIONS,
            limit: P::LIMIT,
            max_region: P::MAX_REGION,
            slack: P::SLACK,
            general: P::GENERAL,
            behind: P::BEHIND,
            finds_double_frees: P::FINDS_DOUBLE_FREES,
            trusts: P::TRUSTS,
        }
    }
}

// Not closures and never inlined: else every part of the program that is compiled by itself gets a copy of the heap.
#[inline(never)]
fn boxed<P: Subject + 'static>(_: usize) -> Box<dyn AnyHeap> {
    Box::new(Heap::<P, Unsync>::empty())
}

#[inline(never)]
fn boxed_front<P: Subject + 'static>(_: usize) -> Box<dyn Front> {
    Box::new(Heap::<P, Unsync>::empty())
}

/// The `Allocator` trait, where the library has it.
#[cfg(feature = "allocator-api2")]
pub use allocator_api2::alloc::Allocator as Collections;

#[cfg(not(feature = "allocator-api2"))]
pub trait Collections {}
#[cfg(not(feature = "allocator-api2"))]
impl<P: Subject> Collections for Heap<P, Unsync> {}

/// The methods of a [`Heap`] of any placement; their contracts are those of the heap's methods.
#[allow(clippy::missing_safety_doc, reason = "they are the heap's")]
pub trait AnyHeap: Front + Collections {
    unsafe fn extend(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError>;
    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;
    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory>;
    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError>;
    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool;
    fn used(&self) -> usize;
    fn free(&self) -> usize;
    fn peak(&self) -> usize;
    fn region(&self, n: usize) -> Option<Region>;
    /// Requests a block of the placement, past the statistics. Returns its start and the bytes that it takes. Of a `zeroed` one
    /// those parts are cleared that the placement names.
    fn grant(&self, layout: Layout, zeroed: bool) -> Option<(NonNull<u8>, usize)>;
    /// Frees such a block. Returns the bytes that become available.
    unsafe fn take_back(&self, block: NonNull<u8>, layout: Layout) -> Result<usize, FreeError>;
}

impl<P: Subject> AnyHeap for Heap<P, Unsync> {
    unsafe fn extend(&self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        // SAFETY: the caller's contract.
        unsafe { self.extend(start, bytes) }
    }

    fn try_allocate(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate(layout)
    }

    fn try_allocate_zeroed(&self, layout: Layout) -> Result<NonNull<u8>, OutOfMemory> {
        self.try_allocate_zeroed(layout)
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.try_deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        // SAFETY: the caller's contract.
        unsafe { self.try_resize(block, layout, size) }
    }

    fn used(&self) -> usize {
        self.used()
    }

    fn free(&self) -> usize {
        self.free()
    }

    fn peak(&self) -> usize {
        self.peak()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.region(n)
    }

    fn grant(&self, layout: Layout, zeroed: bool) -> Option<(NonNull<u8>, usize)> {
        let mut used = Used::EMPTY;
        let allocate = |placement: &mut P| match zeroed {
            true => placement.allocate_zeroed(layout, &mut used),
            false => placement.allocate(layout, &mut used).map(|block| (block, 0, 0)),
        };
        // SAFETY: the heap is not used, and counts nothing; the parts lie in the block.
        unsafe {
            let (block, front, back) = self.with_placement(allocate)?;
            let size = (used.0 as usize).max(layout.size());
            block.write_bytes(0, front);
            block.add(size - back).write_bytes(0, back);
            Some((block, used.0 as usize))
        }
    }

    unsafe fn take_back(&self, block: NonNull<u8>, layout: Layout) -> Result<usize, FreeError> {
        let mut used = Used::EMPTY;
        // SAFETY: the caller's contract.
        unsafe { self.with_placement(|placement| placement.free(block, layout, &mut used)) }?;
        Ok(used.0.unsigned_abs())
    }
}

/// Counts the bytes of live blocks that a call adds.
struct Used(isize);

// SAFETY: nothing is called.
unsafe impl Statistics for Used {
    const EMPTY: Self = Self(0);
    fn allocated(&mut self, size: usize) {
        self.0 += size as isize;
    }
    fn freed(&mut self, size: usize) {
        self.0 -= size as isize;
    }
    fn resized(&mut self, old: usize, new: usize) {
        self.0 += new as isize - old as isize;
    }
    fn found(&mut self, size: usize) {
        self.0 += size as isize;
    }
    fn failed(&mut self, _: usize) {}
    fn grown(&mut self, _: usize) {}
    fn shrunk(&mut self, _: usize) {}
    fn reset(&mut self) {}
    fn free(&self) -> Option<usize> {
        None
    }
}
