//! A trace with times and tags: a firmware that boots, takes in readings, and sends them over a network.

use allotment_trace::{Action, Event, Writer};
use fastrand::Rng;

/// A trace under way.
struct Device {
    writer: Writer<Vec<u8>>,
    rng: Rng,
    ids: u64,
    time: u64,
}

impl Device {
    fn event(&mut self, id: u64, action: Action, tag: Option<&str>) {
        self.time += self.rng.u64(1..40);
        let event = Event { time: Some(self.time), tag: tag.map(Into::into), ..Event::new(id, action) };
        self.writer.event(&event).unwrap();
    }

    fn allocate(&mut self, size: u64, align: u64, tag: &str) -> u64 {
        self.ids += 1;
        self.event(self.ids, Action::Allocate { size, align }, Some(tag));
        self.ids
    }

    fn resize(&mut self, id: u64, size: u64) {
        self.event(id, Action::Reallocate { size }, None);
    }

    fn free(&mut self, id: u64) {
        self.event(id, Action::Free, None);
    }
}

/// The text of a trace of about `events` events. Readings are kept a while, each connection has buffers of its own, the
/// screen is drawn now and then, and the handler of lost connections forgets 48 bytes each time.
pub fn trace(events: usize, network: &str) -> String {
    let mut device = Device { writer: Writer::new(vec![]), rng: Rng::with_seed(7), ids: 0, time: 0 };
    let boot: Vec<u64> = [1024, 512, 2048, 96, 640].map(|size| device.allocate(size, 8, "boot")).into();
    let mut readings = std::collections::VecDeque::new();
    let mut connections: Vec<Vec<u64>> = vec![];
    let mut log = device.allocate(64, 8, "log");
    let mut round = 0_usize;
    while device.ids < events as u64 * 9 / 20 {
        round += 1;
        let size = device.rng.u64(24..72);
        readings.push_back(device.allocate(size, 8, "sensors"));
        // The network is away for a while, and readings pile up.
        let away = (round / 700) % 3 == 2;
        while readings.len() > if away { 220 } else { 24 } {
            if let Some(reading) = readings.pop_front() {
                device.free(reading);
            }
        }
        if !away && round % 60 == 7 {
            let mut buffers = vec![device.allocate(1460, 32, network), device.allocate(256, 8, network)];
            buffers.extend((0..4).map(|_| device.allocate(88, 8, network)));
            connections.push(buffers);
        }
        if connections.len() > 3 {
            connections.swap_remove(0).into_iter().for_each(|buffer| device.free(buffer));
            if (round / 60).is_multiple_of(9) {
                device.allocate(48, 8, network);
            }
        }
        if round.is_multiple_of(25) {
            let frame = device.allocate(2400, 64, "screen");
            let text: Vec<u64> = (0..6).map(|n| device.allocate(16 + 8 * n, 8, "screen")).collect();
            text.into_iter().for_each(|line| device.free(line));
            device.free(frame);
        }
        let size = 64 + (round as u64 * 16) % 1500;
        if round.is_multiple_of(3) {
            device.resize(log, size);
        }
        if size > 1540 {
            device.free(log);
            log = device.allocate(64, 8, "log");
        }
    }
    for block in boot.into_iter().skip(2).chain(connections.into_iter().flatten()).chain(readings) {
        device.free(block);
    }
    String::from_utf8(device.writer.finish().unwrap()).unwrap()
}
