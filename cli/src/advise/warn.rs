//! Finds problems of a run that do not depend on the heap.

use std::collections::HashMap;
use std::sync::Arc;

use serde::Serialize;

use super::run::{Life, Run};

/// Number of parts into which a run is divided to detect growth throughout.
const PARTS: usize = 8;

/// Blocks of one size and tag that were never freed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Leak {
    /// The size of a block in bytes when it was allocated.
    pub size: usize,
    /// Their tag.
    pub tag: Option<String>,
    /// Number of blocks.
    pub blocks: usize,
    /// Their total bytes.
    pub bytes: usize,
    /// Whether their number grew throughout: in at least six of eight parts of the run.
    pub growing: bool,
    /// The suggestions that concern them: numbers in the list of suggestions, from 0.
    pub suggestions: Vec<usize>,
}

impl Leak {
    /// Returns whether a block is one of them.
    pub fn has(&self, life: &Life) -> bool {
        life.to.is_none() && life.sizes[0] == self.size && life.tag.as_deref() == self.tag.as_deref()
    }
}

/// Returns the blocks that are never freed, by size and tag, the most bytes first.
pub fn leaks(run: &Run) -> Vec<Leak> {
    #[derive(Default)]
    struct Group {
        blocks: usize,
        bytes: usize,
        parts: [bool; PARTS],
    }
    let mut groups: HashMap<(usize, Option<Arc<str>>), Group> = HashMap::new();
    for life in run.lives.iter().filter(|life| life.to.is_none()) {
        let [size, _, last] = life.sizes;
        let group = groups.entry((size, life.tag.clone())).or_default();
        group.blocks += 1;
        group.bytes += last;
        group.parts[(life.from * PARTS / run.end.max(1)).min(PARTS - 1)] = true;
    }
    let mut leaks: Vec<Leak> = groups
        .into_iter()
        .map(|((size, tag), Group { blocks, bytes, parts })| {
            let growing = blocks >= 2 * PARTS && parts.iter().filter(|&&part| part).count() >= 6;
            let tag = tag.map(|tag| tag.to_string());
            Leak { size, tag, blocks, bytes, growing, suggestions: Vec::new() }
        })
        .collect();
    leaks.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.size.cmp(&b.size)).then(a.tag.cmp(&b.tag)));
    leaks
}

/// A rise of the live bytes throughout the run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Growth {
    /// The minimum of the live bytes in each eighth of the run.
    pub floors: [u64; PARTS],
    /// Bytes that another run of this length would add, from a line through the floors after the first quarter.
    pub per_run: u64,
}

/// Returns the growth if the minimum of the live bytes rises from part to part, by at least a twentieth of the peak in total.
pub fn growth(run: &Run) -> Option<Growth> {
    let live = run.live.get(..run.end).filter(|live| live.len() >= 8 * PARTS)?;
    let part = live.len() / PARTS;
    let mut floors = [0; PARTS];
    for (floor, part) in floors.iter_mut().zip(live.chunks_exact(part)) {
        *floor = part.iter().copied().min().unwrap_or_default();
    }
    // Memory that a program allocates at its start does not count as growth.
    let later = &floors[2..];
    let rises = later.windows(2).all(|pair| pair[0] < pair[1]);
    let by = later.last()?.checked_sub(*later.first()?)?;
    let peak = live.iter().copied().max()?;
    (rises && by * 20 >= peak)
        .then(|| Growth { floors, per_run: by * PARTS as u64 / (later.len() as u64 - 1) })
}
