//! Small blocks that were freed and are kept as they are.

use super::classes::{CLASSES, Class, STEP, read_anew};
use super::key::Key;
use super::tier::{END, Free};
use crate::units::rare;
use core::ptr::NonNull;

/// The quick lists: free small blocks by class, last in, first out, both objects of pages and separate blocks.
pub(super) struct Small {
    lists: [*mut Free; CLASSES],
    /// Bytes that may still be kept, or negative if too many are kept.
    room: isize,
    /// Bytes that may be kept.
    share: isize,
    /// Number of the list to flush next.
    hand: usize,
    /// The key that encodes links.
    pub(super) key: Key,
}

/// Most blocks of a list that an aligned request examines.
const PROBES: usize = 8;

/// Number of lists that a flush searches for a block.
const SOME: usize = 8;

impl Small {
    pub(super) const EMPTY: Self = Self { lists: [END; CLASSES], room: 0, share: 0, hand: 0, key: Key::NONE };

    /// Sets how many bytes may be kept.
    #[inline(always)]
    pub(super) fn allow(&mut self, share: usize) {
        self.room += share as isize - self.share;
        self.share = share as isize;
    }

    /// Returns the bytes of all kept blocks.
    #[inline(always)]
    pub(super) fn kept(&self) -> usize {
        (self.share - self.room) as usize
    }

    #[inline(always)]
    fn list(&mut self, class: Class) -> &mut *mut Free {
        // SAFETY: there is a list for each class, at this distance from the first one.
        unsafe { &mut *self.lists.as_mut_ptr().byte_add(class.distance()) }
    }

    /// Returns whether the list of `class` is empty.
    #[inline(always)]
    pub(super) fn is_empty(&mut self, class: Class) -> bool {
        *self.list(class) == END
    }

    /// Returns the first address in the list of `class` if it cannot be a block's, after a write to a freed block or an invalid free.
    #[inline(always)]
    pub(super) fn damage(&mut self, class: Class) -> Option<usize> {
        let block = *self.list(class);
        (block != END && block.addr() % STEP != 0).then(|| block.addr())
    }

    /// Allocates the first block of the list of `class`, if it is aligned to `align`.
    #[inline(always)]
    pub(super) fn pop(&mut self, class: Class, align: usize) -> Option<NonNull<u8>> {
        let key = self.key;
        let list = self.list(class);
        let block = *list;
        // The end of a list is odd.
        if block.addr() & ((align - 1) | (STEP - 1)) != 0 {
            return None;
        }
        // SAFETY: blocks in lists are unused, not null, and hold the address of the next one.
        unsafe {
            *list = (*block).unlink(key);
            self.room = self.room.wrapping_add_unsigned(class.bytes());
            Some(NonNull::new_unchecked(block.cast()))
        }
    }

    /// Allocates one of the first few blocks of the list of `class` that is aligned to `align`.
    pub(super) fn pop_later(&mut self, class: Class, align: usize) -> Option<NonNull<u8>> {
        let (mut before, mut block) = (END, *self.list(class));
        for _ in 0..PROBES {
            if block == END {
                break;
            }
            // SAFETY: as in `pop`; `before` is the block before this one.
            unsafe {
                if block.addr() & (align - 1) == 0 {
                    let next = (*block).unlink(self.key);
                    if before == END {
                        *self.list(class) = next;
                    } else {
                        before.write(Free::before(next, self.key));
                    }
                    self.room = self.room.wrapping_add_unsigned(class.bytes());
                    return NonNull::new(block.cast());
                }
                (before, block) = (block, (*block).next(self.key));
            }
        }
        None
    }

    /// Keeps a block if there is room for it. Returns whether there was.
    ///
    /// # Safety
    ///
    /// The block must be of `class`, aligned to 8, and not used any more.
    #[inline(always)]
    pub(super) unsafe fn push(&mut self, start: NonNull<u8>, class: Class) -> bool {
        let size = class.bytes();
        self.room = self.room.wrapping_sub_unsigned(size);
        if self.room < 0 {
            rare();
            self.room = read_anew(&self.room).wrapping_add_unsigned(size);
            return false;
        }
        let key = self.key;
        let list = self.list(class);
        let block = start.cast::<Free>();
        // SAFETY: the caller has freed the block, which has room for a link.
        unsafe { block.write(Free::before(*list, key)) };
        *list = block.as_ptr();
        true
    }

    /// Replaces the empty list of `class` with `rest`, a list of `more` blocks. The kept blocks may exceed the share by these until the
    /// share is [set](Self::allow) again.
    #[inline(always)]
    pub(super) fn adopt(&mut self, class: Class, rest: *mut Free, more: usize) {
        *self.list(class) = rest;
        self.share = self.share.wrapping_add_unsigned(more * class.bytes());
    }

    /// Removes a block from one of the next few lists, if any has one, and returns its start and class.
    #[inline(always)]
    pub(super) fn evict(&mut self) -> Option<(NonNull<u8>, Class)> {
        self.evict_from(SOME)
    }

    /// Removes a block from the next list that has any.
    pub(super) fn evict_any(&mut self) -> Option<(NonNull<u8>, Class)> {
        if self.kept() == 0 { None } else { self.evict_from(CLASSES) }
    }

    #[inline(always)]
    fn evict_from(&mut self, lists: usize) -> Option<(NonNull<u8>, Class)> {
        for _ in 0..lists {
            let class = Class::number(self.hand);
            if let Some(block) = self.pop(class, STEP) {
                return Some((block, class));
            }
            self.hand = (self.hand + 1) % CLASSES;
        }
        None
    }

    /// Returns whether the block at `start` is among the first `most` blocks of the list of `class`.
    pub(super) fn holds(&self, start: *mut u8, class: Class, most: usize) -> bool {
        let mut block = self.lists[class.index()];
        for _ in 0..most {
            // Stop where a damaged list leads to no block.
            if block.addr() % STEP != 0 || block.is_null() || block.cast() == start {
                break;
            }
            // SAFETY: as in `pop`.
            block = unsafe { (*block).next(self.key) };
        }
        block.cast() == start
    }
}
