//! Slabs: pages of equal objects.

use super::tlsf::Tlsf;
use super::{Held, Placement};
use crate::meta::{Block, FreeError, Id, InBand, Meta, NIL, Page};
use crate::region::{Region, RegionError};
use crate::units::{Index, granules};
use core::marker::PhantomData;

/// The size classes of a [`Slab`], as constants of a type.
///
/// ```
/// use allotment::{Heap, Slab, lock::Unsync, placement::Classes};
///
/// struct Messages;
/// impl Classes for Messages {
///     const SIZES: &'static [usize] = &[24, 136];
/// }
/// type MessageHeap = Heap<Slab<allotment::meta::InBand<u32>, Messages>, Unsync>;
/// ```
pub trait Classes {
    /// Object sizes in bytes, rising; at most 32 of them, the last at most 128 granules.
    const SIZES: &'static [usize];

    /// About how many objects a page holds: pages are the next power of two, and never hold more than
    /// 32 objects.
    const OBJECTS: usize = 16;
}

/// Eleven classes from 8 to 128 bytes, at most a third apart above 24 bytes: pages of 128 bytes to
/// 2 KiB. (Chosen by measurement; see `benches/NOTES.md`.)
pub struct DefaultClasses;

impl Classes for DefaultClasses {
    const SIZES: &'static [usize] = &[8, 16, 24, 32, 40, 48, 64, 80, 96, 112, 128];
}

/// Slabs: pages of equal objects, with a bitmap each. O(1) both ways.
///
/// After Bonwick, "The slab allocator: an object-caching kernel memory allocator" (USENIX 1994).
/// A request is served from a page of its size class; a page is a block of the placement `S`
/// beneath, aligned to its size, with a record (at its start, or in the side table):
///
/// ```text
///  page of 1 KiB   | record | object 0 | object 1 |  ...  | object 14 | rest |
///                     bitmap of free objects, links to other pages of the class, check word
/// ```
///
/// Requests beyond the largest class, or aligned to more than a granule, go to `S`. A page goes back
/// there as soon as its last object is freed. A request fails when neither an open page of its class nor
/// an aligned block for a new one is there, even if smaller blocks are: tiny heaps want few, small
/// classes.
///
/// Foreign and double frees are detected, also in release builds: a record must carry its check
/// word, the address must be that of an object, and the bitmap must say that it is live. Such a free is
/// refused and changes nothing.
pub struct Slab<M: Meta = InBand<u32>, C: Classes = DefaultClasses, S: Placement<Meta = M> = Tlsf<M>> {
    pages: S,
    /// Bit `c`: class `c` has a page with a free object.
    open: u32,
    /// Per class: the record of the first page that has a free object.
    heads: [M::Index; 32],
    classes: PhantomData<C>,
}

/// The words of a page's record.
enum Word {
    Free,
    Next,
    Prev,
    Check,
}

/// Marks an open page in its check word.
const SEAL: u32 = 0x51ab_5eed;

/// Granules that a class can have at most.
const LONGEST: usize = 128;

impl<M: Meta, C: Classes, S: Placement<Meta = M>> Slab<M, C, S> {
    /// Class of each length in granules; 255 beyond the largest.
    const CLASS_OF: [u8; LONGEST + 1] = {
        assert!(!C::SIZES.is_empty() && C::SIZES.len() <= 32, "a slab has 1 to 32 size classes");
        let mut table = [255; LONGEST + 1];
        let mut class = C::SIZES.len();
        while class > 0 {
            class -= 1;
            let longest = Self::object(class);
            assert!(longest <= LONGEST, "a class of a slab has at most 128 granules");
            assert!(
                class + 1 == C::SIZES.len() || C::SIZES[class] < C::SIZES[class + 1],
                "the classes of a slab must rise"
            );
            assert!(
                Self::page(class) >= longest + 16usize.div_ceil(M::GRANULE),
                "a page of a slab must hold its record and an object: raise OBJECTS"
            );
            let mut len = 0;
            while len <= longest {
                table[len] = class as u8;
                len += 1;
            }
        }
        table
    };

    /// Granules of an object of `class`.
    #[inline(always)]
    const fn object(class: usize) -> usize {
        granules(C::SIZES[class], M::GRANULE.ilog2())
    }

    /// Granules of a page of `class`.
    #[inline(always)]
    const fn page(class: usize) -> usize {
        (Self::object(class) * C::OBJECTS).next_power_of_two()
    }

    /// Objects in a page of `class` whose record takes `header` granules.
    #[inline(always)]
    fn objects(class: usize, header: usize) -> usize {
        ((Self::page(class) - header) / Self::object(class)).min(32)
    }

    /// A bitmap with the lowest `objects` bits set.
    #[inline(always)]
    fn all(objects: usize) -> u32 {
        u32::MAX >> (32 - objects)
    }

    /// The class that serves a request, unless it goes to the placement beneath.
    #[inline(always)]
    fn class(len: usize, align: usize) -> Option<usize> {
        if len > LONGEST || align > 1 {
            return None;
        }
        match Self::CLASS_OF[len] {
            255 => None,
            class => Some(class as usize),
        }
    }

    /// What the check word of an open page says.
    fn seal(class: usize, record: Id) -> u32 {
        SEAL ^ (record as u32).rotate_left(7) ^ (class as u32) << 27
    }

    /// Number of the live object of `class` at granule `offset` in `page`.
    fn object_at(&self, page: Page<M::Token>, offset: usize, class: usize) -> Result<u32, FreeError> {
        // SAFETY: the page came from the metadata; its words can be read even if it is not open.
        let (seal, free) = unsafe {
            (
                self.pages.meta().page_word(page, Word::Check as usize),
                self.pages.meta().page_word(page, Word::Free as usize),
            )
        };
        let inside = offset.checked_sub(page.block.offset + page.header).ok_or(FreeError::NotABlock)?;
        let object = inside / Self::object(class);
        if seal != Self::seal(class, page.record)
            || inside % Self::object(class) != 0
            || object >= Self::objects(class, page.header)
        {
            return Err(FreeError::NotABlock);
        }
        if free >> object & 1 != 0 { Err(FreeError::AlreadyFree) } else { Ok(object as u32) }
    }

    /// Puts the page first in the list of its class.
    unsafe fn link(&mut self, page: Page<M::Token>, class: usize) {
        let old = self.heads[class].get();
        // SAFETY: the page is open; pages in the list are open and of this class.
        unsafe {
            let meta = self.pages.meta_mut();
            meta.set_page_word(page, Word::Next as usize, old as u32);
            meta.set_page_word(page, Word::Prev as usize, NIL as u32);
            if old != NIL {
                let old = meta.page(old, Self::page(class));
                meta.set_page_word(old, Word::Prev as usize, page.record as u32);
            }
        }
        self.heads[class] = Index::new(page.record);
        self.open |= 1 << class;
    }

    /// Takes the page out of the list of its class.
    unsafe fn unlink(&mut self, page: Page<M::Token>, class: usize) {
        // SAFETY: the page is in the list, and so are its neighbours there.
        unsafe {
            let meta = self.pages.meta_mut();
            let (next, prev) = (
                meta.page_word(page, Word::Next as usize) as Id,
                meta.page_word(page, Word::Prev as usize) as Id,
            );
            if next != NIL {
                let next = meta.page(next, Self::page(class));
                meta.set_page_word(next, Word::Prev as usize, prev as u32);
            }
            if prev != NIL {
                let prev = meta.page(prev, Self::page(class));
                meta.set_page_word(prev, Word::Next as usize, next as u32);
                return;
            }
            self.heads[class] = Index::new(next);
            if next == NIL {
                self.open &= !(1 << class);
            }
        }
    }

    /// Allocates a block of the placement beneath: the quick way first, like a heap does.
    fn allocate_beneath(&mut self, len: usize, align: usize) -> Option<Block<M::Token>> {
        let quick = self.pages.allocate_quick(len, align);
        if quick.is_some() { quick } else { self.pages.allocate(len, align) }
    }

    /// A new page for `class`, all free and in the list.
    #[cold]
    #[inline(never)]
    fn open_page(&mut self, class: usize) -> Option<Page<M::Token>> {
        let len = Self::page(class);
        let block = self.allocate_beneath(len, len)?;
        if block.len != len {
            // A whole region or an unsplit block, which is no page.
            // SAFETY: the block is live and ours; freeing it cannot fail.
            let _ = unsafe { self.pages.deallocate(block, len, len) };
            return None;
        }
        // SAFETY: the block is live and ours.
        unsafe {
            let meta = self.pages.meta_mut();
            let Some(page) = meta.open_page(block) else {
                // Nothing was done to the block, so this cannot fail.
                let _ = self.pages.deallocate(block, len, len);
                return None;
            };
            meta.set_page_word(page, Word::Free as usize, Self::all(Self::objects(class, page.header)));
            meta.set_page_word(page, Word::Check as usize, Self::seal(class, page.record));
            self.link(page, class);
            Some(page)
        }
    }
}

// SAFETY: objects are disjoint parts of pages, which are blocks of the placement beneath; the
// bitmap lets each be handed out once.
unsafe impl<M: Meta, C: Classes, S: Placement<Meta = M>> Placement for Slab<M, C, S> {
    type Meta = M;
    const EMPTY: Self = Self { pages: S::EMPTY, open: 0, heads: [M::Index::NIL; 32], classes: PhantomData };
    const MAX_LEN: usize = S::MAX_LEN;
    // The alignment decides whether a block is an object of a page.
    const EXACT: bool = false;
    const CHECKS: bool = true;

    fn meta(&self) -> &M {
        self.pages.meta()
    }

    unsafe fn meta_mut(&mut self) -> &mut M {
        // SAFETY: the caller makes the same promises.
        unsafe { self.pages.meta_mut() }
    }

    unsafe fn claim(&mut self, memory: Region) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        unsafe { self.pages.claim(memory) }
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<usize, RegionError> {
        // SAFETY: the caller makes the same promises.
        unsafe { self.pages.extend(start, bytes) }
    }

    fn release(&mut self, start: *mut u8) -> Result<(Region, usize), RegionError> {
        self.pages.release(start)
    }

    fn walk(&self, region: usize, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        self.pages.walk(region, visit);
    }

    /// Passed on. Of the pages themselves none is kept that has no object.
    fn set_saving(&mut self, on: bool) {
        self.pages.set_saving(on);
    }

    #[inline(always)]
    fn granted(len: usize, align: usize) -> usize {
        match Self::class(len, align) {
            Some(class) => Self::object(class),
            None => S::granted(len, align),
        }
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Held<Self>> {
        let Some(class) = Self::class(len, align) else {
            return self.allocate_beneath(len, align);
        };
        // SAFETY: pages in the list of a class are open and have a free object.
        unsafe {
            let page = match self.heads[class].get() {
                NIL => self.open_page(class)?,
                record => self.pages.meta().page(record, Self::page(class)),
            };
            let free = self.pages.meta().page_word(page, Word::Free as usize);
            let object = free.trailing_zeros() as usize;
            self.pages.meta_mut().set_page_word(page, Word::Free as usize, free & (free - 1));
            if free & (free - 1) == 0 {
                self.unlink(page, class);
            }
            let len = Self::object(class);
            let offset = page.block.offset + page.header + object * len;
            Some(Block { offset, len, token: page.block.token })
        }
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, block: Held<Self>, len: usize, align: usize) -> Result<usize, FreeError> {
        let Some(class) = Self::class(len, align) else {
            // SAFETY: the caller makes the same promises.
            return unsafe { self.pages.deallocate(block, len, align) };
        };
        // SAFETY: an object's page is open while the object is live; a page that is in no list has no
        // free object, and a page without live objects is not used.
        unsafe {
            let page = self.meta().page_of(block.offset, Self::page(class), block.token);
            let object = self.object_at(page, block.offset, class)?;
            let free = self.meta().page_word(page, Word::Free as usize);
            if free == 0 {
                self.link(page, class);
            }
            let free = free | 1 << object;
            self.meta_mut().set_page_word(page, Word::Free as usize, free);
            if free == Self::all(Self::objects(class, page.header)) {
                self.unlink(page, class);
                let meta = self.meta_mut();
                // A stale record must not look like an open page.
                meta.set_page_word(page, Word::Check as usize, 0);
                meta.close_page(page);
                self.pages.deallocate(page.block, Self::page(class), Self::page(class))?;
            }
        }
        Ok(Self::object(class))
    }

    #[inline(always)]
    unsafe fn resize(
        &mut self,
        block: Held<Self>,
        len: usize,
        to: usize,
        align: usize,
    ) -> Option<Held<Self>> {
        match (Self::class(len, align), Self::class(to, align)) {
            // SAFETY: the caller makes the same promises.
            (None, None) => unsafe { self.pages.resize(block, len, to, align) },
            (old, new) => (old == new).then_some(block),
        }
    }

    fn largest(&self) -> usize {
        let large = self.pages.largest();
        if large > Self::object(C::SIZES.len() - 1) {
            large
        } else if self.open == 0 {
            0
        } else {
            Self::object(self.open.ilog2() as usize)
        }
    }

    #[inline(always)]
    unsafe fn block_at(&self, address: usize, len: usize, align: usize) -> Held<Self> {
        // SAFETY: the block exists, as the caller vouches.
        unsafe {
            let Some(class) = Self::class(len, align) else {
                return self.pages.block_at(address, len, align);
            };
            match self.meta().find_page(address, Self::page(class)) {
                Some(page) => {
                    let offset = self.meta().locate(address).unwrap_unchecked();
                    Block { offset, len: Self::object(class), token: page.block.token }
                }
                None => self.meta().block_at(address, Self::object(class)),
            }
        }
    }

    fn checked_block_at(&self, address: usize, len: usize, align: usize) -> Result<Held<Self>, FreeError> {
        let Some(class) = Self::class(len, align) else {
            return self.pages.checked_block_at(address, len, align);
        };
        let offset = self.meta().locate(address).ok_or(FreeError::Foreign)?;
        if address % M::GRANULE != 0 {
            return Err(FreeError::Misaligned);
        }
        let page = self.meta().find_page(address, Self::page(class)).ok_or(FreeError::NotABlock)?;
        self.object_at(page, offset, class)?;
        Ok(Block { offset, len: Self::object(class), token: page.block.token })
    }
}
