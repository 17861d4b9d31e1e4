//! A heap that processes share, some of which are killed.

use crate::again::again;
use crate::alone;
use allotment::FreeError;
use allotment::os::SharedHeap;
use std::fs::{File, OpenOptions};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::FileExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};
use std::{env, fs, panic, process};

/// Tells a child process which file to open.
const FILE: &str = "ALLOTMENT_SHARED";

/// Fills a block with what belongs to its offset.
fn fill(heap: &SharedHeap, block: usize, bytes: usize) {
    // SAFETY: the block is live and has that many bytes.
    unsafe { heap.address(block).write_bytes(block as u8 ^ (block >> 8) as u8, bytes) };
}

/// Whether a block still has what `fill` wrote.
fn is_filled(heap: &SharedHeap, block: usize, bytes: usize) -> bool {
    // SAFETY: as above.
    let found = unsafe { std::slice::from_raw_parts(heap.address(block), bytes) };
    found.iter().all(|&byte| byte == block as u8 ^ (block >> 8) as u8)
}

/// Takes and frees blocks until the process is killed.
fn work(heap: &SharedHeap, mut random: fastrand::Rng) {
    let mut live: Vec<(usize, usize)> = Vec::new();
    // Generous: only if the test itself was killed.
    let limit = Instant::now() + Duration::from_secs(30);
    while Instant::now() < limit {
        if live.len() < 20 && random.bool() {
            let bytes = random.usize(1..3000);
            if let Some(block) = heap.allocate(bytes, 1 << random.u32(..13)) {
                fill(heap, block, bytes);
                live.push((block, bytes));
            }
        } else if !live.is_empty() {
            let (block, bytes) = live.swap_remove(random.usize(..live.len()));
            if !is_filled(heap, block, bytes) || heap.free(block).is_err() {
                heap.root().fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// A process that ends with this value.
struct Worker(Child);

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn spawn(heap: &SharedHeap) -> Worker {
    use std::os::fd::AsRawFd;
    let file = format!("/proc/{}/fd/{}", std::process::id(), heap.file().as_raw_fd());
    let child = again()
        .args(["--exact", "shared::killed_processes_leave_the_heap_whole", "--test-threads=1"])
        .env(FILE, file)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    Worker(child)
}

/// Kills a process, and returns how many blocks it had.
fn end(heap: &SharedHeap, worker: Worker) -> usize {
    let process = worker.0.id();
    drop(worker);
    heap.free_all_of(process)
}

#[test]
fn killed_processes_leave_the_heap_whole() {
    let _alone = alone();
    const KILLS: usize = 150;
    if let Ok(file) = std::env::var(FILE) {
        let file = OpenOptions::new().read(true).write(true).open(file).unwrap();
        let heap = SharedHeap::open(file).unwrap();
        let seed = std::process::id().into();
        return work(&heap, fastrand::Rng::with_seed(seed));
    }
    let heap = SharedHeap::create(400_000).unwrap();
    let whole = heap.largest_free();
    let mut random = fastrand::Rng::with_seed(3);
    let mut children: Vec<Worker> = (0..2).map(|_| spawn(&heap)).collect();
    let mut freed = 0;
    for kill in 0.. {
        // It is a matter of chance who dies with the lock.
        if kill >= KILLS && (heap.used().1 > 0 || kill == 20 * KILLS) {
            break;
        }
        thread::sleep(Duration::from_micros(random.u64(2000..6000)));
        let at = random.usize(..children.len());
        let dead = std::mem::replace(&mut children[at], spawn(&heap));
        freed += end(&heap, dead);
        let block = heap.allocate(500, 512).expect("there is room");
        assert!(heap.address(block).addr() % 512 == 0 && heap.size(block) == Some(512));
        assert_eq!(heap.free(block), Ok(()));
    }
    for child in children {
        freed += end(&heap, child);
    }
    let (used, recoveries) = heap.used();
    assert_eq!(heap.root().load(Ordering::Relaxed), 0, "a block had changed or was freed twice");
    assert_eq!((used, heap.largest_free()), (0, whole), "memory is lost");
    assert!(freed > 0 && recoveries > 0, "{freed} blocks of the dead, {recoveries} deaths with the lock");
}

#[test]
fn the_heap_is_the_same_at_two_addresses() {
    let _alone = alone();
    let heap = SharedHeap::create(1 << 20).unwrap();
    let other = SharedHeap::open(heap.file().try_clone_to_owned().unwrap()).unwrap();
    assert_ne!(heap.address(0), other.address(0));
    let mut random = fastrand::Rng::with_seed(5);
    let mut live: Vec<(usize, usize)> = Vec::new();
    let mut refused = 0;
    for round in 0..20_000 {
        let (one, two) = if round % 2 == 0 { (&heap, &other) } else { (&other, &heap) };
        if random.u32(..9) < 5 {
            let bytes = random.usize(1..20_000);
            match one.allocate(bytes, 1) {
                Some(block) => {
                    assert!(two.size(block).unwrap() >= bytes);
                    fill(two, block, bytes);
                    live.push((block, bytes));
                }
                None => refused += 1,
            }
        } else if !live.is_empty() {
            let (block, bytes) = live.swap_remove(random.usize(..live.len()));
            assert!(is_filled(one, block, bytes));
            assert_eq!(two.free(block), Ok(()));
            assert_eq!(one.free(block), Err(FreeError::NotABlock));
        }
    }
    assert!(refused > 0);
    for (block, _) in live {
        heap.free(block).unwrap();
    }
    assert_eq!(other.used(), (0, 0));
}

#[test]
fn what_is_wrong_is_refused() {
    let _alone = alone();
    assert!(SharedHeap::create(4096).is_err());
    let heap = SharedHeap::create(100_000).unwrap();
    let block = heap.allocate(1000, 8).unwrap();
    for (offset, error) in [
        (0, FreeError::Foreign),
        (usize::MAX, FreeError::Foreign),
        (block + 1, FreeError::Misaligned),
        (block + 256, FreeError::NotABlock),
    ] {
        assert_eq!((heap.free(offset), heap.size(offset)), (Err(error), None), "{offset}");
    }
    assert!(
        heap.allocate(8, 3).is_none()
            && heap.allocate(8, 8192).is_none()
            && heap.allocate(90_000, 8).is_none()
    );
    let aligned = heap.allocate(8, 4096).expect("blocks may be aligned to a page");
    assert_eq!(aligned % 4096, 0);
    let path = env::temp_dir().join(format!("allotment-empty-{}", process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    // SAFETY: only this test has the file.
    let open = || unsafe { SharedHeap::in_unsealed(file.try_clone().unwrap(), None) };
    assert!(open().is_err(), "an empty file");
    file.set_len(100_000).unwrap();
    assert!(open().is_err(), "zeros");
}

/// Safe code that gets at the file cannot take it away from those who have it mapped: not by another heap in it, nor by its length.
#[test]
fn the_file_of_a_heap_keeps_its_length() {
    let _alone = alone();
    let heap = SharedHeap::create(8 << 20).unwrap();
    let block = heap.allocate(100, 8).unwrap();
    let file = || File::from(heap.file().try_clone_to_owned().unwrap());
    let again = SharedHeap::create_in(file(), 64 * 1024).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::AlreadyExists, "{again}");
    for len in [0, 4096, (8 << 20) - 1, (8 << 20) + 4096] {
        assert_eq!(file().set_len(len).unwrap_err().kind(), ErrorKind::PermissionDenied, "{len}");
    }
    assert_eq!((heap.free(block), heap.used()), (Ok(()), (0, 0)));
    // Without the mark it cannot be taken either.
    file().write_all_at(&[0; 8], 0).unwrap();
    let again = SharedHeap::create_in(file(), 64 * 1024).err().unwrap();
    assert_eq!(again.kind(), ErrorKind::InvalidInput, "{again}");
    // Files that cannot be sealed are for unsafe code.
    let path = env::temp_dir().join(format!("allotment-unsealed-{}", process::id()));
    let plain = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    fs::remove_file(path).unwrap();
    plain.write_all_at(b"kept", 0).unwrap();
    let refused = SharedHeap::create_in(plain.try_clone().unwrap(), 64 * 1024).err().unwrap();
    assert_eq!((refused.kind(), plain.metadata().unwrap().len()), (ErrorKind::InvalidInput, 4), "{refused}");
    // SAFETY: only this test has the file, and leaves its length alone.
    let other = unsafe { SharedHeap::in_unsealed(plain.try_clone().unwrap(), Some(64 * 1024)) }.unwrap();
    assert_eq!(SharedHeap::open(plain).err().map(|error| error.kind()), Some(ErrorKind::InvalidInput));
    assert!(other.allocate(1, 1).is_some());
}

/// Another process, or this one, writes anything to the file: no call crashes, waits for ever, or allocates what is not in the file.
#[test]
fn what_is_written_to_the_file_is_not_trusted() {
    let _alone = alone();
    const BYTES: usize = 100_000;
    let mut random = fastrand::Rng::with_seed(17);
    for round in 0..60 {
        let heap = SharedHeap::create(BYTES).unwrap();
        let file = File::from(heap.file().try_clone_to_owned().unwrap());
        let tables = heap.allocate(1, 4096).unwrap();
        let blocks: Vec<usize> = (0..20).map_while(|_| heap.allocate(random.usize(1..4000), 1)).collect();
        // A few words, or all of the tables; the number that says that there is a heap stays now and then.
        let first = if round % 3 == 0 { 0 } else { 16 };
        for _ in 0..random.usize(1..200) {
            let word = random.u32(..) >> random.u32(..32);
            file.write_all_at(&word.to_ne_bytes(), random.u64(first..tables as u64 - 4)).unwrap();
        }
        if round % 20 == 19 {
            let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(tables - 16).collect();
            file.write_all_at(&bytes, 16).unwrap();
        }
        let opened = SharedHeap::open(file);
        assert!(opened.is_ok() || first == 0, "{:?}", opened.err());
        for heap in [Some(&heap), opened.as_ref().ok()].into_iter().flatten() {
            for &block in &blocks {
                assert!(heap.size(block).is_none_or(|bytes| block + bytes <= BYTES + 4096));
                let _ = heap.free(block);
            }
            while let Some(block) = heap.allocate(random.usize(1..3000), 1) {
                assert!(
                    block >= tables && heap.size(block).is_none_or(|bytes| block + bytes <= BYTES + 4096)
                );
            }
            let _ = heap.free_all_of(process::id());
            assert!(heap.used().0 <= BYTES && heap.largest_free() <= BYTES);
        }
    }
}

/// Every block beside a list of granules: where it is, what the figures say, and what is refused.
#[test]
fn the_figures_are_those_of_the_blocks() {
    let _alone = alone();
    const GRANULE: usize = 256;
    let least = (1..).find(|pages| SharedHeap::create(pages * 4096).is_ok()).unwrap();
    for pages in [least, least + 1, least + 7] {
        let heap = SharedHeap::create(pages * 4096 - 1).unwrap();
        let total = heap.largest_free();
        assert!(total > 0 && total % GRANULE == 0);
        let start = heap.allocate(total, 1).expect("all of it is one block");
        assert_eq!((start % 4096, heap.used(), heap.largest_free()), (0, (total, 0), 0));
        assert_eq!((heap.allocate(1, 1), heap.size(start)), (None, Some(total)));
        for offset in [start - GRANULE, start + total] {
            assert_eq!(heap.free(offset), Err(FreeError::Foreign));
        }
        heap.free(start).unwrap();
        assert!([total + 1, usize::MAX].iter().all(|&bytes| heap.allocate(bytes, 1).is_none()));
        assert!(heap.address(pages * 4096 - 1) > heap.address(0));
        let beyond = panic::catch_unwind(panic::AssertUnwindSafe(|| heap.address(pages * 4096)));
        assert!(beyond.is_err());

        let mut taken = vec![false; total / GRANULE];
        let mut live: Vec<(usize, usize)> = Vec::new();
        let mut random = fastrand::Rng::with_seed(pages as u64);
        for _ in 0..3000 {
            if random.bool() && !live.is_empty() {
                let (block, len) = live.swap_remove(random.usize(..live.len()));
                let first = (block - start) / GRANULE;
                taken[first..first + len].fill(false);
                assert_eq!((heap.free(block), heap.free(block)), (Ok(()), Err(FreeError::NotABlock)));
            } else {
                let (bytes, align) = (random.usize(0..4 * GRANULE), 1 << random.u32(..13));
                if let Some(block) = heap.allocate(bytes, align) {
                    let (len, first) = (bytes.max(1).div_ceil(GRANULE), (block - start) / GRANULE);
                    assert_eq!((block % align, heap.size(block)), (0, Some(len * GRANULE)));
                    assert!(taken[first..first + len].iter().all(|taken| !taken));
                    taken[first..first + len].fill(true);
                    live.push((block, len));
                }
            }
            let used = taken.iter().filter(|taken| **taken).count() * GRANULE;
            assert_eq!(heap.used(), (used, 0));
            let longest = taken.split(|taken| *taken).map(<[bool]>::len).max().unwrap() * GRANULE;
            let largest = heap.largest_free();
            assert!(largest <= longest && 2 * largest >= longest, "{largest} of {longest}");
            if largest > 0 {
                let block = heap.allocate(largest, 1).expect("it is sure to succeed");
                heap.free(block).unwrap();
            }
        }
        assert_eq!(heap.free_all_of(process::id() + 1), 0);
        assert_eq!((heap.free_all_of(process::id()), heap.used()), (live.len(), (0, 0)));
        assert_eq!((heap.free_all_of(process::id()), heap.largest_free()), (0, total));
    }
}

/// A file has to be as it was made, and is made anew without what was in it; the memory goes with the heap.
#[test]
fn files_are_checked_and_given_up() {
    let _alone = alone();
    let path = env::temp_dir().join(format!("allotment-shared-{}", process::id()));
    let file = || OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path).unwrap();
    // SAFETY: only this test has the file, and shortens it only when it is not mapped.
    let heap = |bytes| unsafe { SharedHeap::in_unsealed(file(), bytes) };
    let created = heap(Some(100_000)).unwrap();
    let len = file().metadata().unwrap().len();
    assert_eq!(len, 102_400);
    let block = created.allocate(1000, 1).unwrap();
    created.root().store(block as u64, Ordering::Relaxed);
    let other = heap(None).unwrap();
    assert_eq!((other.root().load(Ordering::Relaxed), other.used()), (block as u64, (1024, 0)));
    drop(other);
    let wrong = || heap(None).err().map(|error| error.kind());
    file().set_len(len + 4096).unwrap();
    assert_eq!(wrong(), Some(ErrorKind::InvalidInput));
    file().set_len(len).unwrap();
    // SAFETY: the file begins with a number that says what it is, and only this test uses it.
    let first = unsafe { &mut *created.address(0) };
    *first ^= 1;
    assert_eq!(wrong(), Some(ErrorKind::InvalidInput));
    *first ^= 1;
    assert_eq!(wrong(), None);
    drop(created);
    // It has the mark of a heap, which may be in use.
    assert_eq!(heap(Some(100_000)).err().map(|error| error.kind()), Some(ErrorKind::AlreadyExists));
    file().set_len(0).unwrap();
    let created = heap(Some(100_000)).unwrap();
    assert_eq!((created.root().load(Ordering::Relaxed), created.used()), (0, (0, 0)));
    let is_mapped = || fs::read_to_string("/proc/self/maps").unwrap().contains(path.to_str().unwrap());
    assert!(is_mapped());
    drop(created);
    assert!(!is_mapped());
    fs::remove_file(&path).unwrap();
}

/// The first descriptor is as good as any, and it is an error when there is none left.
#[test]
fn descriptors_are_used_up_to_the_last() {
    let _alone = alone();
    const CHILD: &str = "ALLOTMENT_SHARED_DESCRIPTORS";
    if env::var_os(CHILD).is_some() {
        // SAFETY: the input of this process is not read.
        drop(unsafe { OwnedFd::from_raw_fd(0) });
        let heap = SharedHeap::create(100_000).unwrap();
        assert_eq!(heap.file().as_raw_fd(), 0);
        let files: Vec<_> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
        let error = SharedHeap::create(100_000).err().unwrap();
        assert_eq!(error.raw_os_error(), Some(24), "{error} after {} files", files.len());
        return;
    }
    let child = Command::new("sh")
        .args(["-c", "ulimit -n 64 && exec \"$0\" \"$@\""])
        .arg(again().get_program())
        .args(again().get_args())
        .args(["--exact", "shared::descriptors_are_used_up_to_the_last", "--test-threads=1"])
        .env(CHILD, "yes")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success() && text.contains("1 passed"), "{text}");
}

/// A length that the process may not give to a file is an error, and no signal that ends it.
#[test]
fn a_limit_of_file_lengths_is_an_error() {
    const FSIZE: &str = "ALLOTMENT_FSIZE";
    let _alone = alone();
    if env::var_os(FSIZE).is_some() {
        let limit = libc::rlimit { rlim_cur: 4096, rlim_max: libc::RLIM_INFINITY };
        // SAFETY: the limit is a valid one.
        assert_eq!(unsafe { libc::setrlimit(libc::RLIMIT_FSIZE, &limit) }, 0);
        let error = SharedHeap::create(1 << 20).err().unwrap();
        process::exit(if error.raw_os_error() == Some(libc::EFBIG) { 7 } else { 1 });
    }
    let child = again()
        .args(["--exact", "shared::a_limit_of_file_lengths_is_an_error", "--test-threads=1"])
        .env(FSIZE, "")
        .stdout(Stdio::null())
        .status()
        .unwrap();
    assert_eq!(child.code(), Some(7), "{child}");
}
