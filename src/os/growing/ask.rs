//! Requests to the heap for something other than blocks: huge pages, memory provided ahead of its use, and guard pages.

use super::Growing;
use super::classes::SLOT;
use super::page::NONE;
use super::pages::Pages;
use super::ready;
#[cfg(all(target_os = "linux", not(miri)))]
use super::sampled;
use super::state::SHARED;
use super::system::{self, System};
use crate::error::OutOfMemory;
use crate::os::cache::CLASSES;
use crate::os::mapping::{Huge, MapError, advise};
use crate::region::Region;
use core::alloc::Layout;
use core::sync::atomic::Ordering;
use std::io::ErrorKind;

/// Bytes of a huge page on nearly all machines.
const HUGE: usize = 2 << 20;

impl Growing {
    /// Turns transparent huge pages for the heap on or off. Memory that the heap already has follows when the heap next releases it, or
    /// when the kernel joins pages by itself. While huge pages are on, the heap releases free memory in whole huge pages, so that none is
    /// broken up, and the program keeps a little more.
    ///
    /// Programs that access much memory at random may take only half the time, since they wait less for page tables; a program that fills
    /// one table once may become slower. Call [`Growing::limit`] first, because this reserves the addresses.
    ///
    /// # Errors
    ///
    /// [`MapError::Unsupported`] if the system has no such pages, and for [`Huge::Table`]; [`MapError::Memory`] if the heap cannot
    /// reserve addresses.
    pub fn huge(&self, huge: Huge) -> Result<(), MapError> {
        SHARED.with(|pages| {
            let region =
                pages.reserved_region().ok_or_else(|| MapError::Memory(ErrorKind::OutOfMemory.into()))?;
            // SAFETY: the addresses belong to the heap, and the advice changes no contents.
            unsafe { advise(region, huge)? };
            system::UNIT.store(if huge == Huge::Advise { HUGE } else { 0 }, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Makes the system provide memory for the next `bytes` bytes that the heap uses for blocks, so that accessing them causes no page
    /// faults. Small blocks count with their pages: the first block of a size takes 16 to 256 KiB. Requests of other threads count too.
    /// [`Growing::trim`] ends the promise, and a later call replaces it.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static HEAP: allotment::os::Growing = allotment::heap!();
    /// HEAP.reserve(64 << 20)?;
    /// let table = vec![1_u8; 48 << 20]; // no page fault
    /// # drop(table);
    /// # Ok::<(), allotment::OutOfMemory>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the heap's limit or the system does not allow that much.
    pub fn reserve(&self, bytes: usize) -> Result<(), OutOfMemory> {
        let done = SHARED.with(|pages| pages.make_ready(bytes));
        done.then_some(()).ok_or_else(|| {
            let layout = Layout::from_size_align(bytes, SLOT).unwrap_or(Layout::new::<u8>());
            let largest = SHARED.with(|pages| pages.spans.largest());
            OutOfMemory::new(layout, largest, largest)
        })
    }

    /// Places about one small allocation in `period` between guard pages from now on, as [`Guarded`](crate::os::Guarded) does around any
    /// memory: each access outside the block or after its free ends the program with a report. 0 ends the sampling; blocks that are
    /// already there stay. A period above 2^28 counts as 2^28.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static HEAP: allotment::os::Growing = allotment::heap!();
    /// HEAP.sample(5000)?;
    /// # Ok::<(), allotment::OutOfMemory>(())
    /// ```
    ///
    /// Sampling costs nothing on the fast paths of allocation and free, which stay the same. Only a request on the slow path can be
    /// sampled, so each thread sends a request there when a sample is due. Hence requests do not have equal chances:
    ///
    /// * The thread checks a class that it allocates and frees in turn after 64 requests for each block for which the list has room, at
    ///   most 4,096, less a random number below 64. With a shorter period it samples the class less often than requested.
    /// * A class that grows is sampled when a list runs out: at every 64th request or, for long blocks, every 16 KiB.
    /// * A sample is the class's next request after a free of the same class in the same thread.
    /// * Requests larger than a page or aligned to more, and a thread's first requests, are not sampled.
    ///
    /// In the long run, each class of each thread gets samples in proportion to its requests.
    ///
    /// Linux.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the system has no addresses for the slots that a free could distinguish from the heap's.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub fn sample(&self, period: u32) -> Result<(), OutOfMemory> {
        if period > 0 && !reserved().is_some_and(sampled::begin) {
            return Err(OutOfMemory::new(Layout::new::<u8>(), 0, 0));
        }
        sampled::set_period(period);
        Ok(())
    }
}

/// Returns the reserved addresses of blocks, and reserves them first if necessary.
#[cfg(all(target_os = "linux", not(miri)))]
pub(super) fn reserved() -> Option<Region> {
    SHARED.with(Pages::reserved_region)
}

impl<S: System> Pages<S> {
    /// Returns the addresses reserved for blocks, and reserves them first if necessary.
    fn reserved_region(&mut self) -> Option<Region> {
        if let Some(region) = self.region() {
            return Some(region);
        }
        let cut = self.allocate_span(1, 1, false)?;
        // SAFETY: the span was just allocated.
        unsafe { self.spans.free(cut.slot, 1) };
        self.region()
    }

    /// Makes the system provide the memory that the heap uses next, and the pages that have free blocks. Returns whether there is that
    /// much memory.
    pub(super) fn make_ready(&mut self, bytes: usize) -> bool {
        self.ready.end(&mut self.spans);
        let len = bytes.div_ceil(SLOT);
        if len == 0 {
            return true;
        }
        let Some(cut) = self.allocate_span(len, 1, false) else { return false };
        // SAFETY: the span was just allocated.
        unsafe { self.ready.begin(cut.slot, len, &self.spans) };
        for class in 0..CLASSES {
            let head = self.shelves[class].head;
            let mut next = head;
            while next != NONE {
                // SAFETY: a listed page is in use.
                unsafe {
                    let page = &*self.spans.page(next as usize);
                    ready::provide::<S>(self.spans.address(next as usize), page.len as usize * SLOT);
                    next = if page.next == head { NONE } else { page.next };
                }
            }
        }
        true
    }
}
