//! Sampled blocks of the heap of the process, whose fast paths know nothing of them. Each misuse is committed in a child process.
#![cfg(all(target_os = "linux", feature = "std"))]

use allotment::os::Growing;
use allotment::{FreeError, Memory};
use std::alloc::{GlobalAlloc, Layout};
use std::hint::black_box;
use std::os::unix::process::ExitStatusExt;
use std::process::Command;
use std::ptr::NonNull;
use std::thread;

#[global_allocator]
static HEAP: Growing = Growing::new();

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

fn is_sampled(block: NonNull<u8>) -> bool {
    HEAP.region(1).is_some_and(|slots| block.addr().get().wrapping_sub(slots.start.addr().get()) < slots.size)
}

/// Allocates a block as programs do.
#[inline(never)]
fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: no size is zero.
    NonNull::new(unsafe { HEAP.alloc(layout) }).unwrap()
}

#[inline(never)]
fn free_it(block: NonNull<u8>, layout: Layout) {
    // SAFETY: the block is live, unless the test is about that.
    unsafe { HEAP.dealloc(block.as_ptr(), layout) }
}

/// Allocates and frees blocks of one size in turn, as a program in balance does, until one is sampled.
fn sampled(layout: Layout) -> NonNull<u8> {
    loop {
        let block = allocate(layout);
        if is_sampled(block) {
            return block;
        }
        free_it(block, layout);
    }
}

/// Returns how many of so many blocks, each freed before the next one, are sampled.
fn count(layout: Layout, blocks: usize) -> usize {
    let mut count = 0;
    for _ in 0..blocks {
        let block = allocate(layout);
        count += usize::from(is_sampled(block));
        free_it(block, layout);
    }
    count
}

/// Runs the test of a name in a process of its own, where it commits a misuse. Returns the signal that ended it, and what it wrote to standard
/// error; `None` in that process.
fn in_child(test: &str) -> Option<(i32, String)> {
    const NAME: &str = "ALLOTMENT_TEST_CHILD";
    if std::env::var_os(NAME).is_some() {
        HEAP.sample(5000).unwrap();
        return None;
    }
    let program = std::env::current_exe().unwrap();
    let output =
        Command::new(program).args(["--exact", test, "--nocapture"]).env(NAME, "1").output().unwrap();
    Some((output.status.signal().unwrap_or(0), String::from_utf8_lossy(&output.stderr).into_owned()))
}

fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    if cfg!(feature = "backtrace") {
        assert!(text.matches("    #0 0x").count() >= 2 && text.contains("/sampled-"), "{text}");
    }
}

#[test]
fn a_use_after_free_of_a_sampled_block_is_caught() {
    let Some((signal, text)) = in_child("a_use_after_free_of_a_sampled_block_is_caught") else {
        let block = sampled(layout(104));
        free_it(block, layout(104));
        // SAFETY: none: the misuse that is tested.
        black_box(unsafe { block.as_ptr().add(8).read_volatile() });
        return;
    };
    assert_eq!(signal, libc::SIGSEGV, "{text}");
    expect(&text, &["use after free at 0x", "8 bytes into the block of 104 bytes", "the access, by thread"]);
    expect(&text, &["allocated, by thread", "freed, by thread"]);
}

#[test]
fn an_overflow_of_a_sampled_block_is_caught() {
    let Some((signal, text)) = in_child("an_overflow_of_a_sampled_block_is_caught") else {
        loop {
            let block = sampled(layout(24));
            // SAFETY: none: the misuse that is tested. Half of the blocks lie at the start of their slot.
            unsafe {
                match block.addr().get() % 4096 {
                    0 => block.as_ptr().sub(1).write_volatile(1),
                    _ => block.as_ptr().add(24).write_volatile(1),
                }
            }
        }
    };
    assert_eq!(signal, libc::SIGSEGV, "{text}");
    expect(
        &text,
        &["access outside of a block at 0x", "of 24 bytes", "the access, by thread", "allocated, by thread"],
    );
}

#[test]
fn a_double_free_of_a_sampled_block_is_caught() {
    let Some((signal, text)) = in_child("a_double_free_of_a_sampled_block_is_caught") else {
        let block = sampled(layout(40));
        free_it(block, layout(40));
        free_it(block, layout(40));
        return;
    };
    assert_eq!(signal, libc::SIGABRT, "{text}");
    expect(&text, &["allocated, by thread", "freed, by thread", "invalid free: the block is free already"]);
}

/// Programs in balance, ones that grow, and threads that free the blocks of others: each gets its share, which blocks of all classes have.
#[test]
fn samples_are_in_proportion() {
    let Some((signal, text)) = in_child("samples_are_in_proportion") else {
        for size in [8, 24, 40, 100, 3000] {
            // The standard deviation is about 6 of 100 samples.
            let found = count(layout(size), 500_000);
            assert!((70..130).contains(&found), "{found} of 500,000 of {size} bytes");
        }
        // One class that is used less, among blocks of another one.
        let (mut rare, mut common) = (0, 0);
        for _ in 0..5000 {
            common += count(layout(48), 100);
            rare += count(layout(80), 50);
        }
        assert!((30..70).contains(&rare) && (70..130).contains(&common), "{rare} and {common}");
        // The program grows while there are slots.
        let live: Vec<_> = (0..300_000).map(|_| allocate(layout(56))).collect();
        let found = live.iter().filter(|&&block| is_sampled(block)).count();
        assert!((35..90).contains(&found), "{found} of 300,000");
        thread::scope(|scope| {
            let free = |blocks: &[NonNull<u8>]| blocks.iter().for_each(|&block| free_it(block, layout(56)));
            let addresses: Vec<usize> = live.iter().map(|block| block.expose_provenance().get()).collect();
            scope.spawn(move || {
                let block =
                    |&address: &usize| NonNull::new(std::ptr::with_exposed_provenance_mut(address)).unwrap();
                free(&addresses.iter().map(block).collect::<Vec<_>>());
            });
        });
        HEAP.sample(0).unwrap();
        assert_eq!(count(layout(56), 100_000), 0);
        return;
    };
    assert_eq!(signal, 0, "{text}");
    assert!(text.is_empty() || !text.contains("panicked"), "{text}");
}

/// What a program may do with a block: it has the layout that was asked for, moves when it is resized, and is whole.
#[test]
fn sampled_blocks_are_blocks() {
    let Some((signal, text)) = in_child("sampled_blocks_are_blocks") else {
        for (size, align) in [(1, 1), (3, 1), (24, 8), (100, 4), (64, 64), (4096, 16), (200, 16)] {
            let layout = Layout::from_size_align(size, align).unwrap();
            let block = sampled(layout);
            // SAFETY: the block is live, of that layout, and this thread's.
            unsafe {
                assert!(block.addr().get() % align == 0 && HEAP.usable_size(block) == Some(size));
                assert_eq!(HEAP.check(block, layout), Ok(()));
                assert_eq!(HEAP.check_owned(block, layout), Ok(()));
                let other = Layout::from_size_align(size + 1, align).unwrap();
                assert_eq!(HEAP.check(block, other), Err(FreeError::NotABlock));
                assert!(!HEAP.try_resize(block, layout, size + 1));
                block.write_bytes(7, size);
                let moved = NonNull::new(HEAP.realloc(block.as_ptr(), layout, 2 * size + 1)).unwrap();
                assert!(moved != block && (0..size).all(|n| moved.add(n).read() == 7));
                assert_eq!(HEAP.check(block, layout), Err(FreeError::AlreadyFree));
                free_it(moved, Layout::from_size_align(2 * size + 1, align).unwrap());
                // By its address alone, as in C.
                let block = sampled(layout);
                let moved = NonNull::new(HEAP.change(block, 3 * size + 20, align)).unwrap();
                assert!(moved != block);
                HEAP.free(moved).unwrap();
                let block = sampled(layout);
                assert_eq!(HEAP.free(block), Ok(()));
                assert_eq!(HEAP.free(block), Err(FreeError::AlreadyFree));
                // Blocks of a heap of its own are told apart.
                let own = Growing::create();
                assert_eq!(own.free(sampled(layout)), Err(FreeError::Foreign));
            }
        }
        let zeroed = Layout::from_size_align(60, 4).unwrap();
        for _ in 0..100_000 {
            // SAFETY: the size is not zero, and the block is freed with its layout.
            unsafe {
                let block = HEAP.alloc_zeroed(zeroed);
                assert!((0..60).all(|n| *block.add(n) == 0));
                block.write_bytes(1, 60);
                HEAP.dealloc(block, zeroed);
            }
        }
        return;
    };
    assert_eq!(signal, 0, "{text}");
    assert!(!text.contains("panicked"), "{text}");
}
