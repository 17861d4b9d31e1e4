//! Static memory for heaps, as [`heap!`](crate::heap) creates it.

use super::Region;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};

/// Size of the largest static heap in bytes: 1 GiB, or a quarter of a smaller address space. Code for 64-bit hosts can only address
/// statics within 2 GiB, which the program's other statics share.
const MAX_STATIC: usize = if usize::BITS > 32 { 1 << 30 } else { usize::MAX / 4 + 1 };

/// Static memory of `N` bytes for one heap. [`heap!`](crate::heap!) creates it; a program can also create one for
/// [`Heap::claim_static`](crate::Heap::claim_static).
///
/// It is all zero, so it lies in `.bss` and takes no space in the program's image. It is aligned to 16 bytes, and only one heap can claim
/// it.
#[repr(C, align(16))]
pub struct StaticRegion<const N: usize> {
    memory: UnsafeCell<[u8; N]>,
    flag: StaticFlag,
}

/// A record of whether a heap has claimed a piece of static memory, and whether the memory may hold anything but zeros.
///
/// The flag itself lies in `.bss`, even if the memory is in a section that start-up code does not initialise.
#[doc(hidden)]
pub struct StaticFlag {
    taken: Taken,
    dirty: bool,
}

impl StaticFlag {
    /// The flag of memory in a section whose contents are unknown. Each use of the constant creates a separate flag.
    #[allow(clippy::declare_interior_mutable_const, reason = "it is how such a static starts")]
    pub const DIRTY: Self = Self { taken: Taken::new(), dirty: true };
}

// SAFETY: `Taken` ensures that only one heap gets the memory; from then on only that heap uses it.
unsafe impl<const N: usize> Sync for StaticRegion<N> {}

#[allow(clippy::new_without_default, reason = "such memory is only ever a static")]
impl<const N: usize> StaticRegion<N> {
    /// Creates zeroed memory that no heap has claimed yet.
    pub const fn new() -> Self {
        const { assert!(N > 0, "a heap needs memory") }
        const {
            assert!(
                N <= MAX_STATIC,
                "a static heap may have at most 1 GiB: more does not link. Take the memory when the program starts, \
                 with `Heap::empty()` and `claim`"
            );
        }
        Self { memory: UnsafeCell::new([0; N]), flag: StaticFlag { taken: Taken::new(), dirty: false } }
    }

    /// Returns a claim to the memory. Of the heaps that share a flag, the first to use its claim gets the memory. Without `flag`, the
    /// claim uses the region's flag, which lies in the same section as the memory.
    pub(crate) const fn pending(&'static self, flag: Option<&'static StaticFlag>) -> Pending {
        let flag = match flag {
            Some(flag) => flag,
            None => &self.flag,
        };
        Pending {
            start: self.memory.get().cast(),
            end: self.memory.get().cast::<u8>().wrapping_add(N),
            flag: Some(flag),
        }
    }
}

/// A flag that can be raised once.
#[cfg(target_has_atomic = "8")]
struct Taken(core::sync::atomic::AtomicBool);

#[cfg(target_has_atomic = "8")]
impl Taken {
    const fn new() -> Self {
        Self(core::sync::atomic::AtomicBool::new(false))
    }

    /// Raises the flag and returns true if it was not raised before.
    fn raise(&self) -> bool {
        // Relaxed is enough: the flag publishes no other data.
        !self.0.swap(true, core::sync::atomic::Ordering::Relaxed)
    }
}

/// A flag that can be raised once, on targets without atomic swaps.
#[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
struct Taken(core::cell::UnsafeCell<bool>);

#[cfg(all(not(target_has_atomic = "8"), feature = "critical-section"))]
impl Taken {
    const fn new() -> Self {
        Self(core::cell::UnsafeCell::new(false))
    }

    fn raise(&self) -> bool {
        // SAFETY: the flag is only accessed in this critical section.
        critical_section::with(|_| !unsafe { self.0.get().replace(true) })
    }
}

#[cfg(all(not(target_has_atomic = "8"), not(feature = "critical-section")))]
use Splitter as Taken;

/// A flag that can be raised once, on targets with neither atomic swaps nor critical sections. Among calls that interrupt one another,
/// exactly one returns true; among concurrent calls on several cores, at most one.
///
/// After Lamport, "A fast mutual exclusion algorithm" (ACM TOCS 1987).
#[cfg(any(test, all(not(target_has_atomic = "8"), not(feature = "critical-section"))))]
struct Splitter {
    last: core::sync::atomic::AtomicPtr<u8>,
    raised: core::sync::atomic::AtomicBool,
}

#[cfg(any(test, all(not(target_has_atomic = "8"), not(feature = "critical-section"))))]
impl Splitter {
    const fn new() -> Self {
        use core::sync::atomic::{AtomicBool, AtomicPtr};
        Self { last: AtomicPtr::new(ptr::null_mut()), raised: AtomicBool::new(false) }
    }

    fn raise(&self) -> bool {
        // Its address is unique among the calls in progress.
        let mut own = 0;
        self.steps(&raw mut own, || ())
    }

    /// Raises the flag for `own`, and calls `between` between any two steps.
    #[inline(always)]
    fn steps(&self, own: *mut u8, mut between: impl FnMut()) -> bool {
        use core::sync::atomic::Ordering::SeqCst;
        if self.raised.load(SeqCst) {
            return false;
        }
        between();
        self.last.store(own, SeqCst);
        between();
        if self.raised.load(SeqCst) {
            return false;
        }
        between();
        self.raised.store(true, SeqCst);
        between();
        self.last.load(SeqCst) == own
    }
}

/// Memory that a heap claims on first use.
pub(crate) struct Pending {
    start: *mut u8,
    end: *mut u8,
    /// The flag of a static region; `None` for linker symbols.
    flag: Option<&'static StaticFlag>,
}

// SAFETY: the value owns the memory behind its pointers; the flag is atomic, or only accessed in a critical section.
unsafe impl Send for Pending {}

impl Pending {
    pub(crate) const NONE: Self = Self { start: ptr::null_mut(), end: ptr::null_mut(), flag: None };

    pub(crate) const fn symbols(start: *mut u8, end: *mut u8) -> Self {
        Self { start, end, flag: None }
    }

    /// Returns whether there is certainly no memory to claim.
    #[inline(always)]
    pub(crate) fn is_none(&self) -> bool {
        self.start.is_null()
    }

    /// Claims the memory. Returns `None` if there is none, or if it is already claimed.
    pub(crate) fn take(&mut self) -> Option<Region> {
        let Self { start, end, flag } = core::mem::replace(self, Self::NONE);
        let size = end.addr().checked_sub(start.addr())?;
        let zeroed = flag.is_some_and(|flag| !flag.dirty);
        let region = Region { start: NonNull::new(start)?, size, zeroed };
        flag.is_none_or(|flag| flag.taken.raise()).then_some(region)
    }
}

#[cfg(test)]
mod tests {
    use super::Splitter;
    use std::sync::Barrier;
    use std::thread;

    /// Handlers may interrupt code, including other handlers, between any two steps: exactly one call returns true.
    #[test]
    fn one_of_all_that_interrupt_each_other_raises_the_flag() {
        /// Raises the flag, interrupted after `path[0]` steps by a call that is interrupted according to the rest of the path.
        fn raise(flag: &Splitter, path: &[usize], wins: &mut usize) {
            let (mut own, mut step) = (0, 0);
            let won = flag.steps(&raw mut own, || {
                if let [at, rest @ ..] = path {
                    if step == *at {
                        raise(flag, rest, wins);
                    }
                }
                step += 1;
            });
            *wins += usize::from(won);
        }
        for path in 0..5 * 5 * 5 {
            let (flag, mut wins) = (Splitter::new(), 0);
            raise(&flag, &[path % 5, path / 5 % 5, path / 25], &mut wins);
            assert_eq!(wins, 1, "{path}");
            assert!(!flag.raise());
        }
    }

    #[test]
    fn two_cores_never_both_raise_the_flag() {
        for _ in 0..500 {
            let (flag, start) = (Splitter::new(), Barrier::new(2));
            let raise = || {
                start.wait();
                flag.raise()
            };
            let won = thread::scope(|scope| {
                let other = scope.spawn(raise);
                [raise(), other.join().unwrap()]
            });
            assert_ne!(won, [true; 2]);
        }
    }
}
