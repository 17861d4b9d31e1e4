//! A plan that can change, for shapes that are known only at run time.

#![forbid(unsafe_code)]

mod tree;

use super::{Buffer, PlanError};
use crate::units::each;
use tree::{Entry, Tree};

#[derive(Clone, Copy)]
struct Record {
    size: usize,
    offset: usize,
    /// The offset before the last replanning.
    before: usize,
    start: u32,
    end: u32,
    /// Number of earlier buffers in this place.
    age: u16,
    /// The index of this place in `order`.
    turn: u16,
    /// The binary logarithm of the alignment.
    shift: u8,
    used: bool,
}

/// A plan of up to `N` buffers that are added, removed and resized one by one, in fixed memory.
///
/// A change takes O(log n) expected, amortised, for n buffers. A tree of lifetimes finds the buffers whose lifetimes overlap the changed
/// one, at most `LIMIT`, and the buffer goes into the smallest gap between them; if there are more, it goes above all others. The plan is
/// sometimes made again as a whole, the largest buffer first: when it exceeds its lower bound by more than an eighth, and there have been
/// a quarter as many changes as there are buffers, so that the cost is amortised. Offsets then change; see [`Incremental::generation`].
/// After many changes, one call of [`Incremental::replan`] costs no more and gives the best plan.
///
/// ```
/// use allotment::plan::{Buffer, Incremental};
///
/// let mut plan = Incremental::<16>::new(64 * 1024);
/// let input = plan.add(&Buffer::new(4096, 0..2).align(16))?;
/// let hidden = plan.add(&Buffer::new(8192, 1..3).align(16))?;
/// let output = plan.add(&Buffer::new(4096, 2..4).align(16))?;
/// assert_eq!(plan.peak(), 12288);
/// assert_eq!(plan.offset(input), plan.offset(output));
///
/// plan.resize(input, 1024)?; // the next request is shorter
/// plan.resize(hidden, 2048)?;
/// plan.resize(output, 1024)?;
/// assert!(plan.peak() <= 12288);
/// # Ok::<(), allotment::plan::PlanError>(())
/// ```
pub struct Incremental<const N: usize, const LIMIT: usize = 32> {
    tree: Tree<N>,
    records: [Record; N],
    /// The places in use, sorted when the plan is made again, followed by the free ones.
    order: [u16; N],
    len: usize,
    capacity: usize,
    /// Number of changes since the plan was last made again.
    credit: usize,
    generation: u32,
}

impl<const N: usize, const LIMIT: usize> Incremental<N, LIMIT> {
    /// Creates an empty plan for an arena of `capacity` bytes.
    pub const fn new(capacity: usize) -> Self {
        let capacity = if capacity > isize::MAX as usize { isize::MAX as usize } else { capacity };
        let none = Record {
            size: 0,
            offset: 0,
            before: 0,
            start: 0,
            end: 0,
            age: 0,
            turn: 0,
            shift: 0,
            used: false,
        };
        let mut order = [0; N];
        each!(i, 0..N, {
            order[i] = i as u16;
        });
        Self { tree: Tree::new(), records: [none; N], order, len: 0, capacity, credit: 0, generation: 0 }
    }

    /// Returns the number of buffers. O(1).
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no buffers. O(1).
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the bytes that the plan needs. O(1).
    pub fn peak(&self) -> usize {
        self.tree.highest()
    }

    /// Returns the maximum live load without alignment, which every plan needs. O(1).
    pub fn lower_bound(&self) -> usize {
        self.tree.load()
    }

    /// Returns the size of the arena in bytes. O(1).
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Returns how often the whole plan was made again. As long as this number does not change, only added or resized buffers get new
    /// offsets. O(1).
    pub fn generation(&self) -> u32 {
        self.generation
    }

    /// Returns the offset of a buffer in bytes, if it exists. O(1).
    pub fn offset(&self, id: u32) -> Option<usize> {
        self.place(id).ok().map(|place| self.records[place].offset)
    }

    /// Adds a buffer. O(log n) expected, amortised.
    ///
    /// # Errors
    ///
    /// [`PlanError`] if there is no place for the buffer, or it has constraints other than alignment and lifetime.
    pub fn add(&mut self, buffer: &Buffer<'_>) -> Result<u32, PlanError> {
        let mut record = read(buffer)?;
        if self.len == N {
            return Err(PlanError::TooMany { room: N });
        }
        // Free places come after the used ones.
        let place = usize::from(self.order[self.len]);
        record.offset = self.find(&record)?;
        record.age = self.records[place].age;
        record.turn = self.len as u16;
        self.records[place] = record;
        self.tree.insert(place, entry(&record));
        self.len += 1;
        self.spend();
        Ok(u32::from(record.age) << 16 | place as u32)
    }

    /// Removes a buffer. O(log n) expected, amortised.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`] if there is no such buffer.
    pub fn remove(&mut self, id: u32) -> Result<(), PlanError> {
        let place = self.place(id)?;
        self.tree.remove(place);
        self.release(place);
        self.spend();
        Ok(())
    }

    /// Changes the size of a buffer, which keeps its offset if there is room. O(log n) expected, amortised.
    ///
    /// # Errors
    ///
    /// [`PlanError::Unknown`] if there is no such buffer, [`PlanError::Full`] if there is no place for it at its new size.
    pub fn resize(&mut self, id: u32, size: u64) -> Result<(), PlanError> {
        let place = self.place(id)?;
        let old = self.records[place];
        let mut new = old;
        new.size = usize::try_from(size).map_err(|_| PlanError::Senseless)?;
        self.tree.remove(place);
        if new.size > old.size && !self.is_free(&new) {
            match self.find(&new) {
                Ok(offset) => new.offset = offset,
                Err(error) => {
                    self.tree.insert(place, entry(&old));
                    return Err(error);
                }
            }
        }
        self.records[place] = new;
        self.tree.insert(place, entry(&new));
        self.spend();
        Ok(())
    }

    /// Makes the whole plan again, but keeps the old one if the new one is not smaller. O(n log n) expected.
    pub fn replan(&mut self) {
        self.credit = 0;
        let peak = self.peak();
        let (used, _) = self.order.split_at_mut(self.len);
        let records = &mut self.records;
        used.sort_unstable_by_key(|&place| {
            let record = &records[usize::from(place)];
            (core::cmp::Reverse(record.size), record.start, place)
        });
        for (turn, &place) in used.iter().enumerate() {
            let record = &mut records[usize::from(place)];
            record.before = record.offset;
            record.turn = turn as u16;
        }
        self.tree.clear();
        let mut better = true;
        for k in 0..self.len {
            let place = usize::from(self.order[k]);
            let mut record = self.records[place];
            match self.find(&record) {
                Ok(offset) => record.offset = offset,
                Err(_) => {
                    better = false;
                    break;
                }
            }
            self.records[place] = record;
            self.tree.insert(place, entry(&record));
        }
        if better && self.tree.highest() < peak {
            self.generation = self.generation.wrapping_add(1);
            return;
        }
        self.tree.clear();
        for k in 0..self.len {
            let place = usize::from(self.order[k]);
            let record = &mut self.records[place];
            record.offset = record.before;
            let entry = entry(record);
            self.tree.insert(place, entry);
        }
    }

    fn place(&self, id: u32) -> Result<usize, PlanError> {
        let (place, age) = (id as usize % (1 << 16), (id >> 16) as u16);
        match self.records.get(place) {
            Some(record) if record.used && record.age == age => Ok(place),
            _ => Err(PlanError::Unknown),
        }
    }

    /// Counts a change, and replans if the plan is bad and there were enough changes to amortise the cost.
    fn spend(&mut self) {
        self.credit += 1;
        let bound = self.lower_bound();
        if self.credit > self.len / 4 && self.peak() > bound + bound / 8 {
            self.replan();
        }
    }

    /// Returns whether a resized buffer that is not in the tree may keep its offset.
    fn is_free(&self, new: &Record) -> bool {
        let Some(end) = new.offset.checked_add(new.size).filter(|&end| end <= self.capacity) else {
            return false;
        };
        let mut seen = 0;
        self.tree.overlapping(new.start, new.end, &mut |place| {
            let other = &self.records[place];
            seen += 1;
            seen <= LIMIT && (other.offset >= end || other.offset + other.size <= new.offset)
        })
    }

    /// Returns the offset of the smallest gap for a buffer that is not in the tree.
    fn find(&self, new: &Record) -> Result<usize, PlanError> {
        let mut others = [(0, 0); LIMIT];
        let mut count = 0;
        let all = self.tree.overlapping(new.start, new.end, &mut |place| {
            let room = count < LIMIT;
            if room {
                let other = &self.records[place];
                others[count] = (other.offset, other.offset + other.size);
                count += 1;
            }
            room
        });
        let mut top = if all { 0 } else { self.tree.highest() };
        let mut best: Option<(usize, usize)> = None;
        if all {
            let others = &mut others[..count];
            others.sort_unstable();
            for &mut (start, end) in others {
                let gap = start.saturating_sub(top);
                let fits = align(top, new.shift)
                    .and_then(|at| at.checked_add(new.size))
                    .is_some_and(|stop| stop <= start);
                if gap > 0 && fits && best.is_none_or(|(least, _)| gap < least) {
                    best = Some((gap, top));
                }
                top = top.max(end);
            }
        }
        let offset = align(best.map_or(top, |(_, at)| at), new.shift).ok_or(PlanError::Senseless)?;
        let needed = offset.checked_add(new.size).ok_or(PlanError::Senseless)?;
        if needed > self.capacity { Err(PlanError::Full { needed }) } else { Ok(offset) }
    }

    /// Frees a place, and moves the last used place to its index in the order.
    fn release(&mut self, place: usize) {
        self.len -= 1;
        let last = self.order[self.len];
        let record = &mut self.records[place];
        let turn = record.turn;
        record.used = false;
        record.age = record.age.wrapping_add(1);
        self.order.swap(usize::from(turn), self.len);
        self.records[usize::from(last)].turn = turn;
    }
}

/// Converts a buffer to a record.
fn read(buffer: &Buffer<'_>) -> Result<Record, PlanError> {
    let Buffer { size, align, start, end, .. } = *buffer;
    if !buffer.gaps.is_empty() || buffer.fixed.is_some() || buffer.alias.is_some() || !buffer.apart.is_empty()
    {
        return Err(PlanError::Constraint);
    }
    let fits = align.is_power_of_two() && start < end && usize::try_from(align).is_ok();
    let (Ok(size), Ok(start), Ok(end), true) =
        (usize::try_from(size), u32::try_from(start), u32::try_from(end), fits)
    else {
        return Err(PlanError::Senseless);
    };
    let shift = align.trailing_zeros() as u8;
    Ok(Record { size, offset: 0, before: 0, start, end, age: 0, turn: 0, shift, used: true })
}

fn entry(record: &Record) -> Entry {
    let Record { start, end, size, offset, .. } = *record;
    Entry { start, end, size, top: offset + size }
}

/// Rounds up to a multiple of `1 << shift`.
fn align(value: usize, shift: u8) -> Option<usize> {
    crate::units::align_up(value, 1 << shift)
}
