//! The caches of one thread.

use super::at_end::AtEnd;
use super::classes::{CLASSES, SIZES, layout_of};
use super::depot::{Exchange, Magazine, Round};
use crate::memory::Memory;
use crate::meta::FreeError;
use crate::misuse::wrong_free;
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::slice;
use std::thread_local;

/// The heap and the depot of a cache.
#[derive(Clone, Copy)]
pub(super) struct Owner {
    /// The heap that the blocks come from.
    pub(super) heap: &'static dyn Memory,
    /// The depot in which threads exchange them.
    pub(super) depot: &'static Exchange,
}

impl Owner {
    /// Takes one block from the heap.
    fn take_one(self, layout: Layout) -> Option<NonNull<u8>> {
        let mut block = [Round::uninit()];
        // SAFETY: `allocate_many` has written the block that it counted.
        (self.heap.allocate_many(layout, &mut block) == 1).then(|| unsafe { block[0].assume_init() })
    }

    /// Frees one block.
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::deallocate_many`]: a live block of `layout` that is not used afterwards.
    unsafe fn give_one(self, layout: Layout, block: NonNull<u8>) {
        // SAFETY: the caller's contract.
        unsafe { self.heap.deallocate_many(layout, &[block]) }
    }

    /// Frees the first `count` blocks of a magazine.
    ///
    /// # Safety
    ///
    /// The magazine must hold that many blocks of `class`, which must not be used afterwards.
    unsafe fn give_rounds(self, class: usize, magazine: Magazine, count: usize) {
        if count > 0 {
            // SAFETY: the blocks are free and their addresses are written.
            unsafe {
                self.heap.deallocate_many(layout_of(class), slice::from_raw_parts(magazine.cast(), count))
            }
        }
    }

    /// The layout of a magazine of `class`.
    fn magazine_layout(self, class: usize) -> Layout {
        Layout::array::<Round>(self.depot.capacity(class)).unwrap_or(Layout::new::<Round>())
    }

    /// Takes an empty magazine from the depot or the heap.
    fn take_magazine(self, class: usize) -> Option<Magazine> {
        self.depot
            .take_empty(class)
            .or_else(|| Some(self.take_one(self.magazine_layout(class))?.as_ptr().cast()))
    }

    /// Frees an empty magazine.
    ///
    /// # Safety
    ///
    /// The caller must own the magazine.
    unsafe fn free_magazine(self, class: usize, magazine: Magazine) {
        if let Some(magazine) = NonNull::new(magazine) {
            // SAFETY: magazines are blocks of the heap.
            unsafe { self.give_one(self.magazine_layout(class), magazine.cast()) }
        }
    }
}

/// The bytes that processors transfer between caches as a unit.
const CACHE_LINE: usize = 64;

/// How many blocks a class must request from the heap, or give back, at once before it gets a magazine.
const WORTH_IT: usize = 4;

/// Whether a class that requests `batch` blocks should have a magazine. Blocks shorter than a cache line always
/// come in batches, and thus in magazines.
fn is_worth_it(class: usize, batch: usize, capacity: usize) -> bool {
    capacity > 0 && (usize::from(SIZES[class]) < CACHE_LINE || batch >= WORTH_IT.min(capacity))
}

/// Returns what marks the cached block at an address: a number that no program has a reason to keep in its first word. It depends on
/// the address, so that a copy of a cached block's bytes marks nothing.
#[inline(always)]
fn mark_of(block: NonNull<usize>) -> usize {
    block.addr().get().wrapping_add(0x3c6e_f373)
}

/// Returns whether a block is marked as cached.
///
/// # Safety
///
/// A block of a class must begin there, live or not.
#[inline(always)]
pub(super) unsafe fn is_cached(block: NonNull<u8>) -> bool {
    // Volatile, because the program may never have written there: whatever is read does no harm.
    // SAFETY: blocks of a class have a word at least.
    unsafe { block.cast::<usize>().read_volatile() == mark_of(block.cast()) }
}

/// Clears the mark of a block that is handed out.
///
/// # Safety
///
/// It must be a block of a class that nothing else uses.
#[inline(always)]
unsafe fn clear_mark(block: NonNull<u8>) {
    // SAFETY: blocks of a class have a word at least.
    unsafe { block.cast::<usize>().write(0) }
}

/// The free blocks of one class: a magazine in use, and another one that is either full or empty, so that no
/// sequence of operations accesses the depot or the heap more often than once per magazine.
///
/// ```text
///  loaded   | block | block | block |       |       |
///           ^ bottom                ^ top           ^ end
/// ```
struct Bin {
    /// The first place of the loaded magazine. Without one, this is null, as are `top` and `end`.
    bottom: Magazine,
    /// One past the last block in the loaded magazine.
    top: Magazine,
    /// One past the last place of the loaded magazine.
    end: Magazine,
    other: Magazine,
    /// How many blocks to request from the heap next time; 0 at first. It doubles each time, so rarely used classes
    /// keep few blocks.
    batch: u16,
    /// Whether the other magazine is full.
    full: bool,
}

impl Bin {
    const EMPTY: Self = Self {
        bottom: ptr::null_mut(),
        top: ptr::null_mut(),
        end: ptr::null_mut(),
        other: ptr::null_mut(),
        batch: 0,
        full: false,
    };

    #[inline(always)]
    fn take(&mut self) -> Option<NonNull<u8>> {
        if self.top == self.bottom {
            return None;
        }
        // SAFETY: there is a block below the top.
        unsafe {
            self.top = self.top.sub(1);
            let block = self.top.read().assume_init();
            clear_mark(block);
            Some(block)
        }
    }

    /// Puts a block into the loaded magazine, if there is room for it and it is not marked as cached.
    ///
    /// # Safety
    ///
    /// It must be a block of the bin's class that is not used any more.
    #[inline(always)]
    unsafe fn give(&mut self, block: NonNull<u8>) -> bool {
        // SAFETY: there is a free place at the top if it is not the end. The block has a word.
        unsafe {
            if self.top == self.end || is_cached(block) {
                return false;
            }
            block.cast::<usize>().write(mark_of(block.cast()));
            self.top.write(Round::new(block));
            self.top = self.top.add(1);
        }
        true
    }

    /// The number of blocks in the loaded magazine.
    fn count(&self) -> usize {
        (self.top.addr() - self.bottom.addr()) / size_of::<Round>()
    }

    /// Returns how many blocks to request from the heap, or to give back, this time. The first time these are as
    /// many as a cache line holds, so that threads which start to use a class together do not write to the same
    /// lines.
    fn demand(&mut self, class: usize, capacity: usize) -> usize {
        let batch = match self.batch {
            0 => CACHE_LINE / usize::from(SIZES[class]),
            batch => batch.into(),
        };
        let batch = batch.max(1).min(capacity);
        self.batch = (2 * batch).clamp(1, capacity.max(1)) as u16;
        batch
    }

    /// Loads `magazine`, which holds `count` blocks and has `capacity` places; unloads if it is null.
    fn load(&mut self, magazine: Magazine, count: usize, capacity: usize) {
        let end = if magazine.is_null() { 0 } else { capacity };
        (self.bottom, self.top, self.end) =
            (magazine, magazine.wrapping_add(count), magazine.wrapping_add(end));
    }

    /// Takes a block when the loaded magazine is empty.
    fn refill(&mut self, owner: Owner, class: usize) -> Option<NonNull<u8>> {
        let capacity = owner.depot.capacity(class);
        if self.full {
            let full = core::mem::replace(&mut self.other, self.bottom);
            self.full = false;
            self.load(full, capacity, capacity);
            return self.take();
        }
        if let Some(full) = owner.depot.take_full(class) {
            if self.other.is_null() {
                self.other = self.bottom;
            } else if !self.bottom.is_null() && !owner.depot.put_empty(class, self.bottom) {
                // SAFETY: this thread owns the loaded magazine, which is empty.
                unsafe { owner.free_magazine(class, self.bottom) };
            }
            self.load(full, capacity, capacity);
            return self.take();
        }
        let batch = self.demand(class, capacity);
        if !is_worth_it(class, batch, capacity) || !self.equip(owner, class) {
            return owner.take_one(layout_of(class));
        }
        // SAFETY: the loaded magazine has `capacity` places, and only this thread has access to it.
        let places = unsafe { slice::from_raw_parts_mut(self.bottom, batch) };
        let count = owner.heap.allocate_many(layout_of(class), places);
        // A heap tends to return ascending addresses, and the last block of a magazine is used first.
        places[..count].reverse();
        self.top = self.bottom.wrapping_add(count);
        self.take()
    }

    /// Makes sure that a magazine is loaded, and returns whether one is.
    fn equip(&mut self, owner: Owner, class: usize) -> bool {
        if self.bottom.is_null() {
            let Some(magazine) = owner.take_magazine(class) else { return false };
            self.load(magazine, 0, owner.depot.capacity(class));
        }
        true
    }

    /// Takes a block back when the loaded magazine is full.
    ///
    /// # Safety
    ///
    /// The contract of [`Memory::deallocate_many`]: a live block of the class that is not used afterwards.
    unsafe fn drain(&mut self, owner: Owner, class: usize, block: NonNull<u8>) {
        let capacity = owner.depot.capacity(class);
        if self.bottom.is_null() {
            let batch = self.demand(class, capacity);
            if is_worth_it(class, batch, capacity) {
                self.equip(owner, class);
            }
        } else {
            // The loaded magazine is full; the other one is full, empty or missing.
            let (full, mut empty) = (self.bottom, ptr::null_mut());
            if !self.full {
                empty = self.other;
            } else if !owner.depot.put_full(class, self.other) {
                // SAFETY: this thread owns the other magazine, which is full.
                unsafe { owner.give_rounds(class, self.other, capacity) };
                empty = self.other;
            }
            (self.other, self.full) = (full, true);
            self.load(empty, 0, capacity);
            self.equip(owner, class);
        }
        // SAFETY: the caller's contract.
        unsafe {
            if !self.give(block) {
                owner.give_one(layout_of(class), block);
            }
        }
    }

    /// Gives everything back to the heap.
    fn flush(&mut self, owner: Owner, class: usize) {
        let kept = core::mem::replace(self, Self::EMPTY);
        // SAFETY: only this bin had access to the magazines.
        unsafe {
            owner.give_rounds(class, kept.bottom, kept.count());
            owner.free_magazine(class, kept.bottom);
            if kept.full {
                owner.give_rounds(class, kept.other, owner.depot.capacity(class));
            }
            owner.free_magazine(class, kept.other);
        }
    }
}

/// One thread's cache of one heap.
pub(super) struct Local {
    /// The depot's token at the thread's last check; 0 in an unused cache. One comparison shows that the cache is
    /// for this heap, that it may be used, and that memory has not run out since.
    token: usize,
    bins: [Bin; CLASSES],
    owner: Option<Owner>,
    /// Whether [`InUse`] has it.
    busy: bool,
}

/// A thread's cache while the heap may be called. Hooks and observers of the heap can come back to the cache, and must not find it
/// half changed: until this value is dropped it is closed, so they use the heap directly.
struct InUse(*mut Local);

impl InUse {
    /// Closes the cache.
    ///
    /// # Safety
    ///
    /// The cache must belong to the calling thread and must not be closed.
    unsafe fn of(local: *mut Local) -> Self {
        // SAFETY: the caller's contract. No token is 0, so the fast path does not apply.
        unsafe { ((*local).token, (*local).busy) = (0, true) };
        Self(local)
    }

    fn bin(&mut self, class: usize) -> &mut Bin {
        // SAFETY: nothing else uses the bins until this value is dropped.
        unsafe { &mut (&mut (*self.0).bins)[class] }
    }

    /// Gives everything back to the heap.
    fn flush(&mut self, owner: Owner) {
        for class in 0..CLASSES {
            self.bin(class).flush(owner, class);
        }
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        // SAFETY: the cache belongs to this thread, and to this value until now.
        unsafe {
            let token = (*self.0).owner.map_or(0, |owner| owner.depot.token());
            ((*self.0).token, (*self.0).busy) = (token, false);
        }
    }
}

impl Local {
    const UNUSED: Self = Self { token: 0, bins: [Bin::EMPTY; CLASSES], owner: None, busy: false };
}

/// How many heaps a thread caches: the first ones that it uses.
const HEAPS: usize = 4;

/// The caches of a thread.
struct Caches {
    locals: [Local; HEAPS],
    /// False while the call at the thread's end is being registered, which may allocate, and after that call.
    open: bool,
    guarded: bool,
}

thread_local! {
    // Has no destructor, so that accessing it needs no check and no allocation, and is always possible.
    static CACHES: UnsafeCell<Caches> = const {
        UnsafeCell::new(Caches { locals: [Local::UNUSED; HEAPS], open: true, guarded: false })
    };
}

static AT_END: AtEnd = AtEnd::new();

/// Gives everything back when the thread ends.
fn give_all_back() {
    let caches = caches();
    // SAFETY: only this thread accesses its caches, and a closed one is not accessed again by what is called here.
    unsafe {
        (*caches).open = false;
        for number in 0..HEAPS {
            let local = (&raw mut (*caches).locals).cast::<Local>().add(number);
            if let Some(owner) = (*local).owner {
                InUse::of(local).flush(owner);
            }
            *local = Local::UNUSED;
        }
    }
}

#[inline(always)]
fn caches() -> *mut Caches {
    CACHES.with(UnsafeCell::get)
}

/// Takes a block of `class` from the calling thread's cache, if the fast path applies.
#[inline(always)]
pub(super) fn take(token: usize, class: usize) -> Option<NonNull<u8>> {
    // SAFETY: only this thread accesses its caches, and nothing that is called here does; classes are below
    // `CLASSES`.
    unsafe {
        let local = &raw mut (*caches()).locals[0];
        if (*local).token != token {
            return None;
        }
        (*(&raw mut (*local).bins).cast::<Bin>().add(class)).take()
    }
}

/// Puts a block into the calling thread's cache, if the fast path applies and it is not marked as cached.
///
/// # Safety
///
/// It must be a block of the class that is not used any more.
#[inline(always)]
pub(super) unsafe fn give(token: usize, class: usize, block: NonNull<u8>) -> bool {
    // SAFETY: as in `take`.
    unsafe {
        let local = &raw mut (*caches()).locals[0];
        (*local).token == token && (*(&raw mut (*local).bins).cast::<Bin>().add(class)).give(block)
    }
}

/// Takes a block of `class` from the cache, the depot or the heap.
#[inline(never)]
pub(super) fn take_anywhere(owner: Owner, class: usize) -> Option<NonNull<u8>> {
    let block = match find(owner) {
        Some(mut cache) => {
            let bin = cache.bin(class);
            bin.take().or_else(|| bin.refill(owner, class))
        }
        None => owner.take_one(layout_of(class)),
    };
    let block = block.or_else(|| {
        reclaim(owner);
        owner.take_one(layout_of(class))
    })?;
    // The heap may have left the mark of an earlier block there.
    // SAFETY: the block is ours.
    unsafe { clear_mark(block) };
    Some(block)
}

/// Takes a block of `class` back into the cache, the depot or the heap, and reports one that is cached already.
///
/// # Safety
///
/// The contract of [`Memory::deallocate_many`]: a live block of the class that is not used afterwards.
#[inline(never)]
pub(super) unsafe fn give_anywhere(owner: Owner, class: usize, block: NonNull<u8>) {
    // SAFETY: the caller guarantees the block.
    unsafe {
        if is_cached(block) {
            return wrong_free(FreeError::AlreadyFree, block.addr().get());
        }
        match find(owner) {
            Some(mut cache) => {
                let bin = cache.bin(class);
                if !bin.give(block) {
                    bin.drain(owner, class, block);
                }
            }
            None => owner.give_one(layout_of(class), block),
        }
    }
}

/// Handles a lack of memory: gives back what this thread and the depot keep, and asks the other threads to do so at
/// their next operation.
#[cold]
pub(super) fn reclaim(owner: Owner) {
    owner.depot.press();
    flush(owner);
}

/// Gives back what this thread and the depot keep.
pub(super) fn flush(owner: Owner) {
    if let Some(mut cache) = find(owner) {
        cache.flush(owner);
    }
    for class in 0..CLASSES {
        // SAFETY: whatever is taken out of the depot belongs to this thread.
        unsafe {
            while let Some(full) = owner.depot.take_full(class) {
                owner.give_rounds(class, full, owner.depot.capacity(class));
                owner.free_magazine(class, full);
            }
            while let Some(empty) = owner.depot.take_empty(class) {
                owner.free_magazine(class, empty);
            }
        }
    }
}

/// Returns the calling thread's cache for `owner`, emptied if memory ran out since its last use; `None` if the
/// thread cannot have one, or is already using it.
fn find(owner: Owner) -> Option<InUse> {
    let caches = caches();
    for number in 0..HEAPS {
        // SAFETY: only this thread accesses its caches; no reference to these fields is ever held.
        unsafe {
            let local = (&raw mut (*caches).locals).cast::<Local>().add(number);
            if !(*local).owner.is_some_and(|other| ptr::eq(other.depot, owner.depot)) {
                continue;
            }
            if (*local).busy {
                return None;
            }
            let is_current = (*local).token == owner.depot.token();
            let mut cache = InUse::of(local);
            if !is_current {
                cache.flush(owner);
            }
            return Some(cache);
        }
    }
    bind(caches, owner)
}

/// Makes a new cache for `owner`, if this thread may and can have one.
#[cold]
fn bind(caches: *mut Caches, owner: Owner) -> Option<InUse> {
    // SAFETY: only this thread accesses its caches. No reference to them is held during the registration, which may
    // allocate and so come back here, where it finds the caches closed.
    unsafe {
        if !(*caches).open {
            return None;
        }
        if !(*caches).guarded {
            (*caches).open = false;
            (*caches).guarded = AT_END.register(give_all_back);
            // If that fails, the next operation tries again.
            (*caches).open = true;
            if !(*caches).guarded {
                return None;
            }
        }
        let mut locals = (0..HEAPS).map(|number| (&raw mut (*caches).locals).cast::<Local>().add(number));
        let local = locals.find(|local| (**local).owner.is_none())?;
        *local = Local { owner: Some(owner), ..Local::UNUSED };
        Some(InUse::of(local))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::{Depot, classes};
    use std::thread;

    static HEAP: crate::Heap = crate::heap!(1 << 20);
    static DEPOT: Depot = Depot::new(&HEAP, 64 << 10);

    /// Once a thread has a magazine of a class, blocks come and go without anything else being asked; not for another heap, and
    /// not after memory has run out.
    #[test]
    fn the_fast_paths_serve_what_is_cached() {
        thread::spawn(|| {
            let owner = Owner { heap: &HEAP, depot: &DEPOT.exchange };
            let token = || DEPOT.exchange.token();
            let class = classes::class_of(Layout::new::<[u64; 2]>()).unwrap();
            assert_eq!(take(token(), class), None);
            let first = take_anywhere(owner, class).unwrap();
            let second = take(token(), class).unwrap();
            assert_eq!(take(token() + 1, class), None);
            // SAFETY: taken above, and not used any more.
            unsafe {
                assert!(!give(token() + 1, class, second));
                assert!(give(token(), class, second) && give(token(), class, first));
                assert!(!give(token(), class, second), "it is there already");
                assert_eq!([take(token(), class), take(token(), class)], [Some(first), Some(second)]);
                DEPOT.exchange.press();
                assert!(take(token(), class).is_none() && !give(token(), class, first));
                give_anywhere(owner, class, first);
                give_anywhere(owner, class, second);
            }
            flush(owner);
            assert_eq!(HEAP.used(), 0);
        })
        .join()
        .unwrap();
    }
}
