//! The map of [`Buddy`](allotment::Buddy) against a list of its blocks.

use allotment::FreeError;
use allotment::placement::{BuddyMap, RegionMap};

/// Live blocks by absolute granules: first one and order.
struct Model {
    place: usize,
    len: usize,
    live: Vec<(usize, u32)>,
}

impl Model {
    fn end(&self) -> usize {
        self.place + self.len
    }

    fn is_free(&self, at: usize, order: u32) -> bool {
        let end = at + (1 << order);
        at >= self.place
            && end <= self.end()
            && self.live.iter().all(|&(start, order)| end <= start || start + (1 << order) <= at)
    }

    /// Returns the order of the free block that begins at `at`.
    fn free_at(&self, at: usize) -> Option<u32> {
        let mut order =
            (0..40).take_while(|&order| at % (1 << order) == 0 && self.is_free(at, order)).last()?;
        let parent = at >> (order + 1) << (order + 1);
        if self.is_free(parent, order + 1) {
            order = 99;
        }
        (order != 99).then_some(order)
    }

    /// Returns all free blocks, in order of address.
    fn free(&self) -> Vec<(usize, u32)> {
        let mut blocks = Vec::new();
        let mut at = self.place;
        while at < self.end() {
            if let Some(&(_, order)) = self.live.iter().find(|&&(start, _)| start == at) {
                at += 1 << order;
                continue;
            }
            let order = self.free_at(at).unwrap();
            blocks.push((at, order));
            at += 1 << order;
        }
        blocks
    }

    /// Returns what a free of `len` granules at `index` should say.
    fn check(&self, index: usize, len: usize, align: usize) -> Result<(), FreeError> {
        let size = len.max(align).next_power_of_two();
        let at = self.place.wrapping_add(index);
        if self.live.contains(&(at, size.trailing_zeros())) {
            return Ok(());
        }
        if self.is_free(at, 0) { Err(FreeError::AlreadyFree) } else { Err(FreeError::NotABlock) }
    }
}

/// A map and its model.
struct Subject {
    map: BuddyMap,
    memory: Vec<u32>,
    /// Where in the memory the map's words begin.
    start: usize,
    model: Model,
}

/// What is in memory that is not the map's.
const AROUND: u32 = 0xdead_beef;

impl Subject {
    fn new(place: usize, len: usize) -> Self {
        let mut subject = Self {
            map: BuddyMap::EMPTY,
            memory: vec![AROUND; 4096],
            start: 1,
            model: Model { place, len, live: Vec::new() },
        };
        // SAFETY: the memory is larger than the map.
        unsafe { subject.map.open(subject.memory.as_mut_ptr().add(1), place, len) };
        subject
    }

    fn compare(&self) {
        let model = &self.model;
        let behind = self.start + BuddyMap::words(model.place, model.len);
        assert!(self.memory[0] == AROUND && self.memory[behind] == AROUND, "a word beside the map");
        let mut expected: Vec<_> = model.free().into_iter().map(|(at, order)| (at, order, true)).collect();
        assert_eq!(self.map.is_free(), model.live.is_empty());
        let largest = expected.iter().map(|&(_, order, _)| 1 << order).max().unwrap_or(0);
        assert_eq!(self.map.largest(), largest);
        expected.extend(model.live.iter().map(|&(at, order)| (at, order, false)));
        expected.sort_unstable();
        let mut seen = Vec::new();
        self.map.walk(&mut |index, len, free| {
            seen.push((model.place + index, len.ilog2(), free));
            true
        });
        assert_eq!(seen, expected, "{} + {}", model.place, model.len);
    }

    fn allocate(&mut self, len: usize, align: usize) -> Option<usize> {
        let order = len.max(align).next_power_of_two().ilog2();
        let free = self.model.free();
        let best = free.into_iter().filter(|block| block.1 >= order).min_by_key(|&(at, order)| (order, at));
        let got = self.map.allocate(BuddyMap::shape(len, align));
        assert_eq!(got.map(|index| self.model.place + index), best.map(|(at, _)| at), "{len} {align}");
        if let Some((at, _)) = best {
            assert_eq!(BuddyMap::granted(BuddyMap::shape(len, align)), 1 << order);
            self.model.live.push((at, order));
        }
        got
    }

    fn free(&mut self, index: usize, len: usize, align: usize) {
        let expected = self.model.check(index, len, align);
        assert_eq!(self.map.check(index, BuddyMap::shape(len, align)), expected, "{index} {len} {align}");
        assert_eq!(
            self.map.free(index, BuddyMap::shape(len, align)).is_ok(),
            expected.is_ok(),
            "{index} {len} {align}"
        );
        if expected.is_ok() {
            self.model.live.retain(|block| block.0 != self.model.place + index);
        }
    }

    fn resize(&mut self, index: usize, len: usize, to: usize, align: usize) {
        let at = self.model.place + index;
        let size = to.max(align).next_power_of_two();
        let mut fits = false;
        if self.model.check(index, len, align).is_ok() {
            let number = self.model.live.iter().position(|block| block.0 == at).unwrap();
            let old = self.model.live.swap_remove(number);
            fits = at % size == 0 && self.model.is_free(at, size.ilog2());
            // A block that becomes shorter may move, if a free block is shorter than it and fits.
            self.model.live.push(old);
            let shorter = self.model.free().iter().any(|block| (size.ilog2()..old.1).contains(&block.1));
            self.model.live.pop();
            assert_eq!(
                self.map.has_shorter(BuddyMap::shape(len, align), BuddyMap::shape(to, align)),
                shorter,
                "{index} {len} {to} {align}"
            );
            self.model.live.push(if fits { (at, size.ilog2()) } else { old });
        }
        assert_eq!(
            self.map.resize(index, BuddyMap::shape(len, align), BuddyMap::shape(to, align)),
            fits.then_some(size),
            "{index} {len} {to} {align}"
        );
    }

    /// Lengthens the region, with the map in other memory, or farther behind in the same.
    fn extend(&mut self, len: usize, gap: Option<usize>) {
        self.start = gap.map_or(1, |gap| self.start + gap);
        let mut memory = vec![AROUND; 4096];
        let target = if gap.is_some() { &mut self.memory } else { &mut memory };
        // SAFETY: both memories are larger than the map.
        unsafe { self.map.extend(target.as_mut_ptr().add(self.start), len) };
        if gap.is_none() {
            self.memory = memory;
        }
        self.model.len = len;
    }

    fn step(&mut self, random: &mut fastrand::Rng, longest: usize) {
        let (len, align) = (random.usize(1..=longest), 1 << random.u32(0..=longest.ilog2() / 2));
        match random.u32(0..100) {
            0..45 => {
                self.allocate(len, align);
            }
            45..75 if !self.model.live.is_empty() => {
                let (at, order) = self.model.live[random.usize(0..self.model.live.len())];
                self.free(at - self.model.place, 1 << order, 1);
            }
            75..90 if !self.model.live.is_empty() => {
                let (at, order) = self.model.live[random.usize(0..self.model.live.len())];
                self.resize(at - self.model.place, 1 << order, len, 1);
            }
            _ => self.free(random.usize(0..self.model.len), len, align),
        }
    }
}

/// Regions of all places and lengths are used whole, and every free is answered rightly, in whatever state.
#[test]
fn small_worlds() {
    for place in 0..33 {
        for len in 1..=33 {
            let mut subject = Subject::new(place, len);
            subject.compare();
            let mut random = fastrand::Rng::with_seed((place * 64 + len) as u64);
            for _ in 0..12 {
                subject.step(&mut random, len);
                subject.compare();
                for index in 0..=len {
                    for order in 0..7 {
                        let expected = subject.model.check(index, 1 << order, 1);
                        assert_eq!(subject.map.check(index, BuddyMap::shape(1 << order, 1)), expected);
                    }
                }
            }
        }
    }
}

/// Whatever numbers a free has, it is answered.
#[test]
fn any_numbers() {
    let mut subject = Subject::new(5, 100);
    let block = subject.allocate(3, 1).unwrap();
    const FAR: usize = 1 << (usize::BITS - 4);
    for index in [0, block, 99, 100, usize::MAX, usize::MAX - 5, FAR, usize::MAX / 2 + 1] {
        for len in [1, 3, 100, 101, usize::MAX, usize::MAX / 2 + 2, FAR] {
            for align in [1, 8, FAR, usize::MAX / 2 + 1] {
                let fits = index == block && len == 3 && align == 1;
                assert_eq!(subject.map.check(index, BuddyMap::shape(len, align)).is_ok(), fits);
            }
        }
        assert_eq!(subject.map.resize(index, BuddyMap::shape(1, 1), BuddyMap::shape(2, 1)), None);
    }
    assert_eq!(subject.map.resize(block, BuddyMap::shape(3, 1), BuddyMap::shape(usize::MAX, 1)), None);
    assert_eq!(subject.map.allocate(BuddyMap::shape(usize::MAX, 1)), None);
    assert_eq!(subject.map.allocate(BuddyMap::shape(1, usize::MAX / 2 + 1)), None);
}

/// An empty map refuses everything.
#[test]
fn no_region() {
    let mut map = BuddyMap::EMPTY;
    assert_eq!((map.allocate(BuddyMap::shape(1, 1)), map.largest(), map.is_free()), (None, 0, false));
    assert!(
        map.check(0, BuddyMap::shape(1, 1)).is_err()
            && map.free(0, BuddyMap::shape(1, 1)).is_err()
            && map.resize(0, BuddyMap::shape(1, 1), BuddyMap::shape(1, 1)).is_none()
    );
    map.walk(&mut |_, _, _| panic!("there is no block"));
}

/// Returns a number of up to `bits` bits, more often a small one.
fn short(random: &mut fastrand::Rng, bits: u32) -> usize {
    let most = 1 << random.u32(1..bits.min(usize::BITS - 2));
    random.usize(1..=most)
}

#[test]
fn random_worlds() {
    let mut random = fastrand::Rng::with_seed(37);
    for round in 0..if cfg!(miri) { 3 } else { 150 } {
        let place = short(&mut random, 40);
        let mut subject = Subject::new(place, short(&mut random, 12));
        for step in 0..400 {
            let longest = if step % 100 < 70 { subject.model.len.div_ceil(16) } else { subject.model.len };
            subject.step(&mut random, longest);
            if step % 20 == 0 {
                subject.compare();
            }
            if step % 50 == 49 && round % 2 == 0 {
                let len = subject.model.len + short(&mut random, 11);
                let gap = random.usize(0..40);
                subject.extend(len, (random.bool() && subject.start < 400).then_some(gap));
                subject.compare();
            }
        }
        for (at, order) in subject.model.live.clone() {
            subject.free(at - place, 1 << order, 1);
        }
        subject.compare();
    }
}

/// Three levels of summary.
#[test]
fn large_worlds() {
    let (place, len) = (12_345_679, 3 << 20);
    let mut words = vec![0; BuddyMap::words(place, len)];
    assert!(words.len() < len / 16 + len / 400, "two bits for each granule, and their summary");
    let mut map = BuddyMap::EMPTY;
    // SAFETY: the words are as many as the map takes.
    unsafe { map.open(words.as_mut_ptr(), place, len) };
    let blocks: Vec<_> = std::iter::from_fn(|| map.allocate(BuddyMap::shape(1, 1))).collect();
    assert_eq!(blocks.len(), len);
    for &index in blocks.iter().rev().step_by(70_001) {
        map.free(index, BuddyMap::shape(1, 1)).unwrap();
        assert_eq!(map.allocate(BuddyMap::shape(1, 1)), Some(index));
    }
    for index in [3 << 19, 5, len - 1] {
        map.free(index, BuddyMap::shape(1, 1)).unwrap();
        assert_eq!(map.allocate(BuddyMap::shape(1, 1)), Some(index));
    }
    for index in blocks {
        map.free(index, BuddyMap::shape(1, 1)).unwrap();
    }
    assert!(map.is_free());
}
