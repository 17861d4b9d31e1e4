//! Pools over a simulated device.
#![cfg(feature = "std")]

mod any;
#[path = "../any_pool/mod.rs"]
mod any_pool;
mod available;
mod basics;
mod bounds;
mod checks;
mod compact;
mod figures;
mod graphs;
mod holes;
mod options;
mod order;
mod pattern;
mod planned;
mod random;
mod recovery;
mod sources;
mod texts;
mod threads;
mod trace;
mod usage;
mod waiting;

use allotment::pool::{DevicePool, Event as _, PoolOptions, Stream as _};
use allotment::sim::{DeviceMemory, Stream};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Makes a pool over a device of `mib` MiB.
fn pool(mib: usize, options: PoolOptions) -> DevicePool<DeviceMemory> {
    DevicePool::new(DeviceMemory::new(mib * MIB), options).unwrap()
}

/// Makes `to` wait for the work submitted to `from` so far, as a program does that uses a buffer on two streams.
fn hand_over(from: &Stream, to: &Stream) {
    let event = from.record().unwrap();
    if !event.is_done().unwrap() {
        to.wait(&event).unwrap();
    }
}
