//! Which heap a value of [`Growing`] refers to: the heap of the process, or a separate one.

use super::Growing;
use super::state::{SHARED, Shared};
use super::thread;
use crate::lock::{Futex, Lock};
use crate::os::cache::{Bin, Lists, NONE, Source};
use crate::os::depot;
use crate::units::debug;
use core::ptr;
use core::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::boxed::Box;

/// Finds a heap's state.
pub(super) trait Whose {
    /// Whether requests may get blocks between guard pages.
    const SAMPLES: bool;

    /// Returns the state of the heap.
    fn shared(&self) -> &'static Shared;

    /// Returns the calling thread's bin of a class, or a bin without blocks and room.
    fn bin(&self, class: usize) -> *mut Bin;
}

/// The heap of the process.
impl Whose for () {
    const SAMPLES: bool = true;

    #[inline(always)]
    fn shared(&self) -> &'static Shared {
        &SHARED
    }

    #[inline(always)]
    fn bin(&self, class: usize) -> *mut Bin {
        // SAFETY: every place has lists, and the class is valid.
        unsafe { Lists::bin(thread::get(), class) }
    }
}

/// Marks a [`Growing`] as a separate heap, which [`Growing::create`] creates and which ends with the value.
pub struct Own(&'static Record);

/// The state of a heap. A later heap reuses it, because threads read it even after the heap has ended.
struct Record {
    shared: Shared,
    /// Whether a heap uses the record.
    taken: AtomicBool,
    /// The record that was created before this one.
    next: *const Self,
}

// SAFETY: the state is `Sync`, and the next record only changes through its atomics.
unsafe impl Sync for Record {}

/// The record that was created last.
static LAST: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// The locks that records share, because a fork can hold only a few.
static LOCKS: [Futex; 8] = [const { Futex::INIT }; 8];

impl Whose for Own {
    const SAMPLES: bool = false;

    #[inline(always)]
    fn shared(&self) -> &'static Shared {
        &self.0.shared
    }

    #[inline(always)]
    fn bin(&self, class: usize) -> *mut Bin {
        let lists = depot::lists();
        // SAFETY: only this thread accesses its lists, and every place has some; the class is valid.
        unsafe {
            let is_own = (*lists).token == self.0.shared.token();
            Lists::bin(if is_own { lists } else { NONE }, class)
        }
    }
}

/// Returns a record that no heap uses, and creates one if necessary.
fn record() -> &'static Record {
    let mut last = LAST.load(Ordering::Acquire);
    // SAFETY: records live forever, and are complete when they are found.
    while let Some(record) = unsafe { last.as_ref() } {
        if !record.taken.swap(true, Ordering::Acquire) {
            return record;
        }
        last = record.next.cast_mut();
    }
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    let lock = &LOCKS[COUNT.fetch_add(1, Ordering::Relaxed) % LOCKS.len()];
    let record = Box::leak(Box::new(Record {
        shared: Shared::new(lock, &depot::PLACE),
        taken: AtomicBool::new(true),
        next: LAST.load(Ordering::Acquire),
    }));
    while let Err(last) =
        LAST.compare_exchange(record.next.cast_mut(), record, Ordering::AcqRel, Ordering::Acquire)
    {
        record.next = last;
    }
    record
}

impl Growing<Own> {
    /// Creates a separate heap, with separate addresses, limits and statistics. Any thread may use it, and free blocks that another
    /// thread has allocated. Dropping the value returns all memory of the heap to the system at once, including live blocks.
    ///
    /// ```
    /// use allotment::{Memory, os::Growing};
    /// use std::alloc::Layout;
    ///
    /// let heap = Growing::create();
    /// heap.limit(1 << 30);
    /// let block = heap.allocate(Layout::new::<[u64; 1000]>()).expect("there is room");
    /// // SAFETY: the block has so many bytes.
    /// unsafe { block.write_bytes(0, 8000) };
    /// assert!(heap.stats().used >= 8000);
    /// drop(heap); // and the block with it
    /// ```
    ///
    /// A thread keeps free blocks of up to four such heaps and [`Cached`](crate::os::Cached) heaps together; the first heap that it uses
    /// is the fastest. Each heap reserves addresses as the heap of the process does: with more than a thousand heaps at the same time, or
    /// one on a 32-bit system, set a [`limit`](Growing::limit) before the first request. Creating a heap, allocating a hundred small
    /// blocks in it, and dropping it takes nine system calls, 17 system pages and about 0.15 ms; a record of a few KiB stays for the next
    /// heap.
    pub fn create() -> Self {
        let record = record();
        record.shared.begin();
        Self(Own(record))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: no block may be used after the heap ends, and this is the heap's only value.
        unsafe { self.0.shared.end() };
        self.0.taken.store(false, Ordering::Release);
    }
}

debug!([] Own, |self|);
