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

/// Slabs: pages of equal objects, with bits beside the memory. Allocation and free are O(1), except that opening or closing a page takes
/// as long as a block of the map `M`.
///
/// After Bonwick, "The slab allocator: an object-caching kernel memory allocator" (USENIX 1994). A request gets an object in a page of
/// its size class. A page is 64 granules (512 bytes): a block of the underlying map, aligned to its length. Requests beyond the largest
/// class, or aligned to more than a granule, go to the underlying map. So do others if there is no room for another page and that map
/// does not round their length up. A page is freed with its last object.
///
/// Nothing is written to free memory. Every double, interior and foreign free is an error.
pub type Slab<C = DefaultClasses, M = BuddyMap, const REGIONS: usize = DEFAULT_REGIONS> =
    Mapped<SlabMap<M, C, 8>, 8, REGIONS>;

/// The map of [`Slab`]: a record for each page, before the words of the underlying map `M`.
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
    /// The first page with a free object, by class number; then a [`Record`] for each page; then the words of the underlying map.
    words: *mut u32,
    /// The first granule's number in its page.
    skew: usize,
    classes: PhantomData<fn() -> C>,
}

/// A size class in a word: its number, from 1, in 5 bits; the granules of an object in 7; and 32 less the objects of a page.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Class(u32);

impl Class {
    const NONE: Self = Self::new(0, PAGE);

    /// A page has at most 32 objects.
    const fn new(number: usize, object: usize) -> Self {
        let count = PAGE / object;
        Self((number | object << 5) as u32 | (BITS as u32).saturating_sub(count as u32) << 12)
    }

    #[inline(always)]
    fn number(self) -> usize {
        (self.0 & 31) as usize
    }

    /// Returns the granules of an object.
    #[inline(always)]
    fn object(self) -> usize {
        (self.0 >> 5 & 127) as usize
    }

    /// Returns the bits of all objects of a page.
    #[inline(always)]
    fn all(self) -> u32 {
        u32::MAX.wrapping_shr(self.0 >> 12)
    }
}

/// A request to a [`Slab`] of these classes: for an object of a class, or for a block of the underlying map.
pub struct SlabShape<S, C, const GRANULE: usize>(Result<Class, S>, PhantomData<fn() -> C>);

impl<S: Copy, C, const GRANULE: usize> Clone for SlabShape<S, C, GRANULE> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: Copy, C, const GRANULE: usize> Copy for SlabShape<S, C, GRANULE> {}

/// The record of a page.
#[repr(C)]
struct Record {
    /// A bit for each object that is free.
    free: u32,
    /// The next page with a free object of the class; page numbers start at 1, and 0 means none.
    next: u32,
    /// The previous page in the list, and from bit [`Record::CLASS`] on the class, from 1, or 0 if this is no page.
    link: u32,
}

impl Record {
    const WORDS: usize = size_of::<Self>() / size_of::<u32>();
    const CLASS: u32 = 27;

    /// Returns the number of the class, or 0 if this is no page.
    #[inline(always)]
    fn class(&self) -> usize {
        (self.link >> Self::CLASS) as usize
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

    /// Words before the records: one for each class, and an unused one, since classes count from 1.
    const HEADS: usize = Self::COUNT + 1;

    /// Granules of the shortest object.
    const SHORTEST: usize = granules(C::SIZES[0], GRANULE.ilog2());

    /// Granules of the longest object.
    const LONGEST: usize = granules(C::SIZES[Self::COUNT - 1], GRANULE.ilog2());

    /// The class of each length in granules.
    const CLASSES: &[Class; PAGE + 1] = &{
        let mut classes = [Class::NONE; PAGE + 1];
        let mut number = Self::COUNT;
        while number > 0 {
            let object = granules(C::SIZES[number - 1], GRANULE.ilog2());
            let mut len = 0;
            while len <= object {
                classes[len] = Class::new(number, object);
                len += 1;
            }
            number -= 1;
        }
        classes
    };

    /// Returns the class of number `number`.
    fn class(number: usize) -> Class {
        Self::CLASSES[granules(C::SIZES[number - 1], GRANULE.ilog2())]
    }

    /// Returns how many words a region has before those of the underlying map.
    fn own_words(skew: usize, len: usize) -> usize {
        Self::HEADS + (skew + len).div_ceil(PAGE) * Record::WORDS
    }

    /// Returns the number of the first page with a free object of `class`, from 1.
    ///
    /// # Safety
    ///
    /// The map must be open.
    #[inline(always)]
    unsafe fn head(&mut self, class: Class) -> &mut u32 {
        // SAFETY: the map is open, so there is a word for each class.
        unsafe { &mut *self.words.add(class.number()) }
    }

    /// Returns the record of page `number`, from 1.
    ///
    /// # Safety
    ///
    /// The region must have that page.
    #[inline(always)]
    unsafe fn record(&self, number: u32) -> *mut Record {
        // SAFETY: the records follow the heads of the classes.
        unsafe { self.words.add(Self::HEADS).cast::<Record>().add(number as usize - 1) }
    }

    /// Allocates a block of the underlying map, out of line, because two functions need it.
    #[inline(never)]
    fn allocate_behind(&mut self, shape: M::Shape) -> Option<usize> {
        self.behind.allocate(shape)
    }

    /// Frees a block of the underlying map, like [`SlabMap::allocate_behind`], or returns why it cannot be freed.
    #[inline(never)]
    fn free_behind(
        &mut self,
        index: usize,
        shape: SlabShape<M::Shape, C, GRANULE>,
    ) -> Result<usize, FreeError> {
        self.check_outside_pages(index, shape)?;
        self.behind.free(index, Self::behind(shape))
    }

    /// Returns the shape of a block of the underlying map: a single object's, if there was no room for a page.
    fn behind(shape: SlabShape<M::Shape, C, GRANULE>) -> M::Shape {
        match shape {
            SlabShape(Ok(class), _) => M::shape(class.object(), 1),
            SlabShape(Err(shape), _) => shape,
        }
    }

    /// Allocates an object when no page of the class has a free one: from a new page, or else as a block.
    #[cold]
    #[inline(never)]
    fn allocate_slow(&mut self, class: Class) -> Option<usize> {
        let Some(index) = self.allocate_behind(M::shape(PAGE, PAGE)) else {
            let shape = Self::behind(SlabShape(Ok(class), PhantomData));
            return if M::granted(shape) == class.object() { self.allocate_behind(shape) } else { None };
        };
        let number = ((self.skew + index) / PAGE + 1) as u32;
        // The request gets the first object.
        let free = class.all() & !1;
        // SAFETY: the page belongs to the region.
        unsafe {
            *self.record(number) = Record { free, next: 0, link: (class.number() as u32) << Record::CLASS };
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
    unsafe fn link(&mut self, number: u32, class: Class) {
        // SAFETY: the heads are open pages.
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
    unsafe fn unlink(&mut self, number: u32, class: Class) {
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
    unsafe fn close(&mut self, number: u32, class: Class) {
        // SAFETY: the caller keeps the contract.
        unsafe {
            self.unlink(number, class);
            (*self.record(number)).link = 0;
        }
        let index = (number as usize - 1) * PAGE - self.skew;
        let freed = self.free_behind(index, SlabShape(Err(M::shape(PAGE, PAGE)), PhantomData));
        debug_assert!(freed.is_ok(), "a page is a block of the map behind");
    }

    /// Returns the number of the page with granule `index`, from 1, and the granule's number in it, or `None` outside the region.
    #[inline(always)]
    fn page_at(&self, index: usize) -> Option<(u32, usize)> {
        let at = self.skew.wrapping_add(index);
        (index < self.granules()).then_some(((at / PAGE + 1) as u32, at % PAGE))
    }

    /// Returns the page of the live object of `class` at granule `index`, and the object's bit, or `None` if there is no such object.
    #[inline(always)]
    fn object_at(&self, index: usize, class: Class) -> Option<(u32, u32)> {
        let (number, at) = self.page_at(index)?;
        // SAFETY: the region has that page.
        let record = unsafe { &*self.record(number) };
        if record.class() != class.number() {
            return None;
        }
        let bit = Self::bit(class, at);
        (class.all() & !record.free & bit != 0).then_some((number, bit))
    }

    /// Returns the bit of the object of `class` that begins at granule `at` of a page, or 0 if none begins there.
    #[inline(always)]
    fn bit(class: Class, at: usize) -> u32 {
        let object = class.object();
        // SAFETY: no object is shorter than those of the first class.
        unsafe { core::hint::assert_unchecked(object >= Self::SHORTEST) };
        if at % object == 0 { 1u32.checked_shl((at / object) as u32).unwrap_or(0) } else { 0 }
    }

    /// Checks that granule `index`, where no live object of this shape begins, is outside all pages.
    ///
    /// # Errors
    ///
    /// [`FreeError`] if it is in a page: the error of a free there.
    #[inline(always)]
    fn check_outside_pages(
        &self,
        index: usize,
        shape: SlabShape<M::Shape, C, GRANULE>,
    ) -> Result<(), FreeError> {
        let Some((number, at)) = self.page_at(index) else { return Ok(()) };
        // SAFETY: the region has that page.
        let record = unsafe { &*self.record(number) };
        if record.class() == 0 { Ok(()) } else { Err(Self::why_not(record, at, shape)) }
    }

    /// Returns the error of a free at granule `at` of a page that has no live object of this shape there.
    #[cold]
    #[inline(never)]
    fn why_not(record: &Record, at: usize, shape: SlabShape<M::Shape, C, GRANULE>) -> FreeError {
        match shape {
            SlabShape(Ok(class), _)
                if record.class() == class.number() && record.free & Self::bit(class, at) != 0 =>
            {
                FreeError::AlreadyFree
            }
            _ => FreeError::NotABlock,
        }
    }
}

// SAFETY: objects are disjoint parts of pages, which are live blocks of the underlying map; the bit of an object lets it be allocated
// only once.
unsafe impl<M: RegionMap, C: Classes, const GRANULE: usize> RegionMap for SlabMap<M, C, GRANULE> {
    type Shape = SlabShape<M::Shape, C, GRANULE>;

    const EMPTY: Self = Self { behind: M::EMPTY, words: ptr::null_mut(), skew: 0, classes: PhantomData };
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
        Self::own_words(place % PAGE, len) + M::words(place, len)
    }

    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize) {
        let skew = place % PAGE;
        let own = Self::own_words(skew, len);
        // SAFETY: there are enough words for the records, and then for the underlying map.
        unsafe {
            words.write_bytes(0, own);
            self.behind.open(words.add(own), place, len);
        }
        (self.words, self.skew) = (words, skew);
    }

    unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        let before = Self::own_words(self.skew, self.granules());
        let own = Self::own_words(self.skew, len);
        // SAFETY: the words of the underlying map move first, so that nothing overwrites them; the new records come before them.
        unsafe {
            self.behind.extend(words.add(own), len);
            ptr::copy(self.words, words, before);
            words.add(before).write_bytes(0, own - before);
        }
        self.words = words;
    }

    #[inline(always)]
    fn shape(len: usize, align: usize) -> Self::Shape {
        // One compare for both.
        let short = if align <= 1 { len } else { usize::MAX };
        if short > Self::LONGEST {
            return SlabShape(Err(M::shape(len, align)), PhantomData);
        }
        // SAFETY: the table has an entry for each length up to the longest.
        SlabShape(Ok(unsafe { *Self::CLASSES.get_unchecked(short) }), PhantomData)
    }

    #[inline(always)]
    fn granted(shape: Self::Shape) -> usize {
        match shape {
            SlabShape(Ok(class), _) => class.object(),
            SlabShape(Err(shape), _) => M::granted(shape),
        }
    }

    #[inline(always)]
    fn allocate(&mut self, shape: Self::Shape) -> Option<usize> {
        let class = match shape {
            SlabShape(Ok(class), _) => class,
            SlabShape(Err(shape), _) => return self.allocate_behind(shape),
        };
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
            let at = free.trailing_zeros() as usize * class.object();
            Some((number as usize - 1) * PAGE + at - self.skew)
        }
    }

    fn check(&self, index: usize, shape: Self::Shape) -> Result<(), FreeError> {
        if matches!(shape, SlabShape(Ok(class), _) if self.object_at(index, class).is_some()) {
            return Ok(());
        }
        self.check_outside_pages(index, shape)?;
        self.behind.check(index, Self::behind(shape))
    }

    #[inline(always)]
    fn free(&mut self, index: usize, shape: Self::Shape) -> Result<usize, FreeError> {
        let SlabShape(Ok(class), _) = shape else { return self.free_behind(index, shape) };
        let Some((number, bit)) = self.object_at(index, class) else { return self.free_behind(index, shape) };
        // SAFETY: the page is open; it is in the list if it has a free object.
        unsafe {
            let record = &mut *self.record(number);
            let old = record.free;
            record.free = old | bit;
            if old == 0 {
                self.link(number, class);
            }
            if old | bit == class.all() {
                self.close(number, class);
            }
        }
        Ok(class.object())
    }

    fn resize(&mut self, index: usize, old: Self::Shape, new: Self::Shape) -> Option<usize> {
        match (old, new) {
            (SlabShape(Err(from), _), SlabShape(Err(to), _)) => {
                self.check_outside_pages(index, old).ok()?;
                self.behind.resize(index, from, to)
            }
            (SlabShape(Ok(from), _), SlabShape(Ok(to), _)) if from == to => {
                self.check(index, old).ok().map(|()| to.object())
            }
            _ => None,
        }
    }

    fn has_shorter(&self, old: Self::Shape, new: Self::Shape) -> bool {
        match (old, new) {
            (SlabShape(Err(old), _), SlabShape(Err(new), _)) => self.behind.has_shorter(old, new),
            _ => false,
        }
    }

    fn is_free(&self) -> bool {
        self.behind.is_free()
    }

    fn largest(&self) -> usize {
        let large = self.behind.largest();
        if large > Self::LONGEST || self.words.is_null() {
            return large;
        }
        let has_room = |class: &Class| {
            let object = class.object();
            // SAFETY: the map is open, so there is a word for each class.
            let head = unsafe { *self.words.add(class.number()) };
            head != 0 || object <= large && M::granted(M::shape(object, 1)) == object
        };
        (1..=Self::COUNT).rev().map(Self::class).find(has_room).map_or(0, Class::object)
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        self.behind.walk(visit);
    }
}
