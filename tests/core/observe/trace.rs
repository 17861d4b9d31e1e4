//! The ring: losses are always noticed.

use super::{layout, replay};
use allotment::Observed;
use allotment::lock::{Spin, Unsync};
use allotment::observe::event::{Action, Event, Header, Record, Records};
use allotment::observe::{Trace, with_tag};
use allotment::{Heap, Region, Tlsf, heap};
use std::alloc::GlobalAlloc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

type Traced<const N: usize> = Observed<Heap<Tlsf, Spin>, Trace<N, 2>, Unsync>;

/// Allocates and frees `count` blocks of rising sizes.
fn churn<const N: usize>(heap: &Traced<N>, count: usize) {
    for n in 0..count {
        // SAFETY: the block is live and this is its layout.
        unsafe {
            let block = heap.alloc(layout(n % 500 + 1));
            heap.dealloc(block, layout(n % 500 + 1));
        }
    }
}

fn drain<const N: usize>(heap: &Traced<N>, into: &mut Vec<u8>) {
    heap.observers(|trace| trace.drain(|part| into.extend(part)));
}

/// Counts the events of a trace, and those that were lost.
fn count(bytes: &[u8]) -> (u64, u64) {
    let (header, records) = Records::new(bytes).unwrap();
    assert_eq!(header, Header::HERE);
    records.map(Result::unwrap).fold((0, 0), |(events, lost), record| match record {
        Record::Event(_) => (events + 1, lost),
        Record::Lost { events: more } => (events, lost + more),
        _ => (events, lost),
    })
}

#[test]
fn a_full_ring_counts_what_it_loses() {
    let heap: Traced<256> = Observed::new(heap!(16 * 1024), Trace::new());
    let mut bytes = Vec::new();
    churn(&heap, 20);
    drain(&heap, &mut bytes);
    assert_eq!(count(&bytes), (40, 0));
    churn(&heap, 1000);
    let lost = heap.observers(|trace| trace.lost());
    assert!((1800..2000).contains(&lost), "{lost}");
    drain(&heap, &mut bytes);
    assert_eq!(count(&bytes), (2040 - lost, lost), "the loss is recorded when the ring is read");
    churn(&heap, 10);
    drain(&heap, &mut bytes);
    assert_eq!(count(&bytes), (2060 - lost, lost));
    // The count of lost events is recorded between the others.
    let records: Vec<_> = Records::new(&bytes).unwrap().1.map(Result::unwrap).collect();
    let at = records.iter().position(|record| matches!(record, Record::Lost { .. })).unwrap();
    let behind = records[at..].iter().filter(|record| matches!(record, Record::Event(_))).count();
    assert_eq!(behind, 20);
}

#[test]
fn a_trace_is_read_in_parts() {
    let heap: Traced<4096> = Observed::new(heap!(16 * 1024), Trace::new());
    let (mut whole, mut out) = (Vec::new(), [0; 7]);
    for _ in 0..5 {
        churn(&heap, 100);
        loop {
            let size = heap.observers(|trace| trace.read(&mut out));
            whole.extend(&out[..size]);
            if size < out.len() {
                break;
            }
        }
    }
    assert_eq!(count(&whole), (1000, 0));
    assert!(replay(&whole).is_empty());
    assert_eq!(heap.observers(|trace| trace.read(&mut out)), 0);
}

#[test]
fn a_sink_loses_nothing() {
    static TAKEN: Mutex<Vec<u8>> = Mutex::new(Vec::new());
    fn take(bytes: &[u8]) {
        TAKEN.lock().unwrap().extend(bytes);
    }
    // Records of all lengths.
    static NOW: AtomicU64 = AtomicU64::new(0);
    fn clock() -> u64 {
        NOW.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |now| Some(now.wrapping_mul(5) + 1)).unwrap()
    }
    #[cfg(not(feature = "std"))]
    let _core = super::tags::ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let heap: Traced<128> = Observed::new(heap!(16 * 1024), Trace::new().sink(take).clock(clock));
    churn(&heap, 250);
    for label in ["a label of no more than 32 bytes", "another of them", "more labels"] {
        with_tag(label, || churn(&heap, 250));
    }
    heap.observers(|trace| {
        trace.flush();
        assert_eq!(trace.lost(), 0);
    });
    assert_eq!(count(&TAKEN.lock().unwrap()), (2000, 0));
    assert!(replay(&TAKEN.lock().unwrap()).is_empty());
    // Write the longest records at every fill level of the ring.
    for before in 0..40 {
        let mut memory = vec![0u128; 1000];
        let heap: Traced<128> = Observed::new(Heap::empty(), Trace::new().clock(clock));
        heap.observers(|trace| trace.set_sink(|_| ()));
        // SAFETY: the memory outlives the heap.
        unsafe { heap.memory().claim(Region::new(memory.as_mut_ptr(), 16_000)) }.unwrap();
        churn(&heap, before);
        with_tag("a label of no more than 32 bytes", || churn(&heap, 1));
        assert_eq!(heap.observers(|trace| trace.lost()), 0, "after {before}");
    }
}

#[test]
fn events_have_times_and_tags() {
    static NOW: AtomicU64 = AtomicU64::new(1000);
    fn clock() -> u64 {
        NOW.fetch_add(10, Ordering::Relaxed)
    }
    #[cfg(not(feature = "std"))]
    let _core = super::tags::ONE_CORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let heap: Traced<4096> = Observed::new(heap!(16 * 1024), Trace::new());
    heap.observers(|trace| trace.set_clock(clock));
    let long = "a label that has rather more bytes than are recorded";
    let mut blocks = Vec::new();
    // SAFETY: blocks are live and freed with their layouts.
    unsafe {
        for label in ["net", long, "third", "net", "fourth"] {
            blocks.push(with_tag(label, || heap.alloc(layout(40))));
        }
        blocks.push(heap.alloc(layout(40)));
        assert!(heap.alloc(layout(100_000)).is_null());
        for &block in &blocks {
            heap.dealloc(block, layout(40));
        }
    }
    let mut bytes = Vec::new();
    drain(&heap, &mut bytes);
    let records: Vec<_> = Records::new(&bytes).unwrap().1.map(Result::unwrap).collect();
    let names = records.iter().filter_map(|record| match *record {
        Record::Name { tag, name } => Some((tag, name)),
        _ => None,
    });
    let names: Vec<_> = names.collect();
    assert_eq!(names, [(1, "net"), (2, &long[..32]), (3, "other tags")]);
    let events = records.iter().filter_map(|record| match *record {
        Record::Event(event) => Some(event),
        _ => None,
    });
    let events: Vec<Event> = events.collect();
    let times: Vec<_> = events.iter().map(|event| event.time.unwrap()).collect();
    assert!(times.iter().copied().eq((1000..).step_by(10).take(13)), "{times:?}");
    let tags: Vec<_> = events.iter().map(|event| event.tag).collect();
    assert_eq!(tags, [1, 2, 3, 1, 3, 0, 0, 0, 0, 0, 0, 0, 0]);
    assert_eq!(events[6].action, Action::Fail { size: 100_000, align: 8 });
}
