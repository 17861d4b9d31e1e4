//! [`Apart`]: a map of a pool's segment, in the host's memory.

use super::RegionMap;
use crate::error::FreeError;
use crate::placement::segment::{Block, SegmentPlacement, parts};
use crate::region::{Region, RegionError};
use alloc::vec::Vec;
use core::ops::Range;

/// Divides one segment of a [`Pool`](crate::pool::RawPool) into granules of `GRANULE` bytes, with a [`RegionMap`] in the host's memory.
pub struct Apart<M: RegionMap, const GRANULE: usize> {
    map: M,
    words: Vec<u32>,
    memory: Option<Region>,
    base: usize,
    len: usize,
}

// SAFETY: the map's words belong to this value.
unsafe impl<M: RegionMap + Send, const G: usize> Send for Apart<M, G> {}

impl<M: RegionMap, const G: usize> Apart<M, G> {
    fn words_for(base: usize, len: usize) -> Result<Vec<u32>, RegionError> {
        let count = M::words(base / G, len);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| RegionError::NoNodes)?;
        words.resize(count, 0);
        Ok(words)
    }
}

// SAFETY: a map keeps the same promises in granules of its region, and touches none of its memory.
unsafe impl<M: RegionMap + Send, const G: usize> SegmentPlacement for Apart<M, G> {
    type Token = ();
    const EMPTY: Self = Self { map: M::EMPTY, words: Vec::new(), memory: None, base: 0, len: 0 };
    const GRANULE: usize = G;
    const MAX_LEN: usize = M::MAX_LEN;
    const EXACT: bool = M::EXACT;

    unsafe fn claim(&mut self, memory: Region) -> Result<(), RegionError> {
        if self.memory.is_some() {
            return Err(RegionError::TooMany { max: 1 });
        }
        let (base, len) = parts::<G>(memory, M::MAX_LEN)?;
        self.words = Self::words_for(base, len)?;
        (self.memory, self.base, self.len) = (Some(memory), base, len);
        // SAFETY: the words belong to this value, and are as many as the map takes.
        unsafe { self.map.open(self.words.as_mut_ptr(), base / G, len) };
        Ok(())
    }

    unsafe fn extend(&mut self, start: *mut u8, bytes: usize) -> Result<(), RegionError> {
        let old = self.memory.filter(|memory| memory.start.as_ptr() == start).ok_or(RegionError::Unknown)?;
        let memory = Region { size: old.size.checked_add(bytes).ok_or(RegionError::Overlap)?, ..old };
        let (base, len) = parts::<G>(memory, M::MAX_LEN)?;
        self.memory = Some(memory);
        if len > self.len {
            let mut words = Self::words_for(base, len)?;
            // SAFETY: the new words are as many as the map takes; the old ones live until it has moved.
            unsafe { self.map.extend(words.as_mut_ptr(), len) };
            (self.words, self.len) = (words, len);
        }
        Ok(())
    }

    fn granules(&self) -> Range<usize> {
        0..self.len
    }

    #[inline(always)]
    fn address(&self, offset: usize) -> usize {
        self.base + offset * G
    }

    #[inline(always)]
    fn allocate(&mut self, len: usize, align: usize) -> Option<Block> {
        let shape = M::shape(len, align);
        let offset = self.map.allocate(shape)?;
        Some(Block { offset, len: M::granted(shape), token: () })
    }

    #[inline(always)]
    unsafe fn deallocate(&mut self, block: Block, len: usize, align: usize) -> Result<(), FreeError> {
        let shape = M::shape(len, align);
        self.map.free(block.offset, shape).map(drop).or_else(|_| self.map.check(block.offset, shape))
    }

    unsafe fn resize(&mut self, block: Block, len: usize, to: usize, align: usize) -> Option<Block> {
        let len = self.map.resize(block.offset, M::shape(len, align), M::shape(to, align))?;
        Some(Block { len, ..block })
    }

    fn largest(&self) -> usize {
        self.map.largest()
    }
}
