//! Slabs: pages of equal objects.

use super::{BuddyMap, Mapped, RegionMap};
use crate::error::FreeError;
use crate::region::DEFAULT_REGIONS;
use crate::units::granules;
use core::marker::PhantomData;
use core::ptr;

/// The size classes of a [`Slab`], as constants of a type.
///
/// ```
/// use allotment::{Heap, Slab, lock::Unsync, placement::Classes};
///
/// struct Messages;
/// impl Classes for Messages {
///     const SIZES: &'static [usize] = &[24, 136];
/// }
/// type MessageHeap = Heap<Slab<Messages>, Unsync>;
/// ```
pub trait Classes {
    /// Object sizes in bytes, rising; at most 31 of them, the last at most 64 granules.
    const SIZES: &'static [usize];
}

/// Ten classes from 16 to 128 bytes, at most a third apart above 24 bytes. (Chosen by measurement; see `docs/lab/allocators.md`.)
pub struct DefaultClasses;

impl Classes for DefaultClasses {
    const SIZES: &'static [usize] = &[16, 24, 32, 40, 48, 64, 80, 96, 112, 128];
}

/// Granules of a page.
const PAGE: usize = 64;

/// Bits of a word.
const BITS: usize = u32::BITS as usize;

/// Slabs: pages of equal objects, found by bits beside the memory. O(1) both ways, but for opening and closing a page, which take
/// as long as a block of the map `M`.
///
/// After Bonwick, "The slab allocator: an object-caching kernel memory allocator" (USENIX 1994). A request gets an object in a page
/// of its size class: 64 granules (512 bytes), which are a block of the map behind, aligned to their length. Requests beyond the
/// largest class, or aligned to more than a granule, go to the map behind, and so do others where there is no room for another
/// page, if that map does not round lengths up. A page goes back as soon as its last object is freed.
///
/// Nothing is written to free memory. Every double, interior and foreign free is an error.
pub type Slab<C = DefaultClasses, M = BuddyMap, const REGIONS: usize = DEFAULT_REGIONS> =
    Mapped<SlabMap<M, C, 8>, 8, REGIONS>;

/// The map of [`Slab`]: a record for each page, in front of the words of a map `M` behind it.
///
/// ```text
///  page of 512 bytes   | object 0 | object 1 | object 2 |  ...  | object 20 | rest |
///  its record          free: 0 1 0 ...   class, links to other pages of the class with free objects
/// ```
///
/// A page holds at most 32 objects. A free is checked: the page must be of the class, an object must begin at the granule, and its bit
/// must say that it is live.
pub struct SlabMap<M: RegionMap, C: Classes = DefaultClasses, const GRANULE: usize = 8> {
    behind: M,
    /// For each class the first page with a free object; then a [`Record`] for each page; then the words of the map behind.
    words: *mut u32,
    /// The first granule's number in the page that it lies in.
    skew: usize,
    /// Granules of the region and of what is in front of it in the first page.
    end: usize,
    classes: PhantomData<fn() -> C>,
}

/// Tables that follow from the sizes of the classes.
struct Tables {
    /// The bits of all objects of a page of each class.
    all: [u32; 32],
    /// Granules of an object of each class.
    objects: [u8; 32],
    /// Class of each length in granules up to the longest.
    class_of: [u8; PAGE + 1],
}

/// The record of a page.
#[repr(C)]
struct Record {
    /// A bit for each object that is free.
    free: u32,
    /// The next page with a free object of the class; numbers of pages count from 1, and 0 is none.
    next: u32,
    /// The page before that one, and the class, from 1, in the bits from [`Record::CLASS`] on; 0 for what is no page.
    link: u32,
}

impl Record {
    const WORDS: usize = size_of::<Self>() / size_of::<u32>();
    const CLASS: u32 = 27;

    /// Returns the class, from 1; 0 for what is no page.
    #[inline(always)]
    fn class(&self) -> u32 {
        self.link >> Self::CLASS
    }

    fn prev(&self) -> u32 {
        self.link & ((1 << Self::CLASS) - 1)
    }

    fn set_prev(&mut self, prev: u32) {
        self.link = self.link >> Self::CLASS << Self::CLASS | prev;
    }
}

impl<M: RegionMap, C: Classes, const GRANULE: usize> Clone for SlabMap<M, C, GRANULE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<M: RegionMap, C: Classes, const GRANULE: usize> Copy for SlabMap<M, C, GRANULE> {}

// SAFETY: the pointer leads to memory that belongs to the map.
unsafe impl<M: RegionMap + Send, C: Classes, const GRANULE: usize> Send for SlabMap<M, C, GRANULE> {}

impl<M: RegionMap, C: Classes, const GRANULE: usize> SlabMap<M, C, GRANULE> {
    /// Number of classes.
    const COUNT: usize = {
        let count = C::SIZES.len();
        assert!(count > 0 && count <= 31, "a slab has 1 to 31 size classes");
        let mut class = 0;
        while class < count {
            assert!(class == 0 || C::SIZES[class - 1] < C::SIZES[class], "the classes of a slab must rise");
            class += 1;
        }
        assert!(C::SIZES[count - 1].div_ceil(GRANULE) <= PAGE, "a class of a slab has at most 64 granules");
        count
    };

    /// Granules of the longest object.
    const LONGEST: usize = granules(C::SIZES[Self::COUNT - 1], GRANULE.ilog2());

    const TABLES: &Tables = &{
        let mut tables = Tables { all: [0; 32], objects: [1; 32], class_of: [0; PAGE + 1] };
        let mut class = Self::COUNT;
        while class > 0 {
            class -= 1;
            let object = granules(C::SIZES[class], GRANULE.ilog2());
            let count = PAGE / object;
            tables.all[class] = if count < BITS { (1 << count) - 1 } else { u32::MAX };
            tables.objects[class] = object as u8;
            let mut len = 0;
            while len <= object {
                tables.class_of[len] = class as u8;
                len += 1;
            }
        }
        tables
    };

    /// Granules of an object of `class`.
    #[inline(always)]
    fn object(class: usize) -> usize {
        // SAFETY: there are fewer classes than entries.
        usize::from(unsafe { *Self::TABLES.objects.get_unchecked(class) })
    }

    /// Returns the bits of all objects of a page of `class`.
    #[inline(always)]
    fn all(class: usize) -> u32 {
        // SAFETY: there are fewer classes than entries.
        unsafe { *Self::TABLES.all.get_unchecked(class) }
    }

    /// Returns the class of a request, unless it goes to the map behind.
    #[inline(always)]
    fn class(len: usize, align: usize) -> Option<usize> {
        // One compare for both.
        let len = if align <= 1 { len } else { usize::MAX };
        if len > Self::LONGEST {
            return None;
        }
        // SAFETY: the table has an entry for each length up to the longest.
        Some(usize::from(unsafe { *Self::TABLES.class_of.get_unchecked(len) }))
    }

    /// Returns how many pages a region lies in.
    fn pages(end: usize) -> usize {
        end.div_ceil(PAGE)
    }

    /// Returns the first page with a free object of a class, from 1.
    ///
    /// # Safety
    ///
    /// The map must be open.
    #[inline(always)]
    unsafe fn head(&mut self, class: usize) -> &mut u32 {
        // SAFETY: the map is open, so there is a word for each class.
        unsafe { &mut *self.words.add(class) }
    }

    /// Returns the record of page `number`, from 1.
    ///
    /// # Safety
    ///
    /// The region must have that page.
    #[inline(always)]
    unsafe fn record(&self, number: u32) -> *mut Record {
        // SAFETY: the records follow the heads of the classes.
        unsafe { self.words.add(Self::COUNT).cast::<Record>().add(number as usize - 1) }
    }

    /// Allocates a block of the map behind, out of line, because two functions need it.
    #[inline(never)]
    fn allocate_behind(&mut self, len: usize, align: usize) -> Option<usize> {
        self.behind.allocate(len, align)
    }

    /// Frees a block of the map behind, like [`SlabMap::allocate_behind`].
    #[inline(never)]
    fn free_behind(&mut self, index: usize, len: usize, align: usize) -> Result<usize, FreeError> {
        self.behind.free(index, Self::rounded(len, align), align)
    }

    /// Returns the length of a block of the map behind: an object's, where there was no room for a page.
    fn rounded(len: usize, align: usize) -> usize {
        Self::class(len, align).map_or(len, Self::object)
    }

    /// Allocates an object where no page of the class has one: from a new page, or else as a block.
    #[cold]
    #[inline(never)]
    fn allocate_slow(&mut self, class: usize) -> Option<usize> {
        let object = Self::object(class);
        let Some(index) = self.allocate_behind(PAGE, PAGE) else {
            return if M::granted(object, 1) == object { self.allocate_behind(object, 1) } else { None };
        };
        let number = ((self.skew + index) / PAGE + 1) as u32;
        // The first object is the one that is allocated.
        let free = Self::all(class) & !1;
        // SAFETY: the page is one of the region's.
        unsafe {
            *self.record(number) = Record { free, next: 0, link: (class as u32 + 1) << Record::CLASS };
            if free != 0 {
                self.link(number, class);
            }
        }
        Some(index)
    }

    /// Adds a page as the first to the list of its class.
    ///
    /// # Safety
    ///
    /// The page must be open, and in no list.
    #[inline(never)]
    unsafe fn link(&mut self, number: u32, class: usize) {
        // SAFETY: the heads lead to open pages.
        unsafe {
            let next = core::mem::replace(self.head(class), number);
            (*self.record(number)).next = next;
            (*self.record(number)).set_prev(0);
            if next != 0 {
                (*self.record(next)).set_prev(number);
            }
        }
    }

    /// Removes a page from the list of its class.
    ///
    /// # Safety
    ///
    /// The page must be in that list.
    unsafe fn unlink(&mut self, number: u32, class: usize) {
        // SAFETY: the pages beside it in the list are open.
        unsafe {
            let (next, prev) = ((*self.record(number)).next, (*self.record(number)).prev());
            if next != 0 {
                (*self.record(next)).set_prev(prev);
            }
            if prev != 0 {
                (*self.record(prev)).next = next;
            } else {
                *self.head(class) = next;
            }
        }
    }

    /// Frees an empty page.
    ///
    /// # Safety
    ///
    /// The page must be in the list of its class, and must have no live object.
    #[cold]
    #[inline(never)]
    unsafe fn close(&mut self, number: u32, class: usize) -> Result<(), FreeError> {
        // SAFETY: the caller keeps the contract.
        unsafe {
            self.unlink(number, class);
            (*self.record(number)).link = 0;
        }
        self.free_behind((number as usize - 1) * PAGE - self.skew, PAGE, PAGE).map(drop)
    }

    /// Returns the number of the page and the object that a layout of this class has at granule `index`, with its bit; `None` if the
    /// granule lies in no page.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if the page has no such object, or it is free.
    #[inline(always)]
    fn object_at(&self, index: usize, class: Option<usize>) -> Result<Option<(u32, u32)>, FreeError> {
        let at = self.skew.wrapping_add(index);
        if at >= self.end {
            return Ok(None);
        }
        let number = (at / PAGE + 1) as u32;
        // SAFETY: the region has that page.
        let record = unsafe { &*self.record(number) };
        match class {
            Some(class) if record.class() == class as u32 + 1 => {
                let (at, object) = (at % PAGE, Self::object(class));
                let bit = 1u32.checked_shl((at / object) as u32).unwrap_or(0);
                if at % object != 0 || Self::all(class) & bit == 0 {
                    return Err(FreeError::NotABlock);
                }
                if record.free & bit != 0 { Err(FreeError::AlreadyFree) } else { Ok(Some((number, bit))) }
            }
            _ if record.class() == 0 => Ok(None),
            _ => Err(FreeError::NotABlock),
        }
    }
}

// SAFETY: objects are disjoint parts of pages, which are live blocks of the map behind; a bit lets each be allocated once.
unsafe impl<M: RegionMap, C: Classes, const GRANULE: usize> RegionMap for SlabMap<M, C, GRANULE> {
    const EMPTY: Self =
        Self { behind: M::EMPTY, words: ptr::null_mut(), skew: 0, end: 0, classes: PhantomData };
    const MAX_LEN: usize = {
        // The number of a page has 27 bits; the length in bytes is a `usize`.
        let pages = usize::MAX >> PAGE.ilog2() >> GRANULE.ilog2();
        let most = PAGE * if pages < 1 << 26 { pages } else { 1 << 26 };
        if M::MAX_LEN < most { M::MAX_LEN } else { most }
    };
    const WHOLE: bool = M::WHOLE;
    // The alignment decides whether a block is an object of a page.
    const EXACT: bool = false;
    const MOVES_TO_SHRINK: bool = M::MOVES_TO_SHRINK;

    #[inline(always)]
    fn granules(&self) -> usize {
        self.behind.granules()
    }

    fn words(place: usize, len: usize) -> usize {
        Self::COUNT + Self::pages(place % PAGE + len) * Record::WORDS + M::words(place, len)
    }

    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize) {
        let skew = place % PAGE;
        let own = Self::COUNT + Self::pages(skew + len) * Record::WORDS;
        // SAFETY: there are as many words, and those of the map behind after them.
        unsafe {
            words.write_bytes(0, own);
            self.behind.open(words.add(own), place, len);
        }
        (self.words, self.skew, self.end) = (words, skew, skew + len);
    }

    unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        let end = self.skew + len;
        let before = Self::COUNT + Self::pages(self.end) * Record::WORDS;
        let own = Self::COUNT + Self::pages(end) * Record::WORDS;
        // SAFETY: the words of the map behind move first, to where they are overwritten no more; the new records are in front of
        // them.
        unsafe {
            self.behind.extend(words.add(own), len);
            ptr::copy(self.words, words, before);
            words.add(before).write_bytes(0, own - before);
        }
        (self.words, self.end) = (words, end);
    }

    #[inline(always)]
    fn granted(len: usize, align: usize) -> usize {
        match Self::class(len, align) {
            Some(class) => Self::object(class),
            None => M::granted(len, align),
        }
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let Some(class) = Self::class(len, align) else { return self.allocate_behind(len, align) };
        if self.words.is_null() {
            return None;
        }
        // SAFETY: the map is open; pages in a list are open and have a free object.
        unsafe {
            let number = *self.head(class);
            if number == 0 {
                return self.allocate_slow(class);
            }
            let record = &mut *self.record(number);
            let free = record.free;
            let rest = free & (free - 1);
            record.free = rest;
            if rest == 0 {
                let next = record.next;
                *self.head(class) = next;
                if next != 0 {
                    (*self.record(next)).set_prev(0);
                }
            }
            let at = free.trailing_zeros() as usize * Self::object(class);
            Some((number as usize - 1) * PAGE + at - self.skew)
        }
    }

    fn check(&self, index: usize, len: usize, align: usize) -> Result<(), FreeError> {
        match self.object_at(index, Self::class(len, align))? {
            Some(_) => Ok(()),
            None => self.behind.check(index, Self::rounded(len, align), align),
        }
    }

    #[inline(always)]
    fn free(&mut self, index: usize, len: usize, align: usize) -> Result<usize, FreeError> {
        let class = Self::class(len, align);
        let (Some((number, bit)), Some(class)) = (self.object_at(index, class)?, class) else {
            return self.free_behind(index, len, align);
        };
        // SAFETY: the page is open; it is in the list if it has a free object.
        unsafe {
            let record = &mut *self.record(number);
            let old = record.free;
            record.free = old | bit;
            if old == 0 {
                self.link(number, class);
            }
            if old | bit == Self::all(class) {
                self.close(number, class)?;
            }
        }
        Ok(Self::object(class))
    }

    fn resize(&mut self, index: usize, len: usize, to: usize, align: usize) -> Option<usize> {
        match (Self::class(len, align), Self::class(to, align)) {
            (None, None) => {
                let is_behind = self.object_at(index, None) == Ok(None);
                if is_behind { self.behind.resize(index, len, to, align) } else { None }
            }
            (old, new) if old == new => self.check(index, len, align).ok().map(|()| Self::granted(to, align)),
            _ => None,
        }
    }

    fn has_shorter(&mut self, len: usize, to: usize, align: usize) -> bool {
        Self::class(to, align).is_none() && self.behind.has_shorter(len, to, align)
    }

    fn is_free(&self) -> bool {
        self.behind.is_free()
    }

    fn largest(&self) -> usize {
        let large = self.behind.largest();
        if large > Self::LONGEST || self.words.is_null() {
            return large;
        }
        let serves = |class: &usize| {
            let object = Self::object(*class);
            // SAFETY: the map is open, so there is a word for each class.
            let head = unsafe { *self.words.add(*class) };
            head != 0 || object <= large && M::granted(object, 1) == object
        };
        (0..Self::COUNT).rev().find(serves).map_or(0, Self::object)
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        self.behind.walk(visit);
    }
}
