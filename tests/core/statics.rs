//! What can be a static takes no room in flash: values that hold nothing yet are all zero, so they lie in `.bss`.
//!
//! A pointer cannot be zero. So what has one in it lies in `.data` as a whole: `heap!`, a clock that is no type or not set later, a sink, a list of zones. So do `Tiered` and
//! `QuickLists`, the placements of hosts, whose lists end with an address for speed.

use allotment::cores::{Cores, PerCore};
use allotment::fixed::FixedPool;
use allotment::harden::Full;
use allotment::inject::{Failing, FailureRule};
use allotment::lock::{Counted, Spin};
use allotment::observe::{Clock, Counters, Leaks, Profile, Tags, Trace};
use allotment::placement::MicroTlsf;
use allotment::plan::{RecordedPlan, Recorder};
use allotment::pressure::{PressureHeap, Purgeable};
use allotment::region::StaticRegion;
use allotment::{BestFit, Bounded, Buddy, Bump, FirstFit, Slab, Tlsf, Tlsf16};
use allotment::{
    Heap, Kept, Memory, Observed, PlannedHeap, RegionError, Sampled, Sealable, Timed, TinyBump, TinyHeap,
};
use std::alloc::Layout;
use std::cell::UnsafeCell;

/// A static may have this many bytes and lie in `.data`.
const FEW: usize = 300;

unsafe extern "C" {
    /// The beginning and the end of `.bss`, where the linker puts what is all zero.
    static __bss_start: u8;
    static _end: u8;
}

/// A static of any type, of which the test uses nothing but the place.
#[repr(transparent)]
struct Placed<T>(UnsafeCell<T>);
// SAFETY: nothing is shared but the address.
unsafe impl<T> Sync for Placed<T> {}

struct Never;

impl FailureRule for Never {
    fn refuses(&self, _: usize, _: Layout, _: Option<&'static str>) -> bool {
        false
    }
}

macro_rules! statics {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(static $name: Placed<$type> = Placed(UnsafeCell::new($value));)*

        /// Name, address and size of each.
        fn all() -> Vec<(&'static str, usize, usize)> {
            vec![$((stringify!($type), (&raw const $name).addr(), size_of::<$type>())),*]
        }
    };
}

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> u64 {
        0
    }
}

struct OneCore;

// SAFETY: nothing is allocated.
unsafe impl Cores for OneCore {
    type Token = ();
    fn enter() -> (usize, ()) {
        (0, ())
    }
    unsafe fn leave((): ()) {}
}

statics! {
    TLSF: Heap<Tlsf, Spin> = Heap::empty();
    TLSF16: Heap<Tlsf16, Counted<Spin>> = Heap::empty();
    MICRO: Heap<MicroTlsf<16>, Spin> = Heap::empty();
    FIRST_FIT: Heap<FirstFit, Spin> = Heap::empty();
    BEST_FIT: Heap<BestFit, Spin> = Heap::empty();
    BUDDY: Heap<Buddy, Spin> = Heap::empty();
    SLAB: Heap<Slab, Spin> = Heap::empty();
    BUMP: Heap<Bump, Spin> = Heap::empty();
    FULL: Heap<Full<Tlsf>, Spin> = Heap::empty();
    PRESSURE: PressureHeap<Tlsf, Spin, 16> = PressureHeap::new(Heap::empty());
    OBSERVED: Observed<Heap<Tlsf, Spin>, (Profile, Leaks<256>, Trace<8192>, Tags<8, 64>), Spin> =
        Observed::new(Heap::empty(), (Profile::new(), Leaks::new(), Trace::new(), Tags::new()));
    BOUNDED: Bounded<Heap<Tlsf, Spin>, Spin> = Bounded::new(Heap::empty(), 0);
    PER_CORE: PerCore<Heap<Tlsf, Spin>, OneCore, Spin> = PerCore::new(Heap::empty());
    FAILING: Failing<Heap<Tlsf, Spin>, Never> = Failing::new(Heap::empty(), Never);
    TIMED: Timed<Heap<Tlsf, Spin>, Spin, Stopped> = Timed::new(Heap::empty(), Stopped);
    PLANNED: PlannedHeap<Heap<Tlsf, Spin>, 64, Spin> = PlannedHeap::new(Heap::empty());
    RECORDER: Recorder<64> = Recorder::new();
    PLAN: RecordedPlan<64> = RecordedPlan::EMPTY;
    TINY: TinyHeap<4096, Spin, Counters> = TinyHeap::new();
    TINY_BUMP: TinyBump<4096, Spin> = TinyBump::new();
    SEALABLE: Sealable<Heap<Tlsf, Spin>> = Sealable::new(Heap::empty());
    SAMPLED: Sampled<Heap<Tlsf, Spin>, Never, Spin> = Sampled::new(Heap::empty());
    PURGEABLE: Purgeable<Heap<Tlsf, Spin>, 64, (), Spin> = Purgeable::new(Heap::empty(), ());
    REGION: StaticRegion<4096> = StaticRegion::new();
    // These hold a number that the program chooses, and so must be small as a whole.
    KEPT: Kept<Heap<MicroTlsf, Spin>, 1, Spin> = Kept::new(Heap::empty(), 100, 200);
    BOUNDED_TINY: Bounded<Heap<MicroTlsf, Spin>, Spin> = Bounded::new(Heap::empty(), 1000);
    FIXED: FixedPool<[u8; 1024], 16> = FixedPool::new();
    FIXED_WORDS: FixedPool<u64, 100, 4> = FixedPool::new();
}

#[test]
fn statics_begin_as_zeros() {
    let zero = (&raw const __bss_start).addr()..(&raw const _end).addr();
    let mut wrong = Vec::new();
    for (name, address, size) in all() {
        if !zero.contains(&address) && size > FEW {
            wrong.push((name, size));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?} lie in .data");
}

/// Static memory goes to one heap, once, and as it is all zero, requests for zeroed memory clear nothing.
#[test]
fn static_memory_is_claimed_once() {
    static MEMORY: StaticRegion<8192> = StaticRegion::new();
    static HEAP: Heap<Tlsf, Spin> = Heap::empty();
    static OTHER: Heap<Buddy, Spin> = Heap::empty();
    HEAP.claim_static(&MEMORY).unwrap();
    assert_eq!(HEAP.claim_static(&MEMORY), Err(RegionError::Overlap));
    assert_eq!(OTHER.claim_static(&MEMORY), Err(RegionError::Overlap));
    assert_eq!(OTHER.region(0), None);
    let region = HEAP.region(0).unwrap();
    assert!(region.size == 8192 && region.start.addr().get() % 16 == 0);
    let layout = Layout::new::<[u64; 500]>();
    let block = Memory::allocate_zeroed(&HEAP, layout).unwrap();
    // SAFETY: the block is live.
    unsafe {
        assert!(block.cast::<[u64; 500]>().as_ref().iter().all(|&word| word == 0));
        HEAP.try_deallocate(block, layout).unwrap();
    }
}
