//! Blocks of every size and alignment, with contents that are checked.

use crate::{HEAP, alone};
use allotment::misuse::{Kind, Misuse, set_hook};
use allotment::{FreeError, Memory};
use std::alloc::{GlobalAlloc, Layout};
use std::collections::BTreeMap;
use std::ptr::NonNull;
use std::sync::{Barrier, Mutex};
use std::thread;

/// A block, with what it is filled with.
struct Live {
    size: usize,
    align: usize,
    seed: u8,
}

/// Fills a block so that every byte tells where it belongs.
unsafe fn fill(block: *mut u8, size: usize, seed: u8) {
    for at in 0..size {
        // SAFETY: the caller owns `size` bytes.
        unsafe { block.add(at).write((at as u8).wrapping_mul(31).wrapping_add(seed)) }
    }
}

unsafe fn check(block: *const u8, size: usize, seed: u8) {
    for at in 0..size {
        // SAFETY: the caller owns `size` bytes.
        let found = unsafe { block.add(at).read() };
        assert_eq!(found, (at as u8).wrapping_mul(31).wrapping_add(seed), "byte {at} of {size}");
    }
}

fn size(random: &mut fastrand::Rng) -> usize {
    match random.u32(..100) {
        0..70 => random.usize(..300),
        70..90 => random.usize(..5000),
        90..98 => random.usize(..40_000),
        _ => random.usize(..400_000),
    }
}

/// Requests in random order, as C programs make them: sizes come with requests only.
#[test]
fn random_requests_without_sizes_at_free() {
    let _alone = alone();
    let mut random = fastrand::Rng::with_seed(1);
    let mut live: BTreeMap<usize, Live> = BTreeMap::new();
    let mut blocks: Vec<*mut u8> = Vec::new();
    for round in 0..24_000 {
        let grow = (round / 4_000) % 2 == 0;
        match random.u32(..10) {
            0..3 if !blocks.is_empty() => {
                // Resized.
                let at = random.usize(..blocks.len());
                let old = live.remove(&blocks[at].addr()).unwrap();
                let new = size(&mut random).max(1);
                // SAFETY: the block is live, and not used at its old place again.
                unsafe {
                    let block = HEAP.change(NonNull::new(blocks[at]).unwrap(), new, old.align);
                    assert!(!block.is_null() && block.addr() % old.align == 0);
                    check(block, old.size.min(new), old.seed);
                    fill(block, new, old.seed);
                    blocks[at] = block;
                    live.insert(block.addr(), Live { size: new, ..old });
                }
            }
            3..6 if !grow && !blocks.is_empty() => {
                let block = blocks.swap_remove(random.usize(..blocks.len()));
                let old = live.remove(&block.addr()).unwrap();
                // SAFETY: the block is live.
                unsafe {
                    check(block, old.size, old.seed);
                    HEAP.free(NonNull::new(block).unwrap()).unwrap();
                }
            }
            _ if !grow && round % 3 != 0 => {}
            _ => {
                let (size, align) = (size(&mut random), 1 << random.u32(..14));
                let zeroed = random.bool();
                let block = if zeroed {
                    HEAP.allocate_raw_zeroed(size, align)
                } else {
                    HEAP.allocate_raw(size, align)
                };
                assert!(!block.is_null());
                assert_eq!(block.addr() % align.max(8), 0);
                let usable = HEAP.usable_size(NonNull::new(block).unwrap()).unwrap();
                assert!(usable >= size);
                // Blocks do not overlap.
                let before = live.range(..=block.addr()).next_back();
                assert!(before.is_none_or(|(&start, old)| start + old.size.max(1) <= block.addr()));
                let after = live.range(block.addr()..).next();
                assert!(after.is_none_or(|(&start, _)| block.addr() + usable <= start));
                let seed = random.u8(..);
                // SAFETY: the block is ours.
                unsafe {
                    if zeroed {
                        assert!((0..size).all(|at| block.add(at).read() == 0));
                    }
                    fill(block, size, seed);
                }
                live.insert(block.addr(), Live { size, align, seed });
                blocks.push(block);
            }
        }
    }
    for block in blocks {
        let old = &live[&block.addr()];
        // SAFETY: the block is live.
        unsafe {
            check(block, old.size, old.seed);
            HEAP.free(NonNull::new(block).unwrap()).unwrap();
        }
    }
}

/// The same block is freed by its layout or by its address.
#[test]
fn layouts_and_addresses_agree() {
    let _alone = alone();
    for size in [1, 16, 17, 255, 256, 257, 1000, 4096, 32_768, 32_769, 100_000] {
        for align in [1, 16, 32, 64, 1024, 4096, 8192, 65_536] {
            let layout = Layout::from_size_align(size, align).unwrap();
            // SAFETY: each block is freed once; the sizes are not zero.
            unsafe {
                let block = HEAP.alloc(layout);
                fill(block, size, 3);
                let larger = HEAP.realloc(block, layout, size * 2);
                check(larger, size, 3);
                assert_eq!(larger.addr() % align, 0);
                let smaller = HEAP.realloc(larger, Layout::from_size_align(size * 2, align).unwrap(), size);
                check(smaller, size, 3);
                if align % 32 == 0 {
                    HEAP.dealloc(smaller, layout);
                } else {
                    HEAP.free(NonNull::new(smaller).unwrap()).unwrap();
                }
                let zeroed = HEAP.alloc_zeroed(layout);
                assert!((0..size).all(|at| zeroed.add(at).read() == 0), "{size} {align}");
                HEAP.dealloc(zeroed, layout);
            }
        }
    }
}

#[test]
fn addresses_of_no_block_are_refused() {
    let _alone = alone();
    let mut word = 0_u64;
    let foreign = NonNull::from(&mut word).cast();
    assert_eq!(HEAP.usable_size(foreign), None);
    // SAFETY: the address is in no block of the heap.
    assert_eq!(unsafe { HEAP.free(foreign) }, Err(FreeError::Foreign));
    // Inside a large block, and a large block that was freed.
    let block = NonNull::new(HEAP.allocate_raw(1 << 20, 16)).unwrap();
    // SAFETY: the block has a megabyte.
    let inside = unsafe { block.add(4096 * 7) };
    assert_eq!(HEAP.usable_size(inside), None);
    let small = NonNull::new(HEAP.allocate_raw(600, 16)).unwrap();
    // SAFETY: the block has that many bytes.
    assert_eq!([0, 16, 512].map(|at| HEAP.usable_size(unsafe { small.add(at) })), [Some(640), None, None]);
    // SAFETY: the block is live.
    assert_eq!(unsafe { HEAP.free(small) }, Ok(()));
    // SAFETY: the first address is no block's start, the second is that of a live block, once.
    unsafe {
        assert_eq!(HEAP.free(inside), Err(FreeError::Foreign));
        assert_eq!(HEAP.free(block.add(8)), Err(FreeError::Foreign));
        assert_eq!(HEAP.free(block), Ok(()));
        assert_eq!(HEAP.free(block), Err(FreeError::Foreign));
    }
}

/// A small block that is freed counts as free until it is allocated again, for every thread.
#[test]
fn double_frees_are_found() {
    let _alone = alone();
    for size in [1, 16, 17, 48, 600, 4096, 32_768] {
        let layout = Layout::from_size_align(size, 16).unwrap();
        let block = NonNull::new(HEAP.allocate_raw(size, 16)).unwrap();
        let (at, turn) = (block.addr(), Barrier::new(2));
        let free_again = |block: NonNull<u8>| {
            // SAFETY: while it counts as free it is not freed.
            unsafe { HEAP.free(block) }
        };
        thread::scope(|scope| {
            // Nothing allocates while the block is free, so that it stays free.
            let elsewhere = scope.spawn(|| {
                turn.wait();
                let result = free_again(NonNull::without_provenance(at));
                turn.wait();
                result
            });
            let other = HEAP.allocate_raw(size, 16);
            // SAFETY: both blocks are live, and freed once by what is not refused.
            let here = unsafe {
                // What a program leaves in a block makes no difference, not even a copy of what marks another one.
                HEAP.free(NonNull::new(other).unwrap()).unwrap();
                other.copy_to_nonoverlapping(block.as_ptr(), size.min(16));
                HEAP.free(block).unwrap();
                turn.wait();
                turn.wait();
                let quickly = HEAP.free_fast(block);
                let (found, moved) = (HEAP.size_of_own(block), HEAP.change(block, size, 16));
                let (again, checked) = (free_again(block), HEAP.try_deallocate(block, layout));
                assert_eq!(HEAP.allocate_raw(size, 16), block.as_ptr());
                assert!(HEAP.size_of_own(block).is_some());
                (quickly, found, moved.is_null(), again, checked)
            };
            let refused = Err(FreeError::AlreadyFree);
            assert_eq!(here, (false, None, true, refused, refused), "{size} bytes");
            assert_eq!(elsewhere.join().unwrap(), refused, "{size} bytes");
        });
        assert_eq!(free_again(block), Ok(()));
    }
}

/// Free blocks are known wherever they are: in a list in use, in the other one, in bundles, in pages, and in those of a thread that has ended.
#[test]
fn free_blocks_are_known_wherever_they_are() {
    let _alone = alone();
    for size in [16, 32, 80, 640, 6000] {
        let blocks: Vec<_> = (0..400 * 1024 / size)
            .map(|_| NonNull::new(HEAP.allocate_raw(size, 16)).unwrap().addr())
            .collect();
        let blocks = thread::spawn(move || {
            for &block in &blocks {
                // SAFETY: the block is live, and freed once.
                unsafe { HEAP.free(NonNull::without_provenance(block)).unwrap() };
            }
            blocks
        });
        let blocks = blocks.join().unwrap();
        // The test harness may have got a whole page, too, for a class that was not used before.
        // SAFETY: no thread writes to a block that the test harness may have got meanwhile.
        let is_live = |block: &&_| unsafe {
            let own = HEAP.size_of_own(NonNull::without_provenance(**block));
            own.is_some_and(|usable| usable / size == 1)
        };
        let live = blocks.iter().filter(is_live).count();
        // The test harness may have some of them. Of each bundle of blocks of two words, the first one is not known.
        let most = 16 + if size == 16 { 128 } else { 0 };
        assert!(live <= most, "{live} of {} blocks of {size} bytes", blocks.len());
    }
}

/// A global allocator cannot return an error, so it calls the hook.
#[test]
fn invalid_frees_are_reported() {
    static EXPECTED: Mutex<Option<(Kind, usize)>> = Mutex::new(None);
    fn take(misuse: &Misuse) {
        if EXPECTED.lock().unwrap().take() != Some((misuse.kind, misuse.address)) {
            std::process::abort();
        }
    }

    /// Does what is to be reported, once.
    fn reported(error: FreeError, block: *mut u8, act: impl FnOnce()) {
        *EXPECTED.lock().unwrap() = Some((Kind::InvalidFree(error), block.addr()));
        act();
        assert_eq!(*EXPECTED.lock().unwrap(), None);
    }

    let _alone = alone();
    set_hook(take);
    let layout = Layout::new::<[u64; 12]>();
    // SAFETY: what is reported does nothing; the block is freed once besides.
    unsafe {
        let block = HEAP.alloc(layout);
        if cfg!(debug_assertions) {
            let (inside, large) = (block.add(8), Layout::new::<[u64; 10_000]>());
            reported(FreeError::NotABlock, inside, || HEAP.dealloc(inside, layout));
            reported(FreeError::NotABlock, block, || HEAP.dealloc(block, Layout::new::<[u64; 2]>()));
            reported(FreeError::NotABlock, block, || HEAP.dealloc(block, large));
            let move_inside = || assert!(HEAP.realloc(inside, layout, 1000).is_null());
            reported(FreeError::NotABlock, inside, move_inside);
        }
        HEAP.dealloc(block, layout);
        for _ in 0..2 {
            reported(FreeError::AlreadyFree, block, || HEAP.dealloc(block, layout));
        }
        reported(FreeError::AlreadyFree, block, || assert!(HEAP.realloc(block, layout, 1000).is_null()));
        assert_eq!(HEAP.alloc(layout), block);
        HEAP.dealloc(block, layout);
    }
}

#[test]
fn impossible_requests_get_null() {
    let _alone = alone();
    for size in [usize::MAX, isize::MAX as usize, 1_usize.checked_shl(46).unwrap_or(1 << 31)] {
        assert!(HEAP.allocate_raw(size, 16).is_null());
        assert!(HEAP.allocate_raw_zeroed(size, 4096).is_null());
    }
    assert!(HEAP.allocate_raw(64, 1 << (usize::BITS - 2)).is_null());
    let block = NonNull::new(HEAP.allocate_raw(100_000, 16)).unwrap();
    // SAFETY: the block stays as it is, and is freed once.
    unsafe {
        block.write_bytes(7, 100_000);
        assert!(HEAP.change(block, isize::MAX as usize, 16).is_null());
        assert!((0..100_000).all(|at| block.add(at).read() == 7));
        HEAP.free(block).unwrap();
    }
}

/// The quick calls use the thread's list and nothing else.
#[test]
fn quick_calls_end_with_the_list() {
    let _alone = alone();
    // Of a size that nothing else here has.
    const SIZE: usize = 2900;
    let take = |size| NonNull::new(HEAP.allocate_raw(size, 16)).unwrap();
    // SAFETY: each block is live, and freed once.
    unsafe {
        let first = take(SIZE);
        HEAP.free(first).unwrap();
        assert_eq!(HEAP.allocate_fast(SIZE, 16), Some(first));
        assert!(HEAP.free_fast(first));
        let mut blocks = Vec::new();
        while let Some(block) = HEAP.allocate_fast(SIZE, 16) {
            blocks.push(block);
            assert!(blocks.len() < 100, "a list holds 16 KiB");
        }
        blocks.extend((0..100).map(|_| take(SIZE)));
        let room = blocks.iter().take_while(|block| HEAP.free_fast(**block)).count();
        assert!(room > 0 && room < 20, "{room}");
        blocks.drain(room + 1..).for_each(|block| HEAP.free(block).unwrap());
        HEAP.free(blocks[room]).unwrap();
        let large = take(100_000);
        assert!(HEAP.allocate_fast(100_000, 16).is_none() && !HEAP.free_fast(large));
        HEAP.free(large).unwrap();
    }
}

/// Alignments are powers of two. Others are refused, or mean nothing where every block is aligned more.
#[test]
fn other_alignments_are_refused() {
    for size in [0, 100, 5000, 40_000, 1 << 20] {
        for align in [0, 3, 15] {
            if let Some(block) = NonNull::new(HEAP.allocate_raw(size, align)) {
                // SAFETY: the block is live.
                unsafe { HEAP.free(block) }.unwrap();
            }
        }
        for align in
            [24, 5000, 12_288, 40_960, (1 << (usize::BITS - 4)) + 4096, isize::MAX as usize, usize::MAX]
        {
            assert!(HEAP.allocate_raw(size, align).is_null(), "{size} bytes aligned to {align}");
            assert!(HEAP.allocate_raw_zeroed(size, align).is_null(), "{size} bytes aligned to {align}");
        }
    }
}

/// A free inside a block is refused if the address is less aligned than all blocks of the size, and the block stays live.
#[test]
fn frees_inside_blocks_are_refused() {
    for (size, offsets) in
        [(48, &[1_usize, 4, 8, 40][..]), (600, &[1, 4, 8, 64, 304]), (4096, &[16, 256]), (20_000, &[8, 512])]
    {
        let block = NonNull::new(HEAP.allocate_raw(size, 16)).unwrap();
        for &offset in offsets {
            // SAFETY: the free is refused, and the block is live.
            unsafe {
                assert_eq!(HEAP.free(block.add(offset)), Err(FreeError::NotABlock), "{size} + {offset}");
            }
        }
        // SAFETY: the block is live.
        unsafe { HEAP.free(block).unwrap() };
    }
}
