//! Blocks with tags. Each misuse is committed in a child process. `cargo xtask foreign aarch64` runs these tests on a processor that has tags;
//! elsewhere blocks have none, and the rest holds.
#![cfg(all(target_os = "linux", feature = "std"))]

use allotment::lock::Futex;
use allotment::misuse::{Kind, Misuse, set_hook};
use allotment::os::{MapError, Mapping, Tagged};
use allotment::{Buddy, FreeError, Heap, Memory, Region, Tlsf};
use std::alloc::Layout;
use std::hint::black_box;
use std::ptr::NonNull;
use std::thread;

type Blocks = Tagged<Heap<Tlsf, Futex>>;

/// Code of a fault by a tag.
const SEGV_MTESERR: i32 = 9;

/// Whether the processor has tags, by the kernel's word.
fn has_tags() -> bool {
    const HWCAP2_MTE: u64 = 1 << 18;
    // SAFETY: it has no preconditions.
    cfg!(target_arch = "aarch64") && unsafe { libc::getauxval(libc::AT_HWCAP2) } as u64 & HWCAP2_MTE != 0
}

/// Maps memory that has tags if the processor has them; accesses of this thread are checked then.
fn memory() -> allotment::Region {
    match Mapping::new(4 << 20).tagged().map() {
        Err(MapError::Unsupported) if !has_tags() => Mapping::new(4 << 20).map().unwrap(),
        region => {
            assert!(has_tags());
            region.unwrap()
        }
    }
}

fn heap() -> &'static Blocks {
    let heap: &Blocks = Box::leak(Box::new(Tagged::new(Heap::empty())));
    // SAFETY: the mapping is new, and stays for good.
    unsafe { heap.memory().claim(memory()) }.unwrap();
    heap
}

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn tag(block: NonNull<u8>) -> u64 {
    block.addr().get() as u64 >> 56 & 15
}

/// Ends the child with the fault's code.
extern "C" fn on_fault(_: i32, info: *const libc::siginfo_t, _: *const ()) {
    // SAFETY: the system passes the signal's own information.
    unsafe { libc::_exit((*info).si_code) }
}

/// Ends the child with a code of the misuse.
fn on_misuse(misuse: &Misuse) {
    let code = match misuse.kind {
        Kind::InvalidFree(FreeError::AlreadyFree) => 100,
        Kind::InvalidFree(FreeError::NotABlock) => 101,
        _ => 102,
    };
    // SAFETY: it has no preconditions.
    unsafe { libc::_exit(code) }
}

/// Runs `f` in a child by `fork`. Returns what ended it: the code of a fault or misuse, 0 if nothing did, or a signal, below 0.
fn in_child(catch: bool, f: impl FnOnce()) -> i32 {
    // SAFETY: the child runs one function of the test, whose memory the fork leaves whole, and ends.
    unsafe {
        let child = libc::fork();
        if child == 0 {
            let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            let mut action: libc::sigaction = std::mem::zeroed();
            if catch {
                action.sa_sigaction = on_fault as *const () as usize;
                action.sa_flags = libc::SA_SIGINFO;
            }
            libc::sigaction(libc::SIGSEGV, &action, std::ptr::null_mut());
            set_hook(on_misuse);
            f();
            libc::_exit(0);
        }
        let mut status = 0;
        libc::waitpid(child, &mut status, 0);
        if libc::WIFSIGNALED(status) { -libc::WTERMSIG(status) } else { libc::WEXITSTATUS(status) }
    }
}

/// Reads or writes a byte at an offset from a block.
fn touch(block: NonNull<u8>, offset: isize, write: bool) {
    let place = block.as_ptr().wrapping_offset(offset);
    // SAFETY: none where the offset is beside the block or the block is free: the misuse that is tested.
    unsafe { if write { place.write_volatile(1) } else { _ = black_box(place.read_volatile()) } }
}

fn allocate(heap: &Blocks, size: usize) -> NonNull<u8> {
    heap.try_allocate(layout(size)).unwrap()
}

fn free(heap: &Blocks, block: NonNull<u8>, size: usize) {
    // SAFETY: the block is live, unless the test is about that.
    unsafe { heap.deallocate(block, layout(size)) }
}

#[test]
fn every_overflow_and_underflow_faults() {
    let heap = heap();
    for (size, offset) in
        [(1, 16), (1, -1), (100, 112), (100, -16), (4096, 4096), (4096, -1), (40_000, 40_015)]
    {
        // Blocks in a row, so that the neighbours are live ones.
        let [_before, block, _behind] = [(); 3].map(|()| allocate(heap, size));
        for write in [false, true] {
            assert_eq!(in_child(true, || touch(block, 0, write)), 0);
            assert_eq!(in_child(true, || touch(block, size as isize - 1, write)), 0);
            let expected = if has_tags() { SEGV_MTESERR } else { 0 };
            assert_eq!(in_child(true, || touch(block, offset, write)), expected, "{size}: {offset}");
        }
    }
    let block = allocate(heap, 8);
    let expected = if has_tags() { -libc::SIGSEGV } else { 0 };
    assert_eq!(in_child(false, || touch(block, 16, false)), expected);
}

#[test]
fn every_use_after_free_faults() {
    let heap = heap();
    for (size, reuse) in
        [(16, false), (16, true), (1000, false), (1000, true), (40_000, false), (40_000, true)]
    {
        for write in [false, true] {
            let misuse = || {
                let block = allocate(heap, size);
                free(heap, block, size);
                if reuse {
                    let next = allocate(heap, size);
                    let same = |block: NonNull<u8>| block.addr().get() & 0xffff_ffff;
                    assert_eq!(same(block), same(next));
                }
                touch(block, size as isize - 16, write);
            };
            let expected = if has_tags() { SEGV_MTESERR } else { 0 };
            assert_eq!(in_child(true, misuse), expected, "{size}, {reuse}");
        }
    }
}

/// Also where blocks of other tags have merged.
#[test]
fn no_block_has_a_tag_of_those_before_it() {
    if !has_tags() {
        return;
    }
    let heap = heap();
    for _ in 0..2000 {
        let small = [(); 6].map(|()| allocate(heap, 48));
        assert!(small.iter().all(|&block| tag(block) != 0));
        small.iter().for_each(|&block| free(heap, block, 48));
        let large = allocate(heap, 6 * 64 - 16);
        assert!(small.iter().all(|&block| tag(block) != tag(large)), "{small:?} {large:?}");
        free(heap, large, 6 * 64 - 16);
        let next = allocate(heap, 6 * 64 - 16);
        assert_ne!(tag(next), tag(large));
        free(heap, next, 6 * 64 - 16);
    }
}

#[test]
fn invalid_frees_are_reported() {
    let heap = heap();
    let [_before, block, _behind] = [(); 3].map(|()| allocate(heap, 100));
    let freed_twice = || {
        free(heap, block, 100);
        free(heap, block, 100);
    };
    assert_eq!(in_child(true, freed_twice), 100);
    if !has_tags() {
        return;
    }
    let place = |offset, tag: u64| {
        block
            .map_addr(|address| (address.get() & !(15 << 56) | (tag as usize) << 56).try_into().unwrap())
            .map_addr(|address: std::num::NonZero<usize>| address.checked_add(offset).unwrap())
    };
    let own = tag(block);
    // Freed memory may have the tag of the block, so that the report says either.
    for (wrong, size) in [
        (place(0, 0), 100),
        (place(0, own ^ 1), 100),
        (place(16, own), 84),
        (place(0, own), 80),
        (place(0, own), 120),
    ] {
        let code = in_child(true, || free(heap, wrong, size));
        assert!(matches!(code, 100 | 101), "{code}: {wrong:?} of {block:?}, {size}");
    }
    let reused = || {
        free(heap, block, 100);
        allocate(heap, 100);
        free(heap, block, 100);
    };
    assert!(matches!(in_child(true, reused), 100 | 101));
}

/// Random operations, whose blocks keep their contents, by several threads.
fn run(heap: &(impl Memory + Sync)) {
    thread::scope(|scope| {
        for seed in 0..3 {
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(seed);
                let mut blocks: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
                for step in 0..3000 {
                    let shape = Layout::from_size_align(random.usize(0..900), 1 << random.u8(0..7)).unwrap();
                    let fill = step as u8;
                    if blocks.len() > 100 || !blocks.is_empty() && random.u8(0..3) == 0 {
                        let (block, shape, fill) = blocks.swap_remove(random.usize(..blocks.len()));
                        // SAFETY: the block is live, and this thread's.
                        unsafe {
                            let bytes = std::slice::from_raw_parts(block.as_ptr(), shape.size());
                            assert!(bytes.iter().all(|&byte| byte == fill));
                            heap.try_deallocate(block, shape).unwrap();
                        }
                    } else if let (2, Some(last)) = (random.u8(0..4), blocks.last_mut()) {
                        let (block, old, fill) = *last;
                        let new = Layout::from_size_align(shape.size() + 1, old.align()).unwrap();
                        if old.size() > 0 {
                            // SAFETY: the block is live, and this thread's.
                            unsafe {
                                let moved = heap.change(block, old, new, &mut |_| ()).unwrap();
                                let kept = old.size().min(new.size());
                                let bytes = std::slice::from_raw_parts(moved.as_ptr(), kept);
                                assert!(bytes.iter().all(|&byte| byte == fill));
                                moved.write_bytes(fill, new.size());
                                *last = (moved, new, fill);
                            }
                        }
                    } else {
                        let block =
                            if fill % 2 == 0 { heap.allocate_zeroed(shape) } else { heap.allocate(shape) };
                        let block = block.unwrap();
                        assert_eq!(block.addr().get() % shape.align(), 0);
                        // SAFETY: the block is live, and this thread's.
                        unsafe {
                            let bytes = std::slice::from_raw_parts(block.as_ptr(), shape.size());
                            assert!(fill % 2 == 1 || bytes.iter().all(|&byte| byte == 0));
                            block.write_bytes(fill, shape.size());
                        }
                        blocks.push((block, shape, fill));
                    }
                }
                for (block, shape, _) in blocks {
                    // SAFETY: the block is live, and this thread's.
                    unsafe { heap.try_deallocate(block, shape).unwrap() };
                }
            });
        }
    });
    assert_eq!(heap.statistics().unwrap().used, 0);
    let all = layout(heap.largest_free());
    assert!(all.size() > 1 << 20);
    // SAFETY: the block is live.
    unsafe { heap.deallocate(heap.try_allocate(all).unwrap(), all) };
}

#[test]
fn programs_without_bugs_notice_nothing() {
    run(heap());
    let buddies: Tagged<Heap<Buddy, Futex>> = Tagged::new(Heap::empty());
    // SAFETY: the mapping is new, and stays for good.
    unsafe { buddies.memory().claim(memory()) }.unwrap();
    run(&buddies);
    // Memory that cannot have tags.
    let plain: Blocks = Tagged::new(Heap::empty());
    // SAFETY: the mapping is new, and stays for good.
    unsafe { plain.memory().claim(Mapping::new(4 << 20).map().unwrap()) }.unwrap();
    run(&plain);
    assert_eq!(tag(allocate(&plain, 100)), 0);
}

/// Free memory need not begin or end at 16 bytes.
#[test]
fn the_largest_free_block_can_be_had() {
    let memory = Mapping::new(64 << 10).map().unwrap();
    for (skipped, cut) in (0..4).flat_map(|skipped| (0..4).map(move |cut| (8 * skipped, 8 * cut))) {
        let heap: Blocks = Tagged::new(Heap::empty());
        // SAFETY: the heaps before are not used any more; the bytes lie in the mapping, which stays for good.
        unsafe {
            let start = memory.start.add(skipped);
            heap.memory().claim(Region::new(start, memory.size - skipped - cut)).unwrap();
        }
        let all = layout(heap.largest_free());
        assert!(all.size() > 60 << 10 && heap.try_allocate(all).is_ok(), "{skipped} {cut}: {all:?}");
    }
}

#[test]
fn no_block_grows_beyond_every_layout() {
    let (heap, size) = (heap(), layout(1));
    let block = heap.try_allocate(size).unwrap();
    // SAFETY: the block is live, and has its layout as long as every resize fails.
    unsafe {
        assert!(!heap.try_resize(block, size, usize::MAX) && heap.try_resize(block, size, 16));
        heap.deallocate(block, layout(16));
    }
}
