//! Plays histories of drawn episodes on a heap.

use std::alloc::Layout;
use std::ops::Range;

use indicatif::ProgressBar;

use super::model::{Action, Model, Place, Step};
use crate::replay::arena::Arena;
use crate::replay::subject::{Make, Subject};

/// The parameters for drawing histories.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Number of episodes in a history.
    pub length: u64,
    /// Largest number of episodes in all histories together.
    pub episodes: u64,
    /// Number of failures after which drawing stops.
    pub failures: u64,
    pub seed: u64,
    /// Mean number of episodes that follow each other as recorded.
    pub run: f64,
}

/// A request that was not satisfied, and the reason.
#[derive(Clone, Copy, Debug, serde::Serialize)]
pub struct Refused {
    /// Number of the episode in its history, from 0.
    pub episode: u64,
    pub size: usize,
    pub align: usize,
    /// Live requested bytes.
    pub live: usize,
    /// Free bytes, and bytes of the largest free block, if the heap knows them.
    pub free: Option<usize>,
    pub largest: Option<usize>,
    /// The blocks in its way, if any.
    pub way: Option<Way>,
}

/// The live blocks in the way of a request, in the stretch of the arena where they have the fewest bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Way {
    pub bytes: usize,
    /// Number of these blocks that the failed episode allocated, that an earlier episode allocated, that belong to a chain of blocks that
    /// replace each other, and that are allocated once in a history, such as at start-up.
    pub episode: usize,
    pub earlier: usize,
    pub replacing: usize,
    pub once: usize,
}

impl Way {
    /// Returns the way with the fewest bytes for a request in an arena, given the blocks sorted by address. O(blocks).
    fn least(
        arena: Range<usize>,
        size: usize,
        align: usize,
        blocks: &[(Range<usize>, Owner)],
    ) -> Option<Self> {
        // The cheapest stretch begins where a block ends: further down it would meet no fewer blocks.
        let begins = std::iter::once(arena.start).chain(blocks.iter().map(|(block, _)| block.end));
        let (mut best, mut end, mut bytes) = (None, 0, 0);
        for (first, begin) in begins.enumerate() {
            let begin = begin.next_multiple_of(align);
            let Some(stop) = begin.checked_add(size).filter(|&stop| stop <= arena.end) else { break };
            while let Some((block, _)) = blocks.get(end).filter(|(block, _)| block.start < stop) {
                bytes += block.len();
                end += 1;
            }
            if first < end && best.as_ref().is_none_or(|&(least, _)| bytes < least) {
                best = Some((bytes, first..end));
            }
            if first < end {
                bytes -= blocks[first].0.len();
            }
        }
        let (bytes, range) = best?;
        let count = |owner| blocks[range.clone()].iter().filter(|(_, other)| *other == owner).count();
        Some(Self {
            bytes,
            episode: count(Owner::Episode),
            earlier: count(Owner::Earlier),
            replacing: count(Owner::Replacing),
            once: count(Owner::Once),
        })
    }

    /// Returns the number of blocks.
    pub fn blocks(&self) -> usize {
        self.episode + self.earlier + self.replacing + self.once
    }
}

/// The part of a history to which a block belongs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Owner {
    Episode,
    Earlier,
    Replacing,
    Once,
}

/// Histories in one arena.
#[derive(Clone, Debug, Default, serde::Serialize)]
pub struct Point {
    pub arena: usize,
    pub failures: u64,
    pub episodes: u64,
    pub histories: u64,
    pub events: u64,
    /// Peak of the live requested bytes.
    pub peak: usize,
    /// The failure with the most free bytes.
    pub refused: Option<Refused>,
}

#[derive(Clone, Copy)]
struct Block {
    start: *mut u8,
    layout: Layout,
}

const NONE: Block = Block { start: std::ptr::null_mut(), layout: Layout::new::<()>() };

/// The next step of a carried block.
#[derive(Clone, Copy)]
struct Due {
    at: f32,
    block: u32,
    size: Option<usize>,
}

struct Player<'a, S: ?Sized> {
    subject: &'a mut S,
    model: &'a Model,
    locals: Vec<Block>,
    /// The blocks of each cell: the newest, and the block that it replaces.
    cells: Vec<[Block; 2]>,
    /// Whether each cell has a block.
    alive: Vec<bool>,
    fixed: Vec<Block>,
    carried: Vec<Block>,
    unused: Vec<u32>,
    /// The indices in `carried` of the blocks that this episode carries to later ones.
    handles: Vec<u32>,
    agenda: Vec<Vec<Due>>,
    now: Vec<Due>,
    /// Index of the next step that happens once.
    once: usize,
    episode: u64,
    live: usize,
    peak: usize,
    events: u64,
}

/// The size and alignment of a request that was not satisfied.
struct Failed(usize, usize);

impl<'a, S: Subject + ?Sized> Player<'a, S> {
    fn new(subject: &'a mut S, model: &'a Model) -> Self {
        Self {
            subject,
            model,
            locals: vec![NONE; model.locals],
            cells: vec![[NONE; 2]; model.cells],
            alive: vec![false; model.cells],
            fixed: vec![NONE; model.fixed],
            carried: Vec::new(),
            unused: Vec::new(),
            handles: vec![0; model.carried.len()],
            agenda: vec![Vec::new(); model.longest + 2],
            now: Vec::new(),
            once: 0,
            episode: 0,
            live: 0,
            peak: 0,
            events: 0,
        }
    }

    fn allocate(&mut self, size: usize, align: u8) -> Result<Block, Failed> {
        self.events += 1;
        let failed = Failed(size, 1 << align);
        let Ok(layout) = Layout::from_size_align(size.max(1), 1 << align) else { return Err(failed) };
        // SAFETY: the size is not zero.
        let start = unsafe { self.subject.alloc(layout) };
        if start.is_null() {
            return Err(failed);
        }
        self.live += layout.size();
        self.peak = self.peak.max(self.live);
        Ok(Block { start, layout })
    }

    fn free(&mut self, block: Block) {
        if !block.start.is_null() {
            self.events += 1;
            self.live -= block.layout.size();
            // SAFETY: the block is live and has this layout: every free clears its slot.
            unsafe { self.subject.dealloc(block.start, block.layout) }
        }
    }

    fn resize(&mut self, block: Block, size: usize) -> Result<Block, Failed> {
        if block.start.is_null() {
            return Ok(block);
        }
        self.events += 1;
        let size = size.max(1);
        let failed = Failed(size, block.layout.align());
        let Ok(layout) = Layout::from_size_align(size, block.layout.align()) else { return Err(failed) };
        // SAFETY: the block is live and has this layout, and the new size makes a valid one.
        let start = unsafe { self.subject.realloc(block.start, block.layout, size) };
        if start.is_null() {
            return Err(failed);
        }
        self.live = self.live - block.layout.size() + size;
        self.peak = self.peak.max(self.live);
        Ok(Block { start, layout })
    }

    fn slot(&mut self, place: Place) -> &mut Block {
        match place {
            Place::Local(index) => &mut self.locals[index as usize],
            Place::Cell(index) => &mut self.cells[index as usize][0],
            Place::Fixed(index) => &mut self.fixed[index as usize],
            Place::Carried(index) => &mut self.carried[self.handles[index as usize] as usize],
        }
    }

    /// Takes one step. The steps with `once` fill the cells; until then, the steps of episodes on a cell are skipped.
    #[inline]
    fn step(&mut self, step: Step, once: bool) -> Result<(), Failed> {
        let Step { place, action } = step;
        match (place, action) {
            (Place::Cell(cell), _) if !once && !self.alive[cell as usize] => Ok(()),
            (Place::Carried(index), Action::Allocate(size, align)) => {
                let block = self.allocate(size, align)?;
                let handle = self.unused.pop().unwrap_or(self.carried.len() as u32);
                match self.carried.get_mut(handle as usize) {
                    Some(slot) => *slot = block,
                    None => self.carried.push(block),
                }
                self.handles[index as usize] = handle;
                for later in &self.model.carried[index as usize] {
                    let ring = self.agenda.len() as u64;
                    let due = (self.episode + u64::from(later.after)) % ring;
                    self.agenda[due as usize].push(Due { at: later.at, block: handle, size: later.size });
                }
                Ok(())
            }
            (Place::Cell(cell), Action::Allocate(size, align)) => {
                let block = self.allocate(size, align)?;
                self.alive[cell as usize] = true;
                let [newest, old] = &mut self.cells[cell as usize];
                (*old, *newest) = (*newest, block);
                Ok(())
            }
            (Place::Cell(cell), Action::Free) => {
                let [newest, old] = &mut self.cells[cell as usize];
                let freed = std::mem::replace(if old.start.is_null() { newest } else { old }, NONE);
                self.free(freed);
                Ok(())
            }
            (Place::Cell(cell), Action::End) => {
                self.alive[cell as usize] = false;
                for block in std::mem::replace(&mut self.cells[cell as usize], [NONE; 2]) {
                    self.free(block);
                }
                Ok(())
            }
            (_, Action::Allocate(size, align)) => {
                let block = self.allocate(size, align)?;
                *self.slot(place) = block;
                Ok(())
            }
            (_, Action::Resize(size)) => {
                let block = *self.slot(place);
                let block = self.resize(block, size)?;
                *self.slot(place) = block;
                Ok(())
            }
            (_, Action::Free | Action::End) => {
                let block = std::mem::replace(self.slot(place), NONE);
                self.free(block);
                Ok(())
            }
        }
    }

    fn due(&mut self, due: Due) -> Result<(), Failed> {
        let block = self.carried[due.block as usize];
        match due.size {
            Some(size) => self.carried[due.block as usize] = self.resize(block, size)?,
            None => {
                self.carried[due.block as usize] = NONE;
                self.free(block);
                self.unused.push(due.block);
            }
        }
        Ok(())
    }

    /// Takes the steps due up to this share of the episode.
    #[inline]
    fn until(&mut self, share: f32, next: &mut usize) -> Result<(), Failed> {
        while let Some(&due) = self.now.get(*next).filter(|due| due.at <= share) {
            *next += 1;
            self.due(due)?;
        }
        while let Some(&(episode, at, step)) = self.model.once.get(self.once) {
            if u64::from(episode) > self.episode || (u64::from(episode) == self.episode && at > share) {
                break;
            }
            self.once += 1;
            self.step(step, true)?;
        }
        Ok(())
    }

    fn play(&mut self, number: usize) -> Result<(), Failed> {
        let ring = self.agenda.len() as u64;
        self.now.clear();
        let slot = &mut self.agenda[(self.episode % ring) as usize];
        std::mem::swap(&mut self.now, slot);
        self.now.sort_by(|a, b| a.at.total_cmp(&b.at));
        let model = self.model;
        let steps = model.episode(number);
        let part = 1.0 / steps.len().max(1) as f32;
        let quiet = self.now.is_empty()
            && model.once.get(self.once).is_none_or(|one| u64::from(one.0) > self.episode);
        let mut next = 0;
        for (index, &step) in steps.iter().enumerate() {
            if !quiet {
                self.until(index as f32 * part, &mut next)?;
            }
            self.step(step, false)?;
        }
        if !quiet {
            self.until(1.0, &mut next)?;
        }
        self.episode += 1;
        Ok(())
    }

    fn start(&mut self) -> Result<(), Failed> {
        let model = self.model;
        model.startup.iter().try_for_each(|&step| self.step(step, true))
    }

    /// Returns the live blocks, sorted by address.
    fn blocks(&self) -> Vec<(Range<usize>, Owner)> {
        let owned = |owner| move |block: &Block| (*block, owner);
        let all = self.locals.iter().map(owned(Owner::Episode));
        let all = all.chain(self.carried.iter().map(owned(Owner::Earlier)));
        let all = all.chain(self.cells.iter().flatten().map(owned(Owner::Replacing)));
        let all = all.chain(self.fixed.iter().map(owned(Owner::Once)));
        let mut all: Vec<_> = all
            .filter(|(block, _)| !block.start.is_null())
            .map(|(block, owner)| (block.start.addr()..block.start.addr() + block.layout.size(), owner))
            .collect();
        all.sort_unstable_by_key(|(block, _)| block.start);
        all
    }
}

/// Plays histories in one arena; the first begins as recorded.
pub fn survey<M: Make>(
    make: &M,
    model: &Model,
    memory: &mut Arena,
    arena: usize,
    plan: &Plan,
    bar: &ProgressBar,
) -> Point {
    let mut point = Point { arena, ..Point::default() };
    while point.episodes < plan.episodes && point.failures < plan.failures {
        let range = memory.range(arena, 0);
        let within = range.start.addr()..range.start.addr() + range.size;
        let length = plan.length.min(plan.episodes - point.episodes);
        let number = point.histories;
        // SAFETY: the memory is borrowed exclusively, and the subject ends before the next one is made.
        let subject = unsafe { make.make(range) };
        let ended =
            subject.map(|mut subject| history(&mut *subject, model, number, length, plan, within, bar));
        point.histories += 1;
        let Some(Ended { episodes, events, peak, refused }) = ended else {
            // The arena is too small even for the heap's state.
            point.failures = plan.failures;
            point.episodes += 1;
            break;
        };
        point.episodes += episodes.max(1);
        point.events += events;
        point.peak = point.peak.max(peak);
        if let Some(refused) = refused {
            point.failures += 1;
            if point.refused.is_none_or(|worst| worst.free < refused.free) {
                point.refused = Some(refused);
            }
        }
    }
    point
}

struct Ended {
    episodes: u64,
    events: u64,
    peak: usize,
    refused: Option<Refused>,
}

fn history<S: Subject + ?Sized>(
    subject: &mut S,
    model: &Model,
    number: u64,
    length: u64,
    plan: &Plan,
    within: Range<usize>,
    bar: &ProgressBar,
) -> Ended {
    let mut random =
        fastrand::Rng::with_seed(plan.seed.wrapping_add(number.wrapping_mul(0x9E37_79B9_7F4A_7C15)));
    let mut player = Player::new(subject, model);
    let recorded = if number == 0 { model.len() as u64 } else { 0 };
    let mut failed = player.start().err();
    let mut next = usize::MAX;
    while failed.is_none() && player.episode < length {
        let jumps = next >= model.len() || random.f64() * plan.run < 1.0;
        let draw = random.usize(..model.len());
        next = match player.episode {
            episode if episode < recorded => episode as usize,
            _ if jumps => draw,
            _ => next,
        };
        failed = player.play(next).err();
        next += 1;
        if player.episode.is_multiple_of(1024) {
            bar.inc(1024);
        }
    }
    let way =
        failed.as_ref().and_then(|&Failed(size, align)| Way::least(within, size, align, &player.blocks()));
    let Player { episode, events, peak, live, .. } = player;
    let refused = failed.map(|Failed(size, align)| {
        let stats = subject.stats();
        let free = stats.map(|stats| stats.free);
        let largest = stats.map(|stats| stats.largest_free);
        Refused { episode, size, align, live, free, largest, way }
    });
    Ended { episodes: episode, events, peak, refused }
}

#[cfg(test)]
mod tests {
    use super::{Owner, Way};

    #[test]
    fn the_fewest_bytes_are_in_the_way() {
        let blocks =
            [(0..40, Owner::Once), (48..50, Owner::Earlier), (80..84, Owner::Episode), (90..99, Owner::Once)];
        let least = |size, align| Way::least(0..100, size, align, &blocks);
        let way = Way { bytes: 2, earlier: 1, ..Way::default() };
        assert_eq!(least(30, 1), Some(way));
        let both = Way { bytes: 6, earlier: 1, episode: 1, ..Way::default() };
        assert_eq!(least(50, 8), Some(both));
        assert_eq!(least(101, 1), None, "it does not end in the arena");
        assert_eq!(Way::least(0..9, 8, 8, &[]), None, "no block is in the way");
    }
}
