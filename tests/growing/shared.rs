//! A heap that processes share, some of which are killed.

use allotment::FreeError;
use allotment::os::SharedHeap;
use std::fs::OpenOptions;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

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
    let child = Command::new(std::env::current_exe().unwrap())
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
    let file = tempfile();
    assert!(SharedHeap::open(file.try_clone().unwrap()).is_err(), "an empty file");
    file.set_len(100_000).unwrap();
    assert!(SharedHeap::open(file).is_err(), "zeros");
}

/// A file that has no name.
fn tempfile() -> std::fs::File {
    SharedHeap::create(50_000)
        .map(|heap| heap.file().try_clone_to_owned().unwrap())
        .map(Into::into)
        .map(emptied)
        .unwrap()
}

fn emptied(file: std::fs::File) -> std::fs::File {
    file.set_len(0).unwrap();
    file
}
