//! The lists of the page: blocks that are live at the end, the largest blocks, and tags.

use std::cmp::Reverse;
use std::collections::HashMap;

use serde::Serialize;

use super::trace::{Action, Trace};

/// The most rows per list.
const ROWS: usize = 200;

/// One block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Its name in the trace.
    pub id: u64,
    /// Bytes.
    pub size: u64,
    /// Alignment in bytes.
    pub align: u64,
    /// An index of the report's tags.
    pub tag: u32,
    /// Event that allocated it.
    pub from: u32,
    /// Event that freed it.
    pub to: Option<u32>,
    /// Its last offset in the arena in bytes.
    pub at: Option<u64>,
    /// The stack that asked for it, as the trace numbers it.
    #[serde(skip)]
    pub stack: u32,
    /// The call that asked for it: an index of the nodes of who asked for memory.
    pub call: Option<u32>,
}

/// Blocks of one size and tag that are live at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// An index of the report's tags.
    pub tag: u32,
    /// Bytes of each.
    pub size: u64,
    /// The number of blocks.
    pub count: u64,
    /// Event that allocated the first one.
    pub first: u32,
    /// Event that allocated the last one.
    pub last: u32,
}

/// The figures of one tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Tag {
    /// An index of the report's tags.
    pub tag: u32,
    /// Blocks.
    pub blocks: u64,
    /// The most bytes live at once.
    pub peak: u64,
    /// Blocks that are live at the end, and their bytes.
    pub live_blocks: u64,
    /// Bytes that are live at the end.
    pub live: u64,
}

/// Returns the largest blocks; `places` has the last offset of each block.
pub fn largest(trace: &Trace, places: &[Option<u64>]) -> Vec<Row> {
    rows(trace, places, |_| true)
}

/// Returns the largest blocks that are live at the end.
pub fn live(trace: &Trace, places: &[Option<u64>]) -> Vec<Row> {
    rows(trace, places, |row| row.to.is_none())
}

fn rows(trace: &Trace, places: &[Option<u64>], wanted: impl Fn(&Row) -> bool) -> Vec<Row> {
    let row = |(block, &at): (&super::trace::Block, &Option<u64>)| Row {
        id: block.id,
        size: block.size,
        align: block.align,
        tag: block.tag,
        from: block.from,
        to: block.to,
        at,
        stack: block.stack,
        call: None,
    };
    let mut rows: Vec<Row> = trace.blocks.iter().zip(places).map(row).filter(|row| wanted(row)).collect();
    let key = |row: &Row| (Reverse(row.size), row.from);
    if rows.len() > ROWS {
        rows.select_nth_unstable_by_key(ROWS, key);
        rows.truncate(ROWS);
    }
    rows.sort_unstable_by_key(key);
    rows
}

/// Returns the blocks that are live at the end, by tag and size; those with the most bytes first.
pub fn groups(trace: &Trace) -> Vec<Group> {
    let mut groups: HashMap<(u32, u64), Group> = HashMap::new();
    for block in trace.blocks.iter().filter(|block| block.to.is_none()) {
        let (tag, size) = (block.tag, block.size);
        let none = Group { tag, size, count: 0, first: block.from, last: block.from };
        let group = groups.entry((tag, size)).or_insert(none);
        group.count += 1;
        group.last = block.from;
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_unstable_by_key(|group| (Reverse(group.size.saturating_mul(group.count)), group.first));
    groups.truncate(ROWS);
    groups
}

/// Returns all tags, the one with the highest peak first.
pub fn tags(trace: &Trace) -> Vec<Tag> {
    let mut tags: Vec<Tag> = (0..trace.tags.len() as u32).map(|tag| Tag { tag, ..Tag::default() }).collect();
    let mut sizes = vec![0; trace.blocks.len()];
    for event in &trace.events {
        let tag = &mut tags[trace.blocks[event.block as usize].tag as usize];
        tag.blocks += u64::from(event.action == Action::Allocate);
        tag.live = tag.live - std::mem::replace(&mut sizes[event.block as usize], event.size) + event.size;
        tag.peak = tag.peak.max(tag.live);
    }
    for block in trace.blocks.iter().filter(|block| block.to.is_none()) {
        tags[block.tag as usize].live_blocks += 1;
    }
    tags.retain(|tag| tag.blocks > 0);
    tags.sort_unstable_by_key(|tag| (Reverse(tag.peak), tag.tag));
    tags
}
