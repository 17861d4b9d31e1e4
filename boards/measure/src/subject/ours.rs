//! allotment's heaps.

use allotment::observe::Statistics;
use allotment::placement::Placement;
use allotment::{Heap, Region};
use core::ptr::NonNull;

use super::Subject;
use super::lock::Alone;

/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "tlsf16")]
pub type Chosen = Heap<allotment::Tlsf16, Alone>;
/// The chosen heap, with all defaults.
#[cfg(feature = "heap")]
pub type Chosen = Heap<allotment::placement::Default, Alone>;
/// The same with sampled guards of the memory protection unit.
#[cfg(feature = "heap-sampled")]
pub type Chosen =
    allotment::Sampled<Heap<allotment::placement::Default, Alone>, allotment::sampled::ArmV7Mpu, Alone>;
/// The same with a block kept that is longer than all that the programs request.
#[cfg(feature = "heap-kept")]
pub type Chosen = allotment::Kept<Heap<allotment::placement::Default, Alone>, 1, Alone>;
/// The same behind caches for each core, of which there is one.
#[cfg(feature = "per-core")]
pub type Chosen = allotment::cores::PerCore<Heap<allotment::placement::Default, Alone>, One, Alone, 1>;
/// The same with the checks of level `Basic`.
#[cfg(feature = "heap-basic")]
pub type Chosen = Heap<allotment::placement::MicroTlsf<4, true>, Alone>;
/// The same at level `Full`.
#[cfg(feature = "heap-full")]
pub type Chosen = Heap<allotment::harden::Full<allotment::placement::MicroTlsf>, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "tlsf")]
pub type Chosen = Heap<allotment::Tlsf, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "first-fit")]
pub type Chosen = Heap<allotment::FirstFit, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "best-fit")]
pub type Chosen = Heap<allotment::BestFit, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "buddy")]
pub type Chosen = Heap<allotment::Buddy, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "slab")]
pub type Chosen = Heap<allotment::Slab, Alone>;
/// The chosen heap, as users register it but for the lock.
#[cfg(feature = "allotment-bump")]
pub type Chosen = Heap<allotment::Bump, Alone>;

/// Gives a heap its memory.
///
/// # Safety
///
/// The contract of [`Subject::add_memory`].
unsafe fn claim<P: Placement, S: Statistics>(heap: &Heap<P, Alone, S>, start: *mut u8, size: usize) {
    // SAFETY: the caller's contract.
    let claimed = NonNull::new(start).map(|start| unsafe { heap.claim(Region::new(start, size)) });
    assert!(claimed.is_some_and(|claimed| claimed.is_ok()));
}

impl<P: Placement, S: Statistics> Subject for Heap<P, Alone, S> {
    const EMPTY: Self = Self::empty();

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away.
        unsafe { claim(self, start, size) }
    }
}

#[cfg(feature = "heap-sampled")]
impl Subject for Chosen {
    const EMPTY: Self = Self::new(Heap::empty());

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        use allotment::sampled::{ArmV7Mpu, Protection};

        // What was watched in the memory's life before.
        <ArmV7Mpu as Protection>::clear();
        // SAFETY: the caller gives the memory away.
        unsafe { claim(self.memory(), start, size) }
        self.start(1);
    }
}

/// The core that the programs run on, whose guard is like the lock.
#[cfg(feature = "per-core")]
pub struct One;

// SAFETY: the programs have one thread and no interrupts, so the guard has nothing to keep away.
#[cfg(feature = "per-core")]
unsafe impl allotment::cores::Cores for One {
    type Token = <Alone as allotment::lock::Lock>::Token;

    #[inline(always)]
    fn enter() -> (usize, Self::Token) {
        (0, allotment::lock::Lock::acquire(&Alone))
    }

    #[inline(always)]
    unsafe fn leave(token: Self::Token) {
        // SAFETY: the token is that of `enter`.
        unsafe { allotment::lock::Lock::release(&Alone, token) }
    }
}

#[cfg(feature = "per-core")]
impl Subject for Chosen {
    const EMPTY: Self = Self::new(Heap::empty());

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away.
        unsafe { claim(self.memory(), start, size) }
    }
}

#[cfg(feature = "heap-kept")]
impl Subject for Chosen {
    const EMPTY: Self = Self::new(Heap::empty(), 4200, 4200);

    unsafe fn add_memory(&mut self, start: *mut u8, size: usize) {
        // SAFETY: the caller gives the memory away.
        unsafe { claim(self.memory(), start, size) }
    }

    fn warm_up(&mut self) {
        use allotment::Memory;
        use core::alloc::Layout;

        let layout = Layout::new::<u64>();
        // SAFETY: the block is live, has this layout, and is not used afterwards.
        let freed = self.try_allocate(layout).map(|block| unsafe { self.deallocate(block, layout) });
        assert!(freed.is_ok());
    }
}
