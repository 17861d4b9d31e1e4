//! One thread's caches.

use super::classes::{CLASSES, SIZES, layout_of};
use super::depot::{Exchange, Magazine, Round};
use core::alloc::Layout;
use core::cell::UnsafeCell;
use core::ptr::{self, NonNull};
use core::slice;
use std::thread_local;

/// The heap behind a cache, whatever its types.
pub trait Behind {
    /// Fills `blocks` from the front with blocks of `layout`; how many.
    fn take(&self, layout: Layout, blocks: &mut [Round]) -> usize;

    /// Frees blocks.
    ///
    /// # Safety
    ///
    /// They are live blocks of `layout` of this heap, and not used any more.
    unsafe fn give(&self, layout: Layout, blocks: &[NonNull<u8>]);
}

/// Whose blocks a cache holds.
#[derive(Clone, Copy)]
pub struct Owner {
    /// The heap that they are from.
    pub heap: &'static dyn Behind,
    /// Where threads exchange them.
    pub depot: &'static Exchange,
}

impl Owner {
    /// One block of the heap.
    fn take_one(self, layout: Layout) -> Option<NonNull<u8>> {
        let mut block = [Round::uninit()];
        // SAFETY: what has been taken is written.
        (self.heap.take(layout, &mut block) == 1).then(|| unsafe { block[0].assume_init() })
    }

    /// Frees one block.
    ///
    /// # Safety
    ///
    /// As for [`Behind::give`].
    unsafe fn give_one(self, layout: Layout, block: NonNull<u8>) {
        // SAFETY: passed on.
        unsafe { self.heap.give(layout, &[block]) }
    }

    /// Frees the first `count` blocks of a magazine.
    ///
    /// # Safety
    ///
    /// It holds as many blocks of `class`, which become the heap's.
    unsafe fn give_rounds(self, class: usize, magazine: Magazine, count: usize) {
        if count > 0 {
            // SAFETY: the blocks are free and their addresses written.
            unsafe { self.heap.give(layout_of(class), slice::from_raw_parts(magazine.cast(), count)) }
        }
    }

    /// The layout of a magazine of `class`.
    fn magazine_layout(self, class: usize) -> Layout {
        Layout::array::<Round>(self.depot.capacity(class)).unwrap_or(Layout::new::<Round>())
    }

    /// An empty magazine.
    fn take_magazine(self, class: usize) -> Option<Magazine> {
        self.depot
            .take_empty(class)
            .or_else(|| Some(self.take_one(self.magazine_layout(class))?.as_ptr().cast()))
    }

    /// Gives back a magazine that holds nothing any more.
    ///
    /// # Safety
    ///
    /// It is ours.
    unsafe fn free_magazine(self, class: usize, magazine: Magazine) {
        if let Some(magazine) = NonNull::new(magazine) {
            // SAFETY: magazines are blocks of the heap.
            unsafe { self.give_one(self.magazine_layout(class), magazine.cast()) }
        }
    }
}

/// Bytes that processors keep or give away as one.
const CACHE_LINE: usize = 64;

/// Blocks that a class must have asked of the heap, or given back, in one go before it gets a magazine.
const WORTH_IT: usize = 4;

/// Whether a class that asks for `batch` blocks should have a magazine. Blocks shorter than a cache line always come in
/// batches, and so into magazines.
fn is_worth_it(class: usize, batch: usize, capacity: usize) -> bool {
    capacity > 0 && (usize::from(SIZES[class]) < CACHE_LINE || batch >= WORTH_IT.min(capacity))
}

/// The free blocks of one class: a magazine that is in use, and one that is all full or all empty, so that no
/// sequence of operations goes to the depot or the heap more often than once in a magazine.
///
/// ```text
///  loaded   | block | block | block |       |       |
///           ^ bottom                ^ top           ^ end
/// ```
struct Bin {
    /// The first place of the loaded magazine; null, as `top` and `end` are, if there is none.
    bottom: Magazine,
    /// One past the last block in the loaded magazine.
    top: Magazine,
    /// One past the last place of the loaded magazine.
    end: Magazine,
    other: Magazine,
    /// Blocks that are asked of the heap next time; 0 at first. It doubles: what is rarely used keeps little.
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
            Some(self.top.read().assume_init())
        }
    }

    #[inline(always)]
    fn give(&mut self, block: NonNull<u8>) -> bool {
        if self.top == self.end {
            return false;
        }
        // SAFETY: there is a free place at the top.
        unsafe {
            self.top.write(Round::new(block));
            self.top = self.top.add(1);
        }
        true
    }

    /// Blocks in the loaded magazine.
    fn count(&self) -> usize {
        (self.top.addr() - self.bottom.addr()) / size_of::<Round>()
    }

    /// How many blocks to ask of the heap this time, or to give back. The first time, as many as a cache line holds, so
    /// that threads which begin to use a class together do not write to the same lines.
    fn demand(&mut self, class: usize, capacity: usize) -> usize {
        let batch = match self.batch {
            0 => CACHE_LINE / usize::from(SIZES[class]),
            batch => batch.into(),
        };
        let batch = batch.max(1).min(capacity);
        self.batch = (2 * batch).clamp(1, capacity.max(1)) as u16;
        batch
    }

    /// Loads `magazine`, which holds `count` blocks and has `capacity` places, or none if it is null.
    fn load(&mut self, magazine: Magazine, count: usize, capacity: usize) {
        let end = if magazine.is_null() { 0 } else { capacity };
        (self.bottom, self.top, self.end) =
            (magazine, magazine.wrapping_add(count), magazine.wrapping_add(end));
    }

    /// A block where the loaded magazine has none.
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
                // SAFETY: the loaded magazine is ours and empty.
                unsafe { owner.free_magazine(class, self.bottom) };
            }
            self.load(full, capacity, capacity);
            return self.take();
        }
        let batch = self.demand(class, capacity);
        if !is_worth_it(class, batch, capacity) || !self.equip(owner, class) {
            return owner.take_one(layout_of(class));
        }
        // SAFETY: the loaded magazine has `capacity` places, and only this thread knows it.
        let places = unsafe { slice::from_raw_parts_mut(self.bottom, batch) };
        let count = owner.heap.take(layout_of(class), places);
        // A heap tends to hand out ascending addresses, and the last block of a magazine is used first.
        places[..count].reverse();
        self.top = self.bottom.wrapping_add(count);
        self.take()
    }

    /// Sees to it that there is a loaded magazine. Whether there is.
    fn equip(&mut self, owner: Owner, class: usize) -> bool {
        if self.bottom.is_null() {
            let Some(magazine) = owner.take_magazine(class) else { return false };
            self.load(magazine, 0, owner.depot.capacity(class));
        }
        true
    }

    /// Takes a block back where the loaded magazine has no place.
    ///
    /// # Safety
    ///
    /// As for [`Behind::give`].
    unsafe fn drain(&mut self, owner: Owner, class: usize, block: NonNull<u8>) {
        let capacity = owner.depot.capacity(class);
        if self.bottom.is_null() {
            let batch = self.demand(class, capacity);
            if is_worth_it(class, batch, capacity) {
                self.equip(owner, class);
            }
        } else {
            // The loaded magazine is full; the other is full, empty or not there.
            let (full, mut empty) = (self.bottom, ptr::null_mut());
            if !self.full {
                empty = self.other;
            } else if !owner.depot.put_full(class, self.other) {
                // SAFETY: the other magazine is full and ours.
                unsafe { owner.give_rounds(class, self.other, capacity) };
                empty = self.other;
            }
            (self.other, self.full) = (full, true);
            self.load(empty, 0, capacity);
            self.equip(owner, class);
        }
        if !self.give(block) {
            // SAFETY: passed on.
            unsafe { owner.give_one(layout_of(class), block) }
        }
    }

    /// Gives all back to the heap.
    fn flush(&mut self, owner: Owner, class: usize) {
        let kept = core::mem::replace(self, Self::EMPTY);
        // SAFETY: both magazines were this bin's alone.
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
pub struct Local {
    /// The depot's token when the thread last looked; 0 in a cache that is not in use. One comparison tells whose
    /// cache it is, that it may be used, and that memory has not run out since.
    token: usize,
    bins: [Bin; CLASSES],
    owner: Option<Owner>,
}

impl Local {
    const UNUSED: Self = Self { token: 0, bins: [Bin::EMPTY; CLASSES], owner: None };

    /// Gives all back to the heap.
    fn flush(&mut self) {
        if let Some(owner) = self.owner {
            for (class, bin) in self.bins.iter_mut().enumerate() {
                bin.flush(owner, class);
            }
        }
    }
}

/// Heaps that a thread caches: the first ones that it uses.
const HEAPS: usize = 4;

/// A thread's caches.
struct Caches {
    locals: [Local; HEAPS],
    /// False while the thread's destructor is being registered, which may allocate, and after it has run.
    open: bool,
    guarded: bool,
}

thread_local! {
    // Without a destructor of its own, so that reaching it needs no check and no allocation, and is always possible.
    static CACHES: UnsafeCell<Caches> = const {
        UnsafeCell::new(Caches { locals: [Local::UNUSED; HEAPS], open: true, guarded: false })
    };

    static GUARD: Guard = const { Guard };
}

/// Gives everything back when the thread ends.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        let caches = caches();
        // SAFETY: only this thread reaches its caches, and nothing that is called here does.
        let caches = unsafe { &mut *caches };
        caches.open = false;
        for local in &mut caches.locals {
            local.flush();
            *local = Local::UNUSED;
        }
    }
}

#[inline(always)]
fn caches() -> *mut Caches {
    CACHES.with(UnsafeCell::get)
}

/// A block of `class` from the calling thread's cache, if that is as simple as can be.
#[inline(always)]
pub fn take(token: usize, class: usize) -> Option<NonNull<u8>> {
    // SAFETY: only this thread reaches its caches, and nothing that is called here does; classes are below
    // `CLASSES`.
    unsafe {
        let local = &raw mut (*caches()).locals[0];
        if (*local).token != token {
            return None;
        }
        (*(&raw mut (*local).bins).cast::<Bin>().add(class)).take()
    }
}

/// Puts a block into the calling thread's cache, if that is as simple as can be.
#[inline(always)]
pub fn give(token: usize, class: usize, block: NonNull<u8>) -> bool {
    // SAFETY: as in `take`.
    unsafe {
        let local = &raw mut (*caches()).locals[0];
        (*local).token == token && (*(&raw mut (*local).bins).cast::<Bin>().add(class)).give(block)
    }
}

/// A block of `class`, wherever it comes from.
#[inline(never)]
pub fn take_anywhere(owner: Owner, class: usize) -> Option<NonNull<u8>> {
    let block = match find(owner) {
        // SAFETY: only this thread reaches its caches, and the heap does not.
        Some(local) => unsafe {
            let bin = &mut (*local).bins[class];
            bin.take().or_else(|| bin.refill(owner, class))
        },
        None => owner.take_one(layout_of(class)),
    };
    block.or_else(|| {
        reclaim(owner);
        owner.take_one(layout_of(class))
    })
}

/// Takes a block of `class` back, wherever it goes.
///
/// # Safety
///
/// As for [`Behind::give`].
#[inline(never)]
pub unsafe fn give_anywhere(owner: Owner, class: usize, block: NonNull<u8>) {
    // SAFETY: only this thread reaches its caches, and the heap does not; the block is passed on.
    unsafe {
        match find(owner) {
            Some(local) => {
                let bin = &mut (*local).bins[class];
                if !bin.give(block) {
                    bin.drain(owner, class, block);
                }
            }
            None => owner.give_one(layout_of(class), block),
        }
    }
}

/// Memory has run out: gives back what this thread and the depot keep, and asks the other threads to do so at their
/// next operation.
#[cold]
pub fn reclaim(owner: Owner) {
    owner.depot.press();
    flush(owner);
}

/// Gives back what this thread and the depot keep.
pub fn flush(owner: Owner) {
    if let Some(local) = find(owner) {
        // SAFETY: only this thread reaches its caches, and the heap does not.
        unsafe { (*local).flush() };
    }
    for class in 0..CLASSES {
        // SAFETY: what is taken out of the depot is ours.
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

/// The calling thread's cache for `owner`, emptied if memory ran out since it was last used; `None` if the thread
/// cannot have one.
fn find(owner: Owner) -> Option<*mut Local> {
    let caches = caches();
    // SAFETY: only this thread reaches its caches, and the heap does not.
    let locals = unsafe { &mut (*caches).locals };
    let is_his = |local: &Local| local.owner.is_some_and(|other| ptr::eq(other.depot, owner.depot));
    let Some(local) = locals.iter_mut().find(|local| is_his(local)) else { return bind(caches, owner) };
    let token = owner.depot.token();
    if local.token != token {
        local.flush();
        local.token = token;
    }
    Some(local)
}

/// A new cache for `owner`, if this thread may and can have one.
#[cold]
fn bind(caches: *mut Caches, owner: Owner) -> Option<*mut Local> {
    // SAFETY: only this thread reaches its caches; no reference to them is held where `GUARD` is used, whose
    // registration may allocate and so come back here, to find them closed.
    unsafe {
        if !(*caches).open {
            return None;
        }
        if !(*caches).guarded {
            (*caches).open = false;
            GUARD.try_with(|_| ()).ok()?;
            (*caches).guarded = true;
            (*caches).open = true;
        }
        let local = (*caches).locals.iter_mut().find(|local| local.owner.is_none())?;
        *local = Local { token: owner.depot.token(), owner: Some(owner), ..Local::UNUSED };
        Some(local)
    }
}
