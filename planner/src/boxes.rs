//! Packs buffers into boxes: a smaller instance whose plans are also plans of the original.
//!
//! Two buffers of equal lifetime form a box when stacked, and two of equal size form a box when the second starts as the first ends.
//! Neither wastes memory, so boxes are packed further as if they were buffers (the boxing of Buchsbaum, Karloff, Kenyon, Reingold and
//! Thorup, *OPT versus LOAD in dynamic storage allocation*, 2003, allows some waste and so always ends in boxes of one size). The best
//! plan of the boxes can be worse than the best plan of the buffers, since a box's contents stay together: it proves nothing.

use std::collections::HashMap;

use crate::deadline::{Deadline, Watch};
use crate::model::{Buffer, Instance};
use crate::sections::Sections;

/// The contents of a box: a buffer or two other boxes.
#[derive(Clone, Debug)]
enum Content {
    Buffer(usize),
    /// Two boxes, the second this many bytes above the first.
    Pair(usize, usize, u64),
}

/// An instance made of boxes.
#[derive(Clone, Debug)]
pub struct Boxes {
    /// The boxes as buffers.
    pub instance: Instance,
    /// For each box, its index in `contents`.
    roots: Vec<usize>,
    contents: Vec<Content>,
    buffers: usize,
}

/// When to join two boxes of equal size if the second begins as the first ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Join {
    /// Only if neither has another partner.
    Forced,
    /// Always, the longest first.
    Longest,
}

#[derive(Clone, Copy)]
struct Shape {
    first: u32,
    last: u32,
    size: u64,
    align: u64,
}

/// Packs the buffers of a plain instance; `None` if `deadline` passes first. O(n log n) expected.
///
/// A `waste` above 0 (up to 0.5) rounds sizes up to powers of 1 + `waste`, so that more of them match, as in idealloc (Lamprakos et al.,
/// *idealloc*, 2025). Placing the buffers anew in the order of their offsets removes the waste.
pub fn boxes(instance: &Instance, join: Join, waste: f64, deadline: &Deadline) -> Option<Boxes> {
    let base = 1.0 + waste.clamp(1e-6, 0.5);
    let size = |buffer: &Buffer| {
        if waste <= 0.0 {
            return buffer.size;
        }
        let power = base.powf((buffer.size as f64).log(base).ceil()).ceil();
        let most = buffer.size.saturating_add(buffer.size / 2);
        (power as u64).clamp(buffer.size, most).next_multiple_of(buffer.align)
    };
    let mut watch = Watch::new(deadline);
    if watch.passed(0) {
        return None;
    }
    let buffers = instance.buffers();
    let sections = Sections::new(buffers.iter().map(|buffer| (buffer.start, buffer.end)));
    let mut packer = Packer::default();
    for (n, buffer) in buffers.iter().enumerate() {
        if watch.passed(200) {
            return None;
        }
        let (first, last) = (sections.first[n], sections.last[n]);
        let shape = Shape { first, last, size: size(buffer), align: buffer.align };
        // A buffer that is never live stays by itself.
        match buffer.is_ever_live() {
            true => packer.put(shape, Content::Buffer(n)),
            false => {
                packer.push(shape, Content::Buffer(n), true);
            }
        }
    }
    packer.pack(join, &mut watch)?;
    let live = |&n: &usize| packer.live[n];
    let roots: Vec<usize> = (0..packer.shapes.len()).filter(live).collect();
    let boxed = roots.iter().map(|&n| {
        let Shape { first, last, size, align } = packer.shapes[n];
        Buffer { align, ..Buffer::new(n.to_string(), size, i64::from(first), i64::from(last)) }
    });
    let instance = Instance::unchecked(boxed.collect());
    Some(Boxes { instance, roots, contents: packer.contents, buffers: buffers.len() })
}

/// Largest number of buffers joined because they can share a place one after the other.
const CHAIN: usize = 64;

/// Joins buffers that can share a place one after the other into plain buffers without gaps; `None` if any buffer is fixed.
pub(crate) fn chains(instance: &Instance) -> Option<Boxes> {
    let buffers = instance.buffers();
    if buffers.iter().any(|buffer| buffer.fixed.is_some()) {
        return None;
    }
    let mut chain: Vec<usize> = (0..buffers.len()).collect();
    let mut members: Vec<Vec<usize>> = (0..buffers.len()).map(|n| vec![n]).collect();
    for (n, other) in buffers.iter().enumerate().filter_map(|(n, buffer)| Some((n, buffer.alias?))) {
        let (a, b) = (chain[n], chain[other]);
        let equal = |n: usize| (buffers[n].size, buffers[n].align, buffers[n].tier);
        // Buffers of a chain that live at the same time must be allowed to share.
        let fit = |x: usize, y: usize| instance.may_share(x, y) || !buffers[x].meets(&buffers[y]);
        let fits = a != b
            && equal(n) == equal(other)
            && members[a].len() + members[b].len() <= CHAIN
            && members[a].iter().all(|&x| members[b].iter().all(|&y| fit(x, y)));
        if fits {
            let moved = std::mem::take(&mut members[b]);
            moved.iter().for_each(|&m| chain[m] = a);
            members[a].extend(moved);
        }
    }
    let mut contents: Vec<Content> = (0..buffers.len()).map(Content::Buffer).collect();
    let (mut whole, mut roots) = (Vec::new(), Vec::new());
    for list in members.into_iter().filter(|list| !list.is_empty()) {
        let first = &buffers[list[0]];
        let start = list.iter().map(|&n| buffers[n].start).min().unwrap_or(first.start);
        let end = list.iter().map(|&n| buffers[n].end).max().unwrap_or(first.end);
        whole.push(Buffer { align: first.align, ..Buffer::new(first.id.clone(), first.size, start, end) });
        let mut root = list[0];
        for &n in &list[1..] {
            contents.push(Content::Pair(root, n, 0));
            root = contents.len() - 1;
        }
        roots.push(root);
    }
    Some(Boxes { instance: Instance::unchecked(whole), roots, contents, buffers: buffers.len() })
}

impl Boxes {
    /// Returns the offsets of the original buffers, given those of the boxes. O(n).
    pub fn unpack(&self, offsets: &[u64]) -> Vec<u64> {
        let mut unpacked = vec![0; self.buffers];
        let mut stack: Vec<(usize, u64)> = self.roots.iter().copied().zip(offsets.iter().copied()).collect();
        while let Some((n, offset)) = stack.pop() {
            match self.contents[n] {
                Content::Buffer(n) => unpacked[n] = offset,
                Content::Pair(a, b, above) => stack.extend([(a, offset), (b, offset + above)]),
            }
        }
        unpacked
    }
}

/// The boxes so far, and where to look for partners.
#[derive(Default)]
struct Packer {
    shapes: Vec<Shape>,
    contents: Vec<Content>,
    live: Vec<bool>,
    /// Boxes by lifetime, by size and first section, and by size and last section; some are no longer live.
    by_lifetime: HashMap<(u32, u32), usize>,
    by_start: HashMap<(u64, u32), Vec<usize>>,
    by_end: HashMap<(u64, u32), Vec<usize>>,
    /// Sizes and sections at which a box may have found a partner.
    changed: Vec<(u64, u32)>,
}

impl Packer {
    /// Adds a box, stacked on the box of equal lifetime if there is one.
    fn put(&mut self, mut shape: Shape, mut content: Content) {
        // Buffers of one alignment need no padding between them.
        while shape.size.is_multiple_of(shape.align) {
            let Some(&below) = self.by_lifetime.get(&(shape.first, shape.last)) else { break };
            let Shape { size, align, .. } = self.shapes[below];
            if align != shape.align || !size.is_multiple_of(align) {
                break;
            }
            self.take(below);
            let own = self.push(shape, content, false);
            content = Content::Pair(below, own, size);
            shape.size += size;
        }
        let n = self.push(shape, content, true);
        self.by_lifetime.insert((shape.first, shape.last), n);
        self.by_start.entry((shape.size, shape.first)).or_default().push(n);
        self.by_end.entry((shape.size, shape.last)).or_default().push(n);
        self.changed.extend([(shape.size, shape.first), (shape.size, shape.last)]);
    }

    /// Adds a box without looking for a partner, and returns its number.
    fn push(&mut self, shape: Shape, content: Content, live: bool) -> usize {
        self.shapes.push(shape);
        self.contents.push(content);
        self.live.push(live);
        self.shapes.len() - 1
    }

    fn take(&mut self, n: usize) {
        self.live[n] = false;
        let Shape { first, last, size, .. } = self.shapes[n];
        if self.by_lifetime.get(&(first, last)) == Some(&n) {
            self.by_lifetime.remove(&(first, last));
        }
        // Another box may have only one partner left.
        self.changed.extend([(size, first), (size, last)]);
    }

    /// Joins boxes that abut in time until none do; `None` if `watch` runs out.
    fn pack(&mut self, join: Join, watch: &mut Watch) -> Option<()> {
        while let Some(key) = self.changed.pop() {
            let live = &self.live;
            let mut work = 200;
            for map in [&mut self.by_start, &mut self.by_end] {
                if let Some(list) = map.get_mut(&key) {
                    work += 8 * list.len();
                    list.retain(|&n| live[n]);
                }
            }
            if watch.passed(work) {
                return None;
            }
            let (Some(after), Some(before)) = (self.by_start.get(&key), self.by_end.get(&key)) else {
                continue;
            };
            let fits = match join {
                Join::Forced => after.len() == 1 && before.len() == 1,
                Join::Longest => !after.is_empty() && !before.is_empty(),
            };
            if !fits {
                continue;
            }
            let length = |&&n: &&usize| self.shapes[n].last - self.shapes[n].first;
            let (Some(&a), Some(&b)) = (before.iter().max_by_key(length), after.iter().max_by_key(length))
            else {
                continue;
            };
            let (left, right) = (self.shapes[a], self.shapes[b]);
            if left.align != right.align {
                continue;
            }
            self.take(a);
            self.take(b);
            self.put(Shape { first: left.first, ..right }, Content::Pair(a, b, 0));
        }
        Some(())
    }
}
