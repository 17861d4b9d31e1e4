//! A table from a number and another one to a third, which grows.

use core::ptr;

use crate::sys;

#[repr(C)]
#[derive(Clone, Copy)]
struct Entry {
    key: usize,
    more: u32,
    /// 0 in an empty entry.
    value: u32,
}

/// A hash table in memory that comes from the system, because the allocator's is what is being recorded.
pub struct Table {
    entries: *mut Entry,
    /// 0, or a power of two.
    room: usize,
    used: usize,
}

/// Entries at first: a few pages.
const FIRST: usize = 1 << 10;

impl Table {
    pub const fn new() -> Self {
        Self { entries: ptr::null_mut(), room: 0, used: 0 }
    }

    /// Returns where the search for a key begins, before it is brought below the table's length.
    fn home(key: usize, more: u32) -> usize {
        let mixed = (key as u64 ^ u64::from(more) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize ^ mixed as usize
    }

    /// Returns the place of a key: its entry, or the empty one where it belongs. The table must have room.
    fn place(&self, key: usize, more: u32) -> *mut Entry {
        let mut index = Self::home(key, more);
        loop {
            index &= self.room - 1;
            // SAFETY: the index is below the table's length, which is a power of two.
            unsafe {
                let place = self.entries.add(index);
                let Entry { key: known, more: other, value } = *place;
                if value == 0 || (known == key && other == more) {
                    return place;
                }
            }
            index += 1;
        }
    }

    /// Returns the value of a key.
    pub fn get(&self, key: usize, more: u32) -> Option<u32> {
        if self.room == 0 {
            return None;
        }
        // SAFETY: the place is inside of the table.
        let value = unsafe { (*self.place(key, more)).value };
        (value != 0).then_some(value)
    }

    /// Sets the value of a key, which must not be 0. Without memory nothing happens, and it returns false.
    pub fn insert(&mut self, key: usize, more: u32, value: u32) -> bool {
        if self.used * 2 >= self.room && !self.grow() {
            return false;
        }
        let place = self.place(key, more);
        // SAFETY: the place is inside of the table.
        unsafe {
            self.used += usize::from((*place).value == 0);
            place.write(Entry { key, more, value });
        }
        true
    }

    /// Removes a key; returns whether it was there.
    pub fn remove(&mut self, key: usize, more: u32) -> bool {
        if self.get(key, more).is_none() {
            return false;
        }
        let mask = self.room - 1;
        // SAFETY: the place is one of the table's; all indices are below its length, and one entry in two is empty.
        unsafe {
            let mut hole = self.place(key, more).offset_from(self.entries) as usize;
            let mut next = hole;
            loop {
                next = (next + 1) & mask;
                let entry = *self.entries.add(next);
                if entry.value == 0 {
                    break;
                }
                // An entry that the search would miss behind the hole takes its place.
                let from_home = next.wrapping_sub(Self::home(entry.key, entry.more)) & mask;
                if from_home >= next.wrapping_sub(hole) & mask {
                    self.entries.add(hole).write(entry);
                    hole = next;
                }
            }
            self.entries.add(hole).write(Entry { key: 0, more: 0, value: 0 });
        }
        self.used -= 1;
        true
    }

    /// Doubles the table; false if there is no memory.
    fn grow(&mut self) -> bool {
        if sys::is_confined() {
            return false;
        }
        let room = if self.room == 0 { FIRST } else { self.room * 2 };
        let access = sys::PROT_READ | sys::PROT_WRITE;
        let flags = sys::MAP_PRIVATE | sys::MAP_ANONYMOUS;
        // SAFETY: a new map affects no other memory. Zeros are empty entries.
        let entries = unsafe { sys::mmap(ptr::null_mut(), room * size_of::<Entry>(), access, flags, -1, 0) };
        if entries == sys::MAP_FAILED {
            return false;
        }
        let old = core::mem::replace(self, Self { entries: entries.cast(), room, used: self.used });
        for index in 0..old.room {
            // SAFETY: both places are inside of their tables.
            unsafe {
                let entry = *old.entries.add(index);
                if entry.value != 0 {
                    self.place(entry.key, entry.more).write(entry);
                }
            }
        }
        old.give_back();
        true
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        core::mem::replace(self, Self::new()).give_back();
    }

    fn give_back(self) {
        if self.room > 0 {
            // SAFETY: the map has that length, and nothing uses it any more.
            unsafe { sys::munmap(self.entries.cast(), self.room * size_of::<Entry>()) };
        }
    }
}
