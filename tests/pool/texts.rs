//! What errors and values say.

use super::{KIB, MIB, pool};
use allotment::arena;
use allotment::plan::{PlanError, Planned};
use allotment::pool::{
    BlockSnapshot, BlockState, MemoryKind, OutOfMemory, Pattern, PlannedArena, PoolError, PoolOptions,
    PoolStats, SourceCalls, SourceError, SourceErrorKind,
};
use std::fmt::Display;
use std::panic::Location;
use std::time::Duration;

fn say<T: Display>(texts: &[(T, &str)]) {
    for (error, text) in texts {
        assert_eq!(error.to_string(), *text);
    }
}

#[test]
fn errors_of_sources_name_the_call() {
    let error = |kind, code| SourceError { kind, call: "cuCall", code };
    say(&[
        (
            error(SourceErrorKind::OutOfMemory, 2),
            "cuCall: the device is out of memory (CUDA_ERROR_OUT_OF_MEMORY, code 2)",
        ),
        (error(SourceErrorKind::Unsupported, 0), "cuCall: the source does not support this"),
        (
            error(SourceErrorKind::Invalid, 1),
            "cuCall: the arguments were refused (CUDA_ERROR_INVALID_VALUE, code 1)",
        ),
        (error(SourceErrorKind::Capturing, -1), "cuCall: a stream is capturing a graph (code -1)"),
        (error(SourceErrorKind::Lost, 0), "cuCall: the device is lost"),
        (error(SourceErrorKind::Other, 999), "cuCall: the call failed (CUDA_ERROR_UNKNOWN, code 999)"),
    ]);
    let of_cuda = |call, code| SourceError { kind: SourceErrorKind::Other, call, code };
    let no_device = "cuInit: the call failed (CUDA_ERROR_NO_DEVICE, code 100): no device is visible to the process; look at \
                     `nvidia-smi` and `CUDA_VISIBLE_DEVICES`";
    say(&[
        (of_cuda("cuInit", 100), no_device),
        (of_cuda("cuCall", 12_345), "cuCall: the call failed (code 12345)"),
        (of_cuda("hipCall", 100), "hipCall: the call failed (code 100)"),
        (of_cuda("curl", 1), "curl: the call failed (code 1)"),
    ]);
    assert_eq!(format!("{:?}", of_cuda("cuInit", 100)), no_device);
    assert_eq!(SourceError::unsupported("cuCall"), error(SourceErrorKind::Unsupported, 0));
    for kind in [SourceErrorKind::OutOfMemory, SourceErrorKind::Lost, SourceErrorKind::Other] {
        assert_eq!(error(kind, 0).is_out_of_memory(), kind == SourceErrorKind::OutOfMemory);
    }
}

#[test]
fn errors_of_pools_say_what_is_wrong() {
    let lost = SourceError { kind: SourceErrorKind::Lost, call: "cuCall", code: 0 };
    let full = OutOfMemory {
        requested: 10,
        align: 256,
        free: 20 << 20,
        reserved: 81_559 << 20,
        limit: 40 << 30,
        largest_free: 5 << 9,
        source: None,
        pools: vec![],
    };
    let start = "out of memory: 10 B aligned to 256 bytes requested, 81559.0 MiB reserved, 20.0 MiB of them free, largest \
                 free block 2.5 KiB";
    assert_eq!(format!("{:?}", PoolError::OutOfMemory(full.clone().into())), full.to_string());
    let pools: Vec<_> =
        [("one", 3 << 20), ("two", 7), ("three", 0)].map(|(name, bytes)| (name.to_string(), bytes)).into();
    let asked = OutOfMemory { source: Some(lost), pools: pools.clone(), ..full.clone() };
    let alone = OutOfMemory { pools: pools[..1].to_vec(), ..full.clone() };
    say(&[
        (full.clone(), &format!("{start}; the limit is 40960.0 MiB")),
        (alone, &format!("{start}; the limit is 40960.0 MiB; reserved by pool one: 3.0 MiB")),
        (
            asked,
            &format!(
                "{start}; cuCall: the device is lost; reserved by pool one: 3.0 MiB, two: 7 B, three: 0 B"
            ),
        ),
    ]);
    say(&[
        (PoolError::OutOfMemory(full.into()), &format!("{start}; the limit is 40960.0 MiB")),
        (
            PoolError::TooLarge { max: 7 },
            "the request exceeds the 7 B that one block may have, or its alignment is not a power of two",
        ),
        (
            PoolError::WrittenAfterFree { address: 0x1f },
            "the byte at 0x1f was written while its memory was free",
        ),
        (PoolError::TooManyStreams, "the pool already has 65535 streams, the most it can"),
        (
            PoolError::Capturing,
            "a stream is capturing a graph, and the request needs a driver call that a capture forbids",
        ),
        (PoolError::NotCapturing, "the stream is not capturing a graph"),
        (PoolError::Option("small"), "the pool's option `small` has a value that cannot work"),
        (PoolError::from(lost), "cuCall: the device is lost"),
    ]);
    say(&[
        (PoolError::Foreign, "the block is not from this pool"),
        (PoolError::AlreadyFree, "the block is already free"),
        (PoolError::Overrun { offset: -3 }, "byte -3, outside the block, was overwritten"),
    ]);
}

#[test]
fn errors_of_plans_name_the_buffer() {
    say(&[
        (PoolError::NoSlot { slot: 3 }, "the plan has no buffer 3"),
        (PoolError::SlotLive { slot: 3 }, "buffer 3 of the plan is already live"),
        (
            PoolError::SlotOverlap { slot: 3, with: 4 },
            "buffer 3 of the plan shares memory with buffer 4, which is still live",
        ),
        (PoolError::SlotStream, "the plan's arena is for work on another stream"),
        (PoolError::SlotLength { have: 5, asked: 6 }, "6 bytes requested, but the plan's buffer has 5"),
        (PoolError::SlotAlign { slot: 3 }, "buffer 3 of the plan is not aligned to 256 bytes"),
        (
            PoolError::SlotLost { slot: 3 },
            "buffer 3 of the plan may still be in use on another stream, because the driver failed",
        ),
    ]);
    say(&[
        (PoolError::SlotsLive { live: 2 }, "2 buffers of the old plan are still live"),
        (PoolError::Plan(PlanError::NoRule), &PlanError::NoRule.to_string()),
    ]);
}

#[test]
fn kinds_and_leaks_have_names() {
    say(&[
        (MemoryKind::Device, "device memory"),
        (MemoryKind::Managed, "managed memory"),
        (MemoryKind::ReadMostly, "read-mostly managed memory"),
        (MemoryKind::Pinned, "pinned memory"),
        (MemoryKind::Host, "host memory"),
    ]);
    let site = Location::caller();
    let leak = BlockSnapshot {
        address: 0x100,
        bytes: 256,
        requested: 7,
        state: BlockState::Live,
        stream: 0,
        site: None,
    };
    say(&[
        (leak.clone(), "7 bytes at 0x100 were not freed"),
        (
            BlockSnapshot { site: Some(site.to_string()), ..leak },
            &format!("7 bytes at 0x100 were not freed; allocated at {site}"),
        ),
    ]);
}

arena! {
    struct Pair(4096) {
        FIRST: [u8; 512] = 0..2, align(256);
        SECOND: [u8; 512] = 1..3, align(256);
    }
}

#[test]
fn values_show_where_they_are() {
    let pool = pool(64, PoolOptions::new());
    let stream = pool.source().stream();
    let shows = |value: &dyn std::fmt::Debug, parts: &[&str]| {
        let text = format!("{value:?}");
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let buffer = pool.allocate(KIB, &stream).unwrap();
    shows(
        &buffer,
        &["PoolBlock(Some(Allocation {", &format!("address: {}", buffer.address()), "bytes: 1024"],
    );
    assert!(std::ptr::eq(buffer.pool(), &pool));
    let (start, bytes) = buffer.segment();
    assert!((start..start + bytes).contains(&buffer.address()) && bytes == 2 * MIB);
    let movable = pool.allocate_movable(3 * KIB, &stream).unwrap();
    let address = movable.address();
    assert!(format!("{movable:?}").starts_with(&format!("PoolBlock(Some(Allocation {{ address: {address}")));
    shows(&pool, &["RawPool { source: \"simulated device\", stats: PoolStats {", "current: 4096"]);

    let arena = PlannedArena::new(&pool, Pair::PLACED, &stream).unwrap();
    shows(&arena, &["PlannedArena {", "live: 0, .."]);
    let planned = arena.take(1).unwrap();
    shows(&arena, &["PlannedArena { block: Owned(", "live: 1, .."]);
    assert_eq!((planned.slot(), planned.address()), (Some(1), arena.address() + Pair::SECOND.offset()));
    assert!(std::ptr::eq(*arena.pool(), &pool));
    let id = |stream| allotment::pool::Stream::id(stream);
    assert_eq!((arena.bytes(), id(arena.stream())), (1024, id(&stream)));

    let pattern = Pattern::new(&pool);
    pattern.begin().unwrap();
    let recorded = pattern.allocate(KIB, &stream).unwrap();
    shows(&pattern, &["Pattern { stats: PatternStats { iterations: 1, recorded: 1,"]);
    let text = format!("PlannedBuffer {{ slot: None, address: {}, .. }}", recorded.address());
    assert_eq!(format!("{recorded:?}"), text);
    assert!(std::ptr::eq(*pattern.pool(), &pool));
    drop(recorded);
    pattern.begin().unwrap();
    shows(&pattern.allocate(KIB, &stream).unwrap(), &["slot: Some(0)"]);
}

#[test]
fn statistics_are_a_table() {
    let pool = pool(256, PoolOptions::new());
    let stream = pool.source().stream();
    let large = pool.allocate(15 * MIB, &stream).unwrap();
    let small = pool.allocate(300, &stream).unwrap();
    drop(large);
    assert!(pool.allocate(300 * MIB, &stream).is_err());
    let stats = pool.stats();
    let stats = PoolStats { calls: SourceCalls { time: Duration::from_millis(20), ..stats.calls }, ..stats };
    let table = "                    now          peak     allocated         freed
allocated         512 B      15.0 MiB      15.0 MiB      15.0 MiB
requested         300 B      15.0 MiB      15.0 MiB      15.0 MiB
active            512 B      15.0 MiB      15.0 MiB      15.0 MiB
inactive        2.0 MiB      18.0 MiB      33.0 MiB      31.0 MiB
reserved        2.0 MiB      18.0 MiB      18.0 MiB      16.0 MiB
blocks                1             2             2             1
segments              1             2             2             1
largest free block 2.0 MiB, 0 % of the free memory outside it, 41 % of the allocated memory rounding
requests: 3 (0.0 % without the source), 2 repeated, 1 failed
source: 5 reserved, 0 lengthened, 1 given back, 0 unmapped, 0 mapped again, 0 waits, 3 failed, 20.0ms";
    assert_eq!(stats.to_string(), table);
    drop(small);
}
