//! An observed heap as the global allocator of this test program: observers that allocate, and backtraces.
#![cfg(feature = "std")]

use allotment::Observed;
use allotment::observe::event::{Action, Header, Record, Records};
use allotment::observe::{Leaks, Observation, Observer, Profile, TraceWriter, with_tag};
use allotment::{Heap, Tlsf, heap, lock::Spin};
use std::collections::{BTreeMap, HashMap};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// An observer that allocates for every observation.
struct Greedy(Vec<String>);

impl Observer for Greedy {
    fn observe(&mut self, observation: &Observation<'_>) {
        self.0.push(format!("{observation:?}"));
        if self.0.len() > 100 {
            self.0 = Vec::new();
        }
    }
}

#[global_allocator]
static HEAP: Observed<Heap<Tlsf, Spin>, (Greedy, Profile, Leaks<4096>, TraceWriter<3>)> = Observed::new(
    heap!(256 * 1024 * 1024),
    (Greedy(Vec::new()), Profile::new(), Leaks::new(), TraceWriter::new()),
);

/// Tests run one at a time, because they share the heap.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> impl Drop {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A file in memory that can be told to fail.
#[derive(Clone, Default)]
struct Shared(Arc<Mutex<(Vec<u8>, bool)>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut shared = self.0.lock().unwrap();
        if shared.1 {
            return Err(io::Error::other("no space"));
        }
        shared.0.extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[inline(never)]
fn work(rounds: usize) -> usize {
    let mut map = BTreeMap::new();
    for round in 0..rounds {
        with_tag(if round % 2 == 0 { "even" } else { "odd" }, || {
            map.insert(round, vec![round as u8; round % 300])
        });
    }
    map.values().map(Vec::len).sum()
}

#[test]
fn a_program_is_traced() {
    let _alone = alone();
    let file = Shared::default();
    let old = vec![1u8; 100];
    let mut older = vec![1u8; 100];
    HEAP.observers(|all| all.3.start(file.clone())).unwrap();
    drop(old);
    older.reserve(100_000);
    let threads: Vec<_> = (0..3).map(|n| std::thread::spawn(move || work(300 + n))).collect();
    threads.into_iter().for_each(|thread| assert!(thread.join().unwrap() > 40_000));
    drop(older);
    HEAP.observers(|all| all.3.finish()).unwrap();
    assert!(HEAP.observers(|all| all.1.live_blocks) > 0);

    let bytes = file.0.lock().unwrap().0.clone();
    let (header, records) = Records::new(&bytes).unwrap();
    assert_eq!(header, Header::HERE);
    let (mut live, mut names, mut tagged, mut last) = (HashMap::new(), HashMap::new(), HashMap::new(), 0);
    let (mut allocations, mut backtraces, mut frames) = (0, 0, HashMap::new());
    for record in records {
        match record.unwrap() {
            Record::Event(event) => {
                let time = event.time.expect("events have times");
                assert!(time >= last);
                last = time;
                match event.action {
                    Action::Allocate { id, size, .. } => {
                        assert_eq!(live.insert(id, size), None);
                        allocations += 1;
                        *tagged.entry(event.tag).or_insert(0) += 1;
                    }
                    Action::Reallocate { id, to, size } => {
                        assert!(live.remove(&id).is_some());
                        assert_eq!(live.insert(to, size), None);
                    }
                    Action::Free { id } => {
                        assert!(live.remove(&id).is_some(), "blocks from before are left out")
                    }
                    Action::Fail { .. } => {}
                }
            }
            Record::Name { tag, name } => assert_eq!(names.insert(tag, name.to_owned()), None),
            Record::Note { text } => match text.split_once(' ').unwrap() {
                ("backtrace", addresses) => {
                    backtraces += 1;
                    for address in addresses.split(' ') {
                        frames.entry(u64::from_str_radix(address, 16).unwrap()).or_insert(String::new());
                    }
                }
                ("frame", frame) => {
                    let (address, name) = frame.split_once(' ').unwrap();
                    frames.get_mut(&u64::from_str_radix(address, 16).unwrap()).unwrap().push_str(name);
                }
                other => panic!("{other:?}"),
            },
            Record::Lost { events } => panic!("{events} lost"),
        }
    }
    assert!(allocations > 900, "{allocations}");
    let mut names: Vec<_> = names.into_iter().map(|(tag, name)| (name, tagged[&tag] >= 450)).collect();
    names.sort();
    assert_eq!(names, [("even".to_owned(), true), ("odd".to_owned(), true)]);
    if cfg!(all(feature = "backtrace", unix)) {
        // A third of each thread's allocations.
        assert!(
            (allocations / 3 - 5..allocations / 3 + 10).contains(&backtraces),
            "{backtraces} of {allocations}"
        );
        assert!(frames.values().any(|frame| frame.contains("observed_global::work")), "{frames:#?}");
    } else {
        assert_eq!(backtraces, 0);
    }
}

#[test]
fn observers_that_allocate_do_not_see_themselves() {
    let _alone = alone();
    let mark = HEAP.mark();
    let before = HEAP.observers(|all| all.1.allocations);
    let boxed = std::hint::black_box(Box::new(1u64));
    let after = HEAP.observers(|all| all.1.allocations);
    // Other threads of the test program may allocate occasionally.
    assert!((1..20).contains(&(after - before)), "{}", after - before);
    let address = (&raw const *boxed).addr();
    assert!(HEAP.leaks_since(mark).any(|leak| leak.address == address && leak.size == 8));
    drop(boxed);
    assert!(!HEAP.leaks_since(mark).any(|leak| leak.address == address && leak.size == 8));
}

#[test]
fn a_writer_that_fails_ends_the_trace() {
    let _alone = alone();
    let file = Shared::default();
    HEAP.observers(|all| all.3.start(file.clone())).unwrap();
    assert!(work(100) > 0);
    file.0.lock().unwrap().1 = true;
    assert!(work(30_000) > 0);
    // More space later does not help, because the trace has a gap.
    file.0.lock().unwrap().1 = false;
    let error = HEAP.observers(|all| all.3.finish()).unwrap_err();
    assert_eq!(error.to_string(), "no space");
    HEAP.observers(|all| all.3.finish()).unwrap();
}
