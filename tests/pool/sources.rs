//! Sources of other kinds: one that does only what it must, and one whose memory the CPU works on.

use super::{KIB, MIB};
use allotment::pool::{
    AnyPool as _, Capacity, DevicePool, MemoryKind, PoolOptions, Segment, Source, SourceError, Stream as _,
};
use allotment::region::Capabilities;
use allotment::sim::{DeviceMemory, Stream};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::collections::BTreeSet;
use std::num::NonZeroUsize;
use std::sync::Mutex;

/// A device that can reserve and release, and nothing else.
struct Plain(DeviceMemory);

// SAFETY: all calls go to the simulated device.
unsafe impl Source for Plain {
    type Stream = Stream;
    const CPU_VISIBLE: bool = false;

    fn name(&self) -> &str {
        "plain"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn granularity(&self) -> usize {
        self.0.granularity()
    }

    fn alignment(&self) -> usize {
        self.0.alignment()
    }

    fn capacity(&self) -> Result<Capacity, SourceError> {
        self.0.capacity()
    }

    fn reserve(&self, bytes: usize, stream: &Stream) -> Result<Segment, SourceError> {
        self.0.reserve(bytes, stream)
    }

    unsafe fn release(&self, segment: Segment, stream: &Stream) -> Result<(), SourceError> {
        // SAFETY: the caller's contract.
        unsafe { self.0.release(segment, stream) }
    }
}

#[test]
fn what_a_source_need_not_do_it_does_not() {
    let source = Plain(DeviceMemory::new(64 * MIB));
    let stream = source.0.stream();
    let segment = source.reserve(MIB, &stream).unwrap();
    assert_eq!((source.device(), source.room(&segment), source.page()), (None, MIB, 0));
    let (address, bytes) = (segment.address.get(), 4 * KIB);
    // SAFETY: none of these does anything.
    let errors = unsafe {
        [
            source.grow(segment, bytes, &stream).map(drop),
            source.unmap(address, bytes, &stream),
            source.map(address, bytes, &stream),
            source.copy(address, address + bytes, bytes, &stream),
        ]
    };
    assert_eq!(errors, ["grow", "unmap", "map", "copy"].map(|call| Err(SourceError::unsupported(call))));
    // The clock is the system's, and never stands still for good.
    let start = source.now();
    while source.now() == start {}
    // SAFETY: reserved above, and not used.
    unsafe { source.release(segment, &stream) }.unwrap();
}

#[test]
fn a_source_that_cannot_copy_moves_nothing() {
    let source = Plain(DeviceMemory::new(64 * MIB));
    let stream = source.0.stream();
    let pool = DevicePool::new(source, PoolOptions::new().lean(true)).unwrap();
    assert_eq!(pool.kind(), MemoryKind::Device);
    let mut blocks: Vec<_> = (0..4).map(|_| pool.allocate_movable(256 * KIB, &stream).unwrap()).collect();
    blocks.sort_by_key(|block| block.address());
    drop(blocks.remove(0));
    let before: Vec<usize> = blocks.iter().map(|block| block.address()).collect();
    assert_eq!(pool.compact(stream.id()), Err(SourceError::unsupported("copy")));
    assert!(blocks.iter().map(|block| block.address()).eq(before));
    assert_eq!((pool.stats().calls.failed, pool.stats().blocks.current), (1, 3));
}

/// Memory of the process whose segments grow and lose pages. New memory and new pages have contents of their own.
struct Host {
    /// The pages that have memory.
    pages: Mutex<BTreeSet<usize>>,
}

impl Host {
    /// Gives memory to the pages of a range that must have none, or takes it from pages that must have it.
    fn change(&self, address: usize, bytes: usize, have: bool) {
        assert_eq!((address % PAGE, bytes % PAGE), (0, 0));
        let mut pages = self.pages.lock().unwrap();
        for page in (address..address + bytes).step_by(PAGE) {
            assert!(if have { pages.insert(page) } else { pages.remove(&page) });
        }
    }
}

const ROOM: usize = 256 * KIB;
const PAGE: usize = 4 * KIB;

fn layout() -> Layout {
    Layout::from_size_align(ROOM, PAGE).unwrap()
}

fn fill(address: usize, bytes: usize, value: u8) {
    // SAFETY: all memory that the test knows of is reserved, and the test is alone with it.
    unsafe { std::ptr::with_exposed_provenance_mut::<u8>(address).write_bytes(value, bytes) };
}

// SAFETY: segments are blocks of the global allocator.
unsafe impl Source for Host {
    type Stream = ();
    const CPU_VISIBLE: bool = true;

    fn name(&self) -> &str {
        "host"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::empty()
    }

    fn granularity(&self) -> usize {
        PAGE
    }

    fn alignment(&self) -> usize {
        PAGE
    }

    fn capacity(&self) -> Result<Capacity, SourceError> {
        let reserved = self.pages.lock().unwrap().len() * PAGE;
        Ok(Capacity { total: 16 * MIB, free: 16 * MIB - reserved })
    }

    fn reserve(&self, bytes: usize, (): &()) -> Result<Segment, SourceError> {
        // SAFETY: the layout is not empty.
        let address = unsafe { alloc_zeroed(layout()) }.expose_provenance();
        self.change(address, bytes, true);
        Ok(Segment { address: NonZeroUsize::new(address).unwrap(), bytes, zeroed: true })
    }

    unsafe fn release(&self, segment: Segment, (): &()) -> Result<(), SourceError> {
        let memory = std::ptr::with_exposed_provenance_mut(segment.address.get());
        let end = segment.address.get() + segment.bytes;
        self.pages.lock().unwrap().retain(|page| !(segment.address.get()..end).contains(page));
        // SAFETY: allocated with this layout, and released once.
        unsafe { dealloc(memory, layout()) };
        Ok(())
    }

    fn room(&self, _: &Segment) -> usize {
        ROOM
    }

    unsafe fn grow(&self, segment: Segment, bytes: usize, (): &()) -> Result<Segment, SourceError> {
        self.change(segment.address.get() + segment.bytes, bytes, true);
        Ok(Segment { bytes: segment.bytes + bytes, ..segment })
    }

    fn page(&self) -> usize {
        PAGE
    }

    unsafe fn unmap(&self, address: usize, bytes: usize, (): &()) -> Result<(), SourceError> {
        self.change(address, bytes, false);
        fill(address, bytes, 0x55);
        Ok(())
    }

    unsafe fn map(&self, address: usize, bytes: usize, (): &()) -> Result<(), SourceError> {
        self.change(address, bytes, true);
        fill(address, bytes, 0xaa);
        Ok(())
    }
}

/// With all checks on, memory that came, grew, went page by page and came back is filled and guarded throughout: nothing
/// seems to have been written that was not.
#[test]
fn memory_of_the_cpu_is_checked_however_it_came() {
    for (guard, lean) in [(false, false), (true, false), (false, true), (true, true)] {
        let options = PoolOptions::new().lean(lean).small(0, 0).segments(PAGE);
        let options = options.exact_above(usize::MAX, PAGE).fill(0xdd).guards(guard);
        let pool = DevicePool::new(Host { pages: Mutex::default() }, options).unwrap();
        assert_eq!(pool.kind(), MemoryKind::Host);
        let mut random = fastrand::Rng::with_seed(1);
        let mut live = Vec::new();
        for _ in 0..3000 {
            match random.u32(..20) {
                0..11 => {
                    let align = 1 << random.u32(..13);
                    let block = pool.allocate_raw(random.usize(..20_000), align, &()).unwrap();
                    fill(block.address(), block.bytes(), 7);
                    live.push(block);
                }
                11..19 if !live.is_empty() => {
                    let block = live.swap_remove(random.usize(..live.len()));
                    assert_eq!(pool.deallocate(block), Ok(()));
                }
                19 => drop(pool.trim(random.usize(..MIB))),
                _ => {}
            }
            if live.len() > 25 {
                live.drain(..20).for_each(|block| pool.deallocate(block).unwrap());
            }
            let stats = pool.stats();
            let capacity = pool.source().capacity().unwrap();
            assert_eq!(stats.reserved.current as usize, capacity.total - capacity.free);
            assert_eq!(stats.active.current, stats.allocated.current, "nothing waits for the CPU");
        }
        let calls = pool.stats().calls;
        assert!(
            [calls.grow, calls.unmap, calls.map, calls.release].iter().all(|&calls| calls > 0),
            "{calls:?}"
        );
        assert_eq!((calls.failed, calls.synchronize), (0, 0));
        live.into_iter().for_each(|block| pool.deallocate(block).unwrap());
    }
}
