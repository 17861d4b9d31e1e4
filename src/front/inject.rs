//! Requests that fail on purpose, so that a program's handling of failures can be tested.
//!
//! ```
//! use allotment::inject::{Fail, Failing};
//! use allotment::{Heap, Memory, heap};
//! use core::alloc::Layout;
//!
//! // The fourth request and all later ones fail.
//! static HEAP: Failing<Heap, Fail> = Failing::new(heap!(64 * 1024), Fail::After(3));
//!
//! for _ in 0..3 {
//!     assert!(HEAP.try_allocate(Layout::new::<u64>()).is_ok());
//! }
//! assert!(HEAP.try_allocate(Layout::new::<u64>()).is_err());
//! assert_eq!((HEAP.requests(), HEAP.refusals()), (4, 1));
//! ```
//!
//! To try every single failure point of a piece of code, run it with [`Fail::Only`]`(0)`, `Fail::Only(1)` and so on, until a run makes
//! fewer requests than that ([`every_failure`]).

use crate::error::misuse::without_unwinding;
use crate::memory::{Done, Memory, allocate, allocator, global_alloc, pass_on};
use crate::observe::current_tag;
use crate::units::debug;
use core::alloc::Layout;
use core::ptr::NonNull;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// A rule that decides which requests fail: a [`Fail`], or a closure with the parameters of [`FailureRule::refuses`].
///
/// The rule runs before each request, and must not use the memory. If it panics, the program ends.
pub trait FailureRule {
    /// Returns whether a request should fail. `number` counts the requests before it since the last [`Failing::restart`]; the layout of a
    /// resize has the new size; `tag` is the current tag (see [`with_tag`](crate::observe)), if any.
    fn refuses(&self, number: usize, layout: Layout, tag: Option<&'static str>) -> bool;
}

impl<F: Fn(usize, Layout, Option<&'static str>) -> bool> FailureRule for F {
    fn refuses(&self, number: usize, layout: Layout, tag: Option<&'static str>) -> bool {
        self(number, layout, tag)
    }
}

/// Common rules that decide which requests fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "defmt", derive(defmt::Format))]
#[non_exhaustive]
pub enum Fail {
    /// The given number of requests succeed, and all later ones fail.
    After(usize),
    /// Only the request with this number, counted from 0, fails.
    Only(usize),
    /// Requests for more than this many bytes fail.
    LargerThan(usize),
    /// Requests with this tag fail.
    Tagged(&'static str),
    /// One request of `one_in` fails, on average. The same seed makes the same requests fail.
    Randomly {
        /// One request in this many fails; none if 0.
        one_in: u32,
        /// Seed of the sequence.
        seed: u64,
    },
}

impl FailureRule for Fail {
    fn refuses(&self, number: usize, layout: Layout, tag: Option<&'static str>) -> bool {
        match *self {
            Self::After(first) => number >= first,
            Self::Only(one) => number == one,
            Self::LargerThan(size) => layout.size() > size,
            Self::Tagged(refused) => tag == Some(refused),
            Self::Randomly { one_in, seed } => {
                // SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014).
                let mut mixed = seed.wrapping_add((number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
                mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
                mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
                one_in > 0 && (mixed ^ (mixed >> 31)) % u64::from(one_in) == 0
            }
        }
    }
}

/// Makes some of the requests to a memory fail. It wraps a [`Heap`](crate::Heap), any other front, or a reference to one.
///
/// A request that fails on purpose leaves the memory untouched, and looks to its caller like any failure: an error from fallible methods,
/// a null pointer from a global allocator. Resizing counts as a request. The cost is one more counter.
pub struct Failing<M, R> {
    memory: M,
    rule: R,
    /// Whether failures are switched off, so that a new value is all zero.
    off: AtomicBool,
    requests: AtomicUsize,
    refusals: AtomicUsize,
}

impl<M, R> Failing<M, R> {
    /// Wraps `memory`, and lets requests fail as `rule` says.
    pub const fn new(memory: M, rule: R) -> Self {
        let (requests, refusals) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { memory, rule, off: AtomicBool::new(false), requests, refusals }
    }

    /// Returns the wrapped memory. Direct requests to it are not counted and do not fail.
    pub const fn memory(&self) -> &M {
        &self.memory
    }

    /// Switches failures on or off. Requests are counted in both cases. They are on at first.
    pub fn switch(&self, on: bool) {
        self.off.store(!on, Ordering::Relaxed);
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

/// Adds one to a counter and returns its old value. Targets without atomic addition may miss requests of interrupts.
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

impl<M: Memory, R: FailureRule> Failing<M, R> {
    /// Counts a request, and returns the memory, or `None` if the request fails.
    fn admit(&self, layout: Layout) -> Option<&M> {
        let (number, tag) = (count(&self.requests), current_tag());
        if !self.off.load(Ordering::Relaxed) && without_unwinding(|| self.rule.refuses(number, layout, tag)) {
            count(&self.refusals);
            return None;
        }
        Some(&self.memory)
    }
}

// SAFETY: the wrapped memory fulfils the contract; a request that fails on purpose gets no block.
unsafe impl<M: Memory, R: FailureRule> Memory for Failing<M, R> {
    allocate!(self.memory; |self, layout, request| {
        self.admit(layout)?;
        request(layout)
    });

    unsafe fn try_resize(&self, block: NonNull<u8>, layout: Layout, size: usize) -> bool {
        let new = Layout::from_size_align(size, layout.align()).unwrap_or(layout);
        // SAFETY: the caller's contract.
        self.admit(new).is_some_and(|memory| unsafe { memory.try_resize(block, layout, size) })
    }

    unsafe fn change(&self, block: NonNull<u8>, old: Layout, new: Layout, done: Done) -> Option<NonNull<u8>> {
        // SAFETY: the caller's contract.
        unsafe { self.admit(new)?.change(block, old, new, done) }
    }

    pass_on!(
        |self| self.memory;
        deallocate, try_deallocate, check, statistics, largest_free, region, out_of_memory, add_reserve, remembers,
        locks
    );
}

global_alloc!([M: Memory, R: FailureRule] Failing<M, R>, through Failing::admit);
allocator!([M: Memory, R: FailureRule] Failing<M, R>);

debug!([M, R] Failing<M, R>, |self| requests: self.requests(), refusals: self.refusals());

/// Runs `f` once for each request that it makes, with a `memory` in which only that request fails, and a last time without failures.
/// Returns the number of failure points.
///
/// `f` must make the same requests in every run, up to the one that fails, and must free all blocks that it allocates.
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
pub fn every_failure<M: Memory>(memory: &M, mut f: impl FnMut(&Failing<&M, Fail>)) -> usize {
    let mut point = 0;
    loop {
        let failing = Failing::new(memory, Fail::Only(point));
        f(&failing);
        if failing.refusals() == 0 {
            return point;
        }
        point += 1;
    }
}
