//! Which heap a value of [`Growing`] stands for: that of the process, or one of its own.

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

    /// Returns the calling thread's bin of a class, or one that has neither blocks nor room.
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
        // SAFETY: every place has lists, and the class is one.
        unsafe { Lists::bin(thread::get(), class) }
    }
}

/// Marks [`Growing`] as a heap of its own, made by [`Growing::create`], which ends with the value.
pub struct Own(&'static Record);

/// The state of a heap, which stays for the next one: threads look at it when the heap has ended.
struct Record {
    shared: Shared,
    /// Whether a heap has it.
    taken: AtomicBool,
    /// The record that was made before.
    next: *const Self,
}

// SAFETY: the state is shared by threads, and the next record is never written to but by its atomics.
unsafe impl Sync for Record {}

/// The record that was made last.
static LAST: AtomicPtr<Record> = AtomicPtr::new(ptr::null_mut());

/// The locks of records, few of which a fork can hold.
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
        // SAFETY: only this thread accesses its lists, and every place has some; the class is one.
        unsafe {
            let is_own = (*lists).token == self.0.shared.token();
            Lists::bin(if is_own { lists } else { NONE }, class)
        }
    }
}

/// Returns a record that no heap has, made if there is none.
fn record() -> &'static Record {
    let mut last = LAST.load(Ordering::Acquire);
    // SAFETY: records stay for good, and are whole when they are found.
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
    /// Makes a heap of its own, with addresses, limits and statistics of its own. Any thread may use it, and free what another one has
    /// allocated. When the value is dropped, all memory of the heap goes back to the system at once, whatever is live in it: no block
    /// has to be freed before.
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
    /// A thread keeps free blocks of up to four such heaps and [`Cached`](crate::os::Cached) heaps together, and those of the one that it uses
    /// first are found fastest. Each heap reserves addresses as the heap of the process does: with more than a thousand heaps at the same time,
    /// or one on a 32-bit system, set a [`limit`](Growing::limit) before the first request. Making one, a hundred small blocks in it, and
    /// dropping it takes nine calls of the system, 17 of its pages and about 0.15 ms; what stays for the next heap is a record of a few KiB.
    pub fn create() -> Self {
        let record = record();
        record.shared.begin();
        Self(Own(record))
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        // SAFETY: blocks are used only as long as the heap exists, and this is its only value.
        unsafe { self.0.shared.end() };
        self.0.taken.store(false, Ordering::Release);
    }
}

debug!([] Own, |self|);
