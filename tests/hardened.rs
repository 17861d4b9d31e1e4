//! The hardened heap of the process, as the global allocator of this program. What ends a program does so in a child process.
#![cfg(all(target_os = "linux", feature = "std"))]

use allotment::os::{Growing, Hardened};
use allotment::{FreeError, Memory};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeSet;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::{Barrier, Mutex, MutexGuard, PoisonError};
use std::thread;

#[global_allocator]
static HEAP: Hardened = Hardened;

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn block(size: usize) -> NonNull<u8> {
    NonNull::new(HEAP.allocate_raw(size, 8)).unwrap()
}

/// Frees a block, which may be a misuse.
fn free(block: NonNull<u8>) -> Result<(), FreeError> {
    // SAFETY: the block is not used any more; a free of no live block is what is tested, and changes nothing.
    unsafe { HEAP.free(block) }
}

/// Writes to memory that may be no live block's.
fn write(block: NonNull<u8>, at: isize, bytes: usize) {
    // SAFETY: none where it is a misuse, which is what is tested: the memory is the heap's.
    unsafe { block.as_ptr().offset(at).write_bytes(0xee, bytes) }
}

/// Lets one test run at a time: a child has only the thread that forks, and waits for no lock of others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` in a child by `fork`. Returns the signal that ended it, and what it wrote to standard error.
fn in_child(f: impl FnOnce()) -> (i32, String) {
    let mut pipe = [0; 2];
    // SAFETY: the child runs one function of the test, whose memory the fork leaves whole, and ends.
    unsafe {
        assert_eq!(libc::pipe(pipe.as_mut_ptr()), 0);
        let child = libc::fork();
        if child == 0 {
            let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &limit);
            libc::dup2(pipe[1], 2);
            f();
            libc::_exit(0);
        }
        libc::close(pipe[1]);
        let mut text = String::new();
        std::fs::File::from_raw_fd(pipe[0]).read_to_string(&mut text).unwrap();
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        (if libc::WIFSIGNALED(status) { libc::WTERMSIG(status) } else { 0 }, text)
    }
}

/// A block of no bytes has an address of its own, which cannot be accessed and is freed once.
#[test]
fn empty_blocks_cannot_be_accessed() {
    let _alone = alone();
    let blocks: Vec<_> = (0..3000).map(|_| block(0)).collect();
    let mut sorted = blocks.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), blocks.len());
    let here = blocks[7];
    assert!(here.addr().get().is_multiple_of(16) && HEAP.usable_size(here) == Some(0));
    assert_eq!(in_child(|| write(here, 0, 1)).0, libc::SIGSEGV);
    // SAFETY: a block of no bytes ends where it begins.
    assert_eq!(in_child(|| _ = unsafe { here.read_volatile() }).0, libc::SIGSEGV);
    // SAFETY: the addresses are in the range of the blocks.
    assert_eq!(free(unsafe { here.add(8) }), Err(FreeError::NotABlock));
    assert_eq!((free(here), free(here)), (Ok(()), Err(FreeError::AlreadyFree)));
    assert_ne!(block(0), here, "an address stays free for long");
    // SAFETY: the block is live, and not used at its old address if it moves.
    let grown = unsafe { HEAP.change(blocks[8], 100, 16) };
    assert!(!grown.is_null() && grown != blocks[8].as_ptr());
    assert_eq!(free(blocks[8]), Err(FreeError::AlreadyFree));
    write(NonNull::new(grown).unwrap(), 0, 100);
    let empty = layout(0);
    assert_eq!(
        (HEAP.check(blocks[9], empty), HEAP.check(blocks[9], layout(1))),
        (Ok(()), Err(FreeError::NotABlock))
    );
    // SAFETY: the block is live.
    assert!(unsafe { !HEAP.try_resize(blocks[9], empty, 1) });
    blocks[9..].iter().for_each(|&block| free(block).unwrap());
}

/// A freed large block cannot be accessed until others were freed, and its memory can be used again then.
#[test]
fn freed_large_blocks_cannot_be_accessed() {
    let _alone = alone();
    const SIZE: usize = 300_000;
    let first = block(SIZE);
    write(first, 0, SIZE);
    free(first).unwrap();
    for at in [0, 150_000, SIZE - 1] {
        assert_eq!(in_child(|| write(first, at as isize, 1)).0, libc::SIGSEGV, "{at}");
    }
    assert_eq!((free(first), HEAP.usable_size(first)), (Err(FreeError::AlreadyFree), None));
    let mut seen = BTreeSet::new();
    for _ in 0..1000 {
        let next = block(SIZE);
        seen.insert(next);
        // SAFETY: the block is live.
        let bytes = unsafe { std::slice::from_raw_parts(next.as_ptr(), SIZE) };
        assert!(bytes.iter().all(|&byte| byte == 0), "the contents are gone");
        write(next, 0, SIZE);
        // SAFETY: the block is live, and not used at its old address if it moves.
        let grown = NonNull::new(unsafe { HEAP.change(next, 2 * SIZE, 16) }).unwrap();
        write(grown, SIZE as isize, SIZE);
        free(grown).unwrap();
    }
    let short = block(60_000);
    write(short, 0, 60_000);
    free(short).unwrap();
    for _ in 0..50 {
        let next = block(60_000);
        // SAFETY: the block is live.
        let bytes = unsafe { std::slice::from_raw_parts(next.as_ptr(), 60_000) };
        assert!(bytes.iter().all(|&byte| byte == 0), "no data of an earlier block shows up");
        write(next, 0, 60_000);
        free(next).unwrap();
    }
    // In place, a block would keep its alignment.
    let (old, new) = (layout(100_000), Layout::from_size_align(60_000, 1 << 20).unwrap());
    let block = HEAP.try_allocate(old).unwrap();
    // SAFETY: the block is live, and not used at its old address if it moves.
    let aligned = unsafe { Memory::change(&HEAP, block, old, new, &mut |_| {}) }.unwrap();
    assert_eq!(aligned.addr().get() % (1 << 20), 0);
    free(aligned).unwrap();
    assert!(seen.len() < 200, "the memory is used again: {}", seen.len());
    // What the hidden blocks have is there for requests that would fail otherwise.
    let used = Growing::new().stats().used;
    assert!(used < 64 << 20, "{used}");
}

/// Every free but the right one is refused, whatever the program has written to the block, and however long ago it was freed.
#[test]
fn only_live_blocks_are_freed() {
    let _alone = alone();
    for size in [1, 8, 9, 40, 48, 100, 600, 1016, 1017, 5000, 32_760, 32_761, 100_000] {
        let [before, here, behind] = [(); 3].map(|()| block(size));
        write(here, 0, size);
        for offset in
            (1..size.min(200)).chain([size / 2, size - 1]).filter(|&offset| offset != 0 && offset < size)
        {
            // SAFETY: the address is in the block.
            let inside = unsafe { here.add(offset) };
            let error = free(inside).unwrap_err();
            assert!(matches!(error, FreeError::NotABlock | FreeError::Foreign), "{size} + {offset}: {error}");
        }
        free(here).unwrap();
        let again = |when: &str| {
            let error = free(here).unwrap_err();
            let is_large = size > 32_760;
            assert!(error == FreeError::AlreadyFree || is_large, "{size}, {when}: {error}");
        };
        again("at once");
        if size <= 1016 {
            // The memory may be the list's or wait: the record of it is elsewhere.
            for _ in 0..300 {
                free(block(size)).unwrap();
            }
            if HEAP.usable_size(here).is_none() {
                again("300 frees later");
            }
        }
        free(before).unwrap();
        free(behind).unwrap();
    }
    let place = [0_u64; 4];
    assert_eq!(free(NonNull::from(&place[1]).cast()), Err(FreeError::Foreign));
}

/// What a program writes to a freed block hides no double free.
#[test]
fn a_write_hides_no_double_free() {
    let _alone = alone();
    for size in [8, 48, 600] {
        let (signal, text) = in_child(|| {
            let block = block(size);
            free(block).unwrap();
            write(block, 0, size);
            assert_eq!(free(block), Err(FreeError::AlreadyFree));
        });
        assert_eq!(signal, 0, "{text}");
    }
}

#[test]
fn one_of_two_threads_frees_a_block() {
    let _alone = alone();
    for _ in 0..200 {
        let address = block(48).as_ptr().expose_provenance();
        let barrier = Barrier::new(2);
        let freed: Vec<bool> = thread::scope(|scope| {
            let both = [(); 2].map(|()| {
                scope.spawn(|| {
                    barrier.wait();
                    free(NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap()).is_ok()
                })
            });
            both.map(|thread| thread.join().unwrap()).into()
        });
        assert_eq!(freed.iter().filter(|&&freed| freed).count(), 1);
    }
}

/// A block of another layout is not freed, and stays live.
#[test]
fn layouts_are_checked() {
    let _alone = alone();
    // SAFETY: frees that are refused change nothing, and the last one is right.
    unsafe {
        for (size, others) in [(48, [40, 56, 1, 600, 40_000]), (600, [48, 6000, 700, 8, 40_000])] {
            let block = HEAP.allocate(layout(size)).unwrap();
            for other in others {
                assert_eq!(HEAP.check(block, layout(other)), Err(FreeError::NotABlock), "{size} {other}");
                assert_eq!(HEAP.try_deallocate(block, layout(other)), Err(FreeError::NotABlock));
            }
            HEAP.try_deallocate(block, layout(size)).unwrap();
            assert_eq!(HEAP.check(block, layout(size)), Err(FreeError::AlreadyFree));
        }
    }
}

/// One byte behind the bytes that the block may use, or in front of the next one, is found when it is freed.
#[test]
fn overruns_are_found() {
    let _alone = alone();
    for size in [8, 16, 40, 48, 100, 600, 5000, 30_000] {
        let (signal, text) = in_child(|| {
            let blocks = [(); 40].map(|()| block(size));
            let usable = HEAP.usable_size(blocks[7]).unwrap();
            assert!(size <= usable);
            // All of it may be used.
            write(blocks[3], 0, usable);
            free(blocks[3]).unwrap();
            write(blocks[7], usable as isize, 1);
            assert_eq!(free(blocks[7]), Err(FreeError::Overrun));
            // What is in front of a block is the canary of the one before it.
            let others = &blocks[8..];
            let behind = |front: &NonNull<u8>| front.addr().get() + usable + 8;
            let mut pairs = others.iter().filter_map(|front| {
                Some((front, others.iter().find(|block| block.addr().get() == behind(front))?))
            });
            let (front, block) = pairs.next().unwrap();
            write(*block, -1, 1);
            assert_eq!(free(*front), Err(FreeError::Overrun));
        });
        assert_eq!(signal, 0, "{size}: {text}");
    }
}

/// The allocation of a block to which something wrote after its free ends the program.
#[test]
fn writes_to_freed_blocks_are_found() {
    let _alone = alone();
    for (size, at) in
        [(8, 0), (8, 8), (48, 0), (48, 8), (48, 16), (48, 47), (600, 300), (600, 599), (5000, 4999)]
    {
        let (signal, text) = in_child(|| {
            let freed = [(); 400].map(|()| block(size));
            freed.iter().for_each(|&block| free(block).unwrap());
            freed.iter().for_each(|&block| write(block, at, 1));
            for _ in 0..400 {
                block(size);
            }
        });
        assert_eq!(signal, libc::SIGABRT, "{size} + {at}: {text}");
        let named = ["written to after it was freed", "list of free blocks is damaged", "free already"];
        assert!(named.iter().any(|named| text.contains(named)), "{text}");
    }
}

/// A write to a block that waits is found when it has waited, wherever it was.
#[test]
fn writes_to_waiting_blocks_are_found() {
    let _alone = alone();
    for at in [0, 8] {
        let (signal, text) = in_child(|| {
            let others = [(); 1000].map(|()| block(48));
            let first = block(48);
            free(first).unwrap();
            write(first, at, 1);
            others.iter().for_each(|&other| free(other).unwrap());
            let others = [(); 1000].map(|()| block(48));
            others.iter().for_each(|&other| free(other).unwrap());
        });
        assert_eq!(signal, libc::SIGABRT, "{text}");
        assert!(text.contains("written to after it was freed"), "{text}");
    }
}

/// A damaged link, with the mark that belongs to it, leads to no live block.
#[test]
fn a_forged_link_hands_out_no_live_block() {
    let _alone = alone();
    let (signal, text) = in_child(|| {
        let victim = block(48);
        // Beyond the places where blocks wait, so that the list has some of them.
        let freed = [(); 2000].map(|()| block(48));
        freed.iter().for_each(|&block| free(block).unwrap());
        for block in freed {
            let link = victim.addr().get();
            let words = [link, block.addr().get().wrapping_add(0x5bd1_e995) ^ link];
            // SAFETY: none: the misuse that is tested. The block has two words.
            unsafe { block.cast::<[usize; 2]>().write(words) };
        }
        for _ in 0..2000 {
            assert_ne!(HEAP.allocate_raw(48, 8), victim.as_ptr());
        }
    });
    assert_eq!(signal, libc::SIGABRT, "{text}");
}

/// A freed block is not the next one that is allocated, and shows nothing of what it held.
#[test]
fn freed_blocks_wait_and_are_zero() {
    let _alone = alone();
    for size in [16, 48, 600] {
        let first = block(size);
        write(first, 0, size);
        free(first).unwrap();
        let others = [(); 40].map(|()| block(size));
        assert!(others.iter().all(|&other| other != first));
        for _ in 0..5000 {
            let block = block(size);
            // SAFETY: the block is live, and no fresh one: these have been freed before.
            let seen = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
            if block == first {
                assert!(seen.iter().all(|&byte| byte == 0));
            }
            write(block, 0, size);
            free(block).unwrap();
        }
        others.iter().for_each(|&other| free(other).unwrap());
    }
}

/// Programs without mistakes see none reported, while pages change their class, memory goes back, and threads come and go.
#[test]
fn right_programs_go_on() {
    let _alone = alone();
    for round in 0..6 {
        let run = |seed: u64| {
            let mut random = fastrand::Rng::with_seed(seed);
            let mut live: Vec<(*mut u8, Layout, u8)> = Vec::new();
            for step in 0..15_000 {
                let grows = (step / 2500) % 2 == 0;
                if !live.is_empty() && random.u32(..10) < if grows { 3 } else { 7 } {
                    let (block, layout, seed) = live.swap_remove(random.usize(..live.len()));
                    // SAFETY: the block is live, and has its layout.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(block, layout.size());
                        assert!(bytes.iter().all(|&byte| byte == seed));
                        if random.u32(..4) > 0 {
                            HEAP.dealloc(block, layout);
                            continue;
                        }
                        let size = random.usize(1..=3 * layout.size());
                        let moved = HEAP.realloc(block, layout, size);
                        let kept = std::slice::from_raw_parts(moved, size.min(layout.size()));
                        assert!(kept.iter().all(|&byte| byte == seed));
                        moved.write_bytes(seed, size);
                        live.push((moved, Layout::from_size_align(size, layout.align()).unwrap(), seed));
                    }
                    continue;
                }
                let size = match random.u32(..20) {
                    0..13 => random.usize(1..200),
                    13..18 => random.usize(1..4000),
                    18 => random.usize(1..40_000),
                    _ => random.usize(1..200_000),
                };
                let layout = Layout::from_size_align(size, 1 << random.u32(..9)).unwrap();
                let seed = random.u8(1..);
                // SAFETY: the size is not zero, and the block has these bytes.
                unsafe {
                    let block = if random.bool() {
                        let block = HEAP.alloc_zeroed(layout);
                        assert!(std::slice::from_raw_parts(block, size).iter().all(|&byte| byte == 0));
                        block
                    } else {
                        HEAP.alloc(layout)
                    };
                    assert_eq!(block.addr() % layout.align(), 0);
                    block.write_bytes(seed, size);
                    live.push((block, layout, seed));
                }
            }
            for (block, layout, _) in live {
                // SAFETY: the block is live, and has its layout.
                unsafe { HEAP.dealloc(block, layout) }
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| run(round));
            scope.spawn(|| run(round + 100));
        });
        Growing::new().trim();
    }
}

/// A heap of its own has addresses that the record does not know.
#[test]
fn heaps_of_their_own_leave_the_record_alone() {
    let _alone = alone();
    let kept: Vec<_> = (0..1000).map(|_| block(100)).collect();
    for _ in 0..3 {
        let heap = Growing::create();
        let blocks: Vec<_> = (0..20_000).map(|_| heap.allocate(layout(100)).unwrap()).collect();
        // SAFETY: the blocks are live, and freed once.
        blocks.into_iter().for_each(|block| unsafe { heap.deallocate(block, layout(100)) });
        heap.trim();
        assert_eq!(heap.stats().used, 0);
    }
    kept.into_iter().for_each(|block| free(block).unwrap());
}

/// Blocks keep their contents by `change` as well, which knows no layouts.
#[test]
fn sizes_change_by_address() {
    let _alone = alone();
    for (from, to) in
        [(10, 8), (10, 5000), (5000, 10), (5000, 50_000), (50_000, 500_000), (500_000, 20), (32_760, 32_761)]
    {
        let first = block(from);
        write(first, 0, from);
        // SAFETY: the block is live, and not used at its old address.
        unsafe {
            let moved = NonNull::new(HEAP.change(first, to, 8)).unwrap();
            let kept = std::slice::from_raw_parts(moved.as_ptr(), from.min(to));
            assert!(kept.iter().all(|&byte| byte == 0xee));
            assert!(HEAP.usable_size(moved).unwrap() >= to);
            free(moved).unwrap();
        }
    }
}
