//! What threads share without a lock, and the lock itself, in every order that loom finds.
//!
//! The files are the library's own, compiled against a `core` whose atomics are loom's. Each model says how many orders it tried.

#![allow(dead_code, unused_imports, unused_macros, reason = "the models use a part of each file")]

// In place of the real ones, everywhere in this program.
extern crate loom_core as core;
extern crate loom_core as rustix;

#[path = "../../../src/front/cores.rs"]
mod cores;
#[path = "../../../src/heap/fixed.rs"]
mod fixed;
mod front;
mod lock;
mod memory;
mod os;
mod plan;
mod region;

/// As in the library.
mod error {
    /// As in the library.
    #[derive(Debug, PartialEq, Eq)]
    pub enum FreeError {
        /// The address is no block's.
        Foreign,
        /// The address is inside a block.
        Misaligned,
        /// The block is free.
        AlreadyFree,
    }

    /// As in the library.
    pub mod misuse {
        /// As in the library.
        #[derive(Debug)]
        pub enum Kind {
            /// A list of free blocks was written to.
            BrokenList,
        }

        /// Ends the model.
        pub fn corrupted(fault: Kind, address: usize) -> ! {
            panic!("{fault:?} at {address:#x}")
        }

        /// Ends the model.
        pub fn invalid_free(error: super::FreeError, address: usize) {
            panic!("{error:?} at {address:#x}")
        }
    }
}

use cores::{Cores, PerCore};
use fixed::FixedPool;
use lock::{Futex, Lock};
use loom::cell::UnsafeCell;
use loom::thread;
use memory::{Few, Memory};
use std::alloc::Layout;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Runs a model in every order with up to `preemptions` switches of threads that could have gone on, and prints how many there are.
fn model(name: &str, preemptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let orders = Arc::new(AtomicUsize::new(0));
    let count = orders.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 20_000;
    builder.check(move || {
        count.fetch_add(1, Ordering::Relaxed);
        model();
    });
    let orders = orders.load(Ordering::Relaxed);
    println!("{name}: {orders} orders");
    assert!(orders > 1, "the threads never meet");
}

/// Runs `work` in `threads` threads, and waits for them. Each gets its number.
fn threads(count: usize, work: impl Fn(usize) + Send + Sync + Clone + 'static) {
    let others: Vec<_> = (1..count)
        .map(|number| {
            let work = work.clone();
            thread::spawn(move || work(number))
        })
        .collect();
    work(0);
    others.into_iter().for_each(|other| other.join().expect("no thread panics"));
}

/// Makes a lock. The thread that makes the others uses it first: loom's part of an atomic is made then.
fn lock() -> Futex {
    let lock = Futex::INIT;
    lock.with(|| ());
    // SAFETY: the lock is free, and so it stays.
    unsafe { lock.reset() }
    lock
}

/// Numbers that are written without atomics: loom notices if two threads meet there.
struct Cells<const N: usize>([UnsafeCell<usize>; N]);

// SAFETY: loom notices what should not be.
unsafe impl<const N: usize> Sync for Cells<N> {}
// SAFETY: as above.
unsafe impl<const N: usize> Send for Cells<N> {}

impl<const N: usize> Cells<N> {
    fn new() -> Self {
        Self(std::array::from_fn(|_| UnsafeCell::new(0)))
    }

    fn add(&self, at: usize) -> usize {
        // SAFETY: what is tested is that no other thread is there.
        self.0[at].with_mut(|cell| unsafe {
            *cell += 1;
            *cell
        })
    }
}

loom::thread_local! {
    /// The number of the core that a thread stands for.
    static CORE: Cell<usize> = Cell::new(0);
}

/// Threads as cores, which nothing interrupts.
struct Threads;

// SAFETY: in the model no two threads have the same number at a time.
unsafe impl Cores for Threads {
    type Token = ();

    fn enter() -> (usize, ()) {
        (CORE.with(Cell::get), ())
    }

    unsafe fn leave((): ()) {}
}

/// Models a front with free blocks for each of two cores, in batches of one block. Each core uses blocks that the other one may have had, which
/// loom would notice if the depot did not order the two.
fn cores(blocks: usize, preemptions: usize) {
    const LAYOUT: Layout = Layout::new::<[u64; 2]>();
    let name = format!("free blocks per core, {blocks} blocks");
    model(&name, preemptions, move || {
        type Front = PerCore<Few, Threads, Futex, 2, 16>;
        let shared = Arc::new((Front::new(Few::new(blocks)), Cells::<6>::new()));
        let take = |shared: &(Front, Cells<6>)| {
            let block = shared.0.allocate(LAYOUT)?;
            shared.1.add(shared.0.memory().number(block));
            Some(block)
        };
        let give = |shared: &(Front, Cells<6>), block| {
            shared.1.add(shared.0.memory().number(block));
            // SAFETY: the block is not used any more.
            unsafe { shared.0.deallocate(block, LAYOUT) }
        };
        // Three frees: the last one leaves a batch in the depot, whose lock is used first here.
        let first = [(); 3].map(|()| take(&shared).expect("there are as many"));
        first.into_iter().for_each(|block| give(&shared, block));
        let both = shared.clone();
        threads(2, move |number| {
            CORE.with(|core| core.set(number));
            // The third free of a core leaves a batch in the depot.
            let mine = [(); 3].map(|()| take(&both));
            mine.into_iter().flatten().for_each(|block| give(&both, block));
            if let Some(block) = take(&both) {
                give(&both, block);
            }
        });
        // This thread is each core in turn.
        for number in [1, 0] {
            CORE.with(|core| core.set(number));
            shared.0.flush();
        }
        assert_eq!(shared.0.memory().available(), blocks, "no block is lost or doubled");
    });
}

fn main() {
    cores(4, 2);
    cores(6, 3);
    model("lock, 2 threads", 3, || {
        let shared = Arc::new((lock(), Cells::<1>::new()));
        let both = shared.clone();
        threads(2, move |_| {
            both.0.with(|| both.1.add(0));
            // The fast path, which does not wait.
            let _ = both.0.try_lock().map(|_guard| both.1.add(0));
        });
        let count = shared.0.with(|| shared.1.add(0));
        assert!((3..=5).contains(&count), "{count}");
    });
    // With three threads two of them can wait for each other's turn without end, which loom takes for a fault.
    model("lock, 2 threads, twice", 4, || {
        let shared = Arc::new((lock(), Cells::<1>::new()));
        let both = shared.clone();
        threads(2, move |_| {
            both.0.with(|| both.1.add(0));
            both.0.with(|| both.1.add(0));
        });
        assert_eq!(shared.0.with(|| shared.1.add(0)), 5);
    });
    model("lock, held across a fork", 3, || {
        let shared = Arc::new((lock(), Cells::<1>::new()));
        let both = shared.clone();
        threads(2, move |number| {
            if number == 0 {
                both.0.acquire();
                both.1.add(0);
                // SAFETY: this thread has taken the lock.
                unsafe { both.0.release(()) }
            } else {
                both.0.with(|| both.1.add(0));
            }
        });
        assert_eq!(shared.0.with(|| shared.1.add(0)), 3);
    });
    model("depot, 2 threads", 3, || {
        // A list belongs to who has taken it: its blocks are written without atomics.
        let shared = Arc::new((os::Open::new(), Cells::<2>::new()));
        assert_eq!(shared.0.take(), None);
        let both = shared.clone();
        threads(2, move |number| {
            both.1.add(number);
            assert!(both.0.put(number));
            if let Some(list) = both.0.take() {
                both.1.add(list);
                assert!(both.0.put(list));
            }
        });
        let mut left: Vec<_> = std::iter::from_fn(|| shared.0.take()).collect();
        left.sort_unstable();
        assert_eq!(left, [0, 1], "no list is lost or doubled");
        left.into_iter().for_each(|list| assert!(shared.1.add(list) <= 5));
    });
    model("depot, 3 threads", 2, || {
        let shared = Arc::new((os::Open::new(), Cells::<1>::new()));
        assert!(shared.0.take().is_none() && shared.0.put(0));
        let all = shared.clone();
        threads(3, move |_| {
            if let Some(list) = all.0.take() {
                all.1.add(list);
                assert!(all.0.put(list));
            }
        });
        assert_eq!((shared.0.take(), shared.0.take()), (Some(0), None));
    });
    model("pool of fixed blocks, 3 threads", 3, || {
        type Pool = FixedPool<u64, 2>;
        let shared = Arc::new((Pool::new(), Cells::<2>::new()));
        let first = shared.0.alloc_raw().expect("both are free").addr().get();
        // SAFETY: the block is not used.
        unsafe { shared.0.free_raw(std::ptr::NonNull::new(first as *mut u64).unwrap()).unwrap() };
        let all = shared.clone();
        threads(3, move |_| {
            if let Some(block) = all.0.alloc_raw() {
                all.1.add((block.addr().get() - first) / 8);
                // SAFETY: the block is not used any more.
                unsafe { all.0.free_raw(block) }.expect("it is ours");
            }
        });
        assert_eq!(shared.0.available(), 2);
    });
    model("flag of an arena, 3 threads", 3, || {
        let shared = Arc::new((plan::Open::new(), Cells::<1>::new()));
        assert!(shared.0.enter());
        shared.0.leave();
        let all = shared.clone();
        threads(3, move |_| {
            if all.0.enter() {
                all.1.add(0);
                all.0.leave();
            }
        });
        let count = shared.1.add(0);
        assert!((2..=4).contains(&count), "{count}");
    });
    model("claim of static memory, 3 threads", 3, || {
        // Not freed: it is there as long as a program is.
        let memory: &'static region::StaticRegion<64> = Box::leak(Box::new(region::StaticRegion::new()));
        // SAFETY: the flag, which nothing else names, stands behind the memory.
        let flag =
            unsafe { &*std::ptr::from_ref(memory).cast::<core::sync::atomic::AtomicBool>().byte_add(64) };
        assert!(!flag.load(Ordering::Relaxed));
        let taken = Arc::new(Cells::<1>::new());
        let all = taken.clone();
        threads(3, move |_| {
            // A heap of its own for each thread, all over the same memory.
            if memory.pending(None).take().is_some() {
                all.add(0);
            }
        });
        assert_eq!(taken.add(0), 2, "one heap gets the memory");
    });
}
