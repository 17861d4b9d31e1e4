//! Sampled blocks between guard pages, as the global allocator of this program. Each misuse is committed in a child process.
#![cfg(all(target_os = "linux", feature = "std"))]

use allotment::os::{Growing, Guarded};
use allotment::{FreeError, Heap, Memory, heap};
use std::alloc::Layout;
use std::hint::black_box;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::ptr::NonNull;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[global_allocator]
static HEAP: Guarded<Growing> = Guarded::new(Growing::new(), 1000);

/// A heap that samples every block while it has slots.
static ALL: Guarded<Heap> = Guarded::new(heap!(1 << 20), 1);

fn layout(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

/// Allocates a sampled block at the end of its slot, or at the start.
#[inline(never)]
fn sampled(layout: Layout, at_end: bool) -> NonNull<u8> {
    loop {
        let block = ALL.try_allocate(layout).unwrap();
        let end = (block.addr().get() + layout.size()).next_multiple_of(8) % 4096 == 0;
        // The program's own allocations count as well, so that not each of these is sampled.
        if end == at_end && ALL.memory().check(block, layout).is_err() {
            return block;
        }
        // SAFETY: the block is live.
        unsafe { ALL.try_deallocate(block, layout).unwrap() };
    }
}

#[inline(never)]
fn free_it(block: NonNull<u8>, layout: Layout) {
    // SAFETY: the block is live, unless the test is about that.
    unsafe { ALL.deallocate(block, layout) }
}

/// Lets one test run at a time: a child has only the thread that forks, and waits for no lock of others.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs `f` in a child by `fork`. Returns the signal that ended it, and what it wrote to standard error.
fn in_child(f: impl FnOnce()) -> (i32, String) {
    let _alone = alone();
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

/// The report names the block, its size, and with backtraces the functions that are on the stacks.
fn expect(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "{part:?} is not in: {text}");
    }
    if cfg!(feature = "backtrace") {
        let stacks = parts.iter().filter(|part| part.ends_with(", by thread")).count();
        assert!(text.matches("    #0 0x").count() >= stacks && text.contains("/guarded-"), "{text}");
    }
}

#[test]
fn a_use_after_free_is_caught() {
    for write in [false, true] {
        let (signal, text) = in_child(|| {
            let block = sampled(layout(100), true);
            free_it(block, layout(100));
            // SAFETY: none: the misuse that is tested.
            unsafe {
                if write {
                    block.as_ptr().add(8).write_volatile(1);
                } else {
                    black_box(block.as_ptr().add(8).read_volatile());
                }
            }
        });
        assert_eq!(signal, libc::SIGSEGV, "{text}");
        let parts = ["use after free at 0x", "8 bytes into the block of 100 bytes", "the access, by thread"];
        expect(&text, &parts);
        expect(&text, &["allocated, by thread", "freed, by thread"]);
    }
}

#[test]
fn overflows_and_underflows_are_caught() {
    for (at_end, offset, words) in [
        (true, 104, "4 bytes behind the block of 100 bytes"),
        (false, -1, "1 bytes before the block of 100 bytes"),
    ] {
        let (signal, text) = in_child(|| {
            let block = sampled(layout(100), at_end);
            // SAFETY: none: the misuse that is tested.
            unsafe { block.as_ptr().offset(offset).write_volatile(1) };
        });
        assert_eq!(signal, libc::SIGSEGV, "{text}");
        expect(
            &text,
            &["access outside of a block at 0x", words, "the access, by thread", "allocated, by thread"],
        );
        assert!(!text.contains("freed, by"), "{text}");
    }
}

#[test]
fn invalid_frees_are_caught() {
    type Commit = fn(NonNull<u8>);
    let cases: [(&str, Commit); 4] = [
        ("the block is free already", |block| {
            free_it(block, layout(100));
            free_it(block, layout(100));
        }),
        // SAFETY: none of these: the misuses that are tested.
        ("no live block of this layout starts here", |block| free_it(unsafe { block.add(8) }, layout(92))),
        ("no live block of this layout starts here", |block| free_it(block, layout(96))),
        ("the bytes behind the block were overwritten", |block| {
            // SAFETY: as above.
            unsafe { block.as_ptr().add(101).write_volatile(1) };
            free_it(block, layout(100));
        }),
    ];
    for (words, commit) in cases {
        let (signal, text) = in_child(|| commit(sampled(layout(100), true)));
        assert_eq!(signal, libc::SIGABRT, "{text}");
        expect(&text, &["allotment: invalid free: ", words, "allocated, by thread"]);
    }
}

/// What is not a fault of a slot goes the program's way.
#[test]
fn other_faults_are_left_alone() {
    let (signal, text) = in_child(|| {
        let block = sampled(layout(8), true);
        free_it(block, layout(8));
        // SAFETY: none: a fault that is tested.
        unsafe { std::ptr::without_provenance_mut::<u8>(64).write_volatile(1) };
    });
    assert_eq!(signal, libc::SIGSEGV, "{text}");
    assert!(!text.contains("use after free") && !text.contains("outside of a block"), "{text}");
}

/// More blocks than slots, of all sizes, aligned, zeroed, moved: each is whole, and what is no sampled block is the memory's.
#[test]
fn blocks_are_whole() {
    let _alone = alone();
    let mut random = fastrand::Rng::with_seed(3);
    let mut live: Vec<(NonNull<u8>, Layout, u8)> = Vec::new();
    let regions: Vec<_> = (0..9).map_while(|n| ALL.region(n)).collect();
    assert!(regions.len() <= 2);
    for step in 0..20_000_u32 {
        if live.len() < 200 && random.bool() {
            let layout = Layout::from_size_align(random.usize(1..6000), 1 << random.u32(0..8)).unwrap();
            let zeroed = random.bool();
            let block = if zeroed { ALL.try_allocate_zeroed(layout) } else { ALL.try_allocate(layout) };
            let Ok(block) = block else { continue };
            assert!(block.addr().get() % layout.align() == 0 && ALL.check(block, layout).is_ok());
            let fill = step as u8;
            // SAFETY: the block is live.
            unsafe {
                let bytes = core::slice::from_raw_parts(block.as_ptr(), layout.size());
                assert!(!zeroed || bytes.iter().all(|&byte| byte == 0));
                block.write_bytes(fill, layout.size());
            }
            live.push((block, layout, fill));
        } else if !live.is_empty() {
            let n = random.usize(..live.len());
            let (block, layout, fill) = live.swap_remove(n);
            // SAFETY: the block is live with that layout.
            unsafe {
                let bytes = core::slice::from_raw_parts(block.as_ptr(), layout.size());
                assert!(bytes.iter().all(|&byte| byte == fill));
                if random.bool() {
                    ALL.try_deallocate(block, layout).unwrap();
                    continue;
                }
                let new = Layout::from_size_align(random.usize(1..6000), layout.align()).unwrap();
                match NonNull::new(std::alloc::GlobalAlloc::realloc(&ALL, block.as_ptr(), layout, new.size()))
                {
                    Some(moved) => {
                        let same = new.size().min(layout.size());
                        let bytes = core::slice::from_raw_parts(moved.as_ptr(), same);
                        assert!(bytes.iter().all(|&byte| byte == fill));
                        moved.write_bytes(fill, new.size());
                        live.push((moved, new, fill));
                    }
                    None => live.push((block, layout, fill)),
                }
            }
        }
    }
    for (block, layout, _) in live {
        // SAFETY: the block is live with that layout.
        unsafe { ALL.try_deallocate(block, layout).unwrap() };
    }
    let region = ALL.region(1).expect("the slots are a region");
    assert_eq!(ALL.check(region.start, layout(8)), Err(FreeError::NotABlock));
    assert_eq!(ALL.memory().used(), 0);
}

/// Blocks of no bytes, which `Memory` and C programs ask for, and the largest alignments of a slot.
#[test]
fn blocks_of_no_bytes_are_freed() {
    let _alone = alone();
    for round in 0..64 {
        for align in [1, 8, 4096] {
            let layout = Layout::from_size_align(0, align).unwrap();
            let block = if round % 2 == 0 { ALL.allocate(layout) } else { ALL.allocate_zeroed(layout) };
            let block = block.unwrap();
            assert_eq!(ALL.check(block, layout), Ok(()), "{layout:?}");
            // SAFETY: the block is live the first time.
            unsafe {
                assert_eq!(ALL.try_deallocate(block, layout), Ok(()), "{layout:?}");
                assert!(ALL.check_owned(block, layout).is_err());
            }
        }
    }
}

/// A period of 100 is what threads keep to, within the chance of it.
#[test]
fn as_many_blocks_are_sampled_as_were_asked_for() {
    static SOME: Guarded<Heap> = Guarded::new(heap!(1 << 20), 100);
    let layout = layout(24);
    let mut sampled = 0;
    for _ in 0..100_000 {
        let block = SOME.try_allocate(layout).unwrap();
        sampled += usize::from(SOME.memory().check(block, layout).is_err());
        // SAFETY: the block is live.
        unsafe { SOME.try_deallocate(block, layout).unwrap() };
    }
    // The standard deviation is about 18.
    assert!((850..1150).contains(&sampled), "{sampled} of 100,000");
}

/// Pages of addresses that the process has.
fn pages() -> usize {
    let mut text = [0; 64];
    let len = std::fs::File::open("/proc/self/statm").unwrap().read(&mut text).unwrap();
    std::str::from_utf8(&text[..len]).unwrap().split(' ').next().unwrap().parse().unwrap()
}

/// Where the system has no memory for the slots (`RLIMIT_DATA`), requests go to the memory behind, and nothing is lost at each of them.
#[test]
fn slots_that_cannot_be_made_take_nothing() {
    static REFUSED: Guarded<Heap> = Guarded::new(heap!(1 << 20), 1);
    let (signal, text) = in_child(|| {
        let limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a limit of this process.
        unsafe { libc::setrlimit(libc::RLIMIT_DATA, &limit) };
        let before = pages();
        // The thread counts for both fronts: after 2,000 requests at most each one is due.
        for _ in 0..5000 {
            let block = REFUSED.try_allocate(layout(100)).unwrap();
            if REFUSED.memory().check(block, layout(100)).is_err() {
                std::process::abort();
            }
        }
        if pages() > before + 100 {
            // What it would print is kept by the test's own output, which ends with the child.
            std::process::abort();
        }
    });
    assert_eq!((signal, &*text), (0, ""));
}
