//! The maps of `FirstFit` and `BestFit` against a model that looks at every granule.

use allotment::FreeError;
use allotment::placement::{BumpMap, FirstFitMap, RegionMap};
use fastrand::Rng;

/// Which granules are free, and the live blocks, as first granule, length and alignment.
#[derive(Clone)]
struct Model {
    free: Vec<bool>,
    live: Vec<(usize, usize, usize)>,
    place: usize,
}

impl Model {
    /// The free runs in order.
    fn runs(&self) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut start = None;
        for (index, &free) in self.free.iter().chain([&false]).enumerate() {
            match (free, start) {
                (true, None) => start = Some(index),
                (false, Some(first)) => {
                    runs.push((first, index - first));
                    start = None;
                }
                _ => {}
            }
        }
        runs
    }

    fn set(&mut self, start: usize, len: usize, free: bool) {
        for granule in &mut self.free[start..start + len] {
            assert_ne!(*granule, free);
            *granule = free;
        }
    }

    fn aligned(&self, start: usize, align: usize) -> usize {
        (self.place + start).next_multiple_of(align) - self.place
    }
}

/// A map's promise: where it allocates a block.
trait Fit: RegionMap {
    /// Chooses one of the free runs of at least `len` granules.
    fn choose(runs: &[(usize, usize)], len: usize) -> Option<(usize, usize)>;
    const CHECKED: bool;
}

impl<N, const CHECKED: bool> Fit for FirstFitMap<N, CHECKED>
where
    Self: RegionMap,
{
    fn choose(runs: &[(usize, usize)], len: usize) -> Option<(usize, usize)> {
        runs.iter().copied().find(|run| run.1 >= len)
    }
    const CHECKED: bool = CHECKED;
}

/// A map, its memory, and the model.
struct World<M> {
    map: M,
    memory: Vec<u32>,
    /// Where the map's words are.
    at: usize,
    model: Model,
}

/// Words of a map's memory.
const ROOM: usize = 2048;

/// What lies behind a map's words.
const GUARD: u32 = 0x5a5a_a5a5;

impl<M: Fit> World<M> {
    fn new(place: usize, len: usize) -> Self {
        let mut memory = vec![GUARD; ROOM];
        let mut map = M::EMPTY;
        assert_eq!((map.largest(), map.allocate(M::shape(1, 1))), (0, None));
        // SAFETY: the words between the guards are the map's alone.
        unsafe { map.open(memory.as_mut_ptr().add(1), place, len) };
        Self { map, memory, at: 1, model: Model { free: vec![true; len], live: Vec::new(), place } }
    }

    fn allocate(&mut self, len: usize, align: usize) {
        let runs = self.model.runs();
        let sure = M::choose(&runs, len + align - 1);
        let run = sure.or_else(|| M::choose(&runs, len));
        let place = run.map(|run| (self.model.aligned(run.0, align), run));
        let expected = place.filter(|&(start, run)| start + len <= run.0 + run.1).map(|(start, _)| start);
        assert_eq!(self.map.allocate(M::shape(len, align)), expected, "{len} granules, {align}: {runs:?}");
        if let Some(start) = expected {
            self.model.set(start, len, false);
            self.model.live.push((start, len, align));
        }
    }

    fn free(&mut self, number: usize) {
        let (start, len, align) = self.model.live.swap_remove(number);
        assert_eq!(self.map.check(start, M::shape(len, align)), Ok(()));
        assert_eq!(self.map.free(start, M::shape(len, align)), Ok(len));
        self.model.set(start, len, true);
        if M::CHECKED {
            assert_eq!(self.map.check(start, M::shape(len, align)), Err(FreeError::AlreadyFree));
            assert!(self.map.free(start, M::shape(len, align)).is_err());
        }
    }

    fn resize(&mut self, number: usize, to: usize) {
        let (start, len, align) = self.model.live[number];
        let end = start + len;
        let fits = to <= len
            || start + to <= self.model.free.len()
                && self.model.free[end..start + to].iter().all(|&free| free);
        assert_eq!(
            self.map.resize(start, M::shape(len, align), M::shape(to, align)),
            fits.then_some(to),
            "from {len} to {to}"
        );
        if fits {
            self.model.live[number].1 = to;
            self.model.set(end.min(start + to), to.abs_diff(len), to < len);
        }
    }

    /// Lengthens the region. The words move to other memory, or else so many words farther behind in the same.
    fn extend(&mut self, more: usize, shift: Option<usize>) {
        let len = self.model.free.len() + more;
        let words = M::words(self.model.place, len);
        // Old memory is there until the words have moved.
        let mut other = Vec::new();
        self.at = match shift {
            Some(shift) if self.at + shift + words < ROOM => self.at + shift,
            _ => {
                other = core::mem::replace(&mut self.memory, vec![GUARD; ROOM]);
                1
            }
        };
        // SAFETY: the words are the map's alone, and the old ones are in front of them or elsewhere.
        unsafe { self.map.extend(self.memory.as_mut_ptr().add(self.at), len) };
        drop(other);
        self.model.free.resize(len, true);
    }

    fn check(&self) {
        let runs = self.model.runs();
        let longest = runs.iter().map(|run| run.1).max().unwrap_or(0);
        assert_eq!(self.map.largest(), longest);
        assert_eq!(self.map.is_free(), runs == [(0, self.model.free.len())]);
        let mut walked = Vec::new();
        let mut at = 0;
        self.map.walk(&mut |start, len, free| {
            assert_eq!(start, at);
            assert!(len > 0);
            at += len;
            if free {
                walked.push((start, len));
            }
            true
        });
        assert_eq!(at, self.model.free.len());
        assert_eq!(walked, runs);
        assert_eq!(self.memory[self.at + M::words(self.model.place, self.model.free.len())], GUARD);
    }

    /// Asks about every block that there could be.
    fn check_blocks(&self) {
        let len = self.model.free.len();
        for start in 0..len + 2 {
            for size in 1..len + 3 {
                let live = self.model.live.iter().any(|block| (block.0, block.1) == (start, size));
                let expected = if start + size > len {
                    Err(FreeError::Foreign)
                } else if live || !M::CHECKED {
                    Ok(())
                } else if self.model.free[start] {
                    Err(FreeError::AlreadyFree)
                } else {
                    Err(FreeError::NotABlock)
                };
                assert_eq!(self.map.check(start, M::shape(size, 1)), expected, "{size} granules at {start}");
            }
        }
        for (start, size) in [(usize::MAX, 1), (0, usize::MAX), (1, usize::MAX), (usize::MAX, usize::MAX)] {
            assert_eq!(self.map.check(start, M::shape(size, 1)), Err(FreeError::Foreign));
        }
    }
}

/// Programs at random: many short blocks, few long ones.
fn random_worlds<M: Fit>() {
    for seed in 0..60 {
        let mut random = Rng::with_seed(seed);
        let longest = 1 + random.usize(0..200);
        let mut world = World::<M>::new(random.usize(0..64), 1 + random.usize(0..1500));
        for step in 0..400 {
            let size = |random: &mut Rng| {
                let most = if random.usize(0..8) == 0 { longest } else { longest.min(12) };
                1 + random.usize(0..most)
            };
            match random.usize(0..20) {
                0..9 => {
                    let align = if random.usize(0..4) == 0 { 1 << random.usize(0..6) } else { 1 };
                    world.allocate(size(&mut random), align);
                }
                9..15 if !world.model.live.is_empty() => world.free(random.usize(0..world.model.live.len())),
                15..19 if !world.model.live.is_empty() => {
                    let number = random.usize(0..world.model.live.len());
                    world.resize(number, size(&mut random));
                }
                19 if random.usize(0..20) == 0 => {
                    let shift = if random.usize(0..2) == 0 { None } else { Some(random.usize(0..40)) };
                    world.extend(1 + random.usize(0..300), shift);
                }
                _ => {}
            }
            world.check();
            if step % 100 == 0 && world.model.free.len() < 300 {
                world.check_blocks();
            }
        }
        while !world.model.live.is_empty() {
            world.free(random.usize(0..world.model.live.len()));
            world.check();
        }
        assert!(world.map.is_free());
    }
}

/// Every program of a few steps in regions of a few granules.
fn small_worlds<M: Fit>(steps: u32) {
    for len in 1..=6 {
        // What can be done: allocate 1 to 3 granules, the third way aligned, free one of three blocks, resize one.
        const WAYS: u32 = 9;
        for program in 0..WAYS.pow(steps) {
            let mut world = World::<M>::new(1, len);
            let mut left = program;
            for _ in 0..steps {
                let way = (left % WAYS) as usize;
                left /= WAYS;
                let live = world.model.live.len();
                match way {
                    0..3 => world.allocate(way + 1, 1),
                    3 => world.allocate(1, 2),
                    4..7 if way - 4 < live => world.free(way - 4),
                    7..9 if live > 0 => world.resize(live - 1, 2 * (way - 7) + 1),
                    _ => break,
                }
            }
            world.check();
            world.check_blocks();
        }
    }
}

/// Regions of all short lengths, in which runs cross words at every place.
fn every_length<M: Fit>() {
    for len in 1..300 {
        let mut world = World::<M>::new(len % 8, len);
        world.check();
        for first in [1, len / 2, len - 1] {
            for size in [first, 1, len] {
                if size > 0 {
                    world.allocate(size, 1);
                    world.check();
                }
            }
            while let Some(number) = world.model.live.len().checked_sub(1) {
                world.free(number / 2);
                world.check();
            }
        }
    }
}

macro_rules! maps {
    ($($name:ident: $map:ty;)*) => {$(
        mod $name {
            use super::*;

            #[test]
            fn random_programs_get_the_blocks_of_the_model() {
                random_worlds::<$map>();
            }

            #[test]
            fn every_short_program_gets_the_blocks_of_the_model() {
                small_worlds::<$map>(if cfg!(miri) { 2 } else { 4 });
            }

            #[test]
            fn regions_of_every_length_are_used_whole() {
                every_length::<$map>();
            }
        }
    )*};
}

maps! {
    first_fit_narrow: FirstFitMap<u16, true>;
    first_fit_wide: FirstFitMap<u32, true>;
    first_fit_unchecked: FirstFitMap<u16, false>;
}

/// Lengths and alignments that no region has, and whose sums with others wrap around.
fn huge_requests<M: RegionMap>() {
    const HUGE: [usize; 4] = [usize::MAX, usize::MAX - 2, usize::MAX / 2 + 2, 1 << (usize::BITS - 2)];
    let mut words = vec![0; M::words(5, 100)];
    let mut map = M::EMPTY;
    // SAFETY: the words are enough, and stay until the end.
    unsafe { map.open(words.as_mut_ptr(), 5, 100) };
    let block = map.allocate(M::shape(3, 1)).unwrap();
    for huge in HUGE {
        for align in [1, 2, 1 << (usize::BITS - 1)] {
            assert_eq!(map.allocate(M::shape(huge, align)), None);
        }
        assert_eq!(map.allocate(M::shape(1, 1 << (usize::BITS - 1))), None);
        assert_eq!(map.resize(block, M::shape(3, 1), M::shape(huge, 1)), None);
        for index in [0, block, 99, 100, usize::MAX] {
            assert!(map.check(index, M::shape(huge, 1)).is_err());
            assert!(map.free(index, M::shape(huge, 1)).is_err());
        }
        assert!(map.free(usize::MAX, M::shape(3, 1)).is_err());
    }
    assert_eq!(map.free(block, M::shape(3, 1)), Ok(3));
    assert!(map.is_free());
}

#[test]
fn huge_requests_are_refused() {
    huge_requests::<FirstFitMap>();
    huge_requests::<FirstFitMap<u32, false>>();
    huge_requests::<BumpMap>();
}
