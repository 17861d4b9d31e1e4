//! A slab with classes given at run time.
//!
//! The library's classes are constants of a type, so trying other classes would require compiling. This slab takes the same steps with
//! classes as values; a test shows that it places blocks exactly like the library's slab.

use std::alloc::{GlobalAlloc, Layout};
use std::collections::HashMap;
use std::ptr::{self, NonNull};

use allotment::placement::{BuddyMap, RegionMap};
use allotment::{Buddy, Region};

use super::classes::{Classes, GRANULE, LONGEST, PAGE, RECORD};
use crate::replay::arena::Range;
use crate::replay::subject::{Make, Own, Subject};

/// Creates a [`Fitted`] with the given classes.
pub struct MakeFitted<'a>(pub &'a Classes);

/// A slab whose pages come from buddies.
pub struct Fitted {
    pages: Own<Buddy<1, GRANULE>>,
    sizes: Vec<usize>,
    class_of: [Option<u8>; LONGEST + 1],
    /// The open pages by address.
    open: HashMap<usize, Page>,
    /// For each class, the first page with a free object.
    heads: Vec<Option<usize>>,
}

#[derive(Default)]
struct Page {
    free: u32,
    next: Option<usize>,
    prev: Option<usize>,
}

impl Make for MakeFitted<'_> {
    type Subject = Fitted;

    unsafe fn make(&self, arena: Range) -> Option<Box<Fitted>> {
        let Classes { sizes } = self.0;
        let mut class_of = [None; LONGEST + 1];
        for (class, &size) in sizes.iter().enumerate().rev() {
            class_of[..=size / GRANULE].fill(Some(class as u8));
        }
        let pages = Own::<Buddy<1, GRANULE>>::empty();
        let region = Region::new(NonNull::new(arena.start)?, pages_end(arena, sizes.len())?);
        // SAFETY: the caller of `make` hands over the arena.
        unsafe { pages.claim(region) }.ok()?;
        let (sizes, heads) = (sizes.clone(), vec![None; sizes.len()]);
        Some(Box::new(Fitted { pages, sizes, class_of, open: HashMap::new(), heads }))
    }

    /// Returns the size of the library's slab, since this one replaces it.
    fn state(&self) -> usize {
        size_of::<Own<allotment::Slab>>()
    }
}

/// The layout of a page.
const PAGES: Layout = match Layout::from_size_align(PAGE * GRANULE, PAGE * GRANULE) {
    Ok(layout) => layout,
    Err(_) => unreachable!(),
};

/// Returns the bytes of an arena left for pages and the map of their buddies, if there is room for a granule.
fn pages_end(arena: Range, classes: usize) -> Option<usize> {
    let start = arena.start.addr();
    let first = start.next_multiple_of(GRANULE);
    let bytes = ((start + arena.size) & !3).checked_sub(first)?;
    let place = first / GRANULE;
    let records = |len: usize| (classes + 1) * 4 + (place % PAGE + len).div_ceil(PAGE) * RECORD;
    let rest = |len: usize| len * GRANULE + BuddyMap::words(place, len) * 4;
    // Find the longest region that leaves room for its records.
    let (mut len, mut over) = (0, bytes / GRANULE + 1);
    while over - len > 1 {
        let middle = len.midpoint(over);
        if rest(middle) + records(middle) <= bytes { len = middle } else { over = middle }
    }
    (len > 0).then(|| first - start + rest(len))
}

impl Fitted {
    fn class(&self, layout: Layout) -> Option<usize> {
        let len = layout.size().div_ceil(GRANULE).max(1);
        if len > LONGEST || layout.align() > GRANULE {
            return None;
        }
        self.class_of[len].map(usize::from)
    }

    /// Returns the layout of an object that has no page.
    fn object(&self, class: usize) -> Layout {
        // SAFETY: the size is at most that of a page.
        unsafe { Layout::from_size_align_unchecked(self.sizes[class], GRANULE) }
    }

    fn all(&self, class: usize) -> u32 {
        u32::MAX >> (32 - Classes::held(self.sizes[class]))
    }

    fn link(&mut self, at: usize, class: usize) {
        let old = self.heads[class].replace(at);
        if let Some(old) = old.and_then(|old| self.open.get_mut(&old)) {
            old.prev = Some(at);
        }
        if let Some(page) = self.open.get_mut(&at) {
            (page.next, page.prev) = (old, None);
        }
    }

    fn unlink(&mut self, at: usize, class: usize) {
        let Some(&Page { next, prev, .. }) = self.open.get(&at) else { return };
        if let Some(next) = next.and_then(|next| self.open.get_mut(&next)) {
            next.prev = prev;
        }
        match prev.and_then(|prev| self.open.get_mut(&prev)) {
            Some(prev) => prev.next = next,
            None => self.heads[class] = next,
        }
    }
}

// SAFETY: objects are disjoint parts of pages, which are blocks of the heap; the bitmap ensures that each object is
// allocated once. Pages are aligned to their length.
unsafe impl Subject for Fitted {
    unsafe fn alloc(&mut self, layout: Layout) -> *mut u8 {
        let Some(class) = self.class(layout) else {
            // SAFETY: the caller guarantees that the size is not zero.
            return unsafe { GlobalAlloc::alloc(&self.pages, layout) };
        };
        let at = match self.heads[class] {
            Some(at) => at,
            None => {
                // SAFETY: a page is not empty.
                let page = unsafe { GlobalAlloc::alloc(&self.pages, PAGES) };
                if page.is_null() {
                    // Like the library, allocate a single object if buddies do not round its length up.
                    return match (self.sizes[class] / GRANULE).is_power_of_two() {
                        // SAFETY: an object is not empty.
                        true => unsafe { GlobalAlloc::alloc(&self.pages, self.object(class)) },
                        false => page,
                    };
                }
                let at = page.expose_provenance();
                self.open.insert(at, Page { free: self.all(class), ..Page::default() });
                self.link(at, class);
                at
            }
        };
        let Some(page) = self.open.get_mut(&at) else { return ptr::null_mut() };
        let object = page.free.trailing_zeros() as usize;
        page.free &= page.free - 1;
        if page.free == 0 {
            self.unlink(at, class);
        }
        ptr::with_exposed_provenance_mut(at + object * self.sizes[class])
    }

    unsafe fn dealloc(&mut self, block: *mut u8, layout: Layout) {
        let Some(class) = self.class(layout) else {
            // SAFETY: a block without a class is a live block of the heap, allocated with `layout`.
            return unsafe { GlobalAlloc::dealloc(&self.pages, block, layout) };
        };
        let all = self.all(class);
        let at = block.addr() & !(PAGES.size() - 1);
        let object = self.object(class);
        let Some(page) = self.open.get_mut(&at) else {
            // SAFETY: an object in no page is a live block of the heap.
            return unsafe { GlobalAlloc::dealloc(&self.pages, block, object) };
        };
        let full = page.free == 0;
        page.free |= 1 << ((block.addr() - at) / self.sizes[class]);
        let empty = page.free == all;
        if full {
            self.link(at, class);
        }
        if empty {
            self.unlink(at, class);
            self.open.remove(&at);
            // SAFETY: the page is a live block of the heap, and none of its objects is live.
            unsafe {
                GlobalAlloc::dealloc(&self.pages, ptr::with_exposed_provenance_mut(at), PAGES);
            }
        }
    }

    unsafe fn realloc(&mut self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller's size makes a valid layout.
        let new = unsafe { Layout::from_size_align_unchecked(size, layout.align()) };
        match (self.class(layout), self.class(new)) {
            // SAFETY: a block without a class is a live block of the heap, allocated with `layout`.
            (None, None) => unsafe { GlobalAlloc::realloc(&self.pages, block, layout, size) },
            (old, new) if old == new => block,
            // SAFETY: the caller guarantees a live block of `layout`; both blocks are live, so they do not overlap.
            _ => unsafe {
                let moved = self.alloc(new);
                if !moved.is_null() {
                    moved.copy_from_nonoverlapping(block, layout.size().min(size));
                    self.dealloc(block, layout);
                }
                moved
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::input::Input;
    use crate::replay::subject::Plain;
    use crate::replay::{memory, read, run};

    /// With the library's classes, the smallest arenas are identical to the step.
    #[test]
    fn it_is_the_library_s_slab() {
        use allotment::placement::{Classes as _, DefaultClasses};
        let classes = Classes { sizes: DefaultClasses::SIZES.to_vec() };
        for name in ["espeak", "mosquitto", "lua_small", "jq_small"] {
            let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../tests/data/{name}.trace.zst"));
            let program = read(&Input::new(&path).unwrap()).unwrap();
            let limit = usize::MAX;
            let mut memory = memory(run::most(&program, limit)).unwrap();
            for skew in [0, 16, 1040] {
                let fitted = run::smallest(&MakeFitted(&classes), &program, &mut memory, limit, skew);
                let plain = Plain::<Own<allotment::Slab>>::default();
                let library = run::smallest(&plain, &program, &mut memory, limit, skew);
                assert!(library.is_some());
                assert_eq!(fitted, library, "{name}, {skew}");
            }
            let size = program.peak * 3;
            let checked = run::check(&MakeFitted(&classes), &program, &mut memory, size, 16).unwrap();
            assert_eq!(checked.failed, None);
        }
    }
}
