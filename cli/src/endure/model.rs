//! Divides a recording into episodes that can follow each other in any order.
//!
//! Blocks that an episode allocates and frees are local. A block that it leaves to a later episode is freed as many episodes later as
//! recorded, at the recorded share of that episode. Blocks that replace each other, such as settings, form a *cell*: an episode that
//! replaced one of them replaces the block in the cell, so the number of live blocks stays as recorded. All other blocks are fixed: they
//! are allocated and freed once, where they were recorded.

use std::collections::HashMap;
use std::ops::Range;

use allotment_trace::{Kind, Op};

use super::cut::Cuts;
use crate::advise::run::{Life, Run};

/// The place where a block is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the episode.
    Local(u32),
    /// In the episode and later ones: an index of [`Model::carried`].
    Carried(u32),
    /// In a cell.
    Cell(u32),
    /// In the whole history.
    Fixed(u32),
}

/// The action of a step on its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Allocates it, with its size in bytes and the binary logarithm of its alignment.
    Allocate(usize, u8),
    /// Resizes it to this many bytes.
    Resize(usize),
    /// Frees it.
    Free,
    /// Frees the last block of a cell.
    End,
}

/// A step of a history.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    pub place: Place,
    pub action: Action,
}

/// A step on a carried block: `after` episodes after its allocation, at a share of the episode then.
#[derive(Clone, Copy, Debug)]
pub struct Later {
    pub after: u32,
    pub at: f32,
    /// The new size; `None` frees the block.
    pub size: Option<usize>,
}

/// A recording, ready for drawing episodes.
#[derive(Default)]
pub struct Model {
    /// The steps before the first episode.
    pub startup: Vec<Step>,
    steps: Vec<Step>,
    episodes: Vec<Range<usize>>,
    /// The steps that happen once, by episode and share of the episode.
    pub once: Vec<(u32, f32, Step)>,
    /// The later steps of each carried block.
    pub carried: Vec<Vec<Later>>,
    /// Largest number of local blocks of an episode.
    pub locals: usize,
    pub cells: usize,
    pub fixed: usize,
    /// Largest number of episodes for which a block is carried.
    pub longest: usize,
    /// Number of blocks that episodes left live for good; a longer history would have more.
    pub left: usize,
    /// Their bytes.
    pub left_bytes: usize,
}

/// Largest number of events between the end of a block and the start of its replacement.
const NEAR: usize = 24;
/// Least lifetime, in episodes, of blocks that replace each other.
const LASTING: usize = 2;

impl Model {
    /// Creates a model of a run; `size` maps the size and alignment of each request to its size in the model.
    pub fn new(run: &Run, cuts: &Cuts, mut size: impl FnMut(usize, usize) -> usize) -> Self {
        let mut model = Self::default();
        let count = cuts.at.len() - 1;
        let end = cuts.at[count];
        // Here the start-up is number 0.
        let episode_of = |event: usize| cuts.at.partition_point(|&at| at <= event);
        let share = |event: usize| {
            let number = episode_of(event);
            let from = cuts.at[number - 1];
            (event - from) as f32 / (cuts.at[number] - from) as f32
        };
        let ended = |life: &Life| life.to.filter(|&to| to < end);
        let chains = chains(run, end, &episode_of);
        let longest = |life: &Life| {
            let (from, to) = (episode_of(life.from), episode_of(ended(life)?));
            (from > 0).then(|| to - from)
        };
        model.longest = (0..run.lives.len())
            .filter(|&life| run.lives[life].from < end && !chains.cell_of.contains_key(&life))
            .filter_map(|life| longest(&run.lives[life]))
            .max()
            .unwrap_or(0);
        model.cells = chains.cells;
        let mut places: Vec<Option<Place>> = vec![None; run.lives.len()];
        let mut bodies: Vec<Vec<Step>> = vec![Vec::new(); count];
        let mut locals = vec![0_u32; count];
        for (event, op) in run.program.ops[..end].iter().enumerate() {
            let number = run.life_of[event] as usize;
            let life = &run.lives[number];
            let (begun, now) = (episode_of(life.from), episode_of(event));
            let place = *places[number].get_or_insert_with(|| {
                if let Some(&cell) = chains.cell_of.get(&number) {
                    return Place::Cell(cell);
                }
                let last = ended(life).map(episode_of);
                if begun > 0 && last == Some(begun) {
                    locals[begun - 1] += 1;
                    return Place::Local(locals[begun - 1] - 1);
                }
                // A block that is live at the end, and no older than carried blocks become, counts as carried.
                let age = last.unwrap_or(count + 1) - begun;
                if begun > 0 && (last.is_some() || (1..=model.longest).contains(&age)) {
                    let later = match last {
                        Some(_) => Vec::new(),
                        None => vec![Later { after: age as u32, at: 0.5, size: None }],
                    };
                    model.carried.push(later);
                    return Place::Carried(model.carried.len() as u32 - 1);
                }
                if begun > 0 {
                    model.left += 1;
                    model.left_bytes += life.sizes[2];
                }
                model.fixed += 1;
                Place::Fixed(model.fixed as u32 - 1)
            });
            let step = Step { place, action: action(op, life.align, &mut size) };
            let in_body = match place {
                Place::Local(_) => true,
                Place::Carried(_) => begun == now,
                Place::Fixed(_) => false,
                Place::Cell(_) => match step.action {
                    Action::Allocate(..) => chains.replaces.contains_key(&number),
                    // The allocation of its replacement frees it.
                    Action::Free if chains.replaced.contains_key(&number) => continue,
                    Action::Free => false,
                    _ => now > 0,
                },
            };
            if now == 0 {
                model.startup.push(step);
            } else if in_body {
                let body = &mut bodies[now - 1];
                match (place, chains.replaces.get(&number)) {
                    (Place::Cell(_), Some(&old)) if matches!(step.action, Action::Allocate(..)) => {
                        let free = Step { place, action: Action::Free };
                        // The old block ends before or after the new one starts, as recorded.
                        let before = run.lives[old].to.is_some_and(|to| to < event);
                        body.extend(if before { [free, step] } else { [step, free] });
                    }
                    _ => body.push(step),
                }
            } else if let Place::Carried(index) = place {
                let size = match step.action {
                    Action::Resize(size) => Some(size),
                    _ => None,
                };
                let after = (now - begun) as u32;
                model.carried[index as usize].push(Later { after, at: share(event), size });
            } else {
                let ends = matches!((place, step.action), (Place::Cell(_), Action::Free));
                let action = if ends { Action::End } else { step.action };
                model.once.push((now as u32 - 1, share(event), Step { action, ..step }));
            }
        }
        for later in &mut model.carried {
            later.sort_by_key(|later| later.after);
        }
        model.locals = locals.into_iter().max().unwrap_or(0) as usize;
        for body in bodies {
            let from = model.steps.len();
            model.steps.extend(body);
            model.episodes.push(from..model.steps.len());
        }
        model
    }

    /// Returns the number of recorded episodes.
    pub fn len(&self) -> usize {
        self.episodes.len()
    }

    /// Returns the steps of an episode.
    pub fn episode(&self, number: usize) -> &[Step] {
        &self.steps[self.episodes[number].clone()]
    }

    /// Returns the bytes of the largest request in the episodes.
    pub fn largest(&self) -> Option<usize> {
        let requested = |step: &Step| match step.action {
            Action::Allocate(size, _) | Action::Resize(size) => Some(size),
            Action::Free | Action::End => None,
        };
        self.steps.iter().filter_map(requested).max()
    }
}

fn action(op: &Op, align: usize, size: &mut impl FnMut(usize, usize) -> usize) -> Action {
    match op.kind {
        Kind::Allocate => Action::Allocate(size(op.size(), align), align.ilog2() as u8),
        Kind::Reallocate => Action::Resize(size(op.resized(), align)),
        Kind::Free => Action::Free,
    }
}

/// Blocks that replace each other.
#[derive(Default)]
struct Chains {
    cell_of: HashMap<usize, u32>,
    cells: usize,
    /// For each block, the block that it replaces, and the reverse.
    replaces: HashMap<usize, usize>,
    replaced: HashMap<usize, usize>,
}

/// Pairs blocks of equal tag and similar size that live for several episodes, if one ends near the start of the other.
fn chains(run: &Run, end: usize, episode_of: &impl Fn(usize) -> usize) -> Chains {
    let lasts = |life: &Life| {
        let last = life.to.filter(|&to| to < end).unwrap_or(end - 1);
        episode_of(last) >= episode_of(life.from) + LASTING
    };
    let mut ends: Vec<(usize, usize)> = Vec::new();
    let mut lasting = Vec::new();
    for (number, life) in run.lives.iter().enumerate().filter(|(_, life)| life.from < end) {
        let ended = life.to.filter(|&to| to < end);
        // A block that is replaced soon after it replaced another belongs to the cell of both.
        if lasts(life) {
            lasting.push(number);
            ends.extend(ended.map(|to| (to, number)));
        }
    }
    ends.sort_unstable();
    let mut pairs = Vec::new();
    for &new in lasting.iter().filter(|&&new| episode_of(run.lives[new].from) > 0) {
        let begun = &run.lives[new];
        let first = ends.partition_point(|&(to, _)| to + NEAR < begun.from);
        for &(to, old) in ends[first..].iter().take_while(|&&(to, _)| to <= begun.from + NEAR) {
            if old != new && run.lives[old].from < begun.from && alike(&run.lives[old], begun) {
                pairs.push((to.abs_diff(begun.from), new, old));
            }
        }
    }
    pairs.sort_unstable();
    let mut chains = Chains::default();
    for (_, new, old) in pairs {
        if !chains.replaces.contains_key(&new) && !chains.replaced.contains_key(&old) {
            chains.replaces.insert(new, old);
            chains.replaced.insert(old, new);
        }
    }
    // Visit blocks in order of their starts, so that a block's cell is known before its successor's.
    for &life in &lasting {
        if let Some(cell) = chains.replaces.get(&life).and_then(|old| chains.cell_of.get(old)) {
            chains.cell_of.insert(life, *cell);
        } else if chains.replaced.contains_key(&life) {
            chains.cell_of.insert(life, chains.cells as u32);
            chains.cells += 1;
        }
    }
    chains
}

/// Returns whether one block may replace the other.
fn alike(old: &Life, new: &Life) -> bool {
    let (a, b) = (old.sizes[2], new.sizes[0]);
    old.tag == new.tag && (a.max(b) <= 256 || a.max(b) <= 4 * a.min(b))
}
