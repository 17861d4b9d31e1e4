//! What a pool says is available is what a request gets.

use super::{KIB, MIB};
use allotment::pool::{Allocation, DevicePool, PoolError, PoolOptions, Reuse, SourceErrorKind, Stream as _};
use allotment::sim::{DeviceMemory, Stream};

/// A device, a pool over it, its streams, and the numbers of the work that was submitted.
struct World {
    device: DeviceMemory,
    pool: DevicePool<DeviceMemory>,
    streams: Vec<Stream>,
    live: Vec<Allocation>,
    work: Vec<u64>,
}

impl World {
    /// Makes the state of a seed, always the same one. All work is done in every second one.
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        let device: DeviceMemory = DeviceMemory::new(random.usize(8..64) * MIB)
            .with_granularity([512, 64 * KIB, MIB][random.usize(..3)])
            .with_room(random.usize(..2) * 128 * MIB);
        let streams: Vec<Stream> = (0..random.usize(1..4)).map(|_| device.stream()).collect();
        let reuse = [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive][random.usize(..4)];
        let mut options = PoolOptions::new().reuse(reuse).guards(random.u32(..4) == 0);
        if random.bool() {
            options = options.limit(random.usize(4..64) * MIB);
        }
        options = match random.u32(..4) {
            0 => options.small(0, 0),
            1 => options.fitted_segments(8 * MIB),
            2 => options.segments(4 * MIB).granule(1 << random.u32(8..13)),
            _ => options,
        };
        if random.u32(..4) == 0 {
            options = options.first_segment(2 * MIB);
        }
        let pool = DevicePool::new(device.clone(), options.clone());
        let pool = pool.or_else(|_| DevicePool::new(device.clone(), options.granule(0))).unwrap();
        let mut world = Self { device, pool, streams, live: vec![], work: vec![] };
        for _ in 0..random.usize(1..200) {
            world.step(&mut random);
        }
        if seed % 2 == 0 {
            world.streams.iter().for_each(Stream::run);
            world.streams.iter().for_each(Stream::run);
        }
        world
    }

    fn step(&mut self, random: &mut fastrand::Rng) {
        let stream = random.choice(&self.streams).unwrap();
        match random.u32(..100) {
            0..50 => {
                let most = 1 << random.u32(0..24);
                let bytes = random.usize(1..=most);
                if let Ok(block) = self.pool.allocate_raw(bytes, 1, stream) {
                    self.work.push(stream.launch(self.work.len() as u64, block.address(), bytes));
                    self.live.push(block);
                }
            }
            50..85 if !self.live.is_empty() => {
                let block = self.live.swap_remove(random.usize(..self.live.len()));
                if random.u32(..4) == 0 {
                    self.pool.record_stream(&block, stream).unwrap();
                }
                self.pool.deallocate(block).unwrap();
            }
            85..95 => stream.run(),
            _ => drop(self.pool.trim(random.usize(..32) * MIB)),
        }
    }

    /// Makes a request, and returns how often the pool waited for it and how much work was done meanwhile.
    fn request(&mut self, bytes: usize, stream: usize) -> Result<(u64, usize), PoolError> {
        let waits = self.device.calls("simSynchronize");
        let pending = |world: &Self| world.work.iter().filter(|&&work| !world.device.is_done(work)).count();
        let before = pending(self);
        self.live.push(self.pool.allocate_raw(bytes, 1, &self.streams[stream])?);
        Ok((self.device.calls("simSynchronize") - waits, before - pending(self)))
    }

    fn end(mut self) {
        self.live.drain(..).for_each(|block| self.pool.deallocate(block).unwrap());
        self.streams.iter().for_each(Stream::run);
    }
}

/// The state of each seed is made twice: one allocates what is available, and the other has no room for a granule more.
#[test]
fn what_is_available_is_allocated_and_no_granule_more() {
    let (mut served, mut wrong) = (0, vec![]);
    for seed in 0..600 {
        let mut world = World::new(seed);
        let stream = seed as usize % world.streams.len();
        let bytes = world.pool.available(world.streams[stream].id()).unwrap();
        if bytes > 0 {
            served += 1;
            let outcome = world.request(bytes, stream);
            if !matches!(outcome, Ok((0, _))) {
                wrong.push(format!("{bytes} in {seed}: {outcome:?}"));
            }
        }
        world.end();
        let mut world = World::new(seed);
        let more = world.request(bytes + 1, stream);
        if matches!(more, Ok((0, 0)) | Err(PoolError::Source(_))) {
            wrong.push(format!("{} in {seed}: {more:?}", bytes + 1));
        }
        world.end();
    }
    assert!(served > 500 && wrong.is_empty(), "{served}: {wrong:#?}");
}

#[test]
fn an_unknown_stream_has_what_the_device_has() {
    let device: DeviceMemory = DeviceMemory::new(8 * MIB);
    let (a, b) = (device.stream(), device.stream());
    let pool = DevicePool::new(device.clone(), PoolOptions::new().limit(6 * MIB)).unwrap();
    assert_eq!(pool.available(a.id()), Ok(6 * MIB));
    let block = pool.allocate(5 * MIB, &a).unwrap();
    let left = pool.available(b.id()).unwrap();
    assert!(left <= MIB && pool.available(a.id()) == Ok(left));
    drop(block);
    assert_eq!(pool.available(b.id()), Ok(6 * MIB));
    device.fail_as(Some("simCapacity"), 1, 1, SourceErrorKind::Lost);
    assert!(matches!(pool.available(a.id()), Err(PoolError::Source(error)) if error.call == "simCapacity"));
}

/// Empty segments go back before the pool grows, but only what is left of them within the limit is room.
#[test]
fn a_limit_below_what_is_reserved_leaves_less() {
    let device: DeviceMemory = DeviceMemory::new(128 * MIB);
    let stream = device.stream();
    let pool = DevicePool::new(device.clone(), PoolOptions::new().small(0, 0).fitted_segments(MIB)).unwrap();
    let [a, b, _live] = [8, 8, 20].map(|size| pool.allocate_raw(size * MIB, 1, &stream).unwrap());
    pool.deallocate(a).unwrap();
    pool.deallocate(b).unwrap();
    pool.set_limit(30 * MIB).unwrap();
    let most = pool.available(stream.id()).unwrap();
    assert_eq!(most, 10 * MIB);
    assert!(pool.allocate(most, &stream).is_ok());
}
