//! Free blocks kept for each core. Threads stand for cores here, each with a number of its own.

use allotment::cores::Cores;
use allotment::lock::{Counted, Spin};
use allotment::plan::RecordedPlan;
use allotment::{FreeError, Heap, Memory, PerCore, PlannedHeap, Tlsf, heap};
use std::alloc::Layout;
use std::cell::Cell;
use std::ptr::NonNull;
use std::sync::mpsc;

fn bytes(size: usize) -> Layout {
    Layout::from_size_align(size, 8).unwrap()
}

thread_local! {
    static CORE: Cell<usize> = const { Cell::new(0) };
    /// How deep the thread is in guards, and how often it was in one.
    static INSIDE: Cell<(usize, usize)> = const { Cell::new((0, 0)) };
}

struct Threads;

// SAFETY: in each test no two threads have the same number at a time, and a thread is not interrupted.
unsafe impl Cores for Threads {
    type Token = usize;

    fn enter() -> (usize, usize) {
        let (depth, entries) = INSIDE.get();
        assert_eq!(depth, 0, "a core enters once");
        INSIDE.set((1, entries + 1));
        (CORE.get(), entries + 1)
    }

    unsafe fn leave(token: usize) {
        assert_eq!(INSIDE.get(), (1, token));
        INSIDE.set((0, token));
    }
}

type Front<const CORES: usize = 2, const BATCH: usize = 512> =
    PerCore<Heap<Tlsf, Counted<Spin>>, Threads, Spin, CORES, BATCH>;

/// Runs `work` on each of the cores.
fn on_cores<const N: usize>(work: impl Fn(usize) + Sync) {
    std::thread::scope(|scope| {
        for core in 0..N {
            let work = &work;
            scope.spawn(move || {
                CORE.set(core);
                work(core);
            });
        }
    });
}

/// Returns what all cores keep.
fn flush<const CORES: usize, const BATCH: usize>(front: &Front<CORES, BATCH>) {
    for core in 0..CORES {
        CORE.set(core);
        front.flush();
    }
    CORE.set(0);
}

/// Blocks are the ones that were freed last, as long as the core has some, and the memory's lock is taken once for a batch.
#[test]
fn a_core_takes_its_blocks_again() {
    static FRONT: Front = PerCore::new(heap!(64 * 1024));
    let layout = bytes(30);
    let taken = || FRONT.memory().contention().taken;
    let blocks: Vec<_> = (0..16).map(|_| FRONT.try_allocate(layout).unwrap()).collect();
    let fetched = taken();
    // 16 blocks of 32 bytes are a batch of 512 bytes. The first request of all finds the heap without its region.
    assert!(fetched <= 3, "{fetched}");
    let (_, before) = INSIDE.get();
    for round in 0..50 {
        // SAFETY: the blocks are live, and are used again only after they were allocated again.
        unsafe { blocks.iter().for_each(|&block| FRONT.deallocate(block, layout)) };
        let again: Vec<_> = (0..16).map(|_| FRONT.try_allocate(layout).unwrap()).collect();
        assert!(round > 0 || again.iter().eq(blocks.iter().rev()), "the last one freed comes first");
        assert!(again.iter().all(|block| blocks.contains(block)));
    }
    assert_eq!(taken(), fetched, "the lock is not taken");
    assert_eq!(INSIDE.get().1 - before, 50 * 32, "one guard for each operation");
    // SAFETY: as above.
    unsafe { blocks.iter().for_each(|&block| FRONT.deallocate(block, layout)) };
    assert!(FRONT.memory().used() >= 16 * 32, "the core keeps them");
    flush(&FRONT);
    assert_eq!(FRONT.memory().used(), 0);
}

/// A block that the program never wrote to may hold the mark of an earlier one. It moves to other addresses, and back again.
#[test]
fn a_mark_that_was_left_over_is_of_no_block() {
    static FRONT: Front = PerCore::new(heap!(64 * 1024));
    let [small, other] = [bytes(512), bytes(40)];
    // So aligned, it is no small block.
    let uncached = Layout::from_size_align(512, 16).unwrap();
    // SAFETY: each block is live, and is not used after it was freed or moved.
    unsafe {
        let block = FRONT.try_allocate(small).unwrap();
        FRONT.deallocate(block, small);
        FRONT.flush();
        let first = FRONT.try_allocate(uncached).unwrap();
        let moved = FRONT.change(first, uncached, other, &mut |_| {}).unwrap();
        let back = FRONT.change(moved, other, small, &mut |_| {}).unwrap();
        assert_eq!((first, back), (block, block), "a heap fills the same place again");
        assert_eq!(FRONT.try_deallocate(back, small), Ok(()));
    }
    flush(&FRONT);
    assert_eq!(FRONT.memory().used(), 0);
}

/// A planned place may hold such a mark too.
#[test]
fn a_planned_place_has_no_mark() {
    static FRONT: PlannedHeap<Front, 8, Spin> = PlannedHeap::new(PerCore::new(heap!(64 * 1024)));
    let [small, other, long] = [bytes(64), bytes(72), bytes(640)];
    // SAFETY: each block is live, and is not used after it was freed or moved.
    unsafe {
        let blocks: Vec<_> = (0..64).map(|_| FRONT.try_allocate(small).unwrap()).collect();
        blocks.iter().for_each(|&block| FRONT.deallocate(block, small));
        FRONT.heap().flush();
        FRONT.begin();
        let (first, second) = (FRONT.try_allocate(long).unwrap(), FRONT.try_allocate(small).unwrap());
        FRONT.deallocate(first, long);
        FRONT.deallocate(second, small);
        FRONT.heap().flush();
        FRONT.replan().unwrap();
        FRONT.begin();
        let (first, second) = (FRONT.try_allocate(long).unwrap(), FRONT.try_allocate(small).unwrap());
        assert!(FRONT.report().hits == 2 && blocks.contains(&second));
        FRONT.deallocate(first, long);
        let moved = FRONT.change(second, small, other, &mut |_| {}).unwrap();
        FRONT.load(&RecordedPlan::EMPTY).unwrap();
        let mut again = vec![FRONT.try_allocate(small).unwrap()];
        while again.last() != Some(&second) {
            again.push(FRONT.try_allocate(small).unwrap());
        }
        FRONT.deallocate(second, small);
        let back = FRONT.change(moved, other, small, &mut |_| {}).unwrap();
        assert_eq!((back, FRONT.check_owned(back, small)), (second, Ok(())));
        again.iter().for_each(|&block| FRONT.deallocate(block, small));
    }
    flush(FRONT.heap());
}

/// What is reported as the largest free block can be allocated, although small requests take whole classes.
#[test]
fn the_largest_free_block_can_be_allocated() {
    static FRONT: Front = PerCore::new(heap!(16 * 1024));
    let heap = FRONT.memory();
    while heap.largest_free() > 392 {
        let most = if heap.largest_free() > 1000 { heap.largest_free() - 600 } else { 8 };
        heap.try_allocate(bytes(most)).unwrap();
    }
    let largest = FRONT.largest_free();
    let error = FRONT.try_allocate(bytes(392)).unwrap_err();
    assert_eq!((error.requested, error.largest_free), (392, largest), "its class has 416 bytes");
    let block = FRONT.try_allocate(bytes(largest)).unwrap();
    // SAFETY: the block is live, and is not used afterwards.
    unsafe { FRONT.deallocate(block, bytes(largest)) };
    flush(&FRONT);
}

/// One core allocates and another one frees: batches go round, a lock for each, and what is kept stays bounded.
#[test]
fn blocks_go_round_in_batches() {
    static FRONT: Front = PerCore::new(heap!(64 * 1024));
    const ROUNDS: usize = 20_000;
    let layout = bytes(64);
    let (send, receive) = mpsc::sync_channel::<usize>(4);
    let receive = std::sync::Mutex::new(receive);
    on_cores::<2>(|core| {
        if core == 0 {
            for n in 0..ROUNDS {
                let block = FRONT.try_allocate(layout).unwrap();
                // SAFETY: the block is live and has 64 bytes.
                unsafe { block.cast::<usize>().write(n) };
                send.send(block.as_ptr().expose_provenance()).unwrap();
            }
        } else {
            let receive = receive.lock().unwrap();
            for n in 0..ROUNDS {
                let block =
                    NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(receive.recv().unwrap()))
                        .unwrap();
                // SAFETY: the block is live, holds its number, and is this core's now.
                unsafe {
                    assert_eq!(block.cast::<usize>().read(), n);
                    FRONT.deallocate(block, layout);
                }
            }
        }
    });
    // Two batches of 8 blocks on each core, four in the depot, and what was on its way.
    assert!(FRONT.memory().peak() <= (2 * 2 * 8 + 4 * 8 + 8 + 8) * 64, "{}", FRONT.memory().peak());
    let taken = FRONT.memory().contention().taken;
    assert!(taken < ROUNDS / 20, "{taken}");
    flush(&FRONT);
    assert_eq!(FRONT.memory().used(), 0);
}

/// Four cores allocate, resize and free blocks of each other, with contents that are checked.
#[test]
fn cores_do_not_share_blocks() {
    static FRONT: Front<4, 256> = PerCore::new(heap!(1024 * 1024));
    type Block = (usize, usize, u8);
    let channels: Vec<_> = (0..4).map(|_| mpsc::sync_channel::<Block>(64)).collect();
    let senders: Vec<_> = channels.iter().map(|(send, _)| send.clone()).collect();
    let receivers: Vec<_> = channels.into_iter().map(|(_, receive)| std::sync::Mutex::new(receive)).collect();
    let check = |(at, size, seed): Block| {
        let block = NonNull::new(std::ptr::with_exposed_provenance_mut::<u8>(at)).unwrap();
        // SAFETY: the block is live, has this size, and was filled.
        let held = unsafe { std::slice::from_raw_parts(block.as_ptr(), size) };
        assert!(held.iter().all(|&byte| byte == seed), "{size} bytes");
        block
    };
    on_cores::<4>(|core| {
        let mut random = fastrand::Rng::with_seed(core as u64);
        let receive = receivers[core].lock().unwrap();
        for _ in 0..5000 {
            let (size, seed) = (random.usize(1..700), random.u8(..));
            let mut block = FRONT.try_allocate(bytes(size)).unwrap();
            // SAFETY: the block is live and has this size.
            unsafe { block.write_bytes(seed, size) };
            let mut now = size;
            if random.bool() {
                now = random.usize(1..700);
                // SAFETY: the block is live, and is not used at its old address.
                block = unsafe { FRONT.change(block, bytes(size), bytes(now), &mut |_| ()) }.unwrap();
                // SAFETY: the block is live and has the new size.
                unsafe { block.write_bytes(seed, now) };
            }
            let sent = (block.as_ptr().expose_provenance(), now, seed);
            if senders[random.usize(..4)].try_send(sent).is_err() {
                // The other core is behind.
                // SAFETY: the block is live.
                unsafe { FRONT.deallocate(check(sent), bytes(now)) };
            }
            while let Ok(sent) = receive.try_recv() {
                let block = check(sent);
                // SAFETY: the block is live and this core's now.
                unsafe {
                    assert_eq!(FRONT.check_owned(block, bytes(sent.1)), Ok(()));
                    FRONT.try_deallocate(block, bytes(sent.1)).unwrap();
                }
            }
        }
    });
    for receive in receivers {
        for sent in receive.into_inner().unwrap().try_iter() {
            let block = check(sent);
            // SAFETY: the block is live.
            unsafe { FRONT.deallocate(block, bytes(sent.1)) };
        }
    }
    flush(&FRONT);
    assert_eq!(FRONT.memory().used(), 0);
}

/// A request that finds no memory gets what its core and the depot keep.
#[test]
fn what_is_kept_comes_back_when_memory_runs_out() {
    static FRONT: Front = PerCore::new(heap!(8 * 1024));
    let small = bytes(100);
    let mut blocks: Vec<_> = std::iter::from_fn(|| FRONT.allocate(small)).collect();
    assert!(blocks.len() > 60);
    let error = FRONT.try_allocate(bytes(3000)).unwrap_err();
    assert_eq!(error.requested, 3000);
    // SAFETY: the blocks are live, and freed once.
    unsafe { blocks.drain(..).for_each(|block| FRONT.deallocate(block, small)) };
    assert!(FRONT.memory().used() > 0);
    // Nearly all of the heap, in one piece.
    let large = bytes(7500);
    let block = FRONT.try_allocate(large).unwrap();
    // SAFETY: the block is live.
    unsafe { FRONT.deallocate(block, large) };
    // A class of its own as well.
    blocks.extend(std::iter::from_fn(|| FRONT.allocate(small)));
    // SAFETY: as above.
    unsafe { blocks.drain(..).for_each(|block| FRONT.deallocate(block, small)) };
    let others: Vec<_> = std::iter::from_fn(|| FRONT.allocate(bytes(300))).collect();
    assert!(others.len() > 20, "{}", others.len());
    // SAFETY: as above.
    unsafe { others.iter().for_each(|&block| FRONT.deallocate(block, bytes(300))) };
    flush(&FRONT);
    assert_eq!(FRONT.memory().used(), 0);
}

/// A kept block is no live one, and a core without a place keeps none.
#[test]
fn kept_blocks_are_free() {
    static FRONT: Front = PerCore::new(heap!(8 * 1024));
    let layout = bytes(40);
    let block = FRONT.try_allocate(layout).unwrap();
    // SAFETY: the block is freed once; the double free is refused.
    unsafe {
        assert!(FRONT.try_resize(block, layout, 33) && !FRONT.try_resize(block, layout, 41));
        FRONT.try_deallocate(block, layout).unwrap();
        assert_eq!(FRONT.try_deallocate(block, layout), Err(FreeError::AlreadyFree));
    }
    flush(&FRONT);
    CORE.set(2);
    let block = FRONT.try_allocate(layout).unwrap();
    let (used, class) = (FRONT.memory().used(), 40);
    assert_eq!(used, class);
    // SAFETY: the block is live.
    unsafe { FRONT.deallocate(block, layout) };
    assert_eq!(FRONT.memory().used(), 0);
}
