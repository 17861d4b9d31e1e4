//! The ring: losses are always noticed.

use super::{layout, replay};
use allotment::Observed;
use allotment::lock::{Spin, Unsync};
use allotment::observe::event::{Action, Event, Header, Record, Records};
use allotment::observe::{Observation, Observer, Operation, Trace, with_tag};
use allotment::{Heap, Region, Tlsf, heap};
use std::alloc::{GlobalAlloc, Layout};
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

/// Return addresses of an allocation, the innermost first, as the size says which one it is.
fn callers(turn: usize) -> Vec<usize> {
    // Rarely and often the same, and with different lengths.
    let stack = if turn % 3 == 0 { turn / 3 % 7 } else { turn * 37 % 100 };
    (0..stack % 6).map(|call| 0x1000 + 2 * (stack >> call) + 0x100 * call + 1).collect()
}

/// Lets a trace observe allocations with callers, whose ring is read now and then, and returns what was read.
fn with_callers<const N: usize, const CALLERS: usize>(often: usize) -> Vec<u8> {
    let mut trace = Trace::<N, 2, CALLERS>::new();
    let mut bytes = Vec::new();
    for turn in 0..3000 {
        let block = 0x2000_0000 + turn * 16;
        let layout = Layout::from_size_align(turn + 1, 8).unwrap();
        let backtrace = &callers(turn);
        let allocate = Observation { operation: Operation::Allocate { block, layout }, tag: None, backtrace };
        let free = Observation { operation: Operation::Free { block, layout }, tag: None, backtrace: &[] };
        trace.observe(&allocate);
        trace.observe(&free);
        if turn % often == 0 {
            trace.drain(|part| bytes.extend(part));
        }
    }
    trace.drain(|part| bytes.extend(part));
    bytes
}

/// Checks that each allocation that was recorded has its own callers and each free none, and returns how many allocations and calls there are.
fn check_callers(bytes: &[u8], most: usize) -> (usize, usize) {
    let (mut nodes, mut next, mut allocations) = (vec![(0, 0)], 0, 0);
    for record in Records::new(bytes).unwrap().1 {
        match record.unwrap() {
            Record::Note { text } => match text.strip_prefix("^n ") {
                Some(node) => {
                    let words: Vec<&str> = node.split(' ').collect();
                    assert_eq!(words[1], "0", "the module is the firmware");
                    let call = usize::from_str_radix(words[2], 16).unwrap();
                    nodes.push((words[0].parse().unwrap(), call));
                    assert!(nodes.last().unwrap().0 < nodes.len() - 1, "a caller comes first");
                }
                None => next = text[1..].parse().unwrap(),
            },
            Record::Event(Event { action: Action::Allocate { size, .. }, .. }) => {
                let mut found = Vec::new();
                while next > 0 {
                    found.push(nodes[next].1 + 1);
                    next = nodes[next].0;
                }
                let mut expected = callers(size as usize - 1);
                expected.truncate(most);
                assert_eq!(found, expected, "allocation {size}");
                allocations += 1;
            }
            Record::Event(_) => assert_eq!(next, 0, "a free has no callers"),
            Record::Lost { .. } => {}
            Record::Name { .. } => panic!("there is no tag"),
        }
    }
    (allocations, nodes.len() - 1)
}

#[test]
fn events_have_their_callers() {
    let bytes = with_callers::<4096, 4>(1);
    let (allocations, calls) = check_callers(&bytes, 4);
    assert_eq!(allocations, 3000);
    assert!((100..6000).contains(&calls), "{calls}: what is known is not recorded again");
    // A ring that is full loses events with their stacks, and no other event gets one of these.
    let (allocations, _) = check_callers(&with_callers::<200, 4>(7), 4);
    assert!((300..2900).contains(&allocations), "{allocations}");
    assert_eq!(check_callers(&with_callers::<4096, 1>(1), 1).0, 3000);
    // Those who do not ask for callers pay nothing.
    let without = with_callers::<4096, 0>(1);
    assert!(Records::new(&without).unwrap().1.all(|record| matches!(record.unwrap(), Record::Event(_))));
    assert_eq!(size_of::<Trace<128, 2, 1>>() - size_of::<Trace<128, 2>>(), 64);
}
