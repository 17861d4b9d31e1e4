//! Builds the page's tree of calls with the costs of each, by tag and size, over time, and beside those of another run.

use std::collections::{BTreeMap, HashMap};

use serde::Serialize;

use crate::diff::plain;
use crate::profile::{Costs, Label, Measure, Moments, Parts, Profile, labels};

/// A call with less than this part of all costs is added to its caller.
const LEAST: u64 = 20_000;

/// The most changes between moments, unless there are few moments.
const CHANGES: usize = 120_000;
const FEW: usize = 24;

/// The tree of calls.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Who {
    /// Files of functions; the first is empty.
    pub files: Vec<String>,
    /// Functions: name, file (an index of `files`), line. The first is the whole.
    pub frames: Vec<(String, u32, u32)>,
    /// Calls: the caller's number and the function. The first is the whole.
    pub nodes: Vec<[u32; 2]>,
    /// Tags of the parts; the first one is empty and stands for none.
    pub tags: Vec<String>,
    /// What is asked for: the call, the tag, the class of sizes (0 for 0, else one more than the logarithm), and the costs:
    /// bytes live at the end, at the peak, in all, requests, temporary blocks, blocks live at the end.
    pub parts: Vec<[u64; 9]>,
    /// The same costs in the run before: the part, and the costs.
    pub before: Vec<[u64; 7]>,
    /// The events before each moment; the last one is the end.
    pub moments: Vec<u64>,
    /// What changed from the moment before: how many parts on, and its live bytes then; and so on.
    pub changes: Vec<Vec<u64>>,
}

/// The tree under construction.
struct Tree {
    /// Functions of two runs are the same if their lines have moved.
    compares: bool,
    frames: Vec<Label>,
    numbers: HashMap<Label, usize>,
    nodes: Vec<(usize, usize)>,
    children: HashMap<(usize, usize), usize>,
}

impl Tree {
    fn frame(&mut self, label: Label) -> usize {
        let key = if self.compares {
            Label { function: plain(&label.function).into(), file: label.file.clone(), line: 0 }
        } else {
            label.clone()
        };
        if let Some(&known) = self.numbers.get(&key) {
            if self.frames[known].line != label.line {
                self.frames[known].line = 0;
            }
            return known;
        }
        self.frames.push(Label { function: key.function.clone(), ..label });
        self.numbers.insert(key, self.frames.len() - 1);
        self.frames.len() - 1
    }

    fn child(&mut self, parent: usize, frame: usize) -> usize {
        let next = self.nodes.len();
        let node = *self.children.entry((parent, frame)).or_insert(next);
        if node == next {
            self.nodes.push((parent, frame));
        }
        node
    }

    /// Adds the stacks of a profile, and returns the node of each by its number.
    fn add(&mut self, profile: &Profile) -> Vec<usize> {
        let mut leaves = vec![0; profile.by_stack.len()];
        for ((number, leaf), costs) in (0..).zip(&mut leaves).zip(&profile.by_stack) {
            if costs.calls == 0 {
                continue;
            }
            let mut stack = labels(&profile.stacks, number);
            if stack.is_empty() {
                stack.push(Label { function: "(not known)".into(), file: None, line: 0 });
            }
            for label in stack.into_iter().rev() {
                let frame = self.frame(label);
                *leaf = self.child(*leaf, frame);
            }
        }
        leaves
    }

    /// Says of each node whether it costs more than next to nothing in a profile.
    fn counting(&self, profile: &Profile, leaves: &[usize]) -> Vec<bool> {
        let mut sums = vec![Costs::default(); self.nodes.len()];
        for (&leaf, costs) in leaves.iter().zip(&profile.by_stack) {
            sums[leaf].add(costs);
        }
        // Callers come before those whom they call.
        for node in (1..sums.len()).rev() {
            let costs = sums[node];
            sums[self.nodes[node].0].add(&costs);
        }
        let worth = |part: u64, whole: u64| part > 0 && part.saturating_mul(LEAST) >= whole;
        let counts = |costs: &Costs| {
            worth(costs.most, profile.total.peak)
                || Measure::ALL.iter().any(|measure| worth(measure.of(costs), measure.of(&profile.total)))
        };
        sums.iter().map(counts).collect()
    }
}

/// Numbers of the parts of a page: call, tag and class.
type Numbers = HashMap<[u64; 3], usize>;

impl Who {
    /// Builds the tree of a profile, and finds the call of each stack; `None` if the trace has no stacks. Costs of `before` are multiplied
    /// by its factor.
    pub(super) fn of(profile: &Profile, before: Option<(&Profile, f64)>) -> Option<(Self, Vec<u32>)> {
        if !profile.has_stacks() {
            return None;
        }
        let whole = Label { function: "all".into(), file: None, line: 0 };
        let mut tree = Tree {
            compares: before.is_some(),
            frames: vec![whole],
            numbers: HashMap::new(),
            nodes: vec![(0, 0)],
            children: HashMap::new(),
        };
        let leaves = tree.add(profile);
        let leaves_before = before.map(|(before, _)| tree.add(before));
        let mut counts = tree.counting(profile, &leaves);
        if let Some(((before, _), leaves)) = before.zip(leaves_before.as_ref()) {
            let also = tree.counting(before, leaves);
            counts.iter_mut().zip(also).for_each(|(counts, also)| *counts |= also);
        }
        let mut who = Self { files: vec![String::new()], tags: vec![String::new()], ..Self::default() };
        let mut kept = vec![0; tree.nodes.len()];
        for (node, &(parent, frame)) in tree.nodes.iter().enumerate() {
            kept[node] = kept[parent];
            if node == 0 || counts[node] {
                who.nodes.push([kept[parent] as u32, frame as u32]);
                kept[node] = who.nodes.len() - 1;
            }
        }
        who.name_frames(&tree.frames);
        let calls = |leaves: Vec<usize>| leaves.into_iter().map(|leaf| kept[leaf] as u32).collect::<Vec<_>>();
        let leaves = calls(leaves);
        let mut numbers = Numbers::new();
        if let Some(parts) = &profile.parts {
            let mapped = who.number(parts, &leaves, &mut numbers);
            for (&number, (_, costs)) in mapped.iter().zip(&parts.parts) {
                who.parts[number][3..]
                    .iter_mut()
                    .zip(cells(costs, 1.0))
                    .for_each(|(cell, cost)| *cell += cost);
            }
            let moments = joined(&parts.moments, &mapped, who.parts.len());
            who.changes = moments.changes.iter().map(|changes| flat(changes)).collect();
            who.moments = moments.at;
        }
        if let Some(((before, scale), leaves)) = before.zip(leaves_before)
            && let Some(parts) = &before.parts
        {
            let mapped = who.number(parts, &calls(leaves), &mut numbers);
            let mut sums: BTreeMap<usize, [u64; 6]> = BTreeMap::new();
            for (&number, (_, costs)) in mapped.iter().zip(&parts.parts) {
                let sums = sums.entry(number).or_default();
                sums.iter_mut().zip(cells(costs, scale)).for_each(|(cell, cost)| *cell += cost);
            }
            let row = |(number, [a, b, c, d, e, f]): (usize, [u64; 6])| [number as u64, a, b, c, d, e, f];
            who.before = sums.into_iter().map(row).collect();
        }
        Some((who, leaves))
    }

    /// Writes the functions of all nodes, and renumbers them.
    fn name_frames(&mut self, labels: &[Label]) {
        let mut numbers = HashMap::new();
        let mut files: HashMap<&str, u32> = HashMap::from([("", 0)]);
        for node in &mut self.nodes {
            let (frames, names) = (&mut self.frames, &mut self.files);
            node[1] = *numbers.entry(node[1]).or_insert_with_key(|&frame| {
                let label = &labels[frame as usize];
                let file =
                    *files.entry(label.file.as_deref().unwrap_or_default()).or_insert_with_key(|file| {
                        names.push((*file).to_owned());
                        names.len() as u32 - 1
                    });
                frames.push((label.function.to_string(), file, label.line));
                frames.len() as u32 - 1
            });
        }
    }

    /// Returns the page's number of each part of a profile.
    fn number(&mut self, parts: &Parts, calls: &[u32], numbers: &mut Numbers) -> Vec<usize> {
        let mut tags = Vec::with_capacity(parts.tags.len());
        for tag in &parts.tags {
            let known = self.tags.iter().position(|known| **known == **tag);
            tags.push(known.unwrap_or_else(|| {
                self.tags.push(tag.to_string());
                self.tags.len() - 1
            }) as u64);
        }
        let of = |(part, _): &(crate::profile::Part, Costs)| {
            let call = calls.get(part.stack as usize).copied().unwrap_or(0);
            let key = [call.into(), tags[part.tag as usize], part.class.into()];
            *numbers.entry(key).or_insert_with(|| {
                self.parts.push([key[0], key[1], key[2], 0, 0, 0, 0, 0, 0]);
                self.parts.len() - 1
            })
        };
        parts.parts.iter().map(of).collect()
    }
}

/// Returns the costs that a page shows, multiplied by a factor.
fn cells(costs: &Costs, scale: f64) -> [u64; 6] {
    let Costs { live, peak, bytes, calls, temporary, blocks, .. } = *costs;
    [live, peak, bytes, calls, temporary, blocks].map(|cost| (cost as f64 * scale).round() as u64)
}

/// Joins parts that are one on the page, and leaves out moments until there are not too many changes.
fn joined(moments: &Moments, numbers: &[usize], count: usize) -> Moments {
    let mut live = vec![0; numbers.len()];
    let mut sums = vec![0; count];
    let mut joined = Moments { at: moments.at.clone(), changes: Vec::with_capacity(moments.changes.len()) };
    for changes in &moments.changes {
        let mut changed = BTreeMap::new();
        for &(part, now) in changes {
            let before = std::mem::replace(&mut live[part as usize], now);
            let number = numbers[part as usize];
            changed.entry(number as u32).or_insert(sums[number]);
            sums[number] = sums[number] - before + now;
        }
        changed.retain(|&number, &mut before| sums[number as usize] != before);
        joined.changes.push(changed.into_keys().map(|number| (number, sums[number as usize])).collect());
    }
    while joined.len() > CHANGES && joined.at.len() > FEW {
        joined.halve();
    }
    joined
}

/// Returns how far each changed part is from the one before, and its live bytes.
fn flat(changes: &[(u32, u64)]) -> Vec<u64> {
    let mut last = 0;
    changes
        .iter()
        .flat_map(|&(part, live)| [u64::from(part - std::mem::replace(&mut last, part)), live])
        .collect()
}
