//! Mappings, by the kernel's own word.

use crate::{HEAP, alone};
use allotment::os::{Huge, MapError, Mapping};
use allotment::{Heap, Region, Tlsf, lock::Unsync};
use std::alloc::Layout;
use std::fs;

const MIB: usize = 1 << 20;

/// What `smaps` says of the mapping that an address is in, in KiB.
fn smaps(region: Region, field: &str) -> usize {
    let text = fs::read_to_string("/proc/self/smaps").unwrap();
    let address = region.start.addr().get();
    let mut is_inside = false;
    for line in text.lines() {
        let first = line.split(' ').next().unwrap();
        if let Some((from, to)) = first.split_once('-') {
            let [from, to] = [from, to].map(|number| usize::from_str_radix(number, 16).unwrap());
            is_inside = (from..to).contains(&address);
        } else if is_inside && first.strip_suffix(':') == Some(field) {
            return line.split_whitespace().nth(1).unwrap().parse().unwrap();
        }
    }
    panic!("no mapping has {address:#x}")
}

/// Page faults of this thread.
pub(crate) fn faults() -> libc::c_long {
    // SAFETY: the place is valid for a write, and all zero is a value of it.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage.ru_minflt + usage.ru_majflt
    }
}

fn touch(region: Region) {
    for offset in (0..region.size).step_by(4096) {
        // SAFETY: the region is the test's.
        unsafe { region.start.as_ptr().add(offset).write_volatile(1) };
    }
}

fn unmap(region: Region) {
    // SAFETY: nothing uses the mapping any more.
    unsafe { Mapping::unmap(region) }.unwrap();
}

#[test]
fn huge_pages_are_what_was_asked_for() {
    let _alone = alone();
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    for (huge, expected) in [(Huge::Advise, 8 * 1024), (Huge::Never, 0)] {
        let region = Mapping::new(8 * MIB).huge(huge).populate().map().unwrap();
        assert!(region.zeroed && region.size == 8 * MIB);
        if huge == Huge::Advise {
            assert_eq!(region.start.addr().get() % (2 * MIB), 0);
        }
        if !mode.contains("[never]") {
            assert_eq!(smaps(region, "AnonHugePages"), expected, "{huge:?}");
        }
        unmap(region);
    }
}

#[test]
fn what_is_populated_faults_no_more() {
    let _alone = alone();
    let region = Mapping::new(6 * MIB).huge(Huge::Never).map().unwrap();
    let before = faults();
    touch(region);
    assert!(faults() - before >= 6 * 256, "a page that is not there is a fault");
    unmap(region);
    for wish in [Mapping::new(6 * MIB), Mapping::new(6 * MIB).huge(Huge::Never)] {
        let region = wish.populate().map().unwrap();
        let before = faults();
        touch(region);
        assert_eq!(faults(), before);
        unmap(region);
    }
}

/// Bytes that the process has locked.
fn locked() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmLck:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap() * 1024
}

#[test]
fn locked_memory_counts_as_such() {
    let _alone = alone();
    let before = locked();
    let region = Mapping::new(64 * 1024).lock().map().unwrap();
    assert_eq!(locked() - before, 64 * 1024);
    let faulted = faults();
    touch(region);
    assert_eq!(faults(), faulted, "what is locked is there");
    unmap(region);
    assert_eq!(locked(), before);
}

/// The limit is that of a child process, in which nothing else happens.
#[test]
fn a_lock_beyond_the_limit_is_refused() {
    let _alone = alone();
    // SAFETY: the child calls only what may be called after a fork: the heap protects itself.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: a limit of this process, and of a user who has no more rights than others.
        let status = unsafe {
            let limit = libc::rlimit { rlim_cur: 65536, rlim_max: 65536 };
            libc::setrlimit(libc::RLIMIT_MEMLOCK, &limit);
            libc::setuid(65534);
            match Mapping::new(MIB).lock().map() {
                Err(MapError::Lock(_)) => 0,
                Err(_) => 1,
                Ok(_) => 2,
            }
        };
        // SAFETY: nothing is left to do.
        unsafe { libc::_exit(status) }
    }
    let mut status = 0;
    // SAFETY: the child is this test's.
    unsafe { libc::waitpid(child, &mut status, 0) };
    let code = libc::WEXITSTATUS(status);
    // A superuser has become another user there; others have the limit anyway.
    assert!(libc::WIFEXITED(status) && code == 0, "{status:#x}");
}

/// The policy and the nodes of an address.
fn policy(region: Region) -> (i32, usize) {
    /// The kernel's number, which the crate `libc` lacks: look at an address.
    const MPOL_F_ADDR: i32 = 2;
    let (mut mode, mut nodes) = (0_i32, [0_usize; 16]);
    // SAFETY: both places are valid for a write, and as long as the kernel hears.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            &raw mut mode,
            nodes.as_mut_ptr(),
            1024,
            region.start.as_ptr(),
            MPOL_F_ADDR,
        )
    };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    (mode, nodes[0])
}

#[test]
fn nodes_are_what_was_asked_for() {
    let _alone = alone();
    let wish = Mapping::new(MIB);
    for (wish, expected) in [
        (wish.clone(), (libc::MPOL_DEFAULT, 0)),
        (wish.clone().node(0), (libc::MPOL_BIND, 1)),
        (wish.clone().node(77).interleave(&[0]), (libc::MPOL_INTERLEAVE, 1)),
    ] {
        let region = wish.populate().map().unwrap();
        assert_eq!(policy(region), expected);
        unmap(region);
    }
    for wish in [
        wish.clone().node(1000),
        wish.clone().node(1024),
        wish.clone().interleave(&[0, 9999]),
        wish.interleave(&[]),
    ] {
        assert!(matches!(wish.map(), Err(MapError::Node(_))), "no machine of the tests has so many");
    }
}

#[test]
fn what_the_kernel_refuses_has_a_type() {
    let _alone = alone();
    let map = |wish: Mapping| wish.map().unwrap_err();
    assert!(matches!(map(Mapping::new(0)), MapError::Size));
    assert!(matches!(map(Mapping::new(usize::MAX)), MapError::Size));
    // Where addresses have 32 bits, so much may be there.
    #[cfg(target_pointer_width = "64")]
    assert!(matches!(map(Mapping::new(isize::MAX as usize - 4095)), MapError::Memory(_)));
    assert!(matches!(map(Mapping::new(MIB).huge(Huge::Table(3 * MIB))), MapError::Size));
    // No machine has pages of 32 KiB, and the tables of those of the tests are not so long.
    for size in [32 * 1024, 2 * MIB] {
        assert!(
            matches!(map(Mapping::new(1 << (usize::BITS - 2)).huge(Huge::Table(size))), MapError::Table(_)),
            "{size}"
        );
    }
    let count = || fs::read_to_string("/proc/self/maps").unwrap().lines().count();
    let before = count();
    for _ in 0..9 {
        map(Mapping::new(MIB).node(1000));
    }
    // Other tests map memory meanwhile.
    assert!(count() < before + 9, "what is refused leaves no mapping");
}

/// A region is any heap's.
#[test]
fn heaps_live_in_mappings() {
    let _alone = alone();
    let region = Mapping::new(4 * MIB).huge(Huge::Advise).map().unwrap();
    let heap = Heap::<Tlsf, Unsync>::empty();
    // SAFETY: the mapping is new, and goes back when the heap is gone; the block is live.
    unsafe {
        heap.claim(region).unwrap();
        let layout = Layout::from_size_align(3 * MIB, 64).unwrap();
        let block = heap.try_allocate_zeroed(layout).unwrap();
        assert!(core::slice::from_raw_parts(block.as_ptr(), 3 * MIB).iter().all(|&byte| byte == 0));
        heap.try_deallocate(block, layout).unwrap();
    }
    unmap(region);
}

/// Writes to new blocks of many sizes, about 70 MiB together, and returns how many page faults that was.
fn faults_of_new_blocks() -> libc::c_long {
    let before = faults();
    let large: Vec<Vec<u8>> = (0..60).map(|n| vec![n; MIB]).collect();
    let small: Vec<Vec<u8>> = (0..40_000).map(|n| vec![n as u8; 16 + n % 400]).collect();
    let count = faults() - before;
    drop(std::hint::black_box((large, small)));
    count
}

#[test]
fn reserved_bytes_fault_no_more() {
    let _alone = alone();
    HEAP.trim();
    let without = faults_of_new_blocks();
    assert!(without > 2_000, "{without}: the memory was there already");
    HEAP.trim();
    HEAP.reserve(90 * MIB).unwrap();
    let with = faults_of_new_blocks();
    assert!(with <= 2, "{with} of {without}");
    // Freed again it is free memory like any other, most of which goes back.
    assert!(HEAP.stats().dirty < 60 * MIB, "{:?}", HEAP.stats());
    assert!(HEAP.reserve(usize::MAX / 2).is_err() && HEAP.reserve(0).is_ok());
}

#[test]
fn the_heap_asks_for_huge_pages_and_gives_them_back_whole() {
    let _alone = alone();
    assert!(matches!(HEAP.huge(Huge::Table(2 * MIB)), Err(MapError::Unsupported)));
    let mode = fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    if HEAP.huge(Huge::Advise).is_err() || mode.contains("[never]") {
        return;
    }
    let total = || {
        let text = fs::read_to_string("/proc/self/smaps_rollup").unwrap();
        let line = text.lines().find(|line| line.starts_with("AnonHugePages:")).unwrap();
        line.split_whitespace().nth(1).unwrap().parse::<usize>().unwrap()
    };
    HEAP.trim();
    let before = total();
    let block = vec![1_u8; 64 * MIB];
    assert!(total() >= before + 44 * 1024, "{} KiB of huge pages after {before}", total());
    // Free memory between live blocks goes back only where it is a whole huge page.
    let mut all: Vec<Vec<u8>> = (0..64).map(|_| vec![1_u8; 512 * 1024]).collect();
    let full = total();
    all.retain(|part| part.as_ptr().addr() % (2 * MIB) >= MIB);
    HEAP.trim();
    assert!(total() + 8 * 1024 >= full, "{} KiB of {full}", total());
    drop((all, block));
    HEAP.trim();
    assert!(total() <= full / 8, "{} KiB of {full}", total());
    HEAP.huge(Huge::Never).unwrap();
    let block = vec![1_u8; 64 * MIB];
    assert!(total() <= full / 4, "{} KiB of {full}", total());
    drop(block);
}
