//! The subjects, one of which is compiled in.

#[cfg(feature = "bump")]
#[path = "bump.rs"]
mod chosen;
#[cfg(feature = "_heap")]
#[path = "ours.rs"]
mod chosen;
#[cfg(any(feature = "tiny", feature = "tiny-bump"))]
#[path = "tiny.rs"]
mod chosen;
#[cfg(feature = "fixed-pool")]
#[path = "fixed_pool.rs"]
mod chosen;
#[cfg(feature = "linked-list")]
#[path = "linked_list.rs"]
mod chosen;
#[cfg(feature = "embedded-alloc")]
#[path = "embedded_alloc.rs"]
mod chosen;
#[cfg(feature = "rlsf")]
#[path = "rlsf.rs"]
mod chosen;
#[cfg(feature = "talc")]
#[path = "talc.rs"]
mod chosen;
#[cfg(feature = "buddy-system")]
#[path = "buddy_system.rs"]
mod chosen;

#[cfg(all(feature = "_ours", not(feature = "fixed-pool")))]
mod lock;

/// Critical sections that do nothing, for those that need some.
#[cfg(any(feature = "embedded-alloc", feature = "fixed-pool"))]
mod section {
    struct Nothing;

    critical_section::set_impl!(Nothing);

    // SAFETY: the programs have one thread and no interrupts, so there is nothing to exclude.
    unsafe impl critical_section::Impl for Nothing {
        unsafe fn acquire() {}
        unsafe fn release(_state: ()) {}
    }
}

pub use chosen::Chosen;

use core::alloc::GlobalAlloc;
use core::cell::UnsafeCell;

/// An allocator that can be measured.
pub trait Subject: GlobalAlloc {
    /// An allocator without memory.
    const EMPTY: Self;

    /// Gives the allocator its memory, once.
    ///
    /// # Safety
    ///
    /// The bytes must be valid for reads and writes, and nothing else may use them while the allocator exists.
    unsafe fn add_memory(&mut self, start: *mut u8, size: usize);

    /// Does whatever happens only at the first use, so that it is not counted.
    fn warm_up(&mut self) {}

    /// Whether blocks come from the value itself instead of the given memory.
    const OWN_MEMORY: bool = false;
}

/// Size of the largest arena that a subject is given. It determines the size of tables.
#[allow(dead_code, reason = "only for subjects with a table")]
const LARGEST_ARENA: usize = 64 * 1024;

/// Takes the place of a lock around an allocator that needs `&mut`. The programs have one thread and no interrupts,
/// so there is nothing to exclude.
#[allow(dead_code, reason = "only for subjects that bring no lock")]
pub struct Alone<A>(UnsafeCell<A>);

#[allow(dead_code, reason = "only for subjects that bring no lock")]
impl<A> Alone<A> {
    const fn new(allocator: A) -> Self {
        Self(UnsafeCell::new(allocator))
    }

    /// Returns the allocator.
    ///
    /// # Safety
    ///
    /// The reference must be gone before the next call.
    #[allow(clippy::mut_from_ref, reason = "a lock's guard does the same")]
    #[inline(always)]
    unsafe fn get(&self) -> &mut A {
        // SAFETY: the caller guarantees that this is the only reference.
        unsafe { &mut *self.0.get() }
    }
}
