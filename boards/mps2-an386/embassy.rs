//! Async tasks of Embassy that share one heap: three sensors send boxed readings to a task that turns them into
//! lines of text, which the main task counts. Then the demo runs, which checks that all memory came back.
//!
//! The heap needs nothing special for this. Its lock is a critical section, so tasks and interrupts may allocate. What a sensor
//! allocates counts under its tag, the task that writes has an arena of its own for what it needs between two lines, and the sensors'
//! tasks themselves are boxed: there are as many as the heap has room for.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::{boxed::Box, format, string::String, vec::Vec};
use allotment::lock::Unsync;
use allotment::observe::{Tags, with_tag};
use allotment::{Bump, Heap, Memory, Observed, Region, heap};
use core::alloc::Layout;
use core::slice;
use embassy_executor::raw::TaskStorage;
use embassy_executor::{SpawnError, SpawnToken, Spawner};
use embassy_sync::{blocking_mutex::raw::CriticalSectionRawMutex, channel::Channel};

#[global_allocator]
static HEAP: Observed<Heap, Tags<4, 64>> = Observed::new(heap!(48 * 1024), Tags::new());

/// A measurement of a sensor.
struct Reading {
    sensor: &'static str,
    samples: Vec<u16>,
}

/// The number of readings per sensor.
const READINGS: u16 = 50;

static MEASURED: Channel<CriticalSectionRawMutex, Box<Reading>, 4> = Channel::new();
static WRITTEN: Channel<CriticalSectionRawMutex, String, 2> = Channel::new();

/// Makes a task in memory of the heap, which it keeps: the executor may still look at a task that has ended.
fn boxed<F: Future<Output = ()> + 'static>(
    task: impl FnOnce() -> F,
) -> Result<SpawnToken<impl Sized>, SpawnError> {
    let storage: &'static TaskStorage<F> = Box::leak(Box::new(TaskStorage::new()));
    storage.spawn(task)
}

async fn measure(sensor: &'static str, first: u16) {
    for number in 0..READINGS {
        // A tag holds for a closure, in which no other task can run.
        let reading = with_tag(sensor, || {
            let samples = (first..first + 8 + number % 24).rev().collect();
            Box::new(Reading { sensor, samples })
        });
        MEASURED.send(reading).await;
    }
}

/// Memory of one task, which it takes from the heap once and frees as a whole after each use.
struct Arena {
    heap: Heap<Bump, Unsync>,
    _memory: Vec<u64>,
}

impl Arena {
    fn new(words: usize) -> Self {
        let mut memory = Vec::with_capacity(words);
        let heap = Heap::empty();
        // SAFETY: the vector is never touched, and lives as long as the heap in it.
        unsafe { heap.claim(Region::new(memory.as_mut_ptr(), words * size_of::<u64>())) }
            .expect("room for a block");
        Self { heap, _memory: memory }
    }

    /// The value in the middle, found in a copy of the samples.
    fn median(&self, samples: &[u16]) -> u16 {
        let block = self.heap.try_allocate(Layout::for_value(samples)).expect("the arena is large enough");
        // SAFETY: the block has room for as many samples, and is not used after this function.
        unsafe {
            let copy = block.cast::<u16>().as_ptr();
            copy.copy_from_nonoverlapping(samples.as_ptr(), samples.len());
            let sorted = slice::from_raw_parts_mut(copy, samples.len());
            sorted.sort_unstable();
            let median = sorted[samples.len() / 2];
            self.heap.reset();
            median
        }
    }
}

#[embassy_executor::task]
async fn write() {
    let arena = Arena::new(16);
    loop {
        let reading = MEASURED.receive().await;
        let median = arena.median(&reading.samples);
        let line = format!("{}: {} samples, median {median}", reading.sensor, reading.samples.len());
        WRITTEN.send(line).await;
    }
}

#[embassy_executor::main]
async fn main(spawner: Spawner) {
    for (sensor, first) in [("pump", 100), ("valve", 200), ("tank", 300)] {
        spawner.spawn(boxed(|| measure(sensor, first)).expect("its storage is new"));
    }
    let tasks = HEAP.statistics().map_or(0, |stats| stats.used);
    assert!(tasks > 0, "the tasks are blocks of the heap");
    spawner.spawn(write().expect("there is room for one of these"));

    let mut bytes = 0;
    for _ in 0..3 * READINGS {
        bytes += WRITTEN.receive().await.len();
    }
    assert!(bytes > 1000, "the lines have text");
    for sensor in ["pump", "valve", "tank"] {
        let tag = HEAP.observers(|tags| tags.of(Some(sensor)));
        assert_eq!(
            (tag.allocations, tag.live_blocks),
            (2 * usize::from(READINGS), 0),
            "two blocks a reading"
        );
        assert!(tag.peak_bytes > 0 && tag.failures == 0);
    }
    let stats = || HEAP.statistics().expect("it counts");
    assert!(stats().used <= tasks + 160, "all readings and lines came back; the tasks and an arena are left");

    boards::finish(demo::run(&demo::INVENTORY, 20, stats))
}
