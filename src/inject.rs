//! Requests that fail on purpose, so that a program's handling of failures can be tested.
//!
//! ```
//! use allotment::inject::{After, Failing};
//! use allotment::{Heap, Memory, heap};
//! use core::alloc::Layout;
//!
//! // The fourth request fails, and all that follow.
//! static HEAP: Failing<Heap, After> = Failing::new(heap!(64 * 1024), After(3));
//!
//! for _ in 0..3 {
//!     assert!(HEAP.try_allocate(Layout::new::<u64>()).is_ok());
//! }
//! assert!(HEAP.try_allocate(Layout::new::<u64>()).is_err());
//! assert_eq!((HEAP.requests(), HEAP.refusals()), (4, 1));
//! ```
//!
//! To try every single failure point of a piece of code, run it with [`Only`]`(0)`, `Only(1)` and so on, until a run makes
//! fewer requests than that ([`every_failure`]).

use crate::memory::{Memory, allocator, refused};
use crate::meta::FreeError;
use crate::observe::{Stats, current_tag};
use crate::out_of_memory::OutOfMemory;
use crate::region::Region;
use core::alloc::{GlobalAlloc, Layout};
use core::fmt;
use core::ptr::{self, NonNull};
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A request, as a [`Rule`] sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Request {
    /// Its number: how many requests there were before it since the last [`Failing::restart`].
    pub number: usize,
    /// What is requested; for a resize, the new size.
    pub layout: Layout,
    /// The tag that applies (see [`with_tag`](crate::observe)), if any.
    pub tag: Option<&'static str>,
}

#[cfg(feature = "defmt")]
impl defmt::Format for Request {
    fn format(&self, fmt: defmt::Formatter<'_>) {
        let (size, align) = (self.layout.size(), self.layout.align());
        defmt::write!(
            fmt,
            "Request {{ number: {=usize}, size: {=usize}, align: {=usize}, tag: {=?} }}",
            self.number,
            size,
            align,
            self.tag
        );
    }
}

/// Decides which requests fail. Every `Fn(&Request) -> bool` is a rule.
pub trait Rule {
    /// Returns whether the request fails. It is called inside the allocator and must not allocate.
    fn refuses(&self, request: &Request) -> bool;
}

impl<F: Fn(&Request) -> bool> Rule for F {
    fn refuses(&self, request: &Request) -> bool {
        self(request)
    }
}

/// The first requests succeed, as many as the number says, and all others fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct After(pub usize);

impl Rule for After {
    fn refuses(&self, request: &Request) -> bool {
        request.number >= self.0
    }
}

/// Only the request with this number fails; the first one has number 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Only(pub usize);

impl Rule for Only {
    fn refuses(&self, request: &Request) -> bool {
        request.number == self.0
    }
}

/// Requests for more bytes than this fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct LargerThan(pub usize);

impl Rule for LargerThan {
    fn refuses(&self, request: &Request) -> bool {
        request.layout.size() > self.0
    }
}

/// Requests with this tag fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Tagged(pub &'static str);

impl Rule for Tagged {
    fn refuses(&self, request: &Request) -> bool {
        request.tag == Some(self.0)
    }
}

/// One request of `one_in` fails, on average. The same seed makes the same requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
pub struct Randomly {
    /// How many requests there are for each that fails; 0 for no failures.
    pub one_in: u32,
    /// Where the sequence starts.
    pub seed: u64,
}

impl Rule for Randomly {
    fn refuses(&self, request: &Request) -> bool {
        // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
        let mut mixed = self.seed.wrapping_add((request.number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        self.one_in > 0 && (mixed ^ (mixed >> 31)) % u64::from(self.one_in) == 0
    }
}

/// Memory some of whose requests fail. It wraps a [`Heap`](crate::Heap), any other front, or a reference to one.
///
/// A request that fails leaves the memory untouched, and looks to its caller like any other: an error from fallible
/// methods, a null pointer from a global allocator. Resizing counts as a request. The cost is one more counter.
pub struct Failing<M, R> {
    memory: M,
    rule: R,
    on: AtomicBool,
    requests: AtomicUsize,
    refusals: AtomicUsize,
}

impl<M, R> Failing<M, R> {
    /// Wraps `memory`. Requests fail as `rule` says.
    pub const fn new(memory: M, rule: R) -> Self {
        let (requests, refusals) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { memory, rule, on: AtomicBool::new(true), requests, refusals }
    }

    /// Returns the wrapped memory. Requests to it directly are not counted and do not fail.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Switches failures on or off. Requests are counted in both cases. They are on at first.
    pub fn switch(&self, on: bool) {
        self.on.store(on, Ordering::Relaxed);
    }

    /// Starts counting from zero again.
    pub fn restart(&self) {
        self.requests.store(0, Ordering::Relaxed);
        self.refusals.store(0, Ordering::Relaxed);
    }

    /// Returns the number of requests since the last [`Failing::restart`].
    pub fn requests(&self) -> usize {
        self.requests.load(Ordering::Relaxed)
    }

    /// Returns the number of requests that failed on purpose since the last [`Failing::restart`].
    pub fn refusals(&self) -> usize {
        self.refusals.load(Ordering::Relaxed)
    }
}

/// Adds one to a counter and returns what it was. Targets without atomic addition may miss requests of interrupts.
fn count(counter: &AtomicUsize) -> usize {
    #[cfg(target_has_atomic = "ptr")]
    return counter.fetch_add(1, Ordering::Relaxed);
    #[cfg(not(target_has_atomic = "ptr"))]
    {
        let before = counter.load(Ordering::Relaxed);
        counter.store(before.wrapping_add(1), Ordering::Relaxed);
        before
    }
}

impl<M: Memory, R: Rule> Failing<M, R> {
    /// Counts a request, and returns whether it fails.
    fn fails(&self, layout: Layout) -> bool {
        let request = Request { number: count(&self.requests), layout, tag: current_tag() };
        let fails = self.on.load(Ordering::Relaxed) && self.rule.refuses(&request);
        if fails {
            count(&self.refusals);
        }
        fails
    }
}

// SAFETY: the wrapped memory fulfils the contract; a request that fails has no block.
unsafe impl<M: Memory, R: Rule> Memory for Failing<M, R> {
    fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.fails(layout) { None } else { self.memory.allocate(layout) }
    }

    fn allocate_zeroed(&self, layout: Layout) -> Option<NonNull<u8>> {
        if self.fails(layout) { None } else { self.memory.allocate_zeroed(layout) }
    }

    unsafe fn try_deallocate(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        // SAFETY: the caller's contract.
        unsafe { self.memory.try_deallocate(block, layout) }
    }

    unsafe fn deallocate(&self, block: NonNull<u8>, layout: Layout) {
        // SAFETY: the caller's contract.
        unsafe { self.memory.deallocate(block, layout) }
    }

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let new = Layout::from_size_align(size, layout.align()).unwrap_or(layout);
        // SAFETY: the caller's contract.
        !self.fails(new) && unsafe { self.memory.try_resize(block, layout, size) }
    }

    unsafe fn change(
        &self,
        block: NonNull<u8>,
        old: Layout,
        new: Layout,
        done: &mut dyn FnMut(NonNull<u8>),
    ) -> Option<NonNull<u8>> {
        if self.fails(new) {
            return None;
        }
        // SAFETY: the caller's contract.
        unsafe { self.memory.change(block, old, new, done) }
    }

    fn check(&self, block: NonNull<u8>, layout: Layout) -> Result<(), FreeError> {
        self.memory.check(block, layout)
    }

    fn statistics(&self) -> Option<Stats> {
        self.memory.statistics()
    }

    fn largest_free(&self) -> usize {
        self.memory.largest_free()
    }

    fn region(&self, n: usize) -> Option<Region> {
        self.memory.region(n)
    }

    fn out_of_memory(&self, layout: Layout) -> OutOfMemory {
        self.memory.out_of_memory(layout)
    }

    unsafe fn take_reserve(&self, region: Region) -> bool {
        // SAFETY: passed on.
        unsafe { self.memory.take_reserve(region) }
    }
}

// SAFETY: the wrapped memory fulfils the contract.
unsafe impl<M: Memory, R: Rule> GlobalAlloc for Failing<M, R> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if self.fails(layout) {
            return ptr::null_mut();
        }
        let request = || self.memory.try_allocate(layout).ok();
        request().map_or_else(|| refused(&self.memory, layout, request), NonNull::as_ptr)
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if self.fails(layout) {
            return ptr::null_mut();
        }
        let request = || self.memory.try_allocate_zeroed(layout).ok();
        request().map_or_else(|| refused(&self.memory, layout, request), NonNull::as_ptr)
    }

    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: the caller passes a live block, which is not null.
        unsafe { self.memory.deallocate(NonNull::new_unchecked(block), layout) }
    }

    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller passes a live block, which is not null, and a new size that makes a valid layout.
        unsafe {
            let new = Layout::from_size_align_unchecked(size, layout.align());
            if self.fails(new) {
                return ptr::null_mut();
            }
            let change = || self.memory.change(NonNull::new_unchecked(block), layout, new, &mut |_| ());
            change().map_or_else(|| refused(&self.memory, new, change), NonNull::as_ptr)
        }
    }
}

allocator!([M: Memory, R: Rule] Failing<M, R>);

impl<M, R> fmt::Debug for Failing<M, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (requests, refusals) = (self.requests(), self.refusals());
        f.debug_struct("Failing")
            .field("requests", &requests)
            .field("refusals", &refusals)
            .finish_non_exhaustive()
    }
}

/// Runs `f` once for each request that it makes, with a `memory` that lets only this one fail, and a last time without a
/// failure. Returns the number of failure points.
///
/// `f` has to make the same requests in every run, up to the one that fails, and to free what it allocates.
///
/// ```
/// use allotment::inject::every_failure;
/// use allotment::{Heap, Memory, heap};
/// use core::alloc::Layout;
///
/// let heap: Heap = heap!(16 * 1024);
/// let points = every_failure(&heap, |memory| {
///     let (small, large) = (Layout::new::<u64>(), Layout::new::<[u64; 100]>());
///     let Ok(first) = memory.try_allocate(small) else { return };
///     let second = memory.try_allocate(large);
///     // SAFETY: both blocks are live and freed once.
///     unsafe {
///         memory.deallocate(first, small);
///         if let Ok(second) = second {
///             memory.deallocate(second, large);
///         }
///     }
/// });
/// assert_eq!((points, heap.used()), (2, 0));
/// ```
pub fn every_failure<M: Memory>(memory: &M, mut f: impl FnMut(&Failing<&M, Only>)) -> usize {
    let mut point = 0;
    loop {
        let failing = Failing::new(memory, Only(point));
        f(&failing);
        if failing.refusals() == 0 {
            return point;
        }
        point += 1;
    }
}
