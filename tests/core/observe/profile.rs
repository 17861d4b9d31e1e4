//! Counts, the histogram, and fragmentation.

use super::layout;
use allotment::Observed;
use allotment::lock::Unsync;
use allotment::observe::{NoStatistics, Profile};
use allotment::{Heap, Region, Tlsf};
use std::alloc::GlobalAlloc;
use std::ptr::NonNull;

#[test]
fn everything_is_counted() {
    let mut memory = vec![0u128; 1000];
    let observed = Observed::<Heap<Tlsf, Unsync>, Profile, Unsync>::new(Heap::empty(), Profile::new());
    // SAFETY: the memory outlives the heap; blocks are live and freed with their layouts.
    unsafe {
        let start = NonNull::from(memory.as_mut_slice()).cast();
        observed.memory().claim(Region::new(start, 16_000)).unwrap();
        let [a, b] = [64, 127].map(|size| observed.alloc(layout(size)));
        let a = observed.realloc(a, layout(64), 1024);
        let same = observed.realloc(a, layout(1024), 1020);
        assert_eq!(a, same);
        assert!(observed.alloc(layout(20_000)).is_null());
        assert!(observed.realloc(b, layout(127), 30_000).is_null());
        observed.dealloc(b, layout(127));
        let profile = observed.observers(|profile| *profile);
        assert_eq!((profile.live_blocks, profile.live_bytes), (1, 1020));
        assert_eq!((profile.allocations, profile.reallocations, profile.moves, profile.frees), (2, 2, 1, 1));
        assert_eq!((profile.failures, profile.largest_failure, profile.largest), (2, 30_000, 1024));
        assert_eq!((profile.total_bytes, profile.peak_bytes), (64 + 127 + 960, 1024 + 127));
        let classes: Vec<_> = profile.histogram().map(|(size, (live, total))| (size, live, total)).collect();
        assert_eq!(classes, [(64, 0, 2), (512, 1, 1), (1024, 0, 1)]);
        assert_eq!((profile.class(9).0, profile.class(64).0), (1, 0));
        observed.dealloc(a, layout(1020));
    }
}

#[test]
fn fragmentation_is_as_defined() {
    let mut memory = vec![0u128; 1000];
    let observed = Observed::<Heap<Tlsf, Unsync>, Profile, Unsync>::new(Heap::empty(), Profile::new());
    // SAFETY: the memory outlives the heap; blocks are live and freed with their layouts.
    unsafe {
        let start = NonNull::from(memory.as_mut_slice()).cast();
        observed.memory().claim(Region::new(start, 16_000)).unwrap();
        assert_eq!(observed.internal_fragmentation(), Some(0));
        let blocks: Vec<_> = (0..100).map(|_| observed.alloc(layout(33))).collect();
        for block in blocks.iter().step_by(2) {
            observed.dealloc(*block, layout(33));
        }
        let stats = observed.memory().stats();
        assert_eq!(stats.used, 50 * 40, "33 bytes take 40");
        let external = 1000 - 1000 * stats.largest_free / stats.free;
        let found = stats.fragmentation();
        assert_eq!(observed.internal_fragmentation(), Some(1000 - 33 * 1000 / 40));
        assert!(found.abs_diff(external as u32) <= 1 && found > 0, "{found}");
    }
    let uncounted = Heap::<Tlsf, Unsync, NoStatistics>::empty();
    assert_eq!(Observed::<_, Profile, Unsync>::new(uncounted, Profile::new()).internal_fragmentation(), None);
    let unprofiled = Heap::<Tlsf, Unsync>::empty();
    assert_eq!(Observed::<_, (), Unsync>::new(unprofiled, ()).internal_fragmentation(), None);
}
