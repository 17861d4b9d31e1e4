//! The tests of pools that any source must pass, on the simulated device.

use super::MIB;
use super::any_pool;
use allotment::pool::{DevicePool, Stream as _};
use allotment::sim::{HostMemory, Stream};
use std::sync::Mutex;

/// A simulated device that never runs anything unless it has to. Work of one owner on another's memory is found when it runs.
struct Simulated {
    memory: HostMemory,
    streams: Mutex<Vec<Stream>>,
}

impl any_pool::World for Simulated {
    type Source = HostMemory;
    type Hold = ();

    fn new() -> Self {
        Self { memory: HostMemory::new(256 * MIB), streams: Mutex::default() }
    }

    fn source(&self) -> HostMemory {
        self.memory.clone()
    }

    fn stream(&self) -> Stream {
        let stream = self.memory.stream();
        self.streams.lock().unwrap().push(stream.retain());
        stream
    }

    fn write(&self, _: &DevicePool<HostMemory>, stream: &Stream, address: usize, bytes: usize, owner: u8) {
        stream.launch(u64::from(owner), address, bytes);
    }

    fn check(&self, _: &DevicePool<HostMemory>, stream: &Stream, address: usize, bytes: usize, owner: u8) {
        stream.launch(u64::from(owner), address, bytes);
    }

    fn hold(&self, _: &Stream) {}

    fn release(&self, (): (), _: &Stream) {
        let streams = self.streams.lock().unwrap();
        (0..streams.len()).flat_map(|_| streams.iter()).for_each(Stream::run);
    }

    fn finish(&self) {
        for stream in self.streams.lock().unwrap().iter() {
            stream.synchronize().unwrap();
        }
        let needless = allotment::sim::Hazard::NeedlessWait;
        let mut hazards = self.memory.take_hazards();
        hazards.retain(|hazard| *hazard != needless);
        assert_eq!(hazards, []);
    }

    fn segments(&self) -> usize {
        self.memory.segments()
    }
}

any_pool::tests!(Simulated);
