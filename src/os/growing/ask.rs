//! Requests to the heap for something other than blocks: huge pages, memory that is there before it is needed, and guard pages.

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

/// Bytes of a huge page of nearly all machines.
const HUGE: usize = 2 << 20;

impl Growing {
    /// Turns transparent huge pages for the heap on or off. Memory that the heap has already follows when it is next released, or when
    /// the kernel joins pages by itself. While huge pages are asked for, free memory goes back in whole ones, so that none is broken up,
    /// and the program keeps a little more.
    ///
    /// Programs that visit much memory at random gain up to half of the time, since they wait less for the tables of
    /// addresses; a program that fills one table once may lose. Call [`Growing::limit`] first: this reserves the addresses.
    ///
    /// # Errors
    ///
    /// [`MapError::Unsupported`] if the system has no such pages, and for [`Huge::Table`]; [`MapError::Memory`] if there are
    /// no addresses.
    pub fn huge(&self, huge: Huge) -> Result<(), MapError> {
        SHARED.with(|pages| {
            let region =
                pages.reserved_region().ok_or_else(|| MapError::Memory(ErrorKind::OutOfMemory.into()))?;
            // SAFETY: the addresses are the heap's, and the advice changes no contents.
            unsafe { advise(region, huge)? };
            system::UNIT.store(if huge == Huge::Advise { HUGE } else { 0 }, Ordering::Relaxed);
            Ok(())
        })
    }

    /// Has the system provide the memory of the next `bytes` bytes that the heap takes for blocks, so that no access to them is a page
    /// fault. Small blocks count with their pages: the first one of a size takes 16 to 256 KiB. Requests of other threads count as well,
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
    /// [`OutOfMemory`] if the heap's limit or the system does not allow so much.
    pub fn reserve(&self, bytes: usize) -> Result<(), OutOfMemory> {
        let done = SHARED.with(|pages| pages.make_ready(bytes));
        done.then_some(()).ok_or_else(|| {
            let layout = Layout::from_size_align(bytes, SLOT).unwrap_or(Layout::new::<u8>());
            let largest = SHARED.with(|pages| pages.spans.largest());
            OutOfMemory::new(layout, largest, largest)
        })
    }

    /// Puts about one small allocation in `period` between guard pages from now on, where each access outside of the block or after its
    /// free ends the program with a report, as [`Guarded`](crate::os::Guarded) does around any memory; 0 ends that. Blocks that lie there
    /// already stay. A period above 2^28 counts as that.
    ///
    /// ```
    /// # #[global_allocator]
    /// # static HEAP: allotment::os::Growing = allotment::heap!();
    /// HEAP.sample(5000)?;
    /// # Ok::<(), allotment::OutOfMemory>(())
    /// ```
    ///
    /// The fast paths of allocation and free are the same as without: they cost nothing. Only a request on the slow path can be sampled,
    /// so each thread sends one of its size class there when it is due. Hence the sample is not one of equal chances:
    ///
    /// * A class that the thread allocates and frees in turn is looked at after 64 requests for each block that its list has room for,
    ///   4,096 at most, and less a random number below 64; with a shorter period it is sampled less often than asked for.
    /// * A class that grows is sampled where a list is used up, which is each 64th request or, of long blocks, each 16 KiB.
    /// * The next request of the class follows a free of it in the same thread.
    /// * Requests of more than a page or aligned to more, and the first ones of a thread, are not sampled.
    ///
    /// Over long, each class of each thread gets samples in proportion to its requests.
    ///
    /// Linux.
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`] if the system has no addresses for the slots that a free could tell from the heap's.
    #[cfg(all(target_os = "linux", not(miri)))]
    pub fn sample(&self, period: u32) -> Result<(), OutOfMemory> {
        if period > 0 && !reserved().is_some_and(sampled::begin) {
            return Err(OutOfMemory::new(Layout::new::<u8>(), 0, 0));
        }
        sampled::set_period(period);
        Ok(())
    }
}

/// Returns the reserved addresses of blocks, which are reserved now if they were not before.
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
        // SAFETY: the span was just cut.
        unsafe { self.spans.free(cut.slot, 1) };
        self.region()
    }

    /// Makes the system provide the memory that the heap uses next, and the pages that have free blocks. Returns whether there is
    /// so much.
    fn make_ready(&mut self, bytes: usize) -> bool {
        self.ready.end(&mut self.spans);
        let len = bytes.div_ceil(SLOT);
        if len == 0 {
            return true;
        }
        let Some(cut) = self.allocate_span(len, 1, false) else { return false };
        // SAFETY: the span was just cut.
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
