//! A thread's cache: two lists of free blocks per source and size class, which no other thread can access.

mod at_end;
mod lists;

use crate::error::{FreeError, misuse::report_refused};
use core::alloc::{GlobalAlloc, Layout};
use core::ptr::{self, NonNull};
use lists::CLOSED;
use std::alloc::System;

#[cfg(test)]
pub(super) use crate::front::small::LARGEST_ALIGN;
pub(super) use crate::front::small::{
    Block, CLASSES, Chain, SIZES, TABLED_CLASSES, layout_of, tabled_class_of,
};
#[cfg(any(unix, windows))]
pub(super) use crate::front::small::{LARGEST, SMALLEST, class_of, class_of_layout};
#[cfg(all(target_os = "linux", target_arch = "x86_64", not(miri)))]
pub(super) use lists::NEVER;
pub(super) use lists::{Bin, Lists, NONE, Place, Source, new_token};

/// Allocates a block of a class when the thread's list in use is empty.
#[cold]
#[inline(never)]
pub(super) fn allocate_slow(source: &'static dyn Source, class: usize) -> Option<NonNull<u8>> {
    let capacity = source.capacity(class);
    let lists = if capacity == 0 { None } else { lists_of(source) };
    let mut want = 1;
    if let Some(lists) = lists {
        // SAFETY: only this thread accesses its lists, and nothing else in this block does.
        let bin = unsafe {
            (*lists).count(class);
            &mut *Lists::bin(lists, class)
        };
        if let Some(block) = bin.allocate_other(capacity) {
            // SAFETY: as above.
            unsafe { (*lists).left = (*lists).left.saturating_sub(1) };
            return Some(block);
        }
        want = bin.ask(class, capacity);
    }
    let mut list = source.allocate(class, want);
    let block = list.pop()?;
    if let Some(lists) = lists {
        // The source may have called back and filled the list in use.
        // SAFETY: as above.
        list = unsafe { (*Lists::bin(lists, class)).load(list, capacity) };
    }
    if list.count > 0 {
        // SAFETY: this call owns the blocks.
        unsafe { source.free(class, list) };
    }
    Some(block)
}

/// Frees a block of a class that the thread's list in use did not accept.
///
/// # Errors
///
/// The error of [`Source::check`] if no block of the class can begin at the address, and [`FreeError::AlreadyFree`] if the block is
/// marked as free.
///
/// # Safety
///
/// The block must be of the class, come from the source, and not be used any more.
#[cold]
#[inline(never)]
pub(super) unsafe fn try_free_slow(
    source: &'static dyn Source,
    class: usize,
    block: NonNull<u8>,
) -> Result<(), FreeError> {
    // SAFETY: only this thread accesses its lists, and source calls happen only between those accesses; the caller guarantees the block.
    unsafe {
        source.check(class, block)?;
        let first = block.cast().as_ptr();
        if Block::is_free(first) {
            return Err(FreeError::AlreadyFree);
        }
        let capacity = source.capacity(class);
        let Some(lists) = (if capacity == 0 { None } else { lists_of(source) }) else {
            source.free(class, Chain::one(first));
            return Ok(());
        };
        let is_due = (*lists).count(class);
        let bin = Lists::bin(lists, class);
        let left_over = if !Bin::free(bin, block) {
            (*bin).free_slow(block, capacity)
        } else if is_due && source.samples() {
            // Empty the list in use, so that the next request of the class takes the slow path.
            (*bin).set_aside(capacity)
        } else {
            return Ok(());
        };
        if left_over.count > 0 {
            source.free_list(class, left_over);
        }
    }
    Ok(())
}

/// Frees a block like [`try_free_slow`], and reports a refused free.
///
/// # Safety
///
/// As for [`try_free_slow`].
#[cold]
#[inline(never)]
pub(super) unsafe fn free_slow(source: &'static dyn Source, class: usize, block: NonNull<u8>) {
    // SAFETY: the caller's contract.
    report_refused(unsafe { try_free_slow(source, class, block) }, block);
}

/// Frees the blocks in the calling thread's lists for a source.
pub(super) fn flush(source: &'static dyn Source) {
    if let Some(lists) = lists_of(source) {
        // SAFETY: only this thread accesses its lists.
        unsafe { empty(lists, source, (*lists).token) };
    }
}

/// Returns the thread's lists for a source. Creates them if the thread has none and may have some, and empties them first if memory has
/// run out since the last call.
fn lists_of(source: &'static dyn Source) -> Option<*mut Lists> {
    let first = (source.place().get)();
    let mut lists = first;
    // SAFETY: only this thread accesses its lists, which end with `NONE` or are `CLOSED`; nothing writes to these two.
    unsafe {
        while lists != CLOSED && lists != NONE {
            if (*lists).source.is_some_and(|other| ptr::addr_eq(other, source)) {
                let (token, last) = (source.token(), (*lists).token);
                if last != token {
                    (*lists).token = token;
                    empty(lists, source, last);
                }
                return Some(lists);
            }
            lists = (*lists).next;
        }
        if lists == CLOSED { None } else { make(source, first) }
    }
}

/// Creates the thread's lists for a source, reusing lists whose source has ended if there are any. The lists of the thread's first source
/// stay in front, where the fast path finds them. If there is no memory for new lists, the next slow path tries again.
#[cold]
fn make(source: &'static dyn Source, first: *mut Lists) -> Option<*mut Lists> {
    let (mut lists, mut count) = (first, 0);
    // SAFETY: only this thread accesses its lists, which end with `NONE`. Lists whose source has ended hold no blocks that still exist.
    unsafe {
        while let Some(other) = (*lists).source {
            if !other.has((*lists).token) {
                lists.write(Lists::new(source, (*lists).next));
                return Some(lists);
            }
            lists = (*lists).next;
            count += 1;
        }
    }
    let place = source.place();
    // The calls below may allocate and come back here.
    (place.set)(CLOSED);
    let lists = if first != NONE || place.at_end.register(place.end) {
        match place.most {
            0 => source.allocate_lists(),
            // SAFETY: the size of lists is not zero.
            most if count < most => NonNull::new(unsafe { System.alloc(Layout::new::<Lists>()) }.cast()),
            _ => None,
        }
    } else {
        None
    };
    let mut front = first;
    if let Some(lists) = lists {
        // SAFETY: this call owns the memory, which is long enough. Lists belong to this thread, and nothing else accesses them now.
        unsafe {
            if first == NONE {
                lists.write(Lists::new(source, NONE));
                front = lists.as_ptr();
            } else {
                lists.write(Lists::new(source, (*first).next));
                (*first).next = lists.as_ptr();
            }
        }
    }
    (place.set)(front);
    lists.map(NonNull::as_ptr)
}

/// Frees the blocks that lists of the calling thread have held since they had a token.
///
/// # Safety
///
/// The lists must be this thread's lists for the source.
unsafe fn empty(lists: *mut Lists, source: &dyn Source, token: usize) {
    for class in 0..CLASSES {
        // SAFETY: only the source's calls access the lists too, and not during an access here. Blocks in lists are free.
        unsafe {
            let chains = (*Lists::bin(lists, class)).unload_all(source.capacity(class));
            for chain in chains.into_iter().filter(|chain| chain.count > 0) {
                source.free_kept(class, chain, token);
            }
        }
    }
}

/// Frees all lists of the calling thread in a place when the thread ends.
pub(super) fn end(place: &Place) {
    let mut lists = (place.get)();
    (place.set)(CLOSED);
    // SAFETY: the lists belong to this thread, their memory returns to the allocator it came from, and nothing finds them any more.
    unsafe {
        while let Some(source) = (*lists).source {
            let next = (*lists).next;
            empty(lists, source, (*lists).token);
            match place.most {
                0 => source.free_lists(NonNull::new_unchecked(lists)),
                _ => System.dealloc(lists.cast(), Layout::new::<Lists>()),
            }
            lists = next;
        }
    }
}
