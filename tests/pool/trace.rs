//! The trace of a pool.

use super::{KIB, MIB, pool};
use allotment::pool::{DevicePool, PoolOptions, Reuse};
use allotment::sim::DeviceMemory;
use allotment_trace::{Action, Checked, Reader, Record, Records};
use std::io::{self, Write};
use std::sync::{Arc, Mutex};

/// The bytes that a pool has written so far.
#[derive(Clone, Default)]
pub struct Shared(pub Arc<Mutex<Vec<u8>>>);

impl Write for Shared {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Shared {
    fn checked(&self) -> Vec<Checked> {
        let bytes = self.0.lock().unwrap();
        Reader::new(&bytes[..]).unwrap().collect::<Result<_, _>>().unwrap()
    }

    /// Lines that do not stand for an event.
    fn notes(&self) -> Vec<String> {
        let bytes = self.0.lock().unwrap();
        let records = Records::new(&bytes[..], Default::default()).unwrap();
        let note = |record| match record {
            Record::Note(text) | Record::Comment(text) => Some(text),
            _ => None,
        };
        records.filter_map(|record| note(record.unwrap().1)).map(|text| text.to_string()).collect()
    }
}

/// Live bytes and blocks equal those of the statistics after every step, and so do the peaks at the end.
#[test]
fn a_trace_agrees_with_the_statistics() {
    let device: DeviceMemory = DeviceMemory::new(512 * MIB);
    let streams = [device.stream(), device.stream(), device.stream()];
    let pool = DevicePool::new(device, PoolOptions::new().reuse(Reuse::Aggressive)).unwrap();
    let out = Shared::default();
    pool.start_trace(out.clone()).unwrap();
    let mut random = fastrand::Rng::with_seed(3);
    let mut live = vec![];
    let mut figures = vec![];
    for _ in 0..30 {
        for _ in 0..100 {
            let stream = random.choice(&streams).unwrap();
            if live.len() < 10 || random.bool() {
                live.push(pool.allocate(random.usize(0..MIB), stream).unwrap());
            } else {
                let buffer = live.swap_remove(random.usize(..live.len()));
                if random.bool() {
                    buffer.used_on(stream);
                }
            }
        }
        let stats = pool.stats();
        figures.push((stats.requested.current, stats.blocks.current as usize, stats.blocks.total));
        pool.step();
    }
    drop(live);
    let stats = pool.stats();
    pool.finish_trace().unwrap();
    let events = out.checked();
    assert_eq!(events.len() as u64, 2 * stats.blocks.total);
    assert_eq!(events.iter().map(|event| event.live_bytes).max(), Some(stats.requested.peak));
    assert_eq!(events.iter().map(|event| event.live_blocks as u64).max(), Some(stats.blocks.peak));
    let mut total = 0;
    let mut figures = figures.into_iter().peekable();
    for (at, event) in events.iter().enumerate() {
        total += u64::from(matches!(event.event.action, Action::Allocate { .. }));
        let steps = (at + 1) % 100 == 0;
        if let Some((bytes, blocks, allocated)) = figures.next_if(|_| steps) {
            assert_eq!((event.live_bytes, event.live_blocks, total), (bytes, blocks, allocated));
        }
    }
    assert!(figures.next().is_none());
    assert!(events.iter().all(|event| event.event.time.is_some()));
    let mut tags: Vec<_> = events.iter().filter_map(|event| event.event.tag.as_deref()).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags, ["stream 0", "stream 1", "stream 2"]);
    let steps: Vec<String> = (1..=30).map(|step| format!("step {step}")).collect();
    assert_eq!(out.notes(), steps);
}

#[test]
fn what_is_live_already_comes_first() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let old: Vec<_> = (1..4).map(|n| pool.allocate_aligned(n * KIB, 128 << n, &stream).unwrap()).collect();
    let out = Shared::default();
    pool.start_trace(out.clone()).unwrap();
    drop(old);
    pool.finish_trace().unwrap();
    drop(pool.allocate(KIB, &stream).unwrap());
    let events = out.checked();
    let live: Vec<u64> = events.iter().map(|event| event.live_bytes / KIB as u64).collect();
    assert_eq!(live[2..], [6, 5, 3, 0], "nothing after the end");
    assert!(events[..3].iter().all(|event| event.event.time == Some(0)));
    let mut sizes: Vec<_> = events[..3].iter().map(|event| event.event.action).collect();
    sizes.sort_by_key(|action| format!("{action:?}"));
    assert_eq!(sizes, [1, 2, 3].map(|n| Action::Allocate { size: n * KIB as u64, align: 128 << n }));
}

/// A stream that takes the place of one that is gone has a tag of its own.
#[test]
fn a_tag_is_of_one_stream() {
    let device: DeviceMemory = DeviceMemory::new(64 * MIB);
    let pool = DevicePool::new(device.clone(), PoolOptions::new()).unwrap();
    let out = Shared::default();
    pool.start_trace(out.clone()).unwrap();
    let steady = device.stream();
    let mut names = vec![];
    for _ in 0..5 {
        let stream = device.stream();
        drop(pool.allocate(KIB, &stream).unwrap());
        names.push(format!("stream {}", allotment::pool::Stream::id(&stream)));
        drop(stream);
        // The pool looks for dropped streams when it has no room.
        drop(pool.allocate(20 * MIB, &steady).unwrap());
        pool.trim(0);
        drop(pool.allocate(20 * MIB, &steady).unwrap());
    }
    pool.finish_trace().unwrap();
    let events = out.checked();
    let small =
        events.iter().filter(|event| event.event.action == Action::Allocate { size: 1024, align: 256 });
    let tags: Vec<_> = small.map(|event| event.event.tag.as_deref().unwrap().to_string()).collect();
    assert_eq!(tags, names);
}

#[test]
fn moved_blocks_and_refusals_are_in_it() {
    let pool = pool(64, PoolOptions::new().small(0, 0).reuse(Reuse::Aggressive));
    let stream = pool.source().stream();
    let out = Shared::default();
    pool.start_trace(out.clone()).unwrap();
    let mut blocks: Vec<_> = (0..40).map(|_| pool.allocate_movable(MIB, &stream).unwrap()).collect();
    let mut number = 0;
    blocks.retain(|_| (number % 2 == 0, number += 1).0);
    assert!(pool.compact(allotment::pool::Stream::id(&stream)).unwrap() > 0);
    let moves = pool.stats().calls.copy;
    let addresses: Vec<u64> = blocks.iter().map(|block| block.address() as u64).collect();
    assert!(pool.allocate(65 * MIB, &stream).is_err());
    drop(blocks);
    // Written when the pool is dropped, at the latest.
    drop(pool);
    let bytes = out.0.lock().unwrap();
    let mut reader = Reader::new(&bytes[..]).unwrap();
    let events: Vec<Checked> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    let moved = events.iter().filter(|event| matches!(event.event.action, Action::Reallocate { .. }));
    assert_eq!(moved.count() as u64, moves);
    assert_eq!(events.last().unwrap().live_bytes, 0);
    assert_eq!(reader.failures().len(), 1);
    let mut seen: Vec<u64> = events.iter().filter_map(|event| event.event.address).collect();
    seen.sort_unstable();
    assert!(addresses.iter().all(|address| seen.binary_search(address).is_ok()));
}

#[test]
fn an_error_of_the_writer_is_told_and_harms_nobody() {
    struct Full;
    impl Write for Full {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > 1000 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    pool.start_trace(Full).unwrap();
    for _ in 0..30_000 {
        drop(pool.allocate(KIB, &stream).unwrap());
    }
    assert_eq!(pool.finish_trace().unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert!(pool.finish_trace().is_ok(), "there is none any more");
    assert_eq!(pool.source().calls("simReserve"), 1);
}
