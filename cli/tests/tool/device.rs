//! A device that connects again and again, as a recording.

use std::fmt::Write;

/// Bytes of a TLS buffer: 16 KiB of a record, its header and what a cipher adds.
pub const BUFFER: usize = 16_717;

/// A device of a seed, which begins episodes with the mark `connect`.
pub struct Device {
    random: fastrand::Rng,
    text: String,
    blocks: Vec<Option<usize>>,
    unused: Vec<usize>,
    live: usize,
    /// The most live bytes so far.
    pub peak: usize,
    events: usize,
    settings: Vec<usize>,
    /// Messages that wait for the next connection.
    waiting: Vec<usize>,
    session: usize,
    /// What this device has of each kind.
    certificate: usize,
    packets: usize,
    messages: usize,
    message: usize,
}

impl Device {
    /// Records a device of a seed with so many connections.
    pub fn record(seed: u64, connections: usize) -> Self {
        let mut random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let (certificate, packets) = (random.usize(900..2000), random.usize(2..6));
        let (messages, message) = (random.usize(8..24), random.usize(200..900));
        let mut device = Self {
            random,
            text: String::new(),
            blocks: Vec::new(),
            unused: Vec::new(),
            live: 0,
            peak: 0,
            events: 0,
            settings: Vec::new(),
            waiting: Vec::new(),
            session: 0,
            certificate,
            packets,
            messages,
            message,
        };
        device.start();
        for _ in 0..connections {
            device.connect();
        }
        device
    }

    /// The first events, of the share that is given, and their mark.
    pub fn first(&self, percent: usize) -> String {
        let events = self.events * percent / 100;
        let (mut seen, mut end) = (0, 0);
        for line in self.text.split_inclusive('\n') {
            seen += usize::from(!line.starts_with('#'));
            if seen > events {
                break;
            }
            end += line.len();
        }
        self.text[..end].to_owned()
    }

    /// The whole recording.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn allocate(&mut self, size: usize) -> usize {
        let id = self.unused.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[id] = Some(size);
        self.live += size;
        self.peak = self.peak.max(self.live);
        self.events += 1;
        writeln!(self.text, "a {id} {size} 4").unwrap();
        id
    }

    fn free(&mut self, id: usize) {
        self.live -= self.blocks[id].take().unwrap();
        self.unused.push(id);
        self.events += 1;
        writeln!(self.text, "f {id}").unwrap();
    }

    fn free_in_any_order(&mut self, mut blocks: Vec<usize>) {
        self.random.shuffle(&mut blocks);
        for block in blocks {
            self.free(block);
        }
    }

    fn within(&mut self, least: usize, most: usize) -> usize {
        self.random.usize(least..=most)
    }

    /// Drivers, tasks and settings that stay.
    fn start(&mut self) {
        for _ in 0..self.within(10, 20) {
            let size = self.within(100, 2400);
            self.allocate(size);
            let temporary = self.within(50, 3000);
            let temporary = self.allocate(temporary);
            self.free(temporary);
        }
        for _ in 0..self.within(16, 32) {
            let size = self.within(12, 240);
            let setting = self.allocate(size);
            self.settings.push(setting);
        }
        self.session = self.allocate(180);
    }

    fn connect(&mut self) {
        writeln!(self.text, "# mark connect").unwrap();
        let socket = self.allocate(212);
        let mut garbage = Vec::new();
        for _ in 0..self.within(2, self.packets) {
            let size = self.within(60, 1514);
            garbage.push(self.allocate(size));
        }
        let receive = self.allocate(BUFFER);
        for _ in 0..self.within(2, 4) {
            let size = self.certificate + self.within(0, 400);
            garbage.push(self.allocate(size));
        }
        let send = self.allocate(BUFFER);
        let mut numbers = Vec::new();
        for _ in 0..self.within(20, 40) {
            let size = self.within(4, 65) * 8;
            numbers.push(self.allocate(size));
            if numbers.len() > 12 {
                let freed = numbers.swap_remove(self.random.usize(..numbers.len()));
                self.free(freed);
            }
        }
        if self.random.f64() < 0.7 {
            let size = self.within(160, 256);
            let session = self.allocate(size);
            self.free(self.session);
            self.session = session;
        }
        garbage.extend(numbers);
        self.free_in_any_order(garbage);
        for waiting in std::mem::take(&mut self.waiting) {
            self.free(waiting);
        }
        for _ in 0..self.within(self.messages / 2, self.messages) {
            self.exchange();
        }
        if self.random.f64() < 0.3 {
            let setting = self.random.usize(..self.settings.len());
            let size = self.within(12, 240);
            let new = self.allocate(size);
            self.free(self.settings[setting]);
            self.settings[setting] = new;
        }
        self.free_in_any_order(vec![receive, send, socket]);
        // What is measured until the next connection waits for it.
        for _ in 0..self.within(0, 5) {
            let size = self.within(40, self.message);
            let message = self.allocate(size);
            self.waiting.push(message);
        }
    }

    /// A message that comes in packets and is parsed.
    fn exchange(&mut self) {
        let size = self.within(60, 1514);
        let packet = self.allocate(size);
        let size = self.within(40, self.message);
        let message = self.allocate(size);
        self.free(packet);
        let mut fields = Vec::new();
        for _ in 0..self.within(2, 8) {
            let size = self.within(8, 96);
            fields.push(self.allocate(size));
        }
        self.free_in_any_order(fields);
        self.free(message);
    }
}
