//! [`SlabMap`] against a list of its pages, over a second map behind.

use allotment::FreeError;
use allotment::placement::{Classes, DefaultClasses, RegionMap, SlabMap};
use std::collections::{BTreeSet, VecDeque};

/// Granules of a page.
const PAGE: usize = 64;

struct Few;
impl Classes for Few {
    const SIZES: &'static [usize] = &[8, 24, 136, 256];
}

/// The plainest map: a word per granule, which is 0 if the granule is free, else the length of its block where that begins.
#[derive(Clone, Copy)]
struct Plain<const ROUNDED: bool> {
    words: *mut u32,
    place: usize,
    len: usize,
}

const INSIDE: u32 = u32::MAX;

impl<const ROUNDED: bool> Plain<ROUNDED> {
    fn words(&self) -> &[u32] {
        if self.words.is_null() {
            return &[];
        }
        // SAFETY: the map is open, and has a word for each granule.
        unsafe { std::slice::from_raw_parts(self.words, self.len) }
    }

    fn set(&mut self, from: usize, to: usize, first: u32, others: u32) {
        // SAFETY: as above.
        let words = unsafe { std::slice::from_raw_parts_mut(self.words, self.len) };
        words[from..to].fill(others);
        if from < to {
            words[from] = first;
        }
    }

    fn fits(&self, at: usize, len: usize) -> bool {
        self.words().get(at..at + len).is_some_and(|words| words.iter().all(|&word| word == 0))
    }
}

// SAFETY: blocks are made of granules that are free, and mark them as used.
unsafe impl<const ROUNDED: bool> RegionMap for Plain<ROUNDED> {
    type Shape = (usize, usize);

    const EMPTY: Self = Self { words: std::ptr::null_mut(), place: 0, len: 0 };
    const MAX_LEN: usize = 1 << 20;
    const WHOLE: bool = false;
    const EXACT: bool = !ROUNDED;
    const MOVES_TO_SHRINK: bool = false;

    fn granules(&self) -> usize {
        self.len
    }

    fn words(_: usize, len: usize) -> usize {
        len
    }

    unsafe fn open(&mut self, words: *mut u32, place: usize, len: usize) {
        *self = Self { words, place, len };
        self.set(0, len, 0, 0);
    }

    unsafe fn extend(&mut self, words: *mut u32, len: usize) {
        // SAFETY: the new words are the map's.
        unsafe {
            std::ptr::copy(self.words, words, self.len);
            words.add(self.len).write_bytes(0, len - self.len);
        }
        (self.words, self.len) = (words, len);
    }

    fn shape(len: usize, align: usize) -> (usize, usize) {
        (len, align)
    }

    fn granted((len, align): (usize, usize)) -> usize {
        if ROUNDED { len.max(align).next_power_of_two() } else { len }
    }

    fn allocate(&mut self, (len, align): (usize, usize)) -> Option<usize> {
        let granted = Self::granted((len, align));
        let fits = |at: &usize| (self.place + at) % align == 0 && self.fits(*at, granted);
        let at = (0..self.words().len()).find(fits)?;
        self.set(at, at + granted, granted as u32, INSIDE);
        Some(at)
    }

    fn check(&self, index: usize, (len, align): (usize, usize)) -> Result<(), FreeError> {
        match self.words().get(index) {
            Some(0) => Err(FreeError::AlreadyFree),
            Some(&word) if word as usize == Self::granted((len, align)) => Ok(()),
            _ => Err(FreeError::NotABlock),
        }
    }

    fn free(&mut self, index: usize, (len, align): (usize, usize)) -> Result<usize, FreeError> {
        self.check(index, (len, align))?;
        self.set(index, index + Self::granted((len, align)), 0, 0);
        Ok(Self::granted((len, align)))
    }

    fn resize(
        &mut self,
        index: usize,
        (len, align): (usize, usize),
        (to, _): (usize, usize),
    ) -> Option<usize> {
        let (old, new) = (Self::granted((len, align)), Self::granted((to, align)));
        if self.check(index, (len, align)).is_err() || new > old && !self.fits(index + old, new - old) {
            return None;
        }
        self.set(index, index + old, 0, 0);
        self.set(index, index + new, new as u32, INSIDE);
        Some(new)
    }

    fn has_shorter(&self, _: (usize, usize), _: (usize, usize)) -> bool {
        false
    }

    fn is_free(&self) -> bool {
        self.words().iter().all(|&word| word == 0)
    }

    fn largest(&self) -> usize {
        let largest = self.words().chunk_by(|a, b| (*a == 0) == (*b == 0)).filter(|run| run[0] == 0);
        let largest = largest.map(<[u32]>::len).max().unwrap_or(0);
        if ROUNDED && largest > 0 { 1 << largest.ilog2() } else { largest }
    }

    fn walk(&self, visit: &mut dyn FnMut(usize, usize, bool) -> bool) {
        let mut at = 0;
        for run in self.words().chunk_by(|a, b| *b == INSIDE || *a == 0 && *b == 0) {
            if !visit(at, run.len(), run[0] == 0) {
                return;
            }
            at += run.len();
        }
    }
}

/// A page: its class, and the granules at which its live objects begin.
struct Page {
    start: usize,
    class: usize,
    live: BTreeSet<usize>,
}

/// The rules, without bits and links.
struct Model<M> {
    behind: M,
    _words: Vec<u32>,
    objects: Vec<usize>,
    pages: Vec<Page>,
    /// For each class the starts of the pages with a free object, the next one first.
    lists: Vec<VecDeque<usize>>,
}

impl<M: RegionMap> Model<M> {
    fn new(place: usize, len: usize, sizes: &[usize]) -> Self {
        let mut words = vec![0; M::words(place, len)];
        let mut behind = M::EMPTY;
        // SAFETY: the words are as many as the map takes.
        unsafe { behind.open(words.as_mut_ptr(), place, len) };
        let objects: Vec<usize> = sizes.iter().map(|size| size.div_ceil(8)).collect();
        let lists = objects.iter().map(|_| VecDeque::new()).collect();
        Self { behind, _words: words, objects, pages: Vec::new(), lists }
    }

    fn class(&self, len: usize, align: usize) -> Option<usize> {
        self.objects.iter().position(|&object| len <= object && align <= 1)
    }

    fn starts(&self, class: usize) -> Vec<usize> {
        (0..PAGE / self.objects[class]).take(32).map(|n| n * self.objects[class]).collect()
    }

    fn rounded(&self, len: usize, align: usize) -> usize {
        self.class(len, align).map_or(len, |class| self.objects[class])
    }

    fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let Some(class) = self.class(len, align) else { return self.behind.allocate(M::shape(len, align)) };
        if self.lists[class].is_empty() {
            let Some(start) = self.behind.allocate(M::shape(PAGE, PAGE)) else {
                let object = self.objects[class];
                return if M::granted(M::shape(object, 1)) == object {
                    self.behind.allocate(M::shape(object, 1))
                } else {
                    None
                };
            };
            self.pages.push(Page { start, class, live: BTreeSet::new() });
            self.lists[class].push_front(start);
        }
        let start = self.lists[class][0];
        let starts = self.starts(class);
        let page = self.pages.iter_mut().find(|page| page.start == start).unwrap();
        let at = *starts.iter().find(|at| !page.live.contains(at)).unwrap();
        page.live.insert(at);
        if page.live.len() == starts.len() {
            self.lists[class].pop_front();
        }
        Some(start + at)
    }

    fn page(&self, index: usize) -> Option<usize> {
        self.pages.iter().position(|page| page.start <= index && index < page.start + PAGE)
    }

    fn check(&self, index: usize, len: usize, align: usize) -> Result<(), FreeError> {
        let Some(number) = self.page(index) else {
            return self.behind.check(index, M::shape(self.rounded(len, align), align));
        };
        let page = &self.pages[number];
        let at = index - page.start;
        if self.class(len, align) != Some(page.class) || !self.starts(page.class).contains(&at) {
            return Err(FreeError::NotABlock);
        }
        if page.live.contains(&at) { Ok(()) } else { Err(FreeError::AlreadyFree) }
    }

    fn free(&mut self, index: usize, len: usize, align: usize) -> Result<(), FreeError> {
        self.check(index, len, align)?;
        let Some(number) = self.page(index) else {
            return self.behind.free(index, M::shape(self.rounded(len, align), align)).map(drop);
        };
        let objects = self.starts(self.pages[number].class).len();
        let page = &mut self.pages[number];
        let (start, class) = (page.start, page.class);
        if page.live.len() == objects {
            self.lists[class].push_front(start);
        }
        page.live.remove(&(index - start));
        if page.live.is_empty() {
            self.pages.swap_remove(number);
            self.lists[class].retain(|&other| other != start);
            self.behind.free(start, M::shape(PAGE, PAGE))?;
        }
        Ok(())
    }

    fn resize(&mut self, index: usize, len: usize, to: usize, align: usize) -> bool {
        match (self.class(len, align), self.class(to, align)) {
            (None, None) => {
                self.page(index).is_none()
                    && self.behind.resize(index, M::shape(len, align), M::shape(to, align)).is_some()
            }
            (old, new) => old == new && self.check(index, len, align).is_ok(),
        }
    }

    fn largest(&self) -> usize {
        let large = self.behind.largest();
        if large > *self.objects.last().unwrap() {
            return large;
        }
        let serves = |class: &usize| {
            let object = self.objects[*class];
            !self.lists[*class].is_empty() || object <= large && M::granted(M::shape(object, 1)) == object
        };
        (0..self.objects.len()).rev().find(serves).map_or(0, |class| self.objects[class])
    }
}

const AROUND: u32 = 0xdead_beef;

/// Random requests, frees of what is live and of what is not, and resizing, with the same results on both sides.
fn run<M: RegionMap, C: Classes>(place: usize, len: usize, seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let count = SlabMap::<M, C>::words(place, len);
    let mut words = vec![AROUND; count + 2];
    let mut map = SlabMap::<M, C>::EMPTY;
    assert_eq!(map.allocate(SlabMap::<M, C>::shape(1, 1)), None);
    assert_eq!((map.allocate(SlabMap::<M, C>::shape(100, 1)), map.largest()), (None, 0));
    // SAFETY: the words are as many as the map takes.
    unsafe { map.open(words.as_mut_ptr().add(1), place, len) };
    let mut model = Model::<M>::new(place, len, C::SIZES);
    let mut live: Vec<(usize, usize, usize)> = Vec::new();
    let request = |random: &mut fastrand::Rng| match random.u8(..10) {
        0 => (random.usize(1..200), 1 << random.u8(..7)),
        1 => (random.usize(1..70), 1 << random.u8(..3)),
        _ => (random.usize(1..20), 1),
    };
    for step in 0..2000 {
        // Phases in which the region fills and empties.
        let fills = step / 250 % 2 == 0;
        match random.u8(..10) {
            0..=5 if fills || random.u8(..4) == 0 => {
                let (size, align) = request(&mut random);
                let got = map.allocate(SlabMap::<M, C>::shape(size, align));
                assert_eq!(got, model.allocate(size, align), "{size} {align}");
                if let Some(index) = got {
                    let taken = SlabMap::<M, C>::granted(SlabMap::<M, C>::shape(size, align));
                    let apart = |&(other, size, align): &(usize, usize, usize)| {
                        index + taken <= other
                            || other + SlabMap::<M, C>::granted(SlabMap::<M, C>::shape(size, align)) <= index
                    };
                    assert!(live.iter().all(apart) && index + taken <= len && (place + index) % align == 0);
                    live.push((index, size, align));
                }
            }
            6 => {
                // Most of them are no live blocks.
                let (size, align) = request(&mut random);
                let index = random.usize(..len + 3);
                let expected = model.check(index, size, align);
                assert_eq!(
                    map.check(index, SlabMap::<M, C>::shape(size, align)),
                    expected,
                    "{index} {size} {align}"
                );
                if live.contains(&(index, size, align)) || expected.is_err() {
                    assert_eq!(
                        map.free(index, SlabMap::<M, C>::shape(size, align)).map(drop),
                        model.free(index, size, align)
                    );
                    live.retain(|block| block.0 != index || expected.is_err());
                }
            }
            7 if !live.is_empty() => {
                let number = random.usize(..live.len());
                let (index, size, align) = live[number];
                let to = request(&mut random).0;
                let resized = map
                    .resize(index, SlabMap::<M, C>::shape(size, align), SlabMap::<M, C>::shape(to, align))
                    .is_some();
                assert_eq!(resized, model.resize(index, size, to, align));
                if resized {
                    live[number].1 = to;
                }
            }
            _ if !live.is_empty() => {
                let (index, size, align) = live.swap_remove(random.usize(..live.len()));
                assert_eq!(map.check(index, SlabMap::<M, C>::shape(size, align)), Ok(()));
                assert!(map.free(index, SlabMap::<M, C>::shape(size, align)).is_ok());
                assert_eq!(model.free(index, size, align), Ok(()));
                assert!(map.free(index, SlabMap::<M, C>::shape(size, align)).is_err());
            }
            _ => {}
        }
        assert_eq!((map.largest(), map.is_free()), (model.largest(), live.is_empty()));
        if map.largest() > 0 && random.u8(..20) == 0 {
            let largest = map.largest();
            let index = map.allocate(SlabMap::<M, C>::shape(largest, 1));
            assert!(index.is_some(), "{largest}");
            assert!(map.free(index.unwrap(), SlabMap::<M, C>::shape(largest, 1)).is_ok());
            assert_eq!(model.allocate(largest, 1), index);
            assert_eq!(model.free(index.unwrap(), largest, 1), Ok(()));
        }
        let mut at = 0;
        map.walk(&mut |index, size, _| {
            assert_eq!(index, at);
            at += size;
            true
        });
        assert_eq!(at, len);
    }
    for (index, size, align) in live {
        assert!(map.free(index, SlabMap::<M, C>::shape(size, align)).is_ok());
    }
    assert!(map.is_free());
    assert!(words[0] == AROUND && words[count + 1] == AROUND, "a word beside the map");
}

#[test]
fn a_slab_does_as_its_rules_say() {
    for seed in 0..12 {
        for (place, len) in [(0, 64), (64, 256), (5, 300), (63, 1000), (1000, 40), (130, 4000)] {
            run::<Plain<false>, DefaultClasses>(place, len, seed);
            run::<Plain<true>, DefaultClasses>(place, len, seed);
            run::<Plain<false>, Few>(place, len, seed);
            run::<Plain<true>, Few>(place, len, seed);
        }
    }
}

/// Lengthens regions, in other memory and within the same, with objects and blocks in them.
#[test]
fn a_slab_keeps_its_objects_when_the_region_grows() {
    type Map = SlabMap<Plain<false>, DefaultClasses>;
    let mut random = fastrand::Rng::with_seed(1);
    for place in [0, 5, 63] {
        for elsewhere in [false, true] {
            let mut len = 100;
            let mut words = vec![AROUND; 4000];
            let mut other = words.clone();
            let mut map = Map::EMPTY;
            // SAFETY: there are more words than the map takes.
            unsafe { map.open(words.as_mut_ptr(), place, len) };
            let mut live = Vec::new();
            while len < 1000 {
                while let Some(index) = map.allocate(Map::shape(2 + len % 20, 1)) {
                    live.push((index, 2 + len % 20));
                }
                random.shuffle(&mut live);
                for (index, size) in live.split_off(live.len() / 2) {
                    assert!(map.free(index, Map::shape(size, 1)).is_ok());
                }
                len += random.usize(1..150);
                if elsewhere {
                    std::mem::swap(&mut words, &mut other);
                }
                // SAFETY: there are more words than the map takes; in the same memory they move farther behind.
                unsafe { map.extend(words.as_mut_ptr().add(len), len) };
                for &(index, size) in &live {
                    assert_eq!(map.check(index, Map::shape(size, 1)), Ok(()), "{index} {size}");
                }
            }
            for (index, size) in live {
                assert!(map.free(index, Map::shape(size, 1)).is_ok());
                assert!(map.free(index, Map::shape(size, 1)).is_err());
            }
            assert!(map.is_free() && map.largest() == len);
        }
    }
}
