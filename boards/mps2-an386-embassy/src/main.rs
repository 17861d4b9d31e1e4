//! Async tasks of Embassy that share one heap: three sensors send boxed readings to a task that turns them into
//! lines of text, which the main task counts. Then the demo runs, which checks that all memory came back.
//!
//! The heap needs nothing special for this. Its lock is a critical section, so tasks and interrupts may allocate.
#![no_std]
#![no_main]

extern crate alloc;

use alloc::{boxed::Box, format, string::String, vec::Vec};
use allotment::{Heap, heap};
use embassy_executor::Spawner;
use embassy_sync::{blocking_mutex::raw::CriticalSectionRawMutex, channel::Channel};

#[global_allocator]
static HEAP: Heap = heap!(48 * 1024);

/// A measurement of a sensor.
struct Reading {
    sensor: &'static str,
    samples: Vec<u16>,
}

/// The number of readings per sensor.
const READINGS: u16 = 50;

static MEASURED: Channel<CriticalSectionRawMutex, Box<Reading>, 4> = Channel::new();
static WRITTEN: Channel<CriticalSectionRawMutex, String, 2> = Channel::new();

#[embassy_executor::task(pool_size = 3)]
async fn measure(sensor: &'static str, first: u16) {
    for number in 0..READINGS {
        let samples = (first..first + 8 + number % 24).collect();
        MEASURED.send(Box::new(Reading { sensor, samples })).await;
    }
}

#[embassy_executor::task]
async fn write() {
    loop {
        let reading = MEASURED.receive().await;
        let sum: u32 = reading.samples.iter().copied().map(u32::from).sum();
        let line = format!(
            "{}: {} samples, mean {}",
            reading.sensor,
            reading.samples.len(),
            sum / reading.samples.len() as u32
        );
        WRITTEN.send(line).await;
    }
}

#[embassy_executor::main]
async fn main(spawner: Spawner) {
    for (sensor, first) in [("pump", 100), ("valve", 200), ("tank", 300)] {
        spawner.spawn(measure(sensor, first).expect("there is room for three of these"));
    }
    spawner.spawn(write().expect("there is room for one of these"));

    let mut bytes = 0;
    for _ in 0..3 * READINGS {
        bytes += WRITTEN.receive().await.len();
    }
    assert!(bytes > 1000, "the lines have text");
    assert_eq!(HEAP.used(), 0, "all readings and lines came back");

    support::finish(demo::run(&demo::INVENTORY, 20, || HEAP.stats()))
}
