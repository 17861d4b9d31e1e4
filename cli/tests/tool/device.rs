//! A device that connects again and again, as a stream of requests and frees.

/// Bytes of a TLS buffer: 16 KiB of a record, its header and what a cipher adds.
pub const BUFFER: usize = 16_717;

/// What a device does. Blocks have numbers, which freed ones leave to others.
#[derive(Clone, Copy, Debug)]
pub enum Event {
    /// A connection begins.
    Connect,
    /// It allocates a block.
    Allocate { block: usize, size: usize },
    /// It frees one.
    Free { block: usize, size: usize },
}

/// A device of a seed, which tells `sink` what it does.
pub struct Device<S> {
    random: fastrand::Rng,
    sink: S,
    blocks: Vec<Option<usize>>,
    unused: Vec<usize>,
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

impl<S: FnMut(Event)> Device<S> {
    /// Starts a device: drivers, tasks and settings, which stay.
    pub fn start(seed: u64, sink: S) -> Self {
        let random = fastrand::Rng::with_seed(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let mut device = Self {
            random,
            sink,
            blocks: Vec::new(),
            unused: Vec::new(),
            settings: Vec::new(),
            waiting: Vec::new(),
            session: 0,
            certificate: 0,
            packets: 0,
            messages: 0,
            message: 0,
        };
        device.certificate = device.within(900, 1999);
        device.packets = device.within(2, 5);
        device.messages = device.within(8, 23);
        device.message = device.within(200, 899);
        for _ in 0..device.within(10, 20) {
            let size = device.within(100, 2400);
            device.allocate(size);
            let temporary = device.within(50, 3000);
            let temporary = device.allocate(temporary);
            device.free(temporary);
        }
        for _ in 0..device.within(16, 32) {
            let size = device.within(12, 240);
            let setting = device.allocate(size);
            device.settings.push(setting);
        }
        device.session = device.allocate(180);
        device
    }

    fn allocate(&mut self, size: usize) -> usize {
        let block = self.unused.pop().unwrap_or_else(|| {
            self.blocks.push(None);
            self.blocks.len() - 1
        });
        self.blocks[block] = Some(size);
        (self.sink)(Event::Allocate { block, size });
        block
    }

    fn free(&mut self, block: usize) {
        let size = self.blocks[block].take().expect("the block is live");
        self.unused.push(block);
        (self.sink)(Event::Free { block, size });
    }

    fn free_in_any_order(&mut self, mut blocks: Vec<usize>) {
        for place in 1..blocks.len() {
            let other = self.within(0, place);
            blocks.swap(place, other);
        }
        for block in blocks {
            self.free(block);
        }
    }

    /// Draws a number. It is the same whatever the length of a `usize`.
    fn within(&mut self, least: usize, most: usize) -> usize {
        self.random.u64(least as u64..=most as u64) as usize
    }

    /// A connection, from its socket to its end.
    pub fn connect(&mut self) {
        (self.sink)(Event::Connect);
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
                let freed = numbers.swap_remove(self.within(0, numbers.len() - 1));
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
            let setting = self.within(0, self.settings.len() - 1);
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
