//! Pools over a simulated device, under operations that bytes choose.

use std::time::Duration;

use allotment::placement::{GoodFit, SegmentPlacement};
use allotment::pool::{
    Allocation, DefaultPlacement, Event as _, PoolBlock, PoolError, PoolOptions, RawPool, Reuse, Snapshot,
    SourceErrorKind, Stream as _,
};
use allotment::sim::{CALLS, DeviceMemory, Hazard, Stream};

use crate::choices::Choices;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// The most blocks at a time.
const LIVE: usize = 60;

/// Lets a pool with the placement and the options of the first bytes allocate what the others ask for; calls of the driver fail now
/// and then. Returns the number of operations.
///
/// # Panics
///
/// If blocks overlap, if a stream uses memory before the work of another owner on it is done, if statistics are wrong, or if the
/// pool accepts an invalid free or keeps memory in the end.
pub fn operate(bytes: &[u8]) -> usize {
    let mut choices = Choices(bytes);
    match choices.byte() % 3 {
        0 => run::<DefaultPlacement>(choices),
        1 => run::<GoodFit<u32, 256, { usize::MAX }>>(choices),
        _ => run::<GoodFit<u32, 512>>(choices),
    }
}

fn options(choices: &mut Choices<'_>) -> PoolOptions {
    let reuse = [Reuse::None, Reuse::Basic, Reuse::Advanced, Reuse::Aggressive][choices.below(4)];
    let flags = choices.byte();
    let mut options = PoolOptions::new().reuse(reuse).lean(flags & 1 != 0);
    options = match choices.below(4) {
        0 => options,
        1 => options.segments(MIB << choices.below(4)).small(0, 0),
        2 => options.geometric_segments(MIB, 150, 16 * MIB),
        _ => options.fitted_segments(8 * MIB),
    };
    if flags & 2 != 0 {
        options = options.adaptive(1 + choices.below(8) as u64, 1.0);
    }
    if flags & 4 != 0 {
        options = options.trim_after_steps(choices.below(4) as u64);
    }
    if flags & 8 != 0 {
        options = options.limit((4 + choices.below(32)) * MIB);
    }
    if flags & 16 != 0 {
        options = options.first_segment(choices.below(16) * MIB);
    }
    options
}

enum Held<'p, P: SegmentPlacement> {
    Buffer(PoolBlock<'p, P, DeviceMemory>),
    Movable(PoolBlock<'p, P, DeviceMemory>),
    Raw(Allocation),
}

struct Block<'p, P: SegmentPlacement> {
    held: Held<'p, P>,
    owner: u64,
    /// The number of its stream.
    stream: usize,
}

impl<P: SegmentPlacement> Block<'_, P> {
    /// The first byte and the length.
    fn span(&self) -> (usize, usize) {
        match &self.held {
            Held::Buffer(buffer) => (buffer.address(), buffer.bytes()),
            Held::Movable(movable) => (movable.address(), movable.bytes()),
            Held::Raw(allocation) => (allocation.address(), allocation.bytes()),
        }
    }

    fn launch_on(&self, stream: &Stream) {
        let (address, bytes) = self.span();
        if bytes > 0 {
            stream.launch(self.owner, address, bytes);
        }
    }
}

/// Makes `to` wait for the work submitted to `from` so far. `None` if the driver refuses.
fn hand_over(from: &Stream, to: &Stream) -> Option<()> {
    let event = from.record().ok()?;
    if event.is_done().ok()? {
        return Some(());
    }
    to.wait(&event).ok()
}

struct Run<'p, P: SegmentPlacement> {
    pool: &'p RawPool<P, DeviceMemory>,
    device: &'p DeviceMemory,
    streams: &'p [Stream],
    live: Vec<Block<'p, P>>,
    /// Where a block was that was freed.
    freed: usize,
    owners: u64,
    /// Whether a call of the driver was made to fail.
    failing: bool,
}

fn run<P: SegmentPlacement>(mut choices: Choices<'_>) -> usize {
    let room = choices.below(2) << 30;
    let device: DeviceMemory =
        DeviceMemory::new((8 + choices.below(56)) * MIB).with_granularity(64 * KIB).with_room(room);
    let streams: Vec<Stream> = (0..1 + choices.below(4)).map(|_| device.stream()).collect();
    let Ok(pool) = RawPool::<P, _>::new(device.clone(), options(&mut choices)) else { return 0 };
    let mut run = Run {
        pool: &pool,
        device: &device,
        streams: &streams,
        live: Vec::new(),
        freed: 1,
        owners: 0,
        failing: false,
    };
    let mut operations = 0;
    while !choices.0.is_empty() {
        operations += 1;
        run.step(&mut choices);
        run.check();
    }
    run.live.drain(..).for_each(|block| {
        if let Held::Raw(allocation) = block.held {
            pool.deallocate(allocation).expect("a live block can be freed");
        }
    });
    run.check();
    let failing = run.failing;
    drop(run);
    drop(pool);
    let mut hazards = device.take_hazards();
    // A pool that cannot query must wait.
    hazards.retain(|hazard| !failing || *hazard != Hazard::NeedlessWait);
    assert_eq!(hazards, []);
    assert!(failing || device.segments() == 0, "segments are left");
    operations
}

impl<'p, P: SegmentPlacement> Run<'p, P> {
    fn step(&mut self, choices: &mut Choices<'_>) {
        let (choice, number) = (choices.byte(), choices.below(self.streams.len()));
        let stream = &self.streams[number];
        match choice % 32 {
            0..=11 if self.live.len() < LIVE => self.allocate(choices, number),
            12..=14 if !self.live.is_empty() => {
                let at = choices.below(self.live.len());
                self.use_on(&self.live[at], stream);
            }
            15..=22 if !self.live.is_empty() => {
                let block = self.live.swap_remove(choices.below(self.live.len()));
                self.free(block, choices, stream);
            }
            23 => self.free_wrongly(choices),
            24 | 25 => {
                stream.step();
            }
            26 => stream.run(),
            27 => {
                self.pool.trim(choices.below(32) * MIB);
            }
            28 => {
                self.pool.step();
                self.device.advance(Duration::from_millis(choices.byte().into()));
            }
            29 => {
                let before = self.pool.stats();
                let moved = self.pool.compact(stream.id());
                let after = self.pool.stats();
                assert!(moved.is_err() || Ok(after.moved - before.moved) == moved);
                assert_eq!(after.allocated.current, before.allocated.current);
            }
            30 => drop(self.pool.preallocate(choices.below(64) * 256 * KIB, stream)),
            31 if choices.byte() < 64 => {
                let kind = [SourceErrorKind::OutOfMemory, SourceErrorKind::Other][choices.below(2)];
                let call = CALLS[choices.below(CALLS.len())];
                self.device.fail_as(Some(call), 1 + choices.below(4) as u64, 1, kind);
                self.failing = true;
            }
            _ => {
                self.pool.collect();
            }
        }
    }

    fn allocate(&mut self, choices: &mut Choices<'_>, number: usize) {
        let stream = &self.streams[number];
        let kind = choices.byte();
        let bytes = usize::from(choices.byte()) << [0, 4, 8, 10, 12, 13, 14, 16][usize::from(kind % 8)];
        let align = 1 << (kind >> 5);
        let held = match kind >> 3 & 3 {
            0 | 1 => self.pool.allocate_aligned(bytes, align, stream).map(Held::Buffer),
            2 => self.pool.allocate_movable(bytes, stream).map(Held::Movable),
            _ => self.pool.allocate_raw(bytes, align, stream).map(Held::Raw),
        };
        match held {
            Ok(held) => {
                self.owners += 1;
                let block = Block { held, owner: self.owners, stream: number };
                let (start, len) = block.span();
                assert_eq!(len, bytes);
                for other in &self.live {
                    let (from, bytes) = other.span();
                    assert!(start + len <= from || from + bytes <= start, "blocks overlap");
                }
                block.launch_on(stream);
                self.live.push(block);
            }
            Err(PoolError::OutOfMemory(full)) => {
                assert!(full.reserved <= full.limit && full.free <= full.reserved, "{full}");
            }
            Err(PoolError::Source(_)) if self.failing => {}
            Err(error) => panic!("{error}"),
        }
    }

    /// Uses a block on another stream, as a program has to.
    fn use_on(&self, block: &Block<'p, P>, stream: &Stream) {
        if hand_over(&self.streams[block.stream], stream).is_none() {
            return;
        }
        match &block.held {
            Held::Buffer(buffer) => buffer.used_on(stream),
            Held::Movable(movable) => movable.used_on(stream),
            Held::Raw(allocation) => self.pool.record_stream(allocation, stream).expect("the block is live"),
        }
        block.launch_on(stream);
    }

    fn free(&mut self, block: Block<'p, P>, choices: &mut Choices<'_>, stream: &Stream) {
        self.freed = block.span().0;
        let on_other = matches!(block.held, Held::Raw(_))
            && choices.below(2) == 0
            && hand_over(&self.streams[block.stream], stream).is_some();
        if on_other {
            block.launch_on(stream);
        }
        let Held::Raw(allocation) = block.held else { return };
        let freed = match choices.below(2) {
            _ if on_other => self.pool.deallocate_on(allocation, stream),
            0 if allocation.bytes() > 0 => self.pool.deallocate_at(allocation.address()),
            _ => self.pool.deallocate(allocation),
        };
        freed.expect("a live block can be freed");
    }

    fn free_wrongly(&mut self, choices: &mut Choices<'_>) {
        let before = self.pool.stats();
        if self.live.iter().all(|block| block.span().0 != self.freed) {
            let refused = self.pool.deallocate_at(self.freed);
            assert!(matches!(refused, Err(PoolError::AlreadyFree | PoolError::Foreign)), "{refused:?}");
        }
        if let Some(block) = self.live.first() {
            let (address, bytes) = block.span();
            if bytes > 1 {
                let inside = address + 1 + choices.below(bytes.min(256) - 1);
                assert_eq!(self.pool.deallocate_at(inside), Err(PoolError::AlreadyFree));
            }
        }
        assert_eq!(self.pool.deallocate_at(1), Err(PoolError::Foreign));
        assert_eq!(self.pool.stats(), before);
    }

    fn check(&self) {
        let stats = self.pool.stats();
        assert_eq!(stats.blocks.current, self.live.len() as u64);
        assert_eq!(stats.requested.current, self.live.iter().map(|block| block.span().1 as u64).sum::<u64>());
        assert_eq!(stats.active.current + stats.inactive.current, stats.reserved.current);
        assert!(self.failing || stats.reserved.current == self.device.reserved() as u64);
        if self.owners.is_multiple_of(16) {
            check_filled(&self.pool.snapshot());
        }
    }
}

/// The blocks of a snapshot fill its segments.
fn check_filled(snapshot: &Snapshot) {
    for segment in &snapshot.segments {
        let end = segment.blocks.iter().fold(segment.address, |end, block| {
            assert!(block.address == end && block.bytes > 0, "{segment:?}");
            end + block.bytes as usize
        });
        assert_eq!(end, segment.address + segment.bytes as usize);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the fuzzer does, with random bytes instead of chosen ones.
    #[test]
    fn pools_stand_random_operations() {
        let inputs = 2000;
        let operations = crate::choices::at_random(inputs, 1500, operate);
        println!("{operations} operations of {inputs} inputs");
        assert!(operations > 100 * inputs);
    }
}
